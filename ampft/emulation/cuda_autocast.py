"""CUDA's autocast table on the CPU's autocast key, while the autocast dtype is float16.

The CPU's own table leaves softmax, layer_norm, exp, pow, sum and others in float16, whereas CUDA's
table casts them to float32. Other autocast dtypes are not affected. Source of the table: torch
2.13, `ATen/autocast_mode.h` (AT_FORALL_*) and `aten/src/ATen/autocast_mode.cpp`; documented in
"Automatic Mixed Precision package - torch.amp", "CUDA Op-Specific Behavior". Operators have the
dispatcher's names, with the overload after a dot.

An operator that the CPU's table casts to float32 and CUDA's table does not list runs in its input
dtype on a GPU. Here it is computed in float32 and rounded once. Where CUDA has no float16 kernel
and raises (linear algebra, quantile, ctc_loss), or computes in complex float16 (FFTs), float16
tensors are refused.

Recurrent cells: after two matrix products without biases, one kernel adds the products and the
biases, computes the gates in float32, and rounds only the new state. Source: torch,
`aten/src/ATen/native/cuda/RNN.cu`. That kernel also rounds the gates that it stores for the
backward pass, which is not emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch._C import DispatchKeySet
from torch._ops import OpOverload

from ampft.emulation.kernels import (
    KEEP_LAYER,
    Kernel,
    autocast_excluded,
    is_operator,
    native_kernel,
    operator_overload,
    refusal,
)

AUTOCAST_TABLE = "CUDA (torch 2.13, ATen/autocast_mode.h), emulated on the CPU"
"""Name of this table in the run record."""

FLOAT16: tuple[str, ...] = (
    *("_convolution", "convolution", "addmv", "addr", "einsum", "mv", "chain_matmul"),
    *("linalg_multi_dot", "rnn_tanh_cell", "rnn_relu_cell"),
)
"""Operators that CUDA's table runs in float16 and the CPU's table does not list."""

_LISTED_AS_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    *("softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm"),
    *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity"),
    *("poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("multi_margin_loss", "binary_cross_entropy_with_logits"),
    *("dist", "pdist", "cdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d"),
    *("_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
    *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)


def _is_listed(operator: str) -> bool:
    """Return whether the table of the installed torch has an operator; 2.11 lacks `rms_norm`."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(f"aten::{operator}", "AutocastCUDA"))


FLOAT32: tuple[str, ...] = tuple(filter(_is_listed, _LISTED_AS_FLOAT32))
"""Operators whose tensors are all cast to float32."""

FLOAT32_INSIDE: tuple[str, ...] = ("trace",)
"""Operators that are not listed, but call one that returns float32 (seen on an H200)."""

FLOAT32_OUTPUT: tuple[str, ...] = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
    *("sum", "sum.dim_IntList"),
)
"""Operators called with `dtype=float32` unless the caller passes a dtype."""

NORM: tuple[str, ...] = ("norm.Scalar", "norm.ScalarOpt_dim")
"""Operators redirected to the overload with a dtype argument, with float32."""

WIDEST: tuple[str, ...] = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
    *("index_put", "tensordot", "scatter_add"),
)
"""Operators whose tensors are all cast to the widest dtype among them."""

