"""Arguments to call every operator of CUDA's autocast table with."""

from collections.abc import Callable

import torch
from torch import Tensor

from ampft.emulation.cuda_autocast import FLOAT32

Arguments = Callable[[torch.dtype], tuple[object, ...]]


def values(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Values in (0.1, 0.9): inside the domain of acos, log, erfinv and the others."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * 0.8 + 0.1).to(dtype)


def one(*extra: object, shape: tuple[int, ...] = (4, 6)) -> Arguments:
    return lambda dtype: (values(*shape, dtype=dtype), *extra)


def two(*extra: object, shape: tuple[int, ...] = (4, 6)) -> Arguments:
    return lambda dtype: (values(*shape, dtype=dtype), values(*shape, dtype=dtype, seed=1), *extra)


def three(*extra: object) -> Arguments:
    return lambda dtype: (*two()(dtype), values(4, 6, dtype=dtype, seed=2), *extra)


def signs(*shape: int) -> Tensor:
    return torch.tensor([1, -1]).repeat(shape[0]).view(-1)[: shape[0]]


def classes(dtype: torch.dtype) -> tuple[object, ...]:
    return values(4, 6, dtype=dtype), torch.arange(4), None, 1, -100


def grid(*shape: int) -> Arguments:
    spatial = len(shape) - 2
    return lambda dtype: (
        values(*shape, dtype=dtype),
        values(shape[0], *[3] * spatial, spatial, dtype=dtype, seed=1),
        0,
        0,
        False,
    )


_NAMES = "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan"
UNARY = _NAMES.split()
IMAGE, LINE, BLOCK = (2, 3, 6, 6), (2, 3, 6), (2, 3, 4, 6, 6)

FLOAT32_CASES: dict[str, Arguments] = {
    **{name: one() for name in UNARY},
    "trace": one(),
    "pow.Tensor_Scalar": one(2.0),
    "pow.Tensor_Tensor": two(),
    "pow.Scalar": lambda dtype: (2.0, values(4, 6, dtype=dtype)),
    "softplus": one(),
    "layer_norm": one([6]),
    "native_layer_norm": one([6], None, None, 1e-5),
    "rms_norm": one([6]),
    "group_norm": one(3, shape=IMAGE),
    "frobenius_norm.dim": one([1]),
    "nuclear_norm": one(),
    "nuclear_norm.dim": one([0, 1]),
    "cosine_similarity": two(),
    "poisson_nll_loss": two(True, False, 1e-8, 1),
    "cosine_embedding_loss": two(signs(4)),
    "nll_loss": classes,
    "nll_loss2d": lambda dtype: (
        values(*IMAGE, dtype=dtype),
        torch.ones(2, 6, 6).long(),
        None,
        1,
        -100,
    ),
    "hinge_embedding_loss": one(torch.ones(4, 6)),
    "kl_div": two(),
    "l1_loss": two(),
    "smooth_l1_loss": two(),
    "huber_loss": two(),
    "mse_loss": two(),
    "margin_ranking_loss": two(torch.ones(4, 6)),
    "multilabel_margin_loss": one(torch.tensor([[0, 2, -1, 1, 1, 1]]).repeat(4, 1)),
    "soft_margin_loss": two(),
    "triplet_margin_loss": three(),
    "multi_margin_loss": one(torch.arange(4)),
    "binary_cross_entropy_with_logits": two(),
    "dist": two(),
    "pdist": one(),
    "cdist": two(),
    "renorm": one(2.0, 0, 1.0),
    "logsumexp": one([1]),
    "upsample_nearest1d": one([9], shape=LINE),
    "_upsample_nearest_exact1d": one([9], shape=LINE),
    "upsample_nearest2d": one([9, 9], shape=IMAGE),
    "_upsample_nearest_exact2d": one([9, 9], shape=IMAGE),
    "upsample_nearest3d": one([5, 9, 9], shape=BLOCK),
    "_upsample_nearest_exact3d": one([5, 9, 9], shape=BLOCK),
    "upsample_linear1d": one([9], False, shape=LINE),
    "upsample_bilinear2d": one([9, 9], False, shape=IMAGE),
    "_upsample_bilinear2d_aa": one([9, 9], False, shape=IMAGE),
    "upsample_trilinear3d": one([5, 9, 9], False, shape=BLOCK),
    "upsample_bicubic2d": one([9, 9], False, shape=IMAGE),
    "_upsample_bicubic2d_aa": one([9, 9], False, shape=IMAGE),
    "prod": one(),
    "prod.dim_int": one(1),
    "softmax.int": one(1),
    "log_softmax.int": one(1),
    "cumprod": one(1),
    "cumsum": one(1),
    "linalg_vector_norm": one(),
    "linalg_matrix_norm": one(1.0),
    "linalg_matrix_norm.str_ord": one(),
    "sum": one(),
    "sum.dim_IntList": one([1]),
    "norm.Scalar": one(),
    "norm.ScalarOpt_dim": one(2.0, [1]),
}
if "rms_norm" not in FLOAT32:  # torch 2.11
    del FLOAT32_CASES["rms_norm"]

WIDEST_CASES: dict[str, Arguments] = {
    "addcdiv": three(),
    "addcmul": three(),
    "atan2": two(),
    "bilinear": lambda dtype: (*two()(dtype), values(5, 6, 6, dtype=dtype, seed=2), None),
    "cross": two(shape=(4, 3)),
    "dot": two(shape=(6,)),
    "vdot": two(shape=(6,)),
    "grid_sampler": grid(2, 3, 6, 6),
    "index_put": lambda dtype: (
        values(4, 6, dtype=dtype),
        [torch.tensor([0, 2])],
        values(2, 6, dtype=dtype, seed=1),
    ),
    "tensordot": lambda dtype: (
        values(4, 6, dtype=dtype),
        values(6, 3, dtype=dtype, seed=1),
        [1],
        [0],
    ),
    "scatter_add": lambda dtype: (
        values(4, 6, dtype=dtype),
        0,
        torch.zeros(4, 6).long(),
        values(4, 6, dtype=dtype, seed=1),
    ),
}

SAME_TYPE_CASES: dict[str, Arguments] = {
    "avg_pool3d": one([2, 2, 2], shape=BLOCK),
    "adaptive_avg_pool3d": one([2, 2, 2], shape=BLOCK),
    "max_pool3d": one([2, 2, 2], shape=BLOCK),
    "adaptive_max_pool3d": one([2, 2, 2], shape=BLOCK),
    "max_unpool2d": lambda dtype: (
        values(1, 1, 3, 3, dtype=dtype),
        torch.arange(9).view(1, 1, 3, 3),
        [6, 6],
    ),
    "max_unpool3d": lambda dtype: (
        values(1, 1, 2, 3, 3, dtype=dtype),
        torch.arange(18).view(1, 1, 2, 3, 3),
        [4, 6, 6],
        [2, 2, 2],
        [0, 0, 0],
    ),
    "fractional_max_pool2d": lambda dtype: (
        values(*IMAGE, dtype=dtype),
        [2, 2],
        [3, 3],
        values(2, 3, 2, dtype=dtype),
    ),
    "fractional_max_pool3d": lambda dtype: (
        values(*BLOCK, dtype=dtype),
        [2, 2, 2],
        [2, 3, 3],
        values(2, 3, 3, dtype=dtype),
    ),
    "reflection_pad1d": one([1, 1], shape=LINE),
    "reflection_pad2d": one([1, 1, 1, 1], shape=IMAGE),
    "replication_pad1d": one([1, 1], shape=LINE),
    "replication_pad2d": one([1, 1, 1, 1], shape=IMAGE),
    "replication_pad3d": one([1, 1, 1, 1, 1, 1], shape=BLOCK),
    "grid_sampler_2d": grid(2, 3, 6, 6),
    "fake_quantize_per_tensor_affine": one(0.1, 0, 0, 255),
    "grid_sampler_3d": grid(2, 3, 4, 6, 6),
}


def cell(gates: int) -> Arguments:
    def arguments(dtype: torch.dtype) -> tuple[object, ...]:
        hidden = values(4, 5, dtype=dtype)
        state = [hidden, hidden] if gates == 4 else hidden
        weights = values(gates * 5, 6, dtype=dtype), values(gates * 5, 5, dtype=dtype)
        return values(4, 6, dtype=dtype), state, *weights

    return arguments


def filters(dtype: torch.dtype) -> tuple[object, ...]:
    geometry = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    return values(*IMAGE, dtype=dtype), values(4, 3, 3, 3, dtype=dtype), None, *geometry


FLOAT16_CASES: dict[str, Arguments] = {
    "_convolution": lambda dtype: (*filters(dtype), False, False, True, True),
    "convolution": filters,
    "addmv": lambda dtype: (
        values(4, dtype=dtype),
        values(4, 6, dtype=dtype),
        values(6, dtype=dtype),
    ),
    "addr": lambda dtype: (
        values(4, 6, dtype=dtype),
        values(4, dtype=dtype),
        values(6, dtype=dtype),
    ),
    "einsum": lambda dtype: ("ij,kj->ik", list(two()(dtype))),
    "mv": lambda dtype: (values(4, 6, dtype=dtype), values(6, dtype=dtype)),
    "chain_matmul": lambda dtype: ([values(4, 4, dtype=dtype)] * 3,),
    "linalg_multi_dot": lambda dtype: ([values(4, 4, dtype=dtype)] * 3,),
    "lstm_cell": cell(4),
    "gru_cell": cell(3),
    "rnn_tanh_cell": cell(1),
    "rnn_relu_cell": cell(1),
}
