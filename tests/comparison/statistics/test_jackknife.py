"""The jackknife against leaving out every case by hand, with scikit-learn's metrics."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    cohen_kappa_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
)

from ampft.comparison.analysis.subgroup_losses import sums_of_class
from ampft.comparison.statistics.interval import jackknife_differences
from ampft.errors import InputError
from ampft.labels.label_counts import class_count_sums
from ampft.metrics.scores import scalar_scores
from ampft.metrics.sums import (
    ACCURACY,
    BALANCED_ACCURACY,
    COHEN_KAPPA,
    MACRO_F1,
    MAX_LOG_LOSS,
    MICRO_F1,
    CaseSums,
    mean_sums,
    single_label_sums,
)
from ampft.tasks.single_label import METRICS

SAME = 1e-11  # float64: sums of 40 values near 1, and their differences times n - 1


def balanced_by_hand(labels, predicted, classes: int) -> float:
    """scikit-learn's own warns of predictions whose class no label has."""
    counts = confusion_matrix(labels, predicted, labels=np.arange(classes))
    present = counts.sum(axis=1) > 0
    return float((np.diag(counts)[present] / counts.sum(axis=1)[present]).mean())


def kappa_by_hand(labels, predicted, classes: int) -> float:
    return cohen_kappa_score(labels, predicted, labels=np.arange(classes))


def f1_by_hand(average: str):
    def value(labels, predicted, classes: int) -> float:
        return f1_score(
            labels, predicted, labels=np.arange(classes), average=average, zero_division=0
        )

    return value


BY_HAND = {
    "accuracy": lambda labels, predicted, _: accuracy_score(labels, predicted),
    "macro_f1": f1_by_hand("macro"),
    "weighted_f1": f1_by_hand("weighted"),
    "balanced_accuracy": balanced_by_hand,
    "matthews": lambda labels, predicted, _: matthews_corrcoef(labels, predicted),
    "cohen_kappa": kappa_by_hand,
}
OF_CLASSES = [metric for name, metric in METRICS.items() if name in BY_HAND]
OF_VALUES = [metric for name, metric in METRICS.items() if name not in BY_HAND]


def sums_of(labels, rows, classes: int) -> list[CaseSums]:
    return [single_label_sums(labels, row, classes) for row in rows]


def left_out_by_hand(metric: str, labels, rows, classes: int):
    """The metric of each seed over all cases, (S,), and without each case, (S, n)."""
    value, everything = BY_HAND[metric], np.arange(len(labels))
    whole = [value(labels, row, classes) for row in rows]
    without = [
        [value(np.delete(labels, i), np.delete(row, i), classes) for i in everything]
        for row in rows
    ]
    return np.array(whole), np.array(without)


def assert_is_jackknife(found, arm, baseline) -> None:
    """Compare with the formulas, from the values by hand of both sides."""
    per_seed, left_out = arm[0] - baseline[0], arm[1] - baseline[1]
    seeds, cases = left_out.shape
    centred = left_out - left_out.mean(axis=1, keepdims=True)
    covariances = (cases - 1) / cases * centred @ centred.T
    off = covariances[~np.eye(seeds, dtype=bool)]
    np.testing.assert_allclose(found.per_seed, per_seed, rtol=0, atol=SAME)
    assert found.variance == pytest.approx(np.trace(covariances) / seeds, rel=1e-9, abs=SAME)
    assert found.covariance == pytest.approx(off.mean() if off.size else 0, rel=1e-9, abs=SAME)
    assert found.cases == cases
    wanted = per_seed.mean() - (cases - 1) * centred.mean(axis=0)
    np.testing.assert_allclose(found.pseudovalues, wanted, rtol=0, atol=SAME)


def test_every_metric_is_looked_at():
    assert {metric.name for metric in OF_CLASSES} == set(BY_HAND)
    others = {metric.name for metric in OF_VALUES} - {"log_loss", "brier"}
    assert not others, f"add {others} to BY_HAND, or to the means of values here"


@pytest.mark.slow
@pytest.mark.parametrize("metric", OF_CLASSES, ids=lambda metric: metric.name)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    seeds=st.integers(1, 3),
    n=st.integers(4, 12),
    # Four classes in twelve cases: absent classes and classes never predicted occur often.
    classes=st.integers(2, 4),
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_it_equals_leaving_out_by_hand(metric, seed, seeds, n, classes, agreement):
    generator = np.random.default_rng(seed)
    # Two of each of two classes: no metric is undefined without one case.
    labels = np.concatenate([[0, 0, 1, 1], generator.integers(0, classes, n - 4)])
    baseline, other = generator.integers(0, classes, (2, seeds, n))
    predicted = np.where(generator.random((seeds, n)) < agreement, baseline, other)
    found = jackknife_differences(
        sums_of(labels, predicted, classes), sums_of(labels, baseline, classes), metric
    )
    assert_is_jackknife(
        found,
        left_out_by_hand(metric.name, labels, predicted, classes),
        left_out_by_hand(metric.name, labels, baseline, classes),
    )


