"""`--watch`: figures of a step by hand, warnings, and no operation more in the other steps."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from running import call, succeeded
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ampft
from ampft.checks.value_ranges import ValueRangeMonitor
from ampft.engine.step import StepOutcome
from ampft.features.feature import SavedFeature
from ampft.precision.accelerator import forget_accelerator
from ampft.precision.float32_modules import keep_in_fp32
from ampft.precision.resolve import resolve

OUTCOME = StepOutcome(1.0, 1.0, None, False, 0.1)

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
SCALE = 2.0**16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 1)

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden))


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def model():
    torch.manual_seed(0)
    return Model()


def step(model, precision, *, factor=1.0):
    """The gradient of a step, multiplied by the loss scale."""
    inputs = torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]]) * factor
    autocast = torch.autocast("cpu", precision.compute_dtype, enabled=precision.uses_autocast)
    with autocast:
        loss = model(inputs).float().square().mean() * 1e-3
    (loss * (SCALE if precision.uses_scaler else 1)).backward()


def watched(model, mode="fp16", *, number=1, every=1, factor=1.0, lines=None, watch=None):
    precision = resolve(mode, torch.device("cpu"))
    if watch is None:
        forget_accelerator()
        accelerator = ampft.make_accelerator(precision)
        if accelerator.scaler is not None:
            accelerator.scaler.scale(torch.ones(()))  # creates the scale, 2^16
        write = [].append if lines is None else lines.append
        watch = ValueRangeMonitor(every, accelerator, model, precision, write)
    model.zero_grad()
    with ampft.numerics(precision), watch.around_gradient(number):
        step(model, precision, factor=factor)
    return watch


@pytest.mark.add_ons
def test_the_figures_are_those_of_a_computation_by_hand():
    watch, seen = watched(model()), model()
    figures = watch.after_step(OUTCOME)
    activations = {}
    for name, module in seen.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda _, inputs, output, name=name: activations.update(
                    {name: max(float(t.detach().abs().max()) for t in (*inputs, output))}
                )
            )
    precision = resolve("fp16", torch.device("cpu"))
    with ampft.numerics(precision):
        step(seen, precision)
    blocks = {"layers.0": seen.layers[0], "layers.1": seen.layers[1], "head": seen.head}
    for name, module in blocks.items():
        expected = math.log2(65504 / activations[name])
        assert figures[f"headroom/{name}"] == pytest.approx(expected, abs=1e-6)
        gradient = torch.cat([p.grad.double().flatten() for p in module.parameters()])
        norm = float(gradient.norm()) / SCALE
        assert figures[f"grad_norm/{name}"] == pytest.approx(norm, rel=1e-6)
        nonzero = gradient[gradient != 0].abs()
        assert figures[f"underflow/{name}"] == float((nonzero < 2**-14).double().mean())
    assert "headroom/norm" not in figures  # computed in float32
    assert "underflow/norm" not in figures
    assert figures["grad_norm/norm"] > 0
    assert watch.after_step(OUTCOME) == {}


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, hidden):
        return self.linear(hidden) + self.shift


@pytest.mark.add_ons
def test_parameters_beside_modules_count():
    """Such as the embedded positions of ViT."""
    torch.manual_seed(0)
    network = nn.Sequential(Shift(), nn.Linear(4, 1))
    figures = watched(network).after_step(OUTCOME)
    gradient = torch.cat([p.grad.double().flatten() for p in network[0].parameters()])
    norm = float(gradient.norm()) / SCALE
    assert figures["grad_norm/0"] == pytest.approx(norm, rel=1e-6)


@pytest.mark.add_ons
def test_small_gradients_underflow_in_fp16_but_not_in_bf16():
    def underflow(mode, factor=1.0):
        small = model()
        with torch.no_grad():
            small.head.weight.mul_(factor)
        return watched(small, mode).after_step(OUTCOME)["underflow/layers.0"]

    assert underflow("fp16", 1e-7) > 0.5
    assert underflow("fp16", 1e-12) == 1  # nothing is left
    assert underflow("bf16", 1e-7) == 0
    assert underflow("fp16") < 0.1


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("factor", "message"),
    [(3000.0, "reaches "), (30_000.0, "exceeds the largest number of fp16, 65,504")],
)
def test_little_headroom_is_printed_once_per_block_and_recorded(factor, message):
    lines, network = [], model()
    with torch.no_grad():
        for layer in network.layers:
            layer.weight.copy_(torch.eye(4) * 4)
    watch = watched(network, factor=factor, lines=lines)
    first = [line for line in lines if "step 1: layers.0 " in line]
    assert len(first) == 1
    assert message in first[0]
    assert "ampft doctor --mixed_precision fp16" in first[0]
    before = len(lines)
    watched(network, number=2, factor=factor, watch=watch)
    assert len(lines) == before
    assert "fp16" in watch.warnings()["low_headroom"]


@pytest.mark.add_ons
def test_a_healthy_model_has_no_warning():
    lines = []
    watch = watched(model(), lines=lines)
    assert lines == []
    assert watch.warnings() == {}


@pytest.mark.add_ons
def test_a_module_in_float32_has_no_headroom_to_lose():
    network = model()
    keep_in_fp32(network, ["layers.0"])
    figures = watched(network, factor=30_000.0).after_step(OUTCOME)
    assert "headroom/layers.0" not in figures
    assert figures["headroom/layers.1"] < 0


@pytest.mark.add_ons
def test_other_steps_run_the_same_operations_without_hooks():
    plain, skipping, measuring = (Operations() for _ in range(3))
    precision = resolve("fp16", torch.device("cpu"))
    unwatched = model()
    with ampft.numerics(precision), plain:
        step(unwatched, precision)
    network = model()
    watch = watched(network, number=0, every=5)
    network.zero_grad()
    with ampft.numerics(precision):
        with skipping, watch.around_gradient(4):
            step(network, precision)
        network.zero_grad()
        with measuring, watch.around_gradient(5):
            step(network, precision)
    assert skipping.names == plain.names
    assert len(measuring.names) > len(plain.names)
    assert not any(module._forward_hooks for module in network.modules())


def test_hooks_are_removed_after_an_error():
    network = model()
    with pytest.raises(ZeroDivisionError, match="division"):
        watch_and_fail(network)
    assert not any(module._forward_hooks for module in network.modules())


def watch_and_fail(network):
    precision = resolve("bf16", torch.device("cpu"))
    watch = ValueRangeMonitor(1, ampft.make_accelerator(precision), network, precision, print)
    with watch.around_gradient(1):
        raise ZeroDivisionError("division")


@pytest.mark.add_ons
def test_the_warning_survives_a_resume():
    watch = watched(model())
    watch.after_step(OUTCOME)
    history = b'{"step": 3, "headroom/head": 0.5}\n{"step": 6, "headroom/head": "-inf"}\n'
    watch.restore(SavedFeature(None, {}, 6, history, Path(), {}))
    assert watch.warnings()["low_headroom"].startswith("step 6: head exceeds")
    assert watch.after_step(OUTCOME) == {}


@pytest.mark.slow
def test_two_processes_agree_on_the_smallest_headroom(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = Path(__file__).with_name("watched_processes.py")
    succeeded(
        call(
            *launcher, "--nproc_per_node", 2, script, tmp_path,
            ACCELERATE_USE_CPU="true", PYTHONPATH=str(Path(__file__).parents[2]),
        )
    )  # fmt: skip
    first, second = (json.loads((tmp_path / f"rank{n}.json").read_text()) for n in (0, 1))
    assert first["figures"] == second["figures"]
    # The inputs are 1 in the first process and 8 in the second.
    assert math.log2(65504 / 16) < first["figures"]["headroom/0"] <= math.log2(65504 / 8)
    norm = math.hypot(first["gradient"]["1"], 0.01 * SCALE)  # with that of the bias
    assert first["figures"]["grad_norm/1"] == pytest.approx(norm / SCALE, rel=0.01)
