"""What a comparison found: everything that its reports show, and nothing that they compute.

`comparison.json` is this module's `Comparison` as JSON. Shares, metrics and differences are
fractions (0.01 is one point), times are seconds, sizes are bytes; `None` is what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampft.text.json_io import JSONValue
from ampft.text.numbers import Units

SCHEMA = 2
COMPARISON_NAME = "comparison.json"
CALIBRATION_ERROR = "expected_calibration_error"


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
class MetricInfo:
    """What a reader has to know of a metric.

    Attributes:
        name: Key in reports and records.
        title: Name for people.
        higher_is_better: Direction.
        is_share: Whether differences are given in points (hundredths).
    """

    name: str
    title: str
    higher_is_better: bool = True
    is_share: bool = True


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
        seeds_to_decide: Numbers of seeds below which a decision is unlikely, and from which it is
            likely; None when it is decided, or when more seeds are unlikely to decide it.
        unseen_share: Largest share of cases that may fail at every seed with none of them in the
            test set, probability 5 %; None without a verdict.
        failure_rate: Largest rate of failed trainings that the seeds do not exclude, likewise.
        cases_needed: Where equivalence is refused only because rare losses are not excluded: how
            many cases it needs, of the class `rarest_class` if that is not None.
        rarest_class: Index into the label names of the class whose cases are worth most; None where
            all are worth about the same.
        rarest_cases: Number of its cases.
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
    unseen_share: float | None = None
    failure_rate: float | None = None
    cases_needed: int | None = None
    rarest_class: int | None = None
    rarest_cases: int | None = None


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


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What the runs' records cannot tell, because it was decided about all of them together.

    Attributes:
        planned: Whether a plan named metric, margin and seeds before the first run, and had the
            runs one at a time, the arms in turn.
        looks: Numbers of seeds at which results are looked at, planned before the first run;
            empty for one look at all seeds.
        added_after_look: Whether seeds were added that no plan named, after results were seen.
        reductions: What was cut to fit a budget, one sentence each.
        lacking: Which planned seeds are left out and why, one sentence each.
        overhead_share: Time of comparing, over the time of the runs.
        yardstick: As `ampft.diagnosis.yardstick` wrote it.
    """

    planned: bool = False
    looks: tuple[int, ...] = ()
    added_after_look: bool = False
    reductions: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    overhead_share: float | None = None
    yardstick: Mapping[str, JSONValue] | None = None


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """A mode, or the placebo, with all its runs.

    Attributes:
        name: Such as "bf16"; "placebo" for the baseline with perturbed initial weights.
        mode: Such as "bf16"; the placebo's is "fp32".
        is_placebo: Whether its initial weights were perturbed.
        execution: "native" or "emulated".
        executed: What the products of the first step had, one clause.
        status: "complete", "unstable" (a run diverged) or "failed" (a run did not finish).
        status_words: Such as "unstable, 2 of 5".
        runs: By seed.
        metrics: By name; empty for an arm that is not complete, which gets no mean over its
            survivors.
        metrics_fp32: The same models predicting in float32; empty when that was not measured.
        difference: To the baseline in the primary metric; None for the baseline itself and for an
            arm that is not complete.
        difference_fp32: The same with the arm's models predicting in float32 (exploratory).
        speed: None when no run finished.
        memory: None when no run finished.
        skipped_steps: Per run.
        total_steps: Per run, skipped ones included.
        flips: None for the baseline and for an arm that is not complete.
        classes: In the order of the label names; empty for an arm that is not complete.
        confusion: Rows are labels, columns predictions, summed over the seeds; empty as above.
        calibration: Bins of equal width; empty as above.
        curves: Per run, diverged ones included.
    """

    name: str
    mode: str
    is_placebo: bool
    execution: str
    executed: str | None
    status: str
    status_words: str
    runs: tuple[RunOutcome, ...]
    metrics: Mapping[str, MetricValues]
    metrics_fp32: Mapping[str, MetricValues]
    difference: Difference | None
    difference_fp32: Difference | None
    speed: Speed | None
    memory: Memory | None
    skipped_steps: tuple[int, ...]
    total_steps: tuple[int, ...]
    flips: Flips | None
    classes: tuple[ClassFigures, ...]
    confusion: tuple[tuple[int, ...], ...]
    calibration: tuple[CalibrationBin, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several arms against a baseline.

    Attributes:
        title: Model on data, such as "all-MiniLM-L6-v2 on stdlib (summary)".
        metric: Name of the primary metric.
        metrics: All metrics that the arms may have, in the order to be shown.
        margin: Differences within it count as none.
        margin_share_of_errors: The margin over the baseline's share of errors.
        alpha: Of this look: 0.05, less when several looks are planned.
        looks: Numbers of seeds at which results are looked at.
        seeds: Those compared.
        split: That metrics come from.
        examples: Of that split.
        label_names: In the order of the logits.
        arms: The baseline first, the placebo second when there is one.
        verdicts: One or two sentences for each mode.
        stamps: What a reader has to know before the verdict: not like for like, selected,
            screening, reduced to fit a budget, seeds left out or added after a look, no plan.
        setup: What all runs had in common: name and value, for people.
        environment: Hardware and versions: name and value, for people.
        yardstick: As `ampft.diagnosis.yardstick` wrote it, when it did.
        overhead_share: Of comparing, over the time of the runs, where the plan measured it.
        planned: As in `PlanFacts`; a comparison.json without it counts as not planned.
        schema: Version of this layout.
    """

    title: str
    metric: str
    metrics: tuple[MetricInfo, ...]
    margin: float
    margin_share_of_errors: float | None
    alpha: float
    looks: tuple[int, ...]
    seeds: tuple[int, ...]
    split: str
    examples: int
    label_names: tuple[str, ...]
    arms: tuple[ArmResult, ...]
    verdicts: tuple[str, ...]
    stamps: tuple[str, ...]
    setup: Mapping[str, str]
    environment: Mapping[str, str]
    yardstick: Mapping[str, JSONValue] | None
    overhead_share: float | None
    planned: bool = False
    schema: int = SCHEMA

    @property
    def baseline(self) -> ArmResult:
        """The arm that all others are compared with."""
        return self.arms[0]

    @property
    def primary(self) -> MetricInfo:
        """The primary metric."""
        return next(info for info in self.metrics if info.name == self.metric)

    @property
    def units(self) -> Units:
        """How values of the primary metric and differences in it are printed."""
        return Units(self.primary.title, self.margin, is_share=self.primary.is_share)

    def arm(self, name: str) -> ArmResult:
        """Return the arm of that name.

        Raises:
            KeyError: There is none.
        """
        return {arm.name: arm for arm in self.arms}[name]
