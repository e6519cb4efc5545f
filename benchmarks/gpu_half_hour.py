"""All that needs a GPU, by worth, in one command that can be stopped and called again.

Each entry is a process of its own, so that the failure of one does not stop the next, and has a
limit on its time. What ended stands in `half-hour.json` at once and is not run again; an entry that
was stopped by the time continues where its own program can. Entries whose packages are missing are
skipped, with the reason. A bare machine needs torch, transformers, accelerate and the packages of
`pyproject.toml`; no network, data or pretrained weights.

    python benchmarks gpu_half_hour --out half-hour --minutes 25
    python benchmarks gpu_half_hour --out half-hour --minutes 9     # again, until nothing is left
    python benchmarks gpu_half_hour --out rehearsed --rehearse      # on a CPU, tiny
    python benchmarks gpu_half_hour --list
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from provenance import command_line, provenance

from ampft.files import write_text

ROOT = Path(__file__).resolve().parents[1]
RESULT = "half-hour.json"
LEAST_SECONDS = 20.0  # that must be left before an entry begins
EXIT_UNFINISHED = 4
# What results in one folder must have in common.
CONDITIONS = ("rehearsal", "commit", "changed_files", "versions", "hardware")
TEST_PACKAGES = ("pytest", "pytest-xdist", "hypothesis")
LINES = 12  # of the end of an entry's log that stand in the result
DONE, FAILED, STOPPED, SKIPPED = "done", "failed", "stopped", "skipped"
GPU_TESTS = "{gpu_tests}"  # Stands for the files with tests that need a GPU.
PLANTED = "AMPFT_PLANTED_FAILURE"  # environment variable: name of an entry that fails, for a test


@dataclass(frozen=True)
class Entry:
    """Something that is measured or examined."""

    name: str
    purpose: str
    # Words after `python`; {out} stands for its file or folder, {folder} for that of all results.
    words: tuple[str, ...]
    seconds: float  # Limit of its time.
    rehearsed: tuple[str, ...]  # The same, on a CPU, tiny.
    packages: tuple[str, ...] = ()  # Packages without which it is skipped.
    # Exit codes of an entry that ended; others are failures.
    expected: tuple[int, ...] = (0,)


def _benchmark(name: str, *words: str) -> tuple[str, ...]:
    return ("benchmarks", name, "--out", "{out}.json", *words)


def _speed(*words: str) -> tuple[str, ...]:
    """Return a measurement of speed; all write one file, so that nothing is measured twice."""
    return ("benchmarks", "gpu_turns", "--out", "{folder}/speed.json", *words)


_GPU_TESTS = ("-m", "gpu", "-q", "-n", "0", "-p", "no:cacheprovider", GPU_TESTS)

# By worth. Speed comes first, because it was never measured on a GPU.
ENTRIES = (
    Entry(
        "speed-first", "speed in turns of what matters most, with graphs on, off and chosen",
        _speed("--turns", "3", "--first", "4", "--seconds", "400"), 430,
        _speed("--turns", "1", "--first", "1", "--rehearse"),
    ),
    Entry(
        "accept", "every promise, by commands; among them graphs in fp32 and `ampft export`, which "
        "were red on the first GPU",
        ("-m", "ampft", "accept", "--output_dir", "{out}", "--max_minutes", "4"), 300,
        ("-m", "ampft", "accept", "--output_dir", "{out}", "--max_minutes", "0.0001", "--use_cpu"),
        packages=("datasets",),
        expected=(0, 1, 4),
    ),
    Entry(
        "first-step", "seconds until the first step of `ampft train` in bf16, fp16 and fp8",
        _benchmark("gpu_first_step"), 200, _benchmark("gpu_first_step", "--rehearse"),
        packages=("datasets",),
    ),
    Entry(
        "digits", "the emulations of 16 bits beside the arithmetic of the GPU",
        _benchmark("gpu_digits"), 120, _benchmark("gpu_digits", "--rehearse"),
    ),
    Entry(
        "determinism", "the cost of --deterministic, and whether bits repeat",
        _benchmark("determinism"), 120, _benchmark("determinism", "--tiny", "--steps", "2"),
    ),
    Entry(
        "tests", "the tests that need a GPU",
        ("-m", "pytest", *_GPU_TESTS), 300, ("-m", "pytest", *_GPU_TESTS, "--collect-only"),
        packages=("pytest", "xdist", "hypothesis"),
        expected=(0, 1),
    ),
    Entry(
        "speed-all", "speed in turns of all models, modes, batch sizes and lengths",
        _speed("--turns", "2", "--seconds", "840"), 900,
        _speed("--turns", "1", "--rehearse"),
    ),
)  # fmt: skip


def run_entry(entry: Entry, folder: Path, *, seconds: float, is_rehearsal: bool) -> dict[str, Any]:
    """Run an entry as a process; return how it ended.

    Args:
        entry: The entry.
        folder: Folder of the results.
        seconds: Limit of its time.
        is_rehearsal: Whether it runs tiny, on the CPU.
    """
    missing = [name for name in entry.packages if find_spec(name) is None]
    if missing:
        return {"status": SKIPPED, "reason": f"not installed: {', '.join(missing)}"}
    words = _completed(entry.rehearsed if is_rehearsal else entry.words, entry, folder)
    if os.environ.get(PLANTED) == entry.name:
        words = ["-c", "print('planted failure'); raise SystemExit(99)"]
    started, log = time.monotonic(), folder / f"{entry.name}.log"
    with log.open("a", encoding="utf-8") as written:
        process = subprocess.Popen(
            [sys.executable, "-u", *words],
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    is_stopped = code is None or (code == EXIT_UNFINISHED and code not in entry.expected)
    status = STOPPED if is_stopped else DONE if code in entry.expected else FAILED
    return {
        "status": status,
        "exit_code": code,
        "seconds": round(time.monotonic() - started, 1),
        "words": list(entry.rehearsed if is_rehearsal else entry.words),
        "end": lines[-LINES:],
    }


def _completed(words: Sequence[str], entry: Entry, folder: Path) -> list[str]:
    """Return the words with the paths that they stand for."""
    completed: list[str] = []
    for word in words:
        if word == GPU_TESTS:
            completed += files_of_gpu_tests()
        else:
            completed.append(word.format(out=folder / entry.name, folder=folder))
    return completed


def files_of_gpu_tests() -> list[str]:
    """Return the files that have tests for a GPU: importing all others takes half a minute."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "mark.gpu" in path.read_text(encoding="utf-8")]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    except ProcessLookupError:
        return


