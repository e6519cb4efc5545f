"""Settings from defaults, a file and the command line, and settings that are rejected."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from ampft import cli
from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.classify import BUILT_IN_DEFAULTS
from ampft.arguments.extension_points import NAMES_OF_OTHERS
from ampft.arguments.suggestions import choice_hint, meant_flag
from ampft.errors import InputError
from ampft.precision.modes import MODES

FILE = ("--train_file", "train.csv")


def parse(*words: object) -> ClassifyArguments:
    return parse_classify_arguments([str(word) for word in words])


# Defaults


def test_the_default_data_is_the_standard_library():
    arguments = parse()
    assert arguments.dataset_name == "stdlib"
    assert arguments.mixed_precision is None
    for name, value in BUILT_IN_DEFAULTS["stdlib"].items():
        assert getattr(arguments, name) == value


def test_a_home_folder_that_no_shell_has_expanded_is_refused():
    with pytest.raises(InputError, match="Write the whole path"):
        parse(*FILE, "--output_dir", "~/run")


def test_files_use_the_general_defaults():
    arguments = parse(*FILE)
    assert arguments.dataset_name is None
    general = {f.name: f.default for f in fields(ClassifyArguments)} | {"train_file": "train.csv"}
    assert vars(arguments) == general


@pytest.mark.parametrize("name", BUILT_IN_DEFAULTS)
def test_defaults_of_built_in_data_override_the_general_ones(name):
    arguments = parse("--dataset_name", name)
    assert BUILT_IN_DEFAULTS[name]
    for setting, value in BUILT_IN_DEFAULTS[name].items():
        assert getattr(arguments, setting) == value


@pytest.mark.parametrize("name", BUILT_IN_DEFAULTS)
def test_flags_override_defaults_of_built_in_data(name):
    arguments = parse("--dataset_name", name, "--learning_rate", 1e-6, "--num_train_epochs", 1)
    assert arguments.learning_rate == 1e-6
    assert arguments.num_train_epochs == 1
    batch_size = BUILT_IN_DEFAULTS[name]["per_device_train_batch_size"]
    assert arguments.per_device_train_batch_size == batch_size


def test_a_flag_set_to_the_general_default_counts_as_set():
    # The value does not show whether the user set it.
    general = {f.name: f.default for f in fields(ClassifyArguments)}["max_seq_length"]
    assert general != BUILT_IN_DEFAULTS["stdlib"]["max_seq_length"]
    assert parse("--max_seq_length", general).max_seq_length == general


@pytest.mark.parametrize(
    ("given", "steps_per_epoch", "has_words", "expected", "of_two_probed"),
    [
        (None, 2, True, 16, 8),  # 14 rows
        (None, 15, True, 16, 8),
        (None, 29, True, 9, 5),  # 256 rows
        (None, 125, True, 3, 3),
        (None, 5000, True, 3, 3),
        (None, 2, False, 3, 3),
        (1, 2, True, 1, 1),
        (40, 2, True, 40, 40),
    ],
)
def test_the_default_length_follows_the_data(
    given, steps_per_epoch, has_words, expected, of_two_probed
):
    words = () if given is None else ("--num_train_epochs", given)
    arguments = parse("--train_file", "a.csv", *words)
    for classes, epochs in ((None, expected), (3, expected), (2, of_two_probed)):
        chosen = arguments.with_epochs(steps_per_epoch, has_words=has_words, probed_classes=classes)
        assert chosen.num_train_epochs == epochs


@pytest.mark.add_ons
@pytest.mark.parametrize("words", [(), ("--task", "pixels")])
def test_a_folder_of_masks_has_the_defaults_of_its_task_also_if_none_is_named(tmp_path, words):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    source = ("--dataset_name", tmp_path)
    arguments = parse(*source, *words)
    sizes = (arguments.per_device_train_batch_size, arguments.per_device_eval_batch_size)
    assert sizes == (4, 4)
    chosen = parse(*source, *words, "--per_device_train_batch_size", 8)
    assert (chosen.per_device_train_batch_size, chosen.per_device_eval_batch_size) == (8, 4)
    assert parse(*source, "--task", "images").per_device_train_batch_size == 8


def test_a_file_overrides_defaults_of_built_in_data(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("dataset_name: digits\nnum_train_epochs: 2\n")
    arguments = parse("--config", config)
    assert arguments.num_train_epochs == 2
    assert arguments.learning_rate == BUILT_IN_DEFAULTS["digits"]["learning_rate"]


# Files


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_settings_from_a_file(tmp_path, form):
    settings = {
        "train_file": "train.csv", "learning_rate": 0.001, "gradient_accumulation_steps": 4,
        "baseline": True, "mixed_precision": "bf16", "max_train_samples": None,
    }  # fmt: skip
    config = tmp_path / f"run.{form}"
    lines = "\n".join(f"{name}: {json.dumps(value)}" for name, value in settings.items())
    config.write_text(json.dumps(settings) if form == "json" else lines)
    arguments = parse("--config", config)
    assert {name: getattr(arguments, name) for name in settings} == settings


def test_the_command_line_overrides_the_file(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("train_file: train.csv\nlearning_rate: 1e-3\nbaseline: true\nseed: 3\n")
    arguments = parse("--learning_rate", 2e-3, "--config", config, "--no-baseline")
    assert arguments.learning_rate == 2e-3
    assert arguments.baseline is False
    assert arguments.seed == 3


def test_numbers_in_a_file_may_be_written_without_a_dot(tmp_path):
    # YAML 1.1 reads 1e-5 as a string.
    config = tmp_path / "run.yaml"
    config.write_text("learning_rate: 1e-5\nwarmup_ratio: 0\n")
    arguments = parse(*FILE, "--config", config)
    assert arguments.learning_rate == 1e-5
    assert arguments.warmup_ratio == 0


def test_an_empty_file_changes_nothing(tmp_path):
    config = tmp_path / "run.yaml"
    config.touch()
    assert parse(*FILE, "--config", config) == parse(*FILE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("learning_rat: 1", "unknown setting 'learning_rat'.*'learning_rate'"),
        ("seed: many", "seed is 'many'; it must be a whole number"),
        ("seed: 1.5", "seed is 1.5; it must be a whole number"),
        ("seed: .inf", "seed is inf"),
        ("mixed_precision: yes", "mixed_precision is True; choose from"),
        ("seed: true", "seed is True"),
        ("seed:", "seed is None"),
        ("baseline: 1", "baseline is 1"),
        ("output_dir: [a]", r"output_dir is \['a'\]"),
        ("mixed_precision: fp15", "mixed_precision is 'fp15'; choose from no, fp32"),
        ("- seed", "map flag names to values"),
        ("seed: [1", "neither YAML nor JSON"),
        ("seed: " + "[" * 10_000, "values are nested too deeply"),
        ("learning_rate: -1", "--learning_rate: received -1.0"),
        ("baseline: 'on'", "baseline is 'on'; it must be true or false"),
        ("output_dir: ' '", "--output_dir: received ' '"),
    ],
)
def test_a_file_is_checked_like_flags(tmp_path, content, match):
    config = tmp_path / "run.yaml"
    config.write_text(content)
    with pytest.raises(InputError, match=match):
        parse(*FILE, "--config", config)


def test_no_in_yaml_is_the_precision_and_not_false(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("mixed_precision: no\n")
    assert parse(*FILE, "--config", config).mixed_precision == "no"


# Refusals


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--learning_rat", "1"), "unknown flag --learning_rat. Did you mean '--learning_rate'"),
        ((*FILE, "--metric_for_best_model", "kappa"), "'kappa'. Did you mean 'cohen_kappa'"),
        ((*FILE, "--metric_for_best_model", "1"), "received '1'. Allowed values"),
        (("--per_device_batch_size=3",), "Use --per_device_train_batch_size"),
        (("--learning",), "unknown flag --learning"),
        (("--no-baselines",), "unknown flag --no-baselines. Did you mean '--no-baseline'"),
        (("--no_serve_bac",), "unknown flag --no_serve_bac. Did you mean '--no-serve_back'"),
        (
            ("--no-with_trackin",),
            "unknown flag --no-with_trackin. Did you mean '--no-with_tracking'",
        ),
        (("train.csv",), "'train.csv' is not expected"),
        (("--seed",), "--seed: the value is missing. Write --seed N"),
        (("--seed", "1.5"), "--seed: received '1.5'; it must be a whole number"),
        (("--learning_rate", "fast"), "--learning_rate: received 'fast'; it must be a number"),
        (("--mixed_precision", "int8"), "--mixed_precision: received 'int8'"),
        (("--metric_for_best_model", "f2"), "--metric_for_best_model: received 'f2'"),
        ((*FILE, "--dataset_name", "trec"), "a run uses a single source of data"),
        (("--test_file", "test.csv"), "--test_file has no effect without --train_file"),
        (
            ("--early_stopping_patience", "2", "--no-load_best_model_at_end"),
            "--early_stopping_patience 2 has no effect with --no-load_best_model_at_end",
        ),
        (
            ("--eval_steps", "5", "--no-load_best_model_at_end"),
            "--eval_steps 5 has no effect with --no-load_best_model_at_end",
        ),
        (
            ("--metric_for_best_model", "macro_f1", "--no-load_best_model_at_end"),
            "--metric_for_best_model macro_f1 has no effect with --no-load_best_model_at_end",
        ),
        (("--adam_epsilon", "0"), "--adam_epsilon: received 0.0; it must be at least 1e-30"),
        (("--max_time", "2 days"), "--max_time: received '2 days'; use hours, minutes or seconds"),
        (("--token_buckets", "64", "--padding"), "--token_buckets 64 and --padding: buckets"),
        (("--token_buckets", "0"), "--token_buckets"),
        (("--task", "sounds"), "--task sounds: the data are missing"),
        (("--checkpointing_steps", "soon"), "--checkpointing_steps: received 'soon'"),
        (("--async_checkpoints",), "--async_checkpoints has no effect without --checkpointing"),
        (("--allow_topology_change",), "has no effect without --resume_from_checkpoint"),
        (("--resume_from_checkpoint", "latest"), "--output_dir is missing"),
        (
            ("--resume_from_checkpoint=latest", "--output_dir=a", "--overwrite_output_dir"),
            "the first would remove the run that the second continues",
        ),
    ],
)
def test_refused(words, match):
    with pytest.raises(InputError, match=match):
        parse(*words)


LIMITS = {f.name: f.metadata["limits"] for f in fields(ClassifyArguments)}
LOWEST = {
    name: limit["at_least"] for name, limit in LIMITS.items() if limit["at_least"] is not None
}
BELOW_ONE = [name for name, limit in LIMITS.items() if limit["below"] == 1]


@pytest.mark.parametrize(("name", "low"), LOWEST.items())
def test_numbers_below_their_range(name, low):
    number = low - 1 if low else -1
    match = f"--{name}: received -?[0-9.]+; it must be at least {low:g}"
    with pytest.raises(InputError, match=match):
        parse(*FILE, f"--{name}={number:g}")


@pytest.mark.parametrize("name", BELOW_ONE)
@pytest.mark.parametrize("value", ["1", "-0.1", "nan", "inf"])
def test_shares_out_of_range(name, value):
    match = f"--{name}: received .*; it must be (at least|above) 0 and below 1"
    with pytest.raises(InputError, match=match):
        parse(*FILE, f"--{name}={value}")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_learning_rate_that_is_not_finite(value):
    with pytest.raises(InputError, match="--learning_rate: received"):
        parse(*FILE, f"--learning_rate={value}")


def test_every_number_has_a_range():
    numbers = {f.name for f in fields(ClassifyArguments) if "int" in f.type or "float" in f.type}
    above = {name for name, limit in LIMITS.items() if limit["above"] is not None}
    assert numbers == set(LOWEST) | above
    assert len(BELOW_ONE) == 8


@pytest.mark.parametrize("name", ["seed", "data_seed"])
def test_a_seed_has_32_bits(name):
    assert getattr(parse(f"--{name}", 2**32 - 1), name) == 2**32 - 1
    with pytest.raises(
        InputError, match=f"--{name}: received 4294967296; .* at most 4,294,967,295"
    ):
        parse(f"--{name}", 2**32)


TEXTS = [f.name for f in fields(ClassifyArguments) if "str" in f.type and not f.metadata["choices"]]


@pytest.mark.parametrize("name", TEXTS)
def test_empty_texts(name):
    with pytest.raises(InputError, match=f"--{name}: received ''"):
        parse(f"--{name}=")


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--mixed_precision", "int8"), "ampft compare RUN --inference fp32,int8"),
        (("--task", "stsb"), "regression"),
        (("--weight_decoy", "1"), "unknown flag --weight_decoy. Did you mean '--weight_decay'"),
    ],
)
def test_advice(words, advice):
    with pytest.raises(InputError, match=re.escape(advice)):
        parse(*words)


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("use_cuda", None), ("max_time_", "max_time"), ("eval_step", "eval_steps"),
        ("do_trian", "do_train"), ("lerning_rate", "learning_rate"), ("seeed", "seed"),
        ("save_step", "save_steps"), ("gradient_acumulation_steps", "gradient_accumulation_steps"),
        ("num_things", None), ("cache", "cache_dir"), ("step", None),
    ],
)  # fmt: skip
def test_a_name_is_offered_for_a_typo_only(typed, meant):
    with pytest.raises(InputError) as error:
        parse_classify_arguments(["--train_file", "a.csv", f"--{typed}", "1"])
    hint = str(error.value)
    assert f"unknown flag --{typed}" in hint
    if meant is not None:
        assert f"Did you mean '--{meant}'?" in hint or f"Use --{meant}." in hint
    elif typed != "step":
        assert "Did you mean" not in hint


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("predict", "--model", "m", "--auto_micro_batch", "t.csv"), "a setting of ampft train"),
        (("report", "run", "--learning_rate", "1"), "a setting of ampft train"),
        (("predict", "--model", "m", "--nonsense", "t.csv"), "unknown flag --nonsense. See"),
    ],
)
def test_a_setting_of_a_training_is_said_to_be_one_elsewhere(argv, said, capsys):
    assert cli.main(argv) == 2
    assert said in capsys.readouterr().err


def test_without_the_names_of_other_scripts_typos_are_still_recognized(monkeypatch):
    monkeypatch.setattr(NAMES_OF_OTHERS, "get", lambda: None)
    with pytest.raises(InputError, match=r"flag --seeds\. Did you mean '--seed'\? See"):
        parse("--seeds", "1")
    with pytest.raises(InputError, match=r"^unknown flag --gpu\. See classify\.py --help\.$"):
        parse("--gpu", "1")
    assert choice_hint("ner", ("text", "tokens")) == ""
    assert choice_hint("txt", ("text", "tokens")) == " Did you mean 'text'?"
    assert meant_flag("seeds", {"seed"}) == "seed"


@pytest.mark.add_ons
def test_part_of_an_epoch_is_set_in_steps():
    with pytest.raises(InputError, match=r"0\.5; epochs are whole here.*--max_train_steps"):
        parse("--num_train_epochs", "0.5")


def test_files_that_a_shell_listed_are_explained(tmp_path):
    (tmp_path / "part-2.csv").touch()
    with pytest.raises(InputError, match=r"quote a pattern: --train_file 'part-\*\.csv'"):
        parse("--train_file", "part-1.csv", str(tmp_path / "part-2.csv"))


# Consistency with other layers


def test_the_modes_are_those_of_the_table():
    choices = {f.name: f.metadata["choices"] for f in fields(ClassifyArguments)}["mixed_precision"]
    assert choices == ("no", *MODES)


def test_a_metric_of_no_task_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match=r"received 'macro_f'\. Did you mean 'macro_f1'\?"):
        parse("--metric_for_best_model", "macro_f")
    assert parse("--metric_for_best_model", "log_loss").metric_for_best_model == "log_loss"


def test_names_are_split_at_commas():
    request = parse(*FILE, "--text_column_names", "a, b", "--ignore_label", "x,-1")
    assert request.text_columns == ("a", "b")
    assert request.ignored_labels == ("x", "-1")


def test_settings_reach_their_layers():
    words = (
        *FILE,
        "--padding",
        "--learning_rate",
        1e-3,
        "--weight_decay",
        0.1,
        "--num_warmup_steps",
        7,
        "--adam_beta2",
        0.9,
    )
    arguments = parse(*words)
    assert arguments.padding is True
    assert arguments.optimizer_settings().learning_rate == 1e-3
    assert arguments.optimizer_settings().weight_decay == 0.1
    assert arguments.optimizer_settings().betas == (0.9, 0.9)
    assert arguments.schedule_settings().warmup_steps == 7


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--num_warmup_steps", 5), "--num_warmup_steps 5"),
        ((*FILE, "--warmup_ratio", 0.1), "--warmup_ratio 0.1"),
    ],
)
def test_a_schedule_without_a_warm_up_refuses_one(words, name):
    with pytest.raises(InputError, match=f"{name} has no effect .* constant_with_warmup"):
        parse("--lr_scheduler_type", "constant", *words)
    assert parse("--lr_scheduler_type", "constant").warmup_ratio == 0.1  # of the built-in data
    parse("--lr_scheduler_type", "constant_with_warmup", *words)


# What is trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lora_alpha", 8), "--lora_alpha has no effect without --lora_r"),
        (("--merge_lora",), "--merge_lora has no effect without --lora_r"),
        (("--load_in_4bit",), "--load_in_4bit has no effect without --lora_r. Add it"),
        (("--lora_r", 0), "--lora_r: received 0; it must be at least 1"),
        (("--lora_r", 8, "--freeze", "x"), "--freeze x and --lora_r 8: .* frozen already"),
        (("--lora_r", 8, "--train_layers", 0), "--train_layers 0 and --lora_r 8: "),
        (("--train_layers", -1), "--train_layers: received -1; it must be at least 0"),
        (("--lora_r", 8, "--lora_dropout", 1), "--lora_dropout: received 1.0; .* below 1"),
    ],
)
def test_parts_that_make_no_sense_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        parse(*FILE, *words)


def test_adapters_and_heads_do_not_take_the_learning_rate_of_the_whole_model():
    assert parse().learning_rate == BUILT_IN_DEFAULTS["stdlib"]["learning_rate"]
    assert parse("--lora_r", 8).learning_rate is None
    assert parse("--train_layers", 0).learning_rate is None
    assert parse("--lora_r", 8, "--learning_rate", 1e-3).learning_rate == 1e-3
