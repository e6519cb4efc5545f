"""What a search trains within a time, and what it takes for evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from ampft.comparison.execution.plan import CostEstimate, ModeCost, TrainingSize
from ampft.errors import InputError
from ampft.lab.search.rungs import (
    FACTOR,
    RATES,
    Candidate,
    Evidence,
    SearchPlan,
    best,
    choices,
    compared,
    fitting_plan,
    joined,
)
from ampft.metrics.sums import ACCURACY, COHEN_KAPPA, single_label_sums

ESTIMATE = CostEstimate(
    startup=10.0,
    modes={"fp32": ModeCost(step=0.5, evaluated_example=0.01)},
    executions={"fp32": "native"},
    device="CPU",
    size=TrainingSize(epochs=3, train_examples=80),
    effective_batch_size=8,
    validation_examples=20,
    final_examples=50,
    classes=2,
    model_bytes=1,
    evaluates_fp32=False,
)
PLAN = SearchPlan(
    rates=(1e-5, 3e-5, 3e-4, 1e-3),
    lengths=(1, 3, 9),
    setting="num_train_epochs",
    default=3,
    default_rate=1e-4,
    folds=0,
    validation_rows=20,
    test_rows=50,
    seeds=3,
    budget=1e6,
    trial_seconds=12.0,
    mode="fp32",
    has_server=True,
    import_seconds=8.0,
    estimate=ESTIMATE,
)


def rung_sizes(plan):
    sizes, before = [], []
    for number in range(len(plan.lengths)):
        before = plan.rung(number, before)
        assert {each.length for each in before} == {plan.lengths[number]}
        sizes.append(len(before))
    return sizes


@pytest.mark.parametrize("count", [2, 4, 8, 17])
def test_rungs_have_the_sizes_of_sklearns_successive_halving(count):
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.model_selection import HalvingGridSearchCV
    from sklearn.naive_bayes import GaussianNB

    rows = np.random.default_rng(0).normal(size=(540, 2))
    search = HalvingGridSearchCV(
        GaussianNB(),
        {"var_smoothing": np.geomspace(1e-9, 1e-3, count + 1)},
        factor=FACTOR,
        min_resources=60,
        max_resources=540,
        cv=2,
    ).fit(rows, rows[:, 0] > 0)
    plan = replace(PLAN, rates=tuple(np.geomspace(1e-6, 1e-2, count)))
    ours = rung_sizes(plan)
    theirs = search.n_candidates_
    assert ours[: len(theirs)] == theirs
    assert set(ours[len(theirs) :]) <= {1}  # sklearn stops where one is left


def test_a_rung_keeps_the_best_of_the_one_before():
    first = PLAN.rung(0, [])
    assert [each.rate for each in first] == [None, *PLAN.rates]
    order = [first[3], first[0], first[1], first[2], first[4]]
    assert PLAN.rung(1, order) == [Candidate(3e-4, 3), Candidate(None, 3)]
    assert PLAN.rung(1, order[:3]) == PLAN.rung(1, order)  # two diverged
    assert PLAN.rung(2, [Candidate(None, 3), Candidate(3e-4, 3)]) == [Candidate(None, 9)]


def test_seconds_are_those_of_the_runs_by_hand():
    def run(epochs, rows, reported, validated):
        steps = epochs * -(-rows // 8)
        return 2.0 + 0.5 * steps + 0.01 * (validated * epochs + reported)

    searched = PLAN.search_seconds([Candidate(1e-3, 9)])
    assert searched == pytest.approx(run(9, 80, 20, 20))
    of_folds = replace(PLAN, folds=5).search_seconds([Candidate(1e-3, 9)])
    assert of_folds == pytest.approx(5 * run(9, 64, 20, 20))
    final = PLAN.final_seconds(Candidate(1e-3, 9))
    long, short = run(9, 80, 50, 20), run(3, 80, 50, 20)
    assert final == pytest.approx(8 + 2 * 5 + 3 * (long + short + 5) + 0.1 * (long + short))
    assert PLAN.final_seconds(PLAN.default_candidate) == pytest.approx(8 + 5 + 5 + 1.1 * short)
    runs = run(3, 80, 20, 20) + 5 * run(1, 80, 20, 20) + 2 * run(3, 80, 20, 20) + run(9, 80, 20, 20)
    assert PLAN.seconds == pytest.approx(8 + 15 + 12 + 1.1 * (runs + final))


def fitted(budget, *, few=False, **changes):
    plan = replace(PLAN, budget=budget, **changes)
    return fitting_plan(plan, few=few, own_rates=False, asked="1s")


def test_less_time_means_fewer_rungs_then_fewer_rates_and_never_fewer_seeds():
    assert fitted(PLAN.seconds) == replace(PLAN, budget=PLAN.seconds)
    shorter = fitted(PLAN.seconds - 1)
    assert (shorter.lengths, len(shorter.rates)) == ((1, 3), len(RATES))
    shortest = fitted(shorter.seconds - 1)
    assert (shortest.lengths, shortest.rates, shortest.seeds) == ((1, 3), (3e-5, 3e-4), 3)
    with pytest.raises(InputError, match=r"--time_budget 1s: the smallest search takes about"):
        fitted(shortest.seconds - 1)


@pytest.mark.parametrize("setting", ["num_train_epochs", "max_train_steps"])
def test_a_time_that_is_too_short_names_the_setting_that_decides_the_length(setting):
    with pytest.raises(InputError, match=rf"shorten the training \(--{setting}\)"):
        fitted(1.0, setting=setting)


def test_runs_train_with_the_learning_rate_that_was_asked_for_and_is_reported():
    rates = (0.0012345678, 0.0012345679, 3e-5)
    candidates = [Candidate(rate, 3) for rate in rates]
    assert [float(PLAN.flags(each)[1]) for each in candidates] == list(rates)
    assert len({each.name for each in candidates}) == 3
    assert candidates[-1].name == "rate-3e-05-3"


def test_few_validation_rows_are_replaced_by_folds_where_the_time_allows():
    assert fitted(1e6, few=True).folds == 5
    assert fitted(1e6).folds == 0
    least = replace(PLAN, folds=5, lengths=(1, 3), rates=(3e-5, 3e-4))
    assert fitted(least.seconds, few=True).folds == 5
    assert fitted(least.seconds - 1, few=True).folds == 0


def evidence(losses, wrong, labels, folds=None):
    predicted = np.where(wrong, 1 - labels, labels)
    sums = single_label_sums(labels, predicted, 2)
    return Evidence(losses, np.ones(len(losses)), sums, folds, ("rows",))


def drawn(seed, n=120, shift=0.0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, n)
    base = generator.gamma(1.0, 0.5, n)
    return labels, base, base + generator.normal(-shift, 0.3, n), generator.random(n) < 0.2


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.1, 0.3])
def test_a_loss_is_lower_beyond_chance_as_a_paired_t_test_says(shift):
    labels, base, other, wrong = drawn(3, shift=shift)
    one, default = evidence(other, wrong, labels), evidence(base, wrong, labels)
    for tests in (1, 4, 18):
        found = compared("one", one, default, ACCURACY, tests)
        p = ttest_rel(base, other).pvalue
        assert (found.loss_gain > found.loss_needed) == (
            p < 0.05 / tests and base.mean() > other.mean()
        )
        assert found.value_gain == 0
        assert found.is_better == (found.loss_gain > found.loss_needed)


def test_a_lower_loss_does_not_count_if_the_metric_is_worse():
    labels, base, other, wrong = drawn(3, shift=0.3)
    worse = wrong.copy()
    worse[np.flatnonzero(~wrong)[:2]] = True
    found = compared(
        "one", evidence(other, worse, labels), evidence(base, wrong, labels), ACCURACY, 2
    )
    assert found.loss_gain > found.loss_needed
    assert found.value_gain < 0
    assert not found.is_better


def test_a_metric_that_is_better_beyond_chance_counts_although_the_loss_is_not_lower():
    labels, base, _, wrong = drawn(3, n=400)
    better = wrong & (np.random.default_rng(0).random(400) < 0.3)
    found = compared(
        "one", evidence(base + 0.1, better, labels), evidence(base, wrong, labels), ACCURACY, 2
    )
    assert found.loss_gain < 0
    assert found.is_better


def test_folds_that_disagree_make_the_evidence_weaker():
    labels, base, _, wrong = drawn(5)
    folds = np.repeat(np.arange(5), 24)
    other = base - np.where(folds == 0, 0.5, 0.0) - 0.01
    alone = compared(
        "one", evidence(other, wrong, labels), evidence(base, wrong, labels), ACCURACY, 2
    )
    apart = compared(
        "one",
        evidence(other, wrong, labels, folds),
        evidence(base, wrong, labels, folds),
        ACCURACY,
        2,
    )
    assert alone.is_better
    assert not apart.is_better


def test_of_many_equal_candidates_hardly_ever_one_replaces_the_default():
    replaced, without_correction = 0, 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        labels, base, _, wrong = drawn(seed)
        found = {"default": evidence(base, wrong, labels)}
        for number in range(8):
            noise = base + generator.normal(0, 0.3, len(base))
            found[f"rate-{number}"] = evidence(noise, wrong, labels)
        tried = {name: Candidate(None, 1) for name in found}
        replaced += best(found, tried, choices(found, "default", ACCURACY), ACCURACY) is not None
        without_correction += any(
            compared(name, each, found["default"], ACCURACY, 1).is_better
            for name, each in found.items()
        )
    assert replaced <= 10  # 5 %
    assert without_correction > 20


def test_other_rows_are_refused():
    labels, base, other, wrong = drawn(0)
    one = replace(evidence(other, wrong, labels), fingerprints=("others",))
    with pytest.raises(InputError, match="predict other rows than the default"):
        compared("one", one, evidence(base, wrong, labels), ACCURACY, 2)


def test_joined_sums_are_the_sums_of_all_cases():
    labels, _, _, wrong = drawn(1)
    whole = evidence(labels.astype(float), wrong, labels).sums
    parts = [
        evidence(labels[part].astype(float), wrong[part], labels[part]).sums
        for part in (slice(0, 50), slice(50, 51), slice(51, 120))
    ]
    together = joined(parts)
    assert len(together) == 120
    assert np.array_equal(together.totals(), whole.totals())
    assert ACCURACY.value(together) == pytest.approx(1 - wrong.mean())


def test_an_undefined_metric_proves_nothing():
    labels, base, other, wrong = drawn(3, shift=0.3)
    same = np.ones_like(labels)
    one, default = (evidence(loss, np.zeros_like(wrong), same) for loss in (other, base))
    found = compared("one", one, default, COHEN_KAPPA, 2)
    assert found.loss_gain > found.loss_needed
    assert (found.value, found.value_needed) == (None, None)
    assert not found.is_better


def test_of_several_the_longest_is_taken_unless_a_shorter_one_is_better_beyond_chance():
    labels, base, _, wrong = drawn(3, n=200)
    noise = np.random.default_rng(1).normal(0, 0.1, (3, 200))
    tried = {
        "default": Candidate(None, 3),
        "short": Candidate(1e-4, 1),
        "longest": Candidate(1e-4, 9),
        "long but worse": Candidate(1e-3, 9),
    }

    def chosen(short, longest):
        shifts = (short, longest, longest - 0.1)
        found = {"default": evidence(base, wrong, labels)} | {
            name: evidence(base - shift + one, wrong, labels)
            for name, shift, one in zip([*tried][1:], shifts, noise, strict=True)
        }
        return best(found, tried, choices(found, "default", ACCURACY), ACCURACY)

    assert chosen(0.305, 0.3) == "longest"  # lower, but not beyond chance
    assert chosen(0.5, 0.3) == "short"
    assert chosen(0.0, 0.3) == "longest"
    assert chosen(0.0, 0.0) is None
