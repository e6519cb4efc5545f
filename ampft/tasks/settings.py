"""Settings of a task: everything that its model, inputs and loss need."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.flag import BATCH, DATA, flag
from ampft.kinds.settings import InputSettings
from ampft.models.settings import TrainedPart
from ampft.tasks import TASKS
from ampft.tasks.loss_settings import LossSettings


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
