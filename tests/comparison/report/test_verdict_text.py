"""The verdict sentences of a comparison, and the numbers in them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from example_comparison import broken, realistic

from ampft.comparison.cost_text import cost_text
from ampft.comparison.findings import ArmResult, Comparison
from ampft.comparison.statistics.speed_up import speed_up
from ampft.comparison.verdict_text import verdict_text, verdict_texts
from ampft.text import numbers

MINUS = "\N{MINUS SIGN}"


def of_issue(**changes: Any) -> tuple[Comparison, ArmResult]:
    """The example of the issue and its arm bf16, whose difference gets `changes`."""
    comparison = realistic()
    base, placebo, bf16, fp16 = comparison.arms
    assert bf16.difference is not None
    assert bf16.flips is not None
    assert placebo.flips is not None
    values = {
        "estimate": -0.001,
        "interval95": (-0.011, 0.009),
        "interval90": (-0.009, 0.007),
        "p_difference": 0.8,
        "p_equivalence": 0.06,
        "p_difference_holm": 0.9,
        "p_equivalence_holm": 0.12,
        "verdict": "undecided",
        "seeds_to_decide": (9, 21),
        "skewed90": (-0.0095, 0.0075),
    }
    bf16 = replace(
        bf16,
        difference=replace(bf16.difference, **values | changes),
        flips=replace(bf16.flips, mean=31.0),
    )
    placebo = replace(placebo, flips=replace(placebo.flips, mean=29.0))
    comparison = replace(comparison, arms=(base, placebo, bf16, fp16), margin_share_of_errors=0.06)
    return comparison, bf16


def verdict(**changes: Any) -> str:
    return verdict_text(*of_issue(**changes))


def test_the_verdict_of_the_issue():
    assert verdict() == (
        "bf16 is 2.4x faster than fp32 (95 % CI 2.36 to 2.48) and needs 11 % less "
        f"memory. Accuracy difference {MINUS}0.1 points (95 % CI {MINUS}1.1 to +0.9, 5 seeds): "
        "undecided at a margin of 1 point. bf16 changes 31 of 754 predictions; the placebo changes "
        "29. A margin of 1 point is 6 % of fp32's errors; a decision would probably need "
        "about 9 to 21 seeds."
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("equivalent", f": equivalent at a margin of 1 point (90 % CI {MINUS}0.9 to +0.7). bf16"),
        ("worse beyond the margin", ": worse beyond the margin of 1 point. bf16"),
        ("worse, size uncertain", ": worse, size uncertain (margin 1 point). bf16"),
        ("better beyond the margin", ": better beyond the margin of 1 point. bf16"),
        ("better, size uncertain", ": better, size uncertain (margin 1 point). bf16"),
    ],
)
def test_a_decided_mode_needs_no_more_seeds(name, words):
    text = verdict(verdict=name, seeds_to_decide=None, skewed90=None)
    assert words in text
    assert text.endswith(" A margin of 1 point is 6 % of fp32's errors.")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ((9, 9), "; a decision would probably need about 9 seeds."),
        (
            (40, 1000),
            "; a decision is unlikely with fewer than 40 seeds, and not certain with more.",
        ),
        (None, "; more seeds are unlikely to allow a decision, because 754 examples are too few."),
    ],
)
def test_how_many_seeds_would_decide(seeds, words):
    assert verdict(seeds_to_decide=seeds).endswith(words)


def test_what_equivalence_does_not_exclude():
    text = verdict(
        verdict="equivalent",
        seeds_to_decide=None,
        skewed90=None,
        unseen_share=0.003965,
        failure_rate=0.4507,
    )
    assert text.endswith(
        "; a subgroup of up to 0.4 % of examples could fail at every seed without being among "
        "these 754 (probability 5 %); 5 seeds without a failure exclude only "
        "failure rates above 45 %."
    )


def test_equivalence_over_seeds_says_what_it_assumes_of_rare_trainings():
    words = "; equivalence assumes that no rare training loses far more than the others: "
    assert words in verdict(verdict="equivalent", skewed90=(-0.009, 0.008), failure_rate=0.4507)
    assert words not in verdict(verdict="equivalent", skewed90=None)  # fixed models
    assert words not in verdict(verdict="better, size uncertain", skewed90=(0.001, 0.008))


@pytest.mark.parametrize("name", ["better, size uncertain", "better beyond the margin"])
def test_a_gain_may_hide_trainings_that_fail(name):
    words = "; 5 seeds without a failure exclude only failure rates above 45 %."
    assert verdict(verdict=name, seeds_to_decide=None, failure_rate=0.4507).endswith(words)
    assert "failure" not in verdict(verdict="worse beyond the margin", failure_rate=0.4507)


def test_a_verdict_that_skewed_effects_of_seeds_prevent():
    text = verdict(skewed90=(-0.018, 0.016))
    assert (
        f": undecided at a margin of 1 point (its 90 % CI lies within the margin, but extends to "
        f"{MINUS}1.8 to +1.6 if the effects of the seeds are skewed, which 5 seeds cannot show)."
        in text
    )
    assert "skewed" not in verdict(skewed90=None)
    assert "skewed" not in verdict(interval90=(-0.011, 0.009), skewed90=(-0.018, 0.016))


def test_why_a_small_difference_is_not_called_equivalent():
    words = "; a loss of 1 point could come from rare examples that are not in this test set: "
    text = verdict(seeds_to_decide=(9, 21), cases_needed=999)
    assert text.endswith(f"{words}excluding it takes at least 999 examples, and there are 754.")
    text = verdict(seeds_to_decide=(9, 21), cases_needed=299)
    assert text.endswith(
        f"{words}excluding it takes more than these 754 examples, because losses were seen among "
        "them."
    )
    comparison, arm = of_issue(cases_needed=60, rarest_class=0, rarest_cases=3)
    name = comparison.label_names[0]
    assert verdict_text(comparison, arm).endswith(
        f"; a loss of 1 point could come from class {name!r} only: excluding it takes at least "
        "60 examples of that class, and there are 3."
    )


def test_a_verdict_that_is_undecided_only_after_holm():
    text = verdict(p_difference=0.03, p_difference_holm=0.06)
    assert "(its 95 % CI excludes 0, but not after Holm's correction for 2 modes)" in text
    text = verdict(p_equivalence=0.03, p_equivalence_holm=0.06)
    assert "(its 90 % CI lies within the margin, but not after Holm's" in text
    assert "Holm" not in verdict()


@pytest.mark.parametrize("name", ["worse, size uncertain", "better, size uncertain"])
def test_a_difference_whose_size_is_uncertain_only_after_holm(name):
    text = verdict(verdict=name, p_beyond=0.03, p_beyond_holm=0.06)
    assert (
        f": {name} (margin 1 point; its 95 % CI lies beyond the margin, but not after Holm's "
        "correction for 2 modes). bf16" in text
    )
    for p_beyond, p_beyond_holm in ((0.06, 0.12), (None, None)):
        text = verdict(verdict=name, p_beyond=p_beyond, p_beyond_holm=p_beyond_holm)
        assert f": {name} (margin 1 point). bf16" in text


def test_interim_analyses_and_their_level():
    comparison, arm = of_issue(level95=0.975, level90=0.95)
    text = verdict_text(replace(comparison, seed_counts=(5, 10), alpha=0.025), arm)
    assert f"(97.5 % CI {MINUS}1.1 to +0.9, 5 seeds, planned analysis 1 of 2)" in text


def test_macro_f1_has_no_share_of_errors():
    comparison, arm = of_issue()
    text = verdict_text(replace(comparison, metric="macro_f1"), arm)
    assert "Macro F1 difference " in text
    assert "A margin of 1 point is 6 % of the gap between fp32 and a perfect macro F1;" in text


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((2.3, 2.4, 2.51), "is 2.4x faster than fp32 (95 % CI 2.15 to 2.68)"),
        ((0.4, 0.5, 0.55, 0.6, 0.5), "is 2.0x slower than fp32 (95 % CI 1.64 to 2.39)"),
        # faster at one seed and slower at another
        (
            (0.98, 1.45, 1.6),
            "is not shown to be faster or slower than fp32 (speed-up 1.3x, 95 % CI 0.69 to 2.50)",
        ),
        (
            (1.01, 1.02, 1.03),
            "is as fast as fp32 within 5 % (speed-up 1.02x, 90 % CI 1.00 to 1.04)",
        ),
        # as fast on average, but too uncertain to say so
        (
            (0.9, 1.0, 1.1),
            "is not shown to be faster or slower than fp32 (speed-up 1.00x, 95 % CI 0.78 to 1.28)",
        ),
        ((1.5,), "is not shown to be faster or slower than fp32 (speed-up 1.5x, one seed)"),
    ],
)
def test_a_speed_comes_with_its_interval(ratios, words):
    assert costs(ratios=ratios, memory=None) == f"bf16 {words}."


@pytest.mark.parametrize(
    ("ratios", "memory", "words"),
    [
        ((1.5, 1.5, 1.5), 1.08, "is 1.5x faster than fp32 (95 % CI 1.50) but needs 8 % more"),
        ((0.5, 0.5, 0.5), 0.5, "is 2.0x slower than fp32 (95 % CI 2.00) but needs 50 % less"),
        ((0.5, 0.5, 0.5), 1.5, "is 2.0x slower than fp32 (95 % CI 2.00) and needs 50 % more"),
        ((1.5, 1.5, 1.5), 0.5, "is 1.5x faster than fp32 (95 % CI 1.50) and needs 50 % less"),
        ((0.9, 1.5), 1.004, "is not shown to be .* and needs as much"),
        (None, 0.89, "needs 11 % less memory than fp32; its speed was not measured."),
        (None, 1.0, "needs as much memory as fp32; its speed was not measured."),
    ],
)
def test_speed_and_memory(ratios, memory, words):
    text = costs(ratios=ratios, memory=memory, steps=())
    assert re.match(f"bf16 {words.replace('(', '[(]').replace(')', '[)]')}", text), text


def test_runs_that_did_not_take_turns_are_not_ranked():
    text = costs(ratios=(1.5, 1.5, 1.5), memory=None, in_turns=False)
    assert text == (
        "The speed of bf16 is not ranked because its runs did not take turns with the runs of fp32 "
        "(speed-up 1.5x, which drift of the machine can cause)."
    )


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (0.89, "bf16 needs 11 % less memory than fp32; its speed is not ranked because"),
        (None, "The speed of bf16 is not ranked because"),
    ],
)
def test_an_unranked_speed_has_a_reason(memory, words):
    base = realistic().arms[0]
    emulated = replace(base, execution="emulated")
    text = costs(base=emulated, ratios=None, memory=memory)
    assert text == f"{words} fp32 is emulated."
    unstable = replace(base, status="unstable")
    text = costs(base=unstable, ratios=(2.3, 2.5), memory=memory)
    assert (
        text
        == "Speed and memory of bf16 are not ranked because fp32 has diverged or unfinished runs."
    )
    # without a measurement, the baseline does not matter
    assert "not ranked" not in costs(base=emulated, ratios=None, memory=memory, steps=())


def with_base(base):
    """The example with another baseline."""
    return replace(realistic(), arms=(base, *realistic().arms[1:]))


def costs(*, base=None, ratios, memory, steps=(0.1,), in_turns=True) -> str:
    """The sentence on the speed and memory of the example's bf16 with these ratios."""
    arm = realistic().arms[2]
    measured = speed_up(ratios or (), in_turns=in_turns)
    changed = replace(
        arm,
        speed=replace(arm.speed, speed_up=measured, step_seconds=steps),
        memory=replace(arm.memory, ratio=memory),
    )
    return cost_text(with_base(base or realistic().arms[0]), changed)


