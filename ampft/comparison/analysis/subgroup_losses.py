"""Where an arm loses and gains: in which classes by F1, and in which words and lengths most."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import stdtrit

from ampft.comparison.analysis.run_predictions import Cases, RunPredictions
from ampft.comparison.findings import ArmResult, ClassDifference, SubgroupDifference, Subgroups
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.folds import estimate_over_folds
from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.power import power
from ampft.comparison.statistics.verdict import holm
from ampft.data.splits import Groups, normalized_text
from ampft.metrics.sums import ACCURACY, MACRO_F1, CaseSums, single_label_sums
from ampft.text.scripts import need_characters, words_or_characters

ALPHA = 0.05  # of all intervals together
MIN_EXAMPLES = 20  # of a subgroup; smaller ones are too uncertain to be worth a comparison
MAX_TEXTS = 50_000  # examples; words are not counted in more
MAX_WORDS = 150
LENGTHS = 4  # parts of about equal size
LISTED = 5  # subgroups per arm
MAX_WORK = 100_000_000  # classes times cases times runs; with more, no class has an interval

IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Subgroup:
    kind: str
    name: str
    rows: IndexArray


def with_subgroup_losses(
    arms: Sequence[ArmResult], predictions: Mapping[str, Sequence[RunPredictions]], cases: Cases
) -> tuple[ArmResult, ...]:
    """Return the arms with the subgroups in which they lose and gain most.

    Only arms with an overall interval get them, only if some example is correct as a whole, which a
    mask hardly ever is, and only if a loss could be found at all. Subgroups are
    chosen by the ratio of their difference to its standard error. The intervals are corrected for
    all subgroups and arms that were examined.

    Args:
        arms: Arms, the baseline first.
        predictions: Predictions of the complete arms, by name.
    """
    base = predictions.get(arms[0].name)
    compared = [arm for arm in arms if arm.difference is not None]
    every = [each for of_arm in predictions.values() for each in of_arm]
    if base is None or not compared or not any(each.correct.any() for each in every):
        return tuple(arms)
    subgroups = [
        each
        for each in _subgroups(cases)
        if len(each.rows) >= MIN_EXAMPLES and _can_have_interval(each, base, cases)
    ]
    if not subgroups:
        return tuple(arms)
    level = 1 - ALPHA / (len(subgroups) * len(compared))
    usual = sorted((each.rows for each in subgroups), key=len)[len(subgroups) // 2]
    found: dict[str, Subgroups] = {}
    for arm in compared:
        gains = _gains(predictions[arm.name], base)
        detectable = detectable_loss(gains, usual, cases.groups, alpha=1 - level)
        if detectable is None:
            continue
        sides = predictions[arm.name], base
        found[arm.name] = Subgroups(
            examined=len(subgroups),
            level=level,
            detectable=detectable,
            usual_size=len(usual),
            losses=tuple(_largest(subgroups, *sides, cases, level, sign=-1)),
            gains=tuple(_largest(subgroups, *sides, cases, level, sign=1)),
            noun=cases.inputs.noun,
            has_words=any(each.kind != "class" for each in subgroups),
        )
    return tuple(replace(arm, subgroups=found.get(arm.name)) for arm in arms)


def detectable_loss(
    gains: npt.NDArray[np.int8],
    rows: IndexArray,
    groups: Groups | None = None,
    *,
    alpha: float,
    probability: float = 0.8,
) -> float | None:
    """Return the loss at every seed that would probably be found in a subgroup.

    Beside the loss, predictions change as often as in all examples, from seed to seed, or between
    the fixed models of too few seeds. A group of examples is lost as a whole.

    Args:
        gains: (S, n) 1 where only the arm is correct, -1 where only the baseline is.
        rows: Rows of the subgroup.
        groups: Groups of examples that are not independent; None if all are.
        alpha: Two-sided level of its interval.

    Returns:
        A share of the examples, in hundredths; None if not even the loss of all would be found.
    """
    seeds, examples = len(gains), len(rows)
    ids = np.arange(gains.shape[1]) if groups is None else groups.ids
    of_cases = np.stack([np.bincount(ids, weights=each) for each in gains])
    sizes = np.unique(ids[rows], return_counts=True)[1]
    is_fixed = seeds < MIN_SEEDS
    squares = (of_cases**2).mean(axis=0) if is_fixed else of_cases.var(axis=0, ddof=1)
    noise = float(squares.sum()) / gains.shape[1] / examples
    of_case = float((sizes**2).mean()) / examples**2  # mean square of what a case contributes
    for loss in np.arange(1, 101) / 100:
        covariance = float(loss * (1 - loss)) * len(sizes) * of_case
        if is_fixed:
            error = math.sqrt(max(covariance + noise, of_case))
            if loss >= error * (stdtrit(len(sizes) - 1, [probability, 1 - alpha / 2]).sum()):
                return float(loss)
            continue
        found = power(
            float(loss),
            seeds=seeds,
            seed_variance=noise,
            covariance=covariance,
            cases=len(sizes),
            jackknife_variance=covariance + noise,
            min_variance=of_case,
            alpha=alpha,
        )
        if found >= probability:
            return float(loss)
    return None


def _subgroups(cases: Cases) -> Iterator[_Subgroup]:
    """Yield the classes and, of texts, the lengths and words."""
    truth = cases.truth
    for index, name in enumerate(cases.class_names):
        rows = np.flatnonzero(cases.problem.has_class(truth, cases.label_names, index))
        yield _Subgroup("class", name, rows)
    if not cases.inputs.has_words or len(truth) > MAX_TEXTS:
        return
    texts = cases.inputs.read(range(len(truth)))
    # " | " joins the texts of a pair; it is not a word.
    spoken = [texts[row].replace(" | ", " ") for row in range(len(truth))]
    words = [words_or_characters(normalized_text(text)) for text in spoken]
    unit = "characters" if need_characters(texts.values()) else "words"
    if not any(len(each) > 1 for each in words):
        return
    yield from _by_length(np.array([len(each) for each in words]), unit)
    yield from _by_word(words)


def _by_length(lengths: npt.NDArray[np.intp], unit: str) -> Iterator[_Subgroup]:
    limits = np.unique(np.quantile(lengths, np.linspace(0, 1, LENGTHS + 1), method="lower"))
    for low, high in itertools.pairwise(limits.tolist()):
        first = low if low == limits[0] else low + 1
        name = f"{first}" if first == high else f"{first} to {high}"
        rows = np.flatnonzero((lengths >= first) & (lengths <= high))
        yield _Subgroup("length", f"{name} {unit}", rows)


def _by_word(words: Sequence[Sequence[str]]) -> Iterator[_Subgroup]:
    counts = Counter(word for each in words for word in set(each))
    frequent = sorted(
        (word for word, count in counts.items() if MIN_EXAMPLES <= count < len(words) / 2),
        key=lambda word: (-counts[word], word),
    )[:MAX_WORDS]
    rows: dict[str, list[int]] = {word: [] for word in frequent}
    for row, each in enumerate(words):
        for word in rows.keys() & set(each):
            rows[word].append(row)
    for word, some in rows.items():
        yield _Subgroup("word", word, np.array(some))


def _largest(
    subgroups: Sequence[_Subgroup],
    arm: Sequence[RunPredictions],
    base: Sequence[RunPredictions],
    cases: Cases,
    level: float,
    *,
    sign: int,
) -> Iterator[SubgroupDifference]:
    """Yield the subgroups with the largest gains, or with the sign -1 the largest losses."""
    gains = sign * _gains(arm, base)
    order = sorted(subgroups, key=lambda each: (-_ratio(gains[:, each.rows]), each.kind, each.name))
    for each in order[:LISTED]:
        if gains[:, each.rows].mean() <= 0:
            continue
        difference = _estimate(each, arm, base, cases)
        low, high = difference.interval(level)
        yield SubgroupDifference(
            kind=each.kind,
            name=each.name,
            examples=len(each.rows),
            estimate=difference.estimate,
            # Differences of shares beyond these cannot occur.
            interval=(max(float(low), -1.0), min(float(high), 1.0)),
        )


def _can_have_interval(subgroup: _Subgroup, base: Sequence[RunPredictions], cases: Cases) -> bool:
    """Return whether a subgroup has two independent cases and, of a cross-validation, two folds."""
    members = subgroup.rows
    if cases.groups is not None:
        members = np.unique(cases.groups.ids[members])
    folds = [each.folds[members] for each in base if each.folds is not None]
    return len(members) > 1 and all(np.ptp(each) > 0 for each in folds)


def _gains(arm: Sequence[RunPredictions], base: Sequence[RunPredictions]) -> npt.NDArray[np.int8]:
    """Return (S, n) 1 where only the arm is correct, -1 where only the baseline is."""
    return np.stack([a.correct.astype(np.int8) - b.correct for a, b in zip(arm, base, strict=True)])


def _ratio(gains: npt.NDArray[np.int8]) -> float:
    """Return the mean of (S, n) gains over a rough standard error."""
    per_example = gains.mean(axis=0)
    error = np.sqrt((per_example.var() + 1 / len(per_example)) / len(per_example))
    return float(per_example.mean() / error)


def _estimate(
    subgroup: _Subgroup, arm: Sequence[RunPredictions], base: Sequence[RunPredictions], cases: Cases
) -> DifferenceEstimate:
    ids, members = None, subgroup.rows
    if cases.groups is not None:
        members, ids = np.unique(cases.groups.ids[subgroup.rows], return_inverse=True)

    def sums(predictions: RunPredictions) -> CaseSums:
        wrong = (~predictions.correct[subgroup.rows]).astype(np.int64)
        each = single_label_sums(np.zeros_like(wrong), wrong, 2)
        return each if ids is None else each.grouped(ids)

    sides = [sums(each) for each in arm], [sums(each) for each in base]
    every = [each.folds for each in base]
    folds = [None if each is None else each[members] for each in every]
    count = max(0 if each is None else 1 + int(each.max()) for each in every)
    return estimate_over_folds(*sides, folds, ACCURACY, count)


def class_differences(
    predictions: Mapping[str, Sequence[RunPredictions]],
    baseline: Sequence[RunPredictions],
    *,
    judged: Collection[str],
    alpha: float,
) -> dict[str, tuple[ClassDifference | None, ...]]:
    """Return the difference in F1 of each class by arm, after Holm over classes and arms.

    A class without an example has no difference. An arm has none if its problem does not count
    classes. With fewer than three seeds, the differences are for these models only.

    Args:
        predictions: Predictions by seed of each arm, without the baseline.
        judged: Arms whose differences get p-values: not the placebo.
    """
    sums = [each.class_sums for each in baseline]
    if sums[0] is None:
        return {}
    classes = len(sums[0].totals()) // 3
    if classes * len(sums[0]) * len(baseline) * (len(predictions) + 1) > MAX_WORK:
        return {}
    folds = [each.folds for each in baseline]
    estimates: dict[tuple[str, int], DifferenceEstimate] = {}
    for label in np.flatnonzero(sums[0].totals()[classes : 2 * classes]).tolist():
        base = sums_of_class(sums, label)
        for name, runs in predictions.items():
            arm = sums_of_class([run.class_sums for run in runs], label)
            estimates[name, label] = estimate_over_folds(arm, base, folds, MACRO_F1)
    p_values = {key: each.p_difference() for key, each in estimates.items() if key[0] in judged}
    corrected = holm(p_values)
    found = {
        key: ClassDifference(
            estimate=each.estimate,
            interval=each.interval(1 - alpha),
            level=1 - alpha,
            p_difference=p_values.get(key),
            p_difference_holm=corrected.get(key),
        )
        for key, each in estimates.items()
    }
    return {
        name: tuple(found.get((name, label)) for label in range(classes)) for name in predictions
    }


def sums_of_class(seeds: Sequence[CaseSums | None], label: int) -> list[CaseSums]:
    """Return the sums that determine the F1 of one class, at each seed.

    Args:
        seeds: Sums that determine the F1 of every class, at each seed.
    """
    result = []
    for sums in seeds:
        assert sums is not None, "all runs have the same problem"
        classes = sums.patterns.shape[1] // 3
        columns = [label, classes + label, 2 * classes + label, 3 * classes]
        rows, index = np.unique(sums.patterns[:, columns].toarray(), axis=0, return_inverse=True)
        result.append(CaseSums(csr_array(rows), index.reshape(-1)[sums.pattern_of]))
    return result
