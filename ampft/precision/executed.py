"""The dtypes that a training step really multiplied and stored, measured rather than configured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.errors import InputError
from ampft.precision.emulation import inside_emulation
from ampft.precision.resolve import Precision
from ampft.precision.tf32 import float32_product_loses_bits

KINDS = ("projection", "convolution", "recurrent", "attention")
_PLURALS = {"projection": "projections", "convolution": "convolutions", "recurrent": "recurrent"}

# Operators by name -> which arguments are multiplied. Two-dimensional products are projections
# (linear layers); batched ones are attention, whose math path is made of them. A layer with
# three-dimensional weights counts as attention too.
_OPERANDS: dict[str, tuple[str, slice]] = {
    **dict.fromkeys(("mm", "_int_mm", "_scaled_mm", "linear", "mv"), ("projection", slice(0, 2))),
    **dict.fromkeys(("mkldnn_linear", "_grouped_mm"), ("projection", slice(0, 2))),
    **dict.fromkeys(("addmm", "_addmm_activation", "addmv"), ("projection", slice(1, 3))),
    "bmm": ("attention", slice(0, 2)),
    "baddbmm": ("attention", slice(1, 3)),
    **dict.fromkeys(("convolution", "_convolution"), ("convolution", slice(0, 2))),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), ("convolution", slice(0, 2))),
    "convolution_backward": ("convolution", slice(0, 3)),
    **dict.fromkeys(("_cudnn_rnn", "mkldnn_rnn_layer"), ("recurrent", slice(0, 2))),
}


@dataclass(frozen=True)
class ProductRow:
    """Products of one sort in a step.

    Attributes:
        kind: One of `KINDS`.
        direction: `forward` or `backward`.
        inputs: Dtypes of the operands.
        output: Dtype of the result.
        accumulator: Dtype of the sums as far as it is known: by construction where the product
            is emulated, by the documentation of the library elsewhere, else `unknown`.
        count: Products.
    """

    kind: str
    direction: str
    inputs: tuple[str, ...]
    output: str
    accumulator: str
    count: int


@dataclass(frozen=True)
class ExecutedDtypes:
    """What one training step computed with.

    Attributes:
        rows: Products, the most frequent first within each kind.
        parameters: Dtype name -> tensors, as are the next two.
        gradients: Empty when they were cleared before the census.
        optimizer_state: Without scalars such as step counters.
        is_emulated: Whether float16 products were imitated in float32.
        float32_products_lose_bits: The TF32 probe; None where no CUDA device was asked.
    """

    rows: tuple[ProductRow, ...]
    parameters: Mapping[str, int]
    gradients: Mapping[str, int]
    optimizer_state: Mapping[str, int]
    is_emulated: bool
    float32_products_lose_bits: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Return the same as lists, dictionaries, strings and numbers, for JSON."""
        plain = asdict(self)
        plain["rows"] = [{**row, "inputs": list(row["inputs"])} for row in plain["rows"]]
        return plain

    def summary(self) -> str:
        """Return one line for people."""
        kinds = [_kind_in_words(kind, self.rows) for kind in KINDS]
        products = ", ".join(words for words in kinds if words) or "no matrix products seen"
        if self.is_emulated:
            products += ", emulated"
        return f"{products}; {self._stored_in_words()}"

    def _stored_in_words(self) -> str:
        censuses = {
            "weights": self.parameters,
            "gradients": self.gradients,
            "optimizer state": self.optimizer_state,
        }
        by_dtypes: dict[str, list[str]] = {}
        for name, census in censuses.items():
            if census:
                by_dtypes.setdefault(" and ".join(sorted(census)), []).append(name)
        words = [f"{', '.join(names)} {dtypes}" for dtypes, names in by_dtypes.items()]
        return "; ".join(words) or "tensors not counted"


