"""On a busy machine, threads that wait for each other sleep; the user's choice is kept."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ampft.runs import start
from ampft.runs.start import let_waiting_threads_sleep

VARIABLES = (
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "WORLD_SIZE", "OMP_NUM_THREADS"),
    "ACCELERATE_DYNAMO_MODE",
)


def asked(monkeypatch, *, percent, cores, threads, **environ):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(start.psutil, "cpu_percent", lambda seconds: percent)
    monkeypatch.setattr(start.psutil, "cpu_count", lambda logical=True: cores)
    monkeypatch.setattr(start.os, "environ", dict(start.os.environ))
    note = let_waiting_threads_sleep(threads)
    return note, start.os.environ.get("OMP_WAIT_POLICY")


@pytest.mark.parametrize(
    ("percent", "cores", "threads", "sleep"),
    [
        (50, 2, None, True),  # one of two cores is busy
        (20, 2, None, False),
        (50, 2, 1, False),  # one thread never waits for another
        (50, 16, None, True),
        (50, 16, 8, False),  # eight cores are idle
        (60, 16, 8, True),
        (0, 1, None, False),
    ],
)
def test_threads_sleep_where_they_lack_cores(monkeypatch, percent, cores, threads, sleep):
    note, policy = asked(monkeypatch, percent=percent, cores=cores, threads=threads)
    assert (policy == "passive") == sleep == (note is not None)
    if sleep:
        assert f"use {percent * cores / 100:.1f} of {cores} cores" in note


@pytest.mark.parametrize(
    "environ", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"WORLD_SIZE": "2"}]
)
def test_a_choice_and_other_processes_of_a_training_are_left_alone(monkeypatch, environ):
    note, policy = asked(monkeypatch, percent=100, cores=2, threads=None, **environ)
    assert note is None
    assert policy == environ.get("OMP_WAIT_POLICY")


@pytest.mark.parametrize("launched", [False, True])
def test_one_thread_of_the_user_counts_and_one_of_the_launcher_does_not(monkeypatch, launched):
    environ = {"OMP_NUM_THREADS": "1"} | ({"ACCELERATE_DYNAMO_MODE": "default"} if launched else {})
    _, policy = asked(monkeypatch, percent=100, cores=2, threads=None, **environ)
    assert (policy == "passive") == launched


@pytest.mark.slow
def test_a_training_beside_busy_programs_says_it(tmp_path, tiny_bert):
    rows = [f"text {row},{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]))
    command = [
        *(sys.executable, "-m", "ampft", "train", "--train_file", "rows.csv"),
        *("--model_name_or_path", str(tiny_bert), "--max_train_steps", "2", "--no-baseline"),
        *("--cpu_threads", str(max(2, psutil.cpu_count())), "--output_dir", "run"),
    ]
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(psutil.cpu_count())]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    finally:
        for program in busy:
            program.kill()
            program.wait()
    assert done.returncode == 0, done.stderr
    assert "threads that wait for each other" in done.stdout.replace("\n           ", " ")
    assert Path(tmp_path / "run" / "run.json").exists()