@pytest.mark.parametrize("metric", OF_VALUES, ids=lambda metric: metric.name)
def test_means_equal_leaving_out_by_hand(metric):
    generator = np.random.default_rng(0)
    arm, baseline = generator.exponential(1.0, (2, 3, 20))

    def by_hand(rows):
        return rows.mean(axis=1), np.array(
            [[np.delete(row, i).mean() for i in range(20)] for row in rows]
        )

    found = jackknife_differences(
        [mean_sums(row) for row in arm], [mean_sums(row) for row in baseline], metric
    )
    assert_is_jackknife(found, by_hand(arm), by_hand(baseline))
    np.testing.assert_allclose(found.pseudovalues, (arm - baseline).mean(axis=0), rtol=0, atol=SAME)


def test_of_accuracy_the_differences_of_cases_are_means_over_seeds():
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 50)
    predicted, baseline = generator.integers(0, 2, (2, 5, 50))
    found = jackknife_differences(
        sums_of(labels, predicted, 2), sums_of(labels, baseline, 2), ACCURACY
    )
    wanted = ((predicted == labels).astype(float) - (baseline == labels)).mean(axis=0)
    np.testing.assert_allclose(found.pseudovalues, wanted, rtol=0, atol=SAME)


@pytest.mark.parametrize("metric", OF_CLASSES, ids=lambda metric: metric.name)
def test_the_difference_is_that_of_the_report(metric):
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 3, 40)  # class 3 of the label map is absent
    predicted, baseline = generator.integers(0, 4, (2, 3, 40))
    found = jackknife_differences(
        sums_of(labels, predicted, 4), sums_of(labels, baseline, 4), metric
    )
    wanted = [
        scalar_scores(labels, mode, 4)[metric.name] - scalar_scores(labels, base, 4)[metric.name]
        for mode, base in zip(predicted, baseline, strict=True)
    ]
    np.testing.assert_allclose(found.per_seed, wanted, rtol=0, atol=SAME)


def test_a_wrong_pairing_is_seen():
    """Negative control: with one side's cases reversed, J grows and no difference moves."""
    generator = np.random.default_rng(2)
    labels = np.zeros(60, dtype=int)
    baseline = (generator.random((3, 60)) < 0.2).astype(int)
    right, wrong = (
        jackknife_differences(sums_of(labels, rows, 2), sums_of(labels, baseline, 2), ACCURACY)
        for rows in (baseline, baseline[:, ::-1])
    )
    np.testing.assert_array_equal(wrong.per_seed, right.per_seed)
    assert right.variance == 0
    assert wrong.variance > 1e-3


def test_chunks_make_no_difference(monkeypatch):
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 5, 1000)
    arm, baseline = (sums_of(labels, rows, 5) for rows in generator.integers(0, 5, (2, 4, 1000)))
    whole = jackknife_differences(arm, baseline, MACRO_F1)
    monkeypatch.setattr("ampft.comparison.statistics.interval.CHUNK", 7)
    parts = jackknife_differences(arm, baseline, MACRO_F1)
    assert parts.variance == pytest.approx(whole.variance, rel=1e-12)
    assert parts.covariance == pytest.approx(whole.covariance, rel=1e-9)
    np.testing.assert_array_equal(parts.pseudovalues, whole.pseudovalues)


def test_a_metric_that_is_undefined_without_one_case_is_refused():
    labels = np.array([1] + [0] * 19)
    baseline = single_label_sums(labels, 1 - labels, 2)
    arm = single_label_sums(labels, np.zeros_like(labels), 2)
    for sides in ([arm], [baseline]), ([baseline], [arm]):
        with pytest.raises(InputError, match="undefined if one of the test cases is left out"):
            jackknife_differences(*sides, COHEN_KAPPA)
    assert np.isfinite(jackknife_differences([arm], [baseline], MACRO_F1).variance)


# What one case is worth


def perfect(*counts: int) -> CaseSums:
    labels = np.repeat(np.arange(len(counts)), counts)
    return single_label_sums(labels, labels, len(counts))


