"""Examines a case: ranges in float32, then the first fault of every batch in the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ampft.diagnosis.doctor.case import Case, Loss, undisturbed
from ampft.diagnosis.doctor.causes import underflow_of
from ampft.diagnosis.doctor.examination import MAX_TOKENS, Examination, merged
from ampft.diagnosis.doctor.findings import DEFAULT_TOLERATED, Cause, Diagnosis, Fault, Setting
from ampft.diagnosis.doctor.places import BatchShape
from ampft.diagnosis.doctor.ranges import (
    RangeRecorder,
    bf16_lost_updates,
    largest_scale,
    loss_scales,
    lost_share,
    module_ranges,
)
from ampft.diagnosis.doctor.remedies import HALF_CHECKPOINT, REMEDIES
from ampft.diagnosis.doctor.watch import Event, Key, OperationWatch
from ampft.errors import InputError
from ampft.precision.accelerator import numerics, world_size
from ampft.precision.modes import BASELINE, canonical_mode
from ampft.precision.resolve import Precision, resolve
from ampft.precision.tf32 import float32_policy
from ampft.training.step import MIN_LOSS_SCALE

INITIAL_SCALE = 65536.0  # of torch.amp.GradScaler
MIN_DISTINCT = 10  # weights that were trained or drawn have many different values
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)
_OVERFLOWS = {Cause.PRODUCT, Cause.SUM, Cause.CONVERSION, Cause.QUOTIENT}


@dataclass(frozen=True)
class _Attempt:
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
    def origin(self) -> Event | None:
        """The first operation that failed; a mask only if nothing else did."""
        failed = (event for event in self.events if not event.is_mask)
        return next(failed, self.events[0] if self.events else None)


class Examiner:
    """Examines the batches of a case in one mode.

    Args:
        case: Model, batches and loss.
        precision: Mode, resolved for the device of the model.
        loss_scale: Scale that is used instead of a scaler's; None starts as a scaler does.
        tolerated: Share of gradient entries that may be lost.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        *,
        loss_scale: float | None = None,
        tolerated: float = DEFAULT_TOLERATED,
    ) -> None:
        if precision.properties.stores_16_bits or precision.properties.replaces_layers:
            raise InputError(
                f"--mixed_precision {precision.mode}: the doctor examines modes with float32 "
                "weights and layers as they are: fp32, tf32, bf16 and fp16. What fp8 and 16-bit "
                "sums lose is in the ranges of each of them."
            )
        self.case = case
        self.precision = precision
        self.tolerated = tolerated
        self.is_fixed_scale = loss_scale is not None
        scaler = INITIAL_SCALE if precision.uses_scaler else None
        self.initial_scale = loss_scale or scaler
        self._float32 = resolve(BASELINE, case.device)
        self._shapes = _shapes(case)
        self._twins: dict[Key, _Attempt] = {}  # of the batch that is examined

    def examine(self, *, with_ranges: bool = True, stop_at_first: bool = False) -> Examination:
        """Return what was found in all batches.

        Args:
            with_ranges: Whether to record the ranges in float32 first.
            stop_at_first: Whether to stop after the first batch that fails.
        """
        found = Examination(scale=self.initial_scale)
        found.ids = {number for shape in self._shapes for number in shape.ids}
        found.batches = len(self._shapes)
        halved = _half_weights(self.case.model)
        if halved is not None:
            found.faults.append(halved)
            if not halved.is_harmless:
                return found
        with undisturbed(self.case.model):
            if with_ranges:
                self._record_ranges(found)
            with numerics(self.precision):
                scales: list[float | None] = []
                for index in range(len(self._shapes)):
                    # As in a training, the next batch starts at the scale that was found.
                    known = [scale for scale in scales if scale is not None]
                    start = min(known, default=self.initial_scale)
                    scales.append(self._examine_batch(index, start, found))
                    if stop_at_first and any(not fault.is_harmless for fault in found.faults):
                        break
            found.scale = None if None in scales else min(scale for scale in scales if scale)
            self.case.model.zero_grad(set_to_none=True)
        if with_ranges and self.precision.compute_dtype == torch.float16:
            self._check_underflow(found)
        found.faults.sort(key=lambda fault: fault.is_harmless)
        return found

    def _record_ranges(self, found: Examination) -> None:
        recorder = RangeRecorder(self.case.model)
        with numerics(self._float32), recorder:
            for index, batch in enumerate(self.case.batches):
                recorder.shape = self._shapes[index]
                self.case.model.zero_grad(set_to_none=True)
                self.case.begin(index)
                self.case.differentiate(batch, self._float32)
                recorder.add_parameters()
        found.values, found.gradients = recorder.values, recorder.gradients

    def _attempt(
        self,
        index: int,
        precision: Precision,
        scale: float | None = None,
        probe: Key | None = None,
    ) -> _Attempt:
        model, batch = self.case.model, self.case.batches[index]
        model.zero_grad(set_to_none=True)
        self.case.begin(index)
        watch = OperationWatch(model, self._shapes[index], batch, probe)
        with float32_policy(precision), watch:
            try:
                loss = self.case.differentiate(batch, precision, scale=scale or 1.0)
            except RuntimeError:
                if not watch.has_failed:
                    raise
                return _Attempt(watch.events[-1:], "loss", watch)
        if not bool(loss.isfinite().all()):
            return _Attempt(watch.events_of([loss]) or watch.events, "loss", watch)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            return _Attempt((), "", watch)
        return _Attempt(watch.events_of(gradients) or watch.events, "gradient", watch)

    def _examine_batch(self, index: int, scale: float | None, found: Examination) -> float | None:
        """Add the faults of a batch; return the scale at which its gradient is finite, or None."""
        self._twins.clear()
        attempt = self._attempt(index, self.precision, scale)
        if attempt.reaches == "gradient" and scale is not None:
            scale, lower = self._at_lower_scale(index, scale, found)
            if self.is_fixed_scale and scale is not None:
                found.add_fault(self._fault(index, attempt, Cause.LARGE_SCALE))
            attempt = lower
        if attempt.reaches:
            found.add_fault(self._fault(index, attempt))
        else:
            self._add_absorbed(index, attempt, found)
        return scale

    def _at_lower_scale(
        self, index: int, scale: float, found: Examination
    ) -> tuple[float | None, _Attempt]:
        """Return the largest lower scale with a finite gradient, or None, with the attempt."""
        lowest = self._attempt(index, self.precision, MIN_LOSS_SCALE)
        if lowest.reaches:
            return None, lowest
        # The prediction sees the outputs of modules, and not what happens inside of them.
        lower = min(largest_scale(found.values) or scale, scale / 2)
        while lower > MIN_LOSS_SCALE:
            attempt = self._attempt(index, self.precision, lower)
            if not attempt.reaches:
                return lower, attempt
            lower /= 2
        return MIN_LOSS_SCALE, lowest

    def _fault(self, index: int, attempt: _Attempt, cause: Cause | None = None) -> Fault:
        event, shape = attempt.origin, self._shapes[index]
        assert event is not None, "a value that is not finite without an operation that made it"
        cause = cause or self._cause(index, attempt, event)
        rows = range(len(shape.ids)) if event.places is None else sorted(event.places.rows)
        tokens = () if event.places is None else event.places.tokens
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
            in_float32=self._twin(index, event).reaches != "",
            is_harmless=cause in (Cause.LARGE_SCALE, Cause.PADDING),
            remedy=REMEDIES[cause],
        )

    def _cause(self, index: int, attempt: _Attempt, event: Event) -> Cause:
        """Return the cause, judged by what the same operation did in float32."""
        twin = self._twin(index, event)
        if event.cause in (Cause.PARAMETER, Cause.INPUT):
            return event.cause
        if not twin.reaches and (event.is_mask or event.cause in _OF_MASKS):
            return Cause.MASK
        underflow = underflow_of(event.cause)
        if underflow is not None and self._fits(index, event):
            return underflow
        return self._scaled_cause(attempt, event)

    def _scaled_cause(self, attempt: _Attempt, event: Event) -> Cause:
        is_backward = attempt.reaches == "gradient" and event.key[1] == "backward"
        scaled = self.initial_scale is not None and event.cause in _OVERFLOWS
        return Cause.EVERY_SCALE if is_backward and scaled else event.cause

    def _twin(self, index: int, event: Event) -> _Attempt:
        """Return the same batch in float32, which has kept the operation of the event."""
        if event.key not in self._twins:
            twin = self._attempt(index, self._float32, probe=event.key)
            self._twins[event.key] = twin
        return self._twins[event.key]

    def _add_absorbed(self, index: int, attempt: _Attempt, found: Examination) -> None:
        """Add values that are not finite and that neither the loss nor the gradient shows."""
        for event in attempt.watch.events:
            if event.is_mask or event.key[1] == "backward":
                continue
            single = _Attempt((event,), "", attempt.watch)
            if event.has_nan and event.places is not None and event.places.is_padding:
                found.add_fault(self._fault(index, single, Cause.PADDING))
            elif event.largest is not None and not event.has_nan and self._fits(index, event):
                # Such as x / inf: the result is 0 in the mode, and is not in float32.
                found.add_fault(self._fault(index, single))

    def _fits(self, index: int, event: Event) -> bool:
        """Return whether the operation has a finite result in float32."""
        same = self._twin(index, event).watch.probed
        return same is not None and same.result is not None and bool(same.result.isfinite().all())

    def _check_underflow(self, found: Examination) -> None:
        scale = found.scale or self.initial_scale or 1.0
        is_broken = any(not fault.is_harmless for fault in found.faults)
        if is_broken or lost_share(found.gradients, scale) <= self.tolerated:
            return
        modules = {
            key[0]: lost_share(values, scale) * (values.entries - values.zeros)
            for key, values in found.values.items()
            if key[1] == "backward" and key[0]
        }
        worst = max(modules, key=lambda name: modules[name], default="")
        found.add_fault(
            Fault(
                module=worst,
                direction="backward",
                operation="gradient",
                cause=Cause.VANISHING,
                largest=found.values[worst, "backward"].largest * scale,
                example_ids=tuple(sorted(found.ids)),
                reaches="gradient",
                in_float32=False,
                remedy=REMEDIES[Cause.VANISHING],
            )
        )

    def conclude(self, found: Examination, setting: Setting) -> Diagnosis:
        """Return the diagnosis of what one process, or several together, found."""
        return Diagnosis(
            setting=replace(setting, batches=found.batches, examples=len(found.ids)),
            holds=all(fault.is_harmless for fault in found.faults),
            faults=tuple(found.faults),
            ranges=module_ranges(self.case.model, found.values),
            loss_scales=loss_scales(
                found.values,
                found.gradients,
                tolerated=self.tolerated,
                initial=self.initial_scale,
                found=found.scale,
            ),
            bf16_lost_updates=bf16_lost_updates(self.case.model),
            gradient_exponents={str(e): n for e, n in found.gradients.exponents.items()},
        )


