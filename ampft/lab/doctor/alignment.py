"""A mode and float32 aligned: the error of every module, where it is born, grows or is forgiven.

Both passes run in this process, one batch after the other, without dropout and from the same random
state. They share their weights, so that no files are needed, and a mode cannot change the float32
pass: autocast, the emulation and TF32 are contexts that end. A pass is compared while it runs, so
only the float32 pass of one batch is kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn

from ampft.checks.harm import GradientChange
from ampft.engine.step import ScaledGradient
from ampft.lab.doctor.case import (
    ExaminedModel,
    change_of,
    first_floating,
    kept_patterns,
    model_state_restored,
)
from ampft.lab.doctor.diagnosis import Alignment, BatchMean, ModuleError
from ampft.precision.accelerator import numerics
from ampft.precision.float32_modules import called_modules, matching_modules

LEVEL = 0.95
DOUBLED, GROWN, HALVED = 2.0, 1.1, 0.5
LIKELY = 0.5  # of the largest growth
TRIED = 8  # modules
Key = tuple[str, int]
"""Path of a module, and the number of the call."""


def align(case: ExaminedModel, *, fp32_modules: Sequence[str] = ()) -> Alignment | None:
    """Compare the precision of a case with float32, module by module.

    Args:
        fp32_modules: Patterns of further modules that the mode keeps in float32.

    Returns:
        The errors; None if loss or gradient of a batch are not finite in the mode.
    """
    errors: dict[Key, dict[str, list[float]]] = {}
    whole: dict[str, list[float]] = {"cosine": [], "error": [], "loss": []}
    kept = matching_modules(case.model, fp32_modules)
    with model_state_restored(case.model), numerics(case.precision), case.keeping(kept):
        case.model.eval()
        for index in range(len(case.batches)):
            reference, result, found = _compared(case, index)
            if result is None:
                return None
            for key, values in found.items():
                for kind, value in values.items():
                    errors.setdefault(key, {}).setdefault(kind, []).append(value)
            change = change_of(result, reference)
            whole["cosine"].append(change.cosine)
            whole["error"].append(change.error)
            whole["loss"].append(result.loss - reference.loss)
        own_patterns = tuple(kept_patterns(case.model))
    modules = dict(case.model.named_modules())
    return Alignment(
        mode=case.precision.mode,
        fp32_modules=tuple(fp32_modules) or own_patterns,
        batches=len(case.batches),
        modules=tuple(
            _module(modules, key, values) for key, values in errors.items() if "outputs" in values
        ),
        gradient_cosine=batch_mean(whole["cosine"]),
        gradient_error=batch_mean(whole["error"]),
        loss_change=batch_mean(whole["loss"]),
    )


def _compared(
    case: ExaminedModel, index: int
) -> tuple[ScaledGradient, ScaledGradient | None, dict[Key, dict[str, float]]]:
    """Return a batch in float32, in the mode if it is finite there, and the errors of modules."""
    with ModuleRecorder(case.model) as expected:
        reference = case.in_float32().run(index)
    finite = case.finite_run(index)
    if finite is None:
        return reference, None, {}
    with ModuleRecorder(case.model, expected, finite.scale) as compared:
        result = case.run(index, scale=finite.scale)
    return reference, result, compared.errors


def rounding_module(case: ExaminedModel) -> str:
    """Return the module whose rounding changes the direction of the gradient.

    Rounding is measured by what the values of a module tell: the error of its output over the
    deviation of the output from its mean over all examples and tokens. Where it grows most, the
    module is kept in float32, and the first with which the gradient is right again is the answer.

    Args:
        case: A case in evaluation mode, whose gradient is finite and harmful.

    Returns:
        Path of the module; that with the largest growth if no single module suffices.
    """
    growth: dict[str, float] = {}
    worst = None
    for index in range(len(case.batches)):
        reference, result, errors = _compared(case, index)
        if result is None or not reference.is_finite:
            continue
        for (path, _), values in errors.items():
            gain = values.get("spread_outputs", 0.0) - values.get("spread_inputs", 0.0)
            growth[path] = max(growth.get(path, 0.0), gain)
        if worst is None and not case.holds(index, reference):
            worst = (index, reference)
    largest = max(growth.values(), default=0.0)
    likely = [path for path, gain in growth.items() if gain >= largest * LIKELY]
    # Of a module and one inside it that explains the same, the inner one.
    likely.sort(key=lambda path: (-path.count("."), -growth[path]))
    for path in likely[:TRIED]:
        module = case.model.get_submodule(path)
        with case.keeping({each: each for each in called_modules(path, module)}):
            if worst is not None and case.holds(*worst):
                return path
    return max(growth, key=lambda path: growth[path], default="")


def _module(modules: dict[str, nn.Module], key: Key, values: dict[str, list[float]]) -> ModuleError:
    path, call = key
    estimates = {kind: batch_mean(errors) for kind, errors in values.items()}
    inputs, outputs = estimates.get("inputs"), estimates["outputs"]
    return ModuleError(
        module=path,
        kind=type(modules[path]).__name__,
        call=call,
        is_leaf=not list(modules[path].children()),
        inputs=inputs,
        outputs=outputs,
        gradients=estimates.get("gradients"),
        role="" if inputs is None else error_role(inputs.mean, outputs.mean),
    )


def error_role(before: float, after: float) -> str:
    """Return what a module does to the error of its input: a role of `ModuleError`."""
    if after >= DOUBLED * before:
        return "born" if after else "carried"
    if after <= HALVED * before:
        return "forgiven"
    return "grows" if after >= GROWN * before else "carried"


def batch_mean(values: Sequence[float]) -> BatchMean:
    """Return the mean of values and its interval by Student's t."""
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return BatchMean(mean=mean, low=None, high=None)
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * statistics.stdev(values) / math.sqrt(count)
    return BatchMean(mean=mean, low=mean - half, high=mean + half)


