"""Settings of the loss, and of what is fitted on the validation split. Imports no NumPy."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.flag import EVALUATION, OPTIMIZER, flag
from ampft.metrics.targets import FLAG


@dataclass(frozen=True)
class ValidationFitSettings:
    """Settings of all that is fitted on the validation split. `--help` describes each one."""

    calibrate: bool = flag(
        False,
        "fit a temperature on the validation split, by which logits are divided so that "
        "probabilities match accuracy; saved with the model",
        group=EVALUATION,
    )
    tune_thresholds: str | None = flag(
        None,
        "choose the threshold of each label, or of two classes, on the validation split: f1 "
        "(without a value), precision=0.95, recall=0.99 or cost=10:1 (a miss, a false alarm); "
        "saved with the model",
        group=EVALUATION,
        bare="f1",
    )
    positive_label: str | None = flag(
        None,
        "class of two that the threshold is for; if none, the second one, or the first one where "
        "more than two thirds of the validation rows have the second",
        group=EVALUATION,
    )
    abstain: float | None = flag(
        None,
        "largest share of the answered rows that may be wrong, such as 0.02: rows of low "
        "confidence get no prediction; proven with 95 % confidence on one half of the validation "
        "split, which nothing else uses then",
        group=EVALUATION,
        at_least=0.001,
        below=0.5,
    )

    @property
    def fitted_flags(self) -> tuple[str, ...]:
        """The flags that ask for something to be fitted; empty if none does."""
        asked = {
            "--calibrate": self.calibrate,
            FLAG: self.tune_thresholds is not None,
            "--abstain": self.abstain is not None,
        }
        return tuple(name for name, is_set in asked.items() if is_set)


@dataclass(frozen=True)
class LossSettings(ValidationFitSettings):
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
        excludes={
            "label_smoothing_factor": "the focal loss is defined for targets that are not smoothed"
        },
    )
    huber_delta: float | None = flag(
        None,
        "error, in the unit of the labels, from which the loss grows linearly (Huber's loss); if "
        "none, the squared error (regression)",
        group=OPTIMIZER,
        above=0,
    )
    threshold: float = flag(
        0.5,
        "smallest probability at which a label is predicted (multi-label)",
        group=EVALUATION,
        at_least=0,
        at_most=1,
    )
