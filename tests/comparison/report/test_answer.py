"""The answer above the verdicts: which mode to use, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_comparison import realistic

from ampft.comparison.answer import answer_text
from ampft.comparison.remarks import remark
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import markdown_text, terminal_text
from ampft.comparison.statistics.speed_up import speed_up

EMULATED = "fp16 is equivalent to fp32 in accuracy, but emulated: measure speed on a GPU."


def with_bf16(verdict="equivalent", *, ratios=(1.4, 1.5, 1.6), memory=0.9, **changes):
    fp32, placebo, bf16, fp16 = realistic().arms
    arm = replace(
        bf16,
        difference=replace(bf16.difference, verdict=verdict),
        speed=replace(bf16.speed, speed_up=speed_up(ratios, in_turns=True)),
        memory=replace(bf16.memory, ratio=memory),
        **changes,
    )
    return replace(realistic(), arms=(fp32, placebo, arm, fp16))


@pytest.mark.slow
def test_an_equivalent_mode_that_is_faster_is_recommended():
    assert answer_text(with_bf16()) == (
        "Use bf16: it is equivalent to fp32 in accuracy, and it is 1.5x faster and needs "
        f"10 % less memory here. {EMULATED}"
    )
    better = answer_text(with_bf16("better, size uncertain"))
    assert better.startswith("Use bf16: it is better than fp32 in accuracy")


def test_an_unproven_mode_that_is_faster_is_recommended_too():
    assert answer_text(with_bf16(execution="unproven")) == answer_text(with_bf16())


@pytest.mark.parametrize("verdict", ["worse, size uncertain", "worse beyond the margin"])
def test_a_worse_mode_is_not(verdict):
    assert answer_text(with_bf16(verdict)) == (
        f"On this machine, stay with fp32. bf16 is worse than fp32 in accuracy. {EMULATED}"
    )


def test_a_higher_log_loss_is_worse_and_no_loss_of_log_loss():
    found = answer_text(replace(with_bf16("worse, size uncertain"), metric="log_loss"))
    assert "bf16 is worse than fp32 in log loss." in found


def test_an_undecided_mode_is_named():
    assert answer_text(with_bf16("undecided")) == (
        f"On this machine, stay with fp32. {EMULATED} The difference of bf16 to fp32 is not "
        "decided: a decision would probably need about 9 to 21 seeds."
    )


def test_a_mode_that_saves_nothing_is_not_recommended():
    for ratios in ((1.03, 1.04, 1.05), (0.9, 1.5, 2.0)):
        text = answer_text(with_bf16(memory=0.99, ratios=ratios))
        assert text == (
            "On this machine, stay with fp32. bf16 is equivalent to fp32 in accuracy, but not "
            f"shown to be faster or to need less memory. {EMULATED}"
        )


def test_speeds_of_runs_side_by_side_are_no_reason_to_stay():
    """Nothing says which mode is faster, so the answer is about the metric only."""
    stamps = (remark("shared_cores", runs=2), *realistic().stamps)
    comparison = replace(with_bf16(memory=0.99), stamps=stamps)
    assert comparison.has_disturbed_speeds
    assert answer_text(comparison) == (
        f"bf16 is equivalent to fp32 in accuracy. Speeds are not ranked. {EMULATED}"
    )


def test_an_unreliable_speed_does_not_count():
    comparison = with_bf16(memory=0.9)
    fp32, placebo, *others = comparison.arms
    placebo = replace(
        placebo, speed=replace(placebo.speed, speed_up=speed_up((0.74,), in_turns=True))
    )
    comparison = replace(comparison, arms=(fp32, placebo, *others))
    assert "and it needs 10 % less memory here." in answer_text(comparison)


def test_models_that_did_not_train_give_no_answer():
    comparison = with_bf16()
    fp32, *others = comparison.arms
    runs = (replace(fp32.runs[0], warnings=("nothing was learned",)), *fp32.runs[1:])
    comparison = replace(comparison, arms=(replace(fp32, runs=runs), *others))
    assert answer_text(comparison) == "No answer: fp32 did not train well with every seed."


def test_it_stands_in_every_report():
    comparison = with_bf16()
    for text in (markdown_text(comparison), html_text(comparison), terminal_text(comparison)):
        assert text.index("Use bf16:") < text.index("1.5x faster than fp32")
