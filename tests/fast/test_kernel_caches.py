"""Capacities of the kernel caches of oneDNN and ideep, for steps with ever new shapes."""

import os

import pytest
from tiny_text import tiny_task

from ampft.fast.packing.install import KERNEL_CACHE_CAPACITIES, limit_kernel_caches


@pytest.fixture(autouse=True)
def no_capacities_set(monkeypatch):
    for name in KERNEL_CACHE_CAPACITIES:
        monkeypatch.setenv(name, "")  # restored afterwards, also where a test sets it
        monkeypatch.delenv(name)


@pytest.mark.parametrize("remove_padding", [False, True])
def test_only_the_padding_free_path_limits_them(tiny_bert, remove_padding):
    task = tiny_task(tiny_bert, train=8, remove_padding=remove_padding)
    assert task.load_model().padding_free == remove_padding
    actual = {name: os.environ[name] for name in KERNEL_CACHE_CAPACITIES if name in os.environ}
    assert actual == (KERNEL_CACHE_CAPACITIES if remove_padding else {})


def test_values_set_by_the_user_are_kept():
    environ = {"LRU_CACHE_CAPACITY": "7"}
    limit_kernel_caches(environ)
    assert environ == {**KERNEL_CACHE_CAPACITIES, "LRU_CACHE_CAPACITY": "7"}