def test_one_case_of_accuracy_and_of_balanced_macro_f1_is_one_in_n():
    assert ACCURACY.effect_of_changed_case(perfect(3, 1)) == pytest.approx(1 / 4)
    assert MACRO_F1.effect_of_changed_case(perfect(5, 5, 5)) == pytest.approx(1 / 15)
    assert MACRO_F1.effect_of_changed_case(perfect(98, 1, 1)) > 4 / 100


def test_the_costliest_case_of_accuracy_is_any_case():
    found = ACCURACY.costliest_case([perfect(98, 1, 1)])
    assert found.effect == pytest.approx(1 / 100)
    assert (found.label, found.support) == (None, 100)


def test_the_costliest_case_of_balanced_accuracy_is_of_the_rarest_class():
    found = BALANCED_ACCURACY.costliest_case([perfect(250, 150, 97, 3)])
    assert found.effect == pytest.approx(1 / (4 * 3))
    assert (found.label, found.support) == (3, 3)


def test_a_lost_case_of_macro_f1_costs_what_the_largest_unseen_loss_costs_per_case():
    """By hand: of 3 labels the share 1 - 0.05^(1/3) can be lost unseen, and falls to class 0."""
    found = MACRO_F1.costliest_case([perfect(250, 150, 97, 3)])
    lost = 3 * (1 - 0.05 ** (1 / 3))
    own = 1 - 2 * (3 - lost) / (2 * 3 - lost)
    other = 1 - 2 * 250 / (2 * 250 + lost)
    assert found.effect == pytest.approx((own + other) / 4 / lost)
    assert (found.label, found.support) == (3, 3)


def test_a_mean_over_groups_weighs_a_case_by_its_size():
    sums = mean_sums(np.array([0.0, 0.1, 0.1, 4.0]))
    assert METRICS["log_loss"].costliest_case([sums]).effect == pytest.approx(MAX_LOG_LOSS / 4)
    found = METRICS["log_loss"].costliest_case([sums.grouped(np.array([0, 1, 1, 1]))])
    assert found.effect == pytest.approx(MAX_LOG_LOSS * (1 + 9) / 4**2)
    assert found.support == 2


def test_a_group_is_worth_its_examples():
    """Ten examples in groups of 1 and 4: in the mean over examples, a group has 3.4 of them."""
    labels = np.arange(10) % 2
    sums = single_label_sums(labels, labels, 2)
    grouped = sums.grouped(np.array([0, 1, 2, 2, 2, 2, 3, 3, 3, 3]))
    assert len(grouped) == 4
    assert ACCURACY.effect_of_changed_case(grouped) == pytest.approx(
        np.sqrt((1 + 1 + 16 + 16) / 4) / 10
    )
    assert ACCURACY.costliest_case([grouped]).effect == pytest.approx(3.4 / 10)
    assert ACCURACY.costliest_case([sums]).effect == pytest.approx(1 / 10)


def rare_among_groups() -> CaseSums:
    """Return 4 rows of class 2 alone, two groups of 8 of class 0, and one of class 0 and 1."""
    labels = np.array([2] * 4 + [0] * 16 + [0] * 3 + [1] * 5)
    groups = np.r_[0:4, np.repeat([4, 5, 6], 8)]
    return single_label_sums(labels, labels, 3).grouped(groups)


def test_each_case_has_its_own_effect():
    own = np.array([1 / 12] * 4 + [8 / 57] * 2 + [3 / 57 + 5 / 15])
    expected = np.sqrt(np.mean(own**2))
    assert MACRO_F1.effect_of_changed_case(rare_among_groups()) == pytest.approx(expected)
    assert BALANCED_ACCURACY.effect_of_changed_case(rare_among_groups()) == pytest.approx(expected)
    # The control: a product of means says a third more.
    rows = np.sqrt((1 / 12**2 * 4 + 19 / 57**2 + 5 / 15**2) / 28)
    assert rows * np.sqrt((4 + 3 * 64) / 7) > 1.3 * expected


@pytest.mark.parametrize(
    ("label", "own"), [(2, [1 / 4]), (1, [1.0]), (0, [8 / 19, 8 / 19, 3 / 19])]
)
def test_the_f1_of_a_class_changes_by_the_cases_of_the_class(label, own):
    (sums,) = sums_of_class([rare_among_groups()], label)
    assert MACRO_F1.effect_of_changed_case(sums) == pytest.approx(np.sqrt(np.mean(np.square(own))))


def test_a_row_of_several_labels_changes_in_one_of_them():
    labels = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]], dtype=bool)
    sums = class_count_sums(labels, labels)
    each = [1 / 12, 1 / 3] + [1 / 12] * 3  # of each label
    expected = np.sqrt(np.mean(np.square(each)))
    assert MACRO_F1.effect_of_changed_case(sums) == pytest.approx(expected)
    assert MICRO_F1.effect_of_changed_case(sums) == pytest.approx(2 / 10)
    twice = sums.grouped(np.arange(5))
    assert MACRO_F1.effect_of_changed_case(twice) == pytest.approx(expected)


