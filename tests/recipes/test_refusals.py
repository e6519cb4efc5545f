"""Bad input: exit code 2, one message with a remedy, no traceback, nothing written."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from running import BIN, CLASSIFY, REPOSITORY, call, call_here, text_settings, write_csv

HEADER = ("text", "label")
GOOD = [("apple pear", "fruit"), ("iron tin", "metal"), ("nile rhine", "river")] * 8


@dataclass(frozen=True)
class Case:
    """A command line that must be refused.

    Attributes:
        words: Words added to a valid command line.
        message_parts: Texts that the message must contain.
        environment: Variables added to the environment.
        without: Settings removed from the valid command line.
        output: Output folder; None for a folder that does not exist.
    """

    words: tuple[str, ...]
    message_parts: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    output: str | None = None


def flags(**settings: object) -> tuple[str, ...]:
    return tuple(word for name, value in settings.items() for word in (f"--{name}", str(value)))


CASES = {
    "unknown flag": Case(flags(learning_rat=1), ("unknown flag --learning_rat", "--learning_rate")),
    "stray word": Case(("fp16",), ("--use_cpu fp16", "takes no value")),
    "wrong type": Case(flags(seed="x"), ("--seed", "whole number", "'x'")),
    "wrong choice": Case(flags(mixed_precision="fp15"), ("--mixed_precision", "fp15", "bf16")),
    "missing text column": Case(
        flags(text_column_names="body"), ("--text_column_names", "body", "text", "train.csv")
    ),
    "missing label column": Case(
        flags(label_column_name="class"), ("--label_column_name", "class", "label", "train.csv")
    ),
    "missing label": Case(
        flags(train_file="no_label.csv"), ("no_label.csv, line 4", "no label", "'label'")
    ),
    "missing text": Case(
        flags(train_file="no_text.csv"), ("no_text.csv, line 3", "--drop_missing_text")
    ),
    "unseen label": Case(
        flags(validation_file="unseen.csv"), ("unseen.csv, line 3", "gas", "fruit", "validation")
    ),
    "empty file": Case(flags(train_file="empty.csv"), ("empty.csv",)),
    "header only": Case(flags(train_file="header.csv"), ("header.csv", "no rows")),
    "one class": Case(flags(train_file="one_class.csv"), ("one_class.csv", "'fruit'", "two")),
    "no such file": Case(flags(train_file="absent.csv"), ("--train_file", "absent.csv")),
    "unknown ending": Case(flags(train_file="notes.txt"), ("--train_file", "notes.txt", ".csv")),
    "shared rows": Case(
        (*flags(test_file="train.csv"), "--fail_on_leak"),
        ("--fail_on_leak", "6 of 6 validation rows"),
    ),
    "two sources": Case(flags(dataset_name="digits"), ("--train_file", "--dataset_name digits")),
    "nothing to train on": Case(
        (), ("--validation_file", "without --train_file"), without=("train_file",)
    ),
    "fp8 without hardware": Case(flags(mixed_precision="fp8"), ("fp8", "bf16", "fp16")),
    "tf32 without hardware": Case(flags(mixed_precision="tf32"), ("tf32", "fp32")),
    "two precisions": Case(
        flags(mixed_precision="bf16"),
        ("--mixed_precision bf16", "ACCELERATE_MIXED_PRECISION=fp16", "accelerate launch"),
        {"ACCELERATE_MIXED_PRECISION": "fp16"},
    ),
    "unknown precision in the environment": Case(
        (), ("ACCELERATE_MIXED_PRECISION", "fp15"), {"ACCELERATE_MIXED_PRECISION": "fp15"}
    ),
    "folder not empty": Case(
        (), ("--output_dir", "not empty", "--overwrite_output_dir"), output="used"
    ),
    "folder is a file": Case((), ("--output_dir", "is a file"), output="train.csv"),
    "folder below a file": Case((), ("--output_dir", "train.csv"), output="train.csv/run"),
    "config with unknown key": Case(
        flags(config="unknown.yaml"), ("unknown.yaml", "'learning_rat'", "learning_rate")
    ),
    "config with a NUL in a path": Case(
        flags(config="nul.json"), ("nul.json", "output_dir contains a NUL character")
    ),
    "config nested too deeply": Case(flags(config="deep.yaml"), ("deep.yaml", "nested too deeply")),
    "config with wrong type": Case(
        flags(config="type.json"), ("type.json", "num_train_epochs", "many")
    ),
    "config that is a list": Case(flags(config="list.yaml"), ("list.yaml", "map flag names")),
    "config absent": Case(flags(config="absent.yaml"), ("absent.yaml", "cannot be read")),
    "lock that is a link": Case(
        ("--overwrite_output_dir",),
        ("--output_dir", ".ampft-run was not created by this program"),
        output="linked",
    ),
    "launcher without a number of processes": Case(
        (), ("WORLD_SIZE=x in the environment: must be a number",), {"WORLD_SIZE": "x"}
    ),
    "password in a URL": Case(
        flags(train_file="https://me:canary@host.example/a.csv?token=canary"),
        ("--train_file", "host.example/a.csv"),
        without=("train_file",),
    ),
    "output to a URL with a token": Case(
        (), ("--output_dir", "this is a URL"), output="s3://canary@host/run?X-Amz-Signature=canary"
    ),
    "wrong number of class weights": Case(
        flags(class_weights="1,2"), ("--class_weights", "'1,2'", "balanced", "3")
    ),
    "class weights that are not numbers": Case(
        flags(class_weights="1,2,x"), ("--class_weights", "'1,2,x'", "3 positive")
    ),
    "model folder absent": Case(
        flags(model_name_or_path="no/such/model"), ("--model_name_or_path", "no/such/model")
    ),
    "model folder empty": Case(flags(model_name_or_path="used"), ("--model_name_or_path used",)),
    "learning rate below zero": Case(flags(learning_rate="-1"), ("--learning_rate", "-1", "0")),
    "learning rate not a number": Case(flags(learning_rate="nan"), ("--learning_rate", "nan")),
    "no examples in a batch": Case(
        flags(per_device_train_batch_size=0), ("--per_device_train_batch_size", "0", "1")
    ),
    "fraction of one": Case(flags(warmup_ratio=1), ("--warmup_ratio", "below 1")),
    "warm-up as long as the training": Case(
        flags(num_warmup_steps=99), ("--num_warmup_steps 99", "never reach its peak")
    ),
    "betas out of range": Case(flags(adam_beta2=1), ("--adam_beta2", "below 1")),
    "no threads": Case(flags(cpu_threads=0), ("--cpu_threads", "0", "1")),
    "unknown tracker": Case(
        ("--with_tracking", *flags(report_to="tensorbord")),
        ("--report_to", "tensorbord", "tensorboard"),
    ),
    "tracker that is not installed": Case(
        ("--with_tracking", *flags(report_to="swanlab")), ("--report_to", "swanlab", "tensorboard")
    ),
    "no split for the report": Case(
        flags(validation_fraction=0, test_fraction=0),
        ("--validation_fraction 0", "--test_fraction 0"),
        without=("validation_file", "test_file"),
    ),
    "patience without validation": Case(
        flags(validation_fraction=0, early_stopping_patience=1),
        ("--early_stopping_patience 1", "--validation_fraction"),
        without=("validation_file",),
    ),
    "metric without validation": Case(
        flags(validation_fraction=0, metric_for_best_model="macro_f1"),
        ("--metric_for_best_model macro_f1", "--validation_fraction"),
        without=("validation_file",),
    ),
    "padding of a model without": Case(
        flags(pad_to_multiple_of=8), ("--pad_to_multiple_of 8 has no effect", "add --padding")
    ),
    "patience without the best model": Case(
        (*flags(early_stopping_patience=1), "--no-load_best_model_at_end"),
        ("--early_stopping_patience", "--no-load_best_model_at_end"),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A working directory with the files that the cases name."""
    folder = tmp_path_factory.mktemp("refusals")
    write_csv(folder / "train.csv", GOOD, HEADER)
    write_csv(folder / "validation.csv", GOOD[:6], HEADER)
    write_csv(folder / "test.csv", [("plum", "fruit"), ("zinc", "metal")], HEADER)
    write_csv(folder / "no_label.csv", [*GOOD[:2], ("old tin", ""), *GOOD], HEADER)
    write_csv(folder / "no_text.csv", [GOOD[0], ("", "metal"), *GOOD], HEADER)
    write_csv(folder / "unseen.csv", [GOOD[0], ("neon", "gas")], HEADER)
    write_csv(folder / "one_class.csv", [GOOD[0]] * 4, HEADER)
    write_csv(folder / "header.csv", [], HEADER)
    (folder / "empty.csv").touch()
    (folder / "notes.txt").write_text("text,label\n")
    (folder / "unknown.yaml").write_text("learning_rat: 1.0e-3\n")
    (folder / "type.json").write_text('{"num_train_epochs": "many"}')
    (folder / "nul.json").write_text('{"output_dir": "a\\u0000b"}')
    (folder / "deep.yaml").write_text("[" * 100_000)
    (folder / "linked").mkdir()
    (folder / "linked" / ".ampft-run").symlink_to(folder / "empty")
    (folder / "list.yaml").write_text("- learning_rate\n")
    (folder / "used").mkdir()
    (folder / "used" / "notes").touch()
    return folder


