"""The results of a comparison: all figures that its reports show.

`comparison.json` is this module's `Comparison` as JSON. Shares, metrics and differences are
fractions (0.01 is one point), times are in seconds and sizes in bytes. `None` means not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ampft.comparison.remarks import Remark
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.speed_up import SpeedUp, is_reliable_speed
from ampft.comparison.statistics.verdict import OUTCOMES, Difference
from ampft.metrics.sums import Metric
from ampft.tasks.outcome import Problem
from ampft.text.json_io import JSONValue
from ampft.text.numbers import Units
from ampft.text.page import ShownCase


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Median steady-state step times, and their ratios to the baseline seed by seed."""

    step_seconds: tuple[float, ...]  # Median step time of each run, in the order of the runs.
    # Speed-up over the baseline; None for the baseline and for emulated modes, which are not
    # ranked.
    speed_up: SpeedUp | None
    speed_up_over_tf32: SpeedUp | None  # Speed-up over tf32, if tf32 is part of the comparison.
    tokens_per_second: float | None  # Median over the runs.
    # Share of the step time spent waiting for data, median over the runs.
    waiting_share: float | None
    # Share of the matrix product rate measured in the same process, median over the runs.
    utilisation: float | None
    training_seconds: float | None  # Median over the runs.
    total_seconds: float | None  # Time from start to report, median over the runs.
    reason: Remark | None  # Why a mode is less than 1.2 times as fast as the baseline.


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory in bytes and its parts as in the run records, medians over the runs."""

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
class BatchTiming:
    """Time of the forward pass of one batch."""

    batch_size: int  # Texts per batch.
    seconds: float  # Median over the rounds.
    quartiles: tuple[float, float]  # First and third quartile over the rounds.
    # Speed-up over the baseline, from the times of the same rounds; None for the baseline.
    speed_up: SpeedUp | None


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The cost of predicting in a precision."""

    timings: tuple[BatchTiming, ...]  # Times by ascending batch size; empty for emulated modes.
    size: int  # Size in bytes of the weights on disk.
    size_ratio: float | None  # Size relative to the baseline; None for the baseline.


@dataclass(frozen=True, kw_only=True)
class SubgroupDifference:
    """The difference of an arm to the baseline in the examples of a subgroup."""

    kind: str  # "class", "length" or "word".
    name: str  # Name of the class, range of the number of words, or the word.
    examples: int  # Number of examples.
    estimate: float  # Difference in the share of correct predictions, mean over the seeds.
    interval: tuple[float, float]  # Confidence interval of level `Subgroups.level`.

    @property
    def is_loss(self) -> bool:
        """Whether the interval excludes that nothing is lost."""
        return self.interval[1] < 0

    @property
    def is_gain(self) -> bool:
        """Whether the interval excludes that nothing is gained."""
        return self.interval[0] > 0


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """The subgroups in which an arm loses and gains most, relative to their uncertainty."""

    examined: int  # Number of subgroups that were examined, in each arm.
    # Level of the intervals: they hold together for all subgroups and arms (Bonferroni).
    level: float
    # Share of correct predictions that a subgroup of `usual_size` examples must lose at every seed
    # to be found with a probability of 80 %.
    detectable: float
    usual_size: int  # Median number of examples of the subgroups.
    losses: tuple[SubgroupDifference, ...]  # The largest losses.
    gains: tuple[SubgroupDifference, ...] = ()  # The largest gains.
    noun: str = "texts"  # What the examples are, in the plural.
    has_words: bool = True  # Whether words and lengths were examined too, not only classes.


SCHEMA = 6  # since 6, the file states its own hash
COMPARISON_NAME = "comparison.json"
PRECISION = "mixed_precision"  # the setting in which modes differ
BROKEN = "broken"  # an arm with a diverged or unfinished run
CALIBRATION_ERROR = "expected_calibration_error"
TRAINING, PREDICTIONS, INFERENCE = "training", "predictions", "inference"  # kinds of comparisons
UNKNOWN = "unknown"  # execution of an arm without run records


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """One run of an arm."""

    seed: int  # Training seed.
    status: str  # Status in the run record.
    reason: str | None  # Reason why it diverged or was interrupted.
    folder: str  # Name of its folder, without parents.
    # Reasons not to trust its result, from `ampft.evaluation.sanity`; None if it has no record, so
    # that its predictions show some.
    warnings: tuple[str, ...] | None = ()
    # Name of the node of a cluster that trained it; None for this machine or unknown.
    node: str | None = None
    record_sha256: str | None = None  # Hash of the run record that was read; None without one.


