"""Memory available to a process, from both versions of control groups; unsafe versions."""

import resource
from importlib import metadata

import psutil
import pytest

from ampft import machine
from ampft.exit_codes import run_main

GIB = 2**30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """The folder for the control groups of a machine with 64 GiB available."""
    monkeypatch.setattr(machine, "_CONTROL_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_MEMBERSHIP", tmp_path / "membership")
    available = psutil.virtual_memory()._replace(available=64 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    return tmp_path


def write_group(folder, limit, used, files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files[0]).write_text(f"{limit}\n")
    (folder / files[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"cache 1\n{files[2]} {GIB}\n")


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_version_2_considers_every_parent_group(groups):
    (groups / "membership").write_text("0::/user/job\n")
    write_group(groups / "cgroup/user/job", "max", 3 * GIB, V2)
    assert machine.available_memory_bytes() == 64 * GIB
    write_group(groups / "cgroup/user", 10 * GIB, 4 * GIB, V2)
    assert (
        machine.available_memory_bytes() == (10 - 4 + 1) * GIB
    )  # a GiB of cached files can be dropped
    assert machine.available_memory_bytes(processes=2) == (10 - 4 + 1) * GIB // 2
    write_group(groups / "cgroup", 5 * GIB, 4 * GIB, V2)
    assert machine.available_memory_bytes() == 2 * GIB


def test_version_1_in_a_container_with_the_path_of_the_host(groups):
    (groups / "membership").write_text("9:name=systemd:/\n4:cpu,memory:/docker/1234\n0::/\n")
    assert machine.available_memory_bytes() == 64 * GIB
    write_group(groups / "cgroup/memory", 8 * GIB, 6 * GIB, V1)
    assert machine.available_memory_bytes() == 3 * GIB
    write_group(groups / "cgroup/memory", 2**63 - 4096, 6 * GIB, V1)  # no limit
    assert machine.available_memory_bytes() == 64 * GIB


def test_a_group_that_is_full_leaves_nothing(groups):
    (groups / "membership").write_text("0::/\n")
    write_group(groups / "cgroup", 2 * GIB, 4 * GIB, V2)
    assert machine.available_memory_bytes() == 0


def test_the_address_space_is_limited_per_process(groups, monkeypatch):
    used = machine.status_bytes("VmSize")
    limits = {resource.RLIMIT_AS: (used + GIB, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert 0.5 * GIB < machine.available_memory_bytes(processes=4) <= GIB


def test_this_machine_has_memory_available():
    assert 0 < machine.available_memory_bytes() < psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("name", "version", "refused"),
    [
        ("torch", "2.9.1+cu128", True),
        ("torch", "2.10.1", True),
        ("torch", "2.11.0a0+b4e4ee81d3.nv26.02", False),
        ("torch", "2.11", False),
        ("transformers", "5.4.0", True),
        ("transformers", "5.5.0", False),
    ],
)
def test_old_versions_are_refused_at_the_start(monkeypatch, capsys, name, version, refused):
    installed = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda asked: version if asked == name else installed(asked)
    )
    started = []
    assert run_main(lambda: started.append(True)) == (2 if refused else 0)
    assert bool(started) != refused
    message = f"error: {name} {version} is installed, and versions before"
    assert (message in capsys.readouterr().err) == refused
