"""The number of CPU threads of a process."""

import os
import subprocess
import sys

import pytest
import torch

from ampft.engine import threads
from ampft.engine.threads import restore_cpu_threads, usable_cores
from ampft.errors import InputError

LAUNCHED = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_MODE": "default"}


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("thread_count")
def test_a_single_launched_process_uses_all_cores(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    monkeypatch.setattr(threads, "launcher_environment", dict)
    launched = LAUNCHED | {"OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    assert restore_cpu_threads(None, launched, num_processes=2) == 1
    assert restore_cpu_threads(None, {"OMP_NUM_THREADS": "1"}) == 1
    assert restore_cpu_threads(1, launched) == 1
    assert restore_cpu_threads(None, launched) == torch.get_num_threads() == 2


LAUNCH = """
import os, subprocess, sys
child = os.environ | {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_MODE": "default"}
script = (
    "import torch; from ampft.engine import threads; threads.usable_cores = lambda: 2; "
    "print(threads.restore_cpu_threads(None))"
)
child["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
subprocess.run([sys.executable, "-c", script], env=child, check=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("users", "threads"), [({}, "2"), ({"OMP_NUM_THREADS": "1"}, "1")])
def test_a_thread_limit_of_the_user_is_respected_under_a_launcher(users, threads):
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH],
        env=inherited | users, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == threads


@pytest.mark.usefixtures("thread_count")
def test_requested_threads_are_set():
    assert restore_cpu_threads(3, {}) == torch.get_num_threads() == 3
    with pytest.raises(InputError, match="--cpu_threads: received 0; it must be at least 1"):
        restore_cpu_threads(0, {})


@pytest.mark.parametrize(
    ("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), (None, 8)]
)
def test_usable_cores_are_limited_by_the_control_group(monkeypatch, tmp_path, quota, cores):
    limit = tmp_path / "cpu.max"
    if quota is not None:
        limit.write_text(quota)
    monkeypatch.setattr(threads, "_CGROUP_LIMIT", limit)
    monkeypatch.setattr(threads.psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert usable_cores() == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5}, raising=False)
    assert usable_cores() == 1


def test_more_threads_than_a_machine_can_create():
    with pytest.raises(InputError, match=r"--cpu_threads 100000: this machine has \d+ cores"):
        restore_cpu_threads(100_000, num_processes=1)
