"""A remedy was tried: what a message advises is done to the input that caused the message.

The next answer must be another one, and no row or class may vanish without a word.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from code_walks import WALKS as OF_CODE
from command_walks import OF_COMPARISONS, OF_PREDICTIONS, OF_TABLES
from comparison_walks import WALKS as OF_PLANS
from data_walks import WALKS as OF_PLAIN_DATA
from data_walks import Files, Remedy, Walk
from deeds import carried_out, changed
from export_walks import WALKS as OF_EXPORTS
from file_walks import OF_FILES
from folder_walks import WALKS as OF_FOLDERS
from judge_walks import WALKS as OF_JUDGES
from lab_walks import OF_ARMS, OF_PARSERS
from launcher_walks import WALKS as OF_LAUNCHED
from library_walks import CODE
from media_walks import WALKS as OF_MEDIA
from messages import Message, advising_messages, message_of
from mistake_walks import WALKS as OF_MISTAKES
from model_walks import WALKS as OF_MODELS
from prepared import VARIABLES, Prepared, command, python
from python_walks import OF_COMMANDS
from python_walks import WALKS as OF_PYTHON
from rare_walks import OF_RARE_DATA, OF_RARE_PARSERS
from run_walks import WALKS as OF_RUNS
from search_walks import WALKS as OF_SEARCHES
from table_walks import DATA
from training_walks import WALKS as OF_TRAININGS

from ampft import cli
from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import fields_and_hints
from ampft.arguments.parsing import parse_classify_arguments
from ampft.comparison.arm_settings import parse_compare_arms_arguments
from ampft.comparison.settings import command_of_precisions, parse_compare_arguments
from ampft.data.load import load_data
from ampft.errors import InputError
from ampft.lab import resume_check
from ampft.lab.curve.curve import check_curve


def joined(*tables: dict[str, Walk]) -> dict[str, Walk]:
    """Return the walks of several tables, none of which has a name of another."""
    walks = {name: walk for table in tables for name, walk in table.items()}
    assert len(walks) == sum(map(len, tables)), "two walks have one name"
    return walks


OF_DATA = joined(OF_PLAIN_DATA, OF_FILES, OF_MEDIA, DATA, OF_RARE_DATA)
# The message that each walk meets: its file and first words.
WALKED = json.loads((Path(__file__).parent / "walked.json").read_text())
# The messages that no walk meets, by the reason.
NOT_WALKED = json.loads((Path(__file__).parent / "not_walked.json").read_text())
NO_SPLITS = ("--validation_fraction", "0", "--test_fraction", "0")
LEFT_OUT = re.compile(r"(\d+) rows? (?:with|without)\b")


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


def assert_nothing_vanished(data, files: Files, words: str) -> None:
    """Check that each row of a plain table is in a split, or that a note counts it."""
    content = files.get("t.csv")
    if "--train_file t.csv" not in words or not isinstance(content, str) or ";" in content:
        return
    if any(note.startswith("Fold ") for note in data.notes):  # it says the rows of each part
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


def walk(one: Walk, door, prepared, root) -> Message | None:
    """Carry out each remedy of a walk; return the message that it began with."""
    first, answers = carried_out(one, door, prepared, root)
    assert isinstance(first, str), "the input causes no message"
    if door is not python:
        lacking = flags_that_lack(first, one.words, COMMANDS.get(door, ""))
        assert not lacking, f"the command has no {lacking}: {first}"
    for remedy, then in zip(one.remedies, answers, strict=True):
        assert remedy.advice in first
        assert not isinstance(then, str), f"{remedy.advice!r} leads to: {then}"
        if door is read:
            assert_nothing_vanished(then, one.files | remedy.files, changed(one.words, remedy))
    return message_of(first)


# Of programs that start a training.
OF_LAUNCHERS = {"config_file", "dynamo_backend", "fp8_backend", "nproc_per_node", "num_processes"}
NAMED_FLAG = re.compile(r"(?<![\w-])--(?:no-)?([a-z]\w+)")


# `ampft train` takes these flags of transformers' scripts. Other commands speak of the training of
# the run that they read.
OF_SCRIPTS = frozenset({"do_train", "do_eval", "do_predict"})
OF_TRAININGS_READ = frozenset(
    {"output_dir", "checkpointing_steps", "test_file", "lr_scheduler_type"}
)


def flags_that_lack(said: str, words: str, command_name: str = "") -> set[str]:
    """Return the flags that a message names, and that no command that is meant has."""
    lines = [VARIABLES.sub("", line).split() for line in words.split(" ; ")]
    names = {command_name} if command_name else {line[0] for line in lines if line}
    names = (names | {*re.findall(r"\bampft ([a-z-]+)", said)}) & {*cli.names()}
    commands = [cli.find_command(name) for name in names]
    known = {name for each in commands for name in fields_and_hints(each.flags)[0]}
    if any(each.settings is not None for each in commands):
        known |= {*fields_and_hints(ClassifyArguments)[0]}
    typed = {*NAMED_FLAG.findall(words)}
    others = OF_LAUNCHERS | OF_TRAININGS_READ | {"help", "config"}
    if "train" in names:
        others |= OF_SCRIPTS
    return {*NAMED_FLAG.findall(said)} - known - typed - others


def read(words: str):
    """Return the data that a command line reads, or the message about them."""
    return answer(data_of, words)


def parsed(words: str):
    """Return what the parser of a command says; of a learning curve, also what its check says."""
    name, *argv = shlex.split(words)

    def parse(_) -> None:
        line = cli.find_command(name, argv).parse(argv, f"ampft {name}")
        if name == "curve":
            check_curve(line.flags, line.training)
        if name == "resume-check":
            resume_check._command(line.after)
        if name == "compare":
            command_of_precisions(line)

    return answer(parse, words)


def parsed_arms(words: str):
    """Return what the parser of a comparison of arms says."""
    return answer(lambda line: parse_compare_arms_arguments(shlex.split(line)), words)


def parsed_comparison(words: str):
    """Return what the parser of a comparison of precisions says."""
    return answer(lambda line: parse_compare_arguments(shlex.split(line)), words)


def compared(words: str):
    return command(f"compare {words}")


# The command whose flags the words of a door are.
COMMANDS = {
    read: "train",
    parsed_arms: "compare",
    parsed_comparison: "compare",
    compared: "compare",
}
# The walks behind each door: functions that answer with a message or with anything else.
DOORS = {
    "data": (OF_DATA, read),
    "comparison": (OF_COMPARISONS, parsed_comparison),
    "arms": (OF_ARMS, parsed_arms),
    "parser": (joined(OF_PARSERS, OF_RARE_PARSERS), parsed),
    "tables": (OF_TABLES, compared),
    "training": (OF_TRAININGS, command),
    "model": (OF_MODELS, command),
    "plan": (OF_PLANS, command),
    "judge": (OF_JUDGES, command),
    "export": (OF_EXPORTS, command),
    "command": (joined(OF_LAUNCHED, OF_FOLDERS, OF_SEARCHES, OF_COMMANDS), command),
    "run": (OF_RUNS, command),
    "code": (joined(OF_CODE, CODE, OF_MISTAKES, OF_PYTHON), python),
}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("prepared"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("door", "name"), [(door, name) for door, (walks, _) in DOORS.items() for name in walks]
)
def test_the_advice_leads_on(door, name, prepared, tmp_path) -> None:
    walks, ask = DOORS[door]
    message = walk(walks[name], ask, prepared, tmp_path)
    key = None if message is None else message.key
    named = f"{door}, {name}"
    assert WALKED.get(named) == key, f"write into walked.json: {named!r}: {key!r}"


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PREDICTIONS)
@pytest.mark.usefixtures("fresh_accelerate")
def test_the_advice_on_predictions_leads_on(name, prepared, tmp_path) -> None:
    one = OF_PREDICTIONS[name]
    of_model = Walk(one.files, f"predict {one.words}", one.remedies)
    message = walk(of_model, command, prepared, tmp_path)
    assert WALKED.get(f"predictions, {name}") == (None if message is None else message.key)


def test_every_message_that_advises_is_walked_or_says_why_not() -> None:
    """Check that a message that no walk meets says why; equal texts are one message."""
    names = {f"{door}, {name}" for door, (walks, _) in DOORS.items() for name in walks}
    names |= {f"predictions, {name}" for name in OF_PREDICTIONS}
    assert {*WALKED} <= names, "a walk is gone"
    assert len(advising_messages()) > 500, "the messages are not found"
    met = {m.text for m in advising_messages() if m.key in {*WALKED.values()}}
    left = {m.key for m in advising_messages() if m.text not in met}
    why_not = {key for keys in NOT_WALKED.values() for key in keys}
    new, stale = sorted(left - why_not), sorted(why_not - left)
    assert not new, (
        "Walk the new messages: add them to the walks of their door, and to walked.json. "
        "If they cannot be walked, say why in not_walked.json."
    )
    assert not stale, "these messages of not_walked.json are walked, or gone"


def test_a_flag_that_the_command_lacks_is_found() -> None:
    assert flags_that_lack("Pass --top_k 2, or --seed 1.", "predict --model run") == {"seed"}
    assert not flags_that_lack("Run ampft train --seed 1.", "predict --model run")
    assert flags_that_lack("Pass --sed 1.", "compare -- --train_file t.csv") == {"sed"}


def test_advice_that_changes_nothing_is_found(tmp_path) -> None:
    useless = Walk(
        {"t.csv": "text,label\na,x\nb,\nc,y\n"}, "--train_file t.csv",
        (Remedy("Fill the cells", add="--seed 7"),),
    )  # fmt: skip
    with pytest.raises(
        AssertionError, match=r"'Fill the cells' leads to: t\.csv, line 3: no label"
    ):
        walk(useless, read, Prepared(tmp_path), tmp_path)


def test_a_row_that_vanishes_without_a_word_is_found() -> None:
    part = SimpleNamespace(splits={"train": [0, 1]}, notes=(), label_names=("x", "y"))
    files = {"t.csv": "text,label\na,x\nb,y\nc,z\n"}
    with pytest.raises(AssertionError):
        assert_nothing_vanished(part, files, "--train_file t.csv")
    said = SimpleNamespace(
        **{**vars(part), "notes": ("t.csv: 1 row with the label 'z' left out.",)}
    )
    assert_nothing_vanished(said, files, "--train_file t.csv")
