"""The dtypes that a training step multiplied and stored, measured rather than configured."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from ampft.errors import InputError
from ampft.precision.extension_points import EMULATION
from ampft.precision.float32_modules import FLAG as FLOAT32_MODULES_FLAG
from ampft.precision.float32_modules import float32_module_start
from ampft.precision.resolve import Precision
from ampft.precision.tf32 import float32_product_loses_bits, sums_may_be_rounded
from ampft.text.numbers import counted

KINDS = ("projection", "convolution", "recurrent", "bilinear", "attention", "custom operator")
_PLURALS = {"projection": "projections", "convolution": "convolutions", "recurrent": "recurrent"}
# Autocast leaves bilinear layers in float32, and the math path of attention on a CPU does too.
# What a custom operator multiplies is unknown. All three are reported.
_ONLY_REPORTED = ("bilinear", "attention", "custom operator")
_TORCH_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "torch_attn")

# Operator name -> kind of product and slice of the arguments that are multiplied. A batched product
# is a projection if one operand is a weight, and attention otherwise; see `ProductRecorder`.
_BATCHED = "batched"
_OPERANDS: dict[str, tuple[str, slice]] = {
    **dict.fromkeys(("mm", "_int_mm", "_scaled_mm", "linear", "mv"), ("projection", slice(0, 2))),
    **dict.fromkeys(("mkldnn_linear", "_grouped_mm"), ("projection", slice(0, 2))),
    **dict.fromkeys(("addmm", "_addmm_activation", "addmv"), ("projection", slice(1, 3))),
    **dict.fromkeys(("bmm", "matmul"), (_BATCHED, slice(0, 2))),
    **dict.fromkeys(("baddbmm", "addbmm"), (_BATCHED, slice(1, 3))),
    "_trilinear": ("bilinear", slice(0, 3)),
    **dict.fromkeys(("convolution", "_convolution"), ("convolution", slice(0, 2))),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), ("convolution", slice(0, 2))),
    "convolution_backward": ("convolution", slice(0, 3)),
    **dict.fromkeys(("_cudnn_rnn", "mkldnn_rnn_layer"), ("recurrent", slice(0, 2))),
}


@dataclass(frozen=True)
class ProductRow:
    """The matrix products of a step that agree in kind, direction and dtypes."""

    kind: str  # One of `KINDS`.
    direction: str  # `forward` or `backward`.
    inputs: tuple[str, ...]  # Dtypes of the operands.
    output: str  # Dtype of the result.
    # Dtype of the sums: known by construction where the product is emulated, and from the library's
    # documentation elsewhere; `unknown` if undocumented.
    accumulator: str
    count: int  # Number of products.
    by_request: bool = False  # Whether they belong to modules that are kept in float32.


@dataclass(frozen=True)
class ExecutedDtypes:
    """The dtypes that one training step used."""

    rows: tuple[ProductRow, ...]  # Products, the most frequent first within each kind.
    parameters: Mapping[str, int]  # Number of parameters by dtype name.
    # Number of gradients by dtype name; empty if they were cleared before the census.
    gradients: Mapping[str, int]
    # Number of state tensors by dtype name, without scalars such as step counters.
    optimizer_state: Mapping[str, int]
    is_emulated: bool  # Whether 16-bit products were emulated in float32.
    # Result of the TF32 probe; None where no CUDA device was used.
    float32_products_lose_bits: bool | None
    # Whether cuBLAS might add in 16 bits; None as above, or if unknown.
    sums_may_be_rounded: bool | None = None
    attention_kernels: tuple[str, ...] = ()  # Operators of attention in the forward pass.

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as lists, dictionaries, strings and numbers, for JSON."""
        plain = asdict(self)
        plain["attention_kernels"] = list(self.attention_kernels)
        plain["rows"] = [{**row, "inputs": list(row["inputs"])} for row in plain["rows"]]
        return plain

    def summary(self) -> str:
        """Return a summary for people, on one line."""
        kinds = [_describe_kind(kind, self.rows) for kind in KINDS]
        products = ", ".join(words for words in kinds if words) or "no matrix products recorded"
        if self.is_emulated:
            products += ", emulated"
        by_dtypes: dict[str, list[str]] = {}
        for name, census in self.stored.items():
            if census:
                by_dtypes.setdefault(" and ".join(sorted(census)), []).append(name)
        words = [f"{', '.join(names)} {dtypes}" for dtypes, names in by_dtypes.items()]
        return f"{products}; {'; '.join(words) or 'tensors not counted'}"

    @property
    def stored(self) -> dict[str, Mapping[str, int]]:
        """Number of tensors by dtype name, of the weights, gradients and optimizer state."""
        censuses = (self.parameters, self.gradients, self.optimizer_state)
        return dict(zip(("weights", "gradients", "optimizer state"), censuses, strict=True))


