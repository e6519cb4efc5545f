"""The Markdown of a comparison: complete, inert, with intact tables."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from example_comparison import broken, hostile, realistic
from markdown_it import MarkdownIt

from ampft.comparison.remarks import remark
from ampft.comparison.report.report_files import markdown_text
from ampft.text.escaping import is_hostile
from ampft.text.numbers import number, points

ALLOWED_ELEMENTS = {
    *("h2", "p", "ul", "li", "code", "strong", "blockquote", "br", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
EXAMPLES = [realistic, hostile, broken]
COMMENT_LIMIT = 65_536  # characters of a comment on GitHub


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "details":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self.open.pop()


def rendered(text: str) -> str:
    # html=True passes raw HTML through, as GitHub does.
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def elements(text: str) -> Elements:
    document = Elements()
    document.feed(rendered(text))
    return document


@pytest.mark.parametrize("example", EXAMPLES)
def test_text_from_the_data_is_inert(example):
    text = markdown_text(example())
    document = elements(text)
    assert document.names <= ALLOWED_ELEMENTS
    assert "details" in document.names
    assert document.attributes <= {"style"}
    assert not document.open
    # Some renderers turn addresses into links even where Markdown does not.
    outside_code = re.sub(r"`[^`\n]*`|</?(details|summary)>", "", text)
    assert not re.search(r"[^\\]:/|[^\s\\]@\w|<", outside_code)
    assert not [c for c in text.replace("\n", "") if is_hostile(c)]


def test_the_check_finds_text_that_is_not_inert():
    """The check above fails if a label is inserted without escaping."""
    document = elements("| a |\n| --- |\n| <img src=x onerror=alert(1)> [x](http://example.com) |")
    assert {"img", "a"} <= document.names
    assert {"onerror", "href"} <= document.attributes


@pytest.mark.parametrize("example", EXAMPLES)
def test_tables_are_rendered_with_equal_rows(example):
    html = rendered(markdown_text(example()))
    tables = re.findall(r"<table>.*?</table>", html, flags=re.DOTALL)
    assert len(tables) > 8
    for table in tables:
        rows = re.findall(r"<tr>.*?</tr>", table, flags=re.DOTALL)
        assert len({len(re.findall(r"<t[hd]\b", row)) for row in rows}) == 1
    # No table is rendered as plain text.
    assert not re.search(r"<p>\|", html)


def test_every_row_of_a_table_has_as_many_cells_as_its_heading():
    """Renderers truncate or fill rows silently, so the source is also checked."""
    for example in EXAMPLES:
        lines = markdown_text(example()).split("\n")
        blocks = re.findall(r"(?:^\|.*\n?)+", "\n".join(lines), flags=re.MULTILINE)
        assert blocks
        for block in blocks:
            counts = {len(re.findall(r"(?<!\\)\|", row)) for row in block.strip().split("\n")}
            assert len(counts) == 1, block[:200]


def test_verdicts_and_the_table_of_modes_come_before_the_first_fold():
    top = markdown_text(realistic()).split("<details>")[0]
    assert "bf16 is 2.4x faster than fp32" in top
    assert top.count("\n| `") == 4
    assert len(top) < 3000


def test_it_fits_a_comment():
    assert len(markdown_text(realistic())) < COMMENT_LIMIT / 2


def test_it_contains_the_results():
    whole = realistic()
    text = markdown_text(whole)
    for arm in whole.arms:
        for value in arm.metrics["accuracy"].per_seed:
            assert f" {number(100 * value, 2)} " in text
        assert f"{number(arm.metrics['log_loss'].mean, 4)} " in text
        for row in arm.classes:
            if row.f1_difference is not None:
                assert f" {points(row.f1_difference)} " in text
    bf16 = whole.arm("bf16")
    assert bf16.difference_fp32 is not None
    assert f" {points(bf16.difference_fp32.estimate)} (" in text
    assert "Obuchowski" in text
    assert "Holm" in text
    assert "Summers" in text
    assert "Cochran" in text


def test_exploratory_results_are_marked():
    text = markdown_text(realistic())
    assert "<summary>Classes (exploratory)</summary>" in text
    assert "compares only the two checkpoints of a seed" in text
    row = next(line for line in text.split("\n") if line.startswith("| calibration error"))
    assert "\N{PLUS-MINUS SIGN}" not in row


def test_missing_results_leave_no_empty_section():
    text = markdown_text(broken())
    assert "Predictions in fp32" not in text
    assert "Gradient error" not in text
    assert "interrupted: no fp8 on this device" in text


@pytest.mark.parametrize(
    "yardstick",
    [
        {"overall": 0.004},
        {"checkpoints": [{"name": "initial weights", "modes": "none"}], "settings": []},
        {"checkpoints": [3, {"modes": []}]},
    ],
)
def test_a_yardstick_with_another_layout_is_skipped(yardstick):
    text = markdown_text(replace(realistic(), yardstick=yardstick))
    assert "Gradient error" not in text


def test_a_partial_yardstick_is_shown():
    text = markdown_text(realistic())
    assert "32 step batches of 32 examples" in text
    part = {"name": "a", "modes": [{"mode": "bf16", "whole": {"error_over_noise": 0.0041}}]}
    text = markdown_text(replace(realistic(), yardstick={"checkpoints": [part]}))
    assert "| `a` | `bf16` | 0.41 % | - | - | - | - | - |" in text


def test_only_the_classes_with_the_largest_differences_are_listed():
    whole = realistic()
    names = tuple(f"class {index}" for index in range(120))

    def widened(arm):
        rows = tuple(
            replace(arm.classes[index % 12], name=name) for index, name in enumerate(names)
        )
        return replace(arm, classes=rows, confusion=((0,) * 120,) * 120)

    text = markdown_text(
        replace(whole, label_names=names, arms=tuple(widened(arm) for arm in whole.arms))
    )
    assert "70 classes with smaller differences are omitted." in text
    assert text.count("| `class ") == 50
    assert "Most frequent confusions" not in text


def test_each_stamp_is_a_line_at_the_top():
    stamps = tuple(remark("selected", split=name) for name in ("one *thing*", "another"))
    text = markdown_text(replace(realistic(), stamps=stamps))
    top = rendered(text.split("<details>")[0])
    quote = re.findall(r"<blockquote>(.*?)</blockquote>", top, flags=re.DOTALL)
    assert len(quote) == 1
    assert quote[0].count("<br") == 1
    assert "one *thing*" in quote[0]
