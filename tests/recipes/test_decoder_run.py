"""Decoder models as classifiers: LoRA on Llama- and Qwen3-shaped models without a padding token."""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch
from running import BIN, CLASSIFY, FILLERS, WORDS, call_here, printed, succeeded, text_settings

pytestmark = pytest.mark.slow

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "head_dim": 8,
}
LORA = ("--lora_r", 4, "--lora_target_modules", "all-linear", "--mixed_precision", "bf16")


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def decoder(request, tmp_path_factory):
    """Return the folder of a decoder whose tokenizer has an end of text, but no padding token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    folder = tmp_path_factory.mktemp(request.param)
    words = ["<unk>", "<eos>", *FILLERS, *(word for group in WORDS.values() for word in group)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", model_max_length=32
    ).save_pretrained(folder)
    configs = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config, model = configs[request.param]
    torch.manual_seed(0)
    model(config(vocab_size=len(words), eos_token_id=1, **SHAPE)).save_pretrained(folder)
    return folder


def test_adapters_of_a_decoder_train_merge_and_predict_like_transformers(decoder, files, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = tmp_path / "run"
    settings = text_settings(files, decoder, run)
    done = succeeded(call_here(CLASSIFY, *settings, *LORA, "--merge_lora"))
    model = printed(done.stdout, "model")
    assert "LoRA of rank 4" in model
    assert "padding-free path" in model
    assert json.loads((run / "report.json").read_text())["accuracy"] > 0.5  # chance is a third
    texts = ["old iron of the zinc", "rhine", "a pear and very new plum with cherry here"]
    table = tmp_path / "texts.csv"
    table.write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
    predict = (BIN / "ampft", "predict", "--model", run, table)
    rows = list(csv.DictReader(io.StringIO(succeeded(call_here(*predict)).stdout)))
    merged = AutoModelForSequenceClassification.from_pretrained(run, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert merged.config.pad_token_id is not None
    with torch.no_grad():
        for text, row in zip(texts, rows, strict=True):
            logits = merged(**tokenizer(text, return_tensors="pt")).logits[0]
            assert row["prediction"] == merged.config.id2label[int(logits.argmax())]
