"""Every command and flag of the registry: repeated, spelled otherwise, misplaced, explained."""

from __future__ import annotations

import re
import shlex
from dataclasses import MISSING, fields
from typing import Any, get_origin, get_type_hints

import pytest

from ampft import cli
from ampft.arguments import ClassifyArguments
from ampft.arguments.commands import Command
from ampft.arguments.flags import fields_and_hints, later_wins, value_type
from ampft.errors import InputError
from ampft.lab.audit.audit_command import AUDIT_ARTIFACT
from ampft.lab.referee.ledger_audit import AUDIT_LEDGER

COMMANDS: dict[str, Command[Any, Any]] = {name: cli.find_command(name) for name in cli.names()} | {
    "audit of an artifact": AUDIT_ARTIFACT, "audit of a ledger": AUDIT_LEDGER,
}  # fmt: skip
TWO_SIDES = [name for name, command in COMMANDS.items() if command.settings]
FLAGS = [
    (name, f.name)
    for name, command in COMMANDS.items()
    for f in fields(command.flags)
    if not f.metadata["positional"]
]
# Texts of a form of their own.
FORMS = {
    "budget": ("1h", "2h"), "max_time": ("1h", "2h"), "seeds": ("3", "5"), "sizes": ("1,2", "3,4"),
    "checkpointing_steps": ("1", "2"), "tune_thresholds": ("f1", "recall=0.9"),
    "metric_for_best_model": ("accuracy", "macro_f1"), "image_size": ("8,8", "16,16"),
    "modes": ("fp32", "bf16"), "steps": ("1", "2"), "time_budget": ("1h", "2h"),
    "learning_rates": ("1e-4,1e-3", "1e-5,1e-2"),
}  # fmt: skip


def program(name: str) -> str:
    return f"ampft {name.split()[0]}"


def two_values(name: str, flag: str) -> tuple[str, str]:
    """Two values of a flag, both allowed."""
    known, hints = fields_and_hints(COMMANDS[name].flags)
    metadata, kind = known[flag].metadata, value_type(hints[flag])
    if metadata["choices"]:
        first, *others = metadata["choices"]
        return first, (others or [first])[0]
    if kind in (int, float):
        low, high = (metadata["limits"][limit] for limit in ("at_least", "below"))
        low = metadata["limits"]["above"] if low is None else low
        step = 1 if kind is int else 0.1 * (min(high or 1, 1) - min(low or 0, 0.5))
        values = (kind((low or 0) + step), kind((low or 0) + 2 * step))
        return str(values[0]), str(values[1])
    return FORMS.get(flag, ("one", "two"))


def required(name: str, *, without: str = "") -> list[str]:
    """The words without which a command is refused."""
    words = []
    for f in fields(COMMANDS[name].flags):
        if f.default is MISSING and f.name != without:
            value = f.metadata["choices"] or FORMS.get(f.name, ("x",))
            words += ([] if f.metadata["positional"] else [f"--{f.name}"]) + [next(iter(value))]
    return words


def needed(name: str, flag: str) -> list[str]:
    """A flag without which another has no effect."""
    known, hints = fields_and_hints(COMMANDS[name].flags)
    for other in known[flag].metadata["needs"][:1]:
        if known[other].metadata["positional"]:
            return ["x"]
        switch = value_type(hints[other]) is bool
        value = [] if switch else [two_values(name, other)[0]]
        return [] if known[other].default is True else [*needed(name, other), f"--{other}", *value]
    return []


def parse(name: str, *words: str) -> Any:
    return COMMANDS[name].parse(words, program(name)).flags


def test_every_command_is_found():
    assert len(cli.names()) == len(set(cli.names())) == 20
    assert len(FLAGS) > 200
    for command in COMMANDS.values():
        assert isinstance(command, Command)
        assert command.shown.description.endswith(".")


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_a_repeated_flag_never_keeps_only_the_last(name, flag):
    known, hints = fields_and_hints(COMMANDS[name].flags)
    f, rest = known[flag], [*required(name, without=flag), *needed(name, flag)]
    if value_type(hints[flag]) is bool:
        if flag.startswith("no_"):
            assert getattr(parse(name, f"--{flag}", f"--{flag}", *rest), flag)
            return
        with pytest.raises(
            InputError, match=rf"--{flag} is set twice, to --{flag} and --no-{flag}"
        ):
            parse(name, f"--{flag}", f"--no-{flag}", *rest)
        return
    first, second = two_values(name, flag)
    twice = [*rest, f"--{flag}", first, f"--{flag}={second}"]
    if get_origin(hints[flag]) is tuple:
        assert getattr(parse(name, *twice), flag) == (first, second)
    elif f.metadata["joined"]:
        assert getattr(parse(name, *twice), flag) == f"{first},{second}"
    elif first != second:
        both = rf"--{flag} is set twice, to '?{re.escape(first)}'? and '?{re.escape(second)}'?\. "
        with pytest.raises(InputError, match=both):
            parse(name, *twice)
    else:
        assert f.metadata["choices"] == ("validation",)


