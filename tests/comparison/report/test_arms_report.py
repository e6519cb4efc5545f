"""The reports of a comparison whose arms differ in settings other than the precision."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from example_comparison import realistic

from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import markdown_text, terminal_text

RATES = {"base": "2e-05", "placebo": "2e-05", "low": "1e-05", "high": "5e-05"}


def of_settings():
    """Return a comparison of three learning rates and a placebo in fp32."""
    arms = [
        replace(
            arm, name=name, mode="fp32", execution="native", settings={"learning_rate": rate},
            speed=arm.speed and replace(arm.speed, reason=None), metrics_fp32={},
            difference_fp32=None, executed=None,
        )
        for arm, (name, rate) in zip(realistic().arms, RATES.items(), strict=True)
    ]  # fmt: skip
    return replace(
        realistic(), arms=tuple(arms), varied=("learning_rate",), stamps=(), yardstick=None
    )


@pytest.mark.parametrize("write", [terminal_text, markdown_text, html_text])
def test_the_settings_that_differ_are_shown(write):
    text = write(of_settings()).replace("\\", "")  # of Markdown
    for word in ("--learning_rate", "2e-05", "1e-05", "5e-05"):
        assert word in text
    assert text.index("--learning_rate") < text.index("skipped")


@pytest.mark.slow
@pytest.mark.parametrize("write", [terminal_text, markdown_text, html_text])
def test_arms_are_not_called_modes_or_precisions(write):
    text = re.sub(r"(?s)<style>.*</style>", "", write(of_settings()))
    text = re.sub(r'(id|href|aria-labelledby)="[^"]*"', "", text)
    found = re.findall(r"(?i)\b(?:modes?\b|precision comparison).{0,60}", text)
    assert found == []
    assert "arm" in text


def test_the_method_says_that_speeds_are_those_per_example():
    assert "If effective batches differ, step times are divided" in html_text(of_settings())
    assert "If effective batches differ" not in html_text(realistic())


@pytest.mark.slow
@pytest.mark.parametrize("write", [terminal_text, markdown_text, html_text])
def test_modes_are_not_called_arms(write):
    text = re.sub(r"(?s)<style>.*</style>", "", write(realistic()))
    assert re.findall(r"(?i)\barms?\b.{0,60}", text) == []
    assert "--mixed_precision" not in text
