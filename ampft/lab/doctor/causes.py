"""Why an operation with finite operands has a result that is not finite, and a remedy.

The operation is repeated in float64. If its result is finite there, the format was too small, and
otherwise the operation has no result for these operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from ampft.lab.doctor.diagnosis import Cause, ValueRange

_PRODUCTS = {
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul"),
    *("convolution", "convolution_backward", "mul", "addcmul", "square", "prod", "cumprod", "pow"),
    *("_trilinear", "native_dropout", "native_dropout_backward"),
}
_EXPONENTIALS = {"exp", "expm1", "exp2", "sinh", "cosh"}
_CONVERSIONS = {"_to_copy", "copy", "index_copy", "to"}
_QUOTIENTS = {"div", "reciprocal", "rsqrt", "addcdiv", "remainder", "fmod"}
_LOGS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
_ROOTS = {"sqrt", "rsqrt"}
_SOFTMAXES = {"_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax", "logsumexp"}
UNDERFLOWS = {
    Cause.LOG_OF_ZERO: Cause.UNDERFLOW_LOG,
    Cause.DIVISION_BY_ZERO: Cause.UNDERFLOW_DIVISION,
    Cause.ZERO_BY_ZERO: Cause.UNDERFLOW_ZERO_BY_ZERO,
    Cause.ROOT_AT_ZERO: Cause.UNDERFLOW_ROOT,
}
"""The cause if the operand is 0 only because it is too small for the format."""
OVERFLOWS = {Cause.PRODUCT, Cause.SUM, Cause.CONVERSION, Cause.QUOTIENT}
_ROOT_NODES = ("Sqrt", "Rsqrt", "Pow", "Norm", "LinalgVectorNorm", "Cdist")
# Masks are written by the first, and carried to a softmax by both.
_FILLING = {
    *("masked_fill", "fill", "full", "full_like", "new_full", "where", "scalar_tensor", "triu"),
    *("tril", "constant_pad_nd", "index_fill", "masked_scatter", "index_put"),
}
_COMBINING = {
    *("_to_copy", "copy", "clone", "add", "sub", "rsub", "mul", "neg", "expand", "cat", "stack"),
    *("minimum", "maximum", "index", "index_select", "gather", "repeat", "amax", "amin", "max"),
}
# Their results are copies or sums of entries, so that a large constant operand decides.
_ADDING = {"_to_copy", "copy", "add", "sub", "rsub", "cat", "stack", "minimum", "where"}
_HIDING = {"_softmax", "softmax", "_safe_softmax", "exp"}
_OVERWRITING = {
    *("copy", "fill", "zero", "normal", "uniform", "bernoulli", "random", "exponential")
}
# Scores stay far below it.
_MASK_LIMIT = 1e4
_MAX_MASK_CONSTANTS = 2  # a model can add a causal mask to one of padding


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator."""

    func: Any  # Overload of the operator.
    name: str  # Name of the operator, without the `_` of an operator in place.
    args: tuple[Any, ...]  # Arguments by position, before the call.
    kwargs: Mapping[str, Any]  # Arguments by keyword.
    # Name of autograd's node in a backward pass, such as `SqrtBackward0`; empty in forward.
    node: str = ""
    # Its floating-point result that is examined; None if the call failed.
    result: Tensor | None = None

    @property
    def before(self) -> Tensor | None:
        """The tensor that an operator in place reads and changes; None if there is none."""
        is_read = self.name not in _OVERWRITING
        return self.args[0] if is_read and self._changes_first else None

    @property
    def _changes_first(self) -> bool:
        """Whether the first argument is a tensor that is changed in place."""
        first = next(iter(self.func._schema.arguments), None)
        alias = None if first is None or first.is_out else first.alias_info
        return bool(alias and alias.is_write and self.args and isinstance(self.args[0], Tensor))

    @property
    def tensors(self) -> list[Tensor]:
        """The floating-point operands that are read: without those that are only written."""
        is_overwritten = self._changes_first and self.name in _OVERWRITING
        written = {each.name for each in self.func._schema.arguments if each.is_out}
        named = (value for name, value in self.kwargs.items() if name not in written)
        return list(floating_tensors((*self.args[is_overwritten:], *named)))

    def with_result(self, result: Any) -> OperatorCall:
        """Return the call with its result: the first that is not finite, if there are several."""
        outputs = list(floating_tensors(result))
        bad = (output for output in outputs if not bool(output.isfinite().all()))
        first = next(bad, outputs[0] if outputs else None)
        return replace(self, result=first)

    def with_finite_operands(self) -> OperatorCall:
        """Return the call, repeated with 1 in place of operands that are not finite."""

        def finite(tensor: Tensor) -> Tensor:
            is_floating = tensor.is_floating_point()
            return tensor.nan_to_num(1.0, 1.0, 1.0) if is_floating else tensor.clone()

        args, kwargs = tree_map_only(Tensor, finite, (self.args, dict(self.kwargs)))
        healed = replace(self, args=args, kwargs=kwargs)
        return healed.with_result(self.func(*args, **kwargs))

    def operands_at(self, where: Tensor) -> list[Tensor]:
        """Return the operands and numbers, in float64, where a tensor of booleans is True.

        Operands that cannot be expanded to the shape of `where` are omitted.
        """
        found = []
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, bool | torch.dtype) or not isinstance(value, Tensor | int | float):
                continue
            tensor = torch.as_tensor(value).to(where.device).double()
            try:
                found.append(tensor.expand(where.shape)[where])
            except RuntimeError:
                continue
        return found


