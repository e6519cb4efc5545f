"""Attention kernels that would ignore the dropout of the configuration are refused."""

import pytest
import torch
from tiny_encoders import tiny
from torch import nn
from transformers import AutoModelForSequenceClassification, modeling_flash_attention_utils

from ampft.errors import InputError
from ampft.fast.packing.install import install_packing
from ampft.models.pretrained import load_pretrained
from ampft.models.training_mode import check_kernel_supports_dropout

WITHOUT_DROPOUT = [
    "flash_attention_3",
    "flash_attention_4",
    "kernels-community/flash-attn3",
    "kernels-community/vllm-flash-attn3",
    "kernels-community/flash-attn4",
    "paged|flash_attention_3",
]
WITH_DROPOUT = ["sdpa", "eager", "flash_attention_2", "kernels-community/flash-attn2", None]


def model_with(kernel, *, name="bert"):
    model = tiny(name)
    # Setting it through `set_attn_implementation` would need the package of the kernel.
    model.config._attn_implementation_internal = kernel
    return model


@pytest.mark.parametrize("kernel", WITHOUT_DROPOUT)
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("bert", "attention_probs_dropout_prob"),
        ("distilbert", "attention_dropout"),
        ("gpt2", "attn_pdrop"),
    ],
)
def test_a_kernel_without_dropout_is_refused(kernel, name, field):
    message = rf"ignores dropout, .* train without its {field} of 0\.1\. Load it with .*'sdpa'"
    with pytest.raises(InputError, match=message) as caught:
        check_kernel_supports_dropout(model_with(kernel, name=name))
    assert repr(kernel) in str(caught.value)


@pytest.mark.parametrize("kernel", WITHOUT_DROPOUT)
def test_without_attention_dropout_nothing_is_lost(kernel):
    model = model_with(kernel)
    model.config.attention_probs_dropout_prob = 0.0
    assert model.config.hidden_dropout_prob > 0
    check_kernel_supports_dropout(model)


@pytest.mark.parametrize("kernel", WITH_DROPOUT)
def test_kernels_with_dropout_pass(kernel):
    check_kernel_supports_dropout(model_with(kernel))


def test_packed_models_and_plain_modules_pass():
    model = tiny("bert")
    install_packing(model)
    check_kernel_supports_dropout(model)
    check_kernel_supports_dropout(nn.Linear(2, 2))


def test_transformers_drops_the_argument_in_silence():
    """The reason for the check. When this fails, transformers speaks up, and the check can go."""
    supported = dict.fromkeys(
        modeling_flash_attention_utils._lazy_define_process_function(
            lambda q, k, v, softmax_scale=None, causal=False: None
        ).keywords["supports_mapping"],
        False,
    )
    arguments = modeling_flash_attention_utils._process_flash_attention_kwargs(
        query_length=4, key_length=4, is_causal=False, dropout=0.1, supports_mapping=supported
    )
    assert 0.1 not in arguments.values()


def test_loading_a_model_for_training_checks_it(tiny_bert, monkeypatch):
    load = AutoModelForSequenceClassification.from_pretrained

    def with_flash_attention_3(*args, **kwargs):
        model, loading = load(*args, **kwargs)
        model.config._attn_implementation_internal = "flash_attention_3"
        model.config.attention_probs_dropout_prob = 0.1
        return model, loading

    monkeypatch.setattr(
        AutoModelForSequenceClassification, "from_pretrained", with_flash_attention_3
    )
    labels = {"num_labels": 3, "id2label": {0: "a", 1: "b", 2: "c"}}
    with torch.random.fork_rng(), pytest.raises(InputError, match="ignores dropout"):
        load_pretrained(
            AutoModelForSequenceClassification, str(tiny_bert), labels, trust_remote_code=False
        )
