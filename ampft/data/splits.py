"""Which rows belong to which split."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from datasets import Dataset, DatasetDict

from ampft.errors import InputError

LIMIT_FLAGS = {
    "train": "--max_train_samples",
    "validation": "--max_eval_samples",
    "test": "--max_predict_samples",
}


def limit_splits(
    splits: DatasetDict, limits: Mapping[str, int], *, seed: int
) -> tuple[DatasetDict, list[str]]:
    """Keep at most as many rows of each split as asked for.

    The rows are a seeded random choice in their old order: in a file sorted by label, the first n
    rows would be of one class.

    Args:
        splits: All rows.
        limits: Split to the number of rows to keep; a split that is not named keeps all.
        seed: Seed of the choice.

    Returns:
        The splits, and a sentence for each that was cut.
    """
    kept, notes = {}, []
    for name, split in splits.items():
        limit = limits.get(name)
        if limit is not None and limit < 1:
            raise InputError(f"{LIMIT_FLAGS[name]}: got {limit}; give a number of rows from 1 up.")
        if limit is None or limit >= len(split):
            kept[name] = split
            continue
        kept[name] = choose(split, limit, seed=seed)
        notes.append(
            f"{LIMIT_FLAGS[name]}: {limit} of {len(split)} {name} rows, chosen at random with"
            f" seed {seed}."
        )
    return DatasetDict(kept), notes


def choose(split: Dataset, count: int, *, seed: int) -> Dataset:
    """Return `count` rows chosen at random, in their old order."""
    rows = np.random.default_rng(seed).choice(len(split), size=count, replace=False)
    return split.select(np.sort(rows))
