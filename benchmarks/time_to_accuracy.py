"""Measure how long ampft and other systems train until they reach the same accuracy.

The systems train in turns, from the same weights, on the same split, with several seeds. Every few
steps the clock stops, and the model is evaluated on held-out texts. The target is the highest
accuracy that every run reached: no run is left out, and nobody chose it beforehand. The first step
is not timed in any system, because it loads and compiles.

    python benchmarks/time_to_accuracy.py sst2 --data_dir DATA --mode bf16 --out time.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from cases import MODELS, TEXTS, load_texts, model_folder
from provenance import provenance
from systems import SYSTEMS, parse_systems, prepare
from workload import StepClock, Workload, padded_task, use_torch_kernel_cache_limits

from ampft.text.terminal import quiet_libraries

EVALUATION_BATCH = 64


class AccuracyClock(StepClock):
    """Records the accuracy every few steps, and the seconds of training without evaluation."""

    def __init__(self, task: Any, every: int) -> None:
        super().__init__()
        self.points: list[tuple[float, float]] = []  # (seconds, accuracy) of each evaluation.
        self._task = task
        self._every = every
        self._seconds = 0.0
        self._resumed: float | None = None

    def on_step_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Stop the clock, and evaluate if an evaluation is due."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._seconds += 0.0 if self._resumed is None else now - self._resumed
        self.ends.append(self._seconds)
        if len(self.ends) % self._every == 0:
            self.points.append((self._seconds, accuracy(model, self._task)))
        self._resumed = time.perf_counter()


@torch.no_grad()
def accuracy(model: torch.nn.Module, task: Any) -> float:
    """Return the accuracy on the held-out texts; leave the model in training mode."""
    examples = task.examples("test")
    device = next(model.parameters()).device
    correct = 0
    model.eval()
    for ids in np.array_split(
        np.argsort(examples.lengths, kind="stable"), -(-len(examples.targets) // EVALUATION_BATCH)
    ):
        inputs = {name: tensor.to(device) for name, tensor in examples.collate(ids).items()}
        labels = inputs.pop("labels")
        correct += int((model(**inputs).logits.argmax(-1) == labels).sum())
    model.train()
    return correct / len(examples.targets)


def split_held_out(data: Any, count: int) -> Any:
    """Return the data with `count` of its training texts, always the same, as a test split."""
    parts = data.splits["train"].train_test_split(test_size=count, seed=0)
    splits = datasets.DatasetDict(train=parts["train"], test=parts["test"])
    return replace(data, splits=splits)


@dataclass(frozen=True)
class Curve:
    """The (seconds, accuracy) of each evaluation of a run."""

    points: list[tuple[float, float]]

    @property
    def best(self) -> float:
        """The highest accuracy."""
        return max(value for _, value in self.points)

    def seconds_to(self, target: float) -> float:
        """Return the seconds until the accuracy was first at least `target`."""
        return next(seconds for seconds, value in self.points if value >= target)


def _factory_of(clock: AccuracyClock) -> Callable[[], AccuracyClock]:
    return lambda: clock


def measure(workload: Workload, names: list[str], seeds: int, every: int) -> dict[str, list[Curve]]:
    """Train with each system and seed, in turns."""
    curves: dict[str, list[Curve]] = {name: [] for name in names}
    for seed in range(seeds):
        for name in names if seed % 2 == 0 else names[::-1]:
            prepare(name, workload)
            clock = AccuracyClock(padded_task(workload), every)
            SYSTEMS[name](replace(workload, clock=_factory_of(clock)), seed)
            curve = Curve(clock.points)
            curves[name].append(curve)
            seconds, last = curve.points[-1]
            print(f"seed {seed}  {name:30s} {seconds:.1f} s, accuracy {last:.4f}", flush=True)
    return curves


def table(curves: dict[str, list[Curve]]) -> dict[str, Any]:
    """Return the highest accuracy that every run reached, and the time to it per system."""
    target = min(curve.best for runs in curves.values() for curve in runs)
    seconds = {name: [c.seconds_to(target) for c in runs] for name, runs in curves.items()}
    systems = {}
    for name, runs in curves.items():
        ratios = [
            other / ampft for other, ampft in zip(seconds[name], seconds["ampft"], strict=True)
        ]
        systems[name] = {
            "seconds": seconds[name],
            "ampft_times_faster": statistics.median(ratios),
            "ampft_times_faster_range": [min(ratios), max(ratios)],
            "final_accuracy": [curve.points[-1][1] for curve in runs],
            "points": [curve.points for curve in runs],
        }
    return {"accuracy": target, "systems": systems}


def main() -> None:
    """Measure one case and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("case", choices=TEXTS)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--mode", choices=("fp32", "bf16"), required=True)
    parser.add_argument("--data_dir", type=Path, help="folder with sst2/, trec/ and mrpc/")
    parser.add_argument("--batch_size", type=int, default=32, help="effective batch, examples")
    parser.add_argument("--max_length", type=int, default=128, help="tokens")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps per run")
    parser.add_argument("--every", type=int, default=15, help="steps between evaluations")
    parser.add_argument("--seeds", type=int, default=3, help="runs per system")
    parser.add_argument("--held_out", type=int, default=500, help="number of texts to evaluate on")
    parser.add_argument("--systems", default="trainer,accelerate loop,ampft (padded),ampft")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to add to")
    args = parser.parse_args()
    if args.every > args.steps:
        parser.error(
            f"--every {args.every} exceeds --steps {args.steps}, so that nothing would be "
            "evaluated. Reduce --every."
        )
    names = parse_systems(args.systems)
    os.environ["HF_HUB_OFFLINE"] = "1"
    use_torch_kernel_cache_limits()
    quiet_libraries()
    data = split_held_out(load_texts(args.case, args.data_dir), args.held_out)
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(args.model, tuple(data.label_names), Path(folder))
        workload = Workload(data, model, args.mode, args.batch_size, args.max_length, args.steps)
        result = table(measure(workload, names, args.seeds, args.every))
    print(f"to an accuracy of {result['accuracy']:.4f}, which every run reached:")
    for name, row in result["systems"].items():
        low, high = row["ampft_times_faster_range"]
        print(
            f"{name:30s} {statistics.median(row['seconds']):6.1f} s; ampft "
            f"{row['ampft_times_faster']:.2f} times as fast ({low:.2f} to {high:.2f}); final "
            f"accuracy {statistics.mean(row['final_accuracy']):.4f}"
        )
    settings = ("case", "model", "mode", "batch_size", "max_length", "steps", "every", "held_out")
    row = {name: getattr(args, name) for name in settings} | result | provenance()
    rows = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
    args.out.write_text(json.dumps([*rows, row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