def _kind_in_words(kind: str, rows: Iterable[ProductRow]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.kind == kind:
            operands = sorted(set(row.inputs)) if len(row.inputs) > 2 else row.inputs
            left, right = operands[0], operands[-1]
            counts[f"{left} x {right} -> {row.output}", row.accumulator] += row.count
    if not counts:
        return ""
    total = counts.total()
    parts = []
    for (product, accumulator), count in counts.most_common():
        share = "" if count == total else f", {count} of {total}"
        parts.append(f"{product} ({accumulator} sums{share})")
    return f"{_PLURALS.get(kind, kind)} {' and '.join(parts)}"


class ProductRecorder(TorchDispatchMode):
    """Records the matrix products of the code inside it, forward and backward.

    Enter it inside `numerics(precision)` and around the whole first training step: it sees the
    operands as autocast left them. Composite operators reach it whole under `inference_mode`.

    Args:
        precision: What the step was meant to compute in.
    """

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._precision = precision
        self._is_emulated = precision.emulates_binary16
        self._counts: Counter[tuple[str, str, tuple[str, ...], str, str]] = Counter()
        self._cuda_device: torch.device | None = None

    def __enter__(self) -> ProductRecorder:
        """Begin to record.

        Raises:
            InputError: The precision is emulated, and this is not inside `numerics(precision)`.
        """
        if self._is_emulated and not inside_emulation():
            raise InputError(
                "ProductRecorder: emulated fp16 computes inside `ampft.numerics(precision)` alone. "
                "Enter that around the whole run, and the recorder inside it."
            )
        super().__enter__()
        return self

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and count it when it multiplies matrices."""
        result = func(*args, **(kwargs or {}))
        found = _operands_of(func, args)
        if found is not None:
            kind, operands = found
            output = next(t for t in _tensors(result))
            self.observe(kind, operands, output)
        return result

    def observe(self, kind: str, operands: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Count one product.

        Args:
            kind: One of `KINDS`.
            operands: The tensors that are multiplied, as the product takes them.
            output: The result.
        """
        # Inside a backward pass the engine has a current node, in recomputed forwards too.
        backward = torch._C._current_autograd_node() is not None
        inputs = tuple(dtype_name(t.dtype) for t in operands)
        accumulator = _accumulator(operands[0], self._precision)
        direction = "backward" if backward else "forward"
        self._counts[kind, direction, inputs, dtype_name(output.dtype), accumulator] += 1
        if output.is_cuda:
            self._cuda_device = output.device

    def census(
        self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> ExecutedDtypes:
        """Return what was recorded, with what `model` and `optimizer` hold now.

        Call it outside the recorder, after the optimizer's step and before gradients are cleared.
        """
        held = tensor_census(model, optimizer)
        ordered = sorted(self._counts.items(), key=lambda item: (KINDS.index(item[0][0]), -item[1]))
        device = self._cuda_device
        return ExecutedDtypes(
            rows=tuple(ProductRow(*key, count=count) for key, count in ordered),
            parameters=held.parameters,
            gradients=held.gradients,
            optimizer_state=held.optimizer_state,
            is_emulated=self._is_emulated,
            float32_products_lose_bits=float32_product_loses_bits(device) if device else None,
        )


def _operands_of(
    func: Any,
    args: tuple[Any, ...],
) -> tuple[str, tuple[torch.Tensor, ...]] | None:
    packet = getattr(func, "overloadpacket", None)
    name = getattr(packet, "__name__", "").removesuffix("_")
    if name in _OPERANDS:
        kind, where = _OPERANDS[name]
    elif name == "matmul":
        kind, where = ("projection" if args[1].ndim == 2 else "attention"), slice(0, 2)
    elif "attention" in name and "overrideable" not in name:
        # Queries, keys and values; the gradient of the output comes before them.
        kind, where = "attention", slice(0, 4 if "backward" in name else 3)
    else:
        return None
    operands = tuple(_tensors(args[where]))
    return (kind, operands) if operands else None


def _tensors(values: object) -> Iterable[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        yield from (value for value in values if isinstance(value, torch.Tensor))


def _accumulator(operand: torch.Tensor, precision: Precision) -> str:
    """Return the dtype of a product's sums as far as it is known.

    Sources: oneDNN's primitives for bfloat16 accumulate in float32; cuBLAS computes 16-bit
    products with the compute type float32 unless `allow_fp16_accumulation` is set.
    """
    if operand.dtype in (torch.float32, torch.float64):
        return dtype_name(operand.dtype)
    if operand.dtype == torch.float16 and precision.is_emulated:
        return "float32"
    if operand.device.type == "cpu":
        return "float32" if operand.dtype == torch.bfloat16 else "unknown"
    if operand.device.type == "cuda":
        narrow = torch.backends.cuda.matmul.allow_fp16_accumulation
        return "float16" if narrow and operand.dtype == torch.float16 else "float32"
    return "unknown"


def contradiction(precision: Precision, executed: ExecutedDtypes) -> str | None:
    """Return how a measured step contradicts the requested precision, or None.

    Projections, convolutions and recurrent layers have to multiply in the compute dtype. Attention
    need not: on a CPU its math path multiplies in float32 under dropout, and that is reported.
    """
    lost = executed.float32_products_lose_bits
    if lost is not None and lost != precision.row.has_fast_float32:
        return (
            f"mode {precision.mode} was asked for, but float32 products "
            f"{'ran in TF32' if lost else 'did not run in TF32'}"
        )
    rows = [row for row in executed.rows if row.kind != "attention"]
    wanted = dtype_name(precision.compute_dtype)
    if precision.row.replaces_layers:
        # Only layers that are large enough are converted; the others multiply in bfloat16.
        return None if any(wanted in row.inputs for row in rows) else _no_product(precision)
    strays = [row for row in rows if set(row.inputs) != {wanted}]
    if strays:
        worst = max(strays, key=lambda row: row.count)
        total = sum(row.count for row in rows)
        return (
            f"mode {precision.mode} was asked for, but {sum(row.count for row in strays)} of "
            f"{total} products of the first step ran in another dtype, most of them "
            f"{_PLURALS[worst.kind]} of {' x '.join(worst.inputs)} in the {worst.direction} pass"
        )
    if precision.is_emulated and not executed.rows:
        return _no_product(precision)
    return stored_otherwise(precision, executed)


def _no_product(precision: Precision) -> str:
    wanted = dtype_name(precision.compute_dtype)
    return f"mode {precision.mode} was asked for, but no product of {wanted} was seen"


@dataclass(frozen=True)
class TensorCensus:
    """How many tensors of each dtype a model and its optimizer hold (dtype name -> tensors)."""

    parameters: Mapping[str, int] = field(default_factory=dict)
    gradients: Mapping[str, int] = field(default_factory=dict)
    optimizer_state: Mapping[str, int] = field(default_factory=dict)


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def tensor_census(model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> TensorCensus:
    """Count the tensors of each dtype in a model, its gradients and its optimizer's state.

    Args:
        model: None counts no parameters and no gradients.
        optimizer: None counts no state. Scalars (step counters) are left out.
    """
    parameters = list(model.parameters()) if model is not None else []
    states = optimizer.state.values() if optimizer is not None else ()
    state = [
        value
        for entry in states
        for value in entry.values()
        if isinstance(value, torch.Tensor) and value.ndim > 0
    ]
    return TensorCensus(
        parameters=_count(parameters),
        gradients=_count(p.grad for p in parameters if p.grad is not None),
        optimizer_state=_count(state),
    )


def stored_otherwise(precision: Precision, executed: ExecutedDtypes) -> str | None:
    """Return what a mode with bfloat16 weights held in another dtype, or None.

    Nothing is asked of modes with float32 weights: those that train were checked before, and
    frozen ones may have any dtype.
    """
    if precision.storage_dtype == torch.float32:
        return None
    censuses = {
        "weights": executed.parameters,
        "gradients": executed.gradients,
        "optimizer state": executed.optimizer_state,
    }
    for what, census in censuses.items():
        others = sorted(set(census) - {dtype_name(precision.storage_dtype)})
        if others:
            stored = f"{what} were stored in {' and '.join(others)}"
            return f"mode {precision.mode} was asked for, but {stored}"
    return None


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors; one that is given twice, or is another's view, counts once.

    Of a sharded tensor, the part on this process counts.
    """
    places: dict[tuple[torch.device, int], int] = {}
    for tensor in tensors:
        local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        place = (local.device, local.data_ptr())
        places[place] = max(places.get(place, 0), local.numel() * local.element_size())
    return sum(places.values())


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state, step counters included; 0 before its first step."""
    return tensor_bytes(
        value
        for entry in optimizer.state.values()
        for value in entry.values()
        if isinstance(value, torch.Tensor)
    )


def _count(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    return dict(Counter(dtype_name(t.dtype) for t in tensors))


def check_storage(model: nn.Module, dtype: torch.dtype) -> None:
    """Check that all weights that train are stored in `dtype`.

    Raises:
        InputError: Names the first parameter that is not.
    """
    if dtype == torch.float32:
        check_trainable_float32(model)
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != dtype:
            raise InputError(
                f"parameter {name} is {dtype_name(parameter.dtype)}; this mode stores weights in "
                f"{dtype_name(dtype)}. Cast the model with ampft.cast_weights before the optimizer "
                "is made."
            )


def check_trainable_float32(model: nn.Module) -> None:
    """Check that all weights that train are float32, which mixed precision relies on.

    Raises:
        InputError: Names the first parameter that is not.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise InputError(
                f"parameter {name} is {dtype_name(parameter.dtype)}; weights that train have to be "
                f"float32, since updates smaller than a 16-bit weight's spacing would be lost. "
                f"Load the model with dtype=torch.float32, or call model.float()."
            )
