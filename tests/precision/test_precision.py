"""The requested mode, and its resolution for a device."""

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch

import ampft
from ampft.errors import InputError
from ampft.precision import resolve as precision_module
from ampft.precision.modes import MODES, canonical_mode
from ampft.precision.resolve import cpu_capabilities, requested_mode, resolve, survey_modes

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
ROOT = Path(__file__).resolve().parents[2]


# Modes and their spelling


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_spells_itself_in_any_case(mode):
    assert canonical_mode(mode) == canonical_mode(f" {mode.upper()} ") == mode


def test_no_spells_fp32():
    assert canonical_mode("no") == "fp32"


@pytest.mark.parametrize("device", ["xyz", "cpu:x", "", None, 5])
def test_what_is_no_device_is_refused_by_name(device):
    with pytest.raises(InputError, match=re.escape(f"device: received {device!r}; choose 'cpu'")):
        resolve("fp32", device)
    assert resolve("fp32", "cpu").mode == "fp32"  # negative control


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "mps", "xpu"])
def test_a_gpu_that_torch_does_not_find_is_refused(monkeypatch, device):
    module = torch.get_device_module(torch.device(device))
    monkeypatch.setattr(module, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"fp32 on {device}: this torch .* finds no GPU"):
        resolve("fp32", device)


def test_an_unknown_mode_is_refused_with_a_suggestion():
    with pytest.raises(
        InputError, match=r"^'pf16' is not a precision mode.*Did you mean '.*fp32, tf32"
    ):
        canonical_mode("pf16")


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", [None, 16, torch.float16])
def test_what_is_not_a_string_is_refused_as_an_unknown_mode(mode):
    for function in (ampft.computing_in, ampft.numerics):
        with pytest.raises(InputError, match="is not a precision mode"), function(mode):
            pass
    with pytest.raises(InputError, match="is not a precision mode"):
        ampft.resolve(mode, "cpu")


# The flag and the environment variable


@pytest.mark.parametrize(
    ("flag", "variable", "mode"),
    [
        (None, None, "fp32"),
        (None, "no", "fp32"),
        (None, "", "fp32"),
        (None, "bf16", "bf16"),
        (None, "BF16", "bf16"),
        (None, "tf32", "tf32"),
        ("bf16", "no", "bf16"),
        ("fp16", None, "fp16"),
        ("fp16", "fp16", "fp16"),
        ("tf32", "no", "tf32"),
        ("no", "no", "fp32"),
        ("fp32", "fp32", "fp32"),
    ],
)
def test_requested_mode(flag, variable, mode):
    environ = {} if variable is None else {"ACCELERATE_MIXED_PRECISION": variable}
    assert requested_mode(flag, environ) == mode


@pytest.mark.parametrize(
    ("flag", "variable"),
    [(f, v) for f, v in product((*MODES, "no"), ("fp16", "bf16", "fp8")) if f != v],
)
def test_two_different_modes_are_an_error_that_names_both(flag, variable):
    named = rf"--mixed_precision {flag} .*ACCELERATE_MIXED_PRECISION={variable} \(set by accelerate"
    with pytest.raises(InputError, match=named):
        requested_mode(flag, {"ACCELERATE_MIXED_PRECISION": variable})


def test_an_unknown_mode_in_the_variable_is_refused_by_name():
    with pytest.raises(InputError, match=r"ACCELERATE_MIXED_PRECISION=bf61 .*Did you mean 'bf16'"):
        requested_mode(None, {"ACCELERATE_MIXED_PRECISION": "bf61"})


SCRIPT = """
import json, os
from ampft.errors import InputError
from ampft.precision.resolve import requested_mode
from ampft.engine.threads import (
    launcher_set_one_thread, launcher_environment, restore_cpu_threads, usable_cores
)

def mode_for(flag):
    try:
        return requested_mode(flag, os.environ)
    except InputError as error:
        return "both named" if "ACCELERATE_MIXED_PRECISION=" in str(error) else str(error)

answers = {str(flag): mode_for(flag) for flag in (None, "no", "fp32", "tf32", "bf16", "fp16")}
answers["launcher set one thread"] = launcher_set_one_thread(os.environ, launcher_environment())
answers["all cores restored"] = restore_cpu_threads(None, os.environ) == usable_cores()
print("ANSWERS " + json.dumps(answers))
"""


