"""How much of the rate at which this machine multiplies matrices a training reached."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.precision.resolve import Precision

# Seconds of one product: with this, the whole measurement takes less than one.
MAX_PRODUCT_SECONDS = 0.2

PROTOCOL = (
    "matrix_rate_gflops: square products in the compute dtype, fastest of several, same process "
    "and threads, after training; flops_per_token: 6 x encoder weights that multiply (forward 2, "
    "backward 4; no embeddings, biases, norms, pooler and head, nor products of attention scores), "
    "even where a padding-free path spares some or checkpointing repeats some; utilisation: "
    "tokens_per_second x flops_per_token / (matrix rate x processes)"
)


@dataclass(frozen=True)
class Utilisation:
    """What a training reached of what the machine can do.

    Attributes:
        matrix_rate_gflops: 10^9 operations per second of a large matrix product on one process;
            None where the mode is emulated or torch has no plain product in it (fp8).
        flops_per_token: Operations that a token costs in training; None where examples have no
            tokens.
        utilisation: Quotient of what was computed and what could have been; None where one of
            the others is.
        utilisation_protocol: How they were taken.
    """

    matrix_rate_gflops: float | None
    flops_per_token: int | None
    utilisation: float | None
    utilisation_protocol: str = PROTOCOL


def measure_utilisation(
    model: nn.Module,
    precision: Precision,
    device: torch.device,
    *,
    tokens_per_second: float | None,
    num_processes: int,
) -> Utilisation:
    """Measure the matrix products of this process, and relate the training to them.

    Args:
        model: Unwrapped.
        precision: Of the run; its TF32 policy is in force.
        device: Where the model trained.
        tokens_per_second: Of all processes; None where what is counted are no tokens.
        num_processes: That trained together.
    """
    rate = None
    if not precision.is_emulated and not precision.row.replaces_layers:
        rate = measure_matrix_rate(
            device, precision.compute_dtype, name=precision.mode, max_seconds=MAX_PRODUCT_SECONDS
        ).gflops
    if tokens_per_second is None:
        return Utilisation(rate, None, None)
    flops = flops_per_token(model)
    reached = None if rate is None else tokens_per_second * flops / (rate * 1e9 * num_processes)
    return Utilisation(rate, flops, reached)


def flops_per_token(model: nn.Module) -> int:
    """Return the floating-point operations of a training step per token: 6 N.

    A weight takes part in one multiplication and one addition in the forward pass, and in twice as
    many backward, for the gradients of its input and of itself. N counts the matrices of the
    encoder: no embeddings, which are looked up, and neither biases nor norms. What stands outside
    the encoder and its pooler act on one token per text. Source: Kaplan et al. (2020), "Scaling
    Laws for Neural Language Models", section 2.1; the term that grows with the context is left out,
    as it is there.

    Args:
        model: A model of transformers, whose `base_model` is the encoder, or any other module, of
            which all is counted.
    """
    encoder = getattr(model, "base_model", model)
    left_out = {
        id(parameter)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] == "pooler"
        for parameter in module.parameters()
    }
    counted = (p for p in encoder.parameters() if p.ndim >= 2 and id(p) not in left_out)
    return 6 * sum(parameter.numel() for parameter in counted)
