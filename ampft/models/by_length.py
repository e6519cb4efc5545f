"""Which rows of a batch a model takes together.

A model whose results depend on padding takes rows of the same length, unpadded. The head of an
encoder-decoder reads the place of the last end token, and takes rows with as many of them: a text
can contain the token literally, such as `</s>`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ampft.errors import InputError
from ampft.models.tokenizer import set_padding
from ampft.models.training_mode import evaluation_mode
from ampft.precision.transfer import to_device

MASK = "attention_mask"
# Difference of float32 logits, relative to the largest: rounding causes at most 1e-6, and a model
# that reads its padding at least 1e-3.
TOLERANCE = 1e-4
# Entries of config.json, so that saved models do the same.
CONFIG_FIELD = "ampft_runs_by_length"
MASK_FIELD = "ampft_masks_padding"
_FAILURES = (RuntimeError, ValueError, AssertionError, IndexError)  # of a model's forward pass
REMOTE_CODE = "transformers_modules."  # prefix of modules from a repository; may need a mask


def fit_padding(
    model: Any, tokenizer: Any, collate: Callable[[], Mapping[str, Tensor]], *, sides: Sequence[str]
) -> tuple[str, ...]:
    """Let padding change no result, if the padding token or its side is why it does.

    A tokenizer can belong to another model. A head that reads the last token then finds it by
    another padding token (OPT, GPT-2), or padding on the left moves the positions of a text.

    Args:
        tokenizer: Tokenizer, whose side may change; the configuration may get its padding token.
        collate: Function that returns the arguments for texts of different lengths.
        sides: Sides that may be tried; the tokenizer's own is one of them.

    Returns:
        A note about what was changed; empty if nothing had to be, or nothing helps.
    """
    side, token = tokenizer.padding_side, model.config.pad_token_id
    tokens = dict.fromkeys((token, tokenizer.pad_token_id))
    before = None
    for place, number in product(dict.fromkeys((side, *sides)), tokens):
        set_padding(tokenizer, place)
        model.config.pad_token_id = number
        try:
            difference = padding_difference(model, inputs := collate(), inputs)
        except _FAILURES:
            difference = float("inf")
        if before is None:
            before = difference
        elif difference <= TOLERANCE:
            where = [f"texts are padded on the {place}"] if place != side else []
            which = f"config.json gets the tokenizer's padding token {tokenizer.pad_token!r}"
            changes = " and ".join([*where, *([which] if number != token else [])])
            return (
                f"{changes}, because padding changed the results (logits differed by {before:.1%})",
            )
        if before <= TOLERANCE:
            break
    set_padding(tokenizer, side)
    model.config.pad_token_id = token
    return ()


def guard_against_text_padding(
    model: Any, batch: Mapping[str, Tensor], *, noun: str = "texts"
) -> tuple[str, ...]:
    """Make a model run texts of equal length together if its results depend on padding.

    They do where a model mixes tokens without regard to the mask, by Fourier transforms (FNet) or
    convolutions (ConvBERT), or attends to the padding.

    Args:
        model: Classifier of texts or of tokens, in float32 on the CPU.
        batch: Its arguments for texts of different lengths.

    Returns:
        A note about padding; empty if it does not change the results.

    Raises:
        InputError: The model cannot process texts of these lengths.
    """
    try:
        difference = padding_difference(model, batch, batch)
    except _FAILURES as error:
        raise InputError(
            f"model: {type(model).__name__} fails on a batch of {len(next(iter(batch.values())))} "
            f"training {noun} in float32: {' '.join(str(error).split()).rstrip('.')}."
        ) from error
    if difference <= TOLERANCE:
        return ()
    return (run_by_length(model, difference, noun),)


def run_by_length(model: Any, difference: float, kind: str) -> str:
    """Make a model run by length where that is possible; return a note."""
    what = f"its results depend on padding (logits differ by {difference:.1%})"
    reason = why_not_in_parts(model)
    setattr(model.config, CONFIG_FIELD, reason is None)  # a saved model may have another value
    if reason is not None:
        return (
            f"{what}, so that gradients and predictions depend on how {kind} are batched; {reason}"
        )
    return f"{what}, so {kind} of the same length run together, without padding"


def why_not_in_parts(model: nn.Module) -> str | None:
    """Return why a step cannot call a model several times before its backward pass, or None."""
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        return "FSDP2 allows no batches of one length"
    if any(buffer.is_floating_point() for buffer in model.buffers()):
        return "its buffers, such as batch norm's, change with every call"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and any(True for _ in model.buffers()):
        return "with several processes, its buffers are sent in every call"
    return None


def padding_difference(
    model: Any, inputs: Mapping[str, Tensor], padded: Mapping[str, Tensor]
) -> float:
    """Return the difference between the logits of a padded batch and of its equal lengths.

    Args:
        model: Classifier in float32; it is not changed.
        padded: Arguments of the model for the padded batch.

    Returns:
        The largest absolute difference, divided by the largest absolute logit.
    """
    real = _real_positions(model, inputs)
    parts = _equal_lengths(model, inputs, real)
    with evaluation_mode(model):
        whole = _by_end_tokens(model, [(torch.arange(len(real)), dict(padded))])
        together = merged_logits([(rows, model(**part).logits) for rows, part in whole], inputs)
        alone = merged_logits([(rows, model(**part).logits) for rows, part in parts], inputs)
    if together.dim() == 3:  # logits of each token
        together, alone = together[real], alone[real]
    return float((together - alone).abs().max() / alone.abs().max())


Parts = list[tuple[Tensor, dict[str, Tensor]]]
"""Rows of each part of a batch, and their inputs."""


def parts_together(model: nn.Module, inputs: Mapping[str, Tensor]) -> Parts:
    """Return the parts of a batch that a model takes together.

    Args:
        model: Any model, prepared by Accelerate or not.
        inputs: Arguments of the model, on the CPU.

    Returns:
        Empty if the batch runs as it is.
    """
    plain: Any = getattr(model, "module", model)
    if getattr(getattr(plain, "config", None), CONFIG_FIELD, False):
        return _equal_lengths(plain, inputs, _real_positions(plain, inputs))
    if end_token_of_head(plain) is None:
        return []
    whole = padded_inputs(plain, inputs)
    parts = _by_end_tokens(plain, [(torch.arange(len(whole["input_ids"])), whole)])
    return parts if len(parts) > 1 else []


def largest_part(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the largest part of a batch that a model takes together, to try it on."""
    parts = parts_together(model, inputs)
    return max(parts, key=lambda part: len(part[0]))[1] if parts else dict(inputs)