def _describe_kind(kind: str, rows: Iterable[ProductRow]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.kind == kind:
            operands = sorted(set(row.inputs)) if len(row.inputs) > 2 else row.inputs
            left, right = operands[0], operands[-1]
            request = f", by {FLOAT32_MODULES_FLAG}" if row.by_request else ""
            sums = f"{row.accumulator} sums{request}"
            counts[f"{left} x {right} -> {row.output}", sums] += row.count
    if not counts:
        return ""
    total = counts.total()
    parts = []
    for (product, sums), count in counts.most_common():
        share = "" if count == total else f", {count} of {total}"
        parts.append(f"{product} ({sums}{share})")
    return f"{_PLURALS.get(kind, kind)} {' and '.join(parts)}"


_in_update = ContextVar("in_update", default=False)


@contextmanager
def products_not_recorded() -> Iterator[None]:
    """Return a context in which products are not recorded.

    An optimizer multiplies in dtypes of its own, in every mode: Muon in bfloat16, and Adafactor in
    the dtype of the weights.
    """
    token = _in_update.set(True)
    try:
        yield
    finally:
        _in_update.reset(token)


class ProductRecorder(TorchDispatchMode):
    """Records the matrix products of the code inside it, forward and backward.

    Enter it inside `numerics(precision)` and around a whole training step. It sees the operands
    after autocast. Under `inference_mode` it sees composite operators undecomposed.

    A batched product, such as `torch.einsum` makes, is a projection if one operand was computed
    only from parameters, in the forward pass or in the forward pass that it differentiates.

    Args:
        precision: Precision requested for the step.
    """

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._precision = precision
        self._is_emulated = False
        self._counts: Counter[ProductRow] = Counter()  # of rows with a count of 0
        self._kernels: set[str] = set()
        self._cuda_device: torch.device | None = None
        self._batched_projections: set[int] = set()
        self._float32_nodes: set[int] = set()
        self._thread = threading.get_ident()

    def __enter__(self) -> ProductRecorder:
        """Start recording.

        Raises:
            InputError: The precision is emulated fp16, and `numerics(precision)` is not active.
        """
        products, dtype = EMULATION.get(), self._precision.compute_dtype
        self._is_emulated = products is not None and products.is_active(dtype)
        if self._precision.emulates_binary16 and not self._is_emulated:
            raise InputError(
                "ProductRecorder: fp16 is emulated only inside `ampft.numerics(precision)`. Enter "
                "that context around the whole run, and the recorder inside it."
            )
        super().__enter__()
        return self

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: see the operators that compiled code runs, not those it was compiled from.

        Otherwise `torch.compile` would run a model without compiling it, in this and in all later
        steps, if a recorded step is the first one.
        """
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and count it when it multiplies matrices."""
        if any(map(is_traceable_wrapper_subclass_type, types)):
            # The operators on the inner tensors show the real product: a tensor of torchao hides an
            # fp8 product behind bfloat16.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if _in_update.get():
            return result
        inputs = tuple(_tensors(args))
        if inputs and all(map(_is_weight, inputs)):
            for output in _tensors(result):
                # What was computed only from weights, such as their casts and views.
                output._ampft_weight = True  # type: ignore[attr-defined]
        by_request = self._is_in_float32_module(args)
        product = _product_of(func, args)
        if product is not None:
            kind, operands = product
            if kind == _BATCHED:
                kind = "projection" if self._multiplies_weight(operands) else "attention"
            # A backward operator can return undefined gradients only.
            for output in tuple(_tensors(result))[:1]:
                self._observe(kind, operands, output, by_request)
            if kind == "attention" and torch._C._current_autograd_node() is None:
                self._kernels.add(func.overloadpacket.__name__)
        return result

    def _is_in_float32_module(self, args: tuple[Any, ...]) -> bool:
        """Return whether an operation belongs to a module that is kept in float32."""
        start = float32_module_start()
        if start is None:
            node = torch._C._current_autograd_node()
            if node is None or node._sequence_nr() not in self._float32_nodes:
                return False
            # Gradient checkpointing can recompute the modules around it in this node.
            recomputes = torch.is_grad_enabled()
            return not (recomputes and any(t.dtype.itemsize == 2 for t in _tensors(args)))
        # The last node belongs to this operation, unless the operation has none.
        last = self._last_node()
        if last is not None and last >= start:
            self._float32_nodes.add(last)
        return True

    def _last_node(self) -> int | None:
        """Return autograd's number of the newest node; None where it is not executed.

        Each thread has its own numbers. The backward pass of a GPU runs in another thread, in which
        gradient checkpointing recomputes activations, and the nodes of these are not executed.
        """
        if threading.get_ident() != self._thread:
            return None
        return torch._C._autograd._get_sequence_nr() - 1

    def _multiplies_weight(self, operands: tuple[torch.Tensor, ...]) -> bool:
        """Return whether a batched product belongs to a layer with weights."""
        node = torch._C._current_autograd_node()
        if node is not None and node._sequence_nr() in self._batched_projections:
            return True
        is_projection = any(map(_is_weight, operands))
        last = self._last_node()
        if is_projection and torch.is_grad_enabled() and last is not None:
            self._batched_projections.add(last)
        return is_projection

    def _observe(
        self, kind: str, operands: tuple[torch.Tensor, ...], output: torch.Tensor, by_request: bool
    ) -> None:
        """Count one product, whose operands are in the order in which the operator takes them."""
        # The engine has a current node during a backward pass, and in forwards recomputed there.
        backward = torch._C._current_autograd_node() is not None
        row = ProductRow(
            kind,
            "backward" if backward else "forward",
            tuple(dtype_name(t.dtype) for t in operands),
            dtype_name(output.dtype),
            _accumulator(operands[0], self._precision),
            count=0,
            by_request=by_request,
        )
        self._counts[row] += 1
        if output.is_cuda:
            self._cuda_device = output.device

    def census(
        self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> ExecutedDtypes:
        """Return the recorded products and the dtypes that `model` and `optimizer` now hold.

        Call it outside the recorder, after the optimizer's step and before gradients are cleared.
        """
        ordered = sorted(
            self._counts.items(), key=lambda item: (KINDS.index(item[0].kind), -item[1])
        )
        device = self._cuda_device
        return ExecutedDtypes(
            rows=tuple(replace(row, count=count) for row, count in ordered),
            **count_tensor_dtypes(model, optimizer),
            is_emulated=self._is_emulated,
            float32_products_lose_bits=float32_product_loses_bits(device) if device else None,
            sums_may_be_rounded=sums_may_be_rounded() if device else None,
            attention_kernels=tuple(sorted(self._kernels)),
        )


def _product_of(func: Any, args: tuple[Any, ...]) -> tuple[str, tuple[torch.Tensor, ...]] | None:
    """Return the kind and the operands of a matrix product, or None for other operators."""
    packet = getattr(func, "overloadpacket", None)
    name = getattr(packet, "__name__", "").removesuffix("_")
    if name in _OPERANDS:
        kind, positions = _OPERANDS[name]
    elif ("attention" in name or "attn" in name) and "overrideable" not in name:
        # Query, key and value; in a backward operator the gradient of the output precedes them.
        kind, positions = "attention", slice(0, 4 if "backward" in name else 3)
    elif getattr(func, "namespace", "aten") not in _TORCH_NAMESPACES:
        floating = tuple(t for t in _tensors(args) if t.is_floating_point())
        return ("custom operator", floating) if len(floating) > 1 else None
    else:
        return None
    operands = tuple(_tensors(args[positions]))
    return (kind, operands) if operands else None


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or hasattr(tensor, "_ampft_weight")


def _tensors(values: object) -> Iterable[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        yield from (value for value in values if isinstance(value, torch.Tensor))


def _accumulator(operand: torch.Tensor, precision: Precision) -> str:
    """Return the dtype of a product's sums, or `unknown` if it is not documented.

    Sources: oneDNN's primitives for bfloat16 accumulate in float32; cuBLAS computes 16-bit
    products with the compute type float32 unless PyTorch allows sums in 16 bits.
    """
    if operand.dtype in (torch.float32, torch.float64):
        return dtype_name(operand.dtype)
    if operand.dtype == torch.float16 and precision.is_emulated:
        return "float32"
    if operand.device.type == "cpu":
        return "float32" if operand.dtype == torch.bfloat16 else "unknown"
    # cuBLAS may sum 8-bit products with fewer bits than float32.
    is_known = operand.device.type == "cuda" and operand.dtype.itemsize > 1
    return "float32" if is_known and not sums_may_be_rounded() else "unknown"


def precision_contradiction(
    precision: Precision, executed: ExecutedDtypes, *, where: str = "the first step"
) -> str | None:
    """Return how a measured step contradicts the requested precision, or None if it does not.

    Projections, convolutions and recurrent layers must multiply in the compute dtype. Attention
    need not: on a CPU its math path multiplies in float32 under dropout, and that is reported.
    Products of modules that are kept in float32 must multiply in float32.

    Args:
        precision: Requested precision.
        executed: Measured dtypes.
        where: What was measured, for the message.
    """
    used_tf32 = executed.float32_products_lose_bits
    if used_tf32 is not None and used_tf32 != precision.properties.allows_tf32:
        return (
            f"mode {precision.mode} was requested, but float32 products "
            f"{'ran in TF32' if used_tf32 else 'did not run in TF32'}"
        )
    if executed.sums_may_be_rounded and precision.compute_dtype.itemsize == 2:
        return f"mode {precision.mode} was requested, but its sums were allowed to be in 16 bits"
    rounded = [row for row in executed.rows if row.by_request and set(row.inputs) != {"float32"}]
    if rounded:
        return (
            f"{FLOAT32_MODULES_FLAG} was requested, but "
            f"{counted(sum(row.count for row in rounded), 'product')} inside these modules ran in "
            f"{' x '.join(rounded[0].inputs)}"
        )
    rows = [row for row in executed.rows if row.kind not in _ONLY_REPORTED and not row.by_request]
    expected = dtype_name(precision.compute_dtype)
    if precision.properties.replaces_layers:
        # Only layers that are large enough are converted; the others multiply in bfloat16.
        return None if any(expected in row.inputs for row in rows) else _no_product(precision)
    mismatches = [row for row in rows if set(row.inputs) != {expected}]
    if mismatches:
        worst = max(mismatches, key=lambda row: row.count)
        total = sum(row.count for row in rows)
        return (
            f"mode {precision.mode} was requested, but {sum(row.count for row in mismatches)} of "
            f"{total} products of {where} ran in another dtype, most of them "
            f"{_PLURALS[worst.kind]} of {' x '.join(worst.inputs)} in the {worst.direction} pass"
        )
    uses_float32 = precision.compute_dtype == torch.float32
    if not uses_float32 and not any(expected in row.inputs for row in executed.rows):
        return _no_product(precision)
    if precision.storage_dtype == torch.float32:
        # `check_trainable_dtype` has checked trainable weights; frozen ones may have any dtype.
        return None
    for name, census in executed.stored.items():
        others = sorted(set(census) - {dtype_name(precision.storage_dtype)})
        if others:
            stored = f"{name.removesuffix('s')}s were stored in {' and '.join(others)}"
            return f"mode {precision.mode} was requested, but {stored}"
    return None


def _no_product(precision: Precision) -> str:
    expected = dtype_name(precision.compute_dtype)
    return (
        f"mode {precision.mode} was requested, but no {expected} product was recorded. Use "
        "fp32 or another mode, or keep fewer modules in float32"
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def count_tensor_dtypes(
    model: nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> dict[str, dict[str, int]]:
    """Count the tensors of each dtype in a model, its gradients and its optimizer's state.

    Args:
        model: Model, or None to count no parameters and no gradients.
        optimizer: Optimizer, or None to count no state. Scalars (step counters) are not counted.

    Returns:
        Number by dtype name, in `parameters`, `gradients` and `optimizer_state`.
    """
    parameters = list(model.parameters()) if model is not None else []
    states = optimizer.state.values() if optimizer is not None else ()
    values = (value for entry in states for value in entry.values())
    return {
        "parameters": _count(parameters),
        "gradients": _count(p.grad for p in parameters if p.grad is not None),
        "optimizer_state": _count(
            value for value in values if isinstance(value, torch.Tensor) and value.ndim > 0
        ),
    }


def _count(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    return dict(Counter(dtype_name(t.dtype) for t in tensors))


def check_trainable_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Check that all trainable weights are stored in `dtype`, float32 for mixed precision.

    Raises:
        InputError: A parameter is not; the message names the first one.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or parameter.dtype == dtype:
            continue
        stored = f"parameter {name} is {dtype_name(parameter.dtype)}"
        if dtype != torch.float32:
            raise InputError(
                f"{stored}, but this mode stores weights in {dtype_name(dtype)}. Cast the model "
                "with ampft.cast_weights before creating the optimizer."
            )
        raise InputError(
            f"{stored}; trainable weights must be float32, because 16-bit weights lose updates "
            "smaller than their spacing. Load the model with dtype=torch.float32, or call "
            "model.float()."
        )
