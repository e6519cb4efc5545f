"""The text of `--help`."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.classify import BUILT_IN_DEFAULTS


@pytest.fixture(params=["80", "120"])
def width(request, monkeypatch) -> int:
    monkeypatch.setenv("COLUMNS", request.param)
    return min(int(request.param), 100)


def help_text(capsys, flag: str = "--help_all") -> str:
    with pytest.raises(SystemExit, match="0"):
        parse_classify_arguments([flag])
    return capsys.readouterr().out


def test_the_help_names_every_flag_with_its_default(capsys, width):
    text = " ".join(help_text(capsys).split())
    assert len(fields(ClassifyArguments)) > 40
    for f in fields(ClassifyArguments):
        assert f"--{f.name}" in text
        assert f.metadata["help"] in text
        if not any(f.default is empty for empty in (None, False)):
            shown = repr(f.default) if f.default == " " else f.default
            default = "on" if f.default is True else shown
            assert f"{f.metadata['help']} (default: {default})" in text or f.metadata["choices"]


def test_the_short_help_names_every_flag_and_describes_the_most_used_first(capsys, width):
    text = help_text(capsys, "--help")
    assert len(text.splitlines()) < 105
    words = text.split()
    assert [f.name for f in fields(ClassifyArguments) if f"--{f.name}" not in words] == []
    first = [word for word in words if word.startswith("--")]
    assert first[0] == "--train_file"
    assert max(map(len, text.splitlines())) <= width


def test_the_help_is_grouped(capsys, width):
    text = help_text(capsys)
    for group in ("model:", "data:", "optimizer and schedule:", "evaluation:", "output:"):
        assert f"\n{group}\n" in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    "name", sorted({k for values in BUILT_IN_DEFAULTS.values() for k in values})
)
def test_the_help_states_the_defaults_of_built_in_data(name):
    (text,) = [f.metadata["help"] for f in fields(ClassifyArguments) if f.name == name]
    for data, values in BUILT_IN_DEFAULTS.items():
        if name in values:
            numbers = {float(word) for word in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", text)}
            assert values[name] in numbers, f"{name}: {text!r} lacks the default of {data}"
