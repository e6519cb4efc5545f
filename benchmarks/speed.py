"""Training speed and memory of this project beside the Trainer, Accelerate's loop and Fabric.

One process measures one case in one precision: the systems take turns, five times, and every
optimizer step from the sixth on is timed from the end of the one before, so that waiting for data
counts. Printed are medians (`--statistic mean` for whole epochs), and ratios turn by turn; so are
shares of the rate of a large matrix product, which is measured at the start of every turn. Length
grouping takes the longest texts of some batches first, so that a few steps say nothing about it:
give it `--statistic mean` and the steps of an epoch and five more, as the first five are not
timed. With `--apart` each turn is a process of its own: every system runs as its users have it
(ampft keeps fewer compiled kernels then), and peak memory is measured. The Trainer is tuned once,
before the turns.

    python benchmarks/speed.py docstrings --mode bf16 --out speed.json
    python benchmarks/speed.py sst2 --data_dir DATA --mode fp32 --apart --out speed.json
    python benchmarks/speed.py docstrings --model bert-base --mode bf16 --out speed.json
    python benchmarks/speed_plot.py speed.json --out speed.svg      # and the geometric mean
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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import MODELS, TEXTS, load_texts, model_folder
from provenance import provenance
from systems import SYSTEMS, already_tuned, best_micro_batches, named_systems, prepare
from work import Work, limits_of_torch, mean_tokens

import ampft
from ampft.machine import resident_peak
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.text.terminal import quiet_libraries

UNTIMED_STEPS = 5
BY_DEFAULT = (
    *("trainer", "trainer (tuned)", "accelerate loop", "fabric loop"),
    *("ampft (sorted micro-batches)", "ampft"),
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Times:
    """What the turns of a system measured, one number for each.

    Attributes:
        step: Seconds of an optimizer step.
        first_step: Seconds to the end of the first step, loading the model included.
        peak: Most bytes of the process or the GPU; empty where the turns shared a process.
    """

    step: list[float] = field(default_factory=list)
    first_step: list[float] = field(default_factory=list)
    peak: list[int] = field(default_factory=list)


def measure(
    one_turn: Callable[[str, int], dict[str, Any]],
    names: list[str],
    turns: int,
    gflops: Callable[[], float],
) -> tuple[dict[str, Times], list[float]]:
    """Let each system have its turns; also return the rate of products at the start of each."""
    times: dict[str, Times] = {name: Times() for name in names}
    rates = []
    for turn in range(turns):
        rates.append(gflops())
        for name in names if turn % 2 == 0 else names[::-1]:
            for what, value in one_turn(name, turn).items():
                getattr(times[name], what).append(value)
            print(f"turn {turn + 1}  {name:34s} {times[name].step[-1]:.3f} s/step", flush=True)
    return times, rates


def turn_here(work: Work, statistic: str, name: str, turn: int) -> dict[str, Any]:
    """Train with a system once."""
    prepare(name, work)
    begun = time.perf_counter()
    ends = SYSTEMS[name](work, turn)
    step = getattr(np, statistic)(np.diff(ends)[UNTIMED_STEPS - 1 :])
    return {"step": float(step), "first_step": ends[0] - begun}


def turn_apart(tuned_micro_batches: int | None, name: str, turn: int) -> dict[str, Any]:
    """Train with a system once, in a process of its own."""
    command = [sys.executable, *sys.argv, f"--only={name}", f"--only_turn={turn}"]
    if tuned_micro_batches is not None:
        command.append(f"--tuned_micro_batches={tuned_micro_batches}")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def product_gflops(mode: str) -> float:
    """Return the rate of large products; of float32 where fp16 is emulated, which multiplies so."""
    device = ampft.training_device()
    emulated = mode == "fp16" and device.type == "cpu"
    dtype = torch.float32 if emulated else DTYPES[mode]
    return measure_matrix_rate(device, dtype, name=mode).gflops


def device_or_process_peak() -> int:
    """Return the bytes that this process has used at most, of a GPU's memory where there is one."""
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_peak()
    return peak or 0


