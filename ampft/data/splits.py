"""Which rows belong to which split: splits that are made, and splits that are cut."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError

IntArray = npt.NDArray[np.int64]

LIMIT_FLAGS = {
    "train": "--max_train_samples",
    "validation": "--max_eval_samples",
    "test": "--max_predict_samples",
}


def stratified_choice(
    labels: IntArray, count: int, *, seed: int, leave_one: bool = False
) -> IntArray:
    """Choose rows at random so that each class keeps its share.

    Shares are rounded by the largest remainder, ties by chance.

    Args:
        labels: (n,) class of each row.
        count: How many rows to choose, at most n.
        seed: Seed of the choice.
        leave_one: Whether one row of each class is left behind, even if fewer are chosen then.

    Returns:
        (count,) row indices, ascending; fewer when `leave_one` demands it.
    """
    generator = np.random.default_rng(seed)
    classes, sizes = np.unique(labels, return_counts=True)
    most = sizes - 1 if leave_one else sizes
    exact = [Fraction(int(size) * count, len(labels)) for size in sizes]
    quota = np.array([int(share) for share in exact], dtype=np.int64)
    remainders = np.array([float(share - int(share)) for share in exact])
    by_remainder = np.lexsort((generator.random(len(classes)), -remainders))
    quota = np.minimum(quota, most)
    for place in by_remainder:
        if quota.sum() >= count:
            break
        quota[place] += quota[place] < most[place]
    chosen = [
        generator.permutation(np.flatnonzero(labels == label))[:size]
        for label, size in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def split_off(
    labels: IntArray, groups: npt.NDArray[np.uint64], fraction: float, *, seed: int
) -> tuple[IntArray, IntArray]:
    """Split rows in two, stratified, so that rows of one group stay together.

    Args:
        labels: (n,) class of each row.
        groups: (n,) equal for rows with equal inputs; a text that stands twice must not be in
            both parts. A group counts as of its first row's class.
        fraction: Share of the groups that go to the second part.
        seed: Seed of the choice.

    Returns:
        Row indices of the first and of the second part, ascending. Each class keeps a row in the
        first.
    """
    _, firsts, membership = np.unique(groups, return_index=True, return_inverse=True)
    count = round(fraction * len(firsts))
    second = stratified_choice(labels[firsts], count, seed=seed, leave_one=True)
    is_second = np.isin(membership, second)
    return np.flatnonzero(~is_second), np.flatnonzero(is_second)


def missing_splits(
    labels: IntArray,
    groups: npt.NDArray[np.uint64],
    given: frozenset[str],
    *,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
) -> tuple[dict[str, IntArray], str | None]:
    """Make the splits that the source lacks out of its training rows.

    Training alone gives validation and test; training and test give validation. With training and
    validation, validation serves both ends, and that is said.

    Args:
        labels: (n,) class of each training row.
        groups: (n,) equal for rows with equal inputs.
        given: The splits that the source has.
        validation_fraction: Share of the training rows for validation; 0 makes none.
        test_fraction: Share of the training rows for test; 0 makes none.
        seed: Seed of the split.

    Returns:
        Row indices of the training rows by split, and a sentence, or None where nothing was made.

    Raises:
        InputError: For fractions that leave nothing to learn from, and when too few rows are
            there to be split.
    """
    check_fractions(validation_fraction, test_fraction)
    rest = np.arange(len(labels))
    if "validation" in given:
        said = None if "test" in given else "No test split: validation chooses and is reported on."
        return {"train": rest}, said
    wanted = {"validation": validation_fraction}
    if "test" not in given:
        wanted["test"] = test_fraction
    made: dict[str, IntArray] = {}
    left = 1.0
    for split in reversed(wanted):
        if wanted[split]:
            kept, taken = split_off(labels[rest], groups[rest], wanted[split] / left, seed=seed)
            left -= wanted[split]
            rest, made[split] = rest[kept], rest[taken]
            refuse_empty(split, len(taken), len(labels))
    if not made:
        return {"train": rest}, None
    sizes = ", ".join(f"{split} {len(made[split])}" for split in wanted if split in made)
    said = (
        f"Split off the {len(labels)} training rows, stratified, seed {seed}: {sizes}; train keeps"
        f" {len(rest)}."
    )
    return {"train": rest, **made}, said


def check_fractions(validation: float, test: float) -> None:
    """Raise InputError for fractions outside of [0, 1) or a sum that leaves no training rows."""
    for flag, value in (("--validation_fraction", validation), ("--test_fraction", test)):
        if not 0 <= value < 1:
            raise InputError(f"{flag}: got {value}; a share from 0 (no such split) to below 1.")
    if validation + test >= 1:
        raise InputError(
            f"--validation_fraction and --test_fraction: got {validation} and {test}; nothing is"
            " left for training. Their sum has to be below 1."
        )


def refuse_empty(split: str, count: int, training_rows: int) -> None:
    """Raise InputError when a split that was made has no rows."""
    if not count:
        raise InputError(
            f"--{split}_fraction: {training_rows} training rows are too few for a {split} split."
            f" Give more rows, a file of its own, or --{split}_fraction 0."
        )


def cut(
    labels: IntArray, split: str, limits: Mapping[str, int], *, seed: int
) -> tuple[IntArray | None, str | None]:
    """Choose as many rows of a split as `max_..._samples` asks for.

    A seeded stratified choice in the rows' old order: in a file sorted by label, the first n rows
    would be of one class.

    Args:
        labels: (n,) class of each row.
        split: `train`, `validation` or `test`.
        limits: Split to the number of rows to keep.
        seed: Seed of the choice.

    Returns:
        The rows to keep and a sentence; None twice when all are kept.
    """
    limit = limits.get(split)
    if limit is not None and limit < 1:
        raise InputError(f"{LIMIT_FLAGS[split]}: got {limit}; give a number of rows from 1 up.")
    if limit is None or limit >= len(labels):
        return None, None
    said = (
        f"{LIMIT_FLAGS[split]}: {limit} of {len(labels)} {split} rows, a stratified choice with"
        f" seed {seed}."
    )
    return stratified_choice(labels, limit, seed=seed), said
