"""Settings of FSDP that are refused, and the layers that are sharded one by one."""

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import nn

from ampft.errors import InputError
from ampft.precision.accelerator import SHARDING_VARIABLE, choose_units, sharding_plugin
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def requested(monkeypatch):
    for name, value in {
        SHARDING_VARIABLE: "true",
        "FSDP_VERSION": "2",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    }.items():
        monkeypatch.setenv(name, value)


def test_every_process_reads_the_model():
    plugin = sharding_plugin(resolve("bf16", CPU))
    assert plugin is not None
    assert not plugin.cpu_ram_efficient_loading


def test_nothing_is_sharded_unless_requested(monkeypatch):
    monkeypatch.setenv(SHARDING_VARIABLE, "false")
    monkeypatch.setenv("FSDP_VERSION", "1")
    assert sharding_plugin(resolve("bf16-true", CPU)) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FSDP_VERSION", "1", "fsdp_version: received 1, and only FSDP2 is supported"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", "pass --gradient_checkpointing"),
        ("FSDP_OFFLOAD_PARAMS", "true", "fsdp_offload_params: received true"),
    ],
)
def test_settings_that_are_not_proven_are_refused(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        sharding_plugin(resolve("fp32", CPU))


def test_a_file_of_version_1_is_refused_without_a_gpu_too(monkeypatch):
    # As `accelerate config` writes it; the launcher turns it into these variables.
    monkeypatch.setenv("FSDP_VERSION", "1")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    monkeypatch.setenv("FSDP_SYNC_MODULE_STATES", "true")
    with pytest.raises(InputError, match=r"only FSDP2 is supported\. .*accelerate_configs/fsdp2"):
        sharding_plugin(resolve("bf16", CPU))


def test_modes_with_16_bit_weights_are_refused():
    with pytest.raises(InputError, match=r"bf16-true: FSDP supports only modes with float32"):
        sharding_plugin(resolve("bf16-true", CPU))


class Layer(nn.Linear):
    """A layer of the encoders below."""


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4, 2)


class Encoder(nn.Module):
    """Names its layers as BERT does in transformers."""

    _no_split_modules = ("Embeddings", "Layer", "AbsentLayer")

    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList([Layer(2, 2), Layer(2, 2)])

    def get_input_embeddings(self):
        return self.embeddings.words


class UnnamedEncoder(Encoder):
    _no_split_modules = None


@pytest.mark.parametrize("model", [Encoder(), UnnamedEncoder()], ids=["named", "unnamed"])
def test_layers_are_units_and_modules_around_the_embedding_table_are_not(model):
    plugin = FullyShardedDataParallelPlugin()
    choose_units(plugin, model)
    assert plugin.transformer_cls_names_to_wrap == ["Layer"]


def test_units_that_the_user_chose_are_kept():
    plugin = FullyShardedDataParallelPlugin(transformer_cls_names_to_wrap=["Embeddings"])
    choose_units(plugin, Encoder())
    assert plugin.transformer_cls_names_to_wrap == ["Embeddings"]


def test_a_model_without_layers_is_one_unit():
    plugin = FullyShardedDataParallelPlugin()
    choose_units(plugin, nn.Sequential(nn.Linear(2, 2)))
    assert plugin.transformer_cls_names_to_wrap == []