def table(times: dict[str, Times], rates: list[float], work: Work) -> dict[str, dict[str, Any]]:
    """Return examples/s and how many times faster `ampft` is, median and range over the turns.

    Utilisation counts 6 floating-point operations per weight that multiplies and real token, also
    those that `ampft` leaves out because no gradient needs them (the last layer's).
    """
    per_example = 6 * multiplying_weights(work.model) * mean_tokens(work)
    rows = {}
    for name, its in times.items():
        ratios = [theirs / ours for theirs, ours in zip(its.step, times["ampft"].step, strict=True)]
        examples_per_second = work.batch_size / statistics.median(its.step)
        busy = [work.batch_size / s / (r * 1e9) for s, r in zip(its.step, rates, strict=True)]
        rows[name] = {
            "examples_per_second": examples_per_second,
            "tokens_per_second": examples_per_second * mean_tokens(work),
            "utilisation": statistics.median(busy) * per_example,
            "utilisation_range": [min(busy) * per_example, max(busy) * per_example],
            "ampft_times_faster": statistics.median(ratios),
            "ampft_times_faster_range": [min(ratios), max(ratios)],
            "step_seconds": its.step,
            "first_step_seconds": its.first_step,
            **({"peak_bytes": its.peak} if its.peak else {}),
        }
    return rows


def multiplying_weights(folder: str) -> int:
    """Return the number of weights of linear layers that every token passes."""
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
    layers = (module for name, module in encoder.named_modules() if "pooler" not in name)
    return sum(one.weight.numel() for one in layers if isinstance(one, torch.nn.Linear))


def parsed() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("case", choices=TEXTS)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--mode", choices=tuple(DTYPES), required=True)
    parser.add_argument("--data_dir", type=Path, help="folder with sst2/, trec/ and mrpc/")
    parser.add_argument("--batch_size", type=int, default=32, help="effective batch, examples")
    parser.add_argument("--max_length", type=int, default=128, help="tokens")
    parser.add_argument("--examples", type=int, help="of the data, a seeded choice; all if absent")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of a turn")
    parser.add_argument("--statistic", choices=("median", "mean"), default="median")
    parser.add_argument("--turns", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--systems", help="comma separated, ampft among them")
    parser.add_argument("--apart", action="store_true", help="a process for each turn; also memory")
    parser.add_argument("--only", metavar="SYSTEM", help=argparse.SUPPRESS)
    parser.add_argument("--only_turn", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tuned_micro_batches", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to add to")
    return parser.parse_args()


def measured_case(args: argparse.Namespace, names: list[str], work: Work) -> dict[str, Any]:
    """Return a row of the results."""
    tuned = best_micro_batches(work) if "trainer (tuned)" in names else None
    apart, here = partial(turn_apart, tuned), partial(turn_here, work, args.statistic)
    one_turn = apart if args.apart else here
    times, rates = measure(one_turn, names, args.turns, partial(product_gflops, args.mode))
    asked = ("case", "model", "mode", "batch_size", "max_length", "examples", "steps")
    return {
        **{name: getattr(args, name) for name in (*asked, "statistic", "apart")},
        "mean_tokens": mean_tokens(work),
        "matrix_rate_gflops": rates,
        "tuned_micro_batches": tuned,
        "systems": table(times, rates, work),
        **provenance(),
    }


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print a line for each system."""
    for name, row in rows.items():
        low, high = row["ampft_times_faster_range"]
        memory = f"; {max(row['peak_bytes']) / 2**20:.0f} MiB" if "peak_bytes" in row else ""
        print(
            f"{name:34s} {row['examples_per_second']:7.1f} examples/s, {row['utilisation']:.0%} of "
            f"the rate; ampft {row['ampft_times_faster']:.2f} times faster ({low:.2f} to "
            f"{high:.2f}){memory}"
        )


def main() -> None:
    """Measure one case and append it to the results."""
    args = parsed()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not args.apart:  # the systems share a process: ampft's limits are not for its peers
        limits_of_torch()
    quiet_libraries()
    names = named_systems(args.systems) if args.systems else list(BY_DEFAULT)
    if args.mode == "fp16":  # the peers do not run fp16 on a CPU
        names = [name for name in names if name.startswith("ampft")]
    data = load_texts(args.case, args.data_dir, args.examples)
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(args.model, tuple(data.label_names), Path(folder))
        work = Work(data, model, args.mode, args.batch_size, args.max_length, args.steps)
        if args.only:
            if args.tuned_micro_batches is not None:
                already_tuned(work, args.tuned_micro_batches)
            found = turn_here(work, args.statistic, args.only, args.only_turn)
            print(json.dumps(found | {"peak": device_or_process_peak()}))
            return
        row = measured_case(args, names, work)
    show(row["systems"])
    found = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
    args.out.write_text(json.dumps([*found, row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
