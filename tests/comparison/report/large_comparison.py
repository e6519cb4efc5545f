"""A large comparison that reports must support: 200 classes, 8 arms, 20 seeds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from example_comparison import realistic

from ampft.comparison.findings import ArmResult, ClassFigures, Comparison, RunOutcome

SEEDS = 20
CLASSES = 200
MODES = ("fp32", "placebo", "tf32", "bf16", "fp16", "fp8", "bf16-true", "a-mode-with-a-long-name")


@cache
def large() -> Comparison:
    """Return the realistic comparison, enlarged with random figures."""
    small = realistic()
    rng = np.random.default_rng(7)
    labels = (*(f"class {index} of many 类别" for index in range(CLASSES - 1)), "w" * 200)
    arms = tuple(
        _arm(small.arms[min(index, 3)], name, labels, rng) for index, name in enumerate(MODES)
    )
    return replace(small, arms=arms, label_names=labels, seeds=tuple(range(1, SEEDS + 1)))


def two_classes() -> Comparison:
    """Return the realistic comparison, reduced to one mode and two classes."""
    small = realistic()
    arms = tuple(
        replace(arm, classes=arm.classes[:2], confusion=tuple(row[:2] for row in arm.confusion[:2]))
        for arm in (small.arms[0], small.arms[2])
    )
    return replace(small, arms=arms, label_names=small.label_names[:2])


def _arm(
    small: ArmResult, name: str, labels: tuple[str, ...], rng: np.random.Generator
) -> ArmResult:
    confusion = rng.integers(0, 4, (CLASSES, CLASSES)) * (rng.random((CLASSES, CLASSES)) < 0.05)
    curve = small.curves[0]
    speed = small.speed
    assert speed is not None
    return replace(
        small,
        name=name,
        mode=name if name != "placebo" else "fp32",
        runs=tuple(
            RunOutcome(seed=seed, status="finished", reason=None, folder=f"{name}-seed-{seed}")
            for seed in range(1, SEEDS + 1)
        ),
        speed=replace(speed, step_seconds=tuple(rng.uniform(0.08, 0.12, SEEDS))),
        skipped_steps=(0,) * SEEDS,
        total_steps=(300,) * SEEDS,
        classes=tuple(
            ClassFigures(
                name=label,
                support=int(rng.integers(1, 90)),
                precision=0.8,
                recall=0.8,
                f1=float(rng.uniform(0.5, 1)),
                f1_difference=None if name == "fp32" else float(rng.normal(0, 0.02)),
            )
            for label in labels
        ),
        confusion=tuple(
            tuple(int(x) for x in row) for row in confusion + np.diag(rng.integers(20, 90, CLASSES))
        ),
        curves=tuple(
            replace(
                curve,
                seed=seed,
                loss=tuple(value * rng.uniform(0.9, 1.1) for value in curve.loss if value),
                skipped=tuple(sorted(rng.integers(1, 300, 4).tolist())),
            )
            for seed in range(1, SEEDS + 1)
        ),
    )