def test_the_speed_of_an_emulated_mode_is_not_reported():
    base, arm = realistic().arms[0], realistic().arms[3]
    assert (
        cost_text(with_base(base), arm)
        == "fp16 is emulated, so its speed says nothing about its speed on a GPU."
    )
    # even if a ratio is set
    assert arm.speed is not None
    ranked = replace(arm, speed=replace(arm.speed, speed_up=speed_up((3.0,) * 5, in_turns=True)))
    assert "faster" not in cost_text(with_base(base), ranked)


def test_incomplete_arms():
    bf16, fp16, fp8 = verdict_texts(broken())
    assert bf16.startswith("Speed and memory of bf16 were not measured. Accuracy difference ")
    assert (
        ": no verdict, because a confidence interval needs at least 3 seeds, or one run per mode "
        "to compare these models only. bf16 changes" in bf16
    )
    assert fp16 == (
        "fp16 (emulated) is unstable because 1 of 2 runs diverged (seed 2): the loss was not "
        "finite at step 181 in 8 steps in a row. No mean over the remaining runs is reported."
    )
    assert (
        fp8
        == "fp8 failed because 2 of 2 runs did not finish (seeds 1 and 2): no fp8 on this device."
    )


def test_an_incomplete_baseline_leaves_no_difference():
    comparison = broken()
    base = replace(comparison.arms[0], metrics={}, status="failed")
    text = verdict_texts(replace(comparison, arms=(base, *comparison.arms[1:])))[0]
    assert "Accuracy difference unknown because fp32 has diverged or unfinished runs" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.0"), (-0.0004, "0.0"), (0.0004, "0.0"), (-0.001, f"{MINUS}0.1"), (0.012, "+1.2")],
)
def test_signs(value, shown):
    assert numbers.points(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0 points"),
        (0.01, "+1.0 point"),
        (-0.002, f"{MINUS}0.2 points"),
        (0.011, "+1.1 points"),
    ],
)
def test_only_one_point_is_singular(value, shown):
    assert numbers.Units("accuracy", 0.01).difference_with_unit(value) == shown


@pytest.mark.parametrize(
    ("margin", "decimals"), [(0.05, 1), (0.01, 1), (0.005, 2), (0.001, 2), (0.0005, 3)]
)
def test_a_small_margin_has_more_decimals(margin, decimals):
    assert numbers.decimals_for_margin(margin) == decimals


@pytest.mark.parametrize(
    ("seeds", "shown"),
    [
        ((1, 2, 3), "seeds 1 to 3"),
        ((3, 7, 12), "seeds 3, 7 and 12"),
        ((1, 2), "seeds 1 and 2"),
        ((7,), "seed 7"),
    ],
)
def test_seeds_in_words(seeds, shown):
    assert numbers.seed_list(seeds) == shown


def test_p_values_are_never_zero():
    shown = [numbers.p_value(p) for p in (None, 0.0, 1e-9, 0.0123, 0.34, 1.0)]
    assert shown == ["-", "< 0.001", "< 0.001", "0.012", "0.34", "1.00"]


def test_times_have_three_significant_digits():
    assert [numbers.milliseconds(s) for s in (0.00123, 0.0123, 0.241, 12.3)] == [
        *("1.23", "12.3", "241", "12300")
    ]
