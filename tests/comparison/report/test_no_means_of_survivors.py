"""No report shows medians over the remaining runs of an incomplete arm."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from example_comparison import realistic

from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import markdown_text, terminal_text
from ampft.comparison.statistics.speed_up import speed_up

FORMS = (terminal_text, markdown_text, html_text)
MIB = 2**20


@cache
def with_figures(status: str) -> Comparison:
    """Return the realistic comparison with unique figures for bf16."""
    whole = realistic()
    arm = whole.arms[2]
    assert arm.speed is not None
    assert arm.memory is not None
    arm = replace(
        arm,
        status=status,
        speed=replace(
            arm.speed, step_seconds=(0.7654,),
            speed_up=speed_up((33.46, 33.47, 33.48), in_turns=True),
            tokens_per_second=98_765.0,
            reason=remark("selected", split="because of remaining runs"),
        ),
        memory=replace(arm.memory, peak=7654 * MIB, ratio=3.21),
    )  # fmt: skip
    return replace(whole, arms=(*whole.arms[:2], arm, whole.arms[3]))


def figures(text: str) -> list[str]:
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)  # charts may show single runs
    return re.findall(
        r"\b765\b|33\.4[678]|98,765|because of remaining runs|7,654|3\.21|321 %", text
    )


@pytest.mark.parametrize("form", FORMS)
def test_no_report_shows_medians_over_remaining_runs(form):
    assert figures(form(with_figures("complete")))
    assert figures(form(with_figures("unstable"))) == []


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_ranked_against_an_incomplete_baseline(form):
    whole = with_figures("complete")
    assert "33.47" in form(whole)
    base = replace(whole.arms[0], status="unstable")
    text = form(replace(whole, arms=(base, *whole.arms[1:])))
    assert "33.47" not in text
    assert "33x" not in text
