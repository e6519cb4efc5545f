"""What a comparison does: its arms, its seeds, which run comes after which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ampft.comparison.arms import Arm, arms_of
from ampft.comparison.execution.estimate import Estimate, Size
from ampft.comparison.findings import PlanFacts
from ampft.precision.modes import TABLE
from ampft.text.json_io import JSONValue

SCHEMA = 1


@dataclass(frozen=True)
class PlannedRun:
    """One training: an arm at a seed."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Of its folder and its log."""
        return f"{self.arm.name}-seed{self.seed}"

    @property
    def words(self) -> tuple[str, ...]:
        """What tells it from the other runs, as flags of classify.py."""
        words = ["--mixed_precision", self.arm.mode, "--seed", str(self.seed)]
        if not TABLE[self.arm.mode].replaces_layers:
            words.append("--evaluate_fp32")
        return (*words, *["--perturb_initial_weights"] * self.arm.is_perturbed)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison as it was planned, and as far as it has come; `plan.json`.

    Attributes:
        modes: The baseline first.
        first_seed: Of the runs; the others follow it.
        looks: Numbers of seeds at which results are analysed; the last one is all of them.
        metric: The primary metric.
        margin: Differences within it count as none, a fraction (0.01 is one point).
        placebo: Whether the baseline runs once more with perturbed initial weights.
        arguments: Settings of classify.py as they were parsed; secrets withheld.
        config_file: Of Accelerate.
        budget: Seconds; None for as long as it takes.
        estimate: Measured before the first run.
        size: Of each run, after the budget.
        overrides: Settings that the budget changes.
        reductions: A sentence for each of them.
        notes: What else was decided, such as that fp32 was added.
        looks_taken: Numbers of seeds that were complete when results were analysed.
        added_after_look: Whether seeds were added that no plan named, after results were seen.
        runs_seconds: Time of the runs so far, launch to end.
        own_seconds: Time of comparing so far: all that is none of the runs, nor the yardstick.
        yardstick_seconds: Time of the noise yardstick.
        written: When the plan was made, ISO 8601, UTC.
        schema: Version of this layout.
    """

    modes: tuple[str, ...]
    first_seed: int
    looks: tuple[int, ...]
    metric: str
    margin: float
    placebo: bool
    arguments: Mapping[str, Any]
    config_file: str | None
    budget: float | None
    estimate: Estimate
    size: Size
    overrides: Mapping[str, int] = field(default_factory=dict)
    reductions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    looks_taken: tuple[int, ...] = ()
    added_after_look: bool = False
    runs_seconds: float = 0.0
    own_seconds: float = 0.0
    yardstick_seconds: float = 0.0
    written: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, its placebo, the other modes."""
        return arms_of(self.modes, placebo=self.placebo)

    def runs(self, seeds: int | None = None) -> tuple[PlannedRun, ...]:
        """Return the runs of the first `seeds` seeds in their order; None for all seeds."""
        count = self.looks[-1] if seeds is None else seeds
        return interleaved(self.arms, range(self.first_seed, self.first_seed + count))

    def expected_seconds(self, run: PlannedRun) -> float:
        """Return what a run takes by the estimate."""
        return self.estimate.run_seconds(run.arm.mode, self.size)

    @property
    def overhead_share(self) -> float | None:
        """Time of comparing over the time of the runs; None before the first run has ended."""
        return self.own_seconds / self.runs_seconds if self.runs_seconds else None

    def looked(self, seeds: int) -> Plan:
        """Return the plan after results of `seeds` complete seeds were analysed.

        To analyse the same results again is no further look.
        """
        if seeds in self.looks_taken:
            return self
        return replace(self, looks_taken=(*self.looks_taken, seeds))

    def facts(
        self, yardstick: Mapping[str, JSONValue] | None, *, lacking: tuple[str, ...] = ()
    ) -> PlanFacts:
        """Return what the analysis has to know of the plan; arguments as `PlanFacts` has them."""
        return PlanFacts(
            planned=True,
            looks=self.looks,
            added_after_look=self.added_after_look,
            reductions=self.reductions,
            lacking=lacking,
            overhead_share=self.overhead_share,
            yardstick=yardstick,
        )


def interleaved(of: tuple[Arm, ...], seeds: range) -> tuple[PlannedRun, ...]:
    """Return every arm at every seed, seed by seed.

    The order of the arms is rotated from seed to seed, so that a machine's drift hits all alike:
    over as many seeds as there are arms, each arm stands once at each place.
    """
    return tuple(
        PlannedRun(of[(place + turn) % len(of)], seed)
        for turn, seed in enumerate(seeds)
        for place in range(len(of))
    )
