"""Serving back: plain clients give a run's answers from its folder, or the run says why not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fuzzed_json import signed
from media_files import image_folder, sound_table
from PIL import Image
from running import CLASSIFY, call_here, printed, succeeded, text_settings
from safetensors.numpy import load_file, save_file
from tiny_masks import save_tiny_segformer, write_folders
from tiny_media import save_model
from tiny_words import write_sentences
from transformers import AutoTokenizer

from ampft.integrations import serving_back
from ampft.integrations.serving_back import PIPELINE, PREDICT, serve_back, tolerance_of
from ampft.models.tokenizer import load_tokenizer
from ampft.runs.client_answers import ServedClient, ServedPart
from ampft.runs.predictions import read_predictions
from ampft.runs.record import read_record
from ampft.runs.recorded_arguments import recorded_arguments
from ampft.runs.run_text import format_run, task_row

SOME = 12  # rows


@pytest.fixture(autouse=True, scope="module")
def some_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_back, "ROWS", SOME)
        yield


def trained(folder: Path, *words: object) -> Path:
    steps = ("--max_train_steps", 6, "--use_cpu", "--cpu_threads", 1)
    succeeded(call_here(CLASSIFY, *words, "--output_dir", folder, *steps))
    return folder


@pytest.fixture(scope="module")
def text_run(files, tiny_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "text"
    settings = [*text_settings(files, tiny_model, folder), "--num_train_epochs", "2", "--calibrate"]
    succeeded(call_here(CLASSIFY, *settings))
    return folder


@pytest.fixture(scope="module")
def words_run(tiny_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served-words")
    for name, count in (("train", 60), ("val", 20), ("test", 30)):
        write_sentences(folder / f"{name}.conll", count, seed=count)
    files = ("--train_file", folder / "train.conll", "--validation_file", folder / "val.conll")
    model = ("--model_name_or_path", tiny_model, "--learning_rate", "3e-3")
    return trained(folder / "run", *files, "--test_file", folder / "test.conll", *model)


@pytest.fixture(scope="module")
def image_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served-images")
    model = save_model(folder / "vit", "vit")
    data = image_folder(folder / "images", 12)
    return trained(folder / "run", "--dataset_name", data, "--model_name_or_path", model)


def served(run: Path, folder: Path | None = None) -> ServedPart:
    """Serve a folder, by default the run's own, with the record and the data of a run."""
    record = read_record(run)
    data = task_row(record).kind.load(recorded_arguments(record, ()), None)
    outcome = read_predictions(run / "predictions.parquet")
    return serve_back(folder or run, record, outcome, data)


def equal_rows(part: ServedPart) -> dict[str, int]:
    return {each.client: each.equal for each in part.clients}


