"""A tokenizer of another model: padding token and side are fitted, if padding changes results."""

from __future__ import annotations

import pytest
import torch
from tiny_text import WORDS
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    FNetConfig,
    FNetForSequenceClassification,
    OPTConfig,
    OPTForSequenceClassification,
    PreTrainedTokenizerFast,
    RoFormerConfig,
    RoFormerForSequenceClassification,
    XLMConfig,
    XLMForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from ampft.models.by_length import TOLERANCE, fit_padding, padding_difference

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 3,
}
SPECIAL = ("[PAD]", "</s>", "[CLS]", "[UNK]")
TEXTS = ["w1", "w2 w3 w4", "w5 w6 w7 w8 w9", "w1 w2 w3 w4 w5 w6 w7 w8 w9"]
SIDES = ("right", "left")


def tokenizer_of_another_model(side: str) -> PreTrainedTokenizerFast:
    """Return one whose padding token is 0, and which has 1 and 2 within texts."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A </s>", special_tokens=[("[CLS]", 2), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="</s>",
        padding_side=side, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def opt():
    return OPTForSequenceClassification(
        OPTConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32,
            max_position_embeddings=40, word_embed_proj_dim=16, num_labels=3,
        )
    )  # fmt: skip


def roformer():
    return RoFormerForSequenceClassification(RoFormerConfig(embedding_size=16, **SHAPE))


def xlm():
    config = XLMConfig(vocab_size=50, emb_dim=16, n_layers=2, n_heads=2, num_labels=3)
    return XLMForSequenceClassification(config)


def xlnet():
    config = XLNetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=2, d_inner=32, num_labels=3)
    return XLNetForSequenceClassification(config)


def fnet():
    shape = {name: value for name, value in SHAPE.items() if name != "num_attention_heads"}
    return FNetForSequenceClassification(FNetConfig(**shape))


def loud(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@pytest.mark.parametrize(
    ("make", "side", "fitted", "pads_with"),
    [
        (opt, "right", "right", 0),  # its head finds the last token by the padding token
        (roformer, "left", "right", 0),
        (xlm, "right", "right", 2),  # it must not take [CLS] for padding
        (xlm, "left", "right", 2),
        (xlnet, "right", "left", 5),  # its head reads the last column
    ],
)
def test_the_fitted_padding_changes_no_result(make, side, fitted, pads_with, tmp_path):
    torch.manual_seed(0)
    model, tokenizer = loud(make()), tokenizer_of_another_model(side)
    before = model.config.pad_token_id

    def collate():
        return dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))

    difference = padding_difference(model, collate(), collate())
    notes = fit_padding(model, tokenizer, collate, sides=SIDES)
    assert padding_difference(model, collate(), collate()) <= TOLERANCE
    assert (tokenizer.padding_side, model.config.pad_token_id) == (fitted, pads_with)
    needed = (fitted, pads_with) != (side, before)
    assert bool(notes) == needed == (difference > 0.01)
    for note in notes:
        assert ("config.json gets the tokenizer's padding token '[PAD]'" in note) == (
            pads_with != before
        )
        assert (f"texts are padded on the {fitted}" in note) == (fitted != side)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(TEXTS, padding=True)["input_ids"] == collate()["input_ids"].tolist()


def test_where_nothing_helps_all_stays():
    torch.manual_seed(0)
    model, tokenizer = loud(fnet()), tokenizer_of_another_model("left")
    before = (tokenizer.padding_side, model.config.pad_token_id)

    def collate():
        return dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))

    assert fit_padding(model, tokenizer, collate, sides=SIDES) == ()
    assert (tokenizer.padding_side, model.config.pad_token_id) == before
    assert padding_difference(model, collate(), collate()) > TOLERANCE
