"""A training that is killed at random and continued ends with the weights of an undisturbed one."""

from __future__ import annotations

import json
import sys

import pytest
from running import call, succeeded

pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_six_kills():
    """`python tests/soak.py` has 200; docs/audit.md has its result."""
    done = succeeded(call(sys.executable, "tests/soak.py", "--kills", 6, "--seed", 2))
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 6
    assert result["trainings"] >= 1
    print(done.stdout)