def test_a_mean_changes_by_the_sum_of_the_values_of_a_case():
    sums = mean_sums(np.array([1.0, 2.0, 0.0, 3.0])).grouped(np.array([0, 1, 1, 1]))
    assert METRICS["brier"].effect_of_changed_case(sums) == pytest.approx(np.sqrt((1 + 25) / 2) / 4)


def test_groups_of_one_example_are_the_examples():
    generator = np.random.default_rng(4)
    labels = generator.integers(0, 3, 40)
    arm, baseline = (sums_of(labels, rows, 3) for rows in generator.integers(0, 3, (2, 3, 40)))
    each = np.arange(40)
    for metric in (*OF_CLASSES, MICRO_F1):
        examples = jackknife_differences(arm, baseline, metric)
        groups = jackknife_differences(
            [sums.grouped(each) for sums in arm], [sums.grouped(each) for sums in baseline], metric
        )
        assert groups.variance == pytest.approx(examples.variance, rel=1e-12)
        assert groups.case_effect == pytest.approx(examples.case_effect, rel=1e-12)
        assert groups.costliest == examples.costliest
        np.testing.assert_allclose(groups.pseudovalues, examples.pseudovalues, rtol=0, atol=SAME)


# Bad input, and size


def test_bad_input_is_named():
    one, two = perfect(1, 0), perfect(1, 1)
    with pytest.raises(InputError, match="at least 2 independent test cases, and there are 1"):
        jackknife_differences([one], [one], ACCURACY)
    with pytest.raises(ValueError, match="the same seeds and the same cases"):
        jackknife_differences([two], [two, two], ACCURACY)
    with pytest.raises(ValueError, match="the same seeds and the same cases"):
        jackknife_differences([two], [perfect(2, 1)], ACCURACY)
    same = perfect(3, 0)
    with pytest.raises(InputError, match="--metric cohen_kappa: it is undefined"):
        jackknife_differences([same], [same], COHEN_KAPPA)


@pytest.mark.slow
def test_twenty_seeds_of_a_million_cases_fit_in_memory_and_seconds():
    script = """
import resource, time
import numpy as np
from ampft.comparison.statistics.interval import estimate_difference
from ampft.comparison.statistics.interval import jackknife_differences
from ampft.metrics.sums import MACRO_F1, single_label_sums
generator = np.random.default_rng(0)
n, seeds, classes = 1_000_000, 20, 20
labels = generator.integers(0, classes, n, dtype=np.int32)
def side():
    return [
        single_label_sums(
            labels,
            np.where(generator.random(n) < 0.9, labels, generator.integers(0, classes, n)),
            classes,
        )
        for _ in range(seeds)
    ]
arm, baseline = side(), side()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
found = estimate_difference(jackknife_differences(arm, baseline, MACRO_F1))
found.interval(0.95), found.p_equivalence(0.01)
print(time.process_time() - start)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    seconds, extra_kib = map(float, done.stdout.split())
    assert seconds < 30
    assert extra_kib < 300 * 1024


@pytest.mark.parametrize("name", METRICS)
def test_leaving_a_group_out_leaves_its_examples_out(name):
    generator = np.random.default_rng(3)
    labels, arm, baseline = generator.integers(0, 3, (3, 40))
    groups = np.concatenate([np.arange(12), generator.integers(0, 12, 28)])
    losses = generator.random((2, 40))

    def sums(predicted, values, rows):
        if METRICS[name].from_sums is METRICS["log_loss"].from_sums:
            return mean_sums(values[rows])
        return single_label_sums(labels[rows], predicted[rows], 3)

    def difference(rows):
        pairs = ((arm, losses[0]), (baseline, losses[1]))
        values = [METRICS[name].value(sums(*pair, rows)) for pair in pairs]
        return values[0] - values[1]

    everything = np.arange(40)
    jackknife = jackknife_differences(
        [sums(arm, losses[0], everything).grouped(groups)],
        [sums(baseline, losses[1], everything).grouped(groups)],
        METRICS[name],
    )
    left_out = np.array([difference(np.flatnonzero(groups != group)) for group in range(12)])
    assert jackknife.cases == 12
    np.testing.assert_allclose(jackknife.per_seed, difference(everything), atol=SAME)
    assert jackknife.variance == pytest.approx(11 / 12 * ((left_out - left_out.mean()) ** 2).sum())
