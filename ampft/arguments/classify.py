"""The settings of `recipes/classify.py`, named as in the transformers example scripts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ampft.arguments.batches import BatchArguments
from ampft.arguments.data import DataArguments
from ampft.arguments.evaluation import EvaluationArguments
from ampft.arguments.model import ModelArguments
from ampft.arguments.optimizer import OptimizerArguments
from ampft.arguments.output import OutputArguments
from ampft.arguments.pixels import PixelArguments
from ampft.arguments.trained_part import TrainedPartArguments

if TYPE_CHECKING:
    from ampft.kinds.settings import TaskSettings

# Defaults that the built-in data sets override.
BUILT_IN_DEFAULTS: dict[str, dict[str, Any]] = {
    "stdlib": {
        "per_device_train_batch_size": 16,
        "learning_rate": 2e-4,
        "num_train_epochs": 5,
        "max_seq_length": 64,
        "warmup_ratio": 0.1,
    },
    "digits": {
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "num_train_epochs": 30,
        "warmup_ratio": 0.1,
    },
}


# The fields of the last base come first, so this is the reverse of the order in the help.
@dataclass(frozen=True)
class ClassifyArguments(
    OutputArguments,
    EvaluationArguments,
    OptimizerArguments,
    BatchArguments,
    PixelArguments,
    DataArguments,
    TrainedPartArguments,
    ModelArguments,
):
    """Every setting of a run. `--help` describes each."""

    def with_learning_rate(self, config: Any) -> ClassifyArguments:
        """Return the settings with a learning rate: the default for a model, if none is set.

        Args:
            config: Configuration of the model.
        """
        from ampft.training.optimizer import default_learning_rate

        if self.learning_rate is not None:
            return self
        rate = default_learning_rate(
            config, optimizer=self.optim, trains_head_or_adapters=self.trains_head_or_adapters
        )
        return replace(self, learning_rate=rate)

    def task_settings(self) -> TaskSettings:
        """Return the settings of the task."""
        from ampft.kinds.settings import TaskSettings

        return TaskSettings(
            task=self.task,
            model_name_or_path=self.model_name_or_path,
            max_seq_length=self.max_seq_length,
            long_text=self.long_text,
            stride=self.stride,
            pad_to_multiple_of=self.pad_to_multiple_of,
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing_factor,
            focal_gamma=self.focal_gamma,
            threshold=self.threshold,
            remove_padding=not self.padding,
            token_buckets=self.token_buckets,
            gradient_checkpointing=self.gradient_checkpointing,
            trust_remote_code=self.trust_remote_code,
            trained_part=self.trained_part(),
            augment=self.augment,
            channels_last=self.channels_last,
            seed=self.seed,
            image_size=self.input_size,
            multi_scale=self.multi_scale,
            fp32_modules=self.fp32_patterns,
        )
