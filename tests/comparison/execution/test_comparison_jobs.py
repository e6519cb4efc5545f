"""Several runs at the same time: each in its slot, and none outlives the comparison."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import psutil
import pytest
from planned import plan

from ampft.comparison.execution import launch as module
from ampft.comparison.execution.launch import (
    EndedProgram,
    ForkedProgram,
    LocalLauncher,
    Program,
    ResourceSlot,
    SideBySide,
    check_memory,
    make_slots,
    start_command,
    supervise,
)
from ampft.comparison.execution.plan_text import plan_lines
from ampft.comparison.execution.session import Progress, open_comparison
from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError

# Writes when it ran, on which cores and with which variable.
REPORT = """
import json, os, sys, time
began = time.time()
open(sys.argv[1] + "-began", "w").close()
while sys.argv[3:] and not os.path.exists(sys.argv[3]):  # as long as another one has not begun
    time.sleep(0.01)
time.sleep(float(sys.argv[2]))
values = [began, time.time(), sorted(os.sched_getaffinity(0)), os.environ.get("SLOT")]
open(sys.argv[1], "w").write(json.dumps(values))
"""
SLEEP = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"


class Direct(LocalLauncher):
    """Starts a program of the interpreter itself."""

    def run(self, program, watch):
        slot = self.slot
        _, seconds = supervise(
            lambda out: start_command(program.argv, out, slot), program.log, watch
        )
        return EndedProgram(seconds)


def program(argv, log):
    return Program(tuple(argv), log, log.with_name("run"))


def direct(*slots):
    return [Direct(slot, None) for slot in slots]


# Ends only after a second run has begun.
TWO_AT_A_TIME = """
import json, os, pathlib, sys, time
own = pathlib.Path({reports!r}, pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1]).name)
own.write_text(json.dumps(sorted(os.sched_getaffinity(0))))
while len(list(own.parent.iterdir())) < 2:
    time.sleep(0.02)
