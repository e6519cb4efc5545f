"""What a comparison found: everything that its reports show, and nothing that they compute.

`comparison.json` is this module's `Comparison` as JSON. Shares, metrics and differences are
fractions (0.01 is one point), times are seconds, sizes are bytes; `None` is what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampft.comparison.figures import (
    CalibrationBin,
    ClassFigures,
    Curve,
    Difference,
    FlippedExample,
    Flips,
    Memory,
    MetricValues,
    RunOutcome,
    Speed,
)
from ampft.text.json_io import JSONValue

__all__ = [
    "COMPARISON_NAME",
    "SCHEMA",
    "Arm",
    "CalibrationBin",
    "ClassFigures",
    "Comparison",
    "Curve",
    "Difference",
    "FlippedExample",
    "Flips",
    "Memory",
    "MetricValues",
    "PlanFacts",
    "RunOutcome",
    "Speed",
]

SCHEMA = 1
COMPARISON_NAME = "comparison.json"


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
class Arm:
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
        metrics: By name: accuracy, macro_f1, balanced_accuracy, matthews, log_loss, brier, ece;
            empty for an arm that is not complete, which gets no mean over its survivors.
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
        metric: The primary metric: accuracy or macro_f1.
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
    margin: float
    margin_share_of_errors: float | None
    alpha: float
    looks: tuple[int, ...]
    seeds: tuple[int, ...]
    split: str
    examples: int
    label_names: tuple[str, ...]
    arms: tuple[Arm, ...]
    verdicts: tuple[str, ...]
    stamps: tuple[str, ...]
    setup: Mapping[str, str]
    environment: Mapping[str, str]
    yardstick: Mapping[str, JSONValue] | None
    overhead_share: float | None
    planned: bool = False
    schema: int = SCHEMA

    @property
    def baseline(self) -> Arm:
        """The arm that all others are compared with."""
        return self.arms[0]

    def arm(self, name: str) -> Arm:
        """Return the arm of that name.

        Raises:
            KeyError: There is none.
        """
        return {arm.name: arm for arm in self.arms}[name]
