"""Comparisons on a Ray cluster with faults: each must equal the one without Ray, bit for bit.

The cluster has three nodes of one core, each in a network namespace of its own. A fault hits at a
random moment, three of four while at least two runs have sent a checkpoint: a worker, a node, the
head or the comparison's own process is killed, the network to a node is cut for a while or for
good, a node is frozen, the comparison is cancelled, the object store is filled, or a fourth node
lies (other data, other threads, or other kernels of the matrix product). If the command fails, it
is repeated, with a new head if the head is gone. The runs are stubs of four seconds
(`stub_run.py`). Prints one line of JSON with a row per fault.

With `--rows`, each row is appended to a file, and faults whose rows it has are skipped, so that the
same command continues after an interruption. Several programs with other `--start` may share it;
`--faults 0` prints the result of all its rows.

    python benchmarks cluster_faults --faults 200 --seconds 36000 --rows rows.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from namespace_cluster import NamespaceCluster, alive, in_own_network, ray_address
from provenance import command_line, provenance
from stub_run import TEMPLATE, THREADS, names

NODES = ("one", "two", "three")
LIES = {
    "lying data": {},
    "lying threads": {THREADS: "2"},
    "lying kernels": {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Prescott"},
}
KINDS = (
    *("none", "worker", "node", "head", "driver", "cancel", "frozen", "cut", "cut for a while"),
    *("store", *LIES),
)
MID_RUN = 0.75  # share of the faults that wait for the checkpoints of two runs
SLOWEST = 240  # seconds of a command
LATEST = 4  # seconds after which a fault hits at the latest
HOG = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=0)
def fill(): return bytes(20 << 20)
held = [fill.options(scheduling_strategy="SPREAD").remote() for _ in range(15)]
ray.wait(held, num_returns=len(held), timeout=30)
print("full", flush=True)
time.sleep(600)
"""


def drive(words: list[str], log: str, address: str | None) -> None:
    """Run a command with stubs in the place of trainings, in a process forked from a warm one."""
    os.setsid()
    for target in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), target)
    if address is not None:
        os.environ["RAY_ADDRESS"] = address
    import stub_run

    from ampft.cli import main
    from ampft.comparison.execution import launch
    from ampft.lab.cluster import launcher, nodes

    with (
        patch.object(launch, "launch_command", stub_run.launch_stub),
        patch.object(launch.LocalLauncher, "_fork", lambda *_: None),
        patch.object(launcher, "run_program", stub_run.run_program),
        patch.object(nodes, "HEAD_SECONDS", 5.0),
    ):
        sys.exit(main(words))


_WARM = multiprocessing.get_context("forkserver")


