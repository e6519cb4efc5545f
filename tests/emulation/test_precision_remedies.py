"""Remedies that the messages about precision name, executed where the message appears."""

import re

import pytest
import test_emulation_scope
import torch
from running import call, succeeded
from test_emulation_autocast import WITHOUT_A_KERNEL
from test_emulation_scope import REFUSED_CALLS
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

import ampft
from ampft.arguments import parse_classify_arguments
from ampft.emulation import Emulation
from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.engine.out_of_memory import MEMORY_ADVICE
from ampft.engine.step import _overflows_at_every_scale
from ampft.errors import InputError
from ampft.precision import resolve as resolving
from ampft.precision.accelerator import SHARDING_VARIABLE, numerics, sharding_plugin
from ampft.precision.float32_modules import check_float32_modules, keep_in_fp32
from ampft.precision.modes import MODES
from ampft.precision.resolve import ModeAvailability, resolve, usable_modes
from ampft.runs import run_state

CPU = torch.device("cpu")
LAYERS = (nn.LSTM, nn.GRU, nn.RNN)


@pytest.fixture
def without_bf16(monkeypatch):
    """A CPU that emulates bf16."""
    monkeypatch.setattr(resolving, "cpu_capabilities", dict)


def modes_in(message):
    """Return the modes that a message tells the user to choose."""
    (advice,) = re.findall(r"--mixed_precision ((?:[\w-]+(?:, | or )?)+)(?:[.,]|$)", message)
    return re.split(", | or ", advice.strip(" ,"))


