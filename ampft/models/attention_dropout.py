"""Attention kernels of transformers that would train without the dropout of the configuration."""

from __future__ import annotations

import re

from torch import nn
from transformers import PreTrainedModel

from ampft.errors import InputError

# Flash attention 3 and 4, as packages or as kernels of the hub, have no argument for dropout, and
# transformers (`_process_flash_attention_kwargs`) passes on only the arguments that a kernel has.
_WITHOUT_DROPOUT = re.compile(r"flash[-_](attention_|attn)[34]")
_DROPOUT = re.compile(r".*att.*drop.*")  # attention_dropout, attention_probs_dropout_prob, ...


def check_attention_dropout(model: nn.Module) -> None:
    """Check that a model's attention drops the weights that its configuration says.

    Args:
        model: Model to be trained, of transformers or any other.

    Raises:
        InputError: A part of it has attention dropout above 0, and a kernel that ignores it.
    """
    for part in model.modules():
        config = part.config if isinstance(part, PreTrainedModel) else None
        kernel = str(getattr(config, "_attn_implementation", None))
        if config is None or not _WITHOUT_DROPOUT.search(kernel):
            continue
        for name, value in config.to_dict().items():
            is_probability = isinstance(value, int | float) and not isinstance(value, bool)
            if _DROPOUT.fullmatch(name) and is_probability and value > 0:
                raise InputError(
                    f"model: attn_implementation={kernel!r} ignores dropout, so the model would "
                    f"train without its {name} of {value:g}. Load it with "
                    f"attn_implementation='sdpa' or 'flash_attention_2', or set {name} to 0."
                )
