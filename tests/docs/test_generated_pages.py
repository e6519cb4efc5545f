"""The generated parts of the documentation, which a reader of the repository sees as committed."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HOOKS = runpy.run_path(str(ROOT / "docs/hooks.py"))
filled: Callable[[str], str] = HOOKS["filled"]
STARTS_PROCESSES = "docs/reference/commands.md"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page == STARTS_PROCESSES else ())
        for page in HOOKS["PAGES"]
    ],
)
def test_generated_pages_are_fresh(page: str) -> None:
    """What stands on the page is what `python docs/hooks.py` writes."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert filled(text) == text, "run `python docs/hooks.py`"


def test_every_page_with_generated_parts_is_written() -> None:
    """No page of the documentation is left out, and none has a part that only the site fills."""
    pages = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert {page for page, text in pages.items() if "<!-- generated: " in text} == set(
        HOOKS["PAGES"]
    )
    assert not [page for page, text in pages.items() if "{{ " in text]


def test_a_changed_page_is_not_fresh() -> None:
    """A page with another row than the code has is written again, and the rest is kept."""
    part = "before\n<!-- generated: transformers differences -->\nan old row\n<!-- end -->\nafter\n"
    written = filled(part)
    assert "an old row" not in written
    assert "| `--" in written
    assert written.startswith("before\n")
    assert written.endswith("<!-- end -->\nafter\n")
