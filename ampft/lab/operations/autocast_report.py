"""What autocast does on this device and in a model, and what PyTorch documents: `ampft ops`.

Source of the documentation: "Automatic Mixed Precision package - torch.amp", sections "CUDA
Op-Specific Behavior" and "CPU Op-Specific Behavior", torch 2.13 (docs/source/amp.md). Names are as
in the documentation.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import FunctionEvent

from ampft.arguments import ClassifyArguments
from ampft.errors import InputError
from ampft.lab.operations.probe import (
    FLOAT32,
    LOWER,
    POLICIES,
    REFUSED,
    WIDEST,
    AutocastOperation,
    autocast_operations,
)
from ampft.precision.accelerator import numerics, separate_accelerators, training_device
from ampft.precision.resolve import resolve
from ampft.text.escaping import inert
from ampft.text.numbers import counted
from ampft.text.page import Table, terminal_table
from ampft.text.terminal import WIDTH, labelled

DOCUMENTED: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        LOWER: (
            "__matmul__ addbmm addmm addmv addr baddbmm bmm multi_dot conv1d conv2d conv3d "
            "conv_transpose1d conv_transpose2d conv_transpose3d GRUCell linear LSTMCell matmul mm "
            "mv prelu RNNCell"
        ),
        FLOAT32: (
            "__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits "
            "cosh cosine_embedding_loss cdist cosine_similarity cross_entropy cumprod cumsum dist "
            "erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log "
            "log_softmax log10 log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss "
            "multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal "
            "rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum renorm tan "
            "triplet_margin_loss"
        ),
        WIDEST: (
            "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot"
        ),
        REFUSED: "binary_cross_entropy",
    },
    "cpu": {
        LOWER: (
            "conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm addbmm linear matmul "
            "_convolution conv_tbc mkldnn_rnn_layer conv_transpose1d conv_transpose2d "
            "conv_transpose3d prelu scaled_dot_product_attention _native_multi_head_attention"
        ),
        FLOAT32: (
            "avg_pool3d binary_cross_entropy grid_sampler grid_sampler_2d "
            "_grid_sampler_2d_cpu_fallback grid_sampler_3d polar prod quantile nanquantile stft "
            "cdist trace view_as_complex cholesky_inverse cholesky_solve inverse lu_solve orgqr "
            "ormqr pinverse max_pool3d max_unpool2d max_unpool3d adaptive_avg_pool3d "
            "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
            "replication_pad3d mse_loss cosine_embedding_loss nll_loss nll_loss2d "
            "hinge_embedding_loss poisson_nll_loss cross_entropy_loss l1_loss huber_loss "
            "margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss "
            "kl_div multilabel_margin_loss binary_cross_entropy_with_logits fft_fft fft_ifft "
            "fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 "
            "fft_rfftn fft_irfftn fft_hfft fft_ihfft linalg_cond linalg_matrix_rank linalg_solve "
            "linalg_cholesky linalg_svdvals linalg_eigvals linalg_eigvalsh linalg_inv "
            "linalg_householder_product linalg_tensorinv linalg_tensorsolve "
            "fake_quantize_per_tensor_affine geqrf _lu_with_info qr svd triangular_solve "
            "fractional_max_pool2d fractional_max_pool3d adaptive_max_pool3d "
            "multilabel_margin_loss_forward linalg_qr linalg_cholesky_ex linalg_svd linalg_eig "
            "linalg_eigh linalg_lstsq linalg_inv_ex"
        ),
        WIDEST: "cat stack index_copy",
    },
}

# Documented names of Python functions, methods and modules -> the operations that they call.
_CALLED: Mapping[str, tuple[str, ...]] = {
    "__matmul__": ("matmul",),
    "multi_dot": ("linalg_multi_dot",),
    "GRUCell": ("gru_cell",),
    "LSTMCell": ("lstm_cell",),
    "RNNCell": ("rnn_tanh_cell", "rnn_relu_cell"),
    "__pow__": ("pow",),
    "__rpow__": ("pow",),
    "__rdiv__": ("reciprocal",),
    "__rtruediv__": ("reciprocal",),
    "cross_entropy": ("log_softmax", "nll_loss"),
    "normalize": ("norm", "linalg_vector_norm"),
    "softmin": ("softmax",),
    "grid_sample": ("grid_sampler",),
    "nll_loss": ("nll_loss", "nll_loss2d"),
}
_DTYPES = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
# They move values without computing any.
_MOVES = (
    "_to_copy", "clone", "contiguous", "copy_", "detach", "empty", "empty_like", "empty_strided",
    "embedding", "fill_", "full", "gather", "index", "index_select", "lift_fresh", "ones",
    "resolve_conj", "resolve_neg", "set_", "to", "zero_", "zeros",
)  # fmt: skip
TITLES = {
    LOWER: "cast to 16 bits",
    FLOAT32: "cast to float32",
    WIDEST: "cast to the widest dtype among the inputs",
    REFUSED: "refused",
}


def documented_policies(device: str) -> dict[str, str]:
    """Return the documented policy of each operation, by its name in `torch.ops.aten`.

    Args:
        device: Device type, such as `cuda`; empty for one whose lists are not known here.
    """
    return {
        called: policy
        for policy, names in DOCUMENTED.get(device, {}).items()
        for name in names.split()
        for called in _CALLED.get(name, (name,))
    }


@dataclass(frozen=True)
class UnlistedOperation:
    """An operation that is on no list of autocast."""

    name: str  # Name in `torch.ops.aten`, such as `gelu`.
    dtypes: str  # Dtypes of its floating inputs, such as `float16 and float32`.
    calls: int  # Number of calls in a forward pass.


def unlisted_operations(
    forward: Callable[[], object], listed: Collection[str]
) -> tuple[UnlistedOperation, ...]:
    """Return the operations of a forward pass that autocast does not know, the frequent ones first.

    An operation that consists of others counts as listed if one of these is. Operations that only
    move values are left out.

    Args:
        forward: Function that computes a forward pass.
        listed: Names of the operations that autocast knows, without overloads.

    Raises:
        InputError: This version of torch does not record dtypes.
    """
    if "input_dtypes" not in signature(FunctionEvent).parameters:
        raise InputError(
            f"torch {torch.__version__} does not record the dtypes of a model's operations. "
            "Install torch 2.13, or leave the model out."
        )
    with _standard_error_discarded(), profile(record_shapes=True) as profiler:
        forward()
    roots = [event for event in profiler.function_events if event.cpu_parent is None]
    counts: Counter[tuple[str, str]] = Counter()
    for root in roots:
        for event in _unlisted_events(root, frozenset(listed)):
            counts[_name(event), _dtypes(event)] += 1
    return tuple(UnlistedOperation(*key, calls) for key, calls in counts.most_common())


@contextmanager
def _standard_error_discarded() -> Iterator[None]:
    """Discard what torch's profiler writes to standard error about its start and its end."""
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nothing:
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _unlisted_events(event: Any, listed: Collection[str]) -> Iterator[Any]:
    if _name(event) in listed:
        return
    inside = list(_inside(event))
    if _is_operation(event) and not any(_name(part) in listed for part in inside):
        kernels = (part for part in (event, *inside) if not part.cpu_children)
        computes = any(_is_operation(part) and not _moves(_name(part)) for part in kernels)
        if computes and _dtypes(event):
            yield event
        return
    for part in event.cpu_children:
        yield from _unlisted_events(part, listed)


