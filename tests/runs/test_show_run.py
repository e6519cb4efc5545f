"""`ampft report` prints a run, however it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ampft.data.request import IN_MEMORY
from ampft.errors import InputError
from ampft.features.resources import PeakMemory
from ampft.runs.folder import RunFolder
from ampft.runs.record import ResumePart, StepsPart, write_record
from ampft.runs.run_text import format_run
from ampft.text.json_io import json_text
from ampft.text.numbers import byte_size, byte_sizes, duration, in_epochs


def test_prints_the_plan_the_report_and_the_closing_line(tmp_path: Path, make_record, make_report):
    report = make_report()
    with RunFolder(tmp_path) as folder:
        write_record(folder, make_record())
        folder.write_text("report.json", json_text(report.as_dict()))
    text = format_run(tmp_path)
    assert report.text() in text
    assert "precision  fp16, emulated: this CPU has no AVX512-FP16" in text
    assert "executed   projections float16 x float16 -> float16" in text
    assert "steps      558 of 560 applied, 2 skipped" in text
    assert "data       reviews.csv: train 2,227, test 40; 3 classes" in text
    assert text.splitlines()[-1] == (
        f"accuracy {report.accuracy:.4f}, macro F1 {report.macro_f1:.4f}, time 2 min 05 s, "
        "peak memory 2.00 GiB"
    )


def test_prints_the_parts_of_the_peak(tmp_path: Path, make_record):
    memory = PeakMemory(peak=2**30, baseline=2**28, reserved=None, protocol="VmHWM").split(
        weights=2**26, gradients=2**26, optimizer_state=2**27, activations=2**27
    )
    with RunFolder(tmp_path) as folder:
        write_record(folder, make_record(memory=memory))
    assert (
        "memory     1.00 GiB peak: weights 64 MiB, gradients 64 MiB, optimizer state 128 MiB, "
        "activations 128 MiB, rest 384 MiB, baseline 256 MiB\n"
    ) in format_run(tmp_path)


def test_a_placebo_is_named(tmp_path: Path, make_record):
    record = make_record()
    with RunFolder(tmp_path) as folder:
        write_record(folder, record)
        assert "placebo" not in format_run(tmp_path)
        write_record(folder, replace(record, model=replace(record.model, perturbed=True)))
    assert "placebo: each initial weight changed by one unit in the last place" in format_run(
        tmp_path
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("diverged", "diverged: its weights and figures are not results (loss is NaN)"),
        ("contradicted", "stopped: what ran was not what was requested"),
        ("interrupted", "interrupted"),
        ("running", "running, or killed"),
    ],
)
def test_shows_how_an_unfinished_run_ended(tmp_path: Path, make_record, status: str, words: str):
    with RunFolder(tmp_path) as folder:
        reason = "loss is NaN" if status == "diverged" else None
        record = make_record(status=status, reason=reason, best=None, memory=None, timings={})
        write_record(folder, record)
    assert format_run(str(tmp_path)).splitlines()[-1].startswith(words)


def test_a_killed_run_shows_the_steps_of_its_history(tmp_path: Path, make_record):
    with RunFolder(tmp_path) as folder:
        write_record(folder, make_record(status="running", steps=StepsPart(total=105)))
        rows = '{"step": 1, "skipped": true}\n{"step": 2, "skipped": false}\n{"st'
        (folder / "history.jsonl").write_text(rows)
    assert "steps      1 of 105 applied, 1 skipped" in format_run(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, make_record):
    with pytest.raises(InputError, match=r"is not a folder. Give the --output_dir of a run"):
        format_run(tmp_path / "absent")
    with pytest.raises(InputError, match=r"it has no run\.json"):
        format_run(tmp_path)
    with RunFolder(tmp_path) as folder:
        write_record(folder, make_record())
        folder.write_text("report.json", json_text({"accuracy": 1}))
    with pytest.raises(InputError, match="is not the report of a run"):
        format_run(tmp_path)


@pytest.mark.parametrize(
    ("steps", "per_epoch", "text"),
    [
        (3, 103, "of the 103 of one epoch"),
        (103, 103, "= 1 epoch x 103"),
        (515, 103, "= 5 epochs x 103"),
        (150, 103, "= about 1.5 epochs x 103"),
    ],
)
def test_steps_in_epochs_are_readable(steps, per_epoch, text):
    assert in_epochs(steps, per_epoch) == text


def test_durations_and_sizes_are_readable():
    assert [duration(s) for s in (9.44, 59.9, 59.96, 125.2, 3599.6, 7620)] == [
        "9.4 s", "59.9 s", "1 min 00 s", "2 min 05 s", "1 h 00 min", "2 h 07 min",
    ]  # fmt: skip
    assert [byte_size(n) for n in (2**29, 2**31)] == ["512 MiB", "2.00 GiB"]
    assert byte_sizes(2**29, 2**31) == ["512 MiB", "2.00 GiB"]
    assert byte_sizes(2**20 + 2**18, 2**20) == ["1.2 MiB", "1.0 MiB"]
    assert byte_sizes(2**20 + 1, 2**20) == ["1,048,577 bytes", "1,048,576 bytes"]
    assert byte_sizes(2**20, 2**20) == ["1 MiB", "1 MiB"]


def test_chance_and_warnings_stand_above_the_closing_line(tmp_path: Path, make_record):
    record = make_record(
        metrics_chance={"accuracy": 0.25, "macro_f1": 0.1},
        warnings={"one_prediction": "the model predicts 'a' for every example."},
    )
    with RunFolder(tmp_path) as folder:
        write_record(folder, record)
    chance, warning, _ = format_run(tmp_path).splitlines()[-3:]
    assert chance == "chance: accuracy 0.2500, macro F1 0.1000, from the class frequencies of train"
    assert warning == "warning: the model predicts 'a' for every example."


def test_shows_where_a_run_was_resumed_and_what_changed(tmp_path: Path, make_record):
    parts = (
        ResumePart(checkpoint="step-4", step=4, epoch=1, resumed="now"),
        ResumePart(
            checkpoint="step-9",
            step=9,
            epoch=2,
            resumed="now",
            topology={"processes": (1, 2)},
            environment={"CPU": ("a\u202e", "b")},
        ),
    )
    with RunFolder(tmp_path) as folder:
        write_record(folder, make_record(resumes=parts))
    assert (
        "resumed    2 times, after step 4, 9; from step 9 on, processes 2, before 1; from step 9 "
        "on, CPU b, before a\\u202e\n"
    ) in format_run(tmp_path)


@pytest.mark.parametrize(
    ("command", "processes", "status", "expected"),
    [
        (
            ("ampft", "train", "--train_file", "my data.csv", "--output_dir", "old"), 1, "trained",
            "complete   ampft train --train_file 'my data.csv' --mixed_precision fp16 "
            "--cpu_threads 2 --output_dir {folder}",
        ),
        (
            ("__main__.py", "train", "--cpu_threads", "1", "--mixed_precision", "fp16"), 1,
            "preempted",
            "continue   python -m ampft train --cpu_threads 1 --mixed_precision fp16 "
            "--output_dir {folder} --resume_from_checkpoint latest",
        ),
        (
            ("classify.py", "--cpu_threads=1", "--mixed_precision=fp16"), 2, "trained",
            "complete   torchrun --nproc_per_node 2 -m ampft train --cpu_threads=1 "
            "--mixed_precision=fp16 --output_dir {folder}",
        ),
        (
            ("my recipe.py", "--cpu_threads=1", "--mixed_precision=fp16"), 1, "trained",
            "complete   python 'my recipe.py' --cpu_threads=1 --mixed_precision=fp16 "
            "--output_dir {folder}",
        ),
    ],
)  # fmt: skip
def test_the_command_that_completes_or_continues_a_run(
    command, processes, status, expected, tmp_path, make_record
):
    record = make_record()
    topology = replace(record.topology, num_processes=processes, cpu_threads=2, device="cpu")
    with RunFolder(tmp_path) as folder:
        write_record(folder, replace(record, command=command, topology=topology, status=status))
    assert format_run(tmp_path).splitlines()[-1] == expected.format(folder=tmp_path)


def test_a_run_on_data_in_memory_is_completed_by_its_call(tmp_path, make_record):
    record = make_record()
    data = replace(record.data, name=IN_MEMORY)
    with RunFolder(tmp_path) as folder:
        write_record(folder, replace(record, data=data, status="trained"))
    assert format_run(tmp_path).splitlines()[-1] == (
        f"complete   repeat the call with the same data, and output_dir='{tmp_path}'"
    )


def test_a_command_with_a_secret_says_so(tmp_path, make_record):
    token = f"hf_{'a1' * 20}"
    record = replace(make_record(), command=("ampft", "train", "--train_file", f"{token}.csv"))
    with RunFolder(tmp_path) as folder:
        write_record(folder, replace(record, status="trained"))
    *_, command, note = format_run(tmp_path).splitlines()
    assert "--train_file REDACTED.csv" in command
    assert note == "           with the secrets in place of REDACTED"
