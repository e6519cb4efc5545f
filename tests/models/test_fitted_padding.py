"""A tokenizer of another model: padding token and side are fitted, if padding changes results."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from running import BIN, CLASSIFY, call_here, rows, succeeded, write_csv
from tiny_text import WORDS
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    FNetConfig,
    FNetForSequenceClassification,
    OPTConfig,
    OPTForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    RoFormerConfig,
    RoFormerForSequenceClassification,
    XLMConfig,
    XLMForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
    pipeline,
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


def roberta():
    return RobertaForSequenceClassification(RobertaConfig(max_position_embeddings=40, **SHAPE))


MADE = {"opt": opt, "xlm": xlm, "xlnet": xlnet, "roberta": roberta}


def write_rows(path: Path, count: int, seed: int, *, pairs: bool) -> Path:
    table = rows(count, seed)
    if not pairs:
        return write_csv(path, table, ("text", "label"))
    halves = [(text.split()[0], " ".join(text.split()[1:]), label) for text, label in table]
    return write_csv(path, halves, ("sentence1", "sentence2", "label"))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", MADE)
def test_a_pipeline_answers_batches_as_ampft_predict(family, side, pairs, tmp_path):
    torch.manual_seed(0)
    model, run, answers = tmp_path / "model", tmp_path / "run", tmp_path / "answers.csv"
    loud(MADE[family]()).save_pretrained(model)
    tokenizer_of_another_model(side).save_pretrained(model)
    train, test = (
        write_rows(tmp_path / f"{name}.csv", size, size, pairs=pairs)
        for name, size in (("train", 24), ("test", 12))
    )
    flags = ("--model_name_or_path", model, "--max_train_steps", 3, "--use_cpu", "--no-baseline")
    data = ("--train_file", train, "--test_file", test)
    succeeded(call_here(CLASSIFY, *flags, *data, "--output_dir", run))
    words = ("predict", "--model", run, test, "--output_file", answers)
    succeeded(call_here(BIN / "ampft", *words))
    with answers.open(newline="") as file:
        table = list(csv.DictReader(file))
    inputs = [row.get("text") or {"text": row["sentence1"], "text_pair": row["sentence2"]}
              for row in table]  # fmt: skip
    classify = pipeline("text-classification", model=str(run), device="cpu")
    for size in (1, 1 if family == "xlnet" else 4):  # its states end transformers' batches
        found = classify(inputs, truncation=True, batch_size=size)
        assert [each["label"] for each in found] == [row["prediction"] for row in table]
        for each, row in zip(found, table, strict=True):
            assert each["score"] == pytest.approx(float(row["confidence"]), abs=2e-6)
