"""Does the doctor find exactly the modules that lose a model in bf16, where nothing is infinite?

Run: `python benchmarks/fragile_modules.py --out benchmarks/results/fragile-modules.json`.

A chain of blocks (linear layer, centring, GELU, linear layer, norm) learns a made-up task. Planted
linear layers add a constant to their outputs, which centring removes: float32 keeps the rest, and
bfloat16 has rounded most of it away by then. Nothing overflows, as in the collapses of timm#2718
and #2732. The doctor examines every model in bf16. With `k` planted layers it must name exactly
these, verified by a training of some steps; with none it must say that bf16 holds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import provenance
from torch import Tensor, nn
from torch.nn import functional

from ampft.engine.optimizer import OptimizerSettings
from ampft.lab.doctor import scan
from ampft.lab.doctor.case import ExaminedModel, TrialSettings
from ampft.lab.doctor.cure import find_cure
from ampft.precision.float32_modules import matching_modules
from ampft.precision.resolve import resolve

WIDTH, CLASSES, ROWS, BATCHES = 32, 3, 32, 2
CONSTANT = 4096.0  # numbers of bfloat16 are 32 apart here, those of float32 1/2048
MODE = "bf16"
TRIAL = TrialSettings(steps=20, optimizer=OptimizerSettings(learning_rate=1e-3))


class Block(nn.Module):
    """A block whose first layer may be fragile."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the block."""
        wide = self.up(x)
        centred = wide - wide.mean(-1, keepdim=True)
        return self.norm(self.down(functional.gelu(centred)))


def planted_model(blocks: int, fragile: Sequence[int], seed: int) -> nn.Sequential:
    """Return a model in which the first layers of some blocks are fragile."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(WIDTH, CLASSES))
    for index in fragile:
        nn.init.constant_(model.get_parameter(f"{index}.up.bias"), CONSTANT)
    return model


def made_batches(seed: int) -> list[dict[str, Tensor]]:
    """Return batches whose labels a linear function of the inputs says."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(WIDTH, CLASSES, generator=generator)
    inputs = [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(BATCHES)]
    return [{"x": x, "labels": (x @ truth).argmax(1)} for x in inputs]


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the cross-entropy of a batch."""
    return functional.cross_entropy(model(batch["x"]).float(), batch["labels"])


def examined(blocks: int, planted: int, seed: int) -> dict[str, Any]:
    """Plant fragile layers in a model, and return what the doctor finds."""
    fragile = np.random.default_rng(seed).choice(blocks, planted, replace=False)
    expected = sorted(f"{index}.up" for index in fragile)
    model, batches = planted_model(blocks, fragile.tolist(), seed), made_batches(seed)
    is_finite = all(bool(torch.isfinite(loss(model.bfloat16(), _in_bf16(b)))) for b in batches)
    model, started = planted_model(blocks, fragile.tolist(), seed), time.process_time()
    diagnosis = scan(model, batches, loss, mixed_precision=MODE)
    found, verified = [], None
    if not diagnosis.holds:
        case = ExaminedModel(model, batches, loss, resolve(MODE, torch.device("cpu")), trial=TRIAL)
        cure = find_cure(case, diagnosis).cure
        if cure is not None:
            found, verified = sorted(matching_modules(model, cure.fp32_modules)), cure.verified
    return {
        "seed": seed,
        "planted": expected,
        "found": found,
        "verified": verified,
        "holds": diagnosis.holds,
        "finite": is_finite,
        "exact": found == expected and diagnosis.holds == (not planted),
        "modules": sum(not any(each.children()) for each in model.modules()),
        "seconds": time.process_time() - started,
    }


def _in_bf16(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**batch, "x": batch["x"].bfloat16()}


def main() -> None:
    """Examine all models, write the results, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--planted", type=int, default=3, help="largest number of fragile layers")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    stated = provenance()
    lines = []
    for planted in range(options.planted + 1):
        for seed in range(options.seeds):
            lines.append(examined(options.blocks, planted, seed))
            print(json.dumps(lines[-1]), flush=True)
    exact = Counter(len(line["planted"]) for line in lines if line["exact"])
    shown = {f"{k} planted": f"{exact[k]} of {options.seeds}" for k in range(options.planted + 1)}
    print(json.dumps(shown))
    if options.out is not None:
        result = {"exact": shown, "blocks": options.blocks, "models": lines, "provenance": stated}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
