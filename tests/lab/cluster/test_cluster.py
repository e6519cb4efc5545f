"""Runs on a cluster: which nodes may train them, what arrives, and what is left of a lost one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from planned import plan
from running import REPOSITORY

from ampft import ownership
from ampft.comparison.analysis.stamps import side_by_side_stamps
from ampft.comparison.execution.launch import Program, ResourceSlot
from ampft.comparison.execution.plan_text import plan_lines
from ampft.comparison.execution.session import make_launchers
from ampft.comparison.findings import PlanFacts
from ampft.comparison.remarks import remark_texts
from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError
from ampft.exit_codes import interruptible
from ampft.lab.cluster import launcher as launcher_module
from ampft.lab.cluster import node_worker, shard_pool
from ampft.lab.cluster import nodes as module
from ampft.lab.cluster.canary import NodeFacts, code_hash
from ampft.lab.cluster.launcher import Cluster, RayLauncher, _Lost
from ampft.lab.cluster.node_worker import STARTED, ProgramMessage
from ampft.lab.cluster.nodes import HeadMonitor, Nodes, ResourceNeed
from ampft.lab.cluster.orphans import MARK
from ampft.lab.cluster.parcels import DamagedParcel, Receiver, pack_folder, put_in_place
from ampft.text.json_io import json_text

HONEST = NodeFacts(
    kind="CPU A", code="c", versions={"torch": "2"}, files={"train.csv": "f"},
    data={"train": "d"}, initial_weights="w", cpu_threads=1, bits="b",
)  # fmt: skip


class Listed(Nodes):
    """Nodes of a list, in place of those of Ray."""

    ids: tuple[str, ...] = ()

    def __init__(self):
        super().__init__(ResourceNeed(1), Mock())

    def alive(self):
        self._names.update({id_: id_ for id_ in self.ids})
        return [id_ for id_ in self.ids if id_ not in self._left_out]


def nodes_with(**facts):
    found = Listed()
    found.ids = tuple(facts)
    return found, lambda group=None: found.for_group(
        group, lambda ids: {id_: facts[id_] for id_ in ids}, lambda: None
    )


LIES = {
    "bits": ("x", "the weights after 3 steps"),
    "cpu_threads": (2, "the number of CPU threads"),
    "data": ({"train": "x"}, "the data"),
    "files": ({"train.csv": "x"}, "the data files"),
    "versions": ({"torch": "1"}, "the versions of packages"),
    "code": ("x", "the code of ampft"),
    "initial_weights": ("x", "the initial weights"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_node_that_differs_from_most_is_named_and_left_out(name, capsys):
    value, words = LIES[name]
    liar = replace(HONEST, **{name: value})
    _, ask = nodes_with(a=liar, b=HONEST, c=HONEST)
    assert ask() == ("b", "c")
    assert f"left out   node a: it differs from other nodes in {words}" in capsys.readouterr().out


def test_nodes_that_join_later_must_equal_the_reference(capsys):
    found, ask = nodes_with(a=HONEST, b=HONEST, late=replace(HONEST, bits="x"), good=HONEST)
    found.ids = ("a",)
    assert ask() == ("a",)
    found.ids = ("a", "late", "good")
    assert ask() == ("a", "good")
    assert "node late" in capsys.readouterr().out


def test_the_runs_of_a_seed_stay_on_one_kind_of_device(capsys):
    other = replace(HONEST, kind="CPU B", bits="others")
    found, ask = nodes_with(a=HONEST, b=HONEST, c=other)
    kinds = {seed: ask(seed) for seed in range(6)}
    assert set(kinds.values()) == {("a", "b"), ("c",)}
    assert all(ask(seed) == nodes for seed, nodes in kinds.items())
    found.ids = ("a", "b")
    lost = next(seed for seed, nodes in kinds.items() if nodes == ("c",))
    assert ask(lost) == ("a", "b")
    assert f"no node with CPU B is left for seed {lost}" in capsys.readouterr().out


def test_bad_input_is_refused_with_the_message_of_the_nodes():
    error = InputError("--train_file x: no such file")
    _, ask = nodes_with(a=error, b=error)
    with pytest.raises(InputError, match="--train_file x: no such file"):
        ask()


def test_a_node_without_the_data_is_left_out(capsys):
    _, ask = nodes_with(a=InputError("--train_file x: no such file"), b=HONEST)
    assert ask() == ("b",)
    assert "node a: its first steps failed: --train_file x" in capsys.readouterr().out


def test_a_need_fits_only_where_everything_is():
    need = ResourceNeed(2, gpus=1, memory=10)
    assert need.fits({"CPU": 2, "GPU": 1, "memory": 10})
    for name in ("CPU", "GPU", "memory"):
        assert not need.fits({"CPU": 2, "GPU": 1, "memory": 10, name: 0})


def test_the_hash_of_the_code_is_that_of_its_sources():
    assert len(code_hash()) == 64
    assert code_hash() == code_hash()


def sent(folder: Path, place: Path) -> tuple[str, list[bytes]]:
    sha256, parts = pack_folder(folder, place / "sent")
    return sha256, list(parts)


def test_a_folder_arrives_whole_in_the_place_of_another_one(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for folder, text in ((source, "new"), (target, "old")):
        (folder / "checkpoints" / "step-3").mkdir(parents=True)
        (folder / "checkpoints" / "step-3" / "weights").write_text(text)
    (source / ".ampft-run").mkdir()
    (source / ".ampft-run" / "private").touch()
    (target / "only-here").touch()
    sha256, parts = sent(source, tmp_path)
    receiver = Receiver(tmp_path / "received")
    for part in parts:
        receiver.add(part)
    receiver.unpack(sha256, tmp_path / "arrived")
    put_in_place(tmp_path / "arrived", target)
    assert (target / "checkpoints" / "step-3" / "weights").read_text() == "new"
    assert [path.name for path in target.iterdir()] == ["checkpoints"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_damaged_parcel_changes_nothing(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(os.urandom(1000))
    sha256, parts = sent(source, tmp_path)
    for damaged in (parts[0][:-1], b"", parts[0] + b"x"):
        receiver = Receiver(tmp_path / "received")
        receiver.add(damaged)
        with pytest.raises(DamagedParcel):
            receiver.unpack(sha256, tmp_path / "arrived")
        receiver.clear()
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


WORKER = """
import os, subprocess, sys, time
from ampft.lab.cluster.orphans import MARK, start_guard_process
start_guard_process("mark-of-test")
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
    env={**os.environ, MARK: "mark-of-test"},
)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="environments of processes are read in /proc")
def test_the_processes_of_a_killed_worker_are_killed():
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: "another"}
    )
    words = [sys.executable, "-c", WORKER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        child = psutil.Process(int(worker.stdout.readline()))
        time.sleep(0.3)
        assert child.is_running()
        worker.kill()
    psutil.wait_procs([child], timeout=20)
    assert not child.is_running()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_cluster_that_is_not_there_is_one_message(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    def refuse(*_, **__):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr("ray.init", refuse)
    command = parse_compare_arguments(["--engine", "ray"])
    with pytest.raises(InputError, match=r"no Ray cluster at RAY_ADDRESS=127.0.0.1:1.*ray start"):
        make_launchers(command, plan(engine="ray"), Path("unused"))


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'ampft\[ray\]'"):
        module.connect()


def test_the_yardstick_is_not_measured_on_nodes():
    with pytest.raises(InputError, match=r"--yardstick with --engine ray"):
        parse_compare_arguments(["--engine", "ray", "--yardstick"])


def test_the_plan_and_the_stamp_name_the_cluster(tmp_path):
    text = " ".join(plan_lines(tmp_path, plan(jobs=4, engine="ray"), plan().runs()).split())
    assert "9 runs, at most 4 at a time on the nodes of a Ray cluster" in text
    facts = PlanFacts(runs_at_a_time=4, nodes={"fp32-seed42": "b", "bf16-seed42": "a"})
    assert not list(side_by_side_stamps((), PlanFacts(nodes={"fp32-seed42": "b"})))
    (stamp,) = side_by_side_stamps((_cpu_group(),), facts)
    (sentence,) = remark_texts([stamp])
    assert "on the cores of 2 nodes (a, b)" in sentence


def _cpu_group():
    class Record:
        class topology:
            device = "cpu"

        hardware = {}  # noqa: RUF012

    class Run:
        record = Record

    class Group:
        runs = (Run,)

    return Group


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own needs root")
def test_a_comparison_survives_a_killed_worker_bit_for_bit():
    pytest.importorskip("ray")
    words = ["benchmarks/cluster_faults.py", "--faults", "1", "--kinds", "worker"]
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["different"], row["twice"], row["processes_left"]) == ([], 0, 0)


def test_a_head_that_does_not_answer_ends_the_command_with_a_sentence(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = HeadMonitor(f"127.0.0.1:{server.getsockname()[1]}")
        assert head.answers()
    monkeypatch.setattr(module, "BETWEEN_CALLS", 0.0)
    assert not head.answers()  # it may come back
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.0)
    with pytest.raises(SystemExit) as ending, interruptible(lambda: "Repeat the command."):
        head.answers()
    assert ending.value.code == 75
    expected = r"lost: the head of the Ray cluster \(127.0.0.1:\d+\) has not answered for 0 "
    expected += r"seconds. Start a new head .* Repeat the command.\n"
    assert re.search(expected, capsys.readouterr().err)


class FakeRay:
    """A program that starts on its node and then says nothing more, as Ray reports it."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self):
        self.cancelled, self._news = [], [[ProgramMessage(STARTED, text="a")]]
        self.remote = lambda _: Mock(options=lambda **_: Mock(remote=lambda *_: self))

    def __iter__(self):
        return self

    def __next__(self):
        return self._news.pop()

    def wait(self, streams, timeout):
        return (streams, []) if self._news else ([], streams)

    def get(self, news):
        return news[0]

    def nodes(self):
        return [{"NodeID": "a", "Alive": False}]

    def cancel(self, stream, *, force):
        self.cancelled.append(force)


def test_a_program_whose_node_is_given_up_is_lost_although_ray_still_waits(monkeypatch, tmp_path):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(launcher_module, "REFRESH_SECONDS", 0.0)
    watch = Mock(side_effect=[None] * 5 + [AssertionError("it is not given up")])
    nodes = Nodes(ResourceNeed(1), Mock())
    launcher = RayLauncher(ResourceSlot(), Cluster(nodes, None, ()), tmp_path / "arrivals")
    program = Program((), tmp_path / "log", tmp_path / "run")
    with pytest.raises(_Lost, match="its node does not answer"):
        launcher.attempt(program, ["a"], Mock(), watch, lambda: ["a"])
    assert ray.cancelled == [True]


def test_a_program_whose_worker_is_stopped_on_a_node_that_answers_is_lost(monkeypatch, tmp_path):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(launcher_module, "REFRESH_SECONDS", 0.0)
    watch = Mock(side_effect=[None] * 5 + [AssertionError("it is not given up")])
    nodes = Nodes(ResourceNeed(1), Mock())
    monkeypatch.setattr(nodes, "is_alive", lambda _: True)
    launcher = RayLauncher(ResourceSlot(), Cluster(nodes, None, ()), tmp_path / "arrivals")
    program = Program((), tmp_path / "log", tmp_path / "run")
    with pytest.raises(AssertionError, match="it is not given up"):
        launcher.attempt(program, ["a"], Mock(), watch, lambda: ["a"])
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr(launcher_module, "SILENT_SECONDS", 0.0)
    watch.side_effect = [None] * 5 + [AssertionError("it is not given up")]
    with pytest.raises(_Lost, match="its worker gave no sign of life"):
        launcher.attempt(program, ["a"], Mock(), watch, lambda: ["a"])


def test_a_node_gives_signs_of_life_while_its_program_runs(monkeypatch, tmp_path):
    class Side:
        running = True

        looks = 0

        def __init__(self, _launchers):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start(self, *_):
            pass

        def ended(self):
            self.looks += 1
            self.running = self.looks < 3

    monkeypatch.setattr(node_worker, "SIGN_SECONDS", -1.0)
    monkeypatch.setattr(node_worker, "SideBySide", {None: Side})
    monkeypatch.setattr(node_worker, "_launcher", lambda _: None)
    program = Program((), tmp_path / "log", tmp_path / "theirs")
    request = node_worker.ProgramRequest(program, str(tmp_path), None, 1, 0)
    (tmp_path / "parcel").mkdir()
    kinds = [each.kind for each in node_worker._supervised(request, tmp_path / "run", tmp_path)]
    assert kinds.count(node_worker.ALIVE) == 3


def test_a_shard_whose_node_is_given_up_is_lost_although_ray_still_waits(monkeypatch):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    pool = shard_pool.ShardPool.__new__(shard_pool.ShardPool)
    pool._nodes = Nodes(ResourceNeed(1), Mock())
    pool._watch = Mock(side_effect=[None] * 5 + [AssertionError("it is not given up")])
    with pytest.raises(shard_pool._Lost, match="its node does not answer"):
        list(pool._news(ray, "a"))


def test_a_worker_that_is_stopped_on_a_node_that_answers_is_lost(monkeypatch):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    pool = shard_pool.ShardPool.__new__(shard_pool.ShardPool)
    pool._nodes = Mock()
    pool._watch = Mock(side_effect=[None] * 5 + [AssertionError("it is not given up")])
    with pytest.raises(shard_pool._Lost, match="no sign of life"):
        list(pool._news(ray, "a", patience=0.0))


def test_a_worker_gives_signs_of_life_while_it_predicts(monkeypatch, tmp_path):
    monkeypatch.setattr(shard_pool, "SIGN_SECONDS", 0.01)
    go_on = threading.Event()

    @contextlib.contextmanager
    def shard_writer(job):
        def write(shard, target):
            go_on.wait(10)
            target.write_bytes(b"table")
            return 7

        yield write

    monkeypatch.setattr(shard_pool, "shard_writer", shard_writer)
    monkeypatch.chdir(tmp_path)
    parts = shard_pool.ShardActor(str(tmp_path), {}).predict(None, None)
    assert [next(parts), next(parts)] == [b"", b""]
    go_on.set()
    rest = [part for part in parts if part]
    assert rest == [b"table", (7, hashlib.sha256(b"table").hexdigest())]


def test_nodes_that_are_measured_at_the_same_time_share_no_file(monkeypatch, tmp_path):
    launcher = RayLauncher(ResourceSlot(), cluster=None, arrivals=tmp_path)
    files = []

    def attempt(self, program, nodes, output, watch):
        files.append(self._file(f"parcel-{program.folder.name}"))
        facts = replace(HONEST, bits=nodes[0])
        (program.folder / "result.json").write_text(json_text(facts))

    monkeypatch.setattr(RayLauncher, "attempt", attempt)
    cluster = Cluster(Nodes(ResourceNeed(1), HeadMonitor("unused:0")), None, ())
    found = cluster._measure(["a", "b"], launcher, lambda: None)
    assert {id_: facts.bits for id_, facts in found.items()} == {"a": "a", "b": "b"}
    assert len(set(files)) == 2


def test_a_temporary_folder_that_vanishes_meanwhile_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(ownership.tempfile, "gettempdir", lambda: str(tmp_path))
    first = ownership.temporary_folder("canary")

    def removed(folder):
        raise InputError(f"{folder.name} was not created by this program")

    monkeypatch.setattr(ownership, "_locked_owner", removed)
    ownership._remove_left.cache_clear()
    assert ownership.temporary_folder("canary") != first
