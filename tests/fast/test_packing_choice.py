"""The text task packs a model only if its packed logits agree with its padded ones."""

import shutil

import numpy as np
import pytest
import torch
from tiny_text import tiny_task
from transformers import (
    BertConfig,
    BertTokenizer,
    FNetConfig,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from ampft.data.step_batches import ids_of_varied_length
from ampft.errors import InputError
from ampft.fast.packing import choice, packed_attention
from ampft.fast.packing.verification import PackingError, grouped_attention_reason
from ampft.models.tokenizer import load_tokenizer, set_padding_side
from ampft.precision.accelerator import make_accelerator, numerics
from ampft.precision.resolve import resolve


def test_a_supported_model_is_verified_and_packed(tiny_bert):
    loaded = tiny_task(tiny_bert, train=12).load_model()
    assert loaded.padding_free
    assert "logits equal within" in loaded.notes[-1]


def test_a_second_copy_of_a_model_is_not_compared_again(tiny_bert, monkeypatch):
    task = tiny_task(tiny_bert, train=12)
    first = task.load_model()
    calls = []
    monkeypatch.setattr(choice, "verify_packing", lambda model, batch: calls.append(model))
    second = task.load_model()
    assert not calls
    assert second.padding_free
    assert second.notes == first.notes
    batch = task.examples("train").collate(np.arange(12))
    second.model.load_state_dict(first.model.state_dict())
    logits = [task.logits(loaded.model.eval(), batch) for loaded in (first, second)]
    assert torch.equal(*logits)


def test_a_model_whose_logits_differ_is_compared_again(tiny_bert, monkeypatch):
    task, calls = tiny_task(tiny_bert, train=12), []

    def differ(model, batch):
        calls.append(model)
        return PackingError(0.1, 0.0)

    monkeypatch.setattr(choice, "verify_packing", differ)
    notes = [task.load_model().notes[-1] for _ in range(2)]
    assert notes == ["padded path: logits without padding differ by 1.0e-01"] * 2
    assert len(calls) >= 2


def test_padding_is_kept_if_logits_differ(tiny_bert, monkeypatch):
    monkeypatch.setattr(choice, "verify_packing", lambda model, batch: PackingError(0.1, 0.0))
    loaded = tiny_task(tiny_bert, train=12).load_model()
    assert not loaded.padding_free
    assert loaded.notes[-1] == "padded path: logits without padding differ by 1.0e-01"
    assert loaded.model.config._attn_implementation == "sdpa"


def test_padding_is_kept_if_packing_did_not_run(tiny_bert, monkeypatch):
    monkeypatch.setattr(
        choice, "verify_packing", lambda model, batch: PackingError(float("inf"), float("inf"))
    )
    assert not tiny_task(tiny_bert, train=12).load_model().padding_free


def test_padding_on_request(tiny_bert):
    loaded = tiny_task(tiny_bert, train=12, remove_padding=False).load_model()
    assert not loaded.padding_free
    assert "requested by --padding" in loaded.notes[-1]


def test_a_decoder_is_padded_on_the_right_and_runs_without_padding(tiny_bert, tmp_path):
    tokenizer = BertTokenizer.from_pretrained(tiny_bert, padding_side="left")
    tokenizer.save_pretrained(tmp_path)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = GPT2Config(vocab_size=len(tokenizer), num_labels=3, **shape)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    task = tiny_task(tmp_path, train=12)
    loaded = task.load_model()
    assert loaded.padding_free, loaded.notes
    mask = task.examples("train").collate(np.arange(12))["attention_mask"]
    assert (mask[:, 0] == 1).all()
    assert (mask.diff(dim=1) <= 0).all()
    task.inputs.save_processor(tmp_path / "saved")
    assert load_tokenizer(str(tmp_path / "saved")).padding_side == "right"


def test_words_are_padded_on_the_right(tiny_bert, tmp_path):
    """Their places are counted from the start of a row, in models of every family."""
    BertTokenizer.from_pretrained(tiny_bert, padding_side="left").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).padding_side == "left"
    assert load_tokenizer(str(tmp_path), reads_words=True).padding_side == "right"


def zeros(rows, packing, options):
    del packing, options
    return torch.zeros_like(rows.query)


def without_kernel(*rows_and_options):
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (None, None),
        (zeros, "logits without padding differ by"),
        (without_kernel, r"running without padding fails \(FlashAttention only supports Ampere"),
    ],
)
def test_a_packed_model_is_checked_in_its_precision(tiny_bert, monkeypatch, mode, kernel, message):
    precision = resolve(mode, torch.device("cpu"))
    task = tiny_task(tiny_bert, train=12)
    model = make_accelerator(precision).prepare(task.load_model().model)
    examples = task.examples("train")
    batch = examples.collate(ids_of_varied_length(examples.lengths))
    del batch["labels"]
    if kernel is not None:
        monkeypatch.setattr(packed_attention, "choose_kernel", lambda rows, options, **_: kernel)
    with numerics(precision):
        if message is None:
            grouped_attention_reason(model, model, batch)
        else:
            with pytest.raises(InputError, match=message + ".*Pass --padding"):
                grouped_attention_reason(model, model, batch)
    assert model.config._attn_implementation == packed_attention.ATTENTION_NAME
    assert not model.training  # as it was loaded


@pytest.mark.parametrize("remove_padding", [True, False])
def test_padding_is_masked_whatever_the_tokenizer_returns(tiny_bert, tmp_path, remove_padding):
    shutil.copytree(tiny_bert, tmp_path / "model")
    BertTokenizer.from_pretrained(tiny_bert, model_input_names=["input_ids"]).save_pretrained(
        tmp_path / "model"
    )
    batches = []
    for folder in (tiny_bert, tmp_path / "model"):
        task = tiny_task(folder, train=12, remove_padding=remove_padding)
        assert task.load_model().padding_free == remove_padding
        batches.append(task.examples("train").collate(np.arange(12)))
    assert torch.equal(batches[0]["attention_mask"], batches[1]["attention_mask"])
    assert not batches[0]["attention_mask"].all()


def test_a_model_without_a_mask_gets_none(tiny_bert):
    tokenizer = BertTokenizer.from_pretrained(tiny_bert, model_input_names=["input_ids"])
    set_padding_side(tokenizer, FNetConfig())
    assert tokenizer.model_input_names == ["input_ids"]
    set_padding_side(tokenizer, BertConfig())
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]


@pytest.mark.parametrize("seed", range(20))
def test_the_shortest_and_the_longest_example_are_among_those_of_varied_length(seed):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 99, size=random.integers(1, 30))
    found = lengths[ids_of_varied_length(lengths)]
    assert (found.min(), found.max()) == (lengths.min(), lengths.max())
    assert len(found) == min(4, len(lengths))
    # The others are a third and two thirds of the way, and of equal lengths the first ones count.
    order, last = sorted(range(len(lengths)), key=lengths.__getitem__), len(lengths) - 1
    expected = {order[int(last * part / 3)] for part in range(4)}
    assert ids_of_varied_length(lengths).tolist() == sorted(expected)
