"""Decoder models as classifiers: LoRA on Llama- and Qwen3-shaped models, also in 4 bits."""

from __future__ import annotations

import csv
import io
import json
from importlib.util import find_spec

import pyarrow.parquet as pq
import pytest
import torch
from representatives import full_except
from running import (
    BIN,
    CLASSIFY,
    FILLERS,
    WORDS,
    Finished,
    call_here,
    printed,
    succeeded,
    text_settings,
    write_csv,
)
from safetensors.torch import load_file

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
has_bitsandbytes = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason="--load_in_4bit needs bitsandbytes"
)


@pytest.fixture(scope="module", params=full_except(["llama", "qwen3"], ["qwen3"]))
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


@pytest.fixture(scope="module")
def four_bits(decoder, files, tmp_path_factory) -> Finished:
    """Return a run on a base of 4 bits with a checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "four_bits"
    flags = ("--load_in_4bit", "--checkpointing_steps", 20)
    done = succeeded(call_here(CLASSIFY, *text_settings(files, decoder, folder), *LORA, *flags))
    return Finished(folder, done.stdout, done.stderr)


@has_bitsandbytes
def test_a_base_of_four_bits_trains_in_the_precision_asked_for_and_is_recorded(four_bits):
    assert four_bits.report["accuracy"] > 0.5  # chance is a third
    model, ran = (printed(four_bits.stdout, name) for name in ("model", "ran"))
    assert "M float32 and NF4 weights" in model
    assert "over a base in 4 bits (NF4)" in model
    assert "padding-free path" in model
    assert "projections bfloat16 x bfloat16 -> bfloat16 (float32 sums), attention" in ran
    assert "weights float32 and uint8; gradients, optimizer state float32" in ran
    assert four_bits.record["arguments"]["load_in_4bit"] is True
    card = (four_bits.folder / "README.md").read_text()
    assert "quantization_config=four_bits" in card
    assert "merge_and_unload" not in card


@has_bitsandbytes
def test_predict_and_audit_load_the_base_in_four_bits(four_bits, tmp_path):
    rows = pq.read_table(four_bits.folder / "predictions.parquet").to_pydict()
    texts = write_csv(tmp_path / "new.csv", [(text,) for text in rows["text"]], ["text"])
    predict = ("predict", "--model", four_bits.folder, texts, "--mixed_precision", "bf16")
    found = succeeded(call_here(BIN / "ampft", *predict))
    table = list(csv.DictReader(io.StringIO(found.stdout)))
    assert [row["prediction"] for row in table] == rows["prediction"]
    audit = (BIN / "ampft", "audit", four_bits.folder, "--use_cpu", "--steps", "all")
    assert "bit for bit" in printed(succeeded(call_here(*audit)).stdout, "predicted")


@has_bitsandbytes
def test_a_resumed_run_on_four_bits_ends_with_the_same_adapters(
    four_bits, decoder, files, tmp_path
):
    checkpoint = four_bits.folder / "checkpoints" / "step-20"
    flags = (*LORA, "--load_in_4bit", "--resume_from_checkpoint", checkpoint)
    folder = tmp_path / "resumed"
    succeeded(call_here(CLASSIFY, *text_settings(files, decoder, folder), *flags))
    ours, theirs = (load_file(f / "adapter_model.safetensors") for f in (folder, four_bits.folder))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    other = call_here(CLASSIFY, *text_settings(files, decoder, tmp_path / "x"), *LORA,
                      "--resume_from_checkpoint", checkpoint)  # fmt: skip
    assert other.returncode == 2
    assert "--load_in_4bit" in other.stderr
    assert not (tmp_path / "x").exists()


@has_bitsandbytes
def test_a_mode_that_stores_16_bits_refuses_four_bits_and_writes_nothing(decoder, files, tmp_path):
    flags = ("--lora_r", 4, "--load_in_4bit", "--mixed_precision", "bf16-true")
    settings = text_settings(files, decoder, tmp_path / "run")
    done = call_here(CLASSIFY, *settings, *flags)
    assert done.returncode == 2
    assert "--load_in_4bit: bf16-true stores all weights in 16 bits" in done.stderr
    assert not (tmp_path / "run").exists()