_OF_MASKS = (Cause.EMPTY_SOFTMAX, Cause.INFINITIES)


def scan(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Loss,
    *,
    mixed_precision: str = "fp16",
    loss_scale: float | None = None,
    tolerated: float = DEFAULT_TOLERATED,
) -> Diagnosis:
    """Examine whether a precision holds for a model on some batches, and if not, why.

    Gradients, buffers and random states of the caller do not change. In a group of several
    processes, each examines its own batches, and all return the diagnosis of all.

    Args:
        model: Model with float32 weights, in training or evaluation mode. It must not be wrapped
            in autocast.
        batches: Batches: mappings or sequences of tensors, or tensors. An attribute `ids` names
            the examples; otherwise they are counted from 0.
        loss: Function of model and batch that returns the loss, a scalar.
        mixed_precision: `fp16`, `bf16`, `tf32` or `fp32`.
        loss_scale: Scale that multiplies the loss; None starts as a GradScaler does, at 65536, and
            lowers it while gradients overflow. 1 means no scaling.
        tolerated: Share of the gradient entries that may become 0, 0 to 1.

    Raises:
        InputError: The mode is unknown, not available on the device, or not supported, or
            `batches` is empty.
    """
    examiner = _examiner(model, batches, loss, mixed_precision, loss_scale, tolerated)
    found = merged(examiner.examine())
    return examiner.conclude(found, setting_of(examiner, type(model).__name__, "the given batches"))


