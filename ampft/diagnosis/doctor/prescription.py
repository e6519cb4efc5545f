"""The cure: which modules to keep in float32, or what else helps, each tried before it is named."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from ampft.diagnosis.doctor.case import Case, undisturbed
from ampft.diagnosis.doctor.epsilon import larger_epsilon
from ampft.diagnosis.doctor.findings import Cause, Cure, Fault, LossScales
from ampft.diagnosis.doctor.module_search import Holds, shortest_patterns, smallest_modules
from ampft.diagnosis.doctor.patient import INITIAL_SCALE, Pass, Patient, Trial
from ampft.errors import InputError
from ampft.precision.accelerator import numerics
from ampft.precision.float32_modules import FLAG, called_modules, matching_modules
from ampft.precision.resolve import FLAG as MODE_FLAG
from ampft.precision.resolve import Precision, resolve
from ampft.text.numbers import counted

LARGER_SCALES = (INITIAL_SCALE, 2.0**20, 2.0**24, 2.0**28)
MAX_SEARCH_BATCHES = 3
TIMED_STEPS = 7
OTHER_MODE = "bf16"
LARGE_SHARE = 0.5  # of the weights; with more of them in float32, another mode is the better cure
MIN_PERCENT = 2  # smaller differences of the speed are noise

Failing = tuple[int, Pass]
"""Number of a batch that does not hold, and what float32 computes for it."""


@dataclass(frozen=True)
class Change:
    """A change of the training.

    Attributes:
        what: What to do, without a capital letter and a full stop.
        flag: Flag of the recipe.
        patterns: Patterns of the modules to keep in float32.
    """

    what: str
    flag: str = ""
    patterns: tuple[str, ...] = ()


def prescribe(
    case: Case,
    precision: Precision,
    faults: Sequence[Fault],
    *,
    loss_scales: LossScales | None = None,
    loss_scale: float | None = None,
    trial: Trial | None = None,
) -> Cure | None:
    """Find a change with which a precision holds, and verify it.

    The smallest set of modules to keep in float32 is searched first. If the gradients vanish, a
    loss scale is tried before it, and if no modules help, or nearly all are needed, bf16. If
    float32 fails too, only a larger epsilon can help.

    Args:
        case: Model, batches and loss. They are left as they were.
        precision: Precision that does not hold.
        faults: What failed, the first one first.
        loss_scales: Loss scales that the gradients allow, if they are known.
        loss_scale: Fixed scale of the loss; None scales it as a GradScaler does in fp16.
        trial: Short training that verifies a cure; None for the default.

    Returns:
        The cure; None if nothing failed or nothing helps.
    """
    fatal = [fault for fault in faults if not fault.is_harmless]
    if not fatal:
        return None
    scaler = INITIAL_SCALE if precision.uses_scaler and loss_scale is None else None
    patient = Patient.of(case, precision, scaler, loss_scale or 1.0)
    was_training = case.model.training
    with undisturbed(case.model), numerics(precision):
        try:
            if any(fault.in_float32 for fault in fatal):
                return _epsilon(patient, fatal, trial or Trial())
            case.model.eval()  # without dropout, unless nothing fails without it
            failing = _failing(patient, MAX_SEARCH_BATCHES)
            if not failing:
                case.model.train(was_training)
                failing = _failing(patient, MAX_SEARCH_BATCHES)
            return _cure(patient, failing, fatal, loss_scales, trial or Trial())
        finally:
            case.model.train(was_training)


def _cure(
    patient: Patient,
    failing: Sequence[Failing],
    fatal: Sequence[Fault],
    loss_scales: LossScales | None,
    trial: Trial,
) -> Cure | None:
    """Return the first cure that is verified, otherwise the first that was found."""
    if fatal[0].cause == Cause.VANISHING:
        scaled = _other_scale(patient, loss_scales, trial)
        if _is_verified(scaled):
            return scaled
    if not failing or not all(reference.has_finite_gradient for _, reference in failing):
        return None
    cure = _modules(patient, failing, fatal, trial)
    if _is_verified(cure):
        return cure
    alternative = _other_mode(patient, trial)
    return alternative if cure is None or _is_verified(alternative) else cure


def _is_verified(cure: Cure | None) -> bool:
    return cure is not None and cure.verified


def _failing(patient: Patient, count: int) -> list[Failing]:
    """Return the first batches that do not hold, each with what float32 computes."""
    pairs = ((i, patient.reference(i)) for i in range(len(patient.case.batches)))
    return list(islice((pair for pair in pairs if not patient.holds(*pair)), count))


def _other_scale(patient: Patient, loss_scales: LossScales | None, trial: Trial) -> Cure | None:
    """Return a loss scale at which the gradients do not vanish."""
    if patient.precision.compute_dtype != torch.float16:
        return None
    smallest, largest = 0.0, LARGER_SCALES[-1]
    if loss_scales is not None:
        smallest, largest = loss_scales.smallest or smallest, loss_scales.largest or largest
    for scale in dict.fromkeys((*LARGER_SCALES, largest)):
        scaled = replace(patient, initial_scale=scale)
        if smallest <= scale <= largest and not _failing(scaled, 1):
            scaler = f"torch.amp.GradScaler(init_scale={scale:.0f})"
            return _verified(
                scaled, Change(what=f"scale the loss by {scale:,.0f}: {scaler}"), trial
            )
    return None


def _modules(
    patient: Patient, failing: Sequence[Failing], fatal: Sequence[Fault], trial: Trial
) -> Cure | None:
    """Return the smallest set of modules to keep in float32."""
    model = patient.case.model
    hints = _hints(model, fatal)
    failing = list(failing)
    while True:
        paths = smallest_modules(model, _test(patient, failing), hints)
        if paths is None:
            return None
        names = (*dict.fromkeys(patient.kept.values()), *shortest_patterns(model, paths))
        kept = matching_modules(model, names)
        with patient.keeping(kept):
            others = _failing(patient, 1)
        if not others:
            break
        failing += others  # which needs other modules
        hints = (paths, *hints)
    if _share_of_weights(model, kept) > LARGE_SHARE:
        alternative = _other_mode(patient, trial)
        if _is_verified(alternative):
            return alternative
    text = ",".join(names)
    quoted = f"'{text}'" if set("*?[") & set(text) else text
    change = Change(
        what=f"keep {counted(len(kept), 'module')} in float32: {FLAG} {quoted}",
        flag=f"{FLAG} {quoted}",
        patterns=names,
    )
    cost = _cost(patient, kept)
    with patient.keeping(kept):
        cure = _verified(patient, change, trial, cost)
    bf16 = _in_other_mode(patient)
    if bf16 is not None and all(bf16.holds(*pair) for pair in failing):
        cure = replace(cure, sentence=f"{cure.sentence} Or use {OTHER_MODE}.")
    return cure


def _test(patient: Patient, failing: Sequence[Failing]) -> Holds:
    """Return the test of a set of modules, which remembers its results."""
    results: dict[frozenset[str], bool] = {}

    def holds(paths: Sequence[str]) -> bool:
        key = frozenset(paths)
        if key not in results:
            with patient.keeping({path: path for path in paths}):
                results[key] = all(patient.holds(*pair) for pair in failing)
        return results[key]

    return holds


def _hints(model: nn.Module, fatal: Sequence[Fault]) -> tuple[tuple[str, ...], ...]:
    """Return the modules that transformers would not load in 16 bits, and those that failed."""
    listed = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    known: tuple[str, ...] = ()
    with contextlib.suppress(InputError):  # the model has no such modules
        known = tuple(matching_modules(model, listed))
    modules = dict(model.named_modules())
    failed = dict.fromkeys(fault.module for fault in fatal if modules.get(fault.module))
    called = [path for name in failed if name for path in called_modules(name, modules[name])]
    return known, tuple(called)


def _share_of_weights(model: nn.Module, paths: Iterable[str]) -> float:
    kept = {p for path in paths for p in model.get_submodule(path).parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    return sum(parameter.numel() for parameter in kept) / total


def _epsilon(patient: Patient, fatal: Sequence[Fault], trial: Trial) -> Cure | None:
    """Return a larger epsilon; None if float32 or the mode does not hold with it."""
    epsilon = larger_epsilon(patient.case.model, fatal)
    if epsilon is None:
        return None
    change = Change(what=epsilon.what)
    with epsilon.applied():
        cure = _verified(patient, change, trial)
    return cure if cure.verified else None


def _in_other_mode(patient: Patient) -> Patient | None:
    """Return the patient in bf16; None if the device does not support it, or it is in bf16."""
    if patient.precision.mode == OTHER_MODE:
        return None
    try:
        precision = resolve(OTHER_MODE, patient.case.device)
    except InputError:
        return None
    return replace(patient, precision=precision, initial_scale=None)


def _other_mode(patient: Patient, trial: Trial) -> Cure | None:
    """Return bf16, which has the exponents of float32; None if a batch does not hold in it."""
    other = _in_other_mode(patient)
    if other is None or _failing(other, 1):
        return None
    flag = f"{MODE_FLAG} {OTHER_MODE}"
    change = Change(what=f"use {OTHER_MODE}: {flag}", flag=flag)
    return _verified(other, change, trial)


def _cost(patient: Patient, kept: Mapping[str, str]) -> float | None:
    """Return the time of a step with modules in float32, relative to that without them.

    It is None if a step without them raises an error.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TIMED_STEPS):
        times[False].append(patient.seconds())
        with patient.keeping(kept):
            times[True].append(patient.seconds())
    cost = statistics.median(times[True]) / statistics.median(times[False])
    return None if math.isnan(cost) else cost