class ModuleRecorder:
    """Context that keeps what modules receive and return, or compares it with another recorder.

    Args:
        model: Model, run once inside.
        expected: ModuleRecorder of the pass in float32; None to keep the values of this pass.
        scale: Loss scale of this pass.
    """

    def __init__(
        self, model: nn.Module, expected: ModuleRecorder | None = None, scale: float = 1.0
    ) -> None:
        self._model = model
        self._expected = expected
        self._scale = scale
        self._values: dict[tuple[Key, str], Tensor] = {}
        self._calls: dict[str, int] = {}
        self._hooks = ExitStack()
        # Relative errors by module and call: `inputs`, `outputs` and `gradients`, and of the first
        # two over the deviation from the mean: `spread_inputs`, `spread_outputs`.
        self.errors: dict[Key, dict[str, float]] = {}

    def __enter__(self) -> ModuleRecorder:
        for path, module in self._model.named_modules():
            if path:
                hook = module.register_forward_hook(partial(self._returned, path))
                self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _returned(self, path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        del module
        returned = first_floating(output)
        if returned is None:
            return
        self._calls[path] = self._calls.get(path, 0) + 1
        key = (path, self._calls[path])
        received = first_floating(inputs)
        if received is not None:
            self._add(key, "inputs", received)
        self._add(key, "outputs", returned)
        if returned.requires_grad:
            returned.register_hook(lambda grad: self._add(key, "gradients", grad / self._scale))

    def _add(self, key: Key, kind: str, tensor: Tensor) -> None:
        """Keep a tensor, or compare it."""
        if self._expected is None:
            self._values[key, kind] = tensor.detach().clone()
            return
        expected = self._expected._values.get((key, kind))
        if expected is not None and expected.shape == tensor.shape:
            errors = self.errors.setdefault(key, {})
            error = GradientChange.of([tensor.detach()], [expected]).error
            if math.isfinite(error):
                errors[kind] = error
            if kind != "gradients":
                spread = expected - expected.flatten(0, -2).mean(0) if expected.dim() > 1 else None
                norm = 0.0 if spread is None else float(spread.double().norm())
                if math.isfinite(error) and norm:
                    ratio = float(expected.double().norm()) / norm
                    errors[f"spread_{kind}"] = error * ratio
