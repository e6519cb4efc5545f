"""Processes of a comparison, and the progress display."""

from __future__ import annotations

import psutil
import pytest
from planned import ESTIMATE, SIZE, plan

from ampft.comparison.execution.comparison_folder import run_ending
from ampft.comparison.execution.launch import (
    WHOLE_MACHINE,
    EndedProgram,
    launch_command,
    run_command,
    start_command,
    supervise,
)
from ampft.comparison.execution.session import Progress, RunTimeForecast, steps_in_history
from ampft.errors import InputError
from ampft.files import hashed_text, remove

# A launcher that exits at once, and its child, which takes a moment to write its record.
LAUNCHER = """
import os, signal, subprocess, sys, time
run = '''
import signal, sys, time
def stop(number, frame):
    time.sleep(0.3)
    open(sys.argv[1], "w").write("interrupted")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
'''
subprocess.Popen([sys.executable, "-c", run, sys.argv[1]]).wait()
"""


def watched_command(command, log, watch):
    return supervise(lambda output: start_command(command, output, WHOLE_MACHINE), log, watch)


def test_a_command_runs_to_its_end_with_its_output_in_the_log(tmp_path):
    watched = []
    script = "import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(1); exit(3)"
    code, seconds = watched_command(["-c", script], tmp_path / "log", lambda: watched.append(1))
    assert code == 3
    assert seconds > 1
    assert watched
    assert sorted((tmp_path / "log").read_text().splitlines()[1:]) == ["err", "out"]


def test_a_log_that_another_program_wrote_is_not_replaced(tmp_path):
    log, mine = tmp_path / "log", tmp_path / "mine"
    command = ["-c", "print('out')"]
    for _ in range(2):
        run_command(command, log)
    mine.write_text("mine")
    for plant in (lambda: log.write_text("mine"), lambda: log.symlink_to(mine), log.mkdir):
        plant()
        with pytest.raises(InputError, match="log: this is not a log that a comparison"):
            run_command(command, log)
        remove(log)
    assert mine.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_interruption_terminates_all_descendants_and_waits_for_them(tmp_path, interruption):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    descendants = []

    def interrupt():
        if "ready" in (tmp_path / "log").read_text():
            children = psutil.Process().children(recursive=True)
            descendants.extend(child for child in children if child.pid not in before)
            raise interruption

    command = ["-c", LAUNCHER, str(tmp_path / "record")]
    with pytest.raises(interruption, match=r"^$"):
        watched_command(command, tmp_path / "log", interrupt)
    assert (tmp_path / "record").read_text() == "interrupted"
    assert len(descendants) == 2
    assert not [each for each in descendants if each.is_running() and not is_zombie(each)]


def is_zombie(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_launcher_never_sets_a_precision():
    command = launch_command("own.yaml", "recipe.py", "--mixed_precision", "bf16")
    assert command == [
        "-m", "accelerate.commands.launch", "--config_file", "own.yaml",
        "--mixed_precision", "no", "recipe.py", "--mixed_precision", "bf16",
    ]  # fmt: skip
    assert "--config_file" not in launch_command(None, "recipe.py")


def test_an_input_error_is_found_in_the_log_of_a_launcher(tmp_path):
    log = tmp_path / "log"
    log.write_text("device     CPU\nerror: --train_file x: no such file\nTraceback\n  exit 2\n")
    ending = run_ending(tmp_path / "absent", log)
    assert (ending.status, ending.is_complete) == ("failed", False)
    assert ending.input_error == "--train_file x: no such file"
    assert ending.summary("accuracy") == "failed (--train_file x: no such file)"
    log.write_text("Traceback\nRuntimeError: error: no\n")
    assert run_ending(tmp_path / "absent", log).input_error is None
    assert run_ending(tmp_path / "absent", tmp_path / "none").input_error is None


def test_the_steps_of_a_history_are_known_as_it_grows(tmp_path):
    path = tmp_path / "history.jsonl"
    assert steps_in_history(path) == 0
    with path.open("a") as file:
        for text, steps in [('{"st', 0), ('ep": 1}\n{"st', 1), ('ep": 2}\n', 2), ("", 2)]:
            file.write(text)
            file.flush()
            assert steps_in_history(path) == steps
    path.write_text("".join(f'{{"step": {n}, "loss": 0.123456789}}\n' for n in range(1, 5000)))
    assert steps_in_history(path) == 4999
    path.write_text('{"step": 1}\n')  # rewritten
    assert steps_in_history(path) == 1
    path.write_text("[]\nnot JSON\n")
    assert steps_in_history(path) == 0


def test_remaining_time_is_based_on_durations():
    planned = plan()
    first, placebo, bf16 = planned.runs()[:3]
    pace = RunTimeForecast(planned)
    estimated = ESTIMATE.run_seconds("bf16", SIZE)
    assert pace.seconds(bf16) == pytest.approx(estimated)
    pace.add(first, 2 * ESTIMATE.run_seconds("fp32", SIZE))
    assert pace.seconds(placebo) == pytest.approx(2 * ESTIMATE.run_seconds("fp32", SIZE))
    assert pace.seconds(bf16) == pytest.approx(2 * estimated)
    pace.add(bf16, 10.0)
    pace.add(bf16, 20.0)
    assert pace.seconds(bf16) == pytest.approx(15.0)


def test_the_progress_line(tmp_path):
    planned = plan(seed_counts=(3,))
    runs = planned.runs()
    with Progress(planned, runs) as progress:
        progress.start(runs[2], tmp_path)
        line = progress.line((runs[2], 206, 30.0))
        assert line.startswith("run 3/9 bf16 seed 42, epoch 3/5, 40 %, ")
        assert line.endswith(" min left")
        assert "epoch 5/5, 99 %" in progress.line((runs[2], 515, 30.0))
        line = progress.finish(runs[2], EndedProgram(63.2), "accuracy 0.8390", finished=True)
        assert line.startswith("run 3/9 bf16 seed 42: accuracy 0.8390, 63 s; about ")
        for run in (*runs[:2], *runs[3:]):
            progress.start(run, tmp_path)
            last = progress.finish(run, EndedProgram(1.0), "failed", finished=False)
    assert "left" not in last


def test_a_record_of_a_running_run_is_not_complete(tmp_path):
    (tmp_path / "run.json").write_text(hashed_text({"schema": 3, "status": "running"}))
    assert not run_ending(tmp_path).is_complete