@dataclass
class Driver:
    """A command, with what a fault needs of a process."""

    process: Any

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self.process.pid)

    def wait(self, seconds: float) -> int:
        """Return the exit code; kill the command if it takes longer."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            return -signal.SIGKILL
        return int(self.process.exitcode)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return psutil.pid_exists(self.pid) and self.process.exitcode is None


@dataclass
class Bench:
    """The files that all comparisons share, and the one without Ray."""

    place: Path  # Folder of everything.

    def words(self, folder: Path, *own: str) -> list[str]:
        """Return the arguments of `ampft` for a comparison."""
        files = ["--train_file", str(self.place / "train.csv")]
        files += ["--test_file", str(self.place / "test.csv")]
        settings = ["--modes", "fp32,bf16", "--seeds", "3", "--no_placebo", "--anyway"]
        settings += ["--metric", "accuracy", "--keep_models", "all"]
        training = ["--use_cpu", "--cpu_threads", "1", "--max_train_steps", "12"]
        training += ["--checkpointing_steps", "3", "--checkpoint_total_limit", "1"]
        model = ["--model_name_or_path", str(self.place / "bert")]
        start = ["compare", "--output_dir", str(folder)]
        return [*start, *settings, *own, "--", *files, *training, *model]

    def prepare(self) -> None:
        """Write data and model, and run the comparison without Ray."""
        for name in ("train", "other", "test"):
            (self.place / f"{name}.csv").write_text(f"text,label\n{name},ant\n", "utf-8")
        _WARM.Process(target=write_template, args=(self.place / TEMPLATE,)).start()
        while not (self.place / TEMPLATE).exists():
            time.sleep(0.1)
        code = self._start(self.place / "sequential", None).wait(900)
        if code:
            raise RuntimeError((self.place / "sequential.log").read_text(encoding="utf-8"))

    def start(self, folder: Path) -> Driver:
        """Start a comparison with Ray."""
        own = ("--engine", "ray", "--jobs", "3")
        return self._start(folder, os.environ["RAY_ADDRESS"], *own)

    def _start(self, folder: Path, address: str | None, *own: str) -> Driver:
        words, log = self.words(folder, *own), f"{folder}.log"
        if not folder.exists():
            folder.mkdir()
            _WARM.Process(target=write_plan, args=(folder, words)).start()
            while not (folder / "plan.json").exists():
                time.sleep(0.05)
        process = _WARM.Process(target=drive, args=(words, log, address))
        process.start()
        return Driver(process)

    def differences(self, folder: Path) -> list[str]:
        """Return what differs from the comparison without Ray: runs, or the analysis."""
        found = []
        for run in sorted((self.place / "sequential" / "runs").iterdir()):
            try:
                if _evidence(run) != _evidence(folder / "runs" / run.name):
                    found.append(run.name)
            except (OSError, ValueError) as error:
                found.append(f"{run.name}: {error}")
        ours, theirs = (_analysis(each) for each in (self.place / "sequential", folder))
        return [*found, *(name for name in ours if ours[name] != theirs.get(name))]


def _evidence(run: Path) -> dict[str, Any]:
    """Return the hashes of a run's files, and its record without the machine."""
    files = ("model.safetensors", "predictions.parquet", "history.jsonl")
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return {
        **{name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in files},
        "record": {k: v for k, v in record.items() if k not in ("sha256", "hardware")},
    }


def _analysis(folder: Path) -> dict[str, Any]:
    """Return the numbers of a comparison, without times and speeds."""
    with contextlib.suppress(OSError, ValueError):
        values = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
        return {
            arm["name"]: [arm.get(name) for name in ("scores", "mean", "difference", "status")]
            for arm in values["arms"]
        }
    return {}


def write_template(path: Path) -> None:
    """Write the record that stubs complete."""
    from stub_comparison import record

    from ampft.text.json_io import json_text

    text = json_text(record("fp32", 0, 300, names()))
    path.with_suffix(".tmp").write_text(text, encoding="utf-8")
    path.with_suffix(".tmp").rename(path)


def write_plan(folder: Path, words: list[str]) -> None:
    """Write the plan of a comparison of stubs, whose steps need not be timed."""
    from dataclasses import replace

    from stub_comparison import plan_of

    from ampft.comparison.execution.planning import redacted_settings
    from ampft.comparison.settings import parse_compare_arguments
    from ampft.files import hashed_text

    command = parse_compare_arguments(words[1:])
    plan, _ = plan_of(3, 1)
    plan = replace(plan, design=command.design, arguments=redacted_settings(command))
    (folder / "plan.tmp").write_text(hashed_text(plan), encoding="utf-8")
    (folder / "plan.tmp").rename(folder / "plan.json")


