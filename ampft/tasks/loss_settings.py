"""Settings of the loss."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.errors import InputError
from ampft.flag import EVALUATION, OPTIMIZER, flag
from ampft.tasks.decision_settings import DecisionSettings


@dataclass(frozen=True)
class LossSettings(DecisionSettings):
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
