"""The settings that `interval_calibration.py` simulates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from simulated_losses import (
    BadSeeds,
    Duplicates,
    GroupedDuplicates,
    MostlyLostClasses,
    OffsetSubgroup,
    RareClasses,
    RareRowsAmongGroups,
    SkewedSeeds,
    Subgroup,
)
from simulated_metrics import Entities, Images, Probabilities, SeveralLabels, WordLosses, Words
from simulated_seeds import Latent, Logit, Setting

from ampft.labels import multi_label

NUMBERS = (3, 5, 10)  # of seeds
LOGIT_SETTINGS = 80  # of 9,072
SUBGROUP_SETTINGS = 100  # of some 5,000

# What no interval repairs, or what needs the groups: measured, and not held to a level.
LIMITS = ("skewed seeds", "duplicates", "bad seeds", "offset subgroup", "rare classes, mostly lost")


def grid() -> list[Setting]:
    """Return all settings: the first grid, then those that could fool a comparison."""
    return [*latent(), *logit(), *subgroups(), *rare_classes(), *other_metrics(), *others()]


def latent() -> list[Setting]:
    """Return the full grid for accuracy at 500 examples, and slices beside it."""
    full = product(NUMBERS, (500,), ("accuracy",), (0.0, 0.03, 0.1), (0.0, 0.15, 0.4), (0.1, 0.4))
    macro = product(NUMBERS, (500,), ("macro_f1",), (0.0, 0.1), (0.0, 0.4), (0.1, 0.4))
    small = product(NUMBERS, (100,), ("accuracy",), (0.0, 0.1), (0.0, 0.4), (0.4,))
    rare = product(NUMBERS, (500,), ("accuracy",), (0.0,), (0.0, 0.03), (0.01, 0.03))
    large = product(NUMBERS, (4000,), ("accuracy",), (0.03,), (0.15,), (0.1,))
    return [Latent(*point) for part in (full, macro, small, rare, large) for point in part]


def logit() -> list[Setting]:
    """Return a random part of the product."""
    accuracies = (0.55, 0.75, 0.9, 0.97, 0.99, 0.999)
    sizes = (50, 100, 200, 500, 1000, 2000, 5000)
    points = product(
        *(NUMBERS, sizes, accuracies, ("bimodal", "heavy")),
        *((0.0, 0.5, 0.9, 0.99), (0.0, 0.05, 0.2), (0.0, 0.2, 1.0)),
    )
    return _part([Logit(*point) for point in points], LOGIT_SETTINGS)


def subgroups() -> list[Setting]:
    """Return losses that are certain and nothing else, and a random part of the rest."""
    sizes = (50, 100, 135, 200, 267, 293, 300, 320, 400, 475, 648, 1000, 2000, 5000)
    certain = [Subgroup(seeds, n, 0.999, 0.0, 1.0, 0.0) for seeds in NUMBERS for n in sizes]
    points = product(
        *(NUMBERS, sizes, (0.55, 0.85, 0.97, 0.999)),
        *((0.0, 0.001, 0.005, 0.02, 0.05), (1.0, 0.9, 0.5), (0.0, 0.003, 0.01)),
    )
    # A seed cannot gain several times the errors that there are.
    possible = [Subgroup(*point) for point in points if 4 * point[-1] < 1 - point[2] + point[3]]
    others = [setting for setting in possible if setting not in certain]
    return [*certain, *_part(others, SUBGROUP_SETTINGS)]


def rare_classes() -> list[Setting]:
    """Return tiny classes beside large ones."""
    supports = (
        (250, 150, 91, 3, 3, 3),
        (250, 150, 90, 10),
        (200, 150, 75, 50, 25),
        (400, 300, 200, 40),
        (480, 20),
        *((30,) * 39 + (5,),),
    )
    points = product(NUMBERS, ("macro_f1", "balanced_accuracy"), supports, (0.95,), (0.005,))
    return [RareClasses(*point) for point in points]


def other_metrics() -> list[Setting]:
    """Return every other metric that gets a verdict."""
    sizes = (1000, 300, 5000)
    counted = ("weighted_f1", "balanced_accuracy", "matthews", "cohen_kappa")
    several = [name for name in multi_label.METRICS if name != "log_loss"]
    few, flips = NUMBERS[:2], (0.005, 0.03)
    log_loss = product(few, ("log_loss",), sizes, (0.0, 0.1), (30.0, 12.0, 0.0))
    brier = product(few, ("brier",), sizes, (0.0, 0.1), (8.0, 0.0))
    entities = product(few, ("micro_f1", "macro_f1", "weighted_f1"), (200, 1000), flips)
    of_images = ("mean_iou", "pixel_accuracy", "macro_f1", "balanced_accuracy")
    images = product(few, of_images, (34, 100, 300))
    return [
        *(Latent(s, 500, name, m, 0.0, 0.1) for s, name, m in product(few, counted, (0.0, 0.1))),
        *(Probabilities(*point) for point in (*log_loss, *brier)),
        *(Entities(*point) for point in entities),
        *(Words(*point) for point in product(few, (200, 1000), flips)),
        *(WordLosses(*point) for point in product(few, (1000, 200, 5000), (30.0, 12.0))),
        *(Images(*point) for point in images),
        *(SeveralLabels(*point) for point in product(few, several, (300,), flips[:1])),
    ]


def others() -> list[Setting]:
    """Return copies, seeds that fail, losses that are offset, and classes that are lost."""
    lost = product(NUMBERS, ("macro_f1", "balanced_accuracy"), ((250, 150, 91, 3, 3, 3),))
    symmetric = product((*NUMBERS, 20), (2000,), ("normal", "t3"), ("losses",))
    effects = ("exponential", "lognormal", "two points")
    skewed = product((*NUMBERS, 20), (2000,), effects, ("losses", "gains", "both"))
    copies = list(product((5,), (250,), (2, 4, 10), (False, True)))
    return [
        *(Duplicates(*point) for point in copies),
        *(GroupedDuplicates(*point) for point in copies),
        *(
            RareRowsAmongGroups(*point)
            for point in product((5, 10), ("macro_f1", "rare_f1"), (50, 125), (True, False))
        ),
        *(SkewedSeeds(*point) for point in (*symmetric, *skewed)),
        *(BadSeeds(*point) for point in product((5, 10), (1000,))),
        *(OffsetSubgroup(*point) for point in product(NUMBERS, (300, 1000), (2.4, 4.0, 6.0))),
        *(MostlyLostClasses(*point, 0.95, 0.005) for point in lost),
    ]


def _part(settings: Sequence[Setting], number: int) -> list[Setting]:
    chosen = np.random.default_rng(0).choice(len(settings), number, replace=False)
    return [settings[index] for index in sorted(chosen.tolist())]
