"""The figures that a comparison gives for each arm. Units as in `ampft.comparison.findings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """One run of an arm.

    Attributes:
        seed: Of training.
        status: As in the run record.
        reason: Why it diverged or was interrupted.
        folder: The name of its folder, without its parents.
    """

    seed: int
    status: str
    reason: str | None
    folder: str


@dataclass(frozen=True, kw_only=True)
class MetricValues:
    """A metric over the seeds of an arm, in the order of its runs; `sd` with S - 1.

    With one seed there is no deviation: `sd` is None.
    """

    mean: float
    sd: float | None
    per_seed: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm's primary metric minus the baseline's, and what follows.

    Attributes:
        estimate: Mean over the seeds.
        per_seed: In the order of the seeds.
        interval95: Low and high; at the comparison's own level, `level95`, when looks are planned.
        interval90: The same for equivalence.
        level95: 0.95, or more when several looks are planned.
        level90: 0.90, or more when several looks are planned.
        degrees_of_freedom: Of t; see `statistics.interval`.
        seed_variance: Of the differences over seeds, after its floor.
        jackknife_variance: Mean over seeds of the jackknife variance over examples.
        jackknife_covariance: Mean over pairs of seeds, floored at 0.
        p_difference: Two-sided, before Holm; None for a placebo.
        p_equivalence: Two one-sided tests, before Holm; None for a placebo.
        p_difference_holm: After Holm over the modes; None for a placebo.
        p_equivalence_holm: After Holm over the modes; None for a placebo.
        p_beyond: For a difference beyond the margin, before Holm; None for a placebo, and in files
            from before it was kept.
        p_beyond_holm: After Holm over the modes; None as above.
        verdict: Such as "equivalent" or "undecided"; None for a placebo, which is no candidate.
        seeds_to_decide: Least and most seeds that would decide it; None when it is decided, or
            when no number of seeds would.
    """

    estimate: float
    per_seed: tuple[float, ...]
    interval95: tuple[float, float]
    interval90: tuple[float, float]
    level95: float
    level90: float
    degrees_of_freedom: float
    seed_variance: float
    jackknife_variance: float
    jackknife_covariance: float
    p_difference: float | None
    p_equivalence: float | None
    p_difference_holm: float | None
    p_equivalence_holm: float | None
    verdict: str | None
    seeds_to_decide: tuple[int, int] | None
    p_beyond: float | None = None
    p_beyond_holm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Median steady-state optimizer steps, and the baseline's over them, pair by pair.

    Attributes:
        step_seconds: Median of each run, in the order of the runs.
        ratio: Median over the seeds of baseline step / this arm's step (2 is twice as fast); None
            for the baseline and for emulated modes, which get no ranking.
        ratio_spread: Least and greatest over the seeds.
        ratio_to_tf32: The same against tf32, where it was compared.
        tokens_per_second: Median over the runs.
        waiting_share: Of the steps, median over the runs.
        utilisation: Of the matrix-product rate measured in the same process, median over the runs.
        training_seconds: Median over the runs.
        total_seconds: From start to report, median over the runs.
        reason: Why a mode is less than 1.2 times as fast as the baseline, in one sentence.
    """

    step_seconds: tuple[float, ...]
    ratio: float | None
    ratio_spread: tuple[float, float] | None
    ratio_to_tf32: float | None
    tokens_per_second: float | None
    waiting_share: float | None
    utilisation: float | None
    training_seconds: float | None
    total_seconds: float | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory, medians over the runs, bytes; the parts as the run records have them."""

    peak: int | None
    ratio: float | None
    weights: int | None
    gradients: int | None
    optimizer_state: int | None
    activations: int | None
    rest: int | None
    baseline: int | None
    protocol: str | None


@dataclass(frozen=True, kw_only=True)
class FlippedExample:
    """An example that an arm and the baseline predict differently.

    Attributes:
        example_id: Row of the split.
        text: Its inputs, shortened; empty where they are not shown.
        label: Its class.
        seeds: In how many seeds it flips.
        baseline: Predicted by the baseline, at the first seed where it flips.
        baseline_confidence: Its probability there.
        arm: Predicted by the arm there.
        arm_confidence: Its probability there.
    """

    example_id: int
    text: str
    label: str
    seeds: int
    baseline: str
    baseline_confidence: float
    arm: str
    arm_confidence: float


@dataclass(frozen=True, kw_only=True)
class Flips:
    """Predictions that differ between an arm and the baseline at the same seed.

    Attributes:
        per_seed: Number of examples, in the order of the seeds.
        mean: Over the seeds.
        gained: Mean number that only the arm has right.
        lost: Mean number that only the baseline has right.
        mcnemar_mid_p: Per seed, about these two checkpoints alone.
        examples: Those that flip in most seeds first, a few.
    """

    per_seed: tuple[int, ...]
    mean: float
    gained: float
    lost: float
    mcnemar_mid_p: tuple[float, ...]
    examples: tuple[FlippedExample, ...]


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """One class in one arm, means over the seeds; `f1_difference` to the baseline."""

    name: str
    support: int
    precision: float
    recall: float
    f1: float
    f1_difference: float | None


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Predictions whose confidence falls between `low` and `high`, over all seeds."""

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run over its optimizer steps, thinned to what a chart can show.

    Attributes:
        seed: Of the run.
        steps: Of the points of `loss` and `loss_scale`.
        loss: Training loss, a mean over the steps since the point before.
        loss_scale: None without a gradient scaler.
        skipped: Steps that were skipped, all of them.
        validation_steps: Where validation was evaluated.
        validation_metric: The primary metric there.
    """

    seed: int
    steps: tuple[int, ...]
    loss: tuple[float | None, ...]
    loss_scale: tuple[float | None, ...] | None
    skipped: tuple[int, ...]
    validation_steps: tuple[int, ...]
    validation_metric: tuple[float, ...]
