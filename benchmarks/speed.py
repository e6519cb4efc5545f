"""Compare training speed and memory of ampft with the Trainer, Accelerate's loop and Fabric.

A call measures one case in one precision. The systems take turns. The first five optimizer steps
of a turn are a warm-up; each later step is timed from the end of the step before it, so that
waiting for data counts. The result is the median step of each turn, the ratio of each system to
ampft turn by turn, and the utilisation: the share of the rate of a large matrix product, which is
measured at the start of every turn.

Length grouping does not spread long texts evenly over an epoch, so that a few steps are not
representative: use `--statistic mean` and as many steps as an epoch has, plus the five of the
warm-up.

With `--apart` each turn has its own process. Then every system runs as it does for its users (ampft
caches fewer compiled kernels), and peak memory is measured. The Trainer is tuned once, before the
turns.

    python benchmarks speed docstrings --mode bf16 --out speed.json
    python benchmarks speed sst2 --data_dir DATA --mode fp32 --apart --out speed.json
    python benchmarks speed docstrings --model bert-base --mode bf16 --out speed.json
    python benchmarks speed_plot speed.json --out speed.svg      # and the geometric mean
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from cases import MODELS, TEXTS, load_texts, model_folder
from provenance import command_line, provenance
from systems import SYSTEMS, parse_systems, prepare, set_tuned_micro_batches, tune_micro_batches
from workload import ProcessorClock, StepClock, Workload, mean_tokens, use_torch_kernel_cache_limits

import ampft
from ampft.machine import resident_peak
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.text.terminal import quiet_libraries

WARMUP_STEPS = 5
DEFAULT_SYSTEMS = (
    *("trainer", "trainer (tuned)", "accelerate loop", "fabric loop"),
    *("ampft (sorted micro-batches)", "ampft"),
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Times:
    """The measurements of a system, one per turn."""

    step: list[float] = field(default_factory=list)  # Seconds per optimizer step.
    # Seconds until the end of the first step, including loading the model.
    first_step: list[float] = field(default_factory=list)
    # Peak memory of the process or the GPU, bytes; empty if turns share a process.
    peak: list[int] = field(default_factory=list)


def measure(
    run_turn: Callable[[str, int], dict[str, Any]],
    names: list[str],
    turns: int,
    measure_rate: Callable[[], float],
) -> tuple[dict[str, Times], list[float]]:
    """Run the systems in turns; return their times, and the rate of matrix products per turn."""
    times: dict[str, Times] = {name: Times() for name in names}
    rates = []
    for turn in range(turns):
        rates.append(measure_rate())
        for name in names if turn % 2 == 0 else names[::-1]:
            for quantity, value in run_turn(name, turn).items():
                getattr(times[name], quantity).append(value)
            print(f"turn {turn + 1}  {name:34s} {times[name].step[-1]:.3f} s/step", flush=True)
    return times, rates


def run_turn_here(workload: Workload, statistic: str, name: str, turn: int) -> dict[str, Any]:
    """Train once with a system."""
    prepare(name, workload)
    started = workload.clock.read()
    ends = SYSTEMS[name](workload, turn)
    step = getattr(np, statistic)(np.diff(ends)[WARMUP_STEPS - 1 :])
    return {"step": float(step), "first_step": ends[0] - started}


def run_turn_in_subprocess(tuned_micro_batches: int | None, name: str, turn: int) -> dict[str, Any]:
    """Train once with a system, in a new process."""
    command = [sys.executable, *sys.argv, f"--only={name}", f"--only_turn={turn}"]
    if tuned_micro_batches is not None:
        command.append(f"--tuned_micro_batches={tuned_micro_batches}")
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(completed.stdout.splitlines()[-1]))


def matrix_gflops(mode: str, clock: Callable[[], float]) -> float:
    """Return the rate of large matrix products by a clock; emulated fp16 multiplies in float32."""
    device = ampft.training_device()
    emulated = mode == "fp16" and device.type == "cpu"
    dtype = torch.float32 if emulated else DTYPES[mode]
    with patch("ampft.precision.matrix_rate.time.perf_counter", clock):
        return measure_matrix_rate(device, dtype, name=mode).gflops


def peak_memory() -> int:
    """Return the peak memory of the GPU, or of this process if there is no GPU, in bytes."""
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_peak()
    return peak or 0


def table(
    times: dict[str, Times], rates: list[float], workload: Workload
) -> dict[str, dict[str, Any]]:
    """Return, per system, examples/s, utilisation and the speed-up of ampft over it.

    Speed-up and utilisation are medians over the turns, with their ranges. Utilisation counts 6
    floating-point operations per real token and weight of a linear layer, including those of the
    last layer that ampft skips because no gradient depends on them.
    """
    flops_per_example = 6 * linear_weights(workload.model) * mean_tokens(workload)
    rows = {}
    for name, measured in times.items():
        steps = measured.step
        ratios = [other / ampft for other, ampft in zip(steps, times["ampft"].step, strict=True)]
        examples_per_second = workload.batch_size / statistics.median(steps)
        flops_per_step = flops_per_example * workload.batch_size
        shares = [flops_per_step / s / (r * 1e9) for s, r in zip(steps, rates, strict=True)]
        rows[name] = {
            "examples_per_second": examples_per_second,
            "tokens_per_second": examples_per_second * mean_tokens(workload),
            "utilisation": statistics.median(shares),
            "utilisation_range": [min(shares), max(shares)],
            "ampft_times_faster": statistics.median(ratios),
            "ampft_times_faster_range": [min(ratios), max(ratios)],
            "step_seconds": steps,
            "first_step_seconds": measured.first_step,
            **({"peak_bytes": measured.peak} if measured.peak else {}),
        }
    return rows


def linear_weights(folder: str) -> int:
    """Return the number of weights in the linear layers of the encoder, without the pooler."""
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
    layers = (module for name, module in encoder.named_modules() if "pooler" not in name)
    return sum(layer.weight.numel() for layer in layers if isinstance(layer, torch.nn.Linear))


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = command_line(__doc__, out="JSON file to add to")
    parser.add_argument("case", choices=TEXTS)
    parser.add_argument(
        "--model", choices=MODELS, default="minilm", help="or a family of docs/speed.md"
    )
    parser.add_argument("--mode", choices=tuple(DTYPES), required=True)
    parser.add_argument("--data_dir", type=Path, help="folder with sst2/, trec/ and mrpc/")
    parser.add_argument("--batch_size", type=int, default=32, help="effective batch size, examples")
    parser.add_argument("--max_length", type=int, default=128, help="tokens")
    parser.add_argument(
        "--examples", type=int, help="examples drawn with a fixed seed (default: all)"
    )
    parser.add_argument(
        "--steps", type=int, default=10, help="optimizer steps per turn, including 5 of warm-up"
    )
    parser.add_argument("--statistic", choices=("median", "mean"), default="median")
    parser.add_argument("--turns", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--systems", help="comma-separated; must include ampft")
    parser.add_argument(
        "--apart", action="store_true", help="one process per turn; measures memory too"
    )
    parser.add_argument(
        "--cpu_time",
        action="store_true",
        help="measure CPU time instead of wall time: for a busy machine, with OMP_NUM_THREADS=1",
    )
    parser.add_argument("--only", metavar="SYSTEM", help=argparse.SUPPRESS)
    parser.add_argument("--only_turn", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--tuned_micro_batches",
        type=int,
        help="micro-batches of the tuned Trainer (default: the fastest of 1, 2 and 4)",
    )
    return parser.parse_args()


def measure_case(args: argparse.Namespace, names: list[str], workload: Workload) -> dict[str, Any]:
    """Measure one case and return its row of the results."""
    tuned = tune_micro_batches(workload) if "trainer (tuned)" in names else None
    run_turn: Callable[[str, int], dict[str, Any]] = (
        partial(run_turn_in_subprocess, tuned)
        if args.apart
        else partial(run_turn_here, workload, args.statistic)
    )
    rate = partial(matrix_gflops, args.mode, workload.clock.read)
    times, rates = measure(run_turn, names, args.turns, rate)
    settings = ("case", "model", "mode", "batch_size", "max_length", "examples", "steps")
    return {
        **{name: getattr(args, name) for name in (*settings, "statistic", "apart", "cpu_time")},
        "threads": torch.get_num_threads(),
        "mean_tokens": mean_tokens(workload),
        "matrix_rate_gflops": rates,
        "tuned_micro_batches": tuned,
        "systems": table(times, rates, workload),
        **provenance(),
    }


def print_rows(rows: dict[str, dict[str, Any]]) -> None:
    """Print a line per system."""
    for name, row in rows.items():
        low, high = row["ampft_times_faster_range"]
        memory = f"; {max(row['peak_bytes']) / 2**20:.0f} MiB" if "peak_bytes" in row else ""
        print(
            f"{name:34s} {row['examples_per_second']:7.1f} examples/s, {row['utilisation']:.0%} of "
            f"the rate; ampft {row['ampft_times_faster']:.2f} times as fast ({low:.2f} to "
            f"{high:.2f}){memory}"
        )


def main() -> None:
    """Measure one case and append it to the results."""
    args = parse_arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not args.apart:  # the systems share a process, which must not run under ampft's limits
        use_torch_kernel_cache_limits()
    quiet_libraries()
    names = parse_systems(args.systems) if args.systems else list(DEFAULT_SYSTEMS)
    if args.mode == "fp16":  # on a CPU, only ampft runs fp16
        names = [name for name in names if name.startswith("ampft")]
    data = load_texts(args.case, args.data_dir, args.examples)
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(args.model, tuple(data.label_names), Path(folder))
        clock = ProcessorClock if args.cpu_time else StepClock
        sizes = args.batch_size, args.max_length, args.steps
        workload = Workload(data, model, args.mode, *sizes, clock)
        if args.tuned_micro_batches is not None:
            set_tuned_micro_batches(workload, args.tuned_micro_batches)
        if args.only:
            measured = run_turn_here(workload, args.statistic, args.only, args.only_turn)
            print(json.dumps(measured | {"peak": peak_memory()}))
            return
        row = measure_case(args, names, workload)
    print_rows(row["systems"])
    rows = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
    args.out.write_text(json.dumps([*rows, row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
