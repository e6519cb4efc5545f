"""Why an operation with finite operands has a result that is not finite.

The operation is repeated in float64. If its result is finite there, the format was too small, and
otherwise the operation has no result for these operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ampft.diagnosis.doctor.findings import Cause, ValueRange

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
_ROOT_NODES = ("Sqrt", "Rsqrt", "Pow", "Norm", "LinalgVectorNorm", "Cdist")
# They write a constant, or choose between tensors.
_FILLING = {
    *("masked_fill", "fill", "full", "full_like", "new_full", "where", "scalar_tensor", "triu"),
    *("tril", "constant_pad_nd", "index_fill", "masked_scatter", "index_put"),
}
_COMBINING = {"_to_copy", "copy", "add", "sub", "mul", "expand", "cat", "minimum"}
# A constant below this is a mask: it is far beyond what scores reach.
_MASK_LIMIT = -1e4
_MAX_MASK_CONSTANTS = 2  # a model can add a causal mask to one of padding


@dataclass(frozen=True)
class Operation:
    """A call of an operator.

    Attributes:
        func: Overload of the operator.
        name: Name of the operator, without the `_` of an operator in place.
        args: Arguments by position, before the call.
        kwargs: Arguments by keyword.
        node: Name of autograd's node in a backward pass, such as `SqrtBackward0`; empty in forward.
        result: Its floating-point result that is examined; None if the call failed.
    """

    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    node: str = ""
    result: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The floating-point operands."""
        return list(floating((*self.args, *self.kwargs.values())))

    def with_result(self, result: Any) -> Operation:
        """Return the call with its result; of several, the first that is not finite."""
        outputs = list(floating(result))
        bad = (output for output in outputs if not bool(output.isfinite().all()))
        first = next(bad, outputs[0] if outputs else None)
        return replace(self, result=first)

    def operands_at(self, where: Tensor) -> list[Tensor]:
        """Return the operands and numbers, in float64, where a tensor of booleans is True.

        Operands whose shape does not fit that of the result are omitted.
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


def largest_result(operation: Operation) -> float | None:
    """Return the largest absolute value that the result has in float64; None if not finite."""
    exact = _in_float64(operation)
    if exact is None or not bool(exact.isfinite().all()):
        return None
    return float(exact.abs().max()) if exact.numel() else None


def ranges_of(operation: Operation) -> tuple[ValueRange, ...]:
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


def cause_of(operation: Operation) -> Cause:
    """Return why the result of an operation is not finite, judged by this operation only."""
    assert operation.result is not None
    bad = ~operation.result.isfinite()
    name = operation.name
    if name in _SOFTMAXES and _has_empty_row(operation):
        return Cause.EMPTY_SOFTMAX
    if any(not bool(tensor.isfinite().all()) for tensor in operation.tensors):
        return Cause.INFINITIES
    if name in _EXPONENTIALS:
        return Cause.EXPONENTIAL
    exact = _in_float64(operation)
    is_overflow = exact is None or bool(exact[bad].isfinite().all())
    if is_overflow:
        return _overflow(name)
    return _invalid(operation, bad)


def is_mask(operation: Operation) -> bool:
    """Return whether an operation only writes minus infinity where something is masked."""
    result = operation.result
    if result is None or not bool((result[~result.isfinite()] == -torch.inf).all()):
        return False
    if operation.name in _FILLING:
        return True
    if operation.name not in _COMBINING:
        return False
    masked = result == -torch.inf
    return any(_is_constant(values) for values in operation.operands_at(masked))


def underflow_of(cause: Cause) -> Cause | None:
    """Return the cause if the operand is 0 only because it is too small for the format."""
    return {
        Cause.LOG_OF_ZERO: Cause.UNDERFLOW_LOG,
        Cause.DIVISION_BY_ZERO: Cause.UNDERFLOW_DIVISION,
        Cause.ZERO_BY_ZERO: Cause.UNDERFLOW_ZERO_BY_ZERO,
        Cause.ROOT_AT_ZERO: Cause.UNDERFLOW_ROOT,
    }.get(cause)


def _is_constant(values: Tensor) -> bool:
    distinct = values.unique()
    return len(distinct) <= _MAX_MASK_CONSTANTS and bool((distinct <= _MASK_LIMIT).all())


def _has_empty_row(operation: Operation) -> bool:
    scores = operation.args[0]
    dimension = operation.args[1]
    if isinstance(dimension, list | tuple):
        dimension = dimension[0]
    return bool((scores == -torch.inf).all(dimension).any())


def _overflow(name: str) -> Cause:
    if name in _CONVERSIONS:
        return Cause.CONVERSION
    if name in _QUOTIENTS:
        return Cause.QUOTIENT
    is_product = name in _PRODUCTS or "attention" in name or "attn" in name
    return Cause.PRODUCT if is_product else Cause.SUM


def _invalid(operation: Operation, bad: Tensor) -> Cause:
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


def _in_float64(operation: Operation) -> Tensor | None:
    """Return the result in float64; None if the operator does not compute in it."""
    if operation.result is None or not str(operation.func).startswith("aten"):
        return None
    kwargs = {name: _wide(value) for name, value in operation.kwargs.items()}
    try:
        results = operation.func(*map(_wide, operation.args), **kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    shape = operation.result.shape
    return next((each for each in floating(results) if each.shape == shape), None)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return [_wide(each) for each in value] if isinstance(value, list | tuple) else value


def floating(values: object) -> Iterator[Tensor]:
    """Yield the floating-point tensors in results or arguments."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from floating(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None
