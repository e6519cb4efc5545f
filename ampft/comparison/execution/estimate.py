"""How long the runs of a comparison take, from a few measured steps, and what fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ampft.errors import InputError
from ampft.precision.modes import BASELINE
from ampft.text.numbers import about, counted

# A class needs a few examples to be learned at all.
LEAST_EXAMPLES_OF_A_CLASS = 8


@dataclass(frozen=True, kw_only=True)
class ModeCost:
    """What a mode takes: seconds per optimizer step, and per example of an evaluation."""

    step: float
    evaluated_example: float


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much a run trains on.

    Attributes:
        epochs: Passes over the training data.
        train_examples: In the training split.
        max_steps: Optimizer steps after which to stop; None for whole epochs.
    """

    epochs: int
    train_examples: int
    max_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What was measured before the first run.

    Attributes:
        startup: Seconds from launching a process to its first step.
        modes: Cost by mode.
        executions: "native" or "emulated", by mode.
        device: Words such as "CPU, 2 threads".
        size: Of a run as it was asked for.
        effective_batch_size: Examples of an optimizer step, over all processes.
        validation_examples: Evaluated after each epoch; 0 for none.
        final_examples: Of the final report, in its own precision and in fp32.
        classes: Number of labels.
        model_bytes: A saved model has.
    """

    startup: float
    modes: Mapping[str, ModeCost]
    executions: Mapping[str, str]
    device: str
    size: Size
    effective_batch_size: int
    validation_examples: int
    final_examples: int
    classes: int
    model_bytes: int

    def steps_per_epoch(self, size: Size) -> int:
        """Return the optimizer steps of an epoch; the last one may be short."""
        return -(-size.train_examples // self.effective_batch_size)

    def total_steps(self, size: Size) -> int:
        """Return the optimizer steps of a run."""
        return size.max_steps or size.epochs * self.steps_per_epoch(size)

    def run_seconds(self, mode: str, size: Size) -> float:
        """Return the seconds of a run in `mode`, from its launch to its end."""
        cost = self.modes[mode]
        steps = self.total_steps(size)
        epochs = -(-steps // self.steps_per_epoch(size))
        evaluated = epochs * self.validation_examples + self.final_examples
        in_fp32 = self.final_examples * self.modes[BASELINE].evaluated_example
        return self.startup + steps * cost.step + evaluated * cost.evaluated_example + in_fp32

    def total_seconds(self, modes: Sequence[str], size: Size) -> float:
        """Return the seconds of one run in each of `modes`; a mode may occur several times."""
        return sum(self.run_seconds(mode, size) for mode in modes)

    def least_examples(self) -> int:
        """Return the fewest training examples that a budget may leave."""
        least = max(self.effective_batch_size, LEAST_EXAMPLES_OF_A_CLASS * self.classes)
        return min(least, self.size.train_examples)


@dataclass(frozen=True)
class Fitted:
    """A size within a budget: settings of classify.py that make it, and a sentence for each."""

    size: Size
    overrides: Mapping[str, int]
    sentences: tuple[str, ...]


def fit(estimate: Estimate, modes: Sequence[str], budget: float | None) -> Fitted:
    """Reduce epochs (or steps, where they are what ends a run), then training examples.

    Never seeds, which carry the answer, and never evaluation data, which carry its precision.

    Args:
        estimate: Measured.
        modes: Of every run of the comparison, a mode as often as it runs.
        budget: Seconds for all of them; None for as long as it takes.

    Raises:
        InputError: Even the least takes longer.
    """
    asked = estimate.size
    if budget is None or estimate.total_seconds(modes, asked) <= budget:
        return Fitted(asked, {}, ())

    def within(size: Size) -> bool:
        return estimate.total_seconds(modes, size) <= budget

    if asked.max_steps:
        steps = _largest(1, asked.max_steps, lambda n: within(replace(asked, max_steps=n)))
        if steps is None:
            raise _too_little(estimate, modes, replace(asked, max_steps=1), budget)
        return _fitted(asked, replace(asked, max_steps=steps))
    epochs = _largest(1, asked.epochs, lambda n: within(replace(asked, epochs=n)))
    if epochs is not None:
        return _fitted(asked, replace(asked, epochs=epochs))
    once = replace(asked, epochs=1)
    least = estimate.least_examples()
    examples = _largest(
        least, asked.train_examples, lambda n: within(replace(once, train_examples=n))
    )
    if examples is None:
        raise _too_little(estimate, modes, replace(once, train_examples=least), budget)
    return _fitted(asked, replace(once, train_examples=examples))


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest whole number from `low` to `high` that fits, by bisection."""
    if not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _fitted(asked: Size, size: Size) -> Fitted:
    changes = {
        "num_train_epochs": (asked.epochs, size.epochs),
        "max_train_steps": (asked.max_steps, size.max_steps),
        "max_train_samples": (asked.train_examples, size.train_examples),
    }
    overrides, sentences = {}, []
    for name, (before, after) in changes.items():
        if before != after and after is not None:
            overrides[name] = after
            sentences.append(f"--{name} {after} in place of {before}, to fit the budget.")
    return Fitted(size, overrides, tuple(sentences))


def _too_little(estimate: Estimate, modes: Sequence[str], least: Size, budget: float) -> InputError:
    needed = estimate.total_seconds(modes, least)
    kept = counted(estimate.total_steps(least), "optimizer step")
    return InputError(
        f"--budget: {about(max(budget, 0))} are left for {counted(len(modes), 'run')}, and even "
        f"with {kept} each they take about {about(needed)}. Give at least that, fewer --modes, "
        "or leave --budget away: it never takes away seeds or evaluation data."
    )