class Fault:
    """A fault of one kind, which hits a comparison at a random moment."""

    def __init__(self, kind: str, number: int, cluster: NamespaceCluster) -> None:
        """Draw the moment from `number`, up to `LATEST` seconds after what it waits for."""
        self.kind, self._cluster = kind, cluster
        self._random = random.Random(number)
        self._waits = self._random.random() < MID_RUN
        self.under_way = 0
        self._moment = self._random.uniform(0, 1 if self._waits else LATEST)
        self._hog: subprocess.Popen[bytes] | None = None
        self._name = self._random.choice(NODES)

    def before(self, place: Path) -> None:
        """Prepare the nodes, before the command starts."""
        cluster = self._cluster
        if self.kind in LIES:
            data = (place / "other.csv", place / "train.csv") if self.kind == "lying data" else None
            cluster.add("liar", instead=data, **LIES[self.kind])
        if self.kind == "store":
            words = [sys.executable, "-c", HOG, cluster.address]
            self._hog = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self._hog.stdout is not None
            self._hog.stdout.readline()

    def hit(self, driver: Driver, folder: Path) -> None:
        """Wait for a run to begin and a random moment, and do the harm."""
        if self.kind in ("none", "store", *LIES):
            return
        while driver.is_running and not self._has_come(folder):
            time.sleep(0.05)
        time.sleep(self._moment)
        self.under_way = under_way(folder)
        cluster, name = self._cluster, self._name
        if self.kind == "worker":
            for worker in cluster.workers()[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
        elif self.kind in ("node", "head"):
            cluster.kill(name if self.kind == "node" else "head")
        elif self.kind == "frozen":
            cluster.freeze(name)
        elif self.kind.startswith("cut"):
            cluster.cut(name)
            if self.kind != "cut":
                time.sleep(self._random.uniform(1, 6))
                cluster.join(name)
        elif self.kind in ("driver", "cancel"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(driver.pid, signal.SIGKILL if self.kind == "driver" else signal.SIGINT)

    def _has_come(self, folder: Path) -> bool:
        return under_way(folder) >= 2 if self._waits else bool(list(folder.glob("logs/*.log")))

    def after(self) -> None:
        """Repair the cluster: every node is there and honest."""
        cluster = self._cluster
        if self._hog is not None:
            self._hog.kill()
            self._hog.wait()
        if self.kind == "head":
            for name in NODES:
                cluster.kill(name)
            cluster.start_head()
            for name in NODES:
                cluster.add(name)
            os.environ["RAY_ADDRESS"] = cluster.address
        elif self.kind in LIES:
            cluster.kill("liar")
            cluster.wait_until_gone("liar")
        elif self.kind in ("node", "frozen", "cut") or self._name not in alive(cluster.address):
            cluster.kill(self._name)
            cluster.wait_until_gone(self._name)
            cluster.add(self._name)


def under_way(folder: Path) -> int:
    """Return how many runs have sent a checkpoint and have not ended."""
    found = 0
    for run in {path.parents[1] for path in folder.glob("runs/*/checkpoints/step-*")}:
        with contextlib.suppress(OSError, ValueError):  # replaced in this moment
            record = json.loads((run / "run.json").read_text(encoding="utf-8"))
            found += record["status"] == "running"
    return found


def one(number: int, kind: str, bench: Bench, cluster: NamespaceCluster) -> dict[str, Any]:
    """Run a comparison with a fault, repeat the command until it succeeds, and judge it."""
    folder = bench.place / f"fault{number}"
    log = folder.with_name(f"{folder.name}.log")
    began = time.monotonic()
    codes: list[int] = []
    fault = Fault(kind, number, cluster)
    fault.before(bench.place)
    repaired = False
    while not codes or (codes[-1] and len(codes) < 4):
        driver = bench.start(folder)
        try:
            if not codes:
                fault.hit(driver, folder)
            codes.append(driver.wait(SLOWEST))
        except BaseException:
            driver.process.kill()
            raise
        if codes[-1] and not repaired:
            fault.after()
            repaired = True
    if kind == "frozen":
        cluster.thaw()  # the node finds that it is given up, and ends its run
    left = still_running(cluster)
    if not repaired:
        fault.after()
    text = log.read_text(encoding="utf-8", errors="replace")
    logs = "".join(path.read_text(errors="replace") for path in folder.glob("logs/*.log"))
    lines = [line for line in text.splitlines() if ": accuracy " in line]
    return {
        "number": number,
        "kind": kind,
        "seconds": round(time.monotonic() - began, 1),
        "exit_codes": codes,
        "different": bench.differences(folder),
        "twice": sum(n > 1 for n in Counter(line.partition(":")[0] for line in lines).values()),
        "under_way": fault.under_way,
        "lost_attempts": logs.count("was lost:"),
        "continued_from_a_checkpoint": logs.count("continued from"),
        "left_out": text.count("left out "),
        "said_why": text.count("lost: the head"),
        "processes_left": left,
    }


def still_running(cluster: NamespaceCluster) -> int:
    """Return how many processes of runs are alive half a minute after the command ended."""
    deadline = time.monotonic() + 30
    while (left := len(cluster.of_runs())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def is_good(row: dict[str, Any]) -> bool:
    """Return whether a comparison equals the one without Ray, with no run twice or left."""
    is_lie = row["kind"].startswith("lying")
    lies = row["left_out"] > 0 if is_lie else row["kind"] != "none" or not row["left_out"]
    ended = row["exit_codes"][-1] == 0 and not row["processes_left"] and not row["twice"]
    # This program kills a command that hangs; only the fault "driver" kills one on purpose.
    hung = -signal.SIGKILL in row["exit_codes"][row["kind"] == "driver" :]
    explained = row["kind"] != "head" or row["exit_codes"][0] == 0 or row["said_why"]
    arrived = row["kind"] not in ("driver", "cancel") or row["exit_codes"][0] != 0
    return bool(not row["different"] and ended and lies and explained and arrived and not hung)


def run_faults(args: argparse.Namespace, file: Path) -> None:
    """Run the faults that a file has no rows of until the time is over; append a row for each."""
    known = {row["number"] for row in rows_of(file)}
    numbers = [k for k in range(args.start, args.start + args.faults) if k not in known]
    if not numbers:
        return
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    os.environ["TMPDIR"] = str(place)  # what killed processes leave is removed with it
    commit, kinds, is_kept = provenance()["commit"], args.kinds.split(","), False
    try:
        bench = Bench(place)
        bench.prepare()
        deadline = time.monotonic() + args.seconds
        with NamespaceCluster(*NODES) as cluster, ray_address(cluster):
            for number in numbers:
                if time.monotonic() > deadline:
                    break
                row = one(number, kinds[number % len(kinds)], bench, cluster)
                line = json.dumps({**row, "load": round(os.getloadavg()[0], 1), "commit": commit})
                with file.open("a", encoding="utf-8") as rows:
                    rows.write(line + "\n")
                print(line, file=sys.stderr, flush=True)
                if is_good(row):
                    shutil.rmtree(place / f"fault{number}")
                else:
                    is_kept = True
                if len(alive(cluster.address)) != len(NODES) + 1:
                    raise RuntimeError("the cluster was not repaired")
    finally:
        if is_kept:
            print(f"kept {place}", file=sys.stderr)
        else:
            shutil.rmtree(place, ignore_errors=True)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows in a file, sorted by number; an empty list if the file does not exist."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return sorted(map(json.loads, lines), key=lambda row: row["number"])


def table(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the numbers of faults and of good ones by kind."""
    kinds = sorted({row["kind"] for row in rows})
    of_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    return {
        kind: {
            "faults": len(found),
            "good": sum(map(is_good, found)),
            "commands_repeated": sum(len(row["exit_codes"]) > 1 for row in found),
            "hit_runs_under_way": sum(row["under_way"] > 0 for row in found),
            "lost_attempts": sum(row["lost_attempts"] for row in found),
            "continued_from_a_checkpoint": sum(r["continued_from_a_checkpoint"] for r in found),
        }
        for kind, found in of_kind.items()
    }


def main() -> None:
    """Run faults in a new network namespace, and print one line of JSON."""
    parser = command_line(__doc__, out=None)
    parser.add_argument("--faults", type=int, default=20, metavar="INT")
    parser.add_argument("--seconds", type=float, default=600, metavar="FLOAT")
    parser.add_argument("--start", type=int, default=0, metavar="INT", help="first seed")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="LIST")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where rows are kept")
    args = parser.parse_args()
    in_own_network()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    places = Path(__file__).parent, Path(__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, places))
    preloaded = (
        "ampft.cli",
        "ampft.comparison.execution.train_and_compare",
        "ampft.tasks.single_label",
    )
    _WARM.set_forkserver_preload([*preloaded, "stub_comparison", "ray"])
    with tempfile.TemporaryDirectory() as folder:
        file = args.rows or Path(folder) / "rows.jsonl"
        run_faults(args, file)
        rows = rows_of(file)
    good = sum(map(is_good, rows))
    result = {"kinds": table(rows), "rows": rows, "good": good}
    print(json.dumps({**result, **provenance()}))
    raise SystemExit(good != len(rows))


if __name__ == "__main__":
    main()
