"""Schedules of an own loop: advanced by steps, epochs or a metric, or set by the loop itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ampft.engine.optimizer import rate_of
from ampft.errors import InputError

STEP, EPOCH, METRIC = "step", "epoch", "metric"
EVERY = (STEP, EPOCH, METRIC)
ADVANCED = {STEP: "each applied step", EPOCH: "each epoch", METRIC: "each validation"}

# Attributes of a schedule that change as it advances.
MOVING = (
    *("_get_lr_called_within_step", "_is_initial", "_last_lr", "_step_count", "last_epoch"),
    *("best", "cooldown_counter", "num_bad_epochs"),
)

ScheduleSource = LRScheduler | Callable[[Optimizer], LRScheduler] | None
"""A schedule of an optimizer, or a function that makes it; None if the loop sets the rate."""


@dataclass
class OwnSchedule:
    """What changes the learning rate of an optimizer besides the loop itself, and when."""

    optimizer: Optimizer  # The optimizer, not prepared.
    schedule: LRScheduler | None  # Its schedule; None if only the loop sets the rate.
    every: str = STEP  # What advances it: a key of `ADVANCED`.
    last_epoch: int = 0  # Number of applied steps; schedules of torch use this name.
    has_moved: bool = False  # Whether it has been advanced.

    def step(self) -> None:
        """Take note of an applied step."""
        self.last_epoch += 1
        self._advance(STEP)

    def end_epoch(self) -> None:
        """Take note of the end of an epoch."""
        self._advance(EPOCH)

    def follow(self, value: float) -> None:
        """Take note of a value of the metric that it follows."""
        self._advance(METRIC, value)

    def _advance(self, event: str, *values: float) -> None:
        if self.schedule is not None and self.every == event:
            self.has_moved = True
            self.schedule.step(*values)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        inner = {} if self.schedule is None else as_json(self.schedule.state_dict())
        return {"applied": self.last_epoch, "has_moved": int(self.has_moved), "schedule": inner}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restore the state; the optimizer has its own."""
        self.last_epoch, self.has_moved = values["applied"], bool(values["has_moved"])
        if self.schedule is not None:
            inner = from_json(self.schedule.state_dict(), values["schedule"])
            self.schedule.load_state_dict(inner)

    def __str__(self) -> str:
        if self.schedule is None:
            return "set by the loop"
        return f"{_described(self.schedule)}, advanced by {ADVANCED[self.every]}"


def as_json(value: Any) -> Any:
    """Return a state of a schedule as JSON values; keys can be numbers, such as milestones."""
    if isinstance(value, Mapping):
        if all(isinstance(name, str) for name in value):
            return {name: as_json(part) for name, part in value.items()}
        return [[name, as_json(part)] for name, part in value.items()]
    return [as_json(part) for part in value] if isinstance(value, list | tuple) else value


def from_json(form: Any, value: Any) -> Any:
    """Return what `as_json` was given, in the types of a state of the same schedule."""
    if isinstance(form, Mapping):
        pairs = value.items() if isinstance(value, Mapping) else value
        return type(form)({name: from_json(form.get(name), part) for name, part in pairs})  # type: ignore[call-arg]
    if isinstance(form, list | tuple) and len(form) == len(value):
        return type(form)(from_json(*pair) for pair in zip(form, value, strict=True))
    return value


@dataclass(frozen=True)
class JointSchedule:
    """The schedules of several optimizers as one, for checkpoints."""

    parts: Mapping[str, OwnSchedule]  # Schedules by the names of the optimizers.

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all schedules by name."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restore all schedules."""
        for name, part in self.parts.items():
            part.load_state_dict(dict(values[name]))


def make_schedules(
    optimizers: Mapping[str, Optimizer],
    schedule: ScheduleSource | Mapping[str, ScheduleSource],
    *,
    every: str | None,
    epochs: int,
    steps: int,
) -> dict[str, OwnSchedule]:
    """Return the schedule of each optimizer.

    Args:
        every: What advances them; None to decide by their constants.
        epochs: Number of epochs of the training.
        steps: Number of its optimizer steps.

    Raises:
        InputError: A schedule belongs to another optimizer, or to none, or is not one of torch; or
            its constants do not say whether it counts steps or epochs.
    """
    sources = schedule if isinstance(schedule, Mapping) else dict.fromkeys(optimizers, schedule)
    if unknown := sorted(sources.keys() - optimizers.keys()):
        raise InputError(
            f"schedule: {', '.join(unknown)} names no optimizer. They are {', '.join(optimizers)}."
        )
    made: dict[str, OwnSchedule] = {}
    for name, optimizer in optimizers.items():
        source = sources.get(name)
        if source is None:
            made[name] = OwnSchedule(optimizer, None)
            continue
        inner: Any = source
        if callable(source) and not isinstance(source, LRScheduler):
            inner = source(optimizer)
        if not isinstance(inner, LRScheduler):
            raise InputError(
                f"schedule: received {type(inner).__name__}. Pass a schedule of "
                "torch.optim.lr_scheduler, or a function that makes one for an optimizer. Advance "
                "any other schedule in the loop, without schedule=."
            )
        if getattr(inner, "optimizer", None) is not optimizer:
            raise InputError("schedule: it was made for another optimizer than the one passed.")
        chosen = advanced_by(inner, every=every, epochs=epochs, steps=steps)
        made[name] = OwnSchedule(optimizer, inner, chosen)
    return made


