"""Whatever watches operators lets every program pass, with the same result."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ampft.checks.value_ranges import _Ranges
from ampft.export.int8 import Int8ProductCounter
from ampft.fast.graphs import CaptureCheck
from ampft.lab.doctor.ranges import RangeRecorder
from ampft.lab.doctor.watch import OperationWatch
from ampft.precision.accelerator import numerics
from ampft.precision.executed import ProductRecorder
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
pytestmark = pytest.mark.add_ons


OBSERVERS = {
    "recorder": lambda model: ProductRecorder(resolve("fp32", CPU)),
    "capture": lambda model: CaptureCheck(CPU),
    "doctor": OperationWatch,
    "int8": lambda model: Int8ProductCounter(),
    "emulated fp16": lambda model: numerics(resolve("fp16", CPU)),
}


def convolution_backward(mask):
    torch.manual_seed(0)
    shapes = (1, 2, 4, 4), (1, 3, 6, 6), (2, 3, 3, 3)
    tensors = [torch.randn(shape) for shape in shapes]
    settings = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    return torch.ops.aten.convolution_backward(*tensors, *settings)


def attention_backward():
    """Only the values need a gradient, so that others are undefined."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 4, 8)
    v = torch.randn(1, 2, 4, 8, requires_grad=True)
    nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()
    return v.grad


def unused_branch():
    """One of two results is unused, and its gradient undefined."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    used, _ = nn.LSTM(4, 5, batch_first=True)(x[None])
    first, _ = torch.split(used, 2, dim=-1)[:2]
    first.sum().backward()
    return x.grad


def in_place_list():
    tensors = [torch.ones(2), torch.zeros(0), torch.full((3,), 2.0)]
    torch._foreach_mul_(tensors, 3.0)
    return tensors


PROGRAMS = {
    "no gradient at all": partial(convolution_backward, [False, False, False]),
    "one gradient": partial(convolution_backward, [False, True, False]),
    "undefined in attention": attention_backward,
    "unused branch": unused_branch,
    "no rows": lambda: torch.zeros(0, 4) @ torch.ones(4, 3),
    "no inner size": lambda: torch.zeros(2, 0) @ torch.ones(0, 3),
    "no batch": lambda: torch.zeros(0, 2, 4) @ torch.ones(0, 4, 3),
    "nested": lambda: torch.ops.aten.split(torch.arange(6.0), 2),
    "list in place": in_place_list,
    "truth": lambda: torch.equal(torch.ones(2), torch.ones(2)),
    "scalar": lambda: torch.ones(()) * 2,
    "complex": lambda: torch.ones(2, dtype=torch.complex64).abs(),
    "integers": lambda: torch.arange(4).view(2, 2) @ torch.arange(4).view(2, 2),
    "sparse": lambda: torch.eye(3).to_sparse() @ torch.ones(3, 2),
}


def values(result):
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result)


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_observer_changes_nothing(observer, program):
    if (observer, program) == ("capture", "truth"):
        pytest.skip("a capture cannot contain what the host reads")
    expected = values(PROGRAMS[program]())
    state = torch.is_autocast_enabled("cpu"), torch.get_default_dtype(), torch.is_grad_enabled()
    with OBSERVERS[observer](nn.Linear(2, 2)) or nullcontext():
        found = values(PROGRAMS[program]())
    assert state == (
        torch.is_autocast_enabled("cpu"), torch.get_default_dtype(), torch.is_grad_enabled()
    )  # fmt: skip
    pairs = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert pairs
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        else:
            assert one == other


class Unusual(nn.Module):
    """Returns more than a tensor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, mask):
        y = (mask @ x) * self.weight
        return {
            "y": y,
            "parts": [None, 3, "text", (y[:0], torch.arange(2))],
            "unused": y.sum(),
            "mask": mask,
        }


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Unusual()

    def forward(self, x):
        return self.layer(x, torch.eye(2).to_sparse())


@contextmanager
def watched(model):
    ranges = _Ranges(model, torch.float32)
    with ranges.hooked():
        yield
    assert ranges.table().shape == (1, 4)


@pytest.mark.parametrize("observer", [watched, RangeRecorder, OperationWatch])
def test_an_observer_of_modules_lets_every_result_pass(observer):
    torch.manual_seed(0)
    x, found = torch.randn(2, 3), []
    for observed in (nullcontext, observer):
        model = Outer()
        with observed(model) if observed is observer else nullcontext():
            result = model(x)
            result["y"].square().sum().backward()
        found.append((result, model.layer.weight.grad))
    (expected, gradient), (result, other) = found
    assert torch.equal(gradient, other)
    assert torch.equal(result["y"], expected["y"])
    assert result["parts"][:3] == [None, 3, "text"]
    assert result["parts"][3][0].shape == (0, 3)
    assert result["mask"].is_sparse