def changed(run: Path, tmp_path: Path, name: str, **entries: object) -> Path:
    """Return a copy of a run in whose file of JSON some entries differ."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    values = json.loads((copy / name).read_text())
    (copy / name).write_text(json.dumps({**values, **entries}))
    return copy


@pytest.mark.slow
def test_record_report_and_card_say_that_clients_agree(text_run):
    record = read_record(text_run)
    part = record.served_back
    assert part is not None
    assert equal_rows(part) == {PIPELINE: SOME, PREDICT: SOME}
    assert all(each.difference < 1e-5 for each in part.clients)
    assert "served_back" not in record.warnings
    line = f"{SOME} of {SOME} rows equal in transformers.pipeline (within "
    assert line in format_run(text_run)
    card = (text_run / "README.md").read_text()
    assert "rows equal in transformers.pipeline" in card
    assert 'classify("a text", truncation=True)' in card


@pytest.mark.slow
def test_the_terminal_has_a_line_unless_it_is_turned_off(files, tiny_model, tmp_path):
    settings = text_settings(files, tiny_model, tmp_path / "run")
    done = succeeded(call_here(CLASSIFY, *settings, "--max_train_steps", 2))
    assert printed(done.stdout, "served back").startswith(f"  {SOME} of {SOME} rows equal")
    settings = text_settings(files, tiny_model, tmp_path / "quick")
    done = succeeded(call_here(CLASSIFY, *settings, "--max_train_steps", 2, "--no-serve_back"))
    assert "served back" not in done.stdout
    assert read_record(tmp_path / "quick").served_back is None


@pytest.mark.slow
def test_no_other_process_is_waited_for(text_run, tmp_path, monkeypatch):
    """The others have ended: a process group would wait for them for ever."""

    def connected(*_, **__):
        raise AssertionError("a process group is created")

    several = shutil.copytree(text_run, tmp_path / "run")
    record = json.loads((several / "run.json").read_text())
    record["topology"]["num_processes"] = 2
    (several / "run.json").write_text(signed(record))
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.distributed.init_process_group", connected)
    assert equal_rows(served(several)) == {PIPELINE: SOME, PREDICT: 0}


@pytest.mark.slow
def test_a_pipeline_is_said_not_to_use_a_temperature(text_run):
    (note,) = served(text_run).notes
    assert note.startswith("A pipeline does not use the temperature: ")
    assert "other probabilities" in note
    assert "every row" not in note


@pytest.mark.slow
def test_swapped_labels_are_seen_by_both_clients(text_run, tmp_path):
    names = read_record(text_run).label_names
    swapped = {"0": names[1], "1": names[0], "2": names[2]}
    part = served(text_run, changed(text_run, tmp_path, "config.json", id2label=swapped))
    assert equal_rows(part)[PIPELINE] < SOME
    assert f"config.json has the classes {names[1]}, {names[0]}, {names[2]}" in part.warning()


@pytest.mark.slow
def test_another_temperature_is_seen_by_ampft_predict_which_uses_it(text_run, tmp_path):
    rule = json.loads((text_run / "decision.json").read_text())["rule"]
    tripled = 3 * rule["decisions"]["logit_temperature"]
    rule["decisions"]["logit_temperature"] = tripled
    part = served(text_run, changed(text_run, tmp_path, "decision.json", rule=rule))
    assert equal_rows(part) == {PIPELINE: SOME, PREDICT: 0}
    assert f"decision.json has logit_temperature {tripled}, not" in part.warning()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "change", "found"),
    [
        ("label_names", lambda names: names[::-1], "decision.json has label_names"),
        ("several", lambda _: True, "decision.json has several True, not False"),
        ("numbers", lambda _: True, "decision.json has numbers True, not False"),
    ],
)
def test_other_decisions_are_seen_though_no_client_uses_them(
    text_run, tmp_path, entry, change, found
):
    assert served(text_run).warning() is None
    rule = json.loads((text_run / "decision.json").read_text())["rule"]
    rule[entry] = change(rule.get(entry))
    assert found in served(changed(text_run, tmp_path, "decision.json", rule=rule)).warning()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "entry", "value", "found"),
    [
        ("tokenizer.json", "post_processor", None, "tokenizer.json has post_processor None"),
        ("tokenizer_config.json", "model_max_length", 4, "has model_max_length 4, not 32"),
        ("config.json", "layer_norm_eps", 0.1, "config.json has layer_norm_eps 0.1"),
        ("config.json", "num_attention_heads", 1, "config.json has num_attention_heads 1, not 2"),
        (
            "config.json",
            "problem_type",
            "multi_label_classification",
            "problem_type 'multi_label_classification', not 'single_label_classification'",
        ),
    ],
)
def test_other_settings_are_seen_and_named(text_run, tmp_path, name, entry, value, found):
    part = served(text_run, changed(text_run, tmp_path, name, **{entry: value}))
    assert equal_rows(part)[PIPELINE] == 0
    assert found in part.warning()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "value", "asked"),
    [("model_max_length", 3, 0), ("do_lower_case", False, SOME)],  # these words have no capitals
)
def test_a_flag_that_no_asked_row_shows_is_named(words_run, tmp_path, entry, value, asked):
    copy = changed(words_run, tmp_path, "tokenizer_config.json", **{entry: value})
    part = served(words_run, copy)
    assert equal_rows(part) == {PIPELINE: asked, PREDICT: SOME}
    assert f"tokenizer_config.json has {entry} {value}" in part.warning()
    assert part.warning().startswith("Served back from the saved folder, saved files differ")
    assert served(words_run).warning() is None


@pytest.mark.slow
def test_another_longest_text_is_seen_by_ampft_predict_and_named(text_run, tmp_path):
    read = json.loads((text_run / "decision.json").read_text())["tokenization"]
    read["max_length"] = 4
    part = served(text_run, changed(text_run, tmp_path, "decision.json", tokenization=read))
    assert equal_rows(part) == {PIPELINE: SOME, PREDICT: 0}
    assert "decision.json has max_length 4, not 32" in part.warning()


@pytest.mark.slow
def test_another_activation_is_seen_and_named(text_run, tmp_path):
    part = served(text_run, changed(text_run, tmp_path, "config.json", hidden_act="relu"))
    assert equal_rows(part)[PREDICT] < SOME
    assert "hidden_act 'relu', not 'gelu'" in part.warning()


@pytest.mark.slow
def test_changed_weights_are_seen(text_run, tmp_path):
    copy = changed(text_run, tmp_path, "config.json")
    weights = load_file(copy / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] + np.float32([0.1, 0, 0])
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    part = served(text_run, copy)
    assert equal_rows(part) == {PIPELINE: 0, PREDICT: 0}


@pytest.mark.slow
def test_a_damaged_folder_is_a_warning_and_not_an_error(text_run, tmp_path):
    copy = changed(text_run, tmp_path, "config.json")
    (copy / "tokenizer.json").unlink()
    part = served(text_run, copy)
    assert [each.problem is None for each in part.clients] == [False, False]
    assert "transformers.pipeline failed: " in part.warning()


@pytest.mark.slow
def test_a_temperature_that_no_run_of_words_has_is_named(words_run, tmp_path):
    rule = json.loads((words_run / "decision.json").read_text())["rule"]
    rule["decisions"]["logit_temperature"] = 3.0
    part = served(words_run, changed(words_run, tmp_path, "decision.json", rule=rule))
    assert equal_rows(part) == {PIPELINE: SOME, PREDICT: 0}
    assert "decision.json has logit_temperature 3.0, not None" in part.warning()


@pytest.mark.slow
def test_words_are_compared_one_by_one(words_run):
    card = (words_run / "README.md").read_text()
    assert 'classify("a text", aggregation_strategy="first")' in card
    assert equal_rows(read_record(words_run).served_back) == {PIPELINE: SOME, PREDICT: SOME}


def save_byte_level_bert(folder: Path) -> Path:
    """Save a BERT with a tokenizer of bytes of the generic class, as ModernBERT has it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[PAD]"], initial_alphabet=alphabet
    )
    tokens.train_from_iterator([" ".join(f"w{i} w{i}-w30" for i in range(40))] * 9, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokens, unk_token="[UNK]", pad_token="[PAD]", model_max_length=128
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(fast), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, pad_token_id=fast.pad_token_id,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


def test_places_of_tokens_leave_out_the_space_before_a_word(tmp_path):
    """Otherwise a pipeline shows entities with that space."""
    model = save_byte_level_bert(tmp_path / "model")
    text = "w1 w2 w10"
    plain = load_tokenizer(str(model))
    changed = load_tokenizer(str(model), reads_words=True)
    changed.save_pretrained(tmp_path / "saved")
    for each in (changed, AutoTokenizer.from_pretrained(tmp_path / "saved")):
        read = each(text, return_offsets_mapping=True)
        assert not any(text[start:end].startswith(" ") for start, end in read["offset_mapping"])
        assert read["input_ids"] == plain(f" {text}")["input_ids"]
    places = plain(text, return_offsets_mapping=True)["offset_mapping"]
    assert any(text[start:end].startswith(" ") for start, end in places)


@pytest.fixture(scope="module")
def byte_level_run(tmp_path_factory):
    """Function that trains on words with a tokenizer of bytes."""

    def run(name: str) -> ServedPart:
        folder = tmp_path_factory.mktemp(name)
        write_sentences(folder / "train.conll", 90)
        model = save_byte_level_bert(folder / "model")
        files = ("--train_file", folder / "train.conll", "--learning_rate", "3e-3")
        trained(folder / "run", *files, "--model_name_or_path", model)
        return read_record(folder / "run").served_back

    return run


@pytest.mark.slow
def test_words_have_a_space_before_them_where_the_tokenizer_ignores_the_argument(byte_level_run):
    part = byte_level_run("with-space")
    assert all(each.agrees for each in part.clients), part
    assert part.clients[0].asked > 0


@pytest.mark.slow
def test_words_without_the_space_are_seen_by_a_pipeline(byte_level_run, monkeypatch):
    """As they were when nobody read the argument back."""
    monkeypatch.setattr("ampft.models.tokenizer._lacks_space", lambda tokenizer: False)
    part = byte_level_run("without-space")
    pipeline, predict = part.clients
    assert pipeline.equal < pipeline.asked
    assert predict.agrees, "it shares the mistake"
    assert "The run reads the token 'w" in part.warning()
    assert "where a pipeline reads 'Ġw" in part.warning()


@pytest.mark.slow
def test_images_are_asked_as_files(image_run):
    part = read_record(image_run).served_back
    pipeline, predict = part.clients
    assert (pipeline.equal, predict.equal) == (pipeline.asked, predict.asked)
    assert predict.source == "the files"


@pytest.mark.slow
def test_transparent_images_are_read_otherwise_by_a_pipeline_and_named(tmp_path):
    model = save_model(tmp_path / "vit", "vit")
    data = image_folder(tmp_path / "images", 12)
    for number, path in enumerate(sorted(data.rglob("*.png"))):
        picture = Image.open(path).convert("RGBA")
        picture.putalpha(40 * number % 200)
        picture.save(path)
    run = trained(tmp_path / "run", "--dataset_name", data, "--model_name_or_path", model)
    part = read_record(run).served_back
    assert equal_rows(part)[PIPELINE] < equal_rows(part)[PREDICT]
    found = part.warning()
    assert "with transparency, drawn on white, and a pipeline reads other pixels" in found
    assert "cause is unknown" not in found


@pytest.mark.slow
def test_another_preprocessor_is_seen_and_named(image_run, tmp_path):
    values = json.loads((image_run / "preprocessor_config.json").read_text())
    mean = [each + 0.3 for each in values["image_mean"]]
    copy = changed(image_run, tmp_path, "preprocessor_config.json", image_mean=mean)
    part = served(image_run, copy)
    assert all(not each.agrees for each in part.clients)
    assert "preprocessor_config.json has image_mean" in part.warning()


@pytest.mark.slow
def test_sounds_and_masks_are_served(tmp_path):
    sounds = sound_table(tmp_path / "sounds", 8, rate=16_000)
    model = save_model(tmp_path / "ast", "ast")
    folder = tmp_path / "run"
    trained(folder, "--train_file", sounds, "--model_name_or_path", model)
    for each in read_record(folder).served_back.clients:
        assert each.agrees, each
        assert each.asked > 0
    data = write_folders(tmp_path / "masks")
    model = save_tiny_segformer(tmp_path / "segformer")
    folder = tmp_path / "pixels"
    trained(folder, "--dataset_name", data, "--task", "pixels", "--model_name_or_path", model)
    for each in read_record(folder).served_back.clients:
        assert each.agrees, each
        assert each.difference == 0


@pytest.mark.slow
def test_texts_in_windows_are_left_out_and_counted(files, tiny_model, tmp_path):
    settings = text_settings(files, tiny_model, tmp_path / "run")
    windows = ("--long_text", "windows", "--max_seq_length", 6, "--max_train_steps", 2)
    succeeded(call_here(CLASSIFY, *settings, *windows))
    part = read_record(tmp_path / "run").served_back
    pipeline, predict = part.clients
    assert pipeline.agrees
    assert 0 < pipeline.asked < predict.asked == SOME
    assert "texts over 6 tokens, which a pipeline does not split" in part.notes[0]


CLIENT = ServedClient(
    client=PIPELINE, source="", asked=40, equal=40, difference=4.2e-7, tolerance=1e-4
)


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (CLIENT, "40 of 40 rows equal in transformers.pipeline (within 5e-7)"),
        (
            replace(CLIENT, client=PREDICT, source="test.csv", difference=0.0),
            "40 of 40 rows equal in ampft predict on test.csv (exactly)",
        ),
        (
            replace(CLIENT, equal=3, difference=0.931),
            "3 of 40 rows equal in transformers.pipeline (differences up to 0.93)",
        ),
        (
            replace(CLIENT, equal=3, difference=float("inf")),
            "3 of 40 rows equal in transformers.pipeline (other classes or sizes)",
        ),
        (
            replace(CLIENT, asked=0, equal=0, difference=None),
            "no row was asked in transformers.pipeline",
        ),
        (
            replace(CLIENT, problem="KeyError: 'logits'"),
            "transformers.pipeline failed: KeyError: 'logits'",
        ),
        (
            replace(CLIENT, difference=9.6e-7),
            "40 of 40 rows equal in transformers.pipeline (within 1e-6)",
        ),
    ],
)
def test_the_result_in_words(client, text):
    assert client.text() == text


def test_there_is_a_warning_only_if_a_client_disagrees():
    assert ServedPart(split="test", clients=(CLIENT, CLIENT)).warning() is None
    wrong = ServedPart(split="test", clients=(CLIENT, replace(CLIENT, equal=39)), causes=("Why.",))
    assert "39 of 40" in wrong.warning()
    assert "Why. Whoever loads" in wrong.warning()


def test_tolerances_follow_the_precision():
    values = [tolerance_of(mode) for mode in ("fp32", "fp16", "bf16", "fp8")]
    assert values == sorted(values)
    assert tolerance_of("no") == values[0] == 1e-4
    assert values[-1] <= 0.25


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (IndexError("index out of range in self"), "IndexError: index out of range in self"),
        (OSError("out/config.json is missing"), "OSError: the folder/config.json is missing"),
    ],
)
def test_a_reason_names_the_folder_only_where_it_is_a_path(error, text):
    assert serving_back._reason(error, Path("out")) == text
