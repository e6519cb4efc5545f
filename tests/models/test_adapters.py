"""LoRA adapters: their gradient, the packed path, and their files, against PEFT and plain torch."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
from tiny_encoders import loss_and_gradient, relative_error, right_padded, tiny, without_dropout
from torch.nn import functional
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    MobileViTConfig,
    MobileViTForImageClassification,
)

from ampft.errors import InputError
from ampft.fast.packing.install import install_packing
from ampft.models.adapters import (
    adapter_files,
    add_lora,
    base_sha256,
    check_whole_layers,
    merge_adapters,
    restrict_training,
    save_model_or_adapters,
    target_layers,
    write_files,
)
from ampft.models.freezing import cache_frozen_casts
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.pretrained import load_pretrained, load_saved
from ampft.models.training_mode import batch_norm_note
from ampft.models.weights import LoadedModel
from ampft.precision.float32_modules import matching_modules

FP32_TOLERANCE = 1e-6
LENGTHS = [9, 4, 17, 1]


def with_adapters(model, *, seed=1, **settings):
    """Return a model with adapters that have an effect, as after some steps."""
    torch.manual_seed(seed)
    add_lora(model, TrainedPartSettings(**{"lora_r": 2, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.1)
    return model


def adapter_gradients(model):
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


def test_new_adapters_change_nothing_and_only_they_and_the_head_are_trained():
    model = without_dropout(tiny("bert"))
    batch = right_padded(model, LENGTHS)
    expected = model(**batch).logits
    add_lora(model, TrainedPartSettings(lora_r=4))
    assert torch.equal(model(**batch).logits, expected)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    kinds = {"lora_" if "lora_" in n else ".".join(n.split(".")[:2]) for n in trained}
    assert kinds == {"lora_", "classifier.weight", "classifier.bias", "bert.pooler"}
    assert sum(p.numel() for n, p in model.named_parameters() if "lora_" in n) == 2 * 2 * 2 * 32 * 4
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_transposed_weights_get_adapters_without_a_warning():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, num_labels=2)
    model = GPT2ForSequenceClassification(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_lora(model, TrainedPartSettings(lora_r=2))
    assert model.lora_config.fan_in_fan_out
    saved = adapter_files(model, base="base", base_hash="")["adapter_config.json"]
    assert json.loads(saved)["fan_in_fan_out"]  # or PEFT warns whoever loads it


def test_the_gradient_is_that_of_plain_torch():
    """The twin computes W + s B A with `functional_call`; without the factor s it differs."""
    model = with_adapters(
        without_dropout(tiny("bert")), lora_alpha=6, lora_target_modules="query,dense"
    )
    plain = without_dropout(tiny("bert"))
    batch, labels = right_padded(plain, LENGTHS), torch.tensor([0, 1, 2, 0])
    functional.cross_entropy(model(**batch).logits, labels).backward()
    gradients = adapter_gradients(model)

    def twin(scale):
        leaves = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
        weights = {}
        for name, value in leaves.items():
            if ".base_layer.weight" in name:
                layer = name.removesuffix(".base_layer.weight")
                a, b = (leaves[f"{layer}.lora_{x}.default.weight"] for x in "AB")
                weights[f"{layer}.weight"] = value + scale * (b @ a)
            elif ".lora_" not in name:
                weights[name.replace(".base_layer.", ".")] = value
        logits = torch.func.functional_call(plain, weights, (), batch).logits
        functional.cross_entropy(logits, labels).backward()
        return leaves

    for scale, is_right in ((3.0, True), (1.0, False)):
        leaves = twin(scale)
        ours = torch.cat([gradients[n].flatten() for n in sorted(gradients)])
        theirs = torch.cat([leaves[n].grad.flatten() for n in sorted(gradients)])
        assert (relative_error(ours, theirs) <= FP32_TOLERANCE) == is_right
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert, mean", "roberta"])
def test_the_padding_free_path_has_the_logits_and_gradient_of_the_padded_one(family):
    padded = without_dropout(tiny(family))
    packed = copy.deepcopy(padded)
    handle = install_packing(packed)
    for model in (padded, packed):
        with_adapters(model, lora_target_modules="all-linear")
    batch = right_padded(padded, LENGTHS)
    for one, other in zip(
        loss_and_gradient(packed, batch), loss_and_gradient(padded, batch), strict=True
    ):
        assert relative_error(one, other) <= FP32_TOLERANCE
    assert handle.paths["packed"] == 1


def test_layers_are_those_of_the_family_or_all_below_the_head():
    bert = tiny("bert")
    assert target_layers(bert, None) == ["query", "value"]
    assert target_layers(bert, "all-linear") == ["dense", "key", "query", "value"]
    with_adapters(bert, lora_target_modules="all-linear")
    names = [name for name, _ in bert.named_modules() if name.endswith("lora_A")]
    assert len(names) == 2 * 6  # without the pooler and the classifier
    with pytest.raises(
        InputError, match=r"no linear layer 'q_proj'. Choose from dense, key, query"
    ):
        target_layers(tiny("bert"), "q_proj")


def test_merged_adapters_leave_a_plain_model_with_the_same_logits():
    model, plain = with_adapters(without_dropout(tiny("bert"))), tiny("bert")
    batch = right_padded(plain, LENGTHS)
    expected = model(**batch).logits
    merge_adapters(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert relative_error(model(**batch).logits.detach(), expected.detach()) <= FP32_TOLERANCE
    assert not torch.equal(
        model.state_dict()["bert.encoder.layer.0.attention.self.query.weight"],
        plain.state_dict()["bert.encoder.layer.0.attention.self.query.weight"],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_merged_weights_are_cast_again(dtype):
    """PEFT merges through `Tensor.data`, which casts of frozen weights do not notice."""
    model = with_adapters(without_dropout(tiny("bert")))
    cache_frozen_casts(model)
    batch = right_padded(model, LENGTHS)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        model(**batch)  # casts the weights without the adapters
    merge_adapters(model)
    plain = tiny("bert")
    plain.load_state_dict(model.state_dict())
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        assert torch.equal(model(**batch).logits, without_dropout(plain)(**batch).logits)


@pytest.fixture
def saved(tmp_path):
    """Folders of a base without a head and of adapters to it, and the model of both."""
    base, folder = tmp_path / "base", tmp_path / "adapters"
    tiny("bert").bert.save_pretrained(base)
    folder.mkdir()
    names = ["no", "yes", "maybe"]
    labels = {
        "num_labels": 3,
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
    }
    model, _ = load_pretrained(
        AutoModelForSequenceClassification, str(base), labels, trust_remote_code=False
    )
    digest = base_sha256(model)
    with_adapters(model, lora_target_modules="all-linear", lora_dropout=0.1)
    assert base_sha256(model) == digest
    write_files(folder, adapter_files(model, base=str(base), base_hash=digest))
    return base, folder, model.eval()


def test_saved_adapters_are_loaded_with_their_base(saved):
    _, folder, model = saved
    assert {path.name for path in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    state = torch.get_rng_state()
    loaded = load_saved(AutoModelForSequenceClassification, str(folder))
    assert loaded.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    ours, theirs = loaded.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    batch = right_padded(model, LENGTHS)
    assert torch.equal(loaded.eval()(**batch).logits, model(**batch).logits)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_peft_loads_what_was_saved(saved):
    from peft import PeftModel

    base, folder, model = saved
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    other = PeftModel.from_pretrained(plain, folder).eval()
    batch = right_padded(model, LENGTHS)
    assert (
        relative_error(other(**batch).logits.detach(), model(**batch).logits.detach())
        <= FP32_TOLERANCE
    )


def test_adapters_refuse_another_base_and_damaged_files(saved):
    base, folder, _ = saved
    tiny("bert", seed=5).bert.save_pretrained(base)
    with pytest.raises(InputError, match="its adapters were trained on other weights of"):
        load_saved(AutoModelForSequenceClassification, str(folder))
    with pytest.raises(InputError, match=r"holds adapters without their base.*--merge_lora"):
        load_pretrained(AutoModelForSequenceClassification, str(folder), {"id2label": {}},
                        trust_remote_code=False)  # fmt: skip
    config = folder / "adapter_config.json"
    values = json.loads(config.read_text())
    del values["r"]
    config.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"its adapters cannot be read \(KeyError: 'r'\)"):
        load_saved(AutoModelForSequenceClassification, str(folder))


@pytest.mark.slow
def test_the_batch_norms_of_the_base_keep_their_statistics(tmp_path):
    """They are not saved with the adapters, so that a loaded model would predict otherwise."""
    torch.manual_seed(0)
    config = MobileViTConfig(
        image_size=32, patch_size=2, hidden_sizes=[8, 8, 8], num_labels=3, num_attention_heads=2,
        neck_hidden_sizes=[4, 4, 4, 8, 8, 8, 8], mlp_ratio=1.0, expand_ratio=1.0,
    )  # fmt: skip
    base = tmp_path / "base"
    MobileViTForImageClassification(config).save_pretrained(base)
    model, _ = load_pretrained(
        AutoModelForImageClassification, str(base), {"id2label": {0: "a", 1: "b", 2: "c"}},
        trust_remote_code=False,
    )  # fmt: skip
    part = TrainedPartSettings(lora_r=2)
    loaded = restrict_training(LoadedModel(model, str(base), False, ()), part)
    assert batch_norm_note(loaded.model, micro_batches=2, processes=1) is None
    images = torch.randn(4, 3, 32, 32)
    loaded.model.train()(pixel_values=images)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_model_or_adapters(loaded.model, adapter, loaded, None)
    again = load_saved(AutoModelForImageClassification, str(adapter)).eval()
    assert torch.equal(
        again(pixel_values=images).logits, loaded.model.eval()(pixel_values=images).logits
    )


def test_equal_adapters_are_equal_files(tmp_path):
    model = with_adapters(tiny("bert"))
    for _ in range(6):
        write_files(tmp_path, adapter_files(model, base="x", base_hash="ab"))
        (tmp_path / f"{len(list(tmp_path.iterdir()))}.copy").write_bytes(
            (tmp_path / "adapter_model.safetensors").read_bytes()
        )
    assert len({path.read_bytes() for path in tmp_path.glob("*.copy")}) == 1


def test_a_part_of_an_adapted_layer_cannot_be_kept_in_float32():
    """Merging removes it, and the patterns saved with the model would match nothing."""
    model = with_adapters(tiny("bert"))
    check_whole_layers(model, matching_modules(model, ["query"]))
    with pytest.raises(InputError, match=r"query.base_layer is a part .* layer: bert.*query\."):
        check_whole_layers(model, matching_modules(model, ["base_layer"]))
