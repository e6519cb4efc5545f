"""Every JSON of a run that this program reads, with one value changed and all hashes made anew."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from fuzzed_json import harm, sign, signed
from global_state import fresh_global_state
from safetensors.torch import load_file, save_file

from ampft.arguments import parse_classify_arguments
from ampft.comparison.analysis.loading import find_runs
from ampft.engine.checkpoints.store import (
    CONTENT_NAMES,
    DamagedCheckpoint,
    verified_history,
    verify,
)
from ampft.files import describe_file
from ampft.runs.checkpoint_content import read_saved_state, restore
from ampft.runs.prepare import prepare
from ampft.runs.resume import list_checkpoints
from ampft.runs.run_state import new_state
from ampft.runs.run_text import format_run

pytestmark = pytest.mark.slow

ENOUGH = 30  # refused changes of each file


@pytest.fixture(scope="module")
def run(train, tmp_path_factory) -> Path:
    """The folder of a finished run, with checkpoints after both of its steps."""
    folder = tmp_path_factory.mktemp("fuzzed") / "run"
    assert train(folder, checkpointing_steps="1") == 0
    return folder


@pytest.fixture
def copied(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def resumed(words, tmp_path, monkeypatch) -> Callable[[Path], None]:
    """Return a function that restores a checkpoint, and then makes an update."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    # Best weights need the folder of a run.
    monkeypatch.setattr("ampft.features.validations.link", lambda *_: None)
    monkeypatch.setattr("ampft.features.weights.private_file", lambda *_: None)
    with fresh_global_state():
        prepared = prepare(parse_classify_arguments([*words, str(tmp_path / "resumed")]))

        def resume(checkpoint: Path) -> None:
            manifest = verify(checkpoint)
            history = verified_history(checkpoint.parents[1] / "history.jsonl", manifest.history)
            state = new_state(replace(prepared, output_dir=tmp_path))
            schedule = copy.deepcopy(prepared.schedule.state_dict())
            groups = copy.deepcopy(prepared.optimizer.state_dict()["param_groups"])
            values = read_saved_state(checkpoint, state, history)
            restore(state, checkpoint, manifest, values, history)
            for parameter in prepared.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            prepared.optimizer.step()
            prepared.schedule.step()
            prepared.schedule.load_state_dict(schedule)
            prepared.optimizer.load_state_dict({"state": {}, "param_groups": groups})

        yield resume


def test_run_json(copied):
    path = copied / "run.json"

    def read() -> None:
        format_run(copied)
        find_runs([copied])

    refused, wrong = harm(
        path.read_text(), ["run.json"], lambda text: path.write_text(sign(text)), read
    )
    assert wrong == []
    assert refused > ENOUGH


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("simple_methods", 1, "metrics"), {}),
        (("served_back", "clients", 1, "difference"), -7.0),
        (("timings", "training_seconds"), "unknown"),
    ],
)
def test_a_report_is_printed_from_values_that_no_run_writes(copied, place, value):
    record = json.loads((copied / "run.json").read_text())
    part = record
    for key in place[:-1]:
        part = part[key]
    assert place[-1] in part
    part[place[-1]] = value
    (copied / "run.json").write_text(signed(record))
    assert "Simple methods on the same rows" in format_run(copied)


@pytest.mark.add_ons
@pytest.mark.parametrize("name", ["report.json", "history.jsonl"])
def test_a_file_in_the_record(copied, name):
    from ampft.lab.audit.run_files import history_rows

    path, record = copied / name, json.loads((copied / "run.json").read_text())
    lines = path.read_text().splitlines()
    original = lines[0] if name == "history.jsonl" else path.read_text()
    rest = "".join(f"{line}\n" for line in lines[1:]) if name == "history.jsonl" else ""

    def write(text: str) -> None:
        path.write_text(text + "\n" + rest, "utf-8")
        record["files"][name] = vars(describe_file(path))
        (copied / "run.json").write_text(signed(record))

    def read() -> None:
        format_run(copied)
        if name == "history.jsonl":
            history_rows(copied)

    refused, wrong = harm(original, [name], write, read)
    assert wrong == []
    assert refused > ENOUGH


def test_a_manifest(copied):
    path = copied / "checkpoints/step-2/MANIFEST.json"

    def read() -> None:
        manifest = verify(path.parent)
        verified_history(copied / "history.jsonl", manifest.history)
        list_checkpoints(copied)

    refused, wrong = harm(
        path.read_text(),
        ["MANIFEST.json", *CONTENT_NAMES, "history.jsonl"],
        lambda text: path.write_text(sign(text)),
        read,
    )
    assert wrong == []
    assert refused > ENOUGH


def test_the_state_of_a_checkpoint(copied, resumed):
    path = copied / "checkpoints/step-1/state.json"
    manifest = json.loads((path.parent / "MANIFEST.json").read_text())

    def write(text: str) -> None:
        path.write_text(text, "utf-8")
        manifest["files"][path.name] = vars(describe_file(path))
        (path.parent / "MANIFEST.json").write_text(signed(manifest))

    refused, wrong = harm(path.read_text(), ["state.json"], write, lambda: resumed(path.parent))
    assert wrong == []
    assert refused > ENOUGH


def bent(tensors: dict[str, torch.Tensor], name: str) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors with one of them missing, in other shapes and dtypes, or repeated."""
    tensor = tensors[name]
    rest = {key: value for key, value in tensors.items() if key != name}
    return {
        "missing": rest,
        "shape": {**rest, name: torch.zeros(7)},
        "empty": {**rest, name: torch.zeros(0)},
        "flat": {**rest, name: torch.zeros(tensor.numel() + 1)},
        "dtype": {**rest, name: tensor.to(torch.int64)},
        "half": {**rest, name: tensor.half()},
        "unknown": {**tensors, f"{name}x": tensor.clone()},
    }


@pytest.mark.parametrize("file", ["optimizer.safetensors", "model.safetensors"])
def test_tensors_of_another_shape_or_dtype_are_refused_before_they_are_loaded(
    copied, resumed, monkeypatch, file
):
    path = copied / "checkpoints/step-1" / file
    manifest = json.loads((path.parent / "MANIFEST.json").read_text())
    tensors = load_file(path)
    names = sorted(tensors)[::7]
    assert len(names) > 4
    for name in names:
        for kind, changed in bent(tensors, name).items():
            save_file(changed, path)
            manifest["files"][file] = vars(describe_file(path))
            (path.parent / "MANIFEST.json").write_text(signed(manifest))
            with (
                patch("ampft.runs.checkpoint_content.load_file", side_effect=AssertionError(kind)),
                pytest.raises(DamagedCheckpoint, match=rf"{file}: the file is damaged \({name}"),
            ):
                resumed(path.parent)
    save_file(tensors, path)
    manifest["files"][file] = vars(describe_file(path))
    (path.parent / "MANIFEST.json").write_text(signed(manifest))
    resumed(path.parent)


def test_a_reader_that_trusts_its_file_is_caught(tmp_path):
    """Negative control."""
    path = tmp_path / "a.json"

    def read() -> None:
        values = json.loads(path.read_text())
        sorted(values["steps"])[0] + values["parts"]["one"]

    original = json.dumps({"steps": [1, 2], "parts": {"one": 1}})
    _, wrong = harm(original, ["a.json"], path.write_text, read)
    assert {message.partition(": ")[2].partition(":")[0] for message in wrong} >= {
        "TypeError", "KeyError", "JSONDecodeError", "RecursionError",
    }  # fmt: skip
