"""plain_loop.py in every precision that a CPU supports, and in one that it does not."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from running import call, call_here, succeeded

from ampft.precision.resolve import resolve

PLAIN_LOOP = "recipes/plain_loop.py"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "bf16", "bf16-true", "fp16"])
def test_it_learns_digits(mode):
    done = succeeded(call_here(PLAIN_LOOP, mode))
    *report, last = done.stdout.splitlines()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert last == f"{mode}, {resolve(mode, device).execution}"
    (accuracy,) = [line.split() for line in report if line.strip().startswith("accuracy")]
    assert float(accuracy[1]) > 0.85
    assert int(accuracy[2]) == 400
    assert done.stderr == ""


@pytest.mark.slow
def test_it_refuses_a_mode_that_a_cpu_does_not_support():
    done = call(sys.executable, PLAIN_LOOP, "fp8", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: .*fp8.*\n", done.stderr)


def test_it_refuses_a_mode_that_needs_adamw():
    done = call_here(PLAIN_LOOP, "bf16-true-kahan")
    assert done.returncode == 2
    assert done.stderr == (
        "error: bf16-true-kahan needs AdamW, but this loop uses SGD. Use bf16-true.\n"
    )