def end_token_of_head(model: Any) -> int | None:
    """Return the token whose last place the head reads; None for other heads than those.

    These are the classifiers of encoder-decoders. Sources: `BartForSequenceClassification` and
    `T5ForSequenceClassification` of transformers.
    """
    plain = getattr(model, "module", model)
    plain = getattr(plain, "_orig_mod", plain)  # of a compiled model
    config = getattr(plain, "config", None)
    if "SequenceClassification" not in type(plain).__name__:
        return None
    token = getattr(config, "eos_token_id", None)
    return token if getattr(config, "is_encoder_decoder", False) else None


def _by_end_tokens(model: Any, parts: Parts) -> Parts:
    """Return parts whose rows have the same number of end tokens each."""
    token = end_token_of_head(model)
    if token is None:
        return parts
    found = []
    for rows, inputs in parts:
        counts = (inputs["input_ids"] == token).sum(dim=1)
        if counts.unique().numel() == 1:
            found.append((rows, inputs))
            continue
        for count in counts.unique().tolist():
            chosen = (counts == count).nonzero()[:, 0]
            found.append((rows[chosen], {name: value[chosen] for name, value in inputs.items()}))
    return found


def padded_inputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the arguments of a model for a padded batch.

    They have no mask where the feature extractor gives none: its model was trained without one.

    Args:
        model: Any model, prepared by Accelerate or not.
        inputs: Arguments, with a mask for sounds of unequal lengths.
    """
    masked = masks_padding(getattr(model, "module", model))
    return {name: value for name, value in inputs.items() if masked or name != MASK}


def masks_padding(model: Any) -> bool:
    """Return whether padding is masked, as the configuration of a model says."""
    return bool(getattr(getattr(model, "config", None), MASK_FIELD, True))


def merged_logits(parts: Sequence[tuple[Tensor, Tensor]], inputs: Mapping[str, Tensor]) -> Tensor:
    """Merge the logits of the parts of a batch.

    Args:
        parts: Rows of each part, and its logits (n, K), or (n, length, K) of tokens.
        inputs: The batch, padded to T tokens on the right if the logits are per token.

    Returns:
        Logits (m, K), or (m, T, K) with 0 where there is padding.
    """
    order = torch.cat([rows for rows, _ in parts]).argsort()
    logits = [values for _, values in parts]
    if logits[0].dim() == 3:
        width = inputs["input_ids"].shape[1]
        logits = [functional.pad(each, (0, 0, 0, width - each.shape[1])) for each in logits]
    together = torch.cat(logits)
    return together[to_device(order, together.device)]


def _real_positions(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return (m, T) bool, True where a position is not padding."""
    if MASK in inputs:
        return inputs[MASK] != 0
    return inputs["input_ids"] != model.config.pad_token_id


def _equal_lengths(model: nn.Module, inputs: Mapping[str, Tensor], real: Tensor) -> Parts:
    lengths = real.sum(dim=1)
    left_out = () if _needs_mask(model, inputs, real) else (MASK,)
    sequences = {n: v for n, v in inputs.items() if v.shape[:2] == real.shape and n not in left_out}
    parts = []
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        values = {
            n: v[rows][real[rows]].unflatten(0, (len(rows), length)) for n, v in sequences.items()
        }
        parts.append((rows, values))
    return _by_end_tokens(model, parts)


def _needs_mask(model: Any, inputs: Mapping[str, Tensor], real: Tensor) -> bool:
    """Return whether a model may need the mask of rows without padding.

    One that gets no mask can take its padding token for padding (XLM), which a tokenizer that
    belongs to another model has within texts.
    """
    if type(model).__module__.startswith(REMOTE_CODE):
        return True
    token = getattr(getattr(model, "config", None), "pad_token_id", None)
    ids = inputs.get("input_ids")
    return token is not None and ids is not None and bool((ids[real] == token).any())
