"""Tables of predictions, as another framework writes them, of procedures with a known accuracy."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

SEEDS = (1, 2, 3, 4, 5)
N = 300


def write_table(path: Path, seed: int, wrong_share: float, *, n: int = N, prefix: str = "x") -> str:
    """Write one model that is wrong on a random share of the rows; labels depend on `n` only."""
    labels = np.arange(n) % 2
    random = np.random.default_rng([seed, *path.name.partition("-")[0].encode()])
    predicted = np.where(random.random(n) < wrong_share, 1 - labels, labels)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "label", "prediction"))
        for i in random.permutation(n):
            writer.writerow((f"{prefix}{i}", f"c{labels[i]}", f"c{predicted[i]}"))
    return str(path)


def write_side(folder: Path, name: str, wrong_share: float, seeds=SEEDS, **options) -> list[str]:
    """Write the tables of one side, one per seed."""
    return [
        write_table(folder / f"{name}-seed{seed}.csv", seed, wrong_share, **options)
        for seed in seeds
    ]
