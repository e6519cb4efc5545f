"""Comparisons on a Ray cluster with faults: each must equal the one without Ray, bit for bit.

The cluster has three nodes on the loopback address of a network namespace of its own. A fault hits
at a random moment: a worker, a node, the head or the comparison's own process is killed, a node is
frozen, the comparison is cancelled, the object store is filled, or a node lies (other data, or
other kernels). If the command fails, it is repeated, with a new head if the head is gone. Prints
one line of JSON with a row per fault.

    python benchmarks/cluster_faults.py --faults 200 --seconds 36000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "recipes"))
from loopback_cluster import LoopbackCluster, alive, ray_address
from provenance import provenance

INSIDE = "AMPFT_FAULTS_INSIDE"  # set in the network namespace
NODES = ("one", "two", "three")
KINDS = (
    *("none", "worker", "node", "head", "driver", "cancel", "frozen", "store", "lying data"),
    "lying kernels",
)
RUNS = 6
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


@dataclass
class Bench:
    """The files that all comparisons share, and the one without Ray.

    Attributes:
        place: Folder of everything.
        plan: Plan of a comparison with Ray, before its first run.
    """

    place: Path
    plan: dict[str, Any] = field(default_factory=dict)

    def words(self, folder: Path, *own: str) -> list[str]:
        """Return the command of a comparison."""
        files = ["--train_file", str(self.place / "train.csv")]
        files += ["--test_file", str(self.place / "test.csv")]
        settings = ["--modes", "fp32,bf16", "--seeds", "3", "--no_placebo", "--anyway"]
        training = ["--use_cpu", "--cpu_threads", "1", "--max_train_steps", "12"]
        training += ["--checkpointing_steps", "3", "--checkpoint_total_limit", "1"]
        model = ["--model_name_or_path", str(self.place / "bert")]
        start = [sys.executable, "-m", "ampft", "compare", "--output_dir", str(folder)]
        return [*start, *settings, *own, "--", *files, *training, *model]

    def prepare(self) -> None:
        """Write data and model, and train the comparison without Ray."""
        from running import rows, write_csv  # type: ignore[import-not-found]
        from tiny_text import save_tiny_bert  # type: ignore[import-not-found]

        write_csv(self.place / "train.csv", rows(120, 0), ("text", "label"))
        write_csv(self.place / "other.csv", rows(120, 5), ("text", "label"))
        write_csv(self.place / "test.csv", rows(300, 1), ("text", "label"))
        (self.place / "bert").mkdir()
        save_tiny_bert(self.place / "bert")
        log = (self.place / "sequential.log").open("wb")
        subprocess.run(
            self.words(self.place / "sequential"), stdout=log, stderr=log, check=True, timeout=900
        )

    def start(self, folder: Path) -> subprocess.Popen[bytes]:
        """Start a comparison with Ray, with the plan of an earlier one if there is one."""
        if self.plan and not folder.exists():
            folder.mkdir()
            (folder / "plan.json").write_text(json.dumps(self.plan), encoding="utf-8")
        log = folder.with_name(f"{folder.name}.log").open("ab")
        words = self.words(folder, "--engine", "ray", "--jobs", "3")
        return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def differences(self, folder: Path) -> list[str]:
        """Return the runs of a comparison that differ from those without Ray."""
        from resumed_runs import evidence  # type: ignore[import-not-found]

        found = []
        for run in sorted((self.place / "sequential" / "runs").iterdir()):
            try:
                if evidence(run) != evidence(folder / "runs" / run.name):
                    found.append(run.name)
            except OSError as error:
                found.append(f"{run.name}: {error}")
        return found


class Fault:
    """A fault of one kind, which hits a comparison at a random moment."""

    def __init__(self, kind: str, number: int, cluster: LoopbackCluster) -> None:
        """Draw the moment from `number`."""
        self.kind, self._cluster = kind, cluster
        self._random = random.Random(number)
        self._hog: subprocess.Popen[bytes] | None = None
        self._name = self._random.choice(NODES)

    def before(self, place: Path) -> None:
        """Prepare the nodes, before the command starts."""
        cluster = self._cluster
        if self.kind in ("lying data", "lying kernels"):
            lie = {"ATEN_CPU_CAPABILITY": "default"} if self.kind == "lying kernels" else {}
            data = (place / "other.csv", place / "train.csv") if not lie else None
            cluster.kill(self._name)
            cluster.wait_until_gone(self._name)
            cluster.add(self._name, instead=data, **lie)
        if self.kind == "store":
            words = [sys.executable, "-c", HOG, cluster.address]
            self._hog = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self._hog.stdout is not None
            self._hog.stdout.readline()

    def hit(self, driver: subprocess.Popen[bytes], folder: Path) -> None:
        """Wait for a run to begin and a random moment, and do the harm."""
        if self.kind in ("none", "store", "lying data", "lying kernels"):
            return
        while driver.poll() is None and not list(folder.glob("logs/*.log")):
            time.sleep(0.1)
        time.sleep(self._random.uniform(0, 12))
        if self.kind == "worker":
            for worker in self._cluster.workers()[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
        elif self.kind in ("node", "head"):
            self._cluster.kill(self._name if self.kind == "node" else "head")
        elif self.kind == "frozen":
            self._cluster.freeze(self._name)
        elif self.kind in ("driver", "cancel"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(driver.pid, signal.SIGKILL if self.kind == "driver" else signal.SIGINT)

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
        elif self.kind in ("node", "frozen", "lying data", "lying kernels"):
            cluster.kill(self._name)
            cluster.wait_until_gone(self._name)
            cluster.add(self._name)


def one(number: int, kind: str, bench: Bench, cluster: LoopbackCluster) -> dict[str, Any]:
    """Run a comparison with a fault, repeat the command until it succeeds, and judge it."""
    folder = bench.place / f"fault{number}"
    log = folder.with_name(f"{folder.name}.log")
    began = time.monotonic()
    codes: list[int] = []
    fault = Fault(kind, number, cluster)
    fault.before(bench.place)
    repaired = False
    with ray_address(cluster):
        while not codes or (codes[-1] and len(codes) < 4):
            driver = bench.start(folder)
            if not codes:
                fault.hit(driver, folder)
            try:
                codes.append(driver.wait(300))
            except subprocess.TimeoutExpired:
                driver.kill()
                codes.append(driver.wait())
            if codes[-1] and not repaired:
                fault.after()
                os.environ["RAY_ADDRESS"] = cluster.address
                repaired = True
    left = still_running(cluster)
    if not repaired:
        fault.after()
    text = log.read_text(encoding="utf-8", errors="replace")
    logs = "".join(path.read_text(errors="replace") for path in folder.glob("logs/*.log"))
    records = [json.loads(path.read_text()) for path in folder.glob("runs/*/run.json")]
    return {
        "number": number,
        "kind": kind,
        "seconds": round(time.monotonic() - began, 1),
        "exit_codes": codes,
        "different": bench.differences(folder),
        "finished": text.count(": accuracy "),
        "lost_attempts": logs.count("was lost:"),
        "continued_from_a_checkpoint": sum(bool(record["resumes"]) for record in records),
        "left_out": text.count("left out "),
        "processes_left": left,
    }


def still_running(cluster: LoopbackCluster) -> int:
    """Return how many processes of runs are alive half a minute after the command ended."""
    deadline = time.monotonic() + 30
    while (left := len(cluster.of_runs())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def is_good(row: dict[str, Any]) -> bool:
    """Return whether a comparison equals the one without Ray, with no run twice or left."""
    lies = row["kind"].startswith("lying") <= (row["left_out"] > 0)
    once = row["finished"] == RUNS and not row["processes_left"]
    return bool(not row["different"] and row["exit_codes"][-1] == 0 and once and lies)


def run_faults(faults: int, seconds: float, kinds: list[str], start: int) -> list[dict[str, Any]]:
    """Run faults, in turns of their kinds, until the time is over; return a row for each."""
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    rows: list[dict[str, Any]] = []
    try:
        bench = Bench(place)
        bench.prepare()
        deadline = time.monotonic() + seconds
        with LoopbackCluster(*NODES) as cluster:
            for number in range(start, start + faults):
                if time.monotonic() > deadline:
                    break
                row = one(number, kinds[number % len(kinds)], bench, cluster)
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
                folder = place / f"fault{number}"
                if not bench.plan and is_good(row):
                    plan = json.loads((folder / "plan.json").read_text())
                    bench.plan = {**plan, "nodes": {}, "seeds_analysed": []}
                if is_good(row):
                    shutil.rmtree(folder)
                if len(alive(cluster.address)) != len(NODES) + 1:
                    raise RuntimeError("the cluster was not repaired")
    finally:
        if all(map(is_good, rows)):
            shutil.rmtree(place, ignore_errors=True)
        else:
            print(f"kept {place}", file=sys.stderr)
    return rows


def main() -> None:
    """Run faults in a new network namespace, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--faults", type=int, default=20, metavar="INT")
    parser.add_argument("--seconds", type=float, default=600, metavar="FLOAT")
    parser.add_argument("--start", type=int, default=0, metavar="INT", help="first seed")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="LIST")
    args = parser.parse_args()
    if INSIDE not in os.environ:
        script = 'ip link set lo up; exec "$@"'
        own = ["unshare", "--map-root-user", "--net", "--mount", "sh", "-c", script, "sh"]
        command = [*own, sys.executable, *sys.argv]
        raise SystemExit(subprocess.run(command, env={**os.environ, INSIDE: "1"}).returncode)
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = run_faults(args.faults, args.seconds, args.kinds.split(","), args.start)
    result = {"rows": rows, "good": sum(map(is_good, rows)), "load": os.getloadavg()[0]}
    print(json.dumps({**result, **provenance()}))
    raise SystemExit(not all(map(is_good, rows)))


if __name__ == "__main__":
    main()