def _inside(event: Any) -> Iterator[Any]:
    for part in event.cpu_children:
        yield part
        yield from _inside(part)


def _is_operation(event: Any) -> bool:
    return str(event.name).startswith("aten::")


def _name(event: Any) -> str:
    return str(event.name).removeprefix("aten::")


def _dtypes(event: Any) -> str:
    names = {_DTYPES[kind] for kind in event.input_dtypes or () if kind in _DTYPES}
    return " and ".join(sorted(names))


@cache
def _moves(name: str) -> bool:
    if name in _MOVES:
        return True
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else packet.overloads()
    return any(getattr(packet, overload).is_view for overload in overloads)


@dataclass(frozen=True)
class OperationsReport:
    """What autocast does in a mode on this device."""

    mode: str  # Precision.
    execution: str  # `native` or `emulated`.
    device: str  # Device type.
    table: str  # Device whose documented lists are compared; `cuda` if binary16 is emulated.
    torch: str  # Version of torch.
    # Operations with an autocast kernel, found by probing.
    operations: tuple[AutocastOperation, ...]
    # Operations that PyTorch documents nowhere or under another policy.
    undocumented: tuple[str, ...]
    # Documented operations that have another policy or no autocast kernel.
    not_found: tuple[str, ...]
    model: str | None = None  # Name of the model; None if none was examined.
    unlisted: tuple[UnlistedOperation, ...] = ()  # Its operations that are on no list.


