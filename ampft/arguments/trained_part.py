"""Flags that choose the trained part: the whole model, a part of it, or adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampft.arguments.flags import flag
from ampft.errors import InputError

if TYPE_CHECKING:
    from ampft.models.trained_part import TrainedPart

TRAINED = "what is trained"
LORA_FLAGS = ("lora_alpha", "lora_dropout", "lora_target_modules", "merge_lora")


@dataclass(frozen=True)
class TrainedPartArguments:
    """What is trained."""

    freeze: str | None = flag(
        None,
        "parameters or modules that are not trained, as globs over their paths, as those of "
        "--fp32_modules: embeddings,layer.0",
        group=TRAINED,
    )
    train_layers: int | None = flag(
        None,
        "train only the head and this many layers below it; 0 trains the head (linear probing)",
        group=TRAINED,
        at_least=0,
    )
    lora_r: int | None = flag(
        None,
        "train the head and adapters of this rank (LoRA) instead of the encoder; 8 is usual; needs "
        "the package peft",
        group=TRAINED,
        at_least=1,
    )
    lora_alpha: int | None = flag(
        None,
        "the output of adapters is multiplied by lora_alpha / lora_r; if none, by 2",
        group=TRAINED,
        at_least=1,
    )
    lora_dropout: float = flag(
        0.0,
        "probability that an input of an adapter is dropped in training",
        group=TRAINED,
        at_least=0,
        below=1,
    )
    lora_target_modules: str | None = flag(
        None,
        "all-linear, or names of layers that get adapters: query,value; if none, those that PEFT "
        "chooses for the model family, or all",
        group=TRAINED,
    )
    merge_lora: bool = flag(
        False,
        "add the adapters to the weights after training, and save a whole model without adapters",
        group=TRAINED,
    )

    @property
    def trains_head_or_adapters(self) -> bool:
        """Whether only adapters or the head are trained, which takes a higher learning rate."""
        return self.lora_r is not None or self.train_layers == 0

    def trained_part(self) -> TrainedPart:
        """Return the settings of the trained part."""
        from ampft.models.adapters import LoraSettings
        from ampft.models.trained_part import TrainedPart

        lora = None
        if self.lora_r is not None:
            lora = LoraSettings(
                self.lora_r, self.lora_alpha, self.lora_dropout, self.lora_target_modules
            )
        return TrainedPart(self.freeze, self.train_layers, lora)

    def check_trained_part(self) -> None:
        """Reject flags that have no effect or contradict each other.

        Raises:
            InputError: A flag has no effect, or two contradict each other.
        """
        if self.lora_r is None:
            for name in LORA_FLAGS:
                if getattr(self, name) != getattr(TrainedPartArguments, name):
                    raise InputError(
                        f"--{name} has no effect without --lora_r. Add --lora_r 8, or remove the "
                        "flag."
                    )
            return
        for name in ("freeze", "train_layers"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"--{name} and --lora_r: with adapters the whole encoder is frozen already. "
                    "Remove one of them; --lora_target_modules chooses the layers with adapters."
                )