def status_words(statuses: Sequence[str]) -> str:
    """Return the status of an arm with the number of its runs, such as "unstable, 2 of 5"."""
    total, diverged = len(statuses), statuses.count("diverged")
    unfinished = total - diverged - statuses.count("finished")
    if not diverged:
        return f"failed, {unfinished} of {total}" if unfinished else "complete"
    rest = f"; {unfinished} did not finish" if unfinished else ""
    return f"unstable, {diverged} of {total}{rest}"


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """How a metric is named, printed and compared."""

    name: str  # Key in reports and records.
    title: str  # Name shown to readers.
    higher_is_better: bool = True  # Whether larger values are better.
    # Whether it is a share, so that differences are given in points (hundredths).
    is_share: bool = True


def metric_info(metric: Metric) -> MetricInfo:
    """Return what findings say of a metric."""
    return MetricInfo(
        name=metric.name,
        title=metric.title,
        higher_is_better=metric.higher_is_better,
        is_share=metric.is_share,
    )


def metric_infos(problem: type[Problem]) -> tuple[MetricInfo, ...]:
    """Return all metrics that arms have: those with intervals, then the calibration error."""
    calibration = MetricInfo(
        name=CALIBRATION_ERROR, title="calibration error", higher_is_better=False
    )
    return (*map(metric_info, problem.metrics.values()), calibration)


@dataclass(frozen=True, kw_only=True)
class MetricOverSeeds:
    """Mean, standard deviation and values of a metric over the seeds of an arm.

    `sd` is the standard deviation with S - 1 degrees of freedom; None with a single seed.
    """

    mean: float
    sd: float | None
    per_seed: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class FlippedExample:
    """An example that an arm and the baseline predict differently."""

    example_id: int  # Row of the split.
    text: str  # Inputs, truncated; empty if they are not shown.
    label: str  # True class.
    seeds: int  # Number of seeds at which the prediction differs.
    baseline: str  # Prediction of the baseline at the first of these seeds.
    baseline_confidence: float | None  # Probability of that prediction; None if it is unknown.
    arm: str  # Prediction of the arm at the same seed.
    arm_confidence: float | None  # Probability of that prediction; None if it is unknown.
    # The example with both predictions, if it is not a text and the page shows it.
    shown: ShownCase | None = None


