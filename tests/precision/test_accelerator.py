"""The Accelerator computes in the requested precision, compared with plain torch."""

import dataclasses
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch._dynamo.utils import counters

from ampft.emulation import inside_emulation
from ampft.engine.threads import launcher_set_one_thread
from ampft.errors import InputError
from ampft.precision.accelerator import (
    check_world_size,
    make_accelerator,
    numerics,
    training_device,
    verify_precision_unchanged,
)
from ampft.precision.compilation import (
    configured_backend,
    partial_compilation_warning,
    turn_compilation_off,
)
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
LAUNCHED = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_MODE": "default"}


@pytest.fixture(autouse=True)
def one_accelerator_per_test(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    operators = [(b, o) for b in ("cuda", "mkldnn") for o in ("matmul", "conv", "rnn")]
    before = {key: torch._C._get_fp32_precision_getter(*key) for key in operators}
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for key, value in before.items():
        torch._C._set_fp32_precision_setter(*key, value)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 16, generator=generator)


def clipped_step(accelerator, *, max_norm=0.05):
    """One clipped SGD step; returns the norm before clipping and the weights after."""
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(batch()).square().mean())
    norm = accelerator.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return norm, [parameter.detach().clone() for parameter in model.parameters()]


# The requested precision


@pytest.mark.parametrize(
    ("mode", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_run_in_the_requested_mode(mode, dtype):
    precision = resolve(mode, CPU)
    accelerator = make_accelerator(precision)
    assert accelerator.mixed_precision == precision.accelerate_name
    model = small_model()
    dtypes = []
    model[0].register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    model = accelerator.prepare(model)
    verify_precision_unchanged(accelerator, precision)
    with numerics(precision), ProductRecorder(precision) as recorder:
        output = model(batch())
    assert dtypes == [dtype]
    # Accelerate casts the outputs of a prepared model to float32.
    assert output.dtype == torch.float32
    assert precision_contradiction(precision, recorder.census(model)) is None


def test_plain_accelerate_runs_fp16_on_a_cpu_in_float32():
    # Negative control: this is why make_accelerator exists (accelerate 1.15.0).
    accelerator = Accelerator(mixed_precision="fp16", cpu=True)
    assert accelerator.mixed_precision == "fp16"
    assert accelerator.scaler is None
    assert not accelerator.native_amp
    precision = resolve("fp16", CPU)
    model = accelerator.prepare(small_model())
    with numerics(precision), ProductRecorder(precision) as recorder:
        model(batch())
    message = precision_contradiction(precision, recorder.census(model))
    assert message is not None
    assert "float32 x float32" in message


def test_fp16_on_a_cpu_has_a_scaler_and_others_have_none():
    accelerator = make_accelerator(resolve("fp16", CPU))
    assert isinstance(accelerator.scaler, torch.amp.GradScaler)
    assert accelerator.scaler.get_scale() == 65536.0
    AcceleratorState._reset_state(reset_partial_state=True)
    assert make_accelerator(resolve("bf16", CPU)).scaler is None


def test_a_clipped_fp16_step_equals_plain_torch():
    precision = resolve("fp16", CPU)
    twin, scaler = small_model(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
    with numerics(precision):
        norm, weights = clipped_step(make_accelerator(precision))
        with torch.autocast("cpu", dtype=torch.float16):
            output = twin(batch())
        scaler.scale(output.float().square().mean()).backward()
        scaler.unscale_(optimizer)
        twin_norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        scaler.step(optimizer)
    assert norm > 0.05
    assert torch.equal(norm, twin_norm)
    for ours, plain in zip(weights, twin.parameters(), strict=True):
        assert torch.equal(ours, plain)


def test_only_a_scaler_would_clip_scaled_gradients():
    # Negative control: make_accelerator sets the scaler and autocast together.
    precision = resolve("fp16", CPU)
    with numerics(precision):
        right, _ = clipped_step(make_accelerator(precision))
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(mixed_precision="fp16", cpu=True)
        accelerator.scaler = torch.amp.GradScaler("cpu")
        wrong, _ = clipped_step(accelerator)
    assert wrong > 60_000 * right


def test_numerics_emulates_only_what_a_cpu_lacks():
    on_gpu = dataclasses.replace(resolve("fp16", CPU), device_type="cuda", execution="native")
    native = dataclasses.replace(resolve("bf16", CPU), execution="native")
    for precision, emulates in ((resolve("fp16", CPU), True), (native, False), (on_gpu, False)):
        with numerics(precision):
            assert inside_emulation(precision.compute_dtype) == emulates


# The environment, other devices and compile backends


@pytest.mark.parametrize("variable", ["bf16", "fp16", "fp61"])
def test_the_resolved_precision_wins_over_the_environment(monkeypatch, variable):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", variable)
    accelerator = make_accelerator(resolve("fp32", CPU))
    assert accelerator.mixed_precision == "no"
    assert not accelerator.native_amp
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == variable


def test_the_environment_may_set_the_micro_batches(monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    accelerator = make_accelerator(resolve("fp32", CPU), gradient_accumulation_steps=2)
    assert accelerator.gradient_accumulation_steps == 3


def test_micro_batches_and_project_dir_reach_accelerate(tmp_path):
    options = {"gradient_accumulation_steps": 4, "project_dir": tmp_path}
    accelerator = make_accelerator(resolve("bf16", CPU), **options)
    assert accelerator.gradient_accumulation_steps == 4
    assert accelerator.project_dir == str(tmp_path)


def test_a_second_precision_in_one_process_is_refused():
    make_accelerator(resolve("bf16", CPU))
    with pytest.raises(InputError, match="--mixed_precision fp16: this process already has"):
        make_accelerator(resolve("fp16", CPU))


def test_a_device_other_than_the_resolved_one_is_refused():
    elsewhere = dataclasses.replace(resolve("fp32", CPU), device_type="cuda")
    with pytest.raises(InputError, match="resolved for cuda, but Accelerate runs on cpu"):
        make_accelerator(elsewhere)


def test_a_mode_that_accelerate_replaced_is_refused():
    # Accelerate does this for fp8 on a GPU below compute capability 8.9.
    replaced = SimpleNamespace(mixed_precision="fp16", device=CPU)
    fp8 = dataclasses.replace(resolve("fp32", CPU), mode="fp8")
    with pytest.raises(InputError, match="fp8: Accelerate chose 'fp16' instead"):
        verify_precision_unchanged(replaced, fp8)


def test_a_compile_backend_is_refused_with_emulation(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    with pytest.raises(InputError, match="--dynamo_backend eager: compiled code bypasses"):
        make_accelerator(resolve("fp16", CPU))


def test_shapes_of_compiled_models_may_vary(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "False")  # as the launcher sets it
    accelerator = make_accelerator(resolve("bf16", CPU))
    assert configured_backend(accelerator) == "inductor"
    assert accelerator.state.dynamo_plugin.dynamic is None


def test_a_model_that_is_compiled_in_part_is_warned_of(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    accelerator = make_accelerator(resolve("fp32", CPU))
    assert partial_compilation_warning(accelerator) == {}
    monkeypatch.setitem(counters, "unimplemented", {"Dynamo recompile limit exceeded": 1})
    assert list(partial_compilation_warning(accelerator)) == ["compilation"]
    turn_compilation_off(accelerator)
    assert partial_compilation_warning(accelerator) == {}
    layer = nn.Linear(2, 2)
    assert accelerator.prepare(layer) is layer


def test_verify_prepared_detects_a_missing_scaler_and_a_changed_policy():
    precision = resolve("fp16", CPU)
    accelerator = make_accelerator(precision)
    verify_precision_unchanged(accelerator, precision)
    accelerator.scaler = None
    with pytest.raises(InputError, match="no gradient scaler"):
        verify_precision_unchanged(accelerator, precision)
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    with pytest.raises(InputError, match="float32 conv of cuda was changed to 'tf32'"):
        verify_precision_unchanged(accelerator, precision)


def test_training_device_is_the_cpu_on_request(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    assert training_device(cpu=True) == CPU


# Number of processes


def test_a_number_of_processes_without_a_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(InputError, match="WORLD_SIZE=2 in the environment: no MASTER_ADDR"):
        training_device(cpu=True)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "2"}, r"WORLD_SIZE=2, but 1 process"),
        (LAUNCHED | {"MASTER_ADDR": "127.0.0.1"}, r"asked for several processes"),
    ],
)
def test_fewer_processes_than_requested_are_refused(environ, message):
    accelerator = make_accelerator(resolve("fp32", CPU))
    with pytest.raises(InputError, match=message):
        check_world_size(accelerator, environ)


@pytest.mark.parametrize(
    "environ", [{}, LAUNCHED, {"WORLD_SIZE": "1", "MASTER_ADDR": "x"}, {"MASTER_ADDR": "x"}]
)
def test_one_requested_process_is_accepted(environ):
    check_world_size(make_accelerator(resolve("fp32", CPU)), environ)


# Threads


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (LAUNCHED | {"OMP_NUM_THREADS": "1"}, True),
        (LAUNCHED | {"OMP_NUM_THREADS": "2"}, False),
        ({"OMP_NUM_THREADS": "1"}, False),
        ({"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "bf16"}, False),
        (LAUNCHED, False),
    ],
)
def test_a_thread_limit_of_the_launcher_is_recognized(environ, expected):
    assert launcher_set_one_thread(environ, launcher={}) == expected
    assert not launcher_set_one_thread(environ, launcher={"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("first", [training_device, lambda: make_accelerator(resolve("fp32", CPU))])
def test_deepspeed_is_refused_until_its_steps_are_proven_exact(monkeypatch, first):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")  # as the launcher sets it
    with pytest.raises(InputError, match=r"Use FSDP2 \(--config_file (\S+)\)") as refused:
        first()
    (file,) = re.findall(r"--config_file (\S+)\)", str(refused.value))
    assert "fsdp_version: 2" in (Path(__file__).parents[2] / file).read_text()


def test_an_accelerator_is_made_for_a_mode_by_name():
    accelerator = make_accelerator("fp16")
    assert accelerator.scaler is not None
    assert accelerator.mixed_precision == "fp16"
