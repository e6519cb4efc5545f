"""The mean of a text's tokens as the input of a head that reads only the first token.

Sentence encoders are trained through the mean of their last hidden states, and the heads of BERT
and RoBERTa in transformers read the first token. An added layer moves the mean there: its queries
and keys are zero, so that each token attends to all tokens alike, and its values are the hidden
states. With the norm n, the first token's state x and the mean m, the head then reads
tanh(SLOPE * n(SCALE * m + x)), which is close to the direction of the mean. The layer is an
ordinary one, so the saved model needs no code of its own, and all of it is trained.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import cached_file

from ampft.errors import InputError
from ampft.models.freezing import base_model_of
from ampft.text.json_io import read_json_object

MEAN, FIRST = "mean", "first"
SCALE = 16.0  # weight of the mean beside the first token's state
SLOPE = 0.3  # of the head's tanh, which a state of unit variance hardly bends
# Path of the linear layer with a tanh that the first token goes through, by type of model.
TANH_LAYERS = {
    "bert": "bert.pooler.dense",
    "camembert": "classifier.dense",
    "roberta": "classifier.dense",
    "xlm-roberta": "classifier.dense",
}
MARK = "ampft_reads_mean"  # in the configuration of a model that has the layer already


def is_trained_through_mean(path: str) -> bool:
    """Return whether the files of sentence-transformers say that a model's tokens are averaged.

    Args:
        path: Folder or hub id.
    """
    try:
        file = cached_file(
            path,
            "1_Pooling/config.json",
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        values = {} if file is None else read_json_object(Path(file))
    except (OSError, ValueError):
        return False
    modes = [name for name, value in values.items() if name.startswith("pooling_mode_") and value]
    return modes == ["pooling_mode_mean_tokens"] or values.get("pooling_mode") == "mean"


def can_read_mean(model: Any) -> bool:
    """Return whether `read_mean` supports a model, and it has no such layer yet."""
    kind = getattr(model.config, "model_type", None)
    return kind in TANH_LAYERS and not getattr(model.config, MARK, False)


def read_mean(model: Any) -> str:
    """Add the layer to a model for sequence classification, in place; return a note for the user.

    Nothing is drawn at random: the feed-forward part begins as the last layer's without an output.

    Raises:
        InputError: The model is of another type.
    """
    if getattr(model.config, MARK, False):
        return "the head reads the mean of the tokens, through the layer that was added before"
    if not can_read_mean(model):
        raise InputError(
            f"--pooling mean: {type(model).__name__} is not supported, only models of the types "
            f"{', '.join(TANH_LAYERS)}. Remove the flag."
        )
    layers: Any = base_model_of(model).get_submodule("encoder.layer")
    config = model.config
    layer: Any = copy.deepcopy(layers[-1], {id(config): config})  # which chooses the attention
    attention = layer.attention
    attention.self.layer_idx = len(layers)
    identity = torch.eye(config.hidden_size)
    pooler: Any = model.get_submodule(TANH_LAYERS[config.model_type])
    factors = {
        attention.self.query: 0.0,
        attention.self.key: 0.0,
        attention.self.value: SCALE**0.5,
        attention.output.dense: SCALE**0.5,
        layer.output.dense: None,
        pooler: SLOPE,
    }
    with torch.no_grad():
        for part, factor in factors.items():
            nn.init.zeros_(part.bias)
            nn.init.zeros_(part.weight)
            if factor:
                part.weight.copy_(factor * identity)
        for norm in (attention.output.LayerNorm, layer.output.LayerNorm):
            nn.init.ones_(norm.weight)
            nn.init.zeros_(norm.bias)
    layers.append(layer)
    config.num_hidden_layers = len(layers)
    setattr(config, MARK, True)
    return (
        "the head reads the mean of the tokens, as the encoder was trained to be read: an added "
        f"layer, number {len(layers)}, brings it to the first token (--pooling first: without)"
    )