def largest_result(operation: OperatorCall) -> float | None:
    """Return the largest absolute value that the result has in float64; None if not finite."""
    exact = _in_float64(operation)
    return None if exact is None or not exact.numel() else _finite(float(exact.abs().max()))


def ranges_of(operation: OperatorCall) -> tuple[ValueRange, ...]:
    """Return the ranges of the operands."""
    ranges = []
    for position, tensor in enumerate(operation.tensors, start=1):
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.abs()
        ends = (None, None) if not size.numel() else (float(size.min()), float(size.max()))
        ranges.append(
            ValueRange(
                name=f"operand {position}, {shape}, {dtype}",
                smallest=_finite(ends[0]),
                largest=_finite(ends[1]),
            )
        )
    return tuple(ranges)


def cause_of(operation: OperatorCall) -> Cause:
    """Return why the result of an operation is not finite, judged by this operation only."""
    assert operation.result is not None
    bad = ~operation.result.isfinite()
    name = operation.name
    if name in _SOFTMAXES:
        scores, dimension = operation.args[:2]
        dimension = dimension[0] if isinstance(dimension, list | tuple) else dimension
        if bool((scores == -torch.inf).all(dim=dimension).any()):
            return Cause.EMPTY_SOFTMAX
    if any(not bool(tensor.isfinite().all()) for tensor in operation.tensors):
        return Cause.INFINITIES
    if name in _EXPONENTIALS:
        return Cause.EXPONENTIAL
    exact = _in_float64(operation)
    if exact is not None and not bool(exact[bad].isfinite().all()):
        return _invalid(operation, bad)
    if name in _CONVERSIONS:
        return Cause.CONVERSION
    if name in _QUOTIENTS:
        return Cause.QUOTIENT
    is_product = name in _PRODUCTS or "attention" in name or "attn" in name
    return Cause.PRODUCT if is_product else Cause.SUM


def writes_mask(operation: OperatorCall, is_derived: Callable[[Tensor], bool]) -> bool:
    """Return whether an operation makes entries infinite as a mask does: a few by a large constant.

    It is a mask only if a softmax then hides these entries, which later operations show.

    Args:
        operation: An operation of the forward pass with finite operands.
        is_derived: Function that tells whether a tensor depends on weights.
    """
    result = operation.result
    if result is None or operation.name not in _FILLING | _COMBINING:
        return False
    bad = ~result.isfinite()
    if bool(result.isnan().any()) or result.dim() == 0:
        return False
    if operation.name in _FILLING - {"where"}:  # by a number, or by entries of another tensor
        return not any(map(is_derived, operation.tensors[1:]))
    if bool(bad.all()):
        return False
    constant = [each for each in operation.tensors if not is_derived(each)]
    entries = [_constant_at(each, bad) for each in constant if each.dim()]
    known = [values for values in entries if values is not None]
    if operation.name in _ADDING and any(bool((v.abs() >= _MASK_LIMIT).all()) for v in known):
        return True
    return len(constant) == len(operation.tensors) > 0 and len(known) == len(entries)


def carries_mask(name: str) -> bool:
    """Return whether an operator passes masked entries on as they are."""
    return name in _FILLING | _COMBINING


def hides_mask(name: str) -> bool:
    """Return whether an operator turns masked entries into zeros."""
    return name in _HIDING or "attention" in name or "attn" in name


def _constant_at(tensor: Tensor, where: Tensor) -> Tensor | None:
    """Return the entries of an operand where `where` is True; None if they are not constant."""
    try:
        values = tensor.expand(where.shape)[where].double()
    except RuntimeError:
        return None
    return values if len(values.unique()) <= _MAX_MASK_CONSTANTS else None


def _invalid(operation: OperatorCall, bad: Tensor) -> Cause:
    name, operands = operation.name, operation.operands_at(bad)
    first = operands[0] if operands else None
    if operation.node.startswith(_ROOT_NODES) and name in (*_QUOTIENTS, "pow", "mul"):
        return Cause.ROOT_AT_ZERO
    if operation.node.startswith("Log") and name in _QUOTIENTS:
        return Cause.LOG_OF_ZERO
    if first is None:
        return Cause.INVALID
    if name in _LOGS:
        return Cause.LOG_OF_ZERO if bool((first == _LOGS[name]).any()) else Cause.LOG_OF_NEGATIVE
    if (name in _ROOTS or name == "pow") and bool((first < 0).any()):
        return Cause.ROOT_OF_NEGATIVE
    if name in _QUOTIENTS or name == "pow":
        both_zero = name in ("div", "addcdiv", "remainder", "fmod") and bool((first == 0).all())
        return Cause.ZERO_BY_ZERO if both_zero else Cause.DIVISION_BY_ZERO
    return Cause.INVALID


