"""The part of CUDA's autocast table that the emulation enforces on a CPU.

Source: torch 2.13, `ATen/autocast_mode.h` (AT_FORALL_*) and `aten/src/ATen/autocast_mode.cpp`;
documented in "Automatic Mixed Precision package - torch.amp", "CUDA Op-Specific Behavior".
Operators have the dispatcher's names, with the overload after a dot.
"""

from __future__ import annotations

AUTOCAST_TABLE = "CUDA (torch 2.13, ATen/autocast_mode.h), emulated on the CPU"
"""Name of this table in the run record."""

FLOAT16: tuple[str, ...] = (
    *("_convolution", "convolution", "addmv", "addr", "einsum", "mv", "chain_matmul"),
    *("linalg_multi_dot", "rnn_tanh_cell", "rnn_relu_cell"),
)
"""Operators that CUDA's table runs in float16 and the CPU's table does not list."""

FLOAT32: tuple[str, ...] = (
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
"""Operators whose tensors are all cast to float32."""

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
    *("grid_sampler_2d", "grid_sampler_3d", "fake_quantize_per_tensor_affine", "trace"),
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
