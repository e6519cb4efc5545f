"""What `--freeze` and `--train_layers` train, and that the rest costs no gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_encoders import loss_and_gradient, right_padded, tiny, without_dropout
from transformers import T5Config, T5ForSequenceClassification, ViTConfig
from transformers import ViTForImageClassification as ViT

from ampft.engine.first_step import SavedTensorBytes
from ampft.errors import InputError
from ampft.models.adapters import restrict_training
from ampft.models.freezing import (
    FrozenLinear,
    cache_frozen_casts,
    freeze_matching,
    is_inside_any,
    train_top_layers,
)
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.weights import LoadedModel
from ampft.precision.float32_modules import matching_modules

LENGTHS = [9, 4, 17, 1]


def restricted(model, **part):
    return restrict_training(
        LoadedModel(model, "tiny", False, ()), TrainedPartSettings(**part)
    ).model


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("pattern", "frozen"),
    [
        ("embeddings", {"bert.embeddings."}),
        ("bert.embeddings", {"bert.embeddings."}),
        ("encoder.layer.0, *.bias", {"bert.encoder.layer.0.", ".bias"}),
        ("embeddings.word_embeddings.weight", {"bert.embeddings.word_embeddings.weight"}),
        ("encoder.layer.?.output", {"layer.0.output.", "layer.1.output."}),
        ("layer.1", {"bert.encoder.layer.1."}),
        ("LayerNorm", {".LayerNorm."}),
        ("query.bias", {".query.bias"}),
    ],
)
def test_patterns_name_parameters_and_modules(pattern, frozen):
    model = tiny("bert")
    freeze_matching(model, pattern)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != any(part in name for part in frozen), name


@pytest.mark.parametrize(
    "pattern", ["embeddings", "layer.0", "output.dense", "encoder.*.query", "*.LayerNorm", "bert"]
)
def test_patterns_mean_the_modules_that_fp32_modules_names(pattern):
    model = tiny("bert")
    modules = matching_modules(model, [pattern])
    freeze_matching(model, pattern)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if is_inside_any(name, modules)}


def test_what_the_loader_froze_is_not_trained_by_other_parts():
    """Such as the auxiliary head of UperNet, on which the loss does not depend."""
    for part in ({"train_layers": 1}, {"lora_r": 2}):
        model = tiny("bert")
        model.classifier.bias.requires_grad_(False)
        names = trained(restricted(model, **part))
        assert "classifier.weight" in names
        assert "classifier.bias" not in names


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert, mean", "roberta", "electra"])
def test_the_top_layers_and_the_head_are_trained(family):
    model = tiny(family)
    layers = {name.split(".")[-1] for name in trained(model)}
    train_top_layers(model, 1)
    names = trained(model)
    assert any(".1." in name for name in names)
    assert not any(".0." in name and "classifier" not in name for name in names)
    assert not any("embeddings" in name for name in names)
    assert any("classifier" in name for name in names)
    train_top_layers(model, 0)
    assert trained(model) == {name for name in names if ".1." not in name}
    assert layers >= {"weight", "bias"}


def test_the_norm_above_the_layers_belongs_to_the_head():
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=8, patch_size=4, num_labels=3,
    )  # fmt: skip
    model = ViT(config)
    train_top_layers(model, 0)
    names = {name.rpartition(".")[0] for name in trained(model)}
    assert names == {"vit.layernorm", "classifier"}


def test_impossible_parts_are_refused_with_what_is_possible():
    model = tiny("bert")
    with pytest.raises(InputError, match=r"--freeze embedings: .* embeddings, encoder, .*classif"):
        freeze_matching(model, "embedings")
    with pytest.raises(InputError, match=r"--freeze 'query,': a pattern is empty"):
        freeze_matching(model, "query,")
    with pytest.raises(InputError, match=r"--train_layers 3: .* has 2 layers. Use a number from 0"):
        train_top_layers(model, 3)
    with pytest.raises(
        InputError, match=r"nothing is trained. Leave at least the head: classifier"
    ):
        restricted(model, freeze="*")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "vocab_size": 20}
    t5 = T5ForSequenceClassification(T5Config(num_layers=2, **sizes))
    with pytest.raises(InputError, match=r"not a single list.*--freeze"):
        train_top_layers(t5, 1)


@pytest.mark.parametrize("part", [{"freeze": "embeddings"}, {"train_layers": 1}, {}])
def test_the_gradient_of_what_is_trained_is_that_of_the_whole_model(part):
    """The last part freezes nothing."""
    whole = without_dropout(tiny("bert"))
    model = restricted(copy.deepcopy(whole), **part)
    batch = right_padded(whole, LENGTHS)
    for one, other in zip(
        loss_and_gradient(model, batch)[:2], loss_and_gradient(whole, batch)[:2], strict=True
    ):
        assert torch.equal(one, other)
    frozen = 0
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        if ours.requires_grad:
            assert torch.equal(ours.grad, theirs.grad)
        else:
            assert ours.grad is None
            frozen += 1
    assert bool(frozen) == bool(part)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_autograd_saves_nothing_for_the_frozen_lower_part(checkpointing):
    from ampft.models.pretrained import enable_gradient_checkpointing

    def saved(**part):
        model = tiny("bert")
        if checkpointing:
            enable_gradient_checkpointing(model)
        restricted(model, **part)
        hidden = []
        first = model.bert.encoder.layer[0]
        first.register_forward_hook(lambda module, args, out: hidden.append(out))
        with SavedTensorBytes(model.parameters()) as counter:
            model(**right_padded(model, LENGTHS)).logits.sum().backward()
        output = hidden[0][0] if isinstance(hidden[0], tuple) else hidden[0]
        return counter.peak, output.requires_grad

    whole, with_graph = saved()
    part, without_graph = saved(train_layers=0)
    assert (with_graph, without_graph) == (True, False)
    assert part < whole / 4


def test_frozen_modules_stay_in_evaluation_and_others_do_not():
    model = restricted(tiny("bert"), train_layers=1).train()
    layers = model.bert.encoder.layer
    assert (layers[0].training, layers[0].output.dropout.training) == (False, False)
    assert not model.bert.embeddings.dropout.training
    assert (layers[1].training, layers[1].output.dropout.training) == (True, True)
    twin = copy.deepcopy(model).eval().train()
    assert not twin.bert.embeddings.dropout.training
    assert twin.bert.encoder.layer[1].training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frozen_weights_are_cast_once_with_equal_results(dtype, monkeypatch):
    plain = without_dropout(tiny("bert"))
    cast = copy.deepcopy(plain)
    for model in (plain, cast):
        freeze_matching(model, "encoder.layer.0,embeddings")
    cache_frozen_casts(cast)
    batch = right_padded(plain, LENGTHS)
    with torch.autocast("cpu", dtype=dtype):
        expected, actual = plain(**batch).logits, cast(**batch).logits
    assert torch.equal(actual, expected)
    layer = cast.bert.encoder.layer[0].attention.self.query
    assert type(layer) is FrozenLinear
    copies = layer.__dict__["casts"]
    with torch.autocast("cpu", dtype=dtype):
        before = copies["weight"][1].data_ptr()
        cast(**batch)
        assert copies["weight"][1].data_ptr() == before
    # Weights that are loaded later are used.
    doubled = {name: value * 2 for name, value in plain.state_dict().items()}
    for model in (plain, cast):
        model.load_state_dict(doubled)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(cast(**batch).logits, plain(**batch).logits)
        assert not torch.equal(cast(**batch).logits, expected)
    assert torch.equal(cast(**batch).logits, plain(**batch).logits)
    assert cast.state_dict().keys() == plain.state_dict().keys()
