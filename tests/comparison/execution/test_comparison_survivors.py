"""A killed comparison process: its run continues, and no second run starts beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from planned import plan

from ampft.comparison.execution import session as session_module
from ampft.comparison.execution.comparison_folder import log_file, run_folder
from ampft.comparison.execution.launch import (
    WHOLE_MACHINE,
    EndedProgram,
    LocalLauncher,
    locked_log,
    run_command,
)
from ampft.comparison.execution.session import Progress, RunTimeForecast, open_comparison
from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError
from ampft.runs.folder import RunFolder
from ampft.text.numbers import approximate_duration

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

COMPARING = """
import sys
from pathlib import Path
from ampft.comparison.execution.launch import run_command
run_command(["-c", sys.argv[2]], Path(sys.argv[1]))
"""
# Like the launcher, this starts the run as a child process that inherits its output.
RUN = """
import subprocess, sys
run = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", run]).wait()
"""
TOUCH = "import pathlib, sys; pathlib.Path(sys.argv[0]).with_name('ran').touch()"


def survivor(log: Path, script: str = RUN) -> psutil.Process:
    """Return a run whose launcher and comparison process were killed."""
    comparing = subprocess.Popen([sys.executable, "-c", COMPARING, str(log), script])
    deadline = time.monotonic() + 30
    while not (log.exists() and log.read_text().count("\n") > 1):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run = psutil.Process(int(log.read_text().split()[-1]))
    launcher = run.parent()
    for process in (psutil.Process(comparing.pid), launcher):
        process.send_signal(signal.SIGKILL)
    comparing.wait()
    return run


# It inherits the lock of its log, as the process of a run does.
UNTIL_ASKED = """
import os, pathlib, sys, time
print(os.getpid(), flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
pathlib.Path(sys.argv[1]).with_name("done").touch()
"""


def opened(folder: Path):
    recipe = folder.with_name("recipe.py")
    recipe.write_text(TOUCH)
    return open_comparison(parse_compare_arguments([]), folder, plan(), recipe)


@pytest.mark.full
@pytest.mark.slow
def test_no_run_starts_beside_one_that_outlived_its_comparison(tmp_path):
    folder = tmp_path / "cmp"
    with opened(folder) as session:
        first = session.missing()[0]
        left = survivor(log_file(session.folder.path, first))
        try:
            with pytest.raises(
                InputError, match=rf"running \(process {left.pid}\).*kill {left.pid}\)"
            ):
                session.train([first])
            with pytest.raises(
                InputError, match=rf"a killed comparison is still running \(process {left.pid}\)"
            ):
                run_command(["-c", ""], log_file(session.folder.path, first))
            assert log_file(session.folder.path, first).read_text().endswith(f"\n{left.pid}\n")
            assert not (tmp_path / "ran").exists()
        finally:
            left.kill()
            psutil.wait_procs([left], timeout=10)
        session.train([first])
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_run_that_outlived_its_comparison_is_waited_for(tmp_path, capsys):
    folder, ask = tmp_path / "cmp", tmp_path / "ask"
    log = log_file(folder, plan().runs()[0])
    log.parent.mkdir(parents=True)
    run = "import subprocess, sys; subprocess.Popen([sys.executable, *{words!r}]).wait()"
    words = ["-c", UNTIL_ASKED, str(ask)]
    left = survivor(log, run.format(words=words))
    timer = threading.Timer(1.0, ask.touch)
    timer.start()
    with opened(folder) as session:
        assert (tmp_path / "done").exists()
        assert session.plan.runs_seconds >= 0.5  # the wait does not count as overhead
        with locked_log(log):
            pass
    timer.join()
    expected = f"{log.stem}: still running, although its comparison was killed (process {left.pid})"
    assert expected in " ".join(capsys.readouterr().out.split())


def test_no_run_starts_beside_one_of_another_process(tmp_path):
    with (
        opened(tmp_path / "cmp") as session,
        RunFolder(run_folder(session.folder.path, session.missing()[-1])),
        pytest.raises(
            InputError, match=rf"another run is writing to this folder \(process {os.getpid()}\)"
        ),
    ):
        session.train(session.missing())
    assert not (tmp_path / "ran").exists()


def test_a_daemon_left_behind_by_a_run_blocks_nothing(tmp_path):
    service = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    report = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    log = tmp_path / "run.log"
    run_command(["-c", service, report], log)
    while not log.read_text().count("\n") > 1:
        time.sleep(0.05)
    daemon = psutil.Process(int(log.read_text().split()[-1]))
    with locked_log(log) as file:
        assert daemon.is_running(), "otherwise nothing could block"
        assert file.writable()
    daemon.kill()


class Ended(LocalLauncher):
    """Lets each program end at once."""

    def run(self, program, watch):
        return EndedProgram(1.0)


def test_what_is_looked_at_before_a_run_does_not_grow_with_the_runs(tmp_path, monkeypatch):
    looked_at = []
    monkeypatch.setattr(session_module, "check_output_folder", lambda *a, **_: looked_at.append(a))
    launchers = (Ended(WHOLE_MACHINE, None),)
    monkeypatch.setattr(session_module, "make_launchers", lambda *_: launchers)
    with opened(tmp_path / "cmp") as session:
        runs = session.missing()
        session.train(runs)
    assert len(looked_at) == len(runs)


def test_the_time_left_counts_each_arm_with_its_own_runs():
    planned = plan()
    runs = planned.all_runs()
    progress, pace = Progress(planned, runs), RunTimeForecast(planned)
    for number, run in enumerate(runs):
        progress.start(run, Path("none"))
        if number < len(runs) - 1:
            pace.add(run, 60.0 * (1 + number % 3))
        left = sum(map(pace.seconds, runs[number + 1 :]))
        line = progress.finish(run, EndedProgram(60.0 * (1 + number % 3)), "done", finished=True)
        assert line.startswith(f"run {number + 1}/{len(runs)} {run.title}: done")
        assert (f"; about {approximate_duration(left)} left" in line) == (run != runs[-1])
