"""Time steps of the default model with other groups for attention: `GROUP_COST` is chosen by this.

Attention without padding runs in groups of sequences of similar length. The higher the cost of a
group is set, the fewer groups it makes, and the more pairs of tokens are padding. On each batch,
one step is taken with each cost, in random order, so that other load on the machine affects all of
them alike; the ratio is that on the same batch. `0` groups equal lengths only, and `inf` makes one
group.

    python benchmarks/group_cost.py sst2 --data_dir DATA --mode bf16
    python benchmarks/group_cost.py docstrings --mode bf16 --costs 4000,1000,2000,8000
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cases
from accelerate.utils import set_seed
from provenance import provenance

import ampft
from ampft.data.steps import StepBatch
from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings
from ampft.models.packing import install
from ampft.models.packing.layout import pack_layout
from ampft.tasks.settings import TaskSettings
from ampft.tasks.task import make_task

WARMUP_BATCHES = 5


def make_step(args: argparse.Namespace) -> tuple[list[StepBatch], Callable[[StepBatch], None]]:
    """Return the batches, and a function that takes a step as `recipes/classify.py` does."""
    precision = ampft.resolve(args.mode, ampft.training_device())
    accelerator = ampft.make_accelerator(precision)
    set_seed(0)
    data = cases.load_texts(args.case, args.data_dir, 4000)
    task = make_task(data, TaskSettings(max_seq_length=args.max_length))
    loaded = ampft.cast_weights(task.load_model(), precision)
    batches = ampft.StepBatches.for_process(
        accelerator, task.examples("train"), batch_size=args.batch_size, seed=0, padded=False
    )
    optimizer = ampft.make_optimizer(loaded.model, OptimizerSettings(1e-6), precision)
    schedule = ampft.make_schedule(optimizer, 10**6, ScheduleSettings())
    model, optimizer = accelerator.prepare(loaded.model, optimizer)
    model.train()

    def step(step_batch: StepBatch) -> None:
        losses = []
        with ampft.shared_autocast_cache(accelerator, model, step_batch):
            for micro_batch in step_batch:
                loss = task.loss(model, micro_batch) / step_batch.effective_weight
                losses.append(ampft.backward(accelerator, loss))
        ampft.apply_step(accelerator, model, optimizer, schedule, losses=losses, max_grad_norm=1.0)
        optimizer.zero_grad()

    return list(batches.epoch(0, stop=args.batches)), step


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("case", choices=cases.TEXTS)
    parser.add_argument("--data_dir", type=Path, help="folder with sst2/, trec/ and mrpc/")
    parser.add_argument("--mode", choices=("fp32", "bf16"), default="bf16", help="precision")
    parser.add_argument("--batch_size", type=int, default=32, help="effective batch size, examples")
    parser.add_argument("--max_length", type=int, default=128, help="tokens")
    parser.add_argument("--batches", type=int, default=50, help="batches, with 5 of warm-up")
    parser.add_argument(
        "--costs",
        default="4000,0,1000,2000,8000,inf",
        help="costs of a group, in pairs of tokens; the first is what the others are compared with",
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    costs = [float(cost) for cost in args.costs.split(",")]
    batches, step = make_step(args)
    seconds: dict[float, list[float]] = {cost: [] for cost in costs}
    order = random.Random(0)
    with ampft.numerics(ampft.resolve(args.mode, ampft.training_device())):
        for number, batch in enumerate(batches):
            for cost in order.sample(costs, len(costs)):
                install.pack_layout = partial(pack_layout, group_cost=cost)  # type: ignore[attr-defined]
                start = time.perf_counter()
                step(batch)
                if number >= WARMUP_BATCHES:
                    seconds[cost].append(time.perf_counter() - start)
    results = {}
    for cost, values in seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds[costs[0]], values, strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        results[f"{cost:g}"] = {"times_as_fast": middle, "quartiles": [low, high]}
        print(
            f"{cost:>6g}: {statistics.median(values):.3f} s per step, {middle:.3f} times as fast "
            f"as {costs[0]:g} (quartiles {low:.3f} to {high:.3f})"
        )
    if args.out is not None:
        settings: dict[str, Any] = {"case": args.case, "mode": args.mode, "batches": args.batches}
        document = {**provenance(), **settings, "costs": results}
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
