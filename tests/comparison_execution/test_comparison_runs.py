"""Processes of a comparison, and what the display makes of them."""

from __future__ import annotations

import json
import sys

import psutil
import pytest
from planned import ESTIMATE, SIZE, plan

from ampft.comparison.execution.folder import outcome
from ampft.comparison.execution.launch import launch_command, run_to_end
from ampft.comparison.execution.progress import HistoryTail, Pace, Progress

# A launcher that leaves at once, and below it a run that takes a moment to write its record.
FAMILY = """
import os, signal, subprocess, sys, time
run = '''
import signal, sys, time
def stop(number, frame):
    time.sleep(1)
    open(sys.argv[1], "w").write("interrupted")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
'''
subprocess.Popen([sys.executable, "-c", run, sys.argv[1]]).wait()
"""


def test_a_command_runs_to_its_end_with_its_output_in_the_log(tmp_path):
    watched = []
    script = "import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(1); exit(3)"
    code, seconds = run_to_end(
        [sys.executable, "-c", script], tmp_path / "log", lambda: watched.append(1)
    )
    assert code == 3
    assert seconds > 1
    assert watched
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_interruption_ends_the_whole_family_and_waits_for_it(tmp_path, interruption):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    family = []

    def interrupt():
        if "ready" in (tmp_path / "log").read_text():
            children = psutil.Process().children(recursive=True)
            family.extend(child for child in children if child.pid not in before)
            raise interruption

    words = [sys.executable, "-c", FAMILY, str(tmp_path / "record")]
    with pytest.raises(interruption, match=r"^$"):
        run_to_end(words, tmp_path / "log", interrupt)
    assert (tmp_path / "record").read_text() == "interrupted"
    assert len(family) == 2
    assert not [member for member in family if member.is_running() and not is_zombie(member)]


def is_zombie(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_launcher_never_names_a_precision():
    command = launch_command("own.yaml", "recipe.py", "--mixed_precision", "bf16")
    assert command[1:] == [
        "-m", "accelerate.commands.launch", "--config_file", "own.yaml",
        "--mixed_precision", "no", "recipe.py", "--mixed_precision", "bf16",
    ]  # fmt: skip
    assert "--config_file" not in launch_command(None, "recipe.py")


def test_bad_input_is_found_in_the_log_of_a_launcher(tmp_path):
    log = tmp_path / "log"
    log.write_text("device     CPU\nerror: --train_file x: no such file\nTraceback\n  exit 2\n")
    ended = outcome(tmp_path / "absent", log)
    assert (ended.status, ended.complete) == ("failed", False)
    assert ended.complaint == "--train_file x: no such file"
    assert ended.words("accuracy") == "failed (--train_file x: no such file)"
    log.write_text("Traceback\nRuntimeError: error: no\n")
    assert outcome(tmp_path / "absent", log).complaint is None
    assert outcome(tmp_path / "absent", tmp_path / "none").complaint is None


def test_a_history_is_counted_as_it_grows(tmp_path):
    path = tmp_path / "history.jsonl"
    tail = HistoryTail(path)
    assert tail.steps() == 0
    with path.open("a") as file:
        for text, steps in [('{"step": 1}\n{"st', 1), ('ep": 2}\n', 2), ("", 2), ("{}\n{}\n", 4)]:
            file.write(text)
            file.flush()
            assert tail.steps() == steps


def test_a_history_that_is_written_again_is_counted_from_its_start(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"of": "the run before"}\n' * 3)
    tail = HistoryTail(path)
    assert tail.steps() == 0
    path.unlink()
    assert tail.steps() == 0
    for steps in (1, 2, 9):
        path.write_text("{}\n" * steps)
        assert tail.steps() == steps
    shorter = HistoryTail(path)
    path.write_text("{}\n" * 2)  # the same file, cut
    assert shorter.steps() == tail.steps() == 2
    replaced = HistoryTail(path)
    (tmp_path / "new").write_text("{}\n" * 4)  # longer at once, but another file
    (tmp_path / "new").rename(path)
    assert replaced.steps() == 4


def test_time_left_goes_by_what_runs_took():
    planned = plan()
    first, placebo, bf16 = planned.runs()[:3]
    pace = Pace(planned)
    estimated = ESTIMATE.run_seconds("bf16", SIZE)
    assert pace.seconds(bf16) == pytest.approx(estimated)
    pace.ended(first, 2 * ESTIMATE.run_seconds("fp32", SIZE))
    assert pace.seconds(placebo) == pytest.approx(2 * ESTIMATE.run_seconds("fp32", SIZE))
    assert pace.seconds(bf16) == pytest.approx(2 * estimated)
    pace.ended(bf16, 10.0)
    pace.ended(bf16, 20.0)
    assert pace.seconds(bf16) == pytest.approx(15.0)


def test_the_display_says_where_it_is(tmp_path):
    planned = plan(looks=(3,))
    runs = planned.runs()
    with Progress(planned, runs) as progress:
        progress.begin(runs[2], tmp_path)
        line = progress.line(206, 30.0)
        assert line.startswith("run 3/9 bf16 seed 42, epoch 3/5, 40 %, ")
        assert line.endswith(" min left")
        assert "epoch 5/5, 99 %" in progress.line(515, 30.0)
        ended = progress.end(63.2, "accuracy 0.8390", complete=True)
        assert ended.startswith("run 3/9 bf16 seed 42: accuracy 0.8390, 63 s; about ")
        for run in (*runs[:2], *runs[3:]):
            progress.begin(run, tmp_path)
            last = progress.end(1.0, "failed", complete=False)
    assert "left" not in last


def test_a_record_that_is_running_is_no_answer(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "status": "running"}))
    assert not outcome(tmp_path).complete
