"""How far the emulations of 16 bits on a CPU are from the arithmetic of a GPU, over a training.

The same model takes the same steps of SGD on the same batches, without dropout: on the CPU in fp32
and in each emulated mode, and on the GPU in each native mode. Distances are relative errors of the
first gradient and of the change of all weights after the last step. An emulation is right if it is
as far from float32 as the GPU is, and closer to the GPU than either is to float32.

    python benchmarks gpu_digits --out digits.json
    python benchmarks gpu_digits --out digits.json --rehearse    # without a GPU, tiny
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gpu_jobs import Job, Scale
from gpu_models import SkippedError
from gpu_systems import start_afresh, summed_loss
from provenance import command_line, provenance, write_results
from torch import Tensor

import ampft
from ampft.engine.optimizer import ScheduleSettings

STEPS = 20
LEARNING_RATE = 0.05
MODES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Trained:
    """What a training did, on the CPU in float64."""

    gradient: Tensor  # (P,) first gradient.
    change: Tensor  # (P,) change of the weights after the last step.
    losses: list[float]  # Loss of each step.
    skipped: int  # Skipped steps.


def train(job: Job, steps: int) -> Trained:
    """Train without dropout by SGD, whose steps do not amplify rounding."""
    precision, device = job.precision(), job.scale.device
    start_afresh(device)
    with ampft.numerics(precision):
        accelerator = ampft.make_accelerator(precision)
        model: Any = job.model().eval()
        before = _flat(model.parameters())
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        schedule = ampft.make_schedule(optimizer, steps, ScheduleSettings("constant"))
        prepared, optimizer = accelerator.prepare(model, optimizer)
        gradient, skipped = torch.zeros(0), 0
        losses: list[float] = []
        batches = job.step_batches()
        while len(losses) < steps:
            for step_batch in batches.epoch(len(losses) // len(batches), stop=steps - len(losses)):
                parts = ampft.accumulate_gradient(accelerator, prepared, summed_loss, step_batch)
                scale = accelerator.scaler.get_scale() if accelerator.scaler is not None else 1.0
                if not losses:
                    gradients = (p.grad for p in model.parameters() if p.grad is not None)
                    gradient = _flat(gradients) / scale
                done = ampft.apply_step(
                    accelerator, prepared, optimizer, schedule, losses=parts, max_grad_norm=None
                )
                optimizer.zero_grad()
                losses.append(float(done.loss))
                skipped += done.skipped
        return Trained(gradient, _flat(model.parameters()) - before, losses, skipped)


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().double().cpu().flatten() for tensor in tensors])


def distance(first: Tensor, second: Tensor) -> float:
    """Return the norm of a difference, divided by the norm of the second tensor."""
    return float((first - second).norm() / second.norm())


def main() -> None:
    """Train everywhere, and write the distances."""
    parser = command_line(__doc__)
    parser.add_argument("--rehearse", action="store_true", help="a tiny model, on the CPU")
    args = parser.parse_args()
    if not (args.rehearse or torch.cuda.is_available()):
        parser.error("a CUDA device is needed. Pass --rehearse to try the program on a CPU.")
    trained: dict[str, Trained] = {}
    skipped: dict[str, str] = {}
    for place in ("cpu",) if args.rehearse else ("cpu", "cuda"):
        device = torch.device(place)
        scale = Scale(device, args.rehearse, batches=4, turn_seconds=0.0, rate_seconds=1e-4)
        for mode in MODES:
            job = Job(scale, mode, "MiniLM", (6, 12) if args.rehearse else (24, 48), 8)
            try:
                trained[f"{mode} on {place}"] = train(job, STEPS)
            except SkippedError as reason:
                skipped[f"{mode} on {place}"] = str(reason)
    pairs = [(a, b) for a in trained for b in trained if a < b]
    rows = [
        {
            "between": [a, b],
            "first gradient": distance(trained[a].gradient, trained[b].gradient),
            "change of the weights": distance(trained[a].change, trained[b].change),
            "largest difference of a loss": max(
                abs(x - y) for x, y in zip(trained[a].losses, trained[b].losses, strict=True)
            ),
        }
        for a, b in pairs
    ]
    for row in rows:
        print(row, flush=True)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    counts = {name: one.skipped for name, one in trained.items()}
    result = {"rehearsal": args.rehearse, **provenance(names), "steps": STEPS}
    result |= {"skipped steps": counts, "not here": skipped, "rows": rows}
    write_results(args.out, result)


if __name__ == "__main__":
    main()
