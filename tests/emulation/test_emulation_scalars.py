"""Sums with numbers, for every binary16 value, against float32 rounded once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

EVERY = torch.arange(-(2**15), 2**15).short().view(torch.float16)
FINITE = EVERY[EVERY.isfinite()]
OTHER = FINITE.flip(0)
Call = Callable[[Tensor, Tensor], Tensor]
SUMS: dict[str, Call] = {
    "add": lambda x, _: x + 0.1,
    "add_": lambda x, _: x.clone().add_(0.1),
    "add a large integer": lambda x, _: x + 100_001,
    "add with alpha": lambda x, y: torch.add(x, y, alpha=0.1),
    "add a number with alpha": lambda x, _: torch.add(x, 0.1, alpha=0.3),
    "sub": lambda x, _: x - 0.1,
    "sub_": lambda x, _: x.clone().sub_(0.1),
    "rsub": lambda x, _: 0.1 - x,
    "foreach": lambda x, _: torch._foreach_add([x], 0.1)[0],
}
OTHERS: dict[str, Call] = {
    "mul": lambda x, _: x * 0.1,
    "div": lambda x, _: x / 0.1,
    "lerp": lambda x, y: torch.lerp(x, y, 0.1),
    "add a tensor": lambda x, y: x + y,
}


def differing(call: Call) -> int:
    result, expected = call(FINITE, OTHER), call(FINITE.float(), OTHER.float()).half()
    assert result.dtype is torch.float16
    return int((~torch.isclose(result, expected, rtol=0, atol=0, equal_nan=True)).sum())


@pytest.mark.parametrize("name", [*SUMS, *OTHERS])
def test_every_value_is_computed_in_float32_and_rounded_once(emulation: None, name: str) -> None:
    assert len(FINITE) == 63_488
    assert differing((SUMS | OTHERS)[name]) == 0


@pytest.mark.parametrize("name", SUMS)
def test_a_cpu_rounds_the_number_first(name: str) -> None:
    """Negative control."""
    assert differing(SUMS[name]) > 900


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_gradients_and_other_dtypes_are_those_of_torch(emulation: None) -> None:
    leaf = torch.ones(3).half().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf - 0.1).sum(), leaf)
    assert gradient.tolist() == [1, 1, 1]
    assert (torch.ones(3).half() + torch.ones(3)).dtype is torch.float32
    assert (torch.ones(3, dtype=torch.int64) + 1.5).dtype is torch.float32
    assert (torch.ones(3).half() + 1j).dtype is torch.complex32
    assert (torch.ones(3) + 0.1).tolist() == [float(torch.tensor(1.0) + 0.1)] * 3
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(3, dtype=torch.int64).add_(leaf.detach(), alpha=0.5)