def step(layer, mode):
    """Run a layer forward and backward in a mode; return its gradients."""
    torch.manual_seed(0)
    precision = resolve(mode, CPU)
    module = layer(4, 3).to(precision.storage_dtype)
    inputs = torch.randn(5, 2, 4).to(precision.storage_dtype)
    autocast = torch.autocast("cpu", precision.compute_dtype, enabled=precision.uses_autocast)
    with numerics(precision):
        with autocast:
            output = module(inputs)[0]
        output.float().sum().backward()
    return torch.cat([p.grad.float().flatten() for p in module.parameters()])


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_fp16_refuses_trains_in_the_modes_that_the_message_names(without_bf16, layer):
    with pytest.raises(InputError, match="keep_in_fp32; in ampft train, --fp32_modules") as error:
        step(layer, "fp16")
    named = re.findall(r"--mixed_precision (\w+) or (\w+)\.$", str(error.value))
    exact = step(layer, "fp32")
    for mode in (*named[0], "bf16-true"):
        assert (step(layer, mode) - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize("mode", ["bf16", "bf16-true"])
def test_an_lstm_in_emulated_bf16_does_not_call_the_kernel_that_such_a_cpu_lacks(
    without_bf16, monkeypatch, mode
):
    def called():
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            step(nn.LSTM, mode)
        return {event.name for event in profiled.events()} & {"aten::mkldnn_rnn_layer"}

    assert not called()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # elsewhere the kernel cannot be called
        monkeypatch.setattr(resolving, "cpu_capabilities", lambda: {"avx512_bf16": True})
        assert called(), "a CPU with bf16 uses it, so that the check above can fail"


def test_float32_layers_beside_emulated_bf16_are_unchanged():
    torch.manual_seed(0)
    layer, inputs = nn.LSTM(4, 3), torch.randn(5, 2, 4)
    expected = layer(inputs)[0]
    with Emulation(torch.bfloat16):
        assert torch.equal(layer(inputs)[0], expected)
    assert torch._C._get_mkldnn_enabled()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bf16", "bf16-true"])
def test_an_lstm_trains_where_onednn_has_no_bf16(tmp_path, mode):
    script = tmp_path / "own.py"
    script.write_text(
        "import torch, ampft\n"
        "from ampft.precision import resolve as resolving\n"
        "resolving.cpu_capabilities = dict\n"
        f"precision = resolving.resolve({mode!r}, torch.device('cpu'))\n"
        "layer = torch.nn.LSTM(4, 3).to(precision.storage_dtype)\n"
        "rows = torch.ones(5, 2, 4, dtype=precision.storage_dtype)\n"
        "with ampft.numerics(precision), torch.autocast('cpu', torch.bfloat16,\n"
        "    enabled=precision.uses_autocast):\n"
        "    layer(rows)[0].float().sum().backward()\n"
        "print(all(each.grad.isfinite().all() for each in layer.parameters()))\n"
    )
    done = succeeded(call("python", script, warm=False, ONEDNN_MAX_CPU_ISA="AVX2"))
    assert done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_fp16_refuses_trains_in_float32_as_the_message_says(tmp_path, layer):
    torch.manual_seed(0)
    recurrent, head = layer(4, 4, batch_first=True), nn.Linear(4, 2)
    model = nn.ModuleDict({"recurrent": recurrent, "head": head})
    examples = {"x": torch.randn(8, 3, 4), "y": torch.arange(8) % 2}

    def loss(batch):
        return ampft.summed_cross_entropy(head(recurrent(batch["x"])[0][:, -1]), batch["y"])

    def train():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        training = ampft.Training(
            model, optimizer, examples, precision="fp16", batch_size=4, output_dir=tmp_path / "run"
        )
        with training:
            for _ in training:
                training.step(loss)

    with pytest.raises(InputError, match="keep this layer in float32"):
        train()
    before = head.weight.clone()
    keep_in_fp32(model, ["recurrent"])
    train()
    assert not torch.equal(head.weight, before)


def outputs_are_finite(outputs):
    tensors = [each for each in tree_leaves(outputs) if isinstance(each, torch.Tensor)]
    return bool(tensors) and all(each.isfinite().all() for each in tensors)


@pytest.mark.parametrize("name", REFUSED_CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_that_fp16_refuses_run_in_bf16_and_fp32(monkeypatch, name, dtype):
    monkeypatch.setattr(test_emulation_scope, "half", lambda *s: torch.ones(s, dtype=dtype))
    with Emulation(torch.bfloat16):
        assert outputs_are_finite(REFUSED_CALLS[name]())


@pytest.mark.parametrize("name", WITHOUT_A_KERNEL)
def test_functions_that_fp16_refuses_run_in_bf16_and_fp32(name):
    with Emulation(torch.bfloat16):
        for dtype in (torch.bfloat16, torch.float32):
            with torch.autocast("cpu", torch.bfloat16):
                assert outputs_are_finite(WITHOUT_A_KERNEL[name](dtype))
    assert outputs_are_finite(WITHOUT_A_KERNEL[name](torch.float32))


def test_the_modes_named_for_fsdp_are_those_of_this_device(monkeypatch):
    monkeypatch.setenv(SHARDING_VARIABLE, "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(InputError, match="FSDP supports only") as error:
        sharding_plugin(resolve("bf16-true", CPU))
    named = modes_in(str(error.value).partition("weights. ")[2])
    assert named == ["bf16", "fp16", "fp32"]  # no CPU has TF32
    for mode in named:
        assert sharding_plugin(resolve(mode, CPU)) is not None


def test_the_modes_named_for_modules_in_float32_keep_them():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    keep_in_fp32(model, ["0"])
    with pytest.raises(InputError, match="must compute in float32") as error:
        check_float32_modules(model, resolve("bf16-true", CPU))
    named = modes_in(str(error.value))
    assert named == ["fp16", "bf16", "fp32"]
    for mode in named:
        check_float32_modules(model, resolve(mode, CPU))


def test_bf16_is_not_named_where_a_device_lacks_it(monkeypatch):
    assert "Use --mixed_precision bf16 or fp32." in _overflows_at_every_scale(1.0, CPU)
    survey = [ModeAvailability(mode, "native", "") for mode in MODES if "bf16" not in mode]
    survey += [ModeAvailability(mode, "unavailable", "") for mode in MODES if "bf16" in mode]
    monkeypatch.setattr(resolving, "survey_modes", lambda device: survey)
    assert "Use --mixed_precision fp32." in _overflows_at_every_scale(1.0, CPU)
    assert usable_modes(("fp16", "bf16", "fp32"), CPU) == "fp16 or fp32"


@pytest.mark.parametrize("optim", ["adafactor", "muon"])
def test_an_optimizer_that_16_bits_refuse_trains_as_the_message_says(optim):
    model = nn.Sequential(nn.Linear(4, 4))
    settings = OptimizerSettings(learning_rate=0.1, name=optim)
    with pytest.raises(InputError, match=r"adamw_torch, or --mixed_precision bf16\.$"):
        make_optimizer(model, settings, resolve("bf16-true", CPU))
    make_optimizer(model, OptimizerSettings(learning_rate=0.1), resolve("bf16-true", CPU))
    if optim == "adafactor":  # Muon needs layers; `test_optimizer_table.py` has them
        make_optimizer(model, settings, resolve("bf16", CPU))


@pytest.mark.parametrize(
    ("flags", "sharded", "processes", "advice"),
    [
        ([], False, 1, "Add --auto_micro_batch"),
        ([], False, 2, "Add --auto_micro_batch"),
        ([], True, 2, "same effective batch: raise --gradient_accumulation_steps and lower"),
        (["--auto_micro_batch"], False, 2, "raise --gradient_accumulation_steps .*, and remove"),
        (["--per_device_train_batch_size", "1"], False, 1, re.escape(MEMORY_ADVICE)),
    ],
)
def test_the_advice_for_a_step_without_memory_is_possible(
    monkeypatch, flags, sharded, processes, advice
):
    class Stand:
        args = parse_classify_arguments(flags)
        accelerator = type("A", (), {"num_processes": processes})
        loaded = type("L", (), {"model": None})
        step_batches = None

    monkeypatch.setattr(run_state, "is_sharded", lambda accelerator: sharded)
    history = type("H", (), {"write": print})
    assert re.search(advice, run_state._retries(Stand, history).advice)