def run(
    folder: Path,
    head: Mapping[str, Any],
    entries: dict[str, dict[str, Any]],
    deadline: float,
    *,
    is_rehearsal: bool,
) -> bool:
    """Run what has not ended; return whether all of it has ended now.

    Args:
        folder: Folder of the results.
        head: Provenance.
        entries: How entries of an earlier call ended; those of this call are added.
        deadline: Value of `time.monotonic` at which everything ends.
        is_rehearsal: Whether entries run tiny, on the CPU.
    """
    path = folder / RESULT
    for entry in ENTRIES:
        if entries.get(entry.name, {}).get("status") in (DONE, FAILED, SKIPPED):
            continue
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{entry.name}: the time is over")
            continue
        limit = min(left, entry.seconds)
        print(f"{entry.name}: {entry.purpose} (at most {limit:.0f} s)", flush=True)
        if entry.name == "accept" and (folder / entry.name).exists():
            (folder / entry.name).rename(folder / f"{entry.name}-stopped-{time.time_ns()}")
        entries[entry.name] = run_entry(entry, folder, seconds=limit, is_rehearsal=is_rehearsal)
        write_text(path, json.dumps({**head, "entries": entries}, indent=1) + "\n")
        print(f"{entry.name}: {entries[entry.name]['status']}", flush=True)
    ended = [name for name, row in entries.items() if row["status"] != STOPPED]
    return len(ended) == len(ENTRIES)


def missing_packages() -> list[str]:
    """Return the requirements of ampft and of the entries that this Python does not meet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    words = [*project["dependencies"], *extras["lora"], *extras["fp8"], *TEST_PACKAGES]
    missing = []
    for requirement in map(Requirement, words):
        try:
            is_met = requirement.specifier.contains(metadata.version(requirement.name))
        except metadata.PackageNotFoundError:
            is_met = False
        if not is_met:
            missing.append(str(requirement))
    return missing


def parse_arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Return the arguments of the command line, and the parser."""
    parser = command_line(__doc__, out="folder of the results", required=False)
    parser.add_argument(
        "--minutes", type=float, default=25.0, help="minutes after which all ends (default: 25)"
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--list", action="store_true", help="only list the entries")
    return parser.parse_args(), parser


def main() -> None:
    """Run the entries by worth, and say what is left."""
    args, parser = parse_arguments()
    if args.list:
        for entry in ENTRIES:
            print(f"{entry.name:12} at most {entry.seconds:4.0f} s  {entry.purpose}")
        print(f"packages to bring along: {', '.join(missing_packages()) or 'none'}")
        return
    if args.out is None:
        parser.error("--out: give a folder for the results")
    import torch

    if not (args.rehearse or torch.cuda.is_available()):
        parser.error("a CUDA device is needed. Pass --rehearse to try the program on a CPU.")
    folder = args.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    head = {"rehearsal": args.rehearse, **provenance(names)}
    deadline = time.monotonic() + 60 * args.minutes
    entries: dict[str, dict[str, Any]] = {}
    if (folder / RESULT).exists():
        stored = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        entries = stored["entries"]
        if differing := [name for name in CONDITIONS if stored[name] != head[name]]:
            parser.error(
                f"--out {args.out}: measured under other conditions ({', '.join(differing)}). "
                "Pass another folder."
            )
    if not run(folder, head, entries, deadline, is_rehearsal=args.rehearse):
        print("Not everything fitted into the time. Call the program again.")
        sys.exit(EXIT_UNFINISHED)


if __name__ == "__main__":
    main()