def _verified(patient: Patient, change: Change, trial: Trial, cost: float | None = None) -> Cure:
    """Return a cure that the patient has received, with what was verified."""
    pairs = ((i, patient.reference(i)) for i in range(len(patient.case.batches)))
    errors = [patient.output_error(*pair) for pair in pairs]
    known = [error for error in errors if error is not None]
    is_finite = len(known) == len(errors)
    is_verified = is_finite and patient.trains(trial)
    return Cure(
        fp32_modules=change.patterns,
        verified=is_verified,
        cost=cost,
        flag=change.flag,
        sentence=_sentence(patient, change, trial, max(known, default=0), cost, is_verified),
    )


def _sentence(
    patient: Patient, change: Change, trial: Trial, error: float, cost: float | None, verified: bool
) -> str:
    what = f"{change.what[0].upper()}{change.what[1:]}."
    if not verified:
        return (
            f"{what} This is not verified: the gradient is finite on these batches, but not in a "
            f"training of {counted(trial.steps, 'step')}."
        )
    speed = "" if cost is None else f", {_speed(cost)}"
    emulated = " in this emulation" if speed and patient.precision.is_emulated else ""
    return (
        f"{what} Verified: forward and backward finite on these batches and in "
        f"{counted(trial.steps, 'training step')}, outputs within {error:.2g} of fp32{speed}"
        f"{emulated}."
    )


def _speed(cost: float) -> str:
    percent = round(100 * (cost - 1))
    if abs(percent) < MIN_PERCENT:
        return "about as fast as before"
    return f"about {abs(percent)} % {'slower' if percent > 0 else 'faster'}"