def launch(tmp_path, *options):
    """Run SCRIPT under accelerate launch, away from any configuration of this machine."""
    script = tmp_path / "ask.py"
    script.write_text(SCRIPT)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "OMP_"))}
    environ |= {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "accelerate.commands.launch", *options, str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS "))
    return json.loads(line.removeprefix("ANSWERS "))


@pytest.mark.full
@pytest.mark.slow
def test_accelerate_launch_without_a_choice_leaves_the_flag_free(tmp_path):
    answers = launch(tmp_path)
    assert answers["None"] == answers["no"] == answers["fp32"] == "fp32"
    assert [answers[mode] for mode in ("tf32", "bf16", "fp16")] == ["tf32", "bf16", "fp16"]
    if not torch.cuda.is_available():
        assert answers["launcher set one thread"]
        assert answers["all cores restored"]


@pytest.mark.full
@pytest.mark.slow
def test_accelerate_launch_with_a_precision_and_the_flag_agree_or_stop(tmp_path):
    answers = launch(tmp_path, "--mixed_precision", "bf16")
    assert answers["None"] == answers["bf16"] == "bf16"
    assert {answers[mode] for mode in ("no", "fp32", "tf32", "fp16")} == {"both named"}


@pytest.mark.slow
def test_a_config_file_counts_as_the_launcher(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text('distributed_type: "NO"\nuse_cpu: true\nmixed_precision: fp16\n')
    answers = launch(tmp_path, "--config_file", str(config))
    assert answers["None"] == answers["fp16"] == "fp16"
    assert {answers[mode] for mode in ("no", "fp32", "tf32", "bf16")} == {"both named"}


# Modes on a CPU


def capabilities(monkeypatch, **present):
    absent = dict.fromkeys(cpu_capabilities(), False)
    monkeypatch.setattr(precision_module, "cpu_capabilities", lambda: absent | present)


def test_fp32_is_float32_and_native():
    precision = resolve("no", CPU)
    assert (precision.mode, precision.accelerate_name) == ("fp32", "no")
    assert precision.compute_dtype == precision.storage_dtype == torch.float32
    assert precision.execution == "native"
    assert not precision.uses_scaler


@pytest.mark.add_ons
def test_fp16_on_a_cpu_is_emulated_with_a_scaler():
    precision = resolve("fp16", CPU)
    assert (precision.execution, precision.accelerate_name) == ("emulated", "fp16")
    assert precision.compute_dtype == torch.float16
    assert precision.storage_dtype == torch.float32
    assert precision.uses_scaler
    assert precision.is_emulated


@pytest.mark.parametrize("instruction", ["avx512_bf16", "amx_bf16", "bf16"])
def test_bf16_is_native_where_the_cpu_has_the_instruction(monkeypatch, instruction):
    capabilities(monkeypatch, **{instruction: True})
    assert resolve("bf16", CPU).execution == "native"


@pytest.mark.add_ons
def test_bf16_without_the_instruction_is_emulated(monkeypatch):
    # Negative control: oneDNN computes bfloat16 there too, by conversion.
    capabilities(monkeypatch, avx512_fp16=True, amx_fp16=True)
    precision = resolve("bf16", CPU)
    assert precision.execution == "emulated"
    assert "lacks AVX512-BF16" in precision.reason
    assert precision.notes == ("fp32 is faster on this CPU, which cannot multiply bfloat16 itself",)


@pytest.mark.add_ons
def test_only_emulated_precisions_are_called_slower_than_fp32(monkeypatch):
    capabilities(monkeypatch, avx512_bf16=True)
    assert resolve("fp32", CPU).notes == resolve("bf16", CPU).notes == ()
    assert "float16" in resolve("fp16", CPU).notes[0]


def test_cpu_capabilities_are_those_of_torch():
    reported = cpu_capabilities()
    assert reported["avx512_bf16"] == torch.cpu._is_avx512_bf16_supported()
    assert reported["amx_fp16"] == torch.cpu._is_amx_fp16_supported()


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", ["tf32", "fp8"])
def test_an_unavailable_mode_is_refused_with_a_list_of_those_available(monkeypatch, mode):
    capabilities(monkeypatch, avx512_bf16=True)
    message = rf"--mixed_precision {mode}: not .*modes: fp32, bf16, fp16 \(emulated\), bf16-true"
    with pytest.raises(InputError, match=message):
        resolve(mode, CPU)


@pytest.mark.add_ons
def test_modes_that_store_bfloat16_have_no_autocast_and_no_scaler(monkeypatch):
    capabilities(monkeypatch, avx512_bf16=True)
    roundings = {}
    for mode in MODES:
        precision = resolve(mode, CPU) if mode not in ("tf32", "fp8") else None
        if precision is not None and precision.storage_dtype != torch.float32:
            assert precision.storage_dtype == precision.compute_dtype == torch.bfloat16
            assert (precision.accelerate_name, precision.uses_scaler) == ("no", False)
            assert precision.execution == "native"
            assert "weights, gradients, optimizer state bfloat16" in precision.reason
            roundings[mode] = precision.rounding
    assert roundings == {
        "bf16-true": "nearest",
        "bf16-true-kahan": "kahan",
        "bf16-true-stochastic": "stochastic",
    }
    assert resolve("bf16", CPU).rounding is None


def test_every_mode_is_surveyed_in_order():
    entries = survey_modes(CPU)
    assert tuple(entry.mode for entry in entries) == MODES
    assert all(entry.reason for entry in entries)


# Modes on GPUs, simulated


@pytest.mark.parametrize(
    ("capability", "has_fp8_library", "expected"),
    [
        ((7, 5), True, ("native", "unavailable", "emulated", "native", "unavailable")),
        ((8, 0), True, ("native", "native", "native", "native", "unavailable")),
        ((8, 9), True, ("native", "native", "native", "native", "native")),
        ((9, 0), False, ("native", "native", "native", "native", "unavailable")),
    ],
)
def test_generations_of_nvidia_gpus(monkeypatch, capability, has_fp8_library, expected):
    def is_bf16_supported(including_emulation=True):
        return including_emulation or capability >= (8, 0)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(precision_module, "find_spec", lambda name: has_fp8_library or None)
    # Modes with bfloat16 weights are available where bf16 is.
    stored = (expected[2],) * 3
    assert tuple(entry.status for entry in survey_modes(CUDA)) == (*expected, *stored)


def test_gpus_of_amd_have_no_mode_of_nvidia(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(precision_module, "find_spec", lambda name: name)
    found = {entry.mode: (entry.status, entry.reason) for entry in survey_modes(CUDA)}
    assert found["tf32"] == found["fp8"] == ("unavailable", "supported only on NVIDIA GPUs")
    assert {found[mode][0] for mode in ("fp32", "bf16", "fp16")} == {"native"}


def test_other_accelerators_support_what_autocast_supports():
    modes = {entry.mode: entry.status for entry in survey_modes(torch.device("xpu"))}
    assert (modes["tf32"], modes["fp8"]) == ("unavailable", "unavailable")
    assert modes["bf16"] == modes["fp16"] == "unproven"
    assert {e.status for e in survey_modes(torch.device("meta"))} == {"native", "unavailable"}
