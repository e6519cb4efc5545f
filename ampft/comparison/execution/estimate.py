"""Estimate how long the runs of a comparison take, and reduce them to fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ampft.comparison.remarks import Remark, remark
from ampft.errors import InputError
from ampft.precision.modes import BASELINE
from ampft.text.json_io import Count, NotNegative, Positive
from ampft.text.numbers import approximate_duration, counted

# A model cannot learn a class from fewer examples.
MIN_EXAMPLES_PER_CLASS = 8


@dataclass(frozen=True, kw_only=True)
class ModeCost:
    """Cost of a mode: seconds per optimizer step, and per example in evaluation."""

    step: NotNegative
    evaluated_example: NotNegative


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much a run trains on.

    Attributes:
        epochs: Passes over the training data.
        train_examples: Number of training examples.
        max_steps: Number of optimizer steps; None trains for `epochs`.
    """

    epochs: Positive
    train_examples: Positive
    max_steps: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Measurements taken before the first run.

    Attributes:
        startup: Seconds from launching a process to its first step.
        modes: Cost by mode.
        executions: "native", "emulated" or "unproven", by mode.
        device: Description such as "CPU, 2 threads".
        size: Requested size of a run.
        effective_batch_size: Examples per optimizer step, over all processes.
        validation_examples: Examples of each validation; 0 for none.
        final_examples: Examples of the final report, evaluated in the mode and again in fp32.
        classes: Number of classes.
        model_bytes: Size of a saved model in bytes.
        eval_steps: Optimizer steps between validations; None validates after each epoch.
        evaluates_fp32: Whether runs also predict the final split in fp32.
        cases: Number of independent examples of the final report: groups count once; None in plans
            of earlier versions.
        peak_bytes: Peak resident memory of the process that took the measurements, in bytes; 0 if
            it is unknown.
    """

    startup: NotNegative
    modes: Mapping[str, ModeCost]
    executions: Mapping[str, str]
    device: str
    size: Size
    effective_batch_size: Positive
    validation_examples: Count
    final_examples: Count
    classes: Count
    model_bytes: Count
    eval_steps: Positive | None = None
    evaluates_fp32: bool = True
    cases: int | None = None
    peak_bytes: Count = 0

    def steps_per_epoch(self, size: Size) -> int:
        """Return the optimizer steps per epoch, including a short last one."""
        return -(-size.train_examples // self.effective_batch_size)

    def total_steps(self, size: Size) -> int:
        """Return the optimizer steps of a run."""
        return size.max_steps or size.epochs * self.steps_per_epoch(size)

    def run_seconds(self, mode: str, size: Size) -> float:
        """Return the seconds of a run in `mode`, from launch to end."""
        cost = self.modes[mode]
        steps = self.total_steps(size)
        validations = -(-steps // (self.eval_steps or self.steps_per_epoch(size)))
        evaluated = validations * self.validation_examples + self.final_examples
        in_fp32 = 0.0
        if self.evaluates_fp32:
            in_fp32 = self.final_examples * self.modes[BASELINE].evaluated_example
        return self.startup + steps * cost.step + evaluated * cost.evaluated_example + in_fp32

    def min_examples(self) -> int:
        """Return the minimum number of training examples that a budget may leave."""
        needed = max(self.effective_batch_size, MIN_EXAMPLES_PER_CLASS * self.classes)
        return min(needed, self.size.train_examples)


KIND_OF_LABELS = "kind of labels"


@dataclass(frozen=True)
class TrialResult:
    """The result of the trial.

    Attributes:
        estimate: Measured costs.
        modes: Requested modes, or the available default modes.
        splits: Fingerprints of the splits of the data, by name.
        compared: What must be equal in all runs of a comparison, as names and values for readers:
            the split of the final report, its contents, and the classes.
        peak_memory: Peak memory of a process on its device after the longest step, in bytes; None
            if it cannot be measured.
        disk_bytes: Size of the weights and checkpoints that a run saves.
    """

    estimate: Estimate
    modes: tuple[str, ...]
    splits: Mapping[str, str]
    compared: Mapping[str, str]
    peak_memory: Count | None = None
    disk_bytes: Count = 0


class ExpectedRun(NamedTuple):
    """A run whose duration is to be estimated."""

    estimate: Estimate
    mode: str


def total_seconds(runs: Iterable[ExpectedRun], size: Size | None = None) -> float:
    """Return the total seconds of runs of this size; None stands for the size of each."""
    return sum(run.estimate.run_seconds(run.mode, size or run.estimate.size) for run in runs)


@dataclass(frozen=True)
class Fitted:
    """A run size within a budget.

    Attributes:
        size: The size.
        overrides: Settings of classify.py that produce it.
        reductions: One remark per override.
    """

    size: Size
    overrides: Mapping[str, int]
    reductions: tuple[Remark, ...]


def fit(runs: Sequence[ExpectedRun], budget: float | None) -> Fitted:
    """Reduce the epochs (or the steps, if they limit the run), then the training examples.

    Seeds and evaluation data are never reduced: the precision of the result depends on them.

    Args:
        runs: All runs of the comparison, a run of the baseline first.
        budget: Seconds for all runs; None for no limit.

    Raises:
        InputError: Even the minimum size exceeds the budget, or the runs differ in size.
    """
    requested = runs[0].estimate.size
    if budget is None or total_seconds(runs) <= budget:
        return Fitted(requested, {}, ())
    if any(run.estimate.size != requested for run in runs):
        raise InputError(
            f"--budget: {approximate_duration(max(budget, 0))} are left, but the runs take about "
            f"{approximate_duration(total_seconds(runs))}, and their arms differ in the length of "
            "training, which a budget would have to change. Increase the budget, or shorten the "
            "training of the arms."
        )

    def within(size: Size) -> bool:
        return total_seconds(runs, size) <= budget

    if requested.max_steps:
        steps = _largest(1, requested.max_steps, lambda n: within(replace(requested, max_steps=n)))
        if steps is None:
            raise _budget_error(runs, replace(requested, max_steps=1), budget)
        return _fitted(requested, replace(requested, max_steps=steps))
    epochs = _largest(1, requested.epochs, lambda n: within(replace(requested, epochs=n)))
    if epochs is not None:
        return _fitted(requested, replace(requested, epochs=epochs))
    one_epoch = replace(requested, epochs=1)
    fewest = max(run.estimate.min_examples() for run in runs)
    examples = _largest(
        fewest, requested.train_examples, lambda n: within(replace(one_epoch, train_examples=n))
    )
    if examples is None:
        raise _budget_error(runs, replace(one_epoch, train_examples=fewest), budget)
    return _fitted(requested, replace(one_epoch, train_examples=examples))


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest integer from `low` to `high` that fits; None if none does (bisection)."""
    if not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _fitted(requested: Size, size: Size) -> Fitted:
    changes = {
        "num_train_epochs": (requested.epochs, size.epochs),
        "max_train_steps": (requested.max_steps, size.max_steps),
        "max_train_samples": (requested.train_examples, size.train_examples),
    }
    overrides, reductions = {}, []
    for name, (before, after) in changes.items():
        if before != after and after is not None:
            overrides[name] = after
            reductions.append(remark("reduced", flag=name, before=before, after=after))
    return Fitted(size, overrides, tuple(reductions))


def _budget_error(runs: Sequence[ExpectedRun], minimum: Size, budget: float) -> InputError:
    needed = total_seconds(runs, minimum)
    steps = counted(runs[0].estimate.total_steps(minimum), "optimizer step")
    return InputError(
        f"--budget: {approximate_duration(max(budget, 0))} are left for "
        f"{counted(len(runs), 'run')}, but even with {steps} each, they take about "
        f"{approximate_duration(needed)}. Increase the budget, name fewer "
        "arms, or remove --budget. A budget never reduces seeds or evaluation data."
    )
