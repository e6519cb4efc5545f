"""The switch for TF32 is set, verified and measured."""

import dataclasses
import warnings

import pytest
import torch
from accelerate import Accelerator

from ampft.errors import InputError
from ampft.precision import accelerator
from ampft.precision.resolve import resolve
from ampft.precision.tf32 import (
    PROBE,
    apply_float32_policy,
    float32_policy,
    float32_product_loses_bits,
    float32_settings_restored,
    sums_may_be_rounded,
    verify_float32_policy,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture
def float32_settings():
    with float32_settings_restored():
        yield


@pytest.mark.usefixtures("float32_settings")
def test_the_policy_pins_every_operator_and_is_verified():
    precision = resolve("bf16", CPU)
    torch._C._set_fp32_precision_setter("cuda", "conv", "tf32")
    apply_float32_policy(precision)
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert torch.backends.cudnn.rnn.fp32_precision == "ieee"
    verify_float32_policy(precision, CPU)


@pytest.mark.usefixtures("float32_settings")
@pytest.mark.parametrize("operator", [("cuda", "matmul"), ("cuda", "rnn"), ("mkldnn", "conv")])
def test_a_setting_changed_afterwards_is_detected(operator):
    precision = resolve("fp32", CPU)
    apply_float32_policy(precision)
    torch._C._set_fp32_precision_setter(*operator, "tf32")
    with pytest.raises(InputError, match=rf"float32 {operator[1]} of {operator[0]}.*'tf32'"):
        verify_float32_policy(precision, CPU)


SWITCHES = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


@pytest.mark.add_ons
@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "bf16-true"])
def test_sums_in_16_bits_are_off_inside_and_restored_after(mode, switch):
    matmul, precision = torch.backends.cuda.matmul, resolve(mode, CPU)
    before = getattr(matmul, switch)
    try:
        setattr(matmul, switch, True)
        assert sums_may_be_rounded()
        with accelerator.numerics(precision):
            assert not sums_may_be_rounded()
            assert [getattr(matmul, name) for name in SWITCHES] == [False] * 3
        assert getattr(matmul, switch) is True
    finally:
        setattr(matmul, switch, before)


@pytest.mark.usefixtures("float32_settings")
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_of_sums_changed_afterwards_is_detected(switch):
    apply_float32_policy(resolve("bf16", CPU))
    setattr(torch.backends.cuda.matmul, switch, True)
    with pytest.raises(InputError, match="sums of products in 16 bits were allowed"):
        verify_float32_policy(resolve("bf16", CPU), CPU)


@pytest.mark.usefixtures("float32_settings")
def test_a_change_by_the_old_interface_is_detected():
    precision = resolve("fp32", CPU)
    apply_float32_policy(precision)
    torch.backends.cuda.matmul.allow_tf32 = True  # what Accelerate does with a compile backend
    with pytest.raises(InputError, match="float32 matmul of cuda was changed to 'tf32'"):
        verify_float32_policy(precision, CPU)
    torch.backends.cuda.matmul.allow_tf32 = False


def read_old_interface():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13 deprecates it
        return (
            torch.backends.cuda.matmul.allow_tf32,
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
        )


@pytest.mark.usefixtures("float32_settings")
@pytest.mark.parametrize(
    ("allows_tf32", "expected"), [(True, (True, "high", True)), (False, (False, "highest", False))]
)
def test_both_interfaces_say_the_same(allows_tf32, expected):
    before = read_old_interface()
    mode = "tf32" if allows_tf32 else "fp32"
    precision = dataclasses.replace(resolve("fp32", CPU), mode=mode)
    with float32_policy(precision):
        assert read_old_interface() == expected
        with torch.backends.cudnn.flags(enabled=False):  # reads and writes the old interface
            pass
        verify_float32_policy(precision, CPU)
    assert read_old_interface() == before


@pytest.mark.usefixtures("float32_settings", "fresh_accelerate")
def test_a_compile_backend_of_accelerate_does_not_switch_tf32_on(monkeypatch):
    def with_tf32(**options):
        torch.backends.cuda.matmul.allow_tf32 = True  # as accelerate/state.py does on a GPU
        return Accelerator(**options)

    monkeypatch.setattr(accelerator, "Accelerator", with_tf32)
    precision = resolve("fp32", CPU)
    accelerator.verify_precision_unchanged(accelerator.make_accelerator(precision), precision)


def test_the_probe_has_the_bit_that_tf32_drops():
    assert torch.tensor(PROBE).item() == PROBE
    # TF32 keeps ten bits of the fraction, as float16 does.
    assert torch.tensor(PROBE).half().float().item() == 1.0


def test_a_cpu_keeps_the_bit_under_autocast_too():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not float32_product_loses_bits(CPU)


@pytest.mark.gpu
@pytest.mark.usefixtures("float32_settings")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_probe_detects_tf32_on_a_gpu():
    assert torch.cuda.is_available()
    for mode, loses in (("fp32", False), ("tf32", True), ("fp32", False)):
        precision = resolve(mode, CUDA)
        apply_float32_policy(precision)
        assert float32_product_loses_bits(CUDA) == loses
        verify_float32_policy(precision, CUDA)
