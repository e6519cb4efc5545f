"""Flags of batches, precision and device."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.arguments.flags import flag
from ampft.precision.modes import MODES

BATCH = "batches and precision"


@dataclass(frozen=True)
class BatchArguments:
    """Batches, precision and device."""

    mixed_precision: str | None = flag(
        None,
        "precision; if none, the one set by accelerate launch, otherwise fp32",
        group=BATCH,
        choices=("no", *MODES),
    )
    fp32_modules: str | None = flag(
        None,
        "modules that compute in float32 inside a 16-bit model, as globs over their paths: "
        "encoder.layer.3.*,wo; the saved model keeps them so; if none, those that the model was "
        "saved with",
        group=BATCH,
    )
    check_precision: bool = flag(
        False,
        "before training, compare loss and gradient of a few examples in the precision with "
        "float32, and stop if it does not hold",
        group=BATCH,
    )
    per_device_train_batch_size: int = flag(
        8,
        "examples per micro-batch and process (stdlib: 16, digits: 32, pixels: 4)",
        group=BATCH,
        at_least=1,
    )
    gradient_accumulation_steps: int = flag(
        1, "micro-batches per optimizer step and process", group=BATCH, at_least=1
    )
    auto_micro_batch: bool = flag(
        False,
        "use the largest micro-batches that fit into memory; the effective batch size stays the "
        "same",
        group=BATCH,
    )
    per_device_eval_batch_size: int = flag(
        64,
        "examples per forward pass and process in evaluation, with all their windows (pixels: 4)",
        group=BATCH,
        at_least=1,
    )
    use_cpu: bool = flag(False, "train on the CPU even if there is an accelerator", group=BATCH)
    cpu_threads: int | None = flag(
        None,
        "CPU threads per process; if none, OMP_NUM_THREADS if you set it, and otherwise all cores",
        group=BATCH,
        at_least=1,
    )
    dataloader_num_workers: int = flag(
        0,
        "worker processes that load batches in advance; 0 loads them in the training process",
        group=BATCH,
        at_least=0,
    )

    @property
    def fp32_patterns(self) -> tuple[str, ...]:
        """The patterns in `fp32_modules`.

        Raises:
            InputError: One is empty.
        """
        if self.fp32_modules is None:
            return ()
        from ampft.precision.float32_modules import FLAG, split_patterns  # imports torch

        return split_patterns(FLAG, self.fp32_modules)