DATA_FILES = ("train_file", "validation_file", "test_file")


@pytest.mark.parametrize(("name", "flag"), [each for each in FLAGS if each[1] in DATA_FILES])
def test_data_of_several_files_are_read_together(name, flag):
    rest = [*required(name, without=flag), *needed(name, flag)]
    parsed = parse(name, *rest, f"--{flag}", "a.csv", f"--{flag}", "b.csv")
    assert getattr(parsed, flag) == "a.csv,b.csv"


# As the documentation lists them.
CHOICES = {
    ("export", "format"): "onnx openvino torch", ("export", "precision"): "fp32 fp16 bf16 int8",
    ("export", "int8"): "blocks dynamic static", ("train", "long_text"): "truncate windows",
    ("train", "on_nonfinite"): "stop skip", ("train", "optim"): "adamw_torch adafactor muon",
}  # fmt: skip


@pytest.mark.parametrize(("name", "flag"), CHOICES)
def test_another_value_than_the_documented_ones_is_refused(name, flag):
    rest = [*required(name, without=flag), *needed(name, flag)]
    for value in CHOICES[name, flag].split():
        assert getattr(parse(name, *rest, f"--{flag}", value), flag) == value
    with pytest.raises(InputError, match=rf"--{flag}.*nonsense"):
        parse(name, *rest, f"--{flag}", "nonsense")


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_a_value_may_follow_an_equals_sign_and_must_not_be_blank(name, flag):
    known, hints = fields_and_hints(COMMANDS[name].flags)
    if value_type(hints[flag]) is bool:
        return
    rest = [*required(name, without=flag), *needed(name, flag)]
    value = two_values(name, flag)[1]
    spaced, equal = parse(name, *rest, f"--{flag}", value), parse(name, *rest, f"--{flag}={value}")
    assert spaced == equal
    assert getattr(equal, flag) is not None
    if known[flag].default == "":
        return
    with pytest.raises(InputError, match=rf"--{flag}\b.* received ''"):
        parse(name, *rest, f"--{flag}=")
    if not known[flag].metadata["bare"]:
        missing = rf"--{flag}\b.* (the value is missing\. Write --{flag} |received '')"
        with pytest.raises(InputError, match=missing):
            parse(name, *rest, f"--{flag}")


