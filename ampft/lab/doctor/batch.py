"""Examines a batch in a precision: its first fault, judged by what float32 does there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ampft.checks.harm import GradientChange
from ampft.engine.step import MIN_LOSS_SCALE
from ampft.lab.doctor.case import ExaminedModel
from ampft.lab.doctor.causes import OVERFLOWS, UNDERFLOWS, remedy_for
from ampft.lab.doctor.diagnosis import Cause, Fault
from ampft.lab.doctor.places import BatchShape
from ampft.lab.doctor.ranges import ExponentCounts, largest_scale
from ampft.lab.doctor.watch import Key, NonfiniteEvent, OperationWatch
from ampft.precision.tf32 import float32_policy

MAX_TOKENS = 20  # positions that a fault lists
_OF_MASKS = (Cause.EMPTY_SOFTMAX, Cause.INFINITIES)


@dataclass
class Examination:
    """What one process found; several are merged before a diagnosis is made."""

    ids: set[int] = field(default_factory=set)  # Example ids.
    batches: int = 0  # Number of batches.
    # Largest loss scale at which all batches had finite gradients; None if there is none.
    scale: float | None = None
    # Values by module and direction, in float32.
    values: dict[tuple[str, str], ExponentCounts] = field(default_factory=dict)
    # Values of all gradients, in float32.
    gradients: ExponentCounts = field(default_factory=ExponentCounts)
    faults: list[Fault] = field(default_factory=list)  # Faults, the first one first.
    # What the mode does to the gradients of the batches that are finite.
    changes: list[GradientChange] = field(default_factory=list)
    # Faults that neither the loss nor the gradient shows. They are harmful only if the gradient has
    # another direction.
    absorbed: list[Fault] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing harmful was found."""
        return all(fault.is_harmless for fault in self.faults)

    def add_fault(self, fault: Fault) -> None:
        """Add a fault, or its examples to the same fault of another batch."""
        for position, known in enumerate(self.faults):
            same = (known.module, known.direction, known.operation, known.cause)
            if same == (fault.module, fault.direction, fault.operation, fault.cause):
                self.faults[position] = _joined(known, fault)
                return
        self.faults.append(fault)

    def merge(self, other: Examination) -> None:
        """Add what another process found."""
        for key, values in other.values.items():
            self.values.setdefault(key, ExponentCounts()).merge(values)
        self.gradients.merge(other.gradients)
        for fault in other.faults:
            self.add_fault(fault)
        self.scale = least_scale((self.scale, other.scale))
        self.changes += other.changes
        self.batches += other.batches
        self.ids |= other.ids


def _joined(one: Fault, other: Fault) -> Fault:
    sizes = [size for size in (one.largest, other.largest) if size is not None]
    in_float32 = one.in_float32 or other.in_float32
    return replace(
        one,
        largest=max(sizes, default=None),
        in_float32=in_float32,
        example_ids=tuple(sorted({*one.example_ids, *other.example_ids})),
        tokens=tuple(sorted({*one.tokens, *other.tokens}))[:MAX_TOKENS],
        remedy=other.remedy if in_float32 and not one.in_float32 else one.remedy,
    )


def least_scale(scales: Sequence[float | None]) -> float | None:
    """Return the smallest loss scale; None if one is None."""
    known = [scale for scale in scales if scale is not None]
    return None if len(known) < len(scales) else min(known)


@dataclass(frozen=True)
class WatchedPass:
    """One forward and backward pass of a batch in a mode."""

    # Operations that made the loss, or otherwise the gradient, not finite.
    events: Sequence[NonfiniteEvent]
    reaches: str  # `loss` or `gradient`; empty if both are finite.
    watch: OperationWatch  # The watch, after the pass.

    @property
    def origins(self) -> Sequence[NonfiniteEvent]:
        """The operations that failed, in order; masks only if nothing else did."""
        return [event for event in self.events if not event.is_mask] or self.events[:1]


