"""What reports may say: nothing of a placebo that is not there, no values beyond the scale."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from example_comparison import broken, realistic

from ampft.comparison.analysis.run_figures import command
from ampft.comparison.findings import PREDICTIONS
from ampft.comparison.report.html import html_text, recommendation_condition
from ampft.comparison.report.report_files import markdown_text, terminal_text
from ampft.text.numbers import MINUS, Units

FORMS = (terminal_text, markdown_text, html_text)


def without_placebo(comparison):
    arms = tuple(arm for arm in comparison.arms if not arm.is_placebo)
    return replace(comparison, arms=arms)


def wide(comparison):
    """A comparison whose intervals are wider than the scale."""
    arms = tuple(
        arm
        if arm.difference is None
        else replace(arm, difference=replace(arm.difference, interval95=(-2.15, 2.15)))
        for arm in comparison.arms
    )
    return replace(comparison, arms=arms)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_placebo_that_is_not_there_is_not_mentioned(form):
    def mentions(comparison):
        page = re.sub(r"<style>.*?</style>", "", form(comparison), flags=re.DOTALL)
        return re.findall(r"[^.]*placebo[^.]*", page.replace("the placebo; the intervals", ""))

    assert mentions(realistic())
    assert mentions(without_placebo(realistic())) == []


@pytest.mark.parametrize("form", FORMS)
def test_no_interval_is_beyond_the_scale(form):
    text = form(wide(realistic()))
    assert "215" not in text
    assert f"{MINUS}100.0 to +100.0" in text.replace("\n", " ")
    assert "cut off at the ends of the scale" in " ".join(text.split())
    assert "cut off" not in form(realistic())


def test_the_scale_of_a_metric():
    assert replace(realistic(), metric="matthews").units.largest is None  # not in points
    assert realistic().units.largest == 1
    assert Units("log loss", 0.01, is_share=False).interval((-30.0, 30.0)).endswith("+30.000")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["training", PREDICTIONS])
def test_a_difference_is_undecided_and_not_an_arm(form, kind):
    text = " ".join(form(replace(realistic(), kind=kind)).split())
    assert "undecided" in text
    assert not re.search(r"\b(?:is|are) undecided[.]", re.sub("Otherwise, [^.]*[.]", "", text))
    assert "a decision would probably need about" in text


def test_no_answer_has_no_condition():
    failed = tuple(replace(arm, difference=None) for arm in realistic().arms)
    assert recommendation_condition(replace(realistic(), arms=failed)) == ""
    assert "This holds if" not in html_text(broken())
    assert "This holds if" in html_text(realistic())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["__main__.py", "train", "--use_cpu"], "ampft train --use_cpu"),
        (["/a/b/__main__.py", "train"], "ampft train"),
        (["recipes/classify.py", "--train_file", "/x/a.csv"], "classify.py --train_file a.csv"),
        (["/usr/bin/ampft", "train"], "ampft train"),
    ],
)
def test_the_first_command_can_be_typed(words, shown):
    assert command(SimpleNamespace(command=words)) == shown
