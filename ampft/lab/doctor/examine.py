"""Examines a case: ranges in float32, the first fault of every batch, and the whole gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ampft.checks.harm import GradientChange, gradient_harm
from ampft.errors import InputError
from ampft.lab.doctor.alignment import rounding_module
from ampft.lab.doctor.batch import BatchExamination, Examination, least_scale
from ampft.lab.doctor.case import ExaminedModel, Loss, model_state_restored
from ampft.lab.doctor.causes import remedy_for
from ampft.lab.doctor.diagnosis import (
    DEFAULT_TOLERATED,
    Cause,
    Diagnosis,
    ExaminedSetup,
    Fault,
    GradientFigures,
    LossScales,
)
from ampft.lab.doctor.places import BatchShape
from ampft.lab.doctor.ranges import (
    SCALES,
    RangeRecorder,
    bf16_lost_updates,
    largest_scale,
    lost_share,
    module_ranges,
)
from ampft.precision.accelerator import numerics, world_size
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import resolve
from ampft.text.escaping import without_credentials

MIN_DISTINCT = 10  # weights that were trained or drawn have many different values
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def examine(
    case: ExaminedModel, *, tolerated: float = DEFAULT_TOLERATED, only_first: bool = False
) -> Examination:
    """Return the faults and gradient changes of a precision on the batches of a case.

    Args:
        tolerated: Share of lost gradient entries above which a gradient that changed its direction
            is explained by underflow.
        only_first: Whether to stop after the first batch that fails, and neither to record the
            ranges in float32 nor to compare whole gradients.

    Raises:
        InputError: The doctor does not examine this precision.
    """
    precision = case.precision
    if precision.properties.stores_16_bits or precision.properties.replaces_layers:
        raise InputError(
            f"--mixed_precision {precision.mode}: the doctor examines modes with float32 "
            "weights and layers as they are: fp32, tf32, bf16 and fp16. What fp8 and 16-bit "
            "sums lose is in the ranges of each of them."
        )
    shapes: list[BatchShape] = []
    for batch in case.batches:
        first_id = sum(len(shape.ids) for shape in shapes)
        shapes.append(BatchShape.of(case.model, batch, first_id))
    ids = {number for shape in shapes for number in shape.ids}
    found = Examination(ids, len(shapes), case.start_scale)
    halved = _half_weights(case.model)
    if halved is not None:
        found.faults.append(halved)
        if not halved.is_harmless:
            return found
    with model_state_restored(case.model):
        if not only_first:
            _record_ranges(case, shapes, found)
        scales: list[float | None] = []
        for index, shape in enumerate(shapes):
            # As in a training, the next batch starts at the scale that was found.
            start = min((each for each in scales if each is not None), default=case.start_scale)
            with numerics(precision):
                scales.append(BatchExamination(case, index, shape, found).examine(start))
            if only_first and not found.holds:
                break
        found.scale = least_scale(scales)
        case.model.zero_grad(set_to_none=True)
        if found.holds and not only_first:
            _check_gradient(case, found, tolerated)
    found.faults.sort(key=lambda fault: fault.is_harmless)
    return found


def diagnose(case: ExaminedModel, *, tolerated: float = DEFAULT_TOLERATED) -> Diagnosis:
    """Return the diagnosis of a case, without a cure.

    In a group of several processes, all of them call it with their own batches, and all get the
    diagnosis of all batches. Arguments and exceptions are as in `examine`.
    """
    found, processes = examine(case, tolerated=tolerated), world_size()
    if processes > 1:
        every: list[Any] = [None] * processes
        torch.distributed.all_gather_object(every, found)
        found, *others = every
        for other in others:
            found.merge(other)
        found.faults.sort(key=lambda fault: fault.is_harmless)
    change = sum(found.changes, GradientChange.of((), ()))
    lost = {scale: lost_share(found.gradients, scale) for scale in SCALES}
    figures = GradientFigures(
        cosine=change.cosine, size=change.size, error=change.error, lost_share=change.lost_share
    )
    return Diagnosis(
        setting=ExaminedSetup(
            model=without_credentials(case.model_name) or type(case.model).__name__,
            data=without_credentials(case.data_name),
            mode=case.precision.mode,
            execution=case.precision.execution,
            device=case.precision.device_type,
            batches=found.batches,
            examples=len(found.ids),
            processes=processes,
            padding_free=case.padding_free,
        ),
        holds=found.holds,
        faults=tuple(found.faults),
        gradient=figures if found.changes else None,
        ranges=module_ranges(case.model, found.values),
        loss_scales=LossScales(
            largest=largest_scale(found.values),
            smallest=min((s for s, share in lost.items() if share <= tolerated), default=None),
            tolerated=tolerated,
            lost={f"{scale:g}": share for scale, share in lost.items()},
            initial=case.start_scale,
            found=found.scale,
            lost_at_found=lost_share(found.gradients, found.scale or 1.0),
        ),
        bf16_lost_updates=bf16_lost_updates(case.model),
        gradient_exponents={str(e): n for e, n in found.gradients.exponents.items()},
    )


def _record_ranges(case: ExaminedModel, shapes: Sequence[BatchShape], found: Examination) -> None:
    plain, recorder = case.in_float32(), RangeRecorder(case.model)
    with numerics(plain.precision), recorder:
        for index, batch in enumerate(case.batches):
            recorder.shape = shapes[index]
            case.model.zero_grad(set_to_none=True)
            case.begin(index)
            plain.differentiate(batch)
            recorder.add_parameters()
    found.values, found.gradients = recorder.values, recorder.gradients


def _check_gradient(case: ExaminedModel, found: Examination, tolerated: float) -> None:
    """Add a fault if the gradient trains otherwise than float32's, although it is finite.

    It is compared without dropout, whose masks may depend on the precision. Values that were not
    finite on the way, underflow and rounding explain a harm, in this order; they are none.
    """
    if case.uses_scaler and found.scale is not None:
        case = replace(case, initial_scale=found.scale)
    case.model.eval()
    plain = case.in_float32()
    changes = [case.change(index, plain.run(index)) for index in range(len(case.batches))]
    found.changes = [change for change in changes if change is not None]
    if gradient_harm(found.changes) is None:
        return
    for fault in found.absorbed:
        found.add_fault(fault)
    if not found.holds:
        return
    scale = found.scale or 1.0
    is_fp16 = case.precision.compute_dtype == torch.float16
    if is_fp16 and lost_share(found.gradients, scale) > tolerated:
        cause, operation, direction = Cause.VANISHING, "gradient", "backward"
        lost = {
            key[0]: lost_share(values, scale) * (values.entries - values.zeros)
            for key, values in found.values.items()
            if key[1] == direction and key[0]
        }
        module = max(lost, key=lambda name: lost[name], default="")
    else:
        cause, operation, direction = Cause.ROUNDING, "rounding", "forward"
        module, scale = rounding_module(case), 1.0
    values = found.values.get((module, direction))
    found.add_fault(
        Fault(
            module=module,
            direction=direction,
            operation=operation,
            cause=cause,
            largest=None if values is None else values.largest * scale,
            example_ids=tuple(sorted(found.ids)),
            reaches="gradient",
            in_float32=False,
            remedy=remedy_for(cause),
        )
    )


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
    case = _given(model, batches, loss, mixed_precision, loss_scale)
    return diagnose(case, tolerated=tolerated)


def locate(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Loss,
    *,
    mixed_precision: str = "fp16",
    loss_scale: float | None = None,
) -> Fault | None:
    """Return the first operation that makes the loss or the gradient not finite; None if none does.

    Unlike `scan`, it records no ranges and stops at the first batch that fails. It takes the same
    arguments, except `tolerated`, and raises the same exceptions.
    """
    case = _given(model, batches, loss, mixed_precision, loss_scale)
    faults = examine(case, only_first=True).faults
    return next((fault for fault in faults if not fault.is_harmless), None)


def _given(
    model: nn.Module, batches: Sequence[Any], loss: Loss, mode: str, loss_scale: float | None
) -> ExaminedModel:
    if not batches:
        raise InputError("batches: received none. Pass at least one batch.")
    precision = resolve(canonical_mode(mode), next(model.parameters()).device)
    return ExaminedModel(model, list(batches), loss, precision, loss_scale=loss_scale)


def _half_weights(model: nn.Module) -> Fault | None:
    """Return the fault of weights in 16 bits; harmless if they were only saved so."""
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1}
    halved = [name for name, weight in weights.items() if weight.dtype in _SIXTEEN_BITS]
    is_harmless = not halved
    if is_harmless:
        # Zeros and ones, as layers begin with, are numbers of every format.
        varied = {n: w for n, w in weights.items() if len(w[:2].unique()) > MIN_DISTINCT}
        for dtype in _SIXTEEN_BITS:
            if all(torch.equal(weight, weight.to(dtype).float()) for weight in varied.values()):
                halved = list(varied)
    if not halved:
        return None
    module, _, own = halved[0].rpartition(".")
    largest = float(weights[halved[0]].detach().abs().max())
    return Fault(
        module=module,
        direction="forward",
        operation=f"parameter {own}",
        cause=Cause.HALF_WEIGHTS,
        largest=largest if largest < float("inf") else None,
        reaches="activation" if is_harmless else "gradient",
        is_harmless=is_harmless,
        remedy=remedy_for(Cause.HALF_WEIGHTS, is_harmless=is_harmless),
    )
