"""Compare the speed of ampft with the Trainer and with Accelerate's loop on a GPU, in turns.

All systems train on the same batches of random inputs, in the same order, and repeat them pass by
pass. The first pass is cold: libraries plan kernels for each new shape. Two passes are not counted,
in which CUDA graphs are captured and compared. In the passes after these, which are timed, every
shape has been seen. Length grouping composes its batches of the same texts, once.

The arms of ampft are the product's default, which decides by itself about CUDA graphs, and both
choices. Beside the times stands a bound of each job: its operations at the measured rate of matrix
products, and the bytes of its update at the measured bandwidth. Last, a profiler counts the kernels
of a pass, and names the operators and the kernels of attention that ran, for all systems alike.

Jobs are measured in the order of `JOBS`, what matters to most users first. Results are written as
they are measured, and are not measured again: call the program again to measure what did not fit
into its time (exit code 4). What ended the process is not tried again.

Needs no network, data or pretrained weights; what needs a package that is missing is skipped, with
the reason. The padding-free collator of transformers is not measured: it joins the texts of a batch
into one, for which a classifier would have one label.

    python benchmarks gpu_turns --out gpu-turns.json
    python benchmarks gpu_turns --out gpu-turns.json --table       # of what was measured so far
    python benchmarks gpu_turns --out rehearsed.json --rehearse    # on a CPU, tiny
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_jobs import Job, ProfiledTurn, Scale, Turn, synchronize
from gpu_models import MODELS, SkippedError
from gpu_systems import SYSTEMS, run_turn
from provenance import command_line, provenance

import ampft
from ampft.files import write_text
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.text.page import Table, terminal

TURN_SECONDS = 8.0  # that must be left before a turn begins
COMPILED_SECONDS = 60.0  # the same, before one that compiles
COPIED_BYTES = 2**30
EXIT_UNFINISHED = 4
INTERRUPTED = {"failed": "the process ended while this was measured"}
MODES = ("bf16", "fp16", "tf32", "fp32")
REAL, EQUAL, LONG = (41, 128), (128, 128), (512, 512)  # mean and maximum length, in tokens
MAIN_SYSTEMS = ("trainer", "trainer (tuned)", "accelerate loop", "ampft")
GRAPH_SYSTEMS = ("ampft (graphs)", "ampft (no graphs)")
# Model, mode, batch size, lengths: what matters to most users first.
JOBS: tuple[tuple[str, str, int, tuple[int, int]], ...] = (
    ("BERT-base", "bf16", 32, REAL),
    ("ModernBERT-base", "bf16", 32, REAL),
    ("DeBERTa-base", "bf16", 32, REAL),
    ("MiniLM", "bf16", 32, REAL),
    ("BERT-base", "fp16", 32, REAL),
    ("BERT-base", "bf16", 32, EQUAL),
    ("BERT-base", "bf16", 128, REAL),
    ("BERT-base", "bf16", 16, REAL),
    ("ModernBERT-base", "fp16", 32, REAL),
    ("DeBERTa-base", "fp16", 32, REAL),
    ("0.5B decoder, LoRA", "bf16", 16, REAL),
    ("ViT-base", "bf16", 32, EQUAL),
    ("1.5B decoder, LoRA", "bf16", 16, REAL),
    ("BERT-base", "tf32", 32, REAL),
    ("BERT-base", "fp32", 32, REAL),
    ("BERT-base", "bf16", 32, LONG),
    ("MiniLM", "fp16", 128, REAL),
    ("ViT-base", "fp16", 128, EQUAL),
)
# What results in one file must have in common.
CONDITIONS = ("rehearsal", "commit", "changed_files", "versions", "hardware")


def measure_turn(system: str, job: Job) -> dict[str, Any]:
    """Return seconds, peak memory and energy per step of a system in one turn."""
    turn = Turn(job.scale)
    run_turn(system, job, turn)
    peak = torch.cuda.max_memory_allocated(job.scale.device) if job.scale.on_gpu else None
    return {
        "step_seconds": statistics.median(turn.warm_steps),
        "warm_step_seconds": turn.warm_steps,
        "cold_step_seconds": turn.cold_step,
        "first_step_seconds": turn.first_step,
        "peak_bytes": peak,
        "joules_per_step": turn.joules,
        **turn.notes,
    }


def count_kernels(system: str, job: Job) -> dict[str, Any]:
    """Return the counts of a system, and the names of its attention."""
    turn = ProfiledTurn(job.scale)
    run_turn(system, job, turn)
    if job.scale.on_gpu and not turn.counts["kernels"]:
        raise RuntimeError("torch.profiler has seen no kernel")
    return turn.counts


def measure_rate(job: Job) -> dict[str, Any]:
    """Return the rate of large matrix products in the mode of a job, in 10^9 operations/s."""
    precision, scale = job.precision(), job.scale
    with ampft.numerics(precision):
        rate = measure_matrix_rate(
            scale.device, precision.compute_dtype, name=job.mode, max_seconds=scale.rate_seconds
        )
    return {"gflops": rate.gflops, "matrix_size": rate.size}


def measure_bandwidth(scale: Scale) -> dict[str, Any]:
    """Return 10^9 bytes per second that a copy on the device reads and writes."""
    source = torch.zeros(COPIED_BYTES if scale.on_gpu else 2**20, dtype=torch.uint8).to(
        scale.device
    )
    target, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        synchronize(scale.device)
        started = time.perf_counter()
        target.copy_(source)
        synchronize(scale.device)
        best = min(best, time.perf_counter() - started)
    return {"gigabytes_per_second": 2 * source.numel() / best / 1e9}


@dataclass
class Results:
    """The results in a JSON file, and the time that is left."""

    path: Path  # The file.
    head: dict[str, Any]  # Provenance.
    deadline: float  # Value of `time.monotonic` at which nothing new begins.
    # Result by name: measured values, `skipped` with a reason, or `failed` with the error.
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # Names of what did not fit into the time.

    def measure(self, name: str, function: Callable[[], dict[str, Any]], seconds: float) -> None:
        """Measure and write a result, unless the file has it or less than `seconds` are left."""
        if name in self.rows:
            return
        if self.deadline - time.monotonic() < seconds:
            self.left.append(name)
            return
        self.rows[name] = INTERRUPTED  # stands in the file if the process ends
        self.write()
        try:
            row = function()
        except SkippedError as reason:
            row = {"skipped": str(reason)}
        except Exception as error:  # a failure is a result, and the others are still wanted
            row = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        self.rows[name] = row
        self.write()
        print(f"{self.deadline - time.monotonic():4.0f} s left  {name}: {str(row)[:120]}")
        if "failed" in row and torch.cuda.is_available():
            torch.cuda.synchronize()  # raises if the device no longer works: all others would fail

    def write(self) -> None:
        """Replace the file."""
        content = {**self.head, "left": self.left, "rows": self.rows}
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def scale_of(*, rehearse: bool) -> Scale:
    """Return the scale of the measurements on this machine."""
    if rehearse:
        return Scale(torch.device("cpu"), True, 2, 0.0, 1e-4)
    return Scale(torch.device("cuda", 0), False, 16, 1.0, 0.05)


def all_jobs(scale: Scale, modes: tuple[str, ...] = MODES, first: int | None = None) -> list[Job]:
    """Return the first jobs of `JOBS` in these modes; a rehearsal has one job per model, in fp32.

    Args:
        scale: Scale of the measurements.
        modes: Names of modes.
        first: Number of jobs; None for all.
    """
    if scale.is_tiny:
        jobs = [Job(scale, "fp32", name, (6, 12), 4) for name in MODELS]
    else:
        jobs = [
            Job(scale, mode, name, tokens, batch_size)
            for name, mode, batch_size, tokens in JOBS
            if mode in modes
        ]
    return jobs[:first]


def systems_of(job: Job, jobs: list[Job]) -> list[str]:
    """Return the systems of a job: all for the first one, and fewer for later ones."""
    place = jobs.index(job)
    if place == 0:
        return list(SYSTEMS)
    if job.scale.is_tiny:
        return ["trainer (tuned)", "ampft"]
    return [*MAIN_SYSTEMS, *GRAPH_SYSTEMS] if place < 5 else list(MAIN_SYSTEMS)


def run(results: Results, jobs: list[Job], turns: int) -> None:
    """Measure all systems of all jobs in turns, then count their kernels."""
    first = {job.mode: job for job in reversed(jobs)}
    for mode, job in first.items():
        results.measure(f"matrix rate, {mode}", partial(measure_rate, job), TURN_SECONDS)
    scale = jobs[0].scale
    results.measure("bandwidth", partial(measure_bandwidth, scale), TURN_SECONDS)
    for job in jobs:
        results.measure(f"{job.name}, work", job.work, TURN_SECONDS)
        for number in range(1, turns + 1):
            names = systems_of(job, jobs)
            for system in names if number % 2 else names[::-1]:
                seconds = COMPILED_SECONDS if "compiled" in system else TURN_SECONDS
                name = f"{job.name}, turn {number}, {system}"
                results.measure(name, partial(measure_turn, system, job), seconds)
    # Last, because a profiler may slow down what follows in its process.
    for job in jobs[:1] if scale.is_tiny else jobs:
        for system in systems_of(job, jobs):
            name = f"{job.name}, counts, {system}"
            results.measure(name, partial(count_kernels, system, job), TURN_SECONDS)


def table(results: Results, jobs: list[Job]) -> Table:
    """Return medians over the turns, with ranges, per job and system."""
    header = (
        *("job, system", "turns", "first s", "cold ms", "warm ms", "ampft faster", "of bound"),
        *("MiB", "J per 1,000", "launches", "kernels"),
    )
    return Table(header=header, rows=[row for job in jobs for row in _rows(results, job)], left=1)


def bound_seconds(results: Results, job: Job) -> float | None:
    """Return the least time of a step; None if something was not measured.

    Operations at the rate of large matrix products, then the bytes of the update at the bandwidth.
    """
    rate = results.rows.get(f"matrix rate, {job.mode}", {}).get("gflops")
    bandwidth = results.rows.get("bandwidth", {}).get("gigabytes_per_second")
    work = results.rows.get(f"{job.name}, work", {})
    if not (rate and bandwidth and "gflop" in work):
        return None
    return float(work["gflop"] / rate + work["gigabytes"] / bandwidth)


def _rows(results: Results, job: Job) -> Iterator[tuple[str, ...]]:
    def turns_of(system: str) -> dict[int, dict[str, Any]]:
        named = {n: results.rows.get(f"{job.name}, turn {n}, {system}", {}) for n in range(1, 100)}
        return {number: row for number, row in named.items() if "step_seconds" in row}

    ours, bound = turns_of("ampft"), bound_seconds(results, job)
    for system in SYSTEMS:
        if not (own := turns_of(system)):
            continue
        counts = results.rows.get(f"{job.name}, counts, {system}", {})
        warm = [row["step_seconds"] for row in own.values()]
        ratios = [own[n]["step_seconds"] / ours[n]["step_seconds"] for n in own if n in ours]
        yield (
            f"{job.name}, {system}",
            str(len(own)),
            f"{max(row['first_step_seconds'] for row in own.values()):.1f}",
            _range([1000 * row["cold_step_seconds"] for row in own.values()]),
            _range([1000 * seconds for seconds in warm]),
            _range(ratios) if ratios else "-",
            "-" if bound is None else f"{bound / statistics.median(warm):.0%}",
            _largest(own, "peak_bytes", 2**20),
            _largest(own, "joules_per_step", job.batch_size / 1000),
            *(f"{counts[name]:.0f}" if name in counts else "-" for name in ("launches", "kernels")),
        )


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _largest(turns: dict[int, dict[str, Any]], name: str, unit: float) -> str:
    values = [row[name] for row in turns.values() if row[name] is not None]
    return f"{max(values) / unit:.1f}" if values else "-"


def parse_arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Return the arguments of the command line, and the parser for errors found later."""
    parser = command_line(__doc__, out="JSON file of the results")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="precisions")
    parser.add_argument("--first", type=int, help="measure only the first N jobs", metavar="N")
    parser.add_argument("--turns", type=int, default=3, help="turns of each system in each job")
    parser.add_argument(
        "--seconds",
        type=float,
        default=510.0,
        help="seconds after which nothing new begins (default: %(default)g)",
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--table", action="store_true", help="only print what the file has")
    return parser.parse_args(), parser


def open_results(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Results:
    """Return the results of the file, to which the program adds; exit if it cannot continue it."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    head = {"rehearsal": args.rehearse, **provenance(names)}
    results = Results(args.out, head, time.monotonic() + args.seconds)
    if not args.out.exists():
        return results
    try:
        stored = json.loads(args.out.read_text(encoding="utf-8"))
        differing = [name for name in CONDITIONS if stored[name] != head[name]]
        results.rows = dict(stored["rows"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        parser.error(f"--out {args.out}: not a file of results. Pass another name.")
    if differing and not args.table:
        parser.error(
            f"--out {args.out}: measured under other conditions ({', '.join(differing)}). "
            "Pass another name."
        )
    return results


def main() -> None:
    """Measure what the file does not have yet, and print the table."""
    args, parser = parse_arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not (args.rehearse or args.table or torch.cuda.is_available()):
        parser.error("a CUDA device is needed. Pass --rehearse to try the program on a CPU.")
    if torch.cuda.device_count() > 1:
        parser.error("set CUDA_VISIBLE_DEVICES=0: with several GPUs the Trainer splits each batch")
    results = open_results(args, parser)
    jobs = all_jobs(scale_of(rehearse=args.rehearse), tuple(args.modes), args.first)
    if not args.table:
        run(results, jobs, args.turns)
        results.write()
    print(f"\n{terminal([table(results, jobs)])}\n")
    for name, row in results.rows.items():
        if "failed" in row:
            print(f"Failed: {name}: {row['failed']}")
    if results.left:
        print(f"{len(results.left)} results did not fit into the time. Call the program again.")
        sys.exit(EXIT_UNFINISHED)


if __name__ == "__main__":
    main()