class BatchExamination:
    """The examination of one batch.

    Args:
        case: The case.
        index: Number of the batch.
        shape: Its layout.
        found: What was found before, with values in float32 if they are known; faults are added.
    """

    def __init__(
        self, case: ExaminedModel, index: int, shape: BatchShape, found: Examination
    ) -> None:
        self._case, self._index, self._shape, self._found = case, index, shape, found
        self._plain = case.in_float32()
        self._twins: dict[Key, WatchedPass] = {}

    def examine(self, scale: float | None) -> float | None:
        """Find the faults of the batch.

        Args:
            scale: Loss scale at which to start; None without one.

        Returns:
            The scale of a finite gradient; None if there is none.
        """
        attempt = self._attempt(self._case, scale)
        if attempt.reaches == "gradient" and scale is not None:
            scale, lower = self._at_lower_scale(scale)
            if not self._case.uses_scaler and scale is not None:
                self._found.add_fault(self._fault(attempt, attempt.origins[0], Cause.LARGE_SCALE))
            attempt = lower
        if not attempt.reaches:
            self._find_absorbed(attempt)
            return scale
        first = attempt.origins[0]
        self._found.add_fault(self._fault(attempt, first))
        if self._fails_in_float32(first):  # the precision can have its own fault
            others = (each for each in attempt.origins[1:] if not self._fails_in_float32(each))
            own = next(others, None)
            if own is not None:
                self._found.add_fault(self._fault(attempt, own))
        elif (twin := self._twin(first)).reaches:  # float32 has another fault
            self._twins.setdefault(twin.origins[0].key, twin)
            self._found.add_fault(replace(self._fault(twin, twin.origins[0]), in_float32=True))
        return scale

    def _attempt(
        self, case: ExaminedModel, scale: float | None = None, probe: Key | None = None
    ) -> WatchedPass:
        model, batch = case.model, case.batches[self._index]
        model.zero_grad(set_to_none=True)
        case.begin(self._index)
        watch = OperationWatch(model, self._shape, batch, probe)
        with float32_policy(case.precision), watch:
            try:
                loss = case.differentiate(batch, scale=scale or 1.0)
            except RuntimeError:
                if not watch.has_failed:
                    raise
                return WatchedPass(watch.events[-1:], "loss", watch)
        if not bool(loss.isfinite().all()):
            return WatchedPass(watch.events_of([loss]) or watch.events, "loss", watch)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            return WatchedPass((), "", watch)
        return WatchedPass(watch.events_of(gradients) or watch.events, "gradient", watch)

    def _at_lower_scale(self, scale: float) -> tuple[float | None, WatchedPass]:
        """Return the largest lower scale with a finite gradient, or None, with the attempt."""
        lowest = self._attempt(self._case, MIN_LOSS_SCALE)
        if lowest.reaches:
            return None, lowest
        # The prediction sees the outputs of modules, and not what happens inside of them.
        lower = min(largest_scale(self._found.values) or scale, scale / 2)
        while lower > MIN_LOSS_SCALE:
            attempt = self._attempt(self._case, lower)
            if not attempt.reaches:
                return lower, attempt
            lower /= 2
        return MIN_LOSS_SCALE, lowest

    def _fault(
        self, attempt: WatchedPass, event: NonfiniteEvent, cause: Cause | None = None
    ) -> Fault:
        shape = self._shape
        cause = cause or self._cause(attempt, event)
        rows = range(len(shape.ids)) if event.places is None else sorted(event.places.rows)
        tokens = () if event.places is None else event.places.tokens
        in_float32 = self._fails_in_float32(event)
        return Fault(
            module=event.key[0],
            direction=event.key[1],
            operation=event.key[2],
            cause=cause,
            largest=event.largest,
            example_ids=tuple(sorted(shape.ids[row] for row in rows)),
            tokens=tuple((shape.ids[row], column) for row, column in tokens[:MAX_TOKENS]),
            source=None if event.frame is None else event.frame.text,
            inputs=event.inputs,
            reaches=attempt.reaches or ("padding" if cause is Cause.PADDING else "activation"),
            in_float32=in_float32,
            is_harmless=cause in (Cause.LARGE_SCALE, Cause.PADDING),
            remedy=remedy_for(cause, in_float32=in_float32),
        )

    def _cause(self, attempt: WatchedPass, event: NonfiniteEvent) -> Cause:
        """Return the cause, judged by what the same operation did in float32."""
        if event.cause in (Cause.PARAMETER, Cause.INPUT):
            return event.cause
        if not self._twin(event).reaches and (event.is_mask or event.cause in _OF_MASKS):
            return Cause.MASK
        if event.cause in UNDERFLOWS and self._fits(event):
            return UNDERFLOWS[event.cause]
        is_backward = attempt.reaches == "gradient" and event.key[1] == "backward"
        is_scaled = self._case.start_scale is not None and event.cause in OVERFLOWS
        return Cause.EVERY_SCALE if is_backward and is_scaled else event.cause

    def _twin(self, event: NonfiniteEvent) -> WatchedPass:
        """Return the same batch in float32, which has kept the operation of the event."""
        if event.key not in self._twins:
            self._twins[event.key] = self._attempt(self._plain, probe=event.key)
        return self._twins[event.key]

    def _fits(self, event: NonfiniteEvent) -> bool:
        """Return whether the operation has a finite result in float32."""
        same = self._twin(event).watch.probed
        return same is not None and same.result is not None and bool(same.result.isfinite().all())

    def _fails_in_float32(self, event: NonfiniteEvent) -> bool:
        """Return whether float32 fails because of the same operation, for the same examples."""
        twin = self._twin(event)
        if not twin.reaches:
            return False
        same = [each for each in twin.watch.events if each.key == event.key]
        if not same and twin.watch.probed is not None:
            return False
        return any(
            event.places is None or each.places is None or event.places.rows & each.places.rows
            for each in same or twin.events
        )

    def _find_absorbed(self, attempt: WatchedPass) -> None:
        """Find values that are not finite and that neither the loss nor the gradient shows."""
        for event in attempt.watch.events:
            if event.is_mask or event.key[1] == "backward":
                continue
            if event.has_nan and event.places is not None and event.places.is_padding:
                self._found.add_fault(self._fault(attempt, event, Cause.PADDING))
            elif event.largest is not None and not event.has_nan and self._fits(event):
                # Such as x / inf: the result is 0 in the mode, and is not in float32.
                self._found.absorbed.append(self._fault(attempt, event))