def advanced_by(schedule: LRScheduler, *, every: str | None, epochs: int, steps: int) -> str:
    """Return what advances a schedule: each applied step, each epoch, or each validation.

    A schedule says neither. Its length tells if it is that of the training, in steps or in epochs.
    Otherwise, schedules of torch that fit into the epochs count epochs, as torch documents them,
    and schedules that torch documents for batches, and those of other packages, count steps.

    Raises:
        InputError: `every` does not fit the schedule; or it is None, and the schedule is longer
            than the epochs, and not as long as the steps.
    """
    if isinstance(schedule, ReduceLROnPlateau):
        if every not in (None, METRIC):
            raise InputError(
                f"schedule_every: received {every!r} for ReduceLROnPlateau, which follows a "
                "metric. Leave it out; training.validated(...) advances it."
            )
        return METRIC
    if every is not None:
        if every == METRIC or every not in EVERY:
            raise InputError(
                f'schedule_every: received {every!r} for {type(schedule).__name__}. Pass "step" or '
                '"epoch".'
            )
        return every
    if type(schedule).__module__ != lr_scheduler.__name__ or not _may_count_epochs(schedule):
        return STEP
    length = _length(schedule)
    if length in (steps, steps + 1):
        return STEP
    if length is None or length <= epochs:
        if not _calls_own_functions(schedule):
            return EPOCH
        length = None
    raise InputError(
        f"schedule: {_described(schedule)} can count steps or epochs"
        + (
            ". "
            if length is None
            else f", and its length of {length} is neither the {steps} steps nor within the "
            f"{epochs} epochs. "
        )
        + 'Pass schedule_every="step" to advance it by each applied step, or '
        'schedule_every="epoch" for each epoch.'
    )


def _may_count_epochs(schedule: LRScheduler) -> bool:
    """Return whether torch documents a schedule for epochs, or its functions say so."""
    if isinstance(schedule, lr_scheduler.OneCycleLR | lr_scheduler.CyclicLR):
        return False
    if _calls_own_functions(schedule):
        functions = getattr(schedule, "lr_lambdas", ())
        return any("epoch" in name for each in functions for name in _first_parameter(each))
    return True


def _calls_own_functions(schedule: LRScheduler) -> bool:
    return isinstance(schedule, lr_scheduler.LambdaLR | lr_scheduler.MultiplicativeLR)


def _first_parameter(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)[:1]
    except (TypeError, ValueError):  # of a function that is not Python's
        return []


# Attributes with the number of times that a schedule is advanced until it has ended.
_LENGTHS = ("T_max", "total_steps", "total_iters", "T_0", "step_size")


def _length(schedule: LRScheduler) -> int | None:
    """Return how often a schedule is advanced until it has ended, or acts first; None if never."""
    parts = [_length(each) for each in getattr(schedule, "_schedulers", ())]
    if parts:
        started = max(getattr(schedule, "_milestones", (0,)), default=0)
        lengths = [each for each in (parts[-1:] if started else parts) if each is not None]
        return started + max(lengths, default=0)
    if isinstance(schedule, lr_scheduler.MultiStepLR):
        return max(schedule.milestones, default=0)
    found = [getattr(schedule, name) for name in _LENGTHS if hasattr(schedule, name)]
    return int(found[0]) if found else None


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rate of each group of parameters."""
    return tuple(map(rate_of, optimizer.param_groups))


def _described(schedule: LRScheduler) -> str:
    """Return the kind of a schedule and its constants, before its first step; not its functions."""
    parts = [_described(each) for each in getattr(schedule, "_schedulers", ())]
    parts += [
        f"{name}={value}"
        for name, value in sorted(vars(schedule).items())
        if name not in (*MOVING, "_schedulers", "lr_lambdas")
        if isinstance(value, int | float | str | list | tuple | Mapping)
    ]
    return f"{type(schedule).__name__}({', '.join(parts)})"
