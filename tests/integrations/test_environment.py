"""The output of `ampft env`."""

import getpass
import json
import math
import platform
from pathlib import Path

import pytest
import torch

from ampft.integrations.environment import amp_entry_points, collect_environment, format_environment
from ampft.precision import matrix_rate
from ampft.precision.modes import FORMATS, MODES


@pytest.fixture(scope="module")
def environment():
    """The environment, measured with products that are too small to be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_rate, "_SIZES", (64,))
        return collect_environment()


def test_it_is_json(environment):
    assert json.loads(json.dumps(environment, allow_nan=False)) == environment


def test_versions_and_devices_are_there(environment):
    assert environment["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["versions"]["python"] == platform.python_version()
    assert environment["devices"][0]["type"] == "cpu"
    assert environment["devices"][0]["threads"] == torch.get_num_threads()


@pytest.mark.parametrize(
    ("threads", "cores", "said"),
    [(1, 2, "2 physical cores, 1 thread,"), (4, 1, "1 physical core, 4 threads,")],
)
def test_one_of_something_is_not_said_as_several(environment, threads, cores, said):
    device = {**environment["devices"][0], "threads": threads, "physical_cores": cores}
    text = format_environment({**environment, "devices": [device]})
    assert f", {said}" in " ".join(text.split())


def test_each_mode_has_a_status_on_each_device(environment):
    assert set(environment["modes"]) == {device["type"] for device in environment["devices"]}
    for entries in environment["modes"].values():
        assert tuple(entry["mode"] for entry in entries) == MODES


def test_products_are_measured_per_dtype(environment):
    measured = {rate["dtype"] for rate in environment["matrix_products"] if rate["device"] == "cpu"}
    assert measured == {
        *("float32", "bfloat16", "bfloat16 (emulated)"),
        *("float16", "float16 (emulated)"),
    }
    assert all(rate["gflops"] > 0 for rate in environment["matrix_products"])


def test_measuring_can_be_skipped():
    environment = collect_environment(measure=False)
    assert environment["matrix_products"] == []
    assert "not measured" in format_environment(environment)


def test_the_text_fits_a_terminal_and_has_all_sections(environment):
    text = format_environment(environment)
    assert max(len(line) for line in text.splitlines()) <= 96
    assert not any(line.endswith(" ") for line in text.splitlines())
    for expected in ("Versions", "Modes on cpu", "AVX512", "GFLOP/s", "65504", "torch.cuda.amp"):
        if expected != "AVX512" or platform.machine() in ("x86_64", "AMD64"):
            assert expected in text


def test_it_explains_cannot_import_name_amp(environment):
    text = format_environment(environment)
    assert "cannot import name 'amp'" in text
    assert "from torch.amp import autocast, GradScaler" in " ".join(text.split())


def test_names_and_paths_of_this_machine_are_not_revealed(environment):
    text = json.dumps(environment) + format_environment(environment)
    assert str(Path.home()) not in text.replace("//", "") or Path.home() == Path("/")
    for private in (platform.node(), getpass.getuser()):
        if len(private) > 4:
            assert private not in text


# Entry points


def test_entry_points_have_the_status_reported_by_torch():
    status = {entry["name"]: entry["status"] for entry in amp_entry_points()}
    assert status["torch.amp.autocast"] == status["torch.amp.GradScaler"] == "present"
    assert status["torch.cuda.amp.autocast"] == status["torch.cpu.amp.autocast"] == "deprecated"


def test_deprecated_entry_points_warn_and_current_calls_do_not():
    with pytest.warns(FutureWarning, match=r"torch\.cpu\.amp\.autocast.* is deprecated"):
        torch.cpu.amp.autocast()
    entry_points = amp_entry_points()
    calls = {e["call"] for e in entry_points if e["name"].startswith("torch.cpu")}
    assert calls
    for call in calls:
        eval(call, {"torch": torch})


def test_an_absent_entry_point_is_absent(monkeypatch):
    monkeypatch.delattr(torch.amp, "GradScaler")
    status = {entry["name"]: entry["status"] for entry in amp_entry_points()}
    assert status["torch.amp.GradScaler"] == "absent"


# Ranges


def test_formats_are_those_of_torch():
    named = [entry for entry in FORMATS if entry.name != "tf32"]
    assert len(named) == 5
    for entry in named:
        info = torch.finfo(getattr(torch, entry.name))
        values = (entry.bits, entry.largest, entry.smallest_normal, entry.epsilon)
        assert values == (info.bits, info.max, info.smallest_normal, info.eps)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_nothing_lies_below_the_smallest_subnormal(name):
    entry = next(entry for entry in FORMATS if entry.name == name)
    dtype = getattr(torch, name)
    smallest = torch.tensor(entry.smallest_subnormal, dtype=torch.float64).to(dtype)
    assert smallest.double().item() == entry.smallest_subnormal
    assert torch.tensor(entry.smallest_subnormal / 2, dtype=torch.float64).to(dtype).item() == 0


def test_tf32_has_the_range_of_float32_and_the_fraction_of_float16():
    by_name = {entry.name: entry for entry in FORMATS}
    tf32 = by_name["tf32"]
    assert tf32.bits == 19
    assert tf32.smallest_normal == by_name["float32"].smallest_normal
    assert tf32.epsilon == by_name["float16"].epsilon
    assert tf32.largest < by_name["float32"].largest < math.inf
