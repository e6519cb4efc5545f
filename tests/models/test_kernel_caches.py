"""What oneDNN and ideep may keep of kernels, where nearly every step brings new shapes."""

import os

import pytest
from tiny_text import tiny_task

from ampft.models.packing.install import CAPACITIES, limit_kernel_caches


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in CAPACITIES:
        monkeypatch.setenv(name, "")  # restored afterwards, also where a test sets it
        monkeypatch.delenv(name)


@pytest.mark.parametrize("remove_padding", [False, True])
def test_the_padding_free_path_alone_limits_them(tiny_bert, remove_padding):
    task = tiny_task(tiny_bert, train=8, remove_padding=remove_padding)
    assert task.load_model().padding_free == remove_padding
    found = {name: os.environ[name] for name in CAPACITIES if name in os.environ}
    assert found == (CAPACITIES if remove_padding else {})


def test_the_user_decides():
    environ = {"LRU_CACHE_CAPACITY": "7"}
    limit_kernel_caches(environ)
    assert environ == {**CAPACITIES, "LRU_CACHE_CAPACITY": "7"}
