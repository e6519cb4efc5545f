r"""Time artifacts of a run beside `ampft` in bf16 and `transformers.pipeline`, in turns.

    python benchmarks/artifacts.py RUN texts.csv --artifacts onnx-fp32 onnx-int8 openvino-int8 \
        --repeats 7 --out artifacts.json

Every arm predicts the same texts in this process, tokenization included, one text at a time and in
batches. The arms take turns in an order that is reversed in every other round, so that other load
on the machine affects all alike: only the ratios are meaningful. Prints and writes JSON: texts per
second of each arm, and median and range of its speed-up over the pipeline, with PyTorch's number of
threads, which users have, and with one. On a machine with other work, `--clock cpu --threads 1`
counts the time that the arms themselves computed.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from provenance import provenance

from ampft.export import open_artifact
from ampft.kinds.prediction import PredictRequest
from ampft.precision.accelerator import numerics, training_device
from ampft.precision.resolve import resolve
from ampft.runs.predict import load_run_classifier

PIPELINE = "transformers.pipeline"
BATCH_SIZES = (1, 32)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Arm = Callable[[Sequence[str], int], Any]


def main() -> None:
    """Parse the command line, time the arms, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run on single texts")
    parser.add_argument("texts", type=Path, help="CSV file with a column `text`")
    parser.add_argument("--artifacts", type=Path, nargs="+", required=True, help="their folders")
    parser.add_argument("--limit", type=int, default=256, help="texts to predict")
    parser.add_argument("--repeats", type=int, default=7, help="rounds after the first")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="time that is measured"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", help="numbers of threads (default: PyTorch's, and 1)"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    stated = provenance()
    with args.texts.open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)][: args.limit]
    results: dict[str, Any] = {}
    for threads in args.threads or dict.fromkeys((torch.get_num_threads(), 1)):
        torch.set_num_threads(threads)  # sessions take as many when they are opened
        arms = {PIPELINE: pipeline_arm(args.run), "ampft bf16": run_arm(args.run, "bf16")}
        arms |= {folder.name: artifact_arm(folder) for folder in args.artifacts}
        for size in BATCH_SIZES:
            seconds = time_in_turns(arms, texts, size, args.repeats, CLOCKS[args.clock])
            results[f"{threads} threads, batches of {size}"] = summary(seconds, len(texts))
    print(json.dumps(results, indent=2))
    values = {
        "provenance": stated,
        "texts": len(texts),
        "repeats": args.repeats,
        "clock": args.clock,
        "results": results,
    }
    args.out.write_text(f"{json.dumps(values, indent=2)}\n", encoding="utf-8")


def pipeline_arm(run: Path) -> Arm:
    """Return the pipeline of transformers with the model of a run."""
    classify = transformers.pipeline("text-classification", model=str(run), truncation=True)
    return lambda texts, batch_size: classify(list(texts), batch_size=batch_size)


def run_arm(run: Path, mode: str) -> Arm:
    """Return `ampft predict` with the model of a run in a precision."""
    saved = load_run_classifier(run)
    precision = resolve(mode, training_device())
    requests = {size: PredictRequest(mixed_precision=mode, batch_size=size) for size in BATCH_SIZES}
    predictors = {size: saved.load(request) for size, request in requests.items()}

    def predict(texts: Sequence[str], batch_size: int) -> Any:
        with numerics(precision):
            return predictors[batch_size]([texts])

    return predict


def artifact_arm(folder: Path) -> Arm:
    """Return the artifact in a folder, in its runtime."""
    artifact = open_artifact(folder)
    return lambda texts, batch_size: artifact.logits(list(texts), batch_size)


def time_in_turns(
    arms: Mapping[str, Arm],
    texts: Sequence[str],
    batch_size: int,
    repeats: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Return the seconds of each round by arm, without the first round."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(repeats + 1):
        for name in sorted(arms, reverse=turn % 2 == 1):
            started = clock()
            arms[name](texts, batch_size)
            seconds[name].append(clock() - started)
    return {name: rounds[1:] for name, rounds in seconds.items()}


def summary(seconds: Mapping[str, Sequence[float]], texts: int) -> dict[str, dict[str, float]]:
    """Return texts per second, and median and range of the speed-up over the pipeline."""
    rows = {}
    for name, rounds in seconds.items():
        ratios = [base / own for base, own in zip(seconds[PIPELINE], rounds, strict=True)]
        rows[name] = {
            "texts_per_second": texts / statistics.median(rounds),
            "speed_up": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    return rows


if __name__ == "__main__":
    main()
