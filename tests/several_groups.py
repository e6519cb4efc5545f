"""Attention in several groups, also of tiny batches."""

from functools import partial

import pytest

from ampft.fast.packing import install
from ampft.fast.packing.layout import pack_layout


@pytest.fixture(autouse=True)
def several_groups(monkeypatch):
    """Let groups cost so little that a few short sequences make even and uneven ones."""
    monkeypatch.setattr(install, "pack_layout", partial(pack_layout, group_cost=100.0))
