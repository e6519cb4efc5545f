"""The gradient of one step of six own models, by `ampft.Training` and by plain torch in float64.

    torchrun --nproc_per_node 2 own_gradients.py FOLDER

Without torchrun, one process computes it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.utils.data import default_collate

import ampft

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from own_loops import Decoder, padded, token_loss  # noqa: E402

EXAMPLES = 13  # not divided by 2 processes x 2 micro-batches


@dataclass(frozen=True)
class Case:
    """A model with its loss and its examples."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], Any]  # Sum of a batch, or its sum and weight.
    examples: list[Any]
    weights: Tensor | None = None  # Weights of the examples.
    collate: Callable[[list[Any]], Any] = default_collate


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def weighted_regression() -> Case:
    x, y, weights = seeded(EXAMPLES, 8), seeded(EXAMPLES, 1), seeded(EXAMPLES).abs()
    rows = list(zip(x, y, weights, strict=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y, weights = batch
        return (weights[:, None] * (model(x).to(y.dtype) - y).square()).sum()

    return Case(model, loss, rows, weights)


def cnn() -> Case:
    x = seeded(EXAMPLES, 1, 6, 6)
    rows = list(zip(x, torch.arange(EXAMPLES) % 3, strict=True))
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    )
    return Case(model, lambda m, b: ampft.summed_cross_entropy(m(b[0]), b[1]), rows)


class Pair(nn.Module):
    """A generator and a critic, of which the critic is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(4, 2).requires_grad_(False)
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def gan() -> Case:
    rows = [{"real": a, "noise": b} for a, b in zip(seeded(13, 2), seeded(13, 4), strict=True)]

    def loss(model: Any, batch: Any) -> Tensor:
        pair = model.critic(batch["real"]), model.critic(model.generator(batch["noise"]))
        targets = torch.ones_like(pair[0]), torch.zeros_like(pair[1])
        parts = map(ampft.summed_binary_cross_entropy, pair, targets)
        return sum(parts, torch.zeros(()))

    return Case(Pair(), loss, rows)


def soft_labels() -> Case:
    rows = list(zip(seeded(13, 8), seeded(13, 4).softmax(dim=1), strict=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return Case(model, lambda m, b: ampft.summed_cross_entropy(m(b[0]), b[1]), rows)


def decoder() -> Case:
    rows = [[(3 * i + j) % 20 for j in range(3 + i % 5)] for i in range(EXAMPLES)]
    return Case(Decoder(dropout=0), token_loss, rows, collate=padded)


class Layers(nn.Module):
    """A layer that one example uses, and therefore one process, and one that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        x = self.layers[0](x)
        return x + self.layers[1](x) * first[:, None] if first.any() else x


def dropped_layers() -> Case:
    rows = [(x, x[:1], i == 0) for i, x in enumerate(seeded(EXAMPLES, 8))]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y, first = batch
        return (model(x, first).to(y.dtype) - y).square().sum()

    return Case(Layers(), loss, rows)


KINDS = (weighted_regression, cnn, gan, soft_labels, decoder, dropped_layers)
CASES = {each.__name__: each for each in KINDS}


def made(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


def double(value: Any) -> Any:
    """Return tensors of a batch in float64."""
    if isinstance(value, dict):
        return {name: double(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [double(part) for part in value]
    return value.double() if value.is_floating_point() else value


def reference(name: str) -> dict[str, Tensor]:
    """Return the gradient of the batch of all examples, by plain torch in float64."""
    case = made(name)
    model = copy.deepcopy(case.model).double()
    total = case.loss(model, double(case.collate(case.examples)))
    total, weight = total if isinstance(total, tuple) else (total, EXAMPLES)
    weight = float(weight) if case.weights is None else float(case.weights.sum())
    (total / weight).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def by_training(
    name: str, folder: Path, *, micro_batches: int, precision: str = "fp32"
) -> dict[str, Tensor]:
    """Return the gradient by `ampft.Training`, from one step of gradient descent at rate 1."""
    case = made(name)
    before = {n: p.detach().clone() for n, p in case.model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in case.model.parameters() if p.requires_grad], lr=1.0)
    training = ampft.Training(
        case.model,
        optimizer,
        case.examples,
        collate=case.collate,
        weights=case.weights,
        precision=precision,
        output_dir=folder / f"{name}-{micro_batches}-{precision}",
        batch_size=EXAMPLES,
        micro_batches=micro_batches,
        epochs=1,
        max_grad_norm=None,
        checkpointing_steps=None,
    )
    with training:
        for _ in training:
            training.step(lambda batch: case.loss(case.model, batch))
            after = {n: p.detach().clone() for n, p in case.model.named_parameters()}
    return {n: before[n] - after[n] for n in before}


def batch_norm(folder: Path) -> dict[str, Tensor]:
    """Train with batch norm; return the logits of an evaluation, and the state after it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = seeded(EXAMPLES, 8), torch.arange(EXAMPLES) % 3
    training = ampft.Training(
        model, optimizer, (x, y), output_dir=folder / "batch-norm", batch_size=EXAMPLES, epochs=2
    )
    with training:
        for _ in training:
            training.step(lambda batch: ampft.summed_cross_entropy(model(batch[0]), batch[1]))
            with training.evaluation():
                logits = model(x).contiguous()
    return {"logits": logits, **model.state_dict()}


def main(folder: str) -> None:
    """Write the gradients of all cases, in two micro-batches per process."""
    distributed.init_process_group("gloo")
    with patch.object(distributed, "destroy_process_group"):  # one group serves all cases
        for name in CASES:
            found = by_training(name, Path(folder), micro_batches=2)
            if distributed.get_rank() == 0:
                save_file(found, Path(folder, f"{name}.safetensors"))
        rank = distributed.get_rank()
        save_file(batch_norm(Path(folder)), Path(folder, f"batch-norm-{rank}.safetensors"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(sys.argv[1])))
