"""run.json reads back, contains no secrets, and other files are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from fuzzed_json import signed

from ampft.errors import InputError
from ampft.exit_codes import run_main
from ampft.features.resources import PeakMemory, device_memory, process_memory
from ampft.files import hashed_text
from ampft.machine import resident_peak
from ampft.runs.folder import RunFolder
from ampft.runs.history import read_history
from ampft.runs.publishing import model_card
from ampft.runs.record import (
    STATUSES,
    RunRecord,
    StepIdsHash,
    ValidationPart,
    read_record,
    write_record,
)
from ampft.runs.redaction import REDACTED, redact_command
from ampft.runs.run_text import format_run
from ampft.text.json_io import json_text, json_values


@pytest.mark.parametrize("status", STATUSES)
def test_reads_back(tmp_path: Path, make_record, status: str):
    record = make_record(status=status)
    with RunFolder(tmp_path) as folder:
        write_record(folder, record)
    read = read_record(tmp_path)
    # The command line is a list in a run and a tuple when it is read.
    assert read == replace(record, command=tuple(record.command)) or read == record
    assert read.precision.resolved["compute_dtype"] == "float16"


def test_reads_a_record_without_the_newer_fields(tmp_path: Path, make_record):
    with RunFolder(tmp_path) as folder:
        path = write_record(folder, make_record())
    values = json.loads(path.read_text())
    for name in ("validations", "metrics_fp32"):
        del values[name]
    del values["model"]["perturbed"], values["model"]["padding_free"]
    for name in ("weights", "gradients", "optimizer_state", "activations", "rest"):
        del values["memory"][name]
    path.write_text(signed(values))
    read = read_record(tmp_path)
    assert read.validations == ()
    assert read.files == {}
    assert read.metrics_fp32 is None
    assert read.model.perturbed is False
    assert read.model.padding_free is None
    assert read.memory.weights is None


def test_validations_read_back(tmp_path: Path, make_record, make_report):
    metrics = make_report().metrics()
    parts = tuple(ValidationPart(epoch=n, step=7 * n, metrics=metrics) for n in (1, 2))
    undefined = replace(parts[1], metrics={"cohen_kappa": None})
    with RunFolder(tmp_path) as folder:
        path = write_record(folder, make_record(validations=(*parts, undefined)))
    written = json.loads(path.read_text())["validations"][0]
    assert (written["epoch"], written["step"]) == (1, 7)
    assert written["metrics"]["macro_f1"] == make_report().macro_f1
    assert read_record(tmp_path).validations == (*parts, undefined)


def test_an_unknown_status_is_a_bug(make_record):
    with pytest.raises(ValueError, match="status must be one of"):
        make_record(status="done")


def test_a_folder_without_a_record_is_refused(tmp_path: Path, make_record):
    with pytest.raises(InputError, match=r"not the folder of a run, because it has no run\.json"):
        read_record(tmp_path)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(InputError, match=r"run\.json: the record of the run is damaged"):
        read_record(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 99}')
    with pytest.raises(
        InputError, match="has schema version 99, but this version of ampft reads 3"
    ):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("steps", "total"),
        ("steps", "skipped"),
        ("model", "parameters"),
        ("topology", "cpu_threads"),
    ],
)
def test_a_negative_number_is_refused(tmp_path: Path, make_record, part, name):
    values = json_values(asdict(make_record()))
    values[part][name] = 4
    (tmp_path / "run.json").write_text(hashed_text(values))
    assert getattr(getattr(read_record(tmp_path), part), name) == 4  # the negative control
    values[part][name] = -4
    (tmp_path / "run.json").write_text(hashed_text(values))
    with pytest.raises(InputError, match=rf"run\.json\.{part}\.{name} is '-4', but must be at l"):
        read_record(tmp_path)


def test_secrets_in_arguments_are_redacted(make_record):
    record: RunRecord = make_record(
        arguments={
            "hub_token": "canary-1",
            "api_key": "canary-2",
            "tokenizer_name": "kept",
            "max_tokens": 5,
            "hub_password": None,
            "train_file": "https://me:canary-3@host.example/a.csv",
        },
        command=[
            "/home/someone/recipes/classify.py",
            "--hub_token",
            "canary-4",
            "--api-key=canary-5",
        ],
    )
    assert record.arguments == {
        "hub_token": REDACTED,
        "api_key": REDACTED,
        "tokenizer_name": "kept",
        "max_tokens": 5,
        "hub_password": None,
        "train_file": "https://host.example/a.csv",
    }
    assert record.command == ["classify.py", "--hub_token", REDACTED, f"--api-key={REDACTED}"]
    assert redact_command([]) == []


URL = "https://me:canary@host.example/a.csv?X-Amz-Signature=canary&x=1&access_token=canary#rows"
CLEAN_URL = "https://host.example/a.csv?X-Amz-Signature=REDACTED&x=1&access_token=REDACTED#rows"


def test_credentials_in_urls_are_in_no_file_and_no_message(
    tmp_path: Path, make_record, make_report, capsys
):
    record: RunRecord = make_record()
    data = replace(record.data, name=URL, notes=(f"read from {URL}",))
    record = replace(
        record,
        arguments={"train_file": URL},
        command=["classify.py", "--train_file", URL, f"--test_file={URL}"],
        data=data,
        model=replace(record.model, name=URL),
        reason=f"OSError: {URL}",
    )
    with RunFolder(tmp_path) as folder:
        written = write_record(folder, record).read_text()
    assert record.arguments == {"train_file": CLEAN_URL}
    for text in (written, model_card(record, make_report())):
        assert "canary" not in text

    def refuse() -> None:
        raise InputError(f"--train_file {Path(URL)}: this is {URL}")

    assert run_main(refuse) == 2
    assert "canary" not in capsys.readouterr().err


def test_no_secret_of_the_environment_reaches_the_folder(
    tmp_path: Path, make_record, make_report, monkeypatch: pytest.MonkeyPatch
):
    canary = "canary-7f3a9c"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "ANYTHING"):
        monkeypatch.setenv(name, canary)
    record, report = make_record(), make_report()
    with RunFolder(tmp_path) as folder:
        write_record(folder, record)
        folder.write_text("report.json", json_text(report.as_dict()))
        folder.write_text("report.txt", report.text())
        folder.write_text("README.md", model_card(record, report))
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(contents) == 4
    assert not any(canary.encode() in content for content in contents)
    assert canary not in format_run(tmp_path)
    assert os.environ["HF_TOKEN"] == canary


def test_the_hash_of_ids_ignores_only_their_order_within_a_step():
    def digest(*steps: list[int]) -> str:
        ids = StepIdsHash()
        for step in steps:
            ids.update(np.array(step))
        return ids.hexdigest()

    assert digest([3, 1], [2]) == digest([1, 3], [2])
    different = [digest([1, 3], [2]), digest([1, 2], [3]), digest([1], [2, 3]), digest([2], [1, 3])]
    assert len(set(different)) == 4


def test_history_ignores_an_incomplete_last_line(tmp_path: Path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_history(path) == ({"step": 1}, {"step": 2})
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(InputError, match=r"line 2: Unterminated string"):
        read_history(path)
    path.write_text("[]\n")
    with pytest.raises(InputError, match=r"line 1: it contains a list, not an object"):
        read_history(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_history(tmp_path / "absent")


GROW = """
from ampft.machine import resident_peak
from ampft.features.resources import process_memory
before = resident_peak()
block = bytearray(64 * 2**20)
block[::4096] = b"x" * len(block[::4096])
memory = process_memory(before)
del block
assert abs(process_memory(before).peak - memory.peak) < 2**20
print(memory.peak - memory.baseline)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_memory_is_that_of_a_fresh_process():
    ballast = bytearray(200 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    done = subprocess.run(
        [sys.executable, "-c", GROW], capture_output=True, text=True, check=True, timeout=60
    )
    # 64 MiB and a little for the interpreter, without the ballast of the parent.
    assert 60 * 2**20 < int(done.stdout) < 90 * 2**20


def test_memory_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("ampft.machine._STATUS", tmp_path / "absent")
    assert resident_peak() is None
    memory = process_memory(None)
    assert memory.peak is None
    assert "not measured" in memory.protocol


def statistics(allocated, reserved):
    return {"allocated_bytes.all.peak": allocated, "reserved_bytes.all.peak": reserved}


def test_device_memory_keeps_both_numbers():
    assert device_memory({}).peak == 0  # before the device is first used
    memory = device_memory(statistics(5, 7))
    assert (memory.peak, memory.reserved, memory.baseline) == (5, 7, None)


def test_the_parts_of_the_peak_add_up():
    parts = {"weights": 10, "gradients": 10, "optimizer_state": 20, "activations": 5}
    memory = replace(process_memory(None), peak=100, baseline=30).split(**parts)
    assert (memory.peak, memory.rest) == (100, 25)
    assert memory.rest + memory.baseline + sum(parts.values()) == memory.peak
    assert "rest: 0" not in memory.protocol
    on_gpu = device_memory(statistics(100, 200)).split(**parts)
    assert on_gpu.rest == 55
    short = device_memory(statistics(40, 200)).split(**parts)
    assert short.rest == 0
    assert "rest: 0, because the parts exceed the peak by 5 bytes" in short.protocol
    assert PeakMemory(None, None, None, "not measured").split(**parts).rest is None


def test_the_record_contains_no_nan(tmp_path: Path, make_record):
    with RunFolder(tmp_path) as folder:
        path = write_record(folder, make_record(metrics={"cohen_kappa": float("nan")}))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["metrics"] == {
        "cohen_kappa": None
    }
