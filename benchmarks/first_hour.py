"""What is to be known first about ampft on a GPU, in three parts, each below nine minutes.

Part 1 runs the tests that need a GPU, and says which attention kernel each family of models takes.
Part 2 compares the speed of ampft with the Trainer: with SDPA, with flash attention 2 if it is
installed, with length grouping, and compiled. Part 3 checks numerics: emulated against native fp16,
sums in 16 bits, and memory that runs out. `ampft accept` checks what whole commands do: trainings
in each mode, graphs, adapters, processes, resume, predictions and exports.

Results are written as they are measured, and are not measured again: call a part again to measure
what did not fit into its time. No network, data or pretrained weights are needed; what needs a
package that is missing is skipped, with the reason.

    python benchmarks/first_hour.py --part 1
    python benchmarks/first_hour.py --part 2
    python benchmarks/first_hour.py --part 3
    python benchmarks/first_hour.py --part 2 --rehearse    # on a CPU, tiny, in seconds
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

BUDGET_SECONDS = 510.0
LAUNCH_SECONDS = 60.0  # of part 2 for counting launches, which comes last
MODES = ("bf16", "fp16", "tf32", "fp32")
TURNS = 2
TURN_SECONDS = 5.0  # that must be left before one begins
PLAIN = (
    "trainer",
    "trainer (flash attention 2)",
    "trainer (length grouping)",
    "ampft",
    "ampft (graphs)",
)
COMPILED = ("trainer (compiled)", "ampft (compiled)", "ampft")
COMPILED_TURN_SECONDS = 60.0  # that must be left before one begins
REHEARSED_FAMILIES = ("bert", "t5")
REHEARSED_TESTS = "tests/models/test_packed_on_gpu.py"
# What two results in one file must have in common.
CONDITIONS = ("commit", "changed_files", "versions", "hardware")


@dataclass
class Results:
    """The results of a part in a JSON file, and its time."""

    path: Path  # The file.
    head: dict[str, Any]  # Part and provenance.
    deadline: float  # Value of `time.monotonic` at which nothing new begins.
    # Result by name: measured values, `skipped` with a reason, or `failed` with the error.
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # Names of what did not fit into the time.

    @property
    def seconds(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def measure(
        self, name: str, function: Callable[[], dict[str, Any]], *, seconds: float = 5.0
    ) -> None:
        """Measure and write a result, unless the file has it or less than `seconds` are left.

        Args:
            name: Name of the result.
            function: Function that returns it.
            seconds: Seconds that it may need.

        Raises:
            SystemExit: The device no longer works after an error.
        """
        from gpu_turns import SkippedError

        if name in self.rows:
            return
        if self.seconds < seconds:
            self.left += [name] * (name not in self.left)
            return
        started = time.monotonic()
        try:
            row = function()
        except SkippedError as reason:
            row = {"skipped": str(reason)}
        except subprocess.TimeoutExpired:
            self.left.append(name)
            return
        except Exception as error:  # a failure is a result, and the others are still wanted
            row = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        self.rows[name] = row | {"took_seconds": time.monotonic() - started}
        self.write()
        print(f"{self.seconds:4.0f} s left  {name}: {summary(row)}", flush=True)
        if "failed" in row:
            self._check_device(name)

    def _check_device(self, name: str) -> None:
        """Stop if the device no longer works, so that not all that follows fails too."""
        import torch

        try:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except RuntimeError as error:
            raise SystemExit(
                f"{name} left the GPU unusable ({error}). Call this part again to continue."
            ) from error

    def write(self) -> None:
        """Replace the file."""
        from ampft.files import write_text

        content = {**self.head, "left": self.left, "rows": self.rows}
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def summary(row: dict[str, Any]) -> str:
    """Return a result in one line."""
    values = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if isinstance(value, float | int | str | list) and name != "last_lines"
    )
    return ", ".join(values)[:160]


def open_results(
    args: argparse.Namespace, parser: argparse.ArgumentParser, deadline: float
) -> Results:
    """Return the results of the file, to which a part adds; exit if they cannot be continued."""
    import torch
    from provenance import provenance

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    head = {"part": args.part, "rehearsal": args.rehearse, **provenance(names)}
    path = args.out or Path(f"first-hour-{args.part}.json")
    if not path.exists():
        return Results(path, head, deadline)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        differing = [
            name for name in ("part", "rehearsal", *CONDITIONS) if stored[name] != head[name]
        ]
        rows = dict(stored["rows"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        parser.error(f"--out {path}: not a file of results. Pass another name.")
    if differing:
        parser.error(
            f"--out {path}: measured under other conditions ({', '.join(differing)}). "
            "Pass another name."
        )
    return Results(path, head, deadline, rows)


def scale_of(*, rehearse: bool) -> Any:
    """Return the scale of the measurements on this machine."""
    import torch
    from gpu_turns import Scale
    from operators import SIZES

    if rehearse:
        return Scale(
            device=torch.device("cpu"),
            sizes={"MiniLM": (1, 48)},
            vocabulary=300,
            batch_sizes=(4,),
            tokens=((6, 12),),
            steps=2,
            turn_seconds=1.0,
            rate_seconds=1e-4,
        )
    return Scale(
        device=torch.device("cuda", 0),
        sizes=SIZES,
        vocabulary=30522,
        batch_sizes=(32, 128),
        tokens=((41, 128), (128, 128), (512, 512)),
        steps=60,
        turn_seconds=2.0,
        rate_seconds=0.05,
    )


def run_part_1(results: Results, scale: Any) -> None:
    """Find the attention kernels of the families, and run the GPU tests."""
    from gpu_checks import FAMILIES, GPU_TESTS, attention_kernels, run_program

    rehearsed = REHEARSED_FAMILIES if results.head["rehearsal"] else FAMILIES
    for mode in ("bf16", "fp16", "fp32"):
        for family in rehearsed:
            name = f"kernels of {family}, {mode}"
            results.measure(name, partial(attention_kernels, scale, mode, family))
    command = ["-m", "pytest", *GPU_TESTS, "--continue-on-collection-errors"]
    command += [REHEARSED_TESTS] * results.head["rehearsal"]
    results.measure("tests", lambda: run_program(command, max(1.0, results.seconds)))


def jobs(scale: Any, mode: str) -> Iterable[Any]:
    """Yield the trainings in a mode, those of short texts first."""
    from gpu_turns import Job

    for tokens in scale.tokens:
        for batch_size in scale.batch_sizes:
            for size in scale.sizes:
                yield Job(scale, mode, size, batch_size, tokens)


@dataclass(frozen=True)
class Round:
    """One turn of several systems in a job."""

    job: Any  # The training.
    number: int = 1  # Number of the turn, from 1; even turns have the reverse order.
    systems: tuple[str, ...] = PLAIN  # The systems.
    prefix: str = ""  # Beginning of the names of the results.
    seconds: float = TURN_SECONDS  # Seconds that a turn of one system may need.

    def name(self, system: str) -> str:
        """Return the name of a result."""
        return f"{self.prefix}{self.job.name}, turn {self.number}, {system}"


def compiled_round(job: Any) -> Round:
    """Return the turn of a job in which the Trainer is compiled."""
    return Round(job, 1, COMPILED, "compiled: ", COMPILED_TURN_SECONDS)


def rounds(scale: Any) -> Iterable[Round]:
    """Yield what part 2 measures, the most telling first; some of it twice."""
    every = [
        job for case in zip(*(jobs(scale, mode) for mode in MODES), strict=True) for job in case
    ]
    short = [job for job in every if job.tokens == scale.tokens[0]]
    smallest = [job for job in short if job.batch_size == scale.batch_sizes[0]]
    yield from map(Round, short)
    yield from (compiled_round(job) for job in smallest if job.mode == MODES[0])
    yield from map(Round, every)
    for number in range(2, TURNS + 1):
        yield from (Round(job, number) for job in every)
    yield from map(compiled_round, every)


def run_part_2(results: Results, scale: Any) -> None:
    """Measure the speed of all systems in turns, and count launches."""
    from gpu_turns import count_launches, measure_rate, measure_turn

    for mode in MODES:
        first = next(iter(jobs(scale, mode)))
        results.measure(f"matrix rate, {mode}", partial(measure_rate, first))
    for each in rounds(scale):
        for system in each.systems if each.number % 2 else each.systems[::-1]:
            results.measure(
                each.name(system),
                partial(measure_turn, system, each.job),
                seconds=LAUNCH_SECONDS + each.seconds,
            )
    # Last, because a profiler may slow down what follows in its process.
    for mode in MODES:
        for size in scale.sizes:
            job = replace(next(iter(jobs(scale, mode))), size=size)
            for system in PLAIN:
                name = f"launches, {job.name}, {system}"
                results.measure(name, partial(count_launches, system, job))


def run_part_3(results: Results, scale: Any) -> None:
    """Check numerics and memory."""
    import gpu_checks as checks
    from gpu_turns import Job

    job = Job(scale, "fp16", "MiniLM", scale.batch_sizes[0], scale.tokens[0])
    large = replace(job, mode="fp32", batch_size=scale.batch_sizes[-1])
    results.measure("emulated and native fp16", partial(checks.compare_emulation, job), seconds=20)
    for mode in ("bf16", "fp16"):
        compare = partial(checks.compare_sums, replace(job, mode=mode))
        results.measure(f"sums in 16 bits, {mode}", compare)
    results.measure("out of memory", partial(checks.retry_out_of_memory, large))


def speed_table(results: Results, scale: Any) -> Any:
    """Return the table of part 2: per job and system, medians over the turns."""
    from ampft.text.page import Table

    header = ("job, system", "turns", "ms/step", "ampft faster", "rate", "MiB", "J", "launches")
    rows = []
    for prefix, systems in (("", PLAIN), ("compiled: ", COMPILED)):
        for mode in MODES:
            for job in jobs(scale, mode):
                turns = {
                    system: measured_turns(results, f"{prefix}{job.name}", system)
                    for system in systems
                }
                rows += [
                    (f"{prefix}{job.name}, {system}", *speed_cells(results, job, system, turns))
                    for system in systems
                    if turns[system]
                ]
    return Table(header=header, rows=rows)


def measured_turns(results: Results, job_name: str, system: str) -> dict[int, dict[str, Any]]:
    """Return the measured turns of a system in a job, by number."""
    names = {turn: f"{job_name}, turn {turn}, {system}" for turn in range(1, TURNS + 1)}
    rows = {turn: results.rows.get(name, {}) for turn, name in names.items()}
    return {turn: row for turn, row in rows.items() if "step_seconds" in row}


def speed_cells(
    results: Results, job: Any, system: str, turns: dict[str, dict[int, dict[str, Any]]]
) -> tuple[str, ...]:
    """Return the numbers of a system in a job; a hyphen where one is missing."""
    from gpu_turns import gflop_per_step

    own = turns[system]
    step = statistics.median(row["step_seconds"] for row in own.values())
    ours = turns["ampft"]
    ratios = [
        own[turn]["step_seconds"] / ours[turn]["step_seconds"] for turn in own if turn in ours
    ]
    rate = results.rows.get(f"matrix rate, {job.mode}", {}).get("gflops")
    peaks = [row["peak_bytes"] for row in own.values() if row["peak_bytes"] is not None]
    joules = [row["joules_per_step"] for row in own.values() if row["joules_per_step"] is not None]
    launches = results.rows.get(f"launches, {job.name}, {system}", {}).get("launches")
    return (
        str(len(own)),
        f"{1000 * step:.2f}",
        f"{statistics.median(ratios):.2f}" if ratios else "-",
        f"{gflop_per_step(job) / step / rate:.0%}" if rate else "-",
        f"{max(peaks) / 2**20:.0f}" if peaks else "-",
        f"{statistics.median(joules):.2f}" if joules else "-",
        "-" if launches is None else str(launches),
    )


def plain_table(results: Results, scale: Any) -> Any:
    """Return the table of parts 1 and 3: one result per row."""
    from ampft.text.page import Name, Table

    del scale
    rows = [(Name(name), Name(summary(row))) for name, row in results.rows.items()]
    return Table(header=("result", "values"), rows=rows, left=2)


PARTS = {1: (run_part_1, plain_table), 2: (run_part_2, speed_table), 3: (run_part_3, plain_table)}


def parse_arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Return the arguments of the command line, and the parser for errors found later."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0], allow_abbrev=False)
    parser.add_argument("--part", type=int, choices=PARTS, required=True)
    parser.add_argument(
        "--seconds",
        type=float,
        default=BUDGET_SECONDS,
        help="seconds after which nothing new begins (default: %(default)g)",
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument(
        "--out", type=Path, help="JSON file of the results (default: first-hour-PART.json)"
    )
    return parser.parse_args(), parser


def main() -> None:
    """Run a part and print its table."""
    args, parser = parse_arguments()
    deadline = time.monotonic() + args.seconds
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:  # with several, the Trainer would split each batch
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    import torch

    if not args.rehearse and not torch.cuda.is_available():
        parser.error("a CUDA device is needed. Pass --rehearse to try the program on a CPU.")
    results = open_results(args, parser, deadline)
    scale = scale_of(rehearse=args.rehearse)
    run, table = PARTS[args.part]
    run(results, scale)
    results.write()
    from ampft.text.page import terminal

    print(f"\n{terminal([table(results, scale)])}\n")
    for name, row in results.rows.items():
        if "failed" in row:
            print(f"Failed: {name}: {row['failed']}")
    if results.left:
        print(f"{len(results.left)} results did not fit into the time. Call this part again.")
    print(f"Results: {results.path}")


if __name__ == "__main__":
    main()
