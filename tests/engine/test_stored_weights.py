"""Weights are cast to the storage dtype of their mode, and errors name those that are not."""

from types import SimpleNamespace

import pytest
import torch
from tiny_text import save_tiny_bert, tiny_task
from torch import nn
from transformers import AutoModelForSequenceClassification, ModernBertConfig, ModernBertModel

from ampft.data.step_batches import MicroBatch
from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.errors import InputError
from ampft.models.weights import LoadedModel, cast_in_place, cast_weights, weights_hash
from ampft.precision.executed import ProductRecorder, check_trainable_dtype, precision_contradiction
from ampft.precision.resolve import resolve

BF16, CPU = torch.bfloat16, torch.device("cpu")
ALL_BF16 = ("bf16-true", "bf16-true-kahan", "bf16-true-stochastic")
# Relative to the largest logit, for bfloat16 weights and activations: 8 significant bits through
# two layers. Packed and padded sums differ only in their order, before they are rounded.
BF16_LOGITS_TOLERANCE = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("mode", ALL_BF16)
def test_weights_are_cast_and_the_float32_hash_is_kept(folder, mode):
    loaded = tiny_task(folder, train=12).load_model()
    float32_hash = weights_hash(loaded.model)
    cast = cast_weights(loaded, resolve(mode, CPU))
    assert {p.dtype for p in cast.model.parameters()} == {BF16}
    assert cast.float32_sha256 == float32_hash
    assert weights_hash(cast.model) != float32_hash
    check_trainable_dtype(cast.model, BF16)


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_other_modes_keep_float32(mode):
    loaded = LoadedModel(nn.Linear(2, 2), "linear", False, ())
    cast = cast_weights(loaded, resolve(mode, CPU))
    assert cast.model is loaded.model
    assert cast.float32_sha256 == weights_hash(loaded.model)
    assert loaded.model.weight.dtype == torch.float32


def test_saved_tensors_are_cast_and_computed_buffers_are_not():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    tied = nn.Linear(3, 3)
    tied.weight = model[1].weight
    model.append(tied)
    cast_in_place(model, BF16)
    assert model[0].running_mean.dtype == BF16
    assert model[0].num_batches_tracked.dtype == torch.int64
    assert model[1].weight is model[2].weight
    config = ModernBertConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2,
    )  # fmt: skip
    rotary = ModernBertModel(config)
    cast_in_place(rotary, BF16)
    assert {p.dtype for p in rotary.parameters()} == {BF16}
    frequencies = dict(rotary.named_buffers())
    assert frequencies
    assert {b.dtype for b in frequencies.values() if b.is_floating_point()} == {torch.float32}


def test_a_weight_in_another_dtype_is_named():
    model = nn.Sequential(nn.Linear(2, 2).to(BF16), nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"parameter 1\.weight is float32, but .*ampft\.cast_w"):
        check_trainable_dtype(model, BF16)
    with pytest.raises(InputError, match=r"parameter 0\.weight is bfloat16; .*float32"):
        check_trainable_dtype(model, torch.float32)


def full_batch(task):
    inputs = task.examples("train").collate(torch.arange(12).numpy())
    return MicroBatch(ids=torch.arange(12).numpy(), inputs=inputs, counted=True, is_last=True)


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", ALL_BF16)
def test_a_step_runs_and_stores_in_bfloat16_and_the_loss_is_float32(folder, mode):
    precision = resolve(mode, CPU)
    task = tiny_task(folder, train=12)
    loaded = cast_weights(task.load_model(), precision)
    assert loaded.padding_free
    optimizer = make_optimizer(loaded.model, OptimizerSettings(1e-3), precision)
    with ProductRecorder(precision) as recorder:
        loss = task.loss(loaded.model, full_batch(task))
        loss.backward()
        optimizer.step()
    assert loss.dtype == torch.float32
    executed = recorder.census(loaded.model, optimizer)
    assert {dtype for row in executed.rows for dtype in row.inputs} == {"bfloat16"}
    assert precision_contradiction(precision, executed) is None
    assert executed.summary().endswith("weights, gradients, optimizer state bfloat16")


def test_float32_weights_under_autocast_contradict_it(folder):
    # Negative control: bf16 does not do what bf16-true requires.
    task = tiny_task(folder, train=12)
    loaded = task.load_model()
    optimizer = make_optimizer(loaded.model, OptimizerSettings(1e-3))
    recorder = ProductRecorder(resolve("bf16-true", CPU))
    with recorder:
        with torch.autocast("cpu", dtype=BF16):
            loss = task.loss(loaded.model, full_batch(task))
        loss.backward()
        optimizer.step()
    executed = recorder.census(loaded.model, optimizer)
    assert precision_contradiction(resolve("bf16", CPU), executed) is None
    message = precision_contradiction(resolve("bf16-true", CPU), executed)
    assert message == "mode bf16-true was requested, but weights were stored in float32"


@pytest.mark.add_ons
def test_packed_and_padded_logits_agree_in_bfloat16(folder):
    logits = {}
    for name, remove_padding in (("packed", True), ("padded", False)):
        task = tiny_task(folder, train=12, remove_padding=remove_padding)
        loaded = cast_weights(task.load_model(), resolve("bf16-true", CPU))
        assert loaded.padding_free is remove_padding
        loaded.model.eval()
        with torch.no_grad():
            logits[name] = task.logits(loaded.model, full_batch(task).inputs)
    assert logits["packed"].dtype == torch.float32
    largest = logits["padded"].abs().max()
    assert (logits["packed"] - logits["padded"]).abs().max() < BF16_LOGITS_TOLERANCE * largest


def test_pixels_are_cast_to_the_dtype_of_the_weights():
    from ampft.kinds.logits import forward_logits

    class Classifier(nn.Linear):
        def forward(self, pixel_values):
            return SimpleNamespace(logits=super().forward(pixel_values))

    inputs = {"pixel_values": torch.ones(2, 3), "labels": torch.zeros(2)}
    assert forward_logits(Classifier(3, 2).to(BF16), inputs).dtype == torch.float32


def test_the_saved_model_is_bfloat16_and_loads(folder, tmp_path):
    loaded = cast_weights(tiny_task(folder, train=12).load_model(), resolve("bf16-true", CPU))
    loaded.model.save_pretrained(tmp_path)
    reloaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert reloaded.dtype == BF16
    for before, after in zip(loaded.model.parameters(), reloaded.parameters(), strict=True):
        assert torch.equal(before, after)
