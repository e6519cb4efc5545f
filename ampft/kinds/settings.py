"""The user's choices about a task: what its inputs, its model and its labels need."""

from __future__ import annotations

from dataclasses import dataclass, field

from ampft.models.trained_part import TrainedPart


@dataclass(frozen=True)
class TaskSettings:
    """The user's choices about a task.

    Attributes:
        task: Name of the task; None uses the default for the kind of data.
        model_name_or_path: Folder or hub id; None uses the default model of the task.
        max_seq_length: Maximum number of tokens; longer texts are truncated and counted, or split.
        long_text: What happens to longer texts: `truncate` or `windows`. Words with labels always
            get windows.
        stride: Number of tokens that neighbouring windows share; None for a quarter of a window.
        pad_to_multiple_of: Divisor of padded lengths; None pads to the longest.
        class_weights: None, "balanced", or comma-separated weights in the order of the labels.
        label_smoothing: Share of the target that is spread over all classes, 0 to 1.
        focal_gamma: Exponent of the focal loss; 0 for cross entropy.
        threshold: Probability from which a label is predicted, if there can be several.
        remove_padding: Whether the model runs without padding if its architecture is supported.
        token_buckets: Divisor of the number of tokens in a micro-batch without padding, reached
            by fillers; None adds no fillers.
        gradient_checkpointing: Whether activations are recomputed in the backward pass.
        trust_remote_code: Whether code from a model's repository may run.
        trained_part: Part of the model that is trained.
        augment: Comma-separated random changes of training examples; None for no change.
        channels_last: Whether convolutions store the channels of a pixel next to each other.
        seed: Seed of the augmentation.
        image_size: Height and width of the model's input; None for the image processor's.
        multi_scale: Whether images with masks are scaled by a random factor in each step.
        fp32_modules: Patterns of modules that compute in float32; if empty, those that the model
            was saved with.
    """

    task: str | None = None
    model_name_or_path: str | None = None
    max_seq_length: int = 128
    long_text: str = "truncate"
    stride: int | None = None
    pad_to_multiple_of: int | None = None
    class_weights: str | None = None
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0
    threshold: float = 0.5
    remove_padding: bool = True
    token_buckets: int | None = None
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    trained_part: TrainedPart = field(default_factory=TrainedPart)
    augment: str | None = None
    channels_last: bool = False
    seed: int = 0
    image_size: tuple[int, int] | None = None
    multi_scale: bool = False
    fp32_modules: tuple[str, ...] = ()

    def changes(self, flag: str) -> bool:
        """Return whether a flag has another value than its default."""
        if flag == "padding":
            return not self.remove_padding
        return bool(getattr(self, flag) != getattr(TaskSettings, flag))
