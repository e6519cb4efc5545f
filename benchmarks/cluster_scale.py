"""What a comparison of many runs on many slots costs its own process.

Each run is a stub: it sleeps for some milliseconds and writes the folder of a finished run, with a
record of its own and predictions from a pool. The scheduler, the folder, the plan, the progress,
the analysis and the reports are real. Prints one line of JSON with, for each number of runs, the
processor time of this process per run without the stubs, the seconds of the analysis, and the
growth of this process's memory.

    python benchmarks/cluster_scale.py --runs 250 500 1000 --slots 64
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from comparison_scale import ARMS, STEPS, record, synthetic_predictions
from provenance import provenance

from ampft.arguments import parse_compare_arguments
from ampft.comparison.execution import session as module
from ampft.comparison.execution.launch import ResourceSlot
from ampft.comparison.execution.launchers import EndedProgram, Launcher, Program
from ampft.comparison.execution.plan import CostEstimate, ModeCost, Plan, TrainingSize
from ampft.comparison.report.files import write_comparison
from ampft.machine import status_bytes
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import describe_files
from ampft.runs.predictions import write_predictions
from ampft.runs.record import write_record

EXAMPLES, CLASSES, POOL = 300, 3, 5
MODES = ("fp32", "bf16", "fp16")
SLEEP = 0.005  # seconds of a stub


class Stub:
    """Launches stubs; see `ampft.comparison.execution.launchers.Launcher`."""

    seconds = 0.0  # processor time of all stubs
    lock = threading.Lock()

    def __init__(self, slot: ResourceSlot, pool: Path) -> None:
        """Take predictions from `pool`."""
        self.slot, self._pool = slot, pool

    def run(self, program: Program, watch: Callable[[], None]) -> EndedProgram:
        """Write the folder of a finished run."""
        began = time.thread_time()
        time.sleep(SLEEP)
        arm, _, seed = program.folder.name.rpartition("-seed")
        names = [f"class {k}" for k in range(CLASSES)]
        program.log.write_bytes(b"log of ampft, replaced when the command is repeated\n")
        source = self._pool / f"{arm}-seed{int(seed) % POOL}"
        with RunFolder(program.folder) as folder:
            for path in source.iterdir():
                (folder / path.name).hardlink_to(path)
            found = record(arm, int(seed), EXAMPLES, names)
            write_record(folder, replace(found, files=describe_files(source)))
        with Stub.lock:
            Stub.seconds += time.thread_time() - began
        return EndedProgram(SLEEP, f"node{self.slot.number % 8}")

    def history(self, program: Program) -> Path:
        """Return the history of a run."""
        return program.folder / "history.jsonl"

    def kill(self) -> None:
        """Do nothing: a stub ends at once."""

    def close(self) -> None:
        """Do nothing."""


def write_pool(folder: Path) -> None:
    """Write predictions and histories of a few runs of each arm."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    base = rng.normal(0, 1, (EXAMPLES, CLASSES)).astype(np.float32)
    base[np.arange(EXAMPLES), labels] += 3
    names = [f"class {k}" for k in range(CLASSES)]
    texts = [f"text {k}" for k in range(EXAMPLES)]
    for arm in ARMS:
        for seed in range(POOL):
            place = folder / f"{arm}-seed{seed}"
            place.mkdir(parents=True)
            found = synthetic_predictions(seed, arm, labels, base, names)
            write_predictions(
                place / "predictions.parquet", found, lambda rows: {"text": texts[rows]}
            )
            lines = [{"step": k, "loss": 1 / k} for k in range(1, STEPS // 20)]
            text = "".join(
                json.dumps({**x, "loss_scale": None, "skipped": False}) + "\n" for x in lines
            )
            (place / "history.jsonl").write_text(text, encoding="utf-8")


def plan_of(seeds: int, slots: int) -> tuple[Plan, list[str]]:
    """Return a plan of four arms, and the words of its command."""
    words = ["--jobs", str(slots), "--seeds", str(seeds), "--modes", ",".join(MODES), "--anyway"]
    command = parse_compare_arguments([*words, "--metric", "accuracy"])
    estimate = CostEstimate(
        startup=0.1,
        modes={mode: ModeCost(step=0.1, evaluated_example=0.001) for mode in MODES},
        executions=dict.fromkeys(MODES, "native"),
        device="CPU, 1 thread",
        size=TrainingSize(epochs=1, train_examples=100),
        effective_batch_size=10,
        validation_examples=0,
        final_examples=EXAMPLES,
        classes=CLASSES,
        model_bytes=1,
    )
    plan = Plan(design=command.design, arguments={}, estimate=estimate, size=estimate.size)
    return plan, words


def measure(runs: int, slots: int, place: Path) -> dict[str, float]:
    """Run a comparison of stubs; return what it cost this process."""
    plan, words = plan_of(runs // len(ARMS), slots)
    pool, folder = place / "pool", place / f"{runs}"
    launchers: tuple[Launcher, ...] = tuple(Stub(ResourceSlot(k), pool) for k in range(slots))
    Stub.seconds, before = 0.0, status_bytes("VmRSS") or 0
    command = parse_compare_arguments(words)
    with (
        patch.object(module, "make_launchers", lambda *_: launchers),
        contextlib.redirect_stdout(io.StringIO()),
        module.open_comparison(command, folder, plan) as session,
    ):
        began, wall = time.process_time(), time.perf_counter()
        session.train(session.missing())
        spent = time.process_time() - began - Stub.seconds
        wall = time.perf_counter() - wall
        seeds = plan.design.seed_counts[-1]
        began = time.process_time()
        comparison = session.analysed(seeds)
        write_comparison(comparison, folder)
        session.record_analysis(seeds)
        analysis = time.process_time() - began
    return {
        "runs": runs,
        "own_milliseconds_per_run": 1000 * spent / runs,
        "wall_milliseconds_per_run": 1000 * wall / runs,
        "analysis_seconds": analysis,
        "memory_growth_bytes": float((status_bytes("VmRSS") or 0) - before),
        "peak_memory_bytes": float(status_bytes("VmHWM") or 0),
    }


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--runs", type=int, nargs="+", default=[250, 500, 1000], metavar="INT")
    parser.add_argument("--slots", type=int, default=64, metavar="INT")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_pool(place / "pool")
        measured = [measure(runs, args.slots, place) for runs in args.runs]
    load = os.getloadavg()[0]
    print(json.dumps({"slots": args.slots, "measured": measured, "load": load, **provenance()}))


if __name__ == "__main__":
    main()
