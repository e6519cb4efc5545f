"""The switch for TF32 is set, verified and measured."""

import pytest
import torch

from ampft.errors import InputError
from ampft.precision.resolve import resolve
from ampft.precision.tf32 import (
    PROBE,
    apply_float32_policy,
    float32_product_loses_bits,
    verify_float32_policy,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture
def float32_settings():
    operators = [(b, o) for b in ("cuda", "mkldnn") for o in ("matmul", "conv", "rnn")]
    before = {key: torch._C._get_fp32_precision_getter(*key) for key in operators}
    yield
    for key, value in before.items():
        torch._C._set_fp32_precision_setter(*key, value)


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


@pytest.mark.usefixtures("float32_settings")
def test_a_change_by_the_old_interface_is_detected():
    precision = resolve("fp32", CPU)
    apply_float32_policy(precision)
    torch.backends.cuda.matmul.allow_tf32 = True  # what Accelerate does with a compile backend
    with pytest.raises(InputError, match="float32 matmul of cuda was changed to 'tf32'"):
        verify_float32_policy(precision, CPU)
    torch.backends.cuda.matmul.allow_tf32 = False


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
