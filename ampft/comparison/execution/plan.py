"""What a comparison does: its arms, its seeds, which run comes after which; and plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampft.comparison.arms import Arm, arms_of
from ampft.comparison.execution.estimate import Estimate, Size
from ampft.comparison.findings import PlanFacts
from ampft.errors import InputError
from ampft.precision.modes import TABLE
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue, check_schema, from_json, read_json_object

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


PLAN_NAME = "plan.json"

# What a folder's plan and a command have to agree in; the classify settings come on top.
QUESTION = ("modes", "first_seed", "metric", "margin", "placebo", "config_file", "budget")
FLAGS = {"first_seed": "seed"}


def read_plan(folder: Path) -> Plan | None:
    """Return the plan of a comparison's folder; None where there is none.

    Raises:
        InputError: plan.json exists and cannot be read.
    """
    path = folder / PLAN_NAME
    try:
        values = read_json_object(path)
        check_schema(path, values, SCHEMA, "Name another --output_dir.")
        return from_json(Plan, values, "plan")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: is not a plan as a comparison writes it ({type(error).__name__}: {error}). "
            "Name another --output_dir, or remove the file with the runs beside it."
        ) from error


def difference(kept: Plan, asked: Mapping[str, Any]) -> str | None:
    """Return what a command asks for that the plan in its folder does not have; None for nothing.

    Args:
        kept: The plan in the folder.
        asked: Names of `QUESTION`, `looks` and `arguments`; a value of None for `modes` asks for
            those of the plan.
    """
    for name in QUESTION:
        if name == "modes" and asked[name] is None:
            continue
        if getattr(kept, name) != asked[name]:
            return _said(FLAGS.get(name, name), getattr(kept, name), asked[name])
    ours: Mapping[str, Any] = asked["arguments"]
    for name in sorted(set(ours) & set(kept.arguments)):
        if kept.arguments[name] != ours[name]:
            return _said(name, kept.arguments[name], ours[name])
    if not _extends(kept.looks, asked["looks"]):
        return _said("seeds", kept.looks, asked["looks"])
    return None


def _extends(planned: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether nothing changes, or there are more seeds and every new look lies among those."""
    new = [look for look in wanted if look not in planned]
    return wanted == planned or (wanted[-1] > planned[-1] and min(new) > planned[-1])


def _said(name: str, kept: object, asked: object) -> str:
    return f"--{name} was {_shown(kept)} there and is {_shown(asked)} now"


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    return inert(",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def with_looks(kept: Plan, looks: tuple[int, ...]) -> Plan:
    """Return the plan with more seeds; stamped where results had been looked at before."""
    if looks == kept.looks:
        return kept
    stamped = kept.added_after_look or bool(kept.looks_taken)
    return replace(kept, looks=looks, added_after_look=stamped)
