"""The cure: which modules to keep in float32, or what else helps, each tried before it is named."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from ampft.checks.harm import GradientChange, ShortTrainingResult, gradient_harm
from ampft.engine.step import ScaledGradient
from ampft.errors import InputError
from ampft.export.module_search import Holds, shortest_patterns, smallest_sufficient_modules
from ampft.lab.doctor.case import (
    INITIAL_SCALE,
    ExaminedModel,
    TrialSettings,
    change_of,
    kept_patterns,
    model_state_restored,
)
from ampft.lab.doctor.diagnosis import Cause, Cure, Diagnosis, Fault
from ampft.lab.doctor.places import BatchShape
from ampft.lab.doctor.watch import OperationWatch
from ampft.precision.accelerator import numerics
from ampft.precision.float32_modules import FLAG, called_modules, matching_modules
from ampft.precision.resolve import FLAG as MODE_FLAG
from ampft.precision.resolve import resolve
from ampft.text.numbers import counted

LARGER_SCALES = (INITIAL_SCALE, 2.0**20, 2.0**24, 2.0**28)
MAX_SEARCH_BATCHES = 3
TIMED_STEPS = 7
OTHER_MODE = "bf16"
LARGE_SHARE = 0.5  # of the weights; with more of them in float32, another mode is the better cure
MIN_PERCENT = 2  # smaller differences of the speed are noise
EPSILON_NAMES = ("eps", "epsilon", "variance_epsilon")  # of torch's modules, and of transformers'
EPSILON = 1e-4  # a normal number of binary16
CURED_BY_EPSILON = {
    Cause.DIVISION_BY_ZERO,
    Cause.ZERO_BY_ZERO,
    Cause.QUOTIENT,
    Cause.ROOT_AT_ZERO,
    Cause.UNDERFLOW_DIVISION,
    Cause.UNDERFLOW_ZERO_BY_ZERO,
    Cause.UNDERFLOW_ROOT,
}

Failing = tuple[int, ScaledGradient]
"""Number of a batch that does not hold, and what float32 computes for it."""


def find_cure(case: ExaminedModel, diagnosis: Diagnosis) -> Diagnosis:
    """Find a change with which a precision holds, and verify it.

    The training is tried in float32 first. If it fails there as well, the fault is not one of the
    precision, and there is no cure. Otherwise the smallest set of modules to keep in float32 is
    searched. If the gradients vanish, a loss scale is tried before it, and if no modules help, or
    nearly all are needed, bf16. If float32 fails on a batch, only a larger epsilon can help there.

    Args:
        case: A case whose precision does not hold. It is left as it was.

    Returns:
        The diagnosis with a cure, unless nothing helps, and with the training in float32, unless
        float32 fails before it.
    """
    fatal = [fault for fault in diagnosis.faults if not fault.is_harmless]
    if not fatal:
        return diagnosis
    own = [fault for fault in fatal if not fault.in_float32]
    was_training = case.model.training
    with model_state_restored(case.model), numerics(case.precision):
        if not own:
            return replace(diagnosis, cure=_epsilon(case, fatal))
        trial = _finite_trial(case)
        case = replace(case, trial=trial or case.trial)
        plain = None if trial is None else case.in_float32().train()
        diagnosis = replace(diagnosis, float32_trial=plain)
        if plain is not None and plain.harm() is not None:
            return diagnosis
        case.model.eval()  # without dropout, unless nothing fails without it
        failing, _ = _judge(case, MAX_SEARCH_BATCHES)
        if not failing:
            case.model.train(was_training)
            failing, _ = _judge(case, MAX_SEARCH_BATCHES)
        return replace(diagnosis, cure=_cure(case, diagnosis, failing, own))


def _judge(case: ExaminedModel, count: int = 1) -> tuple[list[Failing], float]:
    """Judge a precision by all batches of a case.

    Returns:
        The first `count` batches in which it does not hold, none if it holds over all together; and
        the largest difference of the outputs from float32.
    """
    plain = case.in_float32()
    changes: list[GradientChange] = []
    failing: list[Failing] = []
    is_finite, error = True, 0.0
    for index in range(len(case.batches)):
        if not is_finite and len(failing) >= count:
            break
        reference = plain.run(index)
        result = case.finite_run(index) if reference.is_finite else None
        if result is not None:
            changes.append(change_of(result, reference))
            fails = changes[-1].harm is not None
            if result.output is not None and reference.output is not None:
                error = max(error, float((result.output - reference.output).abs().max()))
        else:
            fails = reference.is_finite or not _fails_as_float32(case, index)
            is_finite = is_finite and not fails
        if fails and len(failing) < count:
            failing.append((index, reference))
    is_healthy = is_finite and gradient_harm(changes) is None
    return [] if is_healthy else failing, error


def _holds(case: ExaminedModel, index: int, reference: ScaledGradient) -> bool:
    """Return whether a precision holds for a batch."""
    if reference.is_finite:
        return case.holds(index, reference)
    return _fails_as_float32(case, index)


def _fails_as_float32(case: ExaminedModel, index: int) -> bool:
    """Return whether only those examples of a batch fail that float32 cannot compute either."""
    return _failing_examples(case, index) <= _failing_examples(case.in_float32(), index)


def _failing_examples(case: ExaminedModel, index: int) -> frozenset[int]:
    """Return the examples of a batch for which an operation of the forward pass fails."""
    batch = case.batches[index]
    shape = BatchShape.of(case.model, batch, 0)
    case.begin(index)
    watch = OperationWatch(case.model, shape, batch)
    with contextlib.suppress(RuntimeError), numerics(case.precision), watch:
        case.differentiate(batch)
    case.model.zero_grad(set_to_none=True)
    every = frozenset(range(len(shape.ids)))
    failed = (e for e in watch.events if e.key[1] == "forward" and not e.is_mask)
    rows = (every if each.places is None else each.places.rows for each in failed)
    return frozenset().union(*rows)


def _finite_trial(case: ExaminedModel) -> TrialSettings | None:
    """Return the trial without the batches that float32 cannot compute; None if none is left."""
    plain = case.in_float32()
    batches = (replace(plain, batches=[batch]) for step in case.step_batches for batch in step)
    finite = {id(each.batches[0]) for each in batches if each.run(0).is_finite}
    kept = [[batch for batch in step if id(batch) in finite] for step in case.step_batches]
    kept = [step for step in kept if step]
    return replace(case.trial, step_batches=kept) if kept else None


def _cure(
    case: ExaminedModel, diagnosis: Diagnosis, failing: Sequence[Failing], faults: Sequence[Fault]
) -> Cure | None:
    """Return the first cure that is verified, otherwise the first that was found.

    Args:
        diagnosis: Its diagnosis, with the training in float32 if float32 computes any batch.
        failing: Batches that do not hold.
        faults: Faults that float32 does not have.
    """
    if faults[0].cause == Cause.VANISHING:
        scaled = _other_scale(case, diagnosis)
        if _is_verified(scaled):
            return scaled
    if not failing:
        return None
    cure = _modules(case, diagnosis, failing, faults)
    if _is_verified(cure):
        return cure
    alternative = _other_mode(case, diagnosis)
    return alternative if cure is None or _is_verified(alternative) else cure


def _other_scale(case: ExaminedModel, diagnosis: Diagnosis) -> Cure | None:
    """Return a loss scale at which the gradients do not vanish."""
    if case.precision.compute_dtype != torch.float16:
        return None
    smallest, largest = 0.0, LARGER_SCALES[-1]
    loss_scales, plain = diagnosis.loss_scales, diagnosis.float32_trial
    if loss_scales is not None:
        smallest, largest = loss_scales.smallest or smallest, loss_scales.largest or largest
    for scale in dict.fromkeys((*LARGER_SCALES, largest)):
        scaled = replace(case, loss_scale=None, initial_scale=scale)
        if smallest <= scale <= largest and not _judge(scaled)[0]:
            scaler = f"torch.amp.GradScaler(init_scale={scale:.0f})"
            return _verified(scaled, f"Scale the loss by {scale:,.0f}: {scaler}", plain)
    return None


def _modules(
    case: ExaminedModel, diagnosis: Diagnosis, failing: Sequence[Failing], faults: Sequence[Fault]
) -> Cure | None:
    """Return the smallest set of modules to keep in float32."""
    model, hints = case.model, _hints(case.model, faults)
    failing = list(failing)
    while True:
        paths = smallest_sufficient_modules(model, _sufficiency_test(case, failing), hints)
        if paths is None:
            return None
        names = (*dict.fromkeys(kept_patterns(model).values()), *shortest_patterns(model, paths))
        kept = matching_modules(model, names)
        with case.keeping(kept):
            others, _ = _judge(case)
        if not others or others[0][0] in [index for index, _ in failing]:
            break
        failing += others  # which needs other modules
        hints = (paths, *hints)
    weights = {p for path in kept for p in model.get_submodule(path).parameters()}
    total = sum(p.numel() for p in model.parameters())
    if sum(p.numel() for p in weights) > LARGE_SHARE * total:
        alternative = _other_mode(case, diagnosis)
        if _is_verified(alternative):
            return alternative
    text = ",".join(names)
    flag = f"{FLAG} '{text}'" if set("*?[") & set(text) else f"{FLAG} {text}"
    what, cost = f"Keep {counted(len(kept), 'module')} in float32: {flag}", _cost(case, kept)
    with case.keeping(kept):
        cure = _verified(case, what, diagnosis.float32_trial, cost)
    cure = replace(cure, fp32_modules=names, flag=flag)
    bf16 = _in_other_mode(case)
    if bf16 is not None and all(_holds(bf16, *pair) for pair in failing):
        cure = replace(cure, sentence=f"{cure.sentence} Or use {OTHER_MODE}.")
    return cure


def _in_other_mode(case: ExaminedModel) -> ExaminedModel | None:
    """Return the case in bf16; None if the device does not support it, or it is in bf16."""
    if case.precision.mode == OTHER_MODE:
        return None
    try:
        return replace(case, precision=resolve(OTHER_MODE, case.device), loss_scale=None)
    except InputError:
        return None


def _other_mode(case: ExaminedModel, diagnosis: Diagnosis) -> Cure | None:
    """Return bf16, which has the exponents of float32; None if it does not hold."""
    other = _in_other_mode(case)
    if other is None or _judge(other)[0]:
        return None
    flag = f"{MODE_FLAG} {OTHER_MODE}"
    cure = _verified(other, f"Use {OTHER_MODE}: {flag}", diagnosis.float32_trial)
    return replace(cure, flag=flag)


def _verified(
    case: ExaminedModel, what: str, plain: ShortTrainingResult | None, cost: float | None = None
) -> Cure:
    """Return a cure that a case has received, with what was verified."""
    failing, output_error = _judge(case)
    result = None if failing else case.train()
    harm = None if result is None else result.harm(plain)
    is_verified = result is not None and harm is None
    trial = (
        f"{counted(case.trial.steps, 'training step')} with a learning rate of "
        f"{case.trial.optimizer.learning_rate:g}"
    )
    if is_verified:
        speed = ""
        if cost is not None:
            percent = round(100 * (cost - 1))
            way = "slower" if percent > 0 else "faster"
            is_noise = abs(percent) < MIN_PERCENT
            speed = "about as fast as before" if is_noise else f"about {abs(percent)} % {way}"
            speed = f", {speed}{' in this emulation' if case.precision.is_emulated else ''}"
        sentence = (
            f"{what}. Verified on these batches and in {trial}: gradient and loss as in float32, "
            f"outputs within {output_error:.2g} of fp32{speed}."
        )
    else:
        reason = "the gradient is not" if harm is None else f"in {trial}: {harm}"
        sentence = f"{what}. This is not verified: these batches hold, but {reason}."
    return Cure(fp32_modules=(), verified=is_verified, cost=cost, sentence=sentence)


def _is_verified(cure: Cure | None) -> bool:
    return cure is not None and cure.verified


def _sufficiency_test(case: ExaminedModel, failing: Sequence[Failing]) -> Holds:
    """Return the test of a set of modules, which remembers its results."""

    @cache
    def suffices(paths: frozenset[str]) -> bool:
        with case.keeping({path: path for path in paths}):
            return all(_holds(case, *pair) for pair in failing)

    return lambda paths: suffices(frozenset(paths))


def _hints(model: nn.Module, faults: Sequence[Fault]) -> tuple[tuple[str, ...], ...]:
    """Return the modules that transformers would not load in 16 bits, and those that failed."""
    listed = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    known: tuple[str, ...] = ()
    with contextlib.suppress(InputError):  # the model has no such modules
        known = tuple(matching_modules(model, listed))
    modules = dict(model.named_modules())
    failed = dict.fromkeys(fault.module for fault in faults if modules.get(fault.module))
    called = [path for name in failed if name for path in called_modules(name, modules[name])]
    return known, tuple(called)


def _cost(case: ExaminedModel, kept: Mapping[str, str]) -> float | None:
    """Return the time of a step with modules in float32, relative to that without them.

    It is None if a step raises an error.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * TIMED_STEPS):
        is_kept = bool(turn % 2)
        with case.keeping(kept if is_kept else {}):
            started = time.perf_counter()
            try:
                case.run(0)  # reads the loss, and so waits for the device
            except RuntimeError:
                return None
            times[is_kept].append(time.perf_counter() - started)
    return statistics.median(times[True]) / statistics.median(times[False])


def _epsilon(case: ExaminedModel, faults: Sequence[Fault]) -> Cure | None:
    """Return a larger epsilon of the module that failed first; None if that does not help.

    It cures a division by zero that float32 meets too.
    """
    failed = dict(case.model.named_modules()).get(faults[0].module)
    if failed is None or faults[0].cause not in CURED_BY_EPSILON:
        return None
    name = next((each for each in EPSILON_NAMES if _is_small(getattr(failed, each, None))), None)
    if name is None:
        return None
    same = (module for module in case.model.modules() if type(module) is type(failed))
    modules = [module for module in same if _is_small(getattr(module, name, None))]
    before = [getattr(module, name) for module in modules]
    what = (
        f"Set `{name}` of {counted(len(modules), 'module')} of class {type(failed).__name__} to "
        f"{EPSILON:g} (it is {min(before):g})"
    )
    try:
        for module in modules:
            setattr(module, name, EPSILON)
        cure = _verified(case, what, None)
    finally:
        for module, value in zip(modules, before, strict=True):
            setattr(module, name, value)
    return cure if cure.verified else None


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < EPSILON
