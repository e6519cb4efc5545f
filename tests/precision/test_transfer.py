"""Copies to a device wait, except on CUDA, where they are safe without."""

from __future__ import annotations

import ast

import pytest
import torch
from running import REPOSITORY

from ampft.precision.transfer import to_device

HOME = REPOSITORY / "ampft/precision/transfer.py"


class Recorded(torch.Tensor):
    """A tensor that says how it would be moved, instead of being moved."""

    def to(self, *args, **kwargs):
        return args, kwargs


@pytest.mark.parametrize(("device", "waits"), [("cuda", False), ("mps", True), ("xpu", True)])
def test_only_cuda_does_not_wait(device, waits):
    tensor, device = torch.zeros(2).as_subclass(Recorded), torch.device(device)
    assert to_device(tensor, device) == ((device, None), {"non_blocking": not waits})


def test_the_dtype_is_converted():
    assert to_device(torch.ones(2), torch.device("cpu"), torch.float64).dtype == torch.float64
    assert to_device(torch.ones(2), torch.device("cpu")).dtype == torch.float32


def arguments_named_non_blocking(source: str) -> int:
    return sum(n.arg == "non_blocking" for n in ast.walk(ast.parse(source))
               if isinstance(n, ast.keyword))  # fmt: skip


@pytest.mark.slow
def test_no_other_copy_decides_for_itself():
    assert arguments_named_non_blocking("x.to(device, non_blocking=True)") == 1
    files = [*(REPOSITORY / "ampft").rglob("*.py"), *(REPOSITORY / "recipes").rglob("*.py")]
    assert len(files) > 100
    found = [file for file in files if arguments_named_non_blocking(file.read_text())]
    assert found == [HOME]
