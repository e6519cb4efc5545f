"""Settings of a task: its loss, and everything that its model and inputs need."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.errors import InputError
from ampft.flag import BATCH, DATA, EVALUATION, OPTIMIZER, flag
from ampft.kinds.settings import InputSettings
from ampft.models.settings import TrainedPart
from ampft.tasks import TASKS


@dataclass(frozen=True)
class LossSettings:
    """The loss, and when a label is predicted. `--help` describes each setting."""

    class_weights: str | None = flag(
        None,
        "balanced, or one weight per class: 1,2.5,1 (multi-label: of the examples that have it)",
        group=OPTIMIZER,
    )
    label_smoothing_factor: float = flag(
        0.0,
        "share of the target probability spread over all classes, 0 to 1",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    focal_gamma: float = flag(
        0.0,
        "exponent of the focal loss, which gives little weight to examples that are already easy; "
        "2 is usual, and 0 is cross entropy",
        group=OPTIMIZER,
        at_least=0,
    )
    threshold: float = flag(
        0.5,
        "smallest probability at which a label is predicted (multi-label)",
        group=EVALUATION,
        at_least=0,
        at_most=1,
    )

    def check_loss(self) -> None:
        """Reject losses that are not defined.

        Raises:
            InputError: The focal loss is combined with smoothed labels.
        """
        if self.focal_gamma and self.label_smoothing_factor:
            raise InputError(
                f"--focal_gamma {self.focal_gamma:g} and --label_smoothing_factor "
                f"{self.label_smoothing_factor:g}: the focal loss is defined for targets that are "
                "not smoothed. Remove one of them."
            )


@dataclass(frozen=True)
class TaskSettings(LossSettings, TrainedPart, InputSettings):
    """The user's choices about a task. `--help` describes each setting."""

    task: str | None = flag(
        None,
        "what to classify; if none, the default task for the data",
        group=DATA,
        choices=TASKS.keys(),
    )
    fp32_modules: str | None = flag(
        None,
        "modules that compute in float32 inside a 16-bit model, as globs over their paths: "
        "encoder.layer.3.*,wo; the saved model keeps them so; if none, those that the model was "
        "saved with",
        group=BATCH,
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
