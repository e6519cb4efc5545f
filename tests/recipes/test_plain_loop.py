"""plain_loop.py in every precision that a CPU supports, and in one that it does not."""

from __future__ import annotations

import re
import sys

import pytest
from running import call, succeeded

pytestmark = pytest.mark.slow

PLAIN_LOOP = "recipes/plain_loop.py"


@pytest.mark.parametrize(
    ("mode", "execution"),
    [
        ("fp32", "native"),
        ("bf16", "native|emulated"),
        ("bf16-true", "native|emulated"),
        ("fp16", "emulated"),
    ],
)
def test_it_learns_digits(mode, execution):
    done = succeeded(call(sys.executable, PLAIN_LOOP, mode, CUDA_VISIBLE_DEVICES=""))
    *report, last = done.stdout.splitlines()
    assert re.fullmatch(rf"{mode}, ({execution})", last)
    (accuracy,) = [line.split() for line in report if line.strip().startswith("accuracy")]
    assert float(accuracy[1]) > 0.85
    assert int(accuracy[2]) == 400
    assert done.stderr == ""


def test_it_refuses_a_mode_that_a_cpu_does_not_support():
    done = call(sys.executable, PLAIN_LOOP, "fp8", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"error: .*fp8.*\n", done.stderr)


def test_it_refuses_a_mode_that_needs_adamw():
    done = call(sys.executable, PLAIN_LOOP, "bf16-true-kahan", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr == (
        "error: bf16-true-kahan: needs AdamW, but this loop uses SGD. Use bf16-true.\n"
    )
