"""Faults of half precision that became known, rebuilt from configurations with scaled weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from planted_faults import Planted
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    MT5Config,
    MT5ForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)
from transformers.masking_utils import eager_mask

VOCABULARY, LONGEST, CLASSES = 60, 12, 3
PAD, END = 0, 1
T5_SHAPE = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3,
    "num_decoder_layers": 1, "num_heads": 4, "num_labels": CLASSES, "pad_token_id": PAD,
    "eos_token_id": END, "decoder_start_token_id": PAD, "dropout_rate": 0.0,
}  # fmt: skip
ENCODER_SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": LONGEST, "num_labels": CLASSES,
    "pad_token_id": PAD,
}  # fmt: skip
T5_LARGEST = 66_246.0  # reported for T5; the largest number of binary16 is 65,504


def texts(count: int = 64, *, size: int = 16, seed: int = 0) -> list[dict[str, Tensor]]:
    """Return batches of right-padded texts that end with `END`; the first word names the class."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count // size):
        lengths = torch.randint(4, LONGEST + 1, (size, 1), generator=generator)
        lengths[0] = LONGEST
        ids = torch.randint(10, VOCABULARY, (size, LONGEST), generator=generator)
        labels = torch.randint(CLASSES, (size,), generator=generator)
        ids[:, 0] = 2 + labels
        columns = torch.arange(LONGEST)
        ids = ids.masked_fill(columns >= lengths, PAD).masked_fill(columns == lengths - 1, END)
        mask = (columns < lengths).long()
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return batches


def text_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return functional.cross_entropy(logits.float(), batch["labels"])


def scaled_to(model: nn.Module, layer: nn.Module, largest: float, seen: nn.Module) -> None:
    """Scale the weights of `layer` so that the outputs of `seen` reach `largest` in float32."""
    sizes: list[float] = []
    handle = seen.register_forward_hook(lambda _, __, y: sizes.append(float(y.abs().max())))
    with torch.no_grad():
        for batch in texts():
            text_loss(model, batch)
        layer.weight.mul_(largest / max(sizes))
    handle.remove()


def t5() -> Planted:
    """T5: `wo` of a feed-forward block exceeds 65504, in a few examples."""
    torch.manual_seed(0)
    model = T5ForSequenceClassification(T5Config(**T5_SHAPE)).train()
    wo = model.transformer.encoder.block[1].layer[1].DenseReluDense.wo
    scaled_to(model, wo, T5_LARGEST, wo)
    return Planted(
        model, "transformer.encoder.block.1.layer.1.DenseReluDense.wo", "mm",
        "overflow of a product", batches=texts(), loss=text_loss,
    )  # fmt: skip


def mt5() -> Planted:
    """mT5: the gated product in front of `wo` exceeds 65504, and is converted for `wo`."""
    torch.manual_seed(0)
    shape = {**T5_SHAPE, "feed_forward_proj": "gated-gelu"}
    model = MT5ForSequenceClassification(MT5Config(**shape)).train()
    block = model.transformer.encoder.block[2].layer[1].DenseReluDense
    with torch.no_grad():
        block.wi_0.weight.mul_(32)
    scaled_to(model, block.wi_1, T5_LARGEST, block.dropout)
    return Planted(
        model, "transformer.encoder.block.2.layer.1.DenseReluDense.wo", "_to_copy",
        "overflow of a conversion to 16 bits", batches=texts(), loss=text_loss,
    )  # fmt: skip


def deberta() -> Planted:
    """DeBERTa: the mask is the smallest number of the dtype of the query, which is float32, but
    autocast computes the scores in binary16, where that number does not exist."""
    torch.manual_seed(0)
    config = DebertaV2Config(
        relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **ENCODER_SHAPE,
    )  # fmt: skip
    model = DebertaV2ForSequenceClassification(config).train()
    for layer in model.deberta.encoder.layer:
        layer.attention.self.query_proj.register_forward_hook(lambda _, __, y: y.float())
    return Planted(
        model, "deberta.encoder.layer.0.attention.self", "masked_fill", "mask beyond binary16",
        batches=texts(), loss=text_loss,
    )  # fmt: skip


def _masked_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, **kwargs: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention with the mask converted to the dtype of the scores, before the addition."""
    del module, kwargs
    scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask.to(scores.dtype)
    return (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("converted_mask", _masked_attention)
AttentionMaskInterface.register("converted_mask", eager_mask)


def modernbert() -> Planted:
    """ModernBERT: rows of padding outside of every window see nothing, and are NaN in binary16."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        layer_types=["sliding_attention", "full_attention"], local_attention=4,
        bos_token_id=2, eos_token_id=END, cls_token_id=2, sep_token_id=END,
        attn_implementation="converted_mask", **ENCODER_SHAPE,
    )  # fmt: skip
    model = ModernBertForSequenceClassification(config).train()
    return Planted(
        model, "model.layers.0.attn", "_softmax", "mask beyond binary16", batches=texts(),
        loss=text_loss,
    )  # fmt: skip


class Detector(nn.Module):
    """Scores anchors on a feature map, as a single-shot detector does."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.anchors = nn.Conv2d(8, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.anchors(self.features(images))


def images(count: int = 16, *, size: int = 8, seed: int = 0) -> list[dict[str, Tensor]]:
    """Return batches of images with one bright square each, whose place is the target."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count // size):
        pixels = torch.rand(size, 1, 16, 16, generator=generator) * 0.1
        targets = torch.zeros(size, 4, 16, 16)
        corners = torch.randint(0, 13, (size, 2), generator=generator)
        for image, (row, column) in enumerate(corners.tolist()):
            pixels[image, 0, row : row + 3, column : column + 3] = 1.0
            targets[image, image % 4, row + 1, column + 1] = 1.0
        batches.append({"images": pixels, "targets": targets})
    return batches


LOSS_WEIGHT = 3e-4  # without a scale, the gradient then has another direction


def focal(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of a detector: most anchors are easy, and their gradients tiny."""
    logits, targets = model(batch["images"]).float(), batch["targets"]
    entropy = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    missed = (targets - logits.sigmoid()).abs()
    return LOSS_WEIGHT * (missed**2 * entropy).mean()


def detector() -> Planted:
    """A detector like that of Micikevicius et al.: gradients become 0 without a loss scale."""
    torch.manual_seed(0)
    model = Detector()
    # The prior of a rare object, as detectors begin.
    nn.init.constant_(model.anchors.bias, -3.0)
    return Planted(
        model, "features.3", "gradient", "gradients lost to underflow", "backward",
        batches=images(), loss=focal, options={"loss_scale": 1.0},
    )  # fmt: skip


HISTORICAL: dict[str, Callable[[], Planted]] = {
    "T5": t5, "mT5": mt5, "DeBERTa": deberta, "ModernBERT": modernbert, "detector": detector,
}  # fmt: skip