def examine_autocast(
    mode: str, classify: ClassifyArguments | None, *, cpu: bool
) -> OperationsReport:
    """Return what autocast does in a mode on this device.

    Args:
        mode: One of `ampft.MODES`.
        classify: Settings of a run whose model is examined; None examines none.
        cpu: Whether to use the CPU even if there is an accelerator.

    Raises:
        InputError: The mode has no autocast on this device, or the model cannot be loaded.
    """
    precision = resolve(mode, training_device(cpu=cpu))
    with numerics(precision):
        operations = autocast_operations(precision)
    table = "cuda" if precision.emulates_binary16 else precision.device_type
    documented = documented_policies(table)
    # Without overloads.
    found = {(each.name.partition(".")[0], each.policy) for each in operations}
    other = {name for name, p in found if p != REFUSED and documented.get(name) != p}
    report = OperationsReport(
        mode=mode,
        execution=precision.execution,
        device=precision.device_type,
        table=table,
        torch=torch.__version__,
        operations=operations,
        undocumented=tuple(sorted(other)),
        not_found=tuple(sorted(n for n, p in documented.items() if (n, p) not in found)),
    )
    if classify is None:
        return report
    from ampft.runs.prepare import load_task, prepare_mode, start_clock

    started = start_clock()
    classify = replace(classify, output_dir=None)
    task = load_task(classify)
    with separate_accelerators(), numerics(precision):
        prepared = prepare_mode(classify, precision, task, started=started)
        step_batch = next(iter(prepared.step_batches.epoch(0)))
        prepared.model.train()
        unlisted = unlisted_operations(
            lambda: task.loss(prepared.model, step_batch.micro_batches[0]),
            {name for name, _ in found},
        )
    return replace(report, model=prepared.loaded.name, unlisted=unlisted)


def format_operations(report: OperationsReport) -> str:
    """Return the report as text, at most `WIDTH` columns wide."""
    as_cuda = report.execution == "emulated" and report.table == "cuda"
    emulated = ", as CUDA's autocast" if as_cuda else ""
    parts = [
        "\n".join(
            [
                labelled("autocast", f"{report.mode} on {report.device}, torch {report.torch}"),
                labelled("execution", f"{report.execution}{emulated}"),
                labelled("known", counted(len(report.operations), "operation")),
            ]
        )
    ]
    for policy in POLICIES:
        names = [each.name for each in report.operations if each.policy == policy]
        if names:
            parts.append(_listed(f"{TITLES[policy]} ({len(names)})", names))
    documentation = f"PyTorch's documentation for {report.table}"
    parts += [_listed(f"not in {documentation}, or differently", report.undocumented)]
    if report.not_found:
        parts += [_listed(f"in {documentation}, but not found", report.not_found)]
    if report.model is not None:
        title = f"{inert(report.model)}: operations on no list, which run in the dtype that they "
        title += "receive"
        rows = [(each.name, each.dtypes, str(each.calls)) for each in report.unlisted]
        table = Table(header=("operation", "inputs", "calls per forward pass"), rows=rows, left=2)
        listed = f"{title}\n\n{terminal_table(table, rule=True)}"
        parts.append(listed if rows else f"{title}: none")
    return "\n\n".join(parts)


def _listed(title: str, names: Iterable[str]) -> str:
    text = ", ".join(names) or "none"
    return "\n".join([title, *(f"  {line}" for line in wrap(text, WIDTH - 2))])
