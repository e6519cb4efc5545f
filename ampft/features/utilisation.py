"""Utilisation: the rate of a training relative to the machine's matrix product rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampft.features.feature import Feature
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.precision.resolve import Precision

if TYPE_CHECKING:
    from accelerate import Accelerator

# Seconds of one product, chosen such that the whole measurement takes less than a second.
MAX_PRODUCT_SECONDS = 0.2

PROTOCOL = (
    "matrix_rate_gflops: square products in the compute dtype, fastest of several, in the same "
    "process with the same threads, after training; flops_per_token: 6 x the weights of the "
    "encoder's matrices (forward 2, backward 4; without embeddings, biases, norms, pooler, head "
    "and products of attention scores), although running without padding saves some and "
    "checkpointing repeats some; utilisation: tokens_per_second x flops_per_token / (matrix rate "
    "x processes)"
)


@dataclass(frozen=True)
class Utilisation:
    """The utilisation of the machine by a training.

    Attributes:
        matrix_rate_gflops: 10^9 operations per second of a large matrix product in one process;
            None if the mode is emulated or torch has no plain product in it (fp8).
        flops_per_token: Floating-point operations per token in training; None if examples have no
            tokens.
        utilisation: Rate of the training divided by the rate of matrix products in all processes;
            None if one of the other two is.
        utilisation_protocol: Description of the measurement.
    """

    matrix_rate_gflops: float | None
    flops_per_token: int | None
    utilisation: float | None
    utilisation_protocol: str = PROTOCOL


def measure_utilisation(
    flops: int,
    precision: Precision,
    device: torch.device,
    *,
    tokens_per_second: float | None,
    num_processes: int,
) -> Utilisation:
    """Measure the matrix product rate of this process, and return the utilisation of a training.

    Args:
        flops: Floating-point operations per token, from `flops_per_token` of the trained model.
        precision: Precision of the run, whose TF32 policy must be in force.
        device: Device of the training.
        tokens_per_second: Tokens per second in all processes; None if examples have no tokens.
        num_processes: Number of processes that trained together.
    """
    rate = None
    if not precision.is_emulated and not precision.properties.replaces_layers:
        rate = measure_matrix_rate(
            device, precision.compute_dtype, name=precision.mode, max_seconds=MAX_PRODUCT_SECONDS
        ).gflops
    if tokens_per_second is None:
        return Utilisation(rate, None, None)
    utilisation = None
    if rate is not None:
        utilisation = tokens_per_second * flops / (rate * 1e9 * num_processes)
    return Utilisation(rate, flops, utilisation)


def flops_per_token(model: nn.Module) -> int:
    """Return the floating-point operations of a training step per token: 6 N if all is trained.

    A weight takes part in one multiplication and one addition in the forward pass, and in twice as
    many in the backward pass, for the gradients of its input and of itself. N is the number of
    weights in the matrices of the encoder, without embeddings, which are looked up, and without
    biases and norms. The head and the pooler are not counted, because they act on one token per
    text. A frozen weight has no gradient, and takes no part in the backward pass if nothing that
    comes before it is trained. Source: Kaplan et al. (2020), "Scaling Laws for Neural Language
    Models", section 2.1; the term that grows with the context is omitted, as it is there.

    Args:
        model: A model of transformers, whose `base_model` is the encoder, or any other module,
            which is counted as a whole.
    """
    encoder = getattr(model, "base_model", model)
    excluded = {
        id(parameter)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] == "pooler"
        for parameter in module.parameters()
    }
    operations, above_trained = 0, False
    for parameter in encoder.parameters():
        if parameter.ndim >= 2 and id(parameter) not in excluded:
            trains = parameter.requires_grad
            per_weight = 2 + 2 * trains + 2 * (trains or above_trained)
            operations += per_weight * parameter.numel()
        above_trained |= parameter.requires_grad
    return operations


class MeasuredUtilisation(Feature):
    """Measures at the end how far a training used the machine."""

    name = "utilisation"

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, precision: Precision, *, has_tokens: bool
    ) -> None:
        """Count the operations per token, before adapters can be merged.

        Args:
            accelerator: Accelerator of the training.
            model: Model without what Accelerate added.
            precision: Precision of the run.
            has_tokens: Whether examples have tokens.
        """
        self._accelerator, self._precision, self._has_tokens = accelerator, precision, has_tokens
        self._flops = flops_per_token(model)

    def timings(self, timings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the utilisation, its parts and its protocol."""
        measured = measure_utilisation(
            self._flops,
            self._precision,
            self._accelerator.device,
            tokens_per_second=timings["tokens_per_second"] if self._has_tokens else None,
            num_processes=self._accelerator.num_processes,
        )
        return asdict(measured)
