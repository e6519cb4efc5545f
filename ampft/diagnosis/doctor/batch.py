"""Examines one batch in a precision: its first fault, judged by what float32 does there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ampft.diagnosis.doctor.case import Subject
from ampft.diagnosis.doctor.causes import OVERFLOWS, UNDERFLOWS, remedy_for
from ampft.diagnosis.doctor.findings import Cause, Fault
from ampft.diagnosis.doctor.places import BatchShape
from ampft.diagnosis.doctor.ranges import Values, largest_scale
from ampft.diagnosis.doctor.watch import Event, Key, OperationWatch
from ampft.precision.tf32 import float32_policy
from ampft.training.step import MIN_LOSS_SCALE

MAX_TOKENS = 20  # positions that a fault lists
_OF_MASKS = (Cause.EMPTY_SOFTMAX, Cause.INFINITIES)


@dataclass(frozen=True)
class Attempt:
    """One forward and backward pass of a batch in a mode.

    Attributes:
        events: Operations that made the loss, or otherwise the gradient, not finite.
        reaches: `loss` or `gradient`; empty if both are finite.
        watch: The watch, after the pass.
    """

    events: Sequence[Event]
    reaches: str
    watch: OperationWatch

    @property
    def origins(self) -> Sequence[Event]:
        """The operations that failed, in order; masks only if nothing else did."""
        return [event for event in self.events if not event.is_mask] or self.events[:1]


class BatchExamination:
    """The examination of one batch.

    Attributes:
        faults: What failed, the first one first.
        absorbed: Faults that neither the loss nor the gradient shows. They are harmful only if the
            gradient has another direction.

    Args:
        case: The case.
        index: Number of the batch.
        shape: Its layout.
    """

    def __init__(self, case: Subject, index: int, shape: BatchShape) -> None:
        self.faults: list[Fault] = []
        self.absorbed: list[Fault] = []
        self._case, self._index, self._shape = case, index, shape
        self._plain = case.in_float32()
        self._twins: dict[Key, Attempt] = {}

    def examine(
        self, scale: float | None, values: Mapping[tuple[str, str], Values]
    ) -> float | None:
        """Find the faults of the batch.

        Args:
            scale: Loss scale at which to start; None without one.
            values: Values by module and direction in float32, if they are known.

        Returns:
            The scale of a finite gradient; None if there is none.
        """
        attempt = self._attempt(self._case, scale)
        if attempt.reaches == "gradient" and scale is not None:
            scale, lower = self._at_lower_scale(scale, values)
            if not self._case.uses_scaler and scale is not None:
                self.faults.append(self._fault(attempt, attempt.origins[0], Cause.LARGE_SCALE))
            attempt = lower
        if not attempt.reaches:
            self._find_absorbed(attempt)
            return scale
        first = attempt.origins[0]
        self.faults.append(self._fault(attempt, first))
        if self._fails_in_float32(first):  # the precision can have its own fault
            others = (each for each in attempt.origins[1:] if not self._fails_in_float32(each))
            own = next(others, None)
            if own is not None:
                self.faults.append(self._fault(attempt, own))
        elif (twin := self._twin(first)).reaches:  # float32 has another fault
            self._twins.setdefault(twin.origins[0].key, twin)
            self.faults.append(replace(self._fault(twin, twin.origins[0]), in_float32=True))
        return scale

    def _attempt(
        self, case: Subject, scale: float | None = None, probe: Key | None = None
    ) -> Attempt:
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
                return Attempt(watch.events[-1:], "loss", watch)
        if not bool(loss.isfinite().all()):
            return Attempt(watch.events_of([loss]) or watch.events, "loss", watch)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            return Attempt((), "", watch)
        return Attempt(watch.events_of(gradients) or watch.events, "gradient", watch)

    def _at_lower_scale(
        self, scale: float, values: Mapping[tuple[str, str], Values]
    ) -> tuple[float | None, Attempt]:
        """Return the largest lower scale with a finite gradient, or None, with the attempt."""
        lowest = self._attempt(self._case, MIN_LOSS_SCALE)
        if lowest.reaches:
            return None, lowest
        # The prediction sees the outputs of modules, and not what happens inside of them.
        lower = min(largest_scale(values) or scale, scale / 2)
        while lower > MIN_LOSS_SCALE:
            attempt = self._attempt(self._case, lower)
            if not attempt.reaches:
                return lower, attempt
            lower /= 2
        return MIN_LOSS_SCALE, lowest

    def _fault(self, attempt: Attempt, event: Event, cause: Cause | None = None) -> Fault:
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

    def _cause(self, attempt: Attempt, event: Event) -> Cause:
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

    def _twin(self, event: Event) -> Attempt:
        """Return the same batch in float32, which has kept the operation of the event."""
        if event.key not in self._twins:
            self._twins[event.key] = self._attempt(self._plain, probe=event.key)
        return self._twins[event.key]

    def _fits(self, event: Event) -> bool:
        """Return whether the operation has a finite result in float32."""
        same = self._twin(event).watch.probed
        return same is not None and same.result is not None and bool(same.result.isfinite().all())

    def _fails_in_float32(self, event: Event) -> bool:
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

    def _find_absorbed(self, attempt: Attempt) -> None:
        """Find values that are not finite and that neither the loss nor the gradient shows."""
        for event in attempt.watch.events:
            if event.is_mask or event.key[1] == "backward":
                continue
            if event.has_nan and event.places is not None and event.places.is_padding:
                self.faults.append(self._fault(attempt, event, Cause.PADDING))
            elif event.largest is not None and not event.has_nan and self._fits(event):
                # Such as x / inf: the result is 0 in the mode, and is not in float32.
                self.absorbed.append(self._fault(attempt, event))
