"""Whether two trainings of long texts give the same bits, with and without deterministic operators.

    python benchmarks determinism [--out determinism.json]

Needs neither data nor pretrained weights. On a GPU, attention to more than about 128 tokens adds
its gradients in whatever order its blocks end; `--deterministic` chooses other kernels, whose cost
is measured in turns.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import torch
from gpu_jobs import Job, Scale, Turn
from gpu_models import SkippedError
from gpu_systems import start_afresh, train_with_ampft
from provenance import command_line, provenance, write_results

from ampft.precision.determinism import deterministic_operators

TURNS = 3


def train_once(job: Job, *, is_deterministic: bool) -> tuple[float, list[torch.Tensor]]:
    """Return the seconds of a step and the trained weights, on the CPU."""
    start_afresh(job.scale.device)
    turn = Turn(job.scale)
    with deterministic_operators(is_deterministic):
        model: Any = train_with_ampft(job, turn, graphs=False)
    return turn.warm_steps[0], [value.detach().cpu().clone() for value in model.parameters()]


def measure(job: Job) -> dict[str, object]:
    """Return milliseconds per step and how many tensors differ between turns, both ways."""
    row: dict[str, object] = {}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    weights: dict[bool, list[list[torch.Tensor]]] = {False: [], True: []}
    for _ in range(2 if job.scale.is_tiny else TURNS):
        for is_deterministic in (False, True):
            step, trained = train_once(job, is_deterministic=is_deterministic)
            seconds[is_deterministic].append(step)
            weights[is_deterministic].append(trained)
    for is_deterministic, name in ((False, "as chosen"), (True, "deterministic")):
        first, *others = weights[is_deterministic]
        differing = max(
            sum(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
            for other in others
        )
        row[f"{name}: ms/step"] = round(1000 * statistics.median(seconds[is_deterministic]), 3)
        row[f"{name}: tensors that differ"] = f"{differing} of {len(first)}"
    row["cost"] = round(
        statistics.median(
            slow / fast for fast, slow in zip(seconds[False], seconds[True], strict=True)
        ),
        3,
    )
    return row


def main() -> None:
    """Measure every mode and print JSON."""
    parser = command_line(__doc__, required=False)
    parser.add_argument(
        "--steps", type=int, default=5, help="steps of a pass; a turn has four passes"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model, in seconds")
    args = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    scale = Scale(
        device=device,
        is_tiny=args.tiny,
        batches=args.steps,
        turn_seconds=0.0,  # a single timed pass, so that all turns have the same steps
        rate_seconds=0.05,
    )
    rows: dict[str, object] = {}
    for mode in ("fp32", "bf16", "fp16"):
        tokens, batch_size = ((20, 40), 4) if args.tiny else ((400, 512), 16)
        job = Job(scale, mode, "MiniLM", tokens, batch_size)
        try:
            rows[job.name] = measure(job)
        except SkippedError as reason:
            rows[job.name] = {"skipped": str(reason)}
        print(f"{job.name}: {rows[job.name]}", flush=True)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    result = {**provenance(names), "rows": rows}
    if args.out is None:
        print(json.dumps(result, indent=1))
    else:
        write_results(args.out, result)


if __name__ == "__main__":
    main()
