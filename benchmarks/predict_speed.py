"""Time `ampft predict` beside `transformers.pipeline` as commands, their start included.

    python benchmarks/predict_speed.py RUN texts.csv --repeats 5 --busy 1 --out predict-speed.json

The commands take turns, so that other load on the machine affects all of them alike. Only the
ratios are meaningful. With `--busy`, other processes compute all the time. Prints and writes JSON:
the median seconds of each command, and median and range of its speed-up over the pipeline with
batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provenance import provenance

PIPELINE = """
import csv, sys
import transformers
model, file, column, batch_size = sys.argv[1:]
with open(file, encoding="utf-8", newline="") as rows:
    texts = [row[column] for row in csv.DictReader(rows)]
classify = transformers.pipeline("text-classification", model=model, truncation=True)
found = classify(texts, batch_size=int(batch_size))
csv.writer(sys.stdout).writerows((row["label"], row["score"]) for row in found)
"""


PIPELINE_NAME = "pipeline, batches of 32"


def main() -> None:
    """Time the commands, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", help="output folder of a run on texts")
    parser.add_argument("file", help="CSV file")
    parser.add_argument("--column", default="text", help="text column (default: text)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--busy", type=int, default=0, help="processes beside it (default: none)")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    with busy_processes(args.busy):
        for _ in range(args.repeats):
            for name, (command, environment) in commands(args).items():
                seconds.setdefault(name, []).append(timed(command, environment))
    result = {
        **provenance(),
        "busy": args.busy,
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "speed_up": {name: speed_up(seconds[PIPELINE_NAME], v) for name, v in seconds.items()},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(f"{text}\n", encoding="utf-8")


def speed_up(pipeline: list[float], command: list[float]) -> dict[str, float]:
    """Return median, least and largest ratio of the seconds, turn by turn."""
    ratios = [a / b for a, b in zip(pipeline, command, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios)}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    loop = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def commands(args: argparse.Namespace) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the commands by name, each with the variables that it adds to the environment."""
    predict = [sys.executable, "-m", "ampft", "predict", "--model", args.run, args.file]
    predict += ["--text_column_names", args.column]
    pipeline = [sys.executable, "-c", PIPELINE, args.run, args.file, args.column]
    return {
        "pipeline, one at a time": ([*pipeline, "1"], {}),
        PIPELINE_NAME: ([*pipeline, "32"], {}),
        "predict fp32": (predict, {}),
        "predict fp32, threads sleep": (predict, {"OMP_WAIT_POLICY": "PASSIVE"}),
        "predict bf16": ([*predict, "--mixed_precision", "bf16"], {}),
        "predict bf16, threads sleep": (
            [*predict, "--mixed_precision", "bf16"],
            {"OMP_WAIT_POLICY": "PASSIVE"},
        ),
    }


def timed(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds that a command takes, with its output in a file."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "out").open("w") as out:
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=out, stderr=out, env=os.environ | environment)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