def command_line(case: Case, folder: Path, model: Path, name: str) -> list[str]:
    output = case.output or f"out-{name}"
    settings = text_settings(folder, model, output if "://" in output else folder / output)
    while settings_left := [f"--{name}" for name in case.without if f"--{name}" in settings]:
        place = settings.index(settings_left[0])
        del settings[place : place + 2]
    return [*settings, *case.words]


def assert_only_start_lines(output):
    assert all(line.startswith("start      ") for line in output.splitlines()), output


@pytest.mark.add_ons
@pytest.mark.parametrize("name", CASES)
def test_refused_with_one_message_and_nothing_written(name, folder, tiny_model):
    case, files = CASES[name], set(folder.rglob("*"))
    words = command_line(case, folder, tiny_model, name.replace(" ", "-"))
    done = call_here(REPOSITORY / CLASSIFY, *words, cwd=folder, **case.environment)
    assert done.returncode == 2, done
    line, *others = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert all(other.startswith("--") for other in others)  # flags with the same problem
    for part in case.message_parts:
        assert part in line
    assert_only_start_lines(done.stdout)
    assert "canary" not in line
    assert set(folder.rglob("*")) == files
    assert (folder / "notes.txt").read_text() == "text,label\n"


# In separate processes


@pytest.mark.slow
def test_the_recipe_exits_with_code_2(folder, tiny_model):
    output = folder / "separate"
    done = call(
        sys.executable, CLASSIFY, *text_settings(folder, tiny_model, output),
        "--mixed_precision", "fp8",
    )  # fmt: skip
    assert done.returncode == 2
    assert_only_start_lines(done.stdout)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: --mixed_precision fp8")
    assert not output.exists()


@pytest.mark.slow
def test_a_launcher_that_starts_one_process_of_two_is_refused(folder, tiny_model):
    output = folder / "two"
    done = call(
        BIN / "accelerate", "launch", "--cpu", "--num_processes", 2, CLASSIFY,
        *text_settings(folder, tiny_model, output),
    )  # fmt: skip
    assert done.returncode != 0
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "torchrun --nproc_per_node" in message
    assert "returned non-zero exit status 2" in done.stderr
    assert not output.exists()
