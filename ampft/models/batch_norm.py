"""Batch normalisation, whose statistics depend on how a batch is split."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ampft.text.numbers import counted


def batch_norm_note(model: nn.Module, *, micro_batches: int, processes: int) -> str | None:
    """Return what batch normalisation does to the gradient of a split batch; None if nothing.

    In training, it normalises by the mean and variance of the examples that go through the model
    together. These are a micro-batch, so the gradient depends on how a batch is split, and no
    weighting of the losses corrects this. `SyncBatchNorm` uses the examples of all processes.

    Args:
        model: Model in training.
        micro_batches: Micro-batches per step and process.
        processes: Number of processes.
    """
    norms = _norms_in_training(model)
    synchronized = all(isinstance(module, nn.SyncBatchNorm) for module in norms)
    parts = micro_batches * (1 if synchronized else processes)
    if not norms or parts == 1:
        return None
    return (
        f"batch normalisation ({counted(len(norms), 'layer')}) uses the statistics of each of the "
        f"{parts} parts of a batch, so the gradient is not that of the whole batch. For that one, "
        "use one process and --gradient_accumulation_steps 1"
    )


def _norms_in_training(model: nn.Module) -> list[nn.Module]:
    """Return the batch norms that use the statistics of a batch; frozen ones do not."""
    was_training = model.training
    model.train()
    found: list[nn.Module] = [
        m for m in model.modules() if isinstance(m, _BatchNorm) and m.training
    ]
    model.train(was_training)
    return found
