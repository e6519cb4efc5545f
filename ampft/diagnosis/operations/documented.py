"""What PyTorch documents about autocast: the lists of operations by device.

Source: "Automatic Mixed Precision package - torch.amp", sections "CUDA Op-Specific Behavior" and
"CPU Op-Specific Behavior", torch 2.13 (docs/source/amp.md). Names are as in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from ampft.diagnosis.operations.probe import FLOAT32, LOWER, REFUSED, WIDEST

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
