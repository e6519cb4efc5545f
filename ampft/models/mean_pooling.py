"""The mean of a text's tokens as the input of a head that reads only the first token.

Sentence encoders are trained through the mean of their last hidden states, and the heads of BERT,
RoBERTa and DistilBERT in transformers read the first token. An added layer moves the mean there:
its queries and keys are zero, so that each token attends to all tokens alike, and its values are
the hidden states. With the norm n, the first token's state x and the mean m, the head then reads
tanh(SLOPE * n(SCALE * m + x)), or in DistilBERT max(0, n(SCALE * m + x) + SHIFT), which are close
to the direction of the mean. The layer is an ordinary one, so the saved model needs no code of its
own, and all of it is trained. A ModernBERT reads the mean by its configuration, without a layer;
its head begins at n(gelu(SMALL * m)). The relative positions of MPNet would change the mean.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
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
SHIFT = 2.0  # before the head's max(0, x), which then cuts off few values of unit variance
SMALL = 0.1  # where GELU is nearly half of its input


@dataclass(frozen=True)
class Family:
    """Where models of a type have the parts of a layer, and the linear layer of the head."""

    head: str
    layers: str = "encoder.layer"
    queries: tuple[str, str] = ("attention.self.query", "attention.self.key")
    values: tuple[str, str] = ("attention.self.value", "attention.output.dense")
    norms: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm")
    last: str = "output.dense"  # of the feed-forward part
    shift: float | None = None  # of the head; None for a tanh


FAMILIES = {
    "bert": Family("bert.pooler.dense"),
    "camembert": Family("classifier.dense"),
    "roberta": Family("classifier.dense"),
    "xlm-roberta": Family("classifier.dense"),
    "distilbert": Family(
        "pre_classifier",
        "transformer.layer",
        ("attention.q_lin", "attention.k_lin"),
        ("attention.v_lin", "attention.out_lin"),
        ("sa_layer_norm", "output_layer_norm"),
        "ffn.lin2",
        SHIFT,
    ),
}
MODERNBERT = "modernbert"
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
    return kind in (*FAMILIES, MODERNBERT) and not getattr(model.config, MARK, False)


def read_mean(model: Any) -> str:
    """Make the head of a model for sequence classification read the mean; return a note on it.

    Nothing is drawn at random: the feed-forward part begins as the last layer's without an output.

    Raises:
        InputError: The model is of another type.
    """
    config = model.config
    if getattr(config, MARK, False):
        return "the head reads the mean of the tokens, as it was set before"
    if not can_read_mean(model):
        raise InputError(
            f"--pooling mean: {type(model).__name__} is not supported, only models of the types "
            f"{', '.join((*FAMILIES, MODERNBERT))}. Remove the flag."
        )
    setattr(config, MARK, True)
    if config.model_type == MODERNBERT:
        config.classifier_pooling = "mean"
        _set_to_identity(model.head.dense, SMALL)
        model.head.norm.reset_parameters()
        return "the head reads the mean of the tokens, as sentence encoders are read"
    family = FAMILIES[config.model_type]
    layers: Any = base_model_of(model).get_submodule(family.layers)
    layer: Any = copy.deepcopy(layers[-1], {id(config): config})  # which chooses the attention
    if family.layers == Family.layers:
        layer.attention.self.layer_idx = len(layers)
    for name in (*family.queries, family.last):
        _set_to_identity(layer.get_submodule(name), 0.0)
    for name in family.values:
        _set_to_identity(layer.get_submodule(name), SCALE**0.5)
    for name in family.norms:
        layer.get_submodule(name).reset_parameters()
    head = model.get_submodule(family.head)
    if family.shift is None:
        _set_to_identity(head, SLOPE)
    else:
        _set_to_identity(head, 1.0)
        nn.init.constant_(head.bias, family.shift)
    layers.append(layer)
    config.num_hidden_layers = len(layers)
    return (
        "the head reads the mean of the tokens, as sentence encoders are read: an added layer, "
        f"number {len(layers)}, brings it to the first token (--pooling first: without)"
    )


def _set_to_identity(layer: Any, factor: float) -> None:
    with torch.no_grad():
        layer.weight.copy_(factor * torch.eye(*layer.weight.shape))
        if layer.bias is not None:
            layer.bias.zero_()