@pytest.mark.parametrize("name", [n for n, c in COMMANDS.items() if c.reads_config])
def test_the_command_line_overrides_a_file_in_which_no_key_is_repeated(name, tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text(["output_dir: from_file\n", ": 1\n"][0])
    rest = required(name)
    assert parse(name, *rest, "--config", str(config)).output_dir == "from_file"
    assert parse(name, *rest, "--config", str(config), "--output_dir=typed").output_dir == "typed"
    config.write_text("output_dir: a\noutput_dir: b\n")
    with pytest.raises(InputError, match="output_dir is set twice"):
        parse(name, "--config", str(config))
    with pytest.raises(InputError, match="--config is set twice"):
        parse(name, "--config", str(config), "--config", "other.yaml")


def test_a_list_in_a_file_is_joined_where_a_list_is_meant(tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("train_file: [a.csv, b.csv]\n")
    assert parse("train", "--config", str(config)).train_file == "a.csv,b.csv"


def test_a_later_part_of_a_command_line_replaces_an_earlier_one():
    shared = ["--seed", "1", "--use_cpu", "--train_file=a.csv", "--tune_thresholds", "--padding"]
    words = later_wins(
        ClassifyArguments, shared, ["--no-padding", "--seed=2"], ["--train_file", "b"]
    )
    assert words == [
        "--use_cpu",
        "--tune_thresholds",
        "--no-padding",
        "--seed=2",
        "--train_file",
        "b",
    ]


# Both sides of ` -- `

OWN = ("json", "no_cure", "output_dir", "output")
MOVED = ["--train_file", "a.csv", "--learning_rate=0.001", "--padding"]


def advised(name: str, *words: str) -> tuple[str, list[str]]:
    """The sentences and the words of the command that an error advises."""
    with pytest.raises(InputError) as refused:
        COMMANDS[name].parse(words, program(name))
    sentences, written, command = str(refused.value).partition(" Write: ")
    assert written, sentences
    typed = shlex.split(command)
    assert typed[:2] == ["ampft", name]
    return sentences, typed[2:]


@pytest.mark.parametrize("name", TWO_SIDES)
def test_settings_of_a_training_before_the_dashes_get_one_answer_that_works(name):
    own = next(f for f in fields(COMMANDS[name].flags) if f.name in OWN)
    value = [] if "bool" in str(own.type) else ["out"]
    mine = [*required(name), f"--{own.name}", *value]
    sentences, words = advised(name, *MOVED, *mine, "--", "--test_file", "t.csv")
    assert sentences == (
        "--train_file, --learning_rate and --padding are settings of ampft train and belong after "
        "` -- `."
    )
    assert words == [*mine, "--", "--test_file", "t.csv", *MOVED]
    line = COMMANDS[name].parse(words, program(name))
    assert (line.training.train_file, line.training.learning_rate) == ("a.csv", 0.001)
    assert getattr(line.flags, own.name) in (True, "out")
    alone, words = advised(name, *required(name), "--train_file", "a.csv")
    assert alone == "--train_file is a setting of ampft train and belongs after ` -- `."
    assert words == [*required(name), "--", "--train_file", "a.csv"]


@pytest.mark.parametrize("name", TWO_SIDES)
def test_flags_of_a_command_after_the_dashes_get_one_answer_that_works(name):
    theirs = {f.name for f in fields(ClassifyArguments)}
    hints = get_type_hints(COMMANDS[name].flags)
    mine = [
        f for f in fields(COMMANDS[name].flags)
        if f.name not in theirs and not f.metadata["positional"]
        and not f.metadata["needs"] and not f.metadata["excludes"]
    ]  # fmt: skip
    assert mine
    for f in mine:
        is_switch = value_type(hints[f.name]) is bool
        typed = [f"--{f.name}", *([] if is_switch else [two_values(name, f.name)[1]])]
        rest = required(name, without=f.name)
        sentences, words = advised(name, *rest, "--", *typed, "--train_file", "a.csv")
        assert sentences == (f"--{f.name} is a setting of ampft {name} and belongs before ` -- `.")
        assert words == [*rest, *typed, "--", "--train_file", "a.csv"]
        assert f.name in COMMANDS[name].parse(words, program(name)).given


def test_a_flag_of_both_sides_is_moved_where_the_command_chooses_it():
    for name in ("doctor", "ops"):
        sentences, words = advised(name, "--", "--mixed_precision", "bf16", "--seed", "1")
        assert "belongs before" in sentences
        assert words == ["--mixed_precision", "bf16", "--", "--seed", "1"]
    _, words = advised("compare", "--seeds", "3", "--", "--folds", "5", "--output_dir=x")
    assert words == ["--seeds", "3", "--folds", "5", "--output_dir=x", "--"]


def test_a_script_before_the_dashes_moves_with_its_flags():
    _, words = advised(
        "resume-check", "--interruptions", "2", "mine.py", "--depth", "3", "--seed", "1"
    )
    assert words == ["--interruptions", "2", "--", "mine.py", "--depth", "3", "--seed", "1"]
    line = COMMANDS["resume-check"].parse(words, "ampft resume-check")
    assert line.after == ["mine.py", "--depth", "3", "--seed", "1"]
    # The flags of a script are its own business.
    assert COMMANDS["resume-check"].parse(["--", "mine.py", "--interruptions", "2"], "x").after


def test_dashes_that_are_not_expected():
    with pytest.raises(InputError, match="` -- ` is not expected: ampft train takes its settings"):
        parse("train", "--", "--train_file", "a.csv")
    with pytest.raises(InputError, match="` -- ` appears twice"):
        parse("compare", "--", "--seed", "1", "--", "--padding")
    assert parse("predict", "--model", "x", "--", "--odd.csv").files == ("--odd.csv",)


# Help


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_shows_every_flag_within_the_width(name, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit, match="0"):
        parse(name, "--help")
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {program(name)} ")
    assert max(map(len, text.splitlines())) <= columns
    for f in fields(COMMANDS[name].flags):
        shown = f.metadata["metavar"] if f.metadata["positional"] else f"--{f.name}"
        assert re.search(rf"(^|\s){re.escape(shown)}(\s|$)", text, re.MULTILINE), shown


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_ampft_groups_the_commands(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    shown = re.findall(r"^  ([a-z-]+)  ", text, re.MULTILINE)
    assert shown == cli.names()
    assert shown[:5] == ["env", "train", "predict", "report", "compare"]
    with pytest.raises(SystemExit, match="0"):
        cli.main(["help", "train"])
    assert "--train_file" in capsys.readouterr().out