def locate(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Loss,
    *,
    mixed_precision: str = "fp16",
    loss_scale: float | None = None,
) -> Fault | None:
    """Return the first operation that makes the loss or the gradient not finite; None if none does.

    Unlike `scan`, it records no ranges and stops at the first batch that fails. Arguments and
    exceptions are those of `scan`.
    """
    examiner = _examiner(model, batches, loss, mixed_precision, loss_scale, DEFAULT_TOLERATED)
    faults = examiner.examine(with_ranges=False, stop_at_first=True).faults
    return next((fault for fault in faults if not fault.is_harmless), None)


def setting_of(examiner: Examiner, model: str, data: str, *, padding_free: bool = False) -> Setting:
    """Return the setting of an examination; `Examiner.conclude` counts batches and examples."""
    precision = examiner.precision
    return Setting(
        model=model,
        data=data,
        mode=precision.mode,
        execution=precision.execution,
        device=precision.device_type,
        batches=0,
        examples=0,
        processes=world_size(),
        padding_free=padding_free,
    )


def _examiner(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Loss,
    mode: str,
    loss_scale: float | None,
    tolerated: float,
) -> Examiner:
    case = Case(model, list(batches), loss)
    if not case.batches:
        raise InputError("batches: received none. Pass at least one batch.")
    precision = resolve(canonical_mode(mode), case.device)
    return Examiner(case, precision, loss_scale=loss_scale, tolerated=tolerated)