@dataclass(frozen=True, kw_only=True)
class ChangedPredictions:
    """Predictions that differ between an arm and the baseline with the same seed."""

    per_seed: tuple[int, ...]  # Number of differing predictions, in the order of the seeds.
    mean: float  # Mean number over the seeds.
    gained: float  # Mean number that only the arm predicts correctly.
    lost: float  # Mean number that only the baseline predicts correctly.
    # McNemar's mid-p per seed; it compares only the two checkpoints of a seed. A group of examples
    # counts once.
    mcnemar_mid_p: tuple[float, ...]
    # A few examples, those that differ for the largest number of seeds first.
    examples: tuple[FlippedExample, ...]
    # Mean number that both predict correctly; None in files of earlier versions.
    both_correct: float | None = None
    # Mean numbers of examples in which the arm, and the baseline, is closer to the label, which is
    # a number; None if labels are classes.
    closer: float | None = None
    farther: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClassDifference:
    """The difference in the F1 of one class, arm minus baseline."""

    estimate: float  # Mean over the seeds.
    # Lower and upper end of the confidence interval of level `level`.
    interval: tuple[float, float]
    level: float  # 0.95, or more with several planned analyses.
    p_difference: float | None  # Two-sided p-value; None for a placebo.
    # `p_difference` after Holm over classes and arms; None for a placebo.
    p_difference_holm: float | None


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """One class in one arm, means over the seeds; `f1_difference` is relative to the baseline.

    `difference` is the same difference with its interval; None if it was not computed.
    """

    name: str
    support: int
    precision: float
    recall: float
    f1: float
    f1_difference: float | None
    difference: ClassDifference | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Predictions of all seeds whose confidence lies between `low` and `high`."""

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class TrainingCurve:
    """Loss and metric of one run over its optimizer steps, thinned out for a chart."""

    seed: int  # Seed of the run.
    steps: tuple[int, ...]  # Steps of the points of `loss` and `loss_scale`.
    # Training loss, averaged over the steps since the previous point.
    loss: tuple[float | None, ...]
    loss_scale: tuple[float | None, ...] | None  # Loss scale; None without a gradient scaler.
    skipped: tuple[int, ...]  # All skipped steps.
    validation_steps: tuple[int, ...]  # Steps after which validation was evaluated.
    validation_metric: tuple[float, ...]  # Primary metric on validation after these steps.

    def __post_init__(self) -> None:
        """Check that points and values belong together."""
        for steps, values in (
            (self.steps, self.loss),
            (self.steps, self.loss if self.loss_scale is None else self.loss_scale),
            (self.validation_steps, self.validation_metric),
        ):
            if len(steps) != len(values) or any(a >= b for a, b in pairwise(steps)):
                raise ValueError("steps must be ascending, with a value for each")


DISTURBED = ("shared_cores", "several_nodes", "several_gpus")  # remarks: speeds are not ranked


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Facts about all runs together, which their run records do not hold."""

    # Whether metric, margin and seeds were fixed before the first run, and the runs were trained in
    # an order in which the arms are interleaved.
    planned: bool = False
    # Numbers of seeds at which the results are analysed, planned before the first run; empty for a
    # single analysis of all seeds.
    seed_counts: tuple[int, ...] = ()
    # Whether unplanned seeds were added after results were seen.
    added_after_analysis: bool = False
    # How the arm was chosen, which seeds are omitted, and what a budget reduced.
    remarks: tuple[Remark, ...] = ()
    overhead_share: float | None = None  # Time spent comparing divided by the time of the runs.
    # Noise yardstick, as `ampft.lab.yardstick` writes it.
    yardstick: Mapping[str, JSONValue] | None = None
    # Name of the arm of each run folder, in display order, a placebo under the name of the
    # baseline; empty if the arms are modes.
    arm_names: Mapping[str, str] = field(default_factory=dict)
    runs_at_a_time: int = 1  # Number of runs that trained at the same time.
    # Name of the node of a cluster that trained each run, by its folder.
    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """A mode, other settings, or the placebo, with all its runs."""

    name: str  # Name such as "bf16"; "placebo" for the baseline with perturbed initial weights.
    mode: str  # Mode such as "bf16"; for the placebo, the mode of the baseline.
    is_placebo: bool  # Whether its initial weights were perturbed.
    execution: str  # "native", "emulated" or "unproven"; "unknown" without run records.
    executed: str | None  # Measured dtypes of the products of the first step, in one clause.
    status: str  # "complete", "unstable" (a run diverged) or "failed" (a run did not finish).
    runs: tuple[RunOutcome, ...]  # Runs in the order of their seeds.
    # Metrics by name; empty for an incomplete arm, which has no mean over its remaining runs.
    metrics: Mapping[str, MetricOverSeeds] = field(default_factory=dict)
    # Metrics of the same models predicting in float32; empty if not measured.
    metrics_fp32: Mapping[str, MetricOverSeeds] = field(default_factory=dict)
    # Difference to the baseline in the primary metric; None for the baseline and for an incomplete
    # arm.
    difference: Difference | None = None
    # Difference with the arm's models predicting in float32 (exploratory).
    difference_fp32: Difference | None = None
    speed: Speed | None = None  # Speed; None if no run finished.
    memory: Memory | None = None  # Memory; None if no run finished.
    skipped_steps: tuple[int, ...] = ()  # Skipped optimizer steps per run.
    total_steps: tuple[int, ...] = ()  # Optimizer steps per run, including skipped ones.
    # Changed predictions; None for the baseline and for an incomplete arm.
    flips: ChangedPredictions | None = None
    # Figures per class in the order of the label names; empty for an incomplete arm.
    classes: tuple[ClassFigures, ...] = ()
    # Confusion matrix summed over the seeds, labels as rows and predictions as columns; empty for
    # an incomplete arm.
    confusion: tuple[tuple[int, ...], ...] = ()
    # Bins of equal width; empty for an incomplete arm.
    calibration: tuple[CalibrationBin, ...] = ()
    curves: tuple[TrainingCurve, ...] = ()  # Training curves per run, including diverged runs.
    # Cost of predicting; None unless precisions of inference are compared.
    inference: Inference | None = None
    # Subgroups in which the arm loses most; None if they were not examined.
    subgroups: Subgroups | None = None
    # Values for readers of the settings in `Comparison.varied`, by name; empty if the arms are
    # modes.
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def status_words(self) -> str:
        """The status with the number of runs, such as "unstable, 2 of 5"."""
        return status_words([run.status for run in self.runs])

    @property
    def outcome(self) -> str:
        """The kind of its verdict: one of `OUTCOMES`; empty without a verdict."""
        if self.status != "complete":
            return BROKEN
        verdict = self.difference.verdict if self.difference else None
        return OUTCOMES.get(verdict, "") if verdict else ""

    @property
    def suspect_runs(self) -> tuple[RunOutcome, ...]:
        """The runs with warnings: models that learned nothing, or were destroyed."""
        return tuple(run for run in self.runs if run.warnings)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several arms compared with a baseline."""

    title: str  # Model and data, such as "all-MiniLM-L6-v2 on stdlib (summary)".
    metric: str  # Name of the primary metric.
    metrics: tuple[MetricInfo, ...]  # All metrics that the arms may have, in display order.
    margin: float  # Equivalence margin: the largest difference that does not matter.
    # Significance level of this analysis: 0.05, or less with several planned analyses.
    alpha: float
    seed_counts: tuple[int, ...]  # Numbers of seeds at which the results are analysed.
    seeds: tuple[int, ...]  # Compared seeds.
    split: str  # Split that the metrics come from.
    examples: int  # Number of examples of that split.
    label_names: tuple[str, ...]  # Class names in the order of the logits.
    # Arms, the baseline first, followed by the placebo if there is one.
    arms: tuple[ArmResult, ...]
    setup: Mapping[str, str]  # Settings that all runs share, as names and values for readers.
    environment: Mapping[str, str]  # Hardware and versions, as names and values for readers.
    margin_share_of_errors: float | None = None  # Margin divided by the baseline's error rate.
    # Caveats that a reader must know before the verdict: not like for like, selected, screening,
    # reduced to fit a budget, seeds omitted or added after an analysis, no plan.
    stamps: tuple[Remark, ...] = ()
    # Noise yardstick, as `ampft.lab.yardstick` writes it; None if not measured.
    yardstick: Mapping[str, JSONValue] | None = None
    # Time spent comparing divided by the time of the runs; None if unknown.
    overhead_share: float | None = None
    # Whether a plan preceded the runs, as in `PlanFacts`; False if absent from the file.
    planned: bool = False
    # Days on which the runs began, the first and the last; None if they are unknown.
    dates: tuple[str, str] | None = None
    # Command of the first run, with files only by name; None if it is unknown.
    command: str | None = None
    # What the arms are: "training" (models trained in different settings), "predictions" (tables of
    # other frameworks, without run records) or "inference" (one set of models that predicts in
    # different precisions).
    kind: str = TRAINING
    # Number of groups of examples, which are then the cases of the statistics; None if all examples
    # are independent.
    groups: int | None = None
    # Names of the settings in which the arms differ by intention: only the precision if the arms
    # are modes.
    varied: tuple[str, ...] = (PRECISION,)
    schema: int = SCHEMA  # Version of this layout.

    @property
    def noun(self) -> str:
        """What the arms are called: "mode" if they differ only in precision, otherwise "arm"."""
        return "mode" if self.varied == (PRECISION,) else "arm"

    @property
    def an_arm(self) -> str:
        """The noun with its article."""
        return "an arm" if self.noun == "arm" else f"a {self.noun}"

    @property
    def has_one_model_each(self) -> bool:
        """Whether each arm is one finished model, so that nothing is known about trainings."""
        return self.kind != INFERENCE and len(self.seeds) == 1

    @property
    def has_fixed_models(self) -> bool:
        """Whether the intervals are over examples only, and hold for these models only."""
        few_models = self.kind == INFERENCE and len(self.seeds) < MIN_SEEDS
        return few_models or self.has_one_model_each

    @property
    def heading(self) -> str:
        if self.kind == INFERENCE:
            return "Precision of inference"
        if self.kind == PREDICTIONS:
            return "Comparison of predictions"
        return "Precision comparison" if self.noun == "mode" else "Comparison of settings"

    @property
    def baseline(self) -> ArmResult:
        """The arm that all others are compared with."""
        return self.arms[0]

    @property
    def primary(self) -> MetricInfo:
        return next(info for info in self.metrics if info.name == self.metric)

    @property
    def units(self) -> Units:
        """Format of the primary metric and its differences."""
        title, is_share = self.primary.title, self.primary.is_share
        return Units(title, self.margin, is_share, largest=1.0 if is_share else None)

    @property
    def placebo_speed(self) -> float | None:
        """The speed of the placebo relative to the baseline, which it should have."""
        speeds = [arm.speed for arm in self.arms if arm.is_placebo and arm.speed]
        return next((each.speed_up.ratio for each in speeds if each.speed_up), None)

    @property
    def has_disturbed_speeds(self) -> bool:
        """Whether several runs shared the cores of a machine, or ran on GPUs of several kinds."""
        return any(each.kind in DISTURBED for each in self.stamps)

    @property
    def has_reliable_speeds(self) -> bool:
        """Whether nothing disturbed the speeds, as far as the plan and the placebo show it."""
        if self.has_disturbed_speeds:
            return False
        return self.placebo_speed is None or is_reliable_speed(self.placebo_speed)

    def arm(self, name: str) -> ArmResult:
        """Return the arm of that name.

        Raises:
            KeyError: No arm has that name.
        """
        return {arm.name: arm for arm in self.arms}[name]