"""

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="processes cannot be pinned here"
)


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(module, "visible_gpus", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)


def test_runs_have_equal_shares_of_the_cores(eight_cores):
    assert make_slots(1) == (ResourceSlot(),)
    assert [slot.cores for slot in make_slots(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [slot.cores for slot in make_slots(3)] == [(0, 1), (2, 3), (4, 5)]  # 6 and 7 stay idle
    with pytest.raises(InputError, match=r"may use 8 cores.* Use at most --jobs 8"):
        make_slots(9)


def test_runs_have_gpus_of_their_own(monkeypatch):
    monkeypatch.setattr(module, "visible_gpus", lambda: ["4", "5", "6", "GPU-7"])
    own = [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in make_slots(4)]
    assert own == ["4", "5", "6", "GPU-7"]
    pairs = make_slots(2, gpus_per_run=2)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in pairs] == ["4,5", "6,GPU-7"]
    ports = [slot.launcher_flags for slot in pairs]
    assert ports == [("--main_process_port", "29500"), ("--main_process_port", "29501")]
    with pytest.raises(InputError, match=r"need 6, but 4 are visible. Use at most --jobs 2"):
        make_slots(3, gpus_per_run=2)


def test_the_memory_is_asked_first(monkeypatch):
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 10 * 2**30)
    check_memory(3, 3 * 2**30)
    check_memory(1, 30 * 2**30)  # as without --jobs
    check_memory(4, 0)
    with pytest.raises(InputError, match=r"needs about 3.* 4 need 12.* --jobs 3"):
        check_memory(4, 3 * 2**30)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--gpus_per_run", "0"], ["--jobs", "two"]])
def test_bad_numbers_are_refused(words):
    with pytest.raises((InputError, SystemExit)):
        parse_compare_arguments(words)


@needs_affinity
def test_each_slot_has_one_command_at_a_time(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:2]
    two = [ResourceSlot(k, (cores[-k],), {"SLOT": str(k)}) for k in range(2)]
    queue, ended = ["a", "b", "c", "d"], []
    waits_for = {"a": [str(tmp_path / "b-began")], "b": [str(tmp_path / "a-began")]}
    with SideBySide[str](direct(*two)) as side:
        while queue or side.running:
            while queue and not side.is_full:
                key = queue.pop(0)
                words = ["-c", REPORT, str(tmp_path / key), "0.4", *waits_for.get(key, [])]
                side.start(key, program(words, tmp_path / f"{key}.log"))
            ended += side.ended()
    assert sorted(key for key, _ in ended) == ["a", "b", "c", "d"]
    assert all(end.seconds >= 0.4 for _, end in ended)
    found = [json.loads((tmp_path / key).read_text()) for key in "abcd"]
    assert found[0][0] < found[1][1]
    assert found[1][0] < found[0][1]
    for number in ("0", "1"):
        in_slot = sorted(each for each in found if each[3] == number)
        assert len(in_slot) >= 1
        assert all(each[2] == [cores[-int(number)]] for each in in_slot)
        assert all(a[1] <= b[0] for a, b in pairwise(in_slot))
    assert sorted(os.sched_getaffinity(0)) == sorted(psutil.Process().cpu_affinity())


@pytest.mark.slow
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, InputError])
def test_an_interruption_terminates_every_command(tmp_path, interruption):
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def interrupt():
        with SideBySide[int](direct(ResourceSlot(0), ResourceSlot(1))) as side:
            for key in range(2):
                words = ["-c", SLEEP, str(tmp_path / str(key))]
                side.start(key, program(words, tmp_path / f"{key}.log"))
            deadline = time.monotonic() + 30
            while not all((tmp_path / str(key)).exists() for key in range(2)):
                assert time.monotonic() < deadline
                side.ended()
            raise interruption("now")

    started = time.monotonic()
    with pytest.raises(interruption, match=r"now"):
        interrupt()
    assert time.monotonic() - started < 40
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


def test_the_progress_line_shows_all_running_runs(tmp_path):
    planned = plan(jobs=2)
    runs = planned.runs()
    with Progress(planned, runs) as progress:
        progress.start(runs[0], tmp_path)
        progress.start(runs[1], tmp_path)
        line = progress.line((runs[0], 206, 30.0), (runs[1], 103, 30.0))
        assert line.startswith("run 1/9 fp32 seed 42, epoch 3/5, 40 %; run 2/9 placebo seed 42, ")
        progress.finish(runs[0], EndedProgram(60.0), "accuracy 0.8", finished=True)
        assert progress.line((runs[1], 206, 60.0)).startswith("run 2/9 placebo seed 42, epoch 3/5")


def test_the_plan_says_how_many_runs_train_at_a_time(tmp_path):
    alone, together = (plan_lines(tmp_path, plan(jobs=n), plan().runs()) for n in (1, 2))
    assert "9 runs, one at a time, arms interleaved" in " ".join(alone.split())
    assert "9 runs, 2 at a time, each on its share of the cores" in " ".join(together.split())
    gpu = replace(plan(jobs=4), estimate=replace(plan().estimate, device="cuda"))
    text = " ".join(plan_lines(tmp_path, gpu, gpu.runs()).split())
    assert "4 at a time, each on 1 GPU of its own" in text


@pytest.mark.slow
@needs_affinity
def test_a_comparison_trains_side_by_side(tmp_path, capsys):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    recipe, reports = tmp_path / "recipe.py", tmp_path / "reports"
    reports.mkdir()
    recipe.write_text(TWO_AT_A_TIME.format(reports=str(reports)))
    command = parse_compare_arguments(["--jobs", "2"])
    with open_comparison(command, tmp_path / "cmp", plan(jobs=2), recipe) as session:
        session.train(session.missing()[:3])
    assert capsys.readouterr().out.count(": failed") == 3  # this recipe writes no record
    names = ("fp32-seed42", "placebo-seed42", "bf16-seed42")
    first, second, third = (json.loads((reports / name).read_text()) for name in names)
    assert not set(first) & set(second)
    assert third in (first, second)
    assert session.plan.runs_seconds > 0


SAYS = """
import json, os, sys
print(json.dumps([os.getppid(), os.getsid(0) == os.getpid(), "torch" in sys.modules, sys.argv[1:]]))
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")
def test_runs_are_forks_of_a_process_with_torch_until_it_is_killed(tmp_path):
    recipe, log = tmp_path / "recipe.py", tmp_path / "log"
    recipe.write_text(SAYS)
    launcher = LocalLauncher(ResourceSlot(), None)

    def said(*words):
        launcher.run(program([str(recipe), *words], log), lambda: None)
        return json.loads(next(x for x in log.read_text().splitlines() if x.startswith("[")))

    parent, leads, had_torch, words = said("0", "a b")
    assert (leads, had_torch, words) == (True, True, ["0", "a b"])
    assert said("3")[0] == parent
    psutil.Process(parent).kill()
    other, _, had_torch, words = said("0")
    assert other != parent
    assert (had_torch, words) == (False, ["0"])
    launcher.close()


def test_a_run_with_a_configuration_file_is_launched_by_accelerate(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalLauncher, "_fork", lambda *_: pytest.fail("forked"))
    started = []

    def start(words, output, slot, **options):
        started.append((words, options))
        return start_command(("-c", ""), output, slot)

    monkeypatch.setattr("ampft.comparison.execution.launch.start_command", start)
    LocalLauncher(ResourceSlot(), "own.yaml").run(
        program(["recipe.py"], tmp_path / "log"), lambda: None
    )
    words, options = started[0]
    assert words[:4] == ["-m", "accelerate.commands.launch", "--config_file", "own.yaml"]
    assert options == {"is_safe": False}, "the recipe may import what lies beside it"


def test_a_fork_whose_parent_was_killed_is_still_waited_for():
    ours, theirs = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs.send(json.dumps({"pid": child.pid}).encode())
    forked = ForkedProgram(ours)
    theirs.close()
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.3)
    assert time.monotonic() - started >= 0.3  # not a busy loop
    child.communicate(b"\n")
    assert forked.wait(5) == -9
    ours.close()