SAME_TYPE: tuple[str, ...] = (
    *("avg_pool3d", "adaptive_avg_pool3d", "max_pool3d", "adaptive_max_pool3d"),
    *("max_unpool2d", "max_unpool3d", "fractional_max_pool2d", "fractional_max_pool3d"),
    *("reflection_pad1d", "reflection_pad2d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *("grid_sampler_2d", "grid_sampler_3d", "fake_quantize_per_tensor_affine"),
)
"""Operators that the CPU's table runs in float32, and a GPU in the dtype of the input."""

BANNED = ("binary_cross_entropy",)
"""Operators that raise under CUDA's autocast."""

REFUSED: tuple[str, ...] = (
    *("fft_fft", "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifft2", "fft_ifftn"),
    *("fft_rfft", "fft_rfft2", "fft_rfftn", "fft_irfft", "fft_irfft2", "fft_irfftn"),
    *("fft_hfft", "fft_ihfft", "stft", "stft.center", "polar", "view_as_complex"),
    *("cholesky", "cholesky_inverse", "cholesky_solve", "linalg_cholesky", "linalg_cholesky_ex"),
    *("inverse", "pinverse", "linalg_inv", "linalg_inv_ex", "linalg_tensorinv"),
    *("svd", "linalg_svd", "linalg_svdvals", "linalg_cond", "linalg_cond.p_str"),
    *("linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh"),
    *("qr", "linalg_qr", "geqrf", "orgqr", "ormqr", "linalg_householder_product"),
    *("linalg_lstsq", "linalg_solve", "linalg_tensorsolve", "lu_solve", "triangular_solve"),
    *("linalg_matrix_rank", "linalg_matrix_rank.tol_tensor", "_lu_with_info"),
    *("linalg_matrix_rank.atol_rtol_float", "linalg_matrix_rank.atol_rtol_tensor"),
    *("quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"),
    *("ctc_loss.IntList", "ctc_loss.Tensor"),
)
"""Operators that the CPU's table runs in float32, and refused for float16 tensors.

CUDA computes some of them in complex float16 and has no float16 kernel for the others.
"""

RECURRENT: tuple[str, ...] = (
    *("lstm.input", "lstm.data", "gru.input", "gru.data"),
    *("rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data"),
)
"""Layers that CUDA's table runs in float16 by cuDNN, which does not document where it rounds."""

CELLS = ("lstm_cell", "gru_cell")
"""Operators that CUDA's table runs in float16, with one kernel after the matrix products."""


Policy = Callable[..., Any]
"""Called as `policy(operator, *args, **kwargs)` with autocast off; returns the results."""


def _is_eligible(value: object) -> TypeGuard[Tensor]:
    """Return whether autocast may cast a value: a floating CPU tensor that is not float64."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.device.type == "cpu"
    )


def _cast(value: object, dtype: torch.dtype) -> object:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if _is_eligible(value) else value


def _eligible(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _eligible(value)
        elif _is_eligible(value):
            yield value


def _widest(values: Iterable[object]) -> torch.dtype:
    """Return float32 if any eligible tensor is float32, and float16 otherwise."""
    is_wide = any(tensor.dtype is torch.float32 for tensor in _eligible(values))
    return torch.float32 if is_wide else torch.float16


def _call_in(dtype: torch.dtype) -> Policy:
    def call(operator: Kernel, *args: object, **kwargs: object) -> object:
        cast = {name: _cast(value, dtype) for name, value in kwargs.items()}
        return operator(*(_cast(arg, dtype) for arg in args), **cast)

    return call


@cache
def _position_of_dtype(operator: OpOverload) -> int:
    return [argument.name for argument in operator._schema.arguments].index("dtype")


def _call_with_output(operator: OpOverload, *args: object, **kwargs: object) -> object:
    # softmax receives its dtype by position, sum by keyword.
    dtype_passed = kwargs.get("dtype") or args[_position_of_dtype(operator) :]
    if _is_eligible(args[0]) and not dtype_passed:
        kwargs["dtype"] = torch.float32
    return operator(*args, **kwargs)


def _call_norm(
    operator: Kernel,
    tensor: Tensor,
    p: float | None = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
) -> object:
    """Replace both overloads of `norm` that have no dtype argument."""
    dtype = torch.float32 if _is_eligible(tensor) else tensor.dtype
    if dim is None:
        return torch.ops.aten.norm.ScalarOpt_dtype(tensor, p, dtype=dtype)
    return torch.ops.aten.norm.ScalarOpt_dim_dtype(tensor, p, dim, keepdim, dtype=dtype)


def _call_in_widest(operator: Kernel, *args: object, **kwargs: object) -> object:
    return _call_in(_widest([*args, *kwargs.values()]))(operator, *args, **kwargs)


def _call_in_same_type(operator: Kernel, *args: object, **kwargs: object) -> object:
    """Compute in float32 and round the results to the dtype of the inputs."""
    results = _call_in(torch.float32)(operator, *args, **kwargs)
    return _cast(results, _widest([*args, *kwargs.values()]))


def _ban(operator: Kernel, *args: object, **kwargs: object) -> object:
    raise RuntimeError(
        "binary_cross_entropy is unsafe under float16 autocast, and raises on a GPU too. Remove "
        "the sigmoid and use binary_cross_entropy_with_logits (BCEWithLogitsLoss)."
    )


def _refuse_float16(operator: OpOverload, *args: object, **kwargs: object) -> object:
    tensors = _eligible([*args, *kwargs.values()])
    if any(tensor.dtype is torch.float16 for tensor in tensors):
        raise refusal(_name(operator), "convert the tensors with .float() first")
    return _call_in(torch.float32)(operator, *args, **kwargs)


def _refuse_layer(operator: OpOverload, *args: object, **kwargs: object) -> object:
    if next(_eligible(args), None) is None:
        return operator(*args, **kwargs)
    raise refusal(_name(operator), KEEP_LAYER)


def _name(operator: OpOverload) -> str:
    return operator._schema.name.removeprefix("aten::")


def _call_fused(operator: OpOverload, *args: object, **kwargs: object) -> object:
    """Call the twin of a recurrent cell, whose operands are cast to float16."""
    return _call_in(torch.float16)(_FUSED[_name(operator)], *args, **kwargs)


def lstm_cell(
    input: Tensor,
    state: list[Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the new hidden state and the new cell state, (B, H) float16.

    Args:
        input: (B, I) float16.
        state: Hidden state and cell state, (B, H) float16.
        weight_ih: (4 H, I) float16.
        weight_hh: (4 H, H) float16.
        bias_ih: (4 H,) float16, or None.
        bias_hh: (4 H,) float16, or None.
    """
    hidden, cell = state
    gates = _projected(input, weight_ih, bias_ih) + _projected(hidden, weight_hh, bias_hh)
    entering, kept, candidate, leaving = gates.chunk(4, 1)
    new_cell = kept.sigmoid() * cell.float() + entering.sigmoid() * candidate.tanh()
    return (leaving.sigmoid() * new_cell.tanh()).half(), new_cell.half()


def gru_cell(
    input: Tensor,
    hidden: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> Tensor:
    """Return the new hidden state, (B, H) float16.

    Args:
        input: (B, I) float16.
        hidden: (B, H) float16.
        weight_ih: (3 H, I) float16.
        weight_hh: (3 H, H) float16.
        bias_ih: (3 H,) float16, or None.
        bias_hh: (3 H,) float16, or None.
    """
    from_input = _projected(input, weight_ih, bias_ih).chunk(3, 1)
    from_hidden = _projected(hidden, weight_hh, bias_hh).chunk(3, 1)
    reset = (from_input[0] + from_hidden[0]).sigmoid()
    update = (from_input[1] + from_hidden[1]).sigmoid()
    candidate = torch.tanh(from_input[2] + reset * from_hidden[2])
    return (candidate + update * (hidden.float() - candidate)).half()


def _projected(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows @ weight^T, rounded to float16, plus the bias, in float32."""
    product = (rows @ weight.t()).float()
    return product if bias is None else product + bias.float()


_FUSED: Mapping[str, Kernel] = {"lstm_cell": lstm_cell, "gru_cell": gru_cell}

POLICIES: tuple[tuple[tuple[str, ...], Policy], ...] = (
    (FLOAT16, _call_in(torch.float16)),
    (FLOAT32, _call_in(torch.float32)),
    (FLOAT32_INSIDE, _call_in(torch.float32)),
    (FLOAT32_OUTPUT, _call_with_output),
    (NORM, _call_norm),
    (WIDEST, _call_in_widest),
    (SAME_TYPE, _call_in_same_type),
    (BANNED, _ban),
    (REFUSED, _refuse_float16),
    (RECURRENT, _refuse_layer),
    (CELLS, _call_fused),
)


def _autocast_kernel(name: str, policy: Policy) -> Kernel:
    operator = operator_overload(name)
    lower_keys = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutocastCPU)
    key = "AutocastCPU"
    registered = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    native = native_kernel(name, key) if registered else None

    def kernel(keyset: DispatchKeySet, *args: object, **kwargs: object) -> object:
        if torch.get_autocast_dtype("cpu") is torch.float16:
            with autocast_excluded():
                return policy(operator, *args, **kwargs)
        if native is not None:
            return native(*args, **kwargs)
        return operator.redispatch(keyset & lower_keys, *args, **kwargs)

    return kernel


def autocast_kernels() -> dict[str, Kernel]:
    """Return the `AutocastCPU` kernel of each operator; its first argument is the key set.

    Operators that this version of torch does not have are left out (2.14 removed `cholesky`).
    """
    return {
        name: _autocast_kernel(name, policy)
        for names, policy in POLICIES
        for name in names
        if is_operator(name)
    }