def _shapes(case: Case) -> list[BatchShape]:
    shapes: list[BatchShape] = []
    count = 0
    for batch in case.batches:
        shapes.append(BatchShape.of(case.model, batch, count))
        count += len(shapes[-1].ids)
    return shapes


def _half_weights(model: nn.Module) -> Fault | None:
    """Return the fault of weights in 16 bits; harmless if they were only saved so."""
    weights = [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1]
    for name, weight in weights:
        if weight.dtype in _SIXTEEN_BITS:
            return _of_parameter(name, weight, is_harmless=False)
    for dtype in _SIXTEEN_BITS:
        # Zeros and ones, as layers begin with, are numbers of every format.
        varied = [each for each in weights if len(each[1][:2].unique()) > MIN_DISTINCT]
        if varied and all(torch.equal(weight, weight.to(dtype).float()) for _, weight in varied):
            return _of_parameter(*varied[0], is_harmless=True)
    return None


def _of_parameter(name: str, parameter: Tensor, *, is_harmless: bool) -> Fault:
    module, _, own = name.rpartition(".")
    return Fault(
        module=module,
        direction="forward",
        operation=f"parameter {own}",
        cause=Cause.HALF_WEIGHTS,
        largest=_largest(parameter),
        reaches="activation" if is_harmless else "gradient",
        is_harmless=is_harmless,
        remedy=HALF_CHECKPOINT if is_harmless else REMEDIES[Cause.HALF_WEIGHTS],
    )


def _largest(tensor: Tensor) -> float | None:
    largest = float(tensor.detach().abs().max())
    return largest if largest < float("inf") else None
