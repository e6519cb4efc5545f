"""Float32 modules inside models of transformers: T5's `wo`, the padding-free path, the config."""

import json

import pytest
import torch
from tiny_encoders import CLASSES, right_padded, tiny, without_dropout
from tiny_text import tiny_task
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)

import ampft
from ampft.errors import InputError
from ampft.fast.packing.install import install_packing
from ampft.models.adapters import add_lora, merge_adapters
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.pretrained import load_saved
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.float32_modules import CONFIG_FIELD, apply_patterns, replaced_forwards
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
LENGTHS = (9, 4, 7)
# fp16's unit of rounding is 2^-11, and two layers of a tiny model amplify it.
PACKED_GRADIENT = 0.02


def recorded_step(model, batch, mode):
    """Return the logits, the whole gradient, and what was multiplied."""
    precision = resolve(mode, CPU)
    with ampft.numerics(precision), ProductRecorder(precision) as recorder:
        with torch.autocast("cpu", precision.compute_dtype):
            logits = model(**batch).logits
        labels = torch.arange(len(logits)) % CLASSES
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return logits.detach(), torch.cat([g.flatten() for g in gradients]), recorder.census()


def tiny_t5():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, num_labels=3,
        dropout_rate=0.0, classifier_dropout=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForSequenceClassification(config)


def t5_batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 99, (3, 9), generator=generator)
    ids[:, -1] = 1  # the classifier reads the end-of-sequence token
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_t5_keeps_wo_as_transformers_intends_and_no_longer_overflows():
    overflowing, kept = tiny_t5(), tiny_t5()
    for model in (overflowing, kept):
        with torch.no_grad():
            model.transformer.encoder.block[0].layer[1].DenseReluDense.wo.weight.mul_(2e5)
    handle = ampft.keep_in_fp32(kept, kept._keep_in_fp32_modules)
    assert len(handle.names) == 4
    assert all(name.endswith("DenseReluDense.wo") for name in handle.names)
    logits, _, _ = recorded_step(overflowing, t5_batch(), "fp16")
    assert not logits.isfinite().all()
    logits, gradient, executed = recorded_step(kept, t5_batch(), "fp16")
    assert logits.isfinite().all()
    assert gradient.isfinite().all()
    counts = {(r.direction, r.inputs): r.count for r in executed.rows if r.by_request}
    pair = ("float32", "float32")
    assert counts == {("forward", pair): 4, ("backward", pair): 8}
    assert precision_contradiction(resolve("fp16", CPU), executed) is None


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["bert", "modernbert, mean", "distilbert"])
def test_modules_inside_packed_layers_are_kept(name, mode):
    pattern = {"bert": "layer.1.*", "modernbert, mean": "layers.1", "distilbert": "layer.1"}[name]
    gradients = {}
    for packed in (False, True):
        model = without_dropout(tiny(name))
        if packed:
            handle = install_packing(model, trim_last_layer=False)
        ampft.keep_in_fp32(model, [pattern])
        batch = right_padded(model, LENGTHS)
        _, gradients[packed], executed = recorded_step(model, batch, mode)
        rows = executed.rows
        assert precision_contradiction(resolve(mode, CPU), executed) is None
        assert {row.kind for row in rows if row.by_request} == {"projection", "attention"}
        for direction in ("forward", "backward"):
            inputs = {
                row.inputs[0] for row in rows if row.by_request and row.direction == direction
            }
            assert inputs == {"float32"}
    assert handle.paths == {"packed": 1}
    difference = (gradients[True] - gradients[False]).norm() / gradients[False].norm()
    assert 0 < difference < PACKED_GRADIENT


@pytest.mark.parametrize("family", ["deberta-v3", "mpnet"])
def test_attention_kept_before_packing_stays_kept(family):
    path = {"deberta-v3": "attention.self", "mpnet": "attention.attn"}[family]
    model = without_dropout(tiny(family))
    kept = ampft.keep_in_fp32(model, [path])
    handle = install_packing(model)
    batch = right_padded(model, LENGTHS)
    _, _, executed = recorded_step(model, batch, "bf16")
    assert [forward.calls for forward in kept.forwards] == [1, 1]
    attention = [row for row in executed.rows if row.kind == "attention"]
    assert {row.inputs for row in attention} == {("float32", "float32")}
    assert precision_contradiction(resolve("bf16", CPU), executed) is None
    handle.remove()
    assert replaced_forwards(model) == dict(zip(kept.names, kept.forwards, strict=True))


def test_the_saved_model_keeps_the_same_modules(tmp_path, tiny_bert):
    loaded = tiny_task(tiny_bert, train=6, fp32_modules="output.dense").load_model()
    assert "4 modules in float32: output.dense" in loaded.notes
    loaded.model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())[CONFIG_FIELD] == ["output.dense"]
    saved = load_saved(AutoModelForSequenceClassification, str(tmp_path))
    names = list(replaced_forwards(saved))
    assert names == list(replaced_forwards(loaded.model))
    assert len(names) == 4
    plain = BertForSequenceClassification.from_pretrained(tmp_path)
    assert replaced_forwards(plain) == {}
    # A training that continues from it needs no flag, and another flag replaces its modules.
    apply_patterns(plain)
    assert list(replaced_forwards(plain)) == names


def test_a_damaged_list_of_patterns_is_refused(tmp_path, tiny_bert):
    model = BertForSequenceClassification.from_pretrained(tiny_bert)
    setattr(model.config, CONFIG_FIELD, [3])
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"{CONFIG_FIELD} is \[3\], but must be a list of"):
        load_saved(AutoModelForSequenceClassification, str(tmp_path))


def test_a_layer_with_adapters_is_kept_as_a_whole_and_after_merging():
    pytest.importorskip("peft", reason="needs peft")
    model = without_dropout(tiny("bert"))
    add_lora(model, TrainedPartSettings(lora_r=2, lora_target_modules="query,value"))
    ampft.keep_in_fp32(model, ["layer.*.query"])
    names = list(replaced_forwards(model))
    assert [name.endswith("self.query") for name in names] == [True, True]
    _, _, executed = recorded_step(model, right_padded(model, LENGTHS), "fp16")
    assert precision_contradiction(resolve("fp16", CPU), executed) is None
    forward = [row for row in executed.rows if row.by_request and row.direction == "forward"]
    assert sum(row.count for row in forward) == 2 * 3  # the layer and both adapter matrices
    merge_adapters(model)
    assert list(replaced_forwards(model)) == names
    assert type(model.bert.encoder.layer[0].attention.self.query) is torch.nn.Linear
