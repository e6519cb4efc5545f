"""`ampft predict` refuses bad input with one message, and replaces nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from tiny_text import LABELS, write_contract
from transformers import BertForSequenceClassification

import ampft.cli
import ampft.runs.predict
from ampft.errors import InputError
from ampft.files import describe_file
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file, predict_inputs
from ampft.runs.record import DataPart
from ampft.tasks.table import default_task

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture
def folder(tiny_bert, tmp_path, monkeypatch) -> Path:
    """The folder of a run on texts, which tests damage."""
    return trained_on(("text",), tiny_bert, tmp_path, monkeypatch)


@pytest.fixture
def pair_folder(tiny_bert, tmp_path, monkeypatch) -> Path:
    return trained_on(("a", "b"), tiny_bert, tmp_path, monkeypatch)


def trained_on(columns, tiny_bert, tmp_path, monkeypatch, *, kind="text") -> Path:
    record = SimpleNamespace(
        status="finished",
        task=default_task(kind),
        data=DataPart(name="x", kind=kind, input_columns=columns, fingerprints={}, examples={}),
        model=SimpleNamespace(padding_free=None),
        label_names=LABELS,
        arguments={"max_seq_length": 128},
        files={},
    )
    monkeypatch.setattr(ampft.runs.predict, "read_record", lambda folder: record)
    run = shutil.copytree(tiny_bert, tmp_path / "run")
    write_contract(run, 128, task=default_task(kind), columns=columns)
    return run


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text("text,a,b\nw1 w2,w1,w3\nw4,w4 w5,w6\n")
    return path


def predict(folder, file, *, output=None, columns=None, mode="fp32", overwrite=False):
    request = PredictRequest(
        files=[str(file)],
        output_file=None if output is None else str(output),
        overwrite=overwrite,
        text_column_names=columns,
        batch_size=2,
        mixed_precision=mode,
    )
    predict_file(str(folder), request)


def test_an_undamaged_folder_predicts(folder, file, capsys):
    predict(folder, file)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "text,a,b,prediction,confidence"
    assert len(lines) == 3


def test_the_output_is_not_the_input(folder, file):
    before = file.read_bytes()
    with pytest.raises(InputError, match=r"--output_file .*: this is the input file"):
        predict(folder, file, output=file.parent / "run" / ".." / file.name)
    assert file.read_bytes() == before


def test_the_output_is_not_a_folder(folder, file, tmp_path):
    with pytest.raises(InputError, match=r"--output_file .*: this is a folder"):
        predict(folder, file, output=tmp_path)


@pytest.mark.parametrize("name", ["out.xlsx", "out.json", "out.TSV", "out.csv.gz"])
def test_a_format_that_is_not_written_is_refused(folder, file, tmp_path, name):
    with pytest.raises(InputError, match=r"--output_file .*files are not written. Use .csv"):
        predict(folder, file, output=tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_device_stays_a_device(folder, file):
    predict(folder, file, output="/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_pipe_is_written_and_stays_a_pipe(folder, file, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        predict(folder, file, output=pipe)
        assert reader.communicate()[0].startswith("text,a,b,prediction,confidence\n")
    assert pipe.is_fifo()


def test_a_link_is_refused_and_its_target_stays(folder, file, tmp_path):
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target.name)
    with pytest.raises(InputError, match=r"--output_file .*link\.csv: this is a symbolic link"):
        predict(folder, file, output=link, overwrite=True)
    assert target.read_text() == "old"
    predict(folder, file, output=target, overwrite=True)
    before = target.read_text()
    assert before.startswith("text,a,b,prediction,confidence\n")
    (folder / "model.safetensors").write_text("damaged")
    with pytest.raises(InputError, match="cannot be loaded"):
        predict(folder, file, output=target, overwrite=True)
    assert target.read_text() == before


def test_two_columns_for_a_model_of_single_texts(folder, file):
    with pytest.raises(
        InputError, match=r"--text_column_names a,b: .* on 1 text column \(text\), but received 2"
    ):
        predict(folder, file, columns="a,b")


def test_one_column_for_a_model_of_pairs(pair_folder, file):
    with pytest.raises(
        InputError, match=r"--text_column_names text: .* on 2 text columns \(a, b\), but received 1"
    ):
        predict(pair_folder, file, columns="text")


@pytest.mark.add_ons
@pytest.mark.parametrize(
    "option", [{"sheet_name": "a"}, {"encoding": "latin-1"}, {"text_column_names": "image"}]
)
def test_options_of_tables_are_refused_for_folders(tiny_bert, tmp_path, monkeypatch, option):
    folder = trained_on(("image",), tiny_bert, tmp_path, monkeypatch, kind="image")
    request = PredictRequest(files=[str(tmp_path)], **option)
    with pytest.raises(InputError, match=f"--{next(iter(option))} has no effect on files of image"):
        predict_file(str(folder), request)


@pytest.mark.parametrize(
    ("source", "name"), [({"texts": ["w1"]}, "--text"), ({"files": ["-"]}, "standard input")]
)
@pytest.mark.parametrize("option", ["text_column_names", "label_column_name", "encoding"])
def test_options_of_tables_are_refused_for_texts(folder, source, name, option):
    request = PredictRequest(**source, **{option: "latin-1"})
    with pytest.raises(InputError, match=f"--{option} has no effect on {name}"):
        predict_file(str(folder), request)


@pytest.mark.add_ons
def test_labels_of_masks_are_refused(tiny_bert, tmp_path, monkeypatch):
    folder = trained_on(("image",), tiny_bert, tmp_path, monkeypatch, kind="pixels")
    table = tmp_path / "rows.csv"
    table.write_text("image,kind\na.png,x\n")
    request = PredictRequest(files=[str(table)], label_column_name="kind")
    with pytest.raises(
        InputError, match="--label_column_name kind: predicted masks are not scored"
    ):
        predict_file(str(folder), request)


def test_spaces_around_column_names_are_ignored(pair_folder, file, capsys):
    predict(pair_folder, file, columns=" a , b")
    assert capsys.readouterr().out.startswith("text,a,b,prediction,confidence\n")


def test_a_folder_without_tokenizer_files(folder, file):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"--model .*only special tokens"):
        predict(folder, file)


def test_a_damaged_tokenizer(folder, file):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"--model .*: (cannot be loaded|its tokenizer)"):
        predict(folder, file)


def test_cut_off_weights(folder, file):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"--model .*: cannot be loaded \(.*finished run"):
        predict(folder, file)


def set_classifier_bias(folder: Path, value: float) -> None:
    model = BertForSequenceClassification.from_pretrained(folder)
    torch.nn.init.constant_(model.classifier.bias, value)
    model.save_pretrained(folder)


def test_weights_that_are_not_finite(folder, file):
    set_classifier_bias(folder, float("nan"))
    with pytest.raises(InputError, match=r"--model .*: its parameter classifier\.bias contains"):
        predict(folder, file)


# Finite in float32 and bfloat16, beyond float16.
LARGE = 1e5


@pytest.mark.add_ons
def test_predictions_beyond_float16(folder, file):
    set_classifier_bias(folder, LARGE)
    with pytest.raises(InputError, match=r"--mixed_precision fp16: .*not finite.* fp32"):
        predict(folder, file, mode="fp16")


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_predictions_of_the_same_model_in_wider_formats(folder, file, mode, capsys):
    set_classifier_bias(folder, LARGE)
    predict(folder, file, mode=mode)
    assert len(capsys.readouterr().out.splitlines()) == 3


# What JSON can hold in a cell, and whether each output can: CSV and JSON Lines, and Parquet.
CELLS = {
    '"\\ud800"': (False, False),
    '{"a": ["\\udc00"]}': (False, False),
    "[" * 900 + "]" * 900: (sys.version_info >= (3, 12), True),  # limits of nested values
    "9" * 4000: (True, False),
    "9007199254740993": (True, True),
    '"\\ud83d\\ude00"': (True, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_cell_that_the_output_cannot_hold_is_named(folder, tmp_path, suffix):
    for cell, holds in CELLS.items():
        rows, output = tmp_path / "rows.jsonl", tmp_path / f"out{suffix}"
        rows.write_text(f'{{"text": "w1", "x": null}}\n{{"text": "w1", "x": {cell}}}\n')
        output.write_text("earlier\n")
        if holds[suffix == ".parquet"]:
            predict(folder, rows, output=output, overwrite=True)
            assert output.read_bytes() != b"earlier\n"
            continue
        with pytest.raises(InputError, match=r"row 2, column 'x': the cell has .* Remove"):
            predict(folder, rows, output=output, overwrite=True)
        assert output.read_text() == "earlier\n"


def test_a_column_whose_name_is_no_text_is_refused(folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "w1", "\\udc00": 1}\n')
    with pytest.raises(InputError, match=r"name of the column.*half of a surrogate pair"):
        predict(folder, rows, output=tmp_path / "out.csv")


@pytest.mark.parametrize("text", ["w1 \ud800", ["w2", "\udc00"]])
def test_half_of_a_surrogate_pair_in_memory_is_refused(folder, text):
    with pytest.raises(InputError, match=r"position [01] .*: .* is half of a surrogate pair"):
        ampft.runs.predict.predict_inputs(folder, text, PredictRequest(batch_size=2))


@pytest.mark.parametrize(
    ("flag", "is_noted"), [("train_file", True), ("test_file", False), (None, False)]
)
def test_the_file_of_the_training_is_noted(folder, file, flag, is_noted, capsys):
    record = ampft.runs.predict.read_record(folder)
    if flag is not None:
        record.data.files[str(file)] = describe_file(file).sha256
        record.arguments[flag] = str(file)
    predict(folder, file.rename(file.with_name("renamed.csv")))
    noted = " ".join(capsys.readouterr().err.split())
    assert ("has rows that the model was trained on" in noted) == is_noted


@pytest.mark.parametrize(
    "inputs", [pd.DataFrame({"text": ["w1", "w2"]}), {"text": ["w1", "w2"]}, {"w1", "w2"}]
)
def test_names_of_columns_are_not_predicted(folder, inputs):
    request = PredictRequest(batch_size=2)
    with pytest.raises(InputError, match=r"items are not its rows.*list\(frame\['text'\]\)"):
        predict_inputs(folder, inputs, request)
    assert len(predict_inputs(folder, pd.Series(["w1", "w2"]), request)) == 2


def test_several_processes_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    """They would write the same files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["predict", "--model", str(tmp_path), "x.csv", "--output_dir", str(tmp_path / "out")]
    assert ampft.cli.main(words) == 2
    assert "predict runs in one process, but several were started" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
