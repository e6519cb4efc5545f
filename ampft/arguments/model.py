"""Flags of the model."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.arguments.flags import flag
from ampft.errors import InputError

MODEL = "model"


@dataclass(frozen=True)
class ModelArguments:
    """The model, and how it runs."""

    model_name_or_path: str | None = flag(
        None,
        "model folder or hub id, or erfnet for images with masks; if none, all-MiniLM-L6-v2 for "
        "text, and a small, randomly initialised ViT for images or AST for sounds",
        group=MODEL,
    )
    max_seq_length: int = flag(
        128,
        "maximum text length in tokens; longer texts are truncated or split, see --long_text "
        "(stdlib: 64)",
        group=MODEL,
        at_least=2,
    )
    long_text: str = flag(
        "truncate",
        "what to do with texts of more than --max_seq_length tokens: truncate, or windows, which "
        "splits them and takes the mean of the logits (words with labels always get windows)",
        group=MODEL,
        choices=("truncate", "windows"),
    )
    stride: int | None = flag(
        None,
        "tokens that neighbouring windows of a text share; if none, a quarter of --max_seq_length",
        group=MODEL,
        at_least=0,
    )
    padding: bool = flag(False, "pad inputs even if the model can run without padding", group=MODEL)
    pad_to_multiple_of: int | None = flag(
        None, "pad inputs to a multiple of this many tokens", group=MODEL, at_least=1
    )
    token_buckets: int | None = flag(
        None,
        "without padding, fill the tokens of every micro-batch up to a multiple of this, so that "
        "fewer shapes of matrices occur; changes no result but the dropout masks",
        group=MODEL,
        at_least=1,
    )
    gradient_checkpointing: bool = flag(
        False,
        "recompute activations in the backward pass; uses less memory, but is slower",
        group=MODEL,
    )
    channels_last: bool = flag(
        False,
        "store the channels of a pixel next to each other, which can make convolutions faster",
        group=MODEL,
    )
    trust_remote_code: bool = flag(False, "run code from the model's repository", group=MODEL)

    def check_padding(self) -> None:
        """Reject settings of a path that is switched off.

        Raises:
            InputError: --token_buckets and --padding are both set.
        """
        if self.token_buckets and self.padding:
            raise InputError(
                f"--token_buckets {self.token_buckets} and --padding: buckets are for models that "
                "run without padding. Remove one of them, or use --pad_to_multiple_of."
            )