def _in_float64(operation: OperatorCall) -> Tensor | None:
    """Return the result in float64; None if the operator does not compute in it."""
    if operation.result is None or not str(operation.func).startswith("aten"):
        return None
    args, kwargs = tree_map(_wide, (operation.args, dict(operation.kwargs)))
    try:
        results = operation.func(*args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    shape = operation.result.shape
    return next((each for each in floating_tensors(results) if each.shape == shape), None)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    is_floating = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if is_floating else value


def floating_tensors(values: object) -> Iterator[Tensor]:
    """Yield the floating-point tensors in results or arguments, without sparse ones."""
    if isinstance(values, Tensor):
        if values.is_floating_point() and values.layout is torch.strided:
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from floating_tensors(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


def remedy_for(cause: Cause, *, in_float32: bool = False, is_harmless: bool = False) -> str:
    """Return what to do, in one sentence.

    Args:
        cause: Why the operation failed.
        in_float32: Whether float32 fails too.
        is_harmless: Whether training works nevertheless.
    """
    if cause is Cause.HALF_WEIGHTS and is_harmless:
        return _HALF_CHECKPOINT
    is_too_large = in_float32 and cause in (*OVERFLOWS, Cause.EVERY_SCALE)
    return _TOO_LARGE if is_too_large else REMEDIES[cause]


_KEEP = "Keep the module in float32 with --fp32_modules, or train in bf16, whose range is float32's"
_OVERFLOW = f"{_KEEP}."
_TOO_LARGE = (
    "Normalize or bound what this operation receives: its result is too large for float32 too, so "
    "that no precision helps."
)
_HALF_CHECKPOINT = (
    "Nothing to fix: the checkpoint was saved in 16 bits, and its weights are float32 numbers now. "
    "A float32 version of it, if there is one, has more digits."
)
REMEDIES: dict[Cause, str] = {
    Cause.PRODUCT: _OVERFLOW,
    Cause.SUM: _OVERFLOW,
    Cause.CONVERSION: "Do not convert this tensor to 16 bits: keep the module in float32 with "
    "--fp32_modules, or train in bf16.",
    Cause.EXPONENTIAL: "Subtract the maximum before exp, or use log_softmax or a loss with logits, "
    "which do that.",
    Cause.QUOTIENT: "Bound the denominator away from 0, or divide in float32.",
    Cause.LOG_OF_ZERO: "Use log_softmax or a loss with logits instead of the log of a probability, "
    "or clamp the argument.",
    Cause.LOG_OF_NEGATIVE: "Clamp the argument of the log to a positive number.",
    Cause.ZERO_BY_ZERO: "Add an epsilon to the denominator, or mask the entries where it is 0.",
    Cause.DIVISION_BY_ZERO: "Add an epsilon to the denominator.",
    Cause.ROOT_OF_NEGATIVE: "Clamp the argument of the root at 0; rounding can make a variance "
    "negative.",
    Cause.ROOT_AT_ZERO: "Add an epsilon inside the root, because its derivative at 0 is infinite.",
    Cause.INFINITIES: "Mask with the smallest finite number of the dtype instead of -inf, or do "
    "not subtract or multiply masked scores.",
    Cause.INVALID: "Check the operands of this operation.",
    Cause.UNDERFLOW_LOG: "Compute the log in float32, from logits if they exist: the argument is "
    "positive but too small for 16 bits.",
    Cause.UNDERFLOW_DIVISION: "Compute the denominator in float32, or use an epsilon of at least "
    "1e-4: smaller ones become 0 or subnormal in binary16.",
    Cause.UNDERFLOW_ZERO_BY_ZERO: "Compute numerator and denominator in float32: both are too "
    "small for 16 bits.",
    Cause.UNDERFLOW_ROOT: "Compute the root in float32, with an epsilon of at least 1e-4 inside.",
    Cause.MASK: "Mask with torch.finfo(scores.dtype).min, or mask in float32: the constant does "
    "not exist in binary16.",
    Cause.EMPTY_SOFTMAX: "Leave at least one key visible in every row, or set rows without a "
    "visible key to 0 after the softmax.",
    Cause.PARAMETER: "Load another checkpoint: a weight is NaN or infinite before training.",
    Cause.INPUT: "Remove or fix these examples: the input is NaN or infinite.",
    Cause.HALF_WEIGHTS: "Load the weights in float32 (dtype=torch.float32): autocast converts them "
    "per operation, and the optimizer needs the full precision.",
    Cause.LARGE_SCALE: "Lower the loss scale, or use a GradScaler, which skips such a step and "
    "halves the scale.",
    Cause.EVERY_SCALE: f"{_KEEP}: no loss scale helps.",
    Cause.VANISHING: "Use a larger loss scale (a GradScaler), or train in bf16, which has "
    "float32's exponents.",
    Cause.ROUNDING: "Keep the module in float32 with --fp32_modules, or subtract what its values "
    "have in common: they differ by less than 16 bits can tell apart.",
    Cause.PADDING: "Nothing to fix: no result depends on these positions, but pooling over all "
    "positions would.",
}
