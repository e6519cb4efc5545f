"""The examples of docs/doctor.md print what the page shows, apart from digits."""

from __future__ import annotations

import re

import pytest
from running import REPOSITORY

from ampft.text.numbers import MINUS

PAGE = (REPOSITORY / "docs" / "doctor.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)


def without_digits(text: str) -> list[str]:
    """Return the words of a text; products round differently on other CPUs."""
    words = re.sub(rf"[-{MINUS}<]?\d[\d.,]*(e[-+{MINUS}]?\d+)?", "#", text).split()
    return [word for word in words if set(word) != {"-"}]  # the width of a rule


def test_every_cause_has_an_example():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("position", range(3))
def test_the_example_prints_what_the_page_shows(position, tmp_path, monkeypatch, capsys):
    code, shown = EXAMPLES[position]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "example.py"
    file.write_text(code)

    exec(compile(code, str(file), "exec"), {"__name__": "__main__"})

    assert without_digits(capsys.readouterr().out) == without_digits(shown)
