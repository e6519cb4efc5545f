"""The table of modes on a terminal: aligned, not too wide, inert."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from example_comparison import broken, hostile, realistic

from ampft.comparison.report.report_files import mode_table, terminal_text
from ampft.text.escaping import display_width, is_hostile
from ampft.text.page import terminal_table
from ampft.text.terminal import PARAGRAPH_WIDTH

EXAMPLES = [realistic, hostile, broken]


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_line_is_wider_than_a_terminal(example):
    lines = terminal_text(example()).split("\n")
    assert len(lines) > 10
    assert max(map(display_width, lines)) <= PARAGRAPH_WIDTH


@pytest.mark.parametrize("example", EXAMPLES)
def test_all_characters_are_inert(example):
    assert not [c for c in terminal_text(example()).replace("\n", "") if is_hostile(c)]


def test_numbers_are_aligned_with_their_headings():
    """Every cell of a right-aligned column ends where its heading ends."""
    _, units, *rows = terminal_table(mode_table(realistic())).split("\n")
    assert len(rows) == 4
    for heading in ("CI)", "of 754", "up", "ms", "MiB", "steps"):
        end = units.index(heading) + len(heading)
        assert all(row[end : end + 2].strip() == "" for row in rows), heading
        assert any(row[end - 1] != " " for row in rows), heading


def test_a_wide_name_keeps_columns_aligned():
    whole = realistic()
    renamed = replace(whole.arms[2], name="\u6df7\u5408\u7cbe\u5ea6")  # four wide characters
    named = replace(whole, arms=(*whole.arms[:2], renamed, whole.arms[3]))
    table = terminal_table(mode_table(named))
    ends = {
        display_width(line[: line.index("native")]) for line in table.split("\n") if "nat" in line
    }
    assert len(ends) == 1


def test_the_results_are_shown():
    whole = realistic()
    row = terminal_table(mode_table(whole)).split("\n")[4]
    bf16 = whole.arm("bf16")
    assert bf16.difference is not None
    assert bf16.speed is not None
    assert bf16.speed.speed_up.ratio is not None
    assert bf16.memory is not None
    assert bf16.memory.peak is not None
    assert row.startswith("bf16")
    assert f"{100 * bf16.metrics['accuracy'].mean:.1f} " in row
    assert f"{100 * abs(bf16.difference.estimate):.1f} (" in row
    assert f" {bf16.speed.speed_up.ratio:.2f} " in row
    assert f" {bf16.memory.peak / 2**20:.0f} " in row
    assert row.split()[1] == "native"


def test_the_baseline_has_no_difference_and_an_emulated_mode_no_ranking():
    table = terminal_table(mode_table(realistic())).split("\n")
    assert "(" not in table[2]
    assert table[5].startswith("fp16     emulated ")
    assert " - " in table[5]


def test_incomplete_arms_are_shown():
    text = terminal_text(broken())
    assert re.search(r"^fp16 +emulated .* unstable, 1 of 2 ", text, flags=re.MULTILINE)
    assert re.search(r"^fp8 +native .* failed, 2 of 2 ", text, flags=re.MULTILINE)
    assert "(no CI)" in text
    assert "! only 2 seeds: error bars" in text


def test_missing_verdicts_are_computed():
    assert terminal_text(replace(realistic())) == terminal_text(realistic())
