"""Time training steps of a MiniLM-sized classifier: padded, sorted micro-batches, or no padding.

The variants take turns, so that other load on the machine affects all of them alike. Only the
ratios are meaningful. Prints one line of JSON.

    python benchmarks/packing_speed.py --steps 7 --precision bf16
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import transformers
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from ampft.data.steps import balanced_micro_batches
from ampft.models.packing.install import install_packing

MEAN_TOKENS, MAX_TOKENS, SPREAD = 41, 128, 0.65
CLASSES = 6
Step = Callable[[torch.Tensor, torch.Tensor], None]


def sample_lengths(generator: np.random.Generator, batch_size: int) -> torch.Tensor:
    """Return (batch_size,) lognormal lengths like those of docstrings."""
    location = math.log(MEAN_TOKENS) - SPREAD**2 / 2
    lengths = generator.lognormal(location, SPREAD, batch_size)
    return torch.from_numpy(lengths.clip(4, MAX_TOKENS).astype(np.int64))


def make_model(layers: int, hidden: int) -> BertForSequenceClassification:
    """Return a classifier of MiniLM's shape with random weights, which do not affect speed."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * hidden,
        num_labels=CLASSES,
    )
    return BertForSequenceClassification(config).train()


def make_step(
    layers: int, hidden: int, *, packed: bool, micro_batches: int, compute: torch.dtype
) -> Step:
    """Return a function that takes one optimizer step on (B,) lengths and (B,) labels."""
    model = make_model(layers, hidden)
    if packed:
        install_packing(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(lengths: torch.Tensor, labels: torch.Tensor) -> None:
        parts = [np.arange(len(lengths))]
        if micro_batches > 1:
            parts = balanced_micro_batches(lengths.numpy(), micro_batches, padded=not packed)
        for part in parts:
            chosen = torch.from_numpy(part)
            batch = padded_batch(lengths[chosen])
            with torch.autocast("cpu", compute, enabled=compute != torch.float32):
                logits = model(**batch).logits
            loss = functional.cross_entropy(logits.float(), labels[chosen], reduction="sum")
            (loss / len(lengths)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def padded_batch(lengths: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a right-padded batch of random tokens."""
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids = torch.randint(1000, 30000, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask}


def timings(
    variants: dict[str, Step], steps: int, batch_size: int, clock: Callable[[], float]
) -> Iterator[dict[str, float]]:
    """Yield the seconds of each variant on the same step batch, after two untimed rounds."""
    generator = np.random.default_rng(0)
    for round_number in range(steps + 2):
        lengths = sample_lengths(generator, batch_size)
        labels = torch.from_numpy(generator.integers(0, CLASSES, batch_size))
        seconds = {}
        for name, step in variants.items():
            start = clock()
            step(lengths, labels)
            seconds[name] = clock() - start
        if round_number >= 2:
            yield seconds


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=7, help="timed steps per variant")
    parser.add_argument("--batch_size", type=int, default=32, help="examples per step")
    parser.add_argument("--layers", type=int, default=6, help="encoder layers")
    parser.add_argument("--hidden", type=int, default=384, help="hidden size")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="wall time, or CPU time, which with one thread is little affected by other load",
    )
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    compute = torch.float32 if arguments.precision == "fp32" else torch.bfloat16
    shapes = {"padded": (False, 1), "sorted": (False, 4), "packed": (True, 1)}
    variants = {
        name: make_step(
            arguments.layers, arguments.hidden, packed=packed, micro_batches=k, compute=compute
        )
        for name, (packed, k) in shapes.items()
    }
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    rounds = list(timings(variants, arguments.steps, arguments.batch_size, clock))
    ratios = {name: [seconds["padded"] / seconds[name] for seconds in rounds] for name in variants}
    result = {
        **vars(arguments),
        "examples_per_second": {
            name: arguments.batch_size / statistics.median(seconds[name] for seconds in rounds)
            for name in variants
        },
        "ratio_to_padded": {
            name: {
                "median": statistics.median(values),
                "least": min(values),
                "greatest": max(values),
            }
            for name, values in ratios.items()
        },
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
