"""A remedy was tried: what a message advises is done to the input that caused the message.

The next answer must be another one, and no row or class may vanish without a word.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_walks import OF_COMPARISONS, OF_PREDICTIONS, OF_TABLES
from data_walks import WALKS as OF_DATA
from data_walks import Files, Remedy, Walk
from file_walks import OF_FILES
from messages import Message, advising_messages, message_of
from not_walked import NOT_WALKED
from tiny_text import LABELS, write_contract

import ampft.runs.predict
from ampft import cli
from ampft.arguments.parsing import parse_classify_arguments
from ampft.comparison.settings import parse_compare_arguments
from ampft.data.load import load_data
from ampft.errors import InputError
from ampft.runs.record import DataPart

WALKS = {**OF_DATA, **OF_FILES}
# The message that each walk meets: its file and first words.
WALKED = json.loads((Path(__file__).parent / "walked.json").read_text())
NO_SPLITS = ("--validation_fraction", "0", "--test_fraction", "0")
LEFT_OUT = re.compile(r"(\d+) rows? (?:with|without)\b")


def written(files: Files, folder) -> None:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink(missing_ok=True)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def data_of(words: str):
    """Return the data that a command line reads."""
    own = shlex.split(words)
    splits = () if {*own} & {*NO_SPLITS, "--folds", "--leave_out_test"} else NO_SPLITS
    splits = () if {"--validation_file", "--test_file", "stdlib"} & {*own} else splits
    return load_data(parse_classify_arguments([*own, *splits]))


def answer(door, words: str):
    """Return what a door says: a message, or what it returns."""
    try:
        return door(words)
    except InputError as error:
        return str(error)


def printed_by(command: str):
    """Return a function that runs a command in this process, and returns what it prints."""

    def run(words: str):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([command, *shlex.split(words)])
        if code == 0:
            return [out.getvalue()]
        (message,) = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
        raise InputError(message.removeprefix("error: "))

    return run


def changed(words: str, remedy: Remedy) -> str:
    """Return a command line with the flags that a remedy changes."""
    if remedy.without:
        assert remedy.without in words
        words = words.replace(remedy.without, " ")
    flags = re.search(r"--\w.*", remedy.advice)
    deeds = remedy.without or remedy.files or remedy.add
    implied = flags[0] if flags and not deeds else ""
    if flags and remedy.without and not remedy.add and remedy.advice.startswith("--"):
        implied = remedy.advice
    return f"{words} {remedy.add or implied}"


def assert_nothing_vanished(data, files: Files, words: str) -> None:
    """Check that each row of a plain table is in a split, or that a note counts it."""
    content = files.get("t.csv")
    if "--train_file t.csv" not in words or not isinstance(content, str) or ";" in content:
        return
    flags = {*words.split()}
    elsewhere = {s for s in ("validation", "test") if f"--{s}_file" in flags}
    table = list(csv.DictReader(io.StringIO(content)))
    here = sum(len(part) for split, part in data.splits.items() if split not in elsewhere)
    said = sum(int(n) for note in data.notes for n in LEFT_OUT.findall(note) if "t.csv" in note)
    assert here + said == len(table), data.notes
    labels = {row["label"] for row in table if row.get("label")}
    if "--task" in words or "--label_column_name" in words or "," in "".join(labels):
        return
    assert all(
        label in data.label_names or any(repr(label) in note for note in data.notes)
        for label in labels
    )


def walk(walk: Walk, door, folder) -> Message | None:
    """Carry out each remedy of a walk; return the message that it began with."""
    written(walk.files, folder)
    first = answer(door, walk.words)
    assert isinstance(first, str), "the input causes no message"
    for remedy in walk.remedies:
        assert remedy.advice in first
        written(remedy.files, folder)
        words = changed(walk.words, remedy)
        then = answer(door, words)
        assert not isinstance(then, str), f"{remedy.advice!r} leads to: {then}"
        if door is data_of:
            assert_nothing_vanished(then, walk.files | remedy.files, words)
        written({n: c for n, c in walk.files.items() if n in remedy.files}, folder)
    return message_of(first)


def assert_walk_as_stated(name: str, one: Walk, door, folder, monkeypatch) -> None:
    """Walk, and check that the message is the one that `WALKED` states."""
    monkeypatch.chdir(folder)
    message = walk(one, door, folder)
    key = None if message is None else message.key
    assert WALKED.get(name) == key, f"write into walked.json: {name!r}: {key!r}"


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_the_advice_on_data_leads_on(name, tmp_path, monkeypatch):
    assert_walk_as_stated(f"data, {name}", WALKS[name], data_of, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_COMPARISONS)
def test_the_advice_on_comparisons_leads_on(name, tmp_path, monkeypatch):
    def door(words):
        return parse_compare_arguments(shlex.split(words))

    assert_walk_as_stated(f"comparison, {name}", OF_COMPARISONS[name], door, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TABLES)
def test_the_advice_on_tables_of_predictions_leads_on(name, tmp_path, monkeypatch):
    door = printed_by("compare")
    assert_walk_as_stated(f"tables, {name}", OF_TABLES[name], door, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PREDICTIONS)
@pytest.mark.usefixtures("fresh_accelerate")
def test_the_advice_on_predictions_leads_on(name, tiny_bert, tmp_path, monkeypatch):
    data = DataPart(name="x", kind="text", input_columns=("text",), fingerprints={}, examples={})
    record = SimpleNamespace(
        status="finished", task="text", data=data, label_names=LABELS, files={},
        model=SimpleNamespace(padding_free=None), arguments={"max_seq_length": 128},
    )  # fmt: skip
    monkeypatch.setattr(ampft.runs.predict, "read_record", lambda folder: record)
    run = shutil.copytree(tiny_bert, tmp_path / "run")
    write_contract(run, 128, task="text")
    door = printed_by("predict")
    assert_walk_as_stated(f"predictions, {name}", OF_PREDICTIONS[name], door, tmp_path, monkeypatch)


def test_every_message_that_advises_is_walked_or_says_why_not():
    """Check that a file with messages that no walk meets says what a walk would need."""
    doors = {
        "data": WALKS, "comparison": OF_COMPARISONS, "tables": OF_TABLES,
        "predictions": OF_PREDICTIONS,
    }  # fmt: skip
    names = {f"{door}, {name}" for door, walks in doors.items() for name in walks}
    assert {*WALKED} <= names, "a walk is gone"
    assert len(advising_messages()) > 500, "the messages are not found"
    met = {*WALKED.values()}
    left = {m.file for m in advising_messages() if m.key not in met}
    assert not left - NOT_WALKED.keys(), (
        "Walk the new messages: add them to data_walks.py or command_walks.py, and to walked.json. "
        "If they cannot be walked in this process, say in not_walked.py what a walk would need."
    )
    assert not NOT_WALKED.keys() - left, "all messages of these files are walked"
    assert all(NOT_WALKED.values())


def test_advice_that_changes_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    useless = Walk(
        {"t.csv": "text,label\na,x\nb,\nc,y\n"}, "--train_file t.csv",
        (Remedy("Fill the cells", add="--seed 7"),),
    )  # fmt: skip
    with pytest.raises(
        AssertionError, match=r"'Fill the cells' leads to: t\.csv, line 3: no label"
    ):
        walk(useless, data_of, tmp_path)


def test_a_row_that_vanishes_without_a_word_is_found():
    part = SimpleNamespace(splits={"train": [0, 1]}, notes=(), label_names=("x", "y"))
    files = {"t.csv": "text,label\na,x\nb,y\nc,z\n"}
    with pytest.raises(AssertionError):
        assert_nothing_vanished(part, files, "--train_file t.csv")
    said = SimpleNamespace(
        **{**vars(part), "notes": ("t.csv: 1 row with the label 'z' left out.",)}
    )
    assert_nothing_vanished(said, files, "--train_file t.csv")
