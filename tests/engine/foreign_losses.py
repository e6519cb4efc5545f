"""Losses of strangers through every door of the exact gradient, compared with plain torch.

    torchrun --nproc_per_node 3 foreign_losses.py RESULTS

Each step is short for some process: it computes a dummy, whose loss must not count.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import gather_object
from torch import Tensor, distributed, nn
from torch.nn import functional

import ampft

CLASSES, MICRO_BATCHES, BATCH = 3, 2, 2
RATE, MAX_NORM = 0.5, 0.3
CLASS_WEIGHTS = torch.tensor([1.0, 3.0, 0.2])

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


def plain_sum(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="sum")


def mean_times_count(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"]) * len(batch["x"])


def class_weights(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"])
    weights = CLASS_WEIGHTS.to(logits.dtype)
    return functional.cross_entropy(
        logits, batch["labels"], weight=weights, label_smoothing=0.1, reduction="sum"
    )


def row_weights(model: nn.Module, batch: Batch) -> Tensor:
    losses = functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")
    return (losses * batch["weights"].to(losses.dtype)).sum()


def weighted_mean(model: nn.Module, batch: Batch) -> Tensor:
    """A mean over a micro-batch, which counts as it is returned."""
    losses = functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")
    weights = batch["weights"].to(losses.dtype)
    return (losses * weights).sum() / weights.sum()


def contrastive(model: nn.Module, batch: Batch) -> Tensor:
    """Two views of each example against all others of the micro-batch, and their sizes."""
    one, other = (model(each) for each in (batch["x"], -batch["x"]))
    similar = functional.normalize(one, dim=1) @ functional.normalize(other, dim=1).T / 0.1
    pairs = functional.cross_entropy(similar, torch.arange(len(one)), reduction="sum")
    return pairs + 0.1 * one.square().sum()


SUMS = (plain_sum, mean_times_count, class_weights, row_weights)  # do not depend on the split
LOSSES = (*SUMS, weighted_mean, contrastive)
WEIGHTS = {"class_weights", "row_weights", "weighted_mean"}


def poisoned(loss: Tensor) -> Tensor:
    """Return a loss that is not finite, with a gradient that is not, as a degenerate one is."""
    return loss * torch.tensor(float("inf")) - loss * torch.tensor(float("inf"))


@dataclass
class Made:
    """What a loop trains."""

    accelerator: Any
    model: nn.Module
    loss: Callable[[nn.Module, ampft.MicroBatch], Tensor]


def of_a_micro_batch(loss: Loss, *, poisons: bool) -> Callable[[nn.Module, Any], Tensor]:
    def compute(model: nn.Module, micro_batch: ampft.MicroBatch) -> Tensor:
        value = loss(model, micro_batch.inputs)
        return poisoned(value) if poisons and not micro_batch.counted else value

    return compute


def accumulated(made: Made, step_batch: ampft.StepBatch) -> list[Tensor]:
    return ampft.accumulate_gradient(made.accelerator, made.model, made.loss, step_batch)


def recipe(made: Made, step_batch: ampft.StepBatch) -> list[Tensor]:
    """The loop of `recipes/classify.py`, with another loss line."""
    losses = []
    for micro_batch in step_batch:
        with ampft.synchronized_last(made.accelerator, made.model, micro_batch):
            loss = made.loss(made.model, micro_batch) / step_batch.effective_weight
            losses.append(ampft.backward(made.accelerator, loss))
    return losses


def loop(made: Made, step_batch: ampft.StepBatch) -> list[Tensor]:
    """A loop that communicates after every micro-batch."""
    losses = []
    for micro_batch in step_batch:
        loss = made.loss(made.model, micro_batch) / step_batch.effective_weight
        losses.append(ampft.backward(made.accelerator, loss))
    return losses


def by_index(made: Made, step_batch: ampft.StepBatch) -> list[Tensor]:
    """A loop that collects the micro-batches first."""
    losses = []
    for micro_batch in list(step_batch.micro_batches):
        with ampft.synchronized_last(made.accelerator, made.model, micro_batch):
            loss = made.loss(made.model, micro_batch) / step_batch.effective_weight
            losses.append(ampft.backward(made.accelerator, loss))
    return losses


def unguarded(made: Made, step_batch: ampft.StepBatch) -> list[Tensor]:
    """The control: a loop without any function of ampft, to which the dummy counts."""
    losses, factor = [], made.accelerator.num_processes * MICRO_BATCHES
    for micro_batch in step_batch:
        loss = made.loss(made.model, micro_batch) / step_batch.effective_weight
        made.accelerator.backward(loss * factor)
        losses.append(loss.detach())
    return losses


SURFACES = (accumulated, recipe, loop, by_index)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, CLASSES))


def rows(count: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return {
        "x": torch.randn(count, 6, generator=generator),
        "labels": labels,
        "weights": CLASS_WEIGHTS[labels],
    }


class Twin:
    """The same training in plain torch and float64."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.worst = 0.0

    def step(self, loss: Loss, parts: list[list[int]], data: Batch, weight: float) -> None:
        """Compute and apply the gradient of parts of a step, each of which has a loss."""
        self.optimizer.zero_grad()
        self.loss = 0.0
        for ids in parts:
            batch = {name: tensor[ids] for name, tensor in data.items()}
            part = loss(self.model, {**batch, "x": batch["x"].double()}) / weight
            part.backward()
            self.loss += float(part.detach())
        self.gradient = self._flat(p.grad for p in self.model.parameters())
        self.norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM))
        self.optimizer.step()

    def compare(self, gradients: list[Tensor], outcome: ampft.StepOutcome) -> None:
        """Take note of the largest relative error of gradient, recorded loss and norm."""
        self._note((self._flat(gradients) - self.gradient).norm() / self.gradient.norm())
        self._note(outcome.loss / self.loss - 1)
        self._note(outcome.grad_norm / self.norm - 1)

    def compare_weights(self, model: nn.Module) -> None:
        """Take note of the relative error of the weights."""
        expected = self._flat(self.model.parameters())
        self._note((self._flat(model.parameters()) - expected).norm() / expected.norm())

    def _note(self, error: Tensor | float) -> None:
        error = abs(float(error))
        self.worst = max(self.worst, error if error == error else float("inf"))

    @staticmethod
    def _flat(tensors: Any) -> Tensor:
        return torch.cat([each.detach().double().flatten() for each in tensors])


def counted_parts(step_batch: ampft.StepBatch) -> list[list[int]]:
    """Return the ids of the micro-batches of all processes that count."""
    return gather_object([m.ids.tolist() for m in step_batch.micro_batches if m.counted])


def error_of(surface: Any, loss: Loss, *, extra: int, poisons: bool) -> tuple[float, int]:
    """Train two epochs, whose last step has `extra` examples; return the largest error.

    Also the number of dummies of all processes.
    """
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    data = rows(MICRO_BATCHES * BATCH * accelerator.num_processes + extra)
    weights = data["weights"] if loss.__name__ in WEIGHTS else None
    batches = ampft.StepBatches.for_process(
        accelerator, ampft.TensorExamples(data, weights), batch_size=BATCH, padded=False
    )
    model, dummies = network(), 0
    twin, optimizer = Twin(model), torch.optim.SGD(model.parameters(), lr=RATE)
    prepared, prepared_optimizer = accelerator.prepare(model, optimizer)
    made = Made(accelerator, prepared, of_a_micro_batch(loss, poisons=poisons))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for step_batch in itertools.chain(batches.epoch(0), batches.epoch(1)):
        dummies += sum(gather_object([sum(not m.counted for m in step_batch.micro_batches)]))
        losses = surface(made, step_batch)
        gradients = [p.grad.clone() for p in model.parameters()]
        outcome = ampft.apply_step(
            *(accelerator, prepared, prepared_optimizer, schedule),
            losses=losses,
            max_grad_norm=MAX_NORM,
        )
        parts = counted_parts(step_batch)
        assert sorted(itertools.chain(*parts)) == sorted(step_batch.effective_ids.tolist())
        whole = [step_batch.effective_ids.tolist()]
        twin.step(loss, whole if loss in SUMS else parts, data, step_batch.effective_weight)
        twin.compare(gradients, outcome)
        prepared_optimizer.zero_grad()
    twin.compare_weights(model)
    return twin.worst, dummies


def error_of_training(loss: Loss, *, extra: int, returns_weight: bool = False) -> tuple[float, int]:
    """Return the same for `ampft.Training`."""
    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    size = MICRO_BATCHES * BATCH * processes
    data, model = rows(size + extra), network()
    has_weights = loss.__name__ in WEIGHTS
    twin, before = Twin(model), [p.detach().clone() for p in model.parameters()]

    def computed(batch: Batch) -> Any:
        value = loss(model, batch)
        return (value, batch["weights"].sum()) if returns_weight else value

    with TemporaryDirectory() as folder:
        training = ampft.Training(
            model,
            torch.optim.SGD(model.parameters(), lr=RATE),
            data,
            weights=data["weights"] if has_weights and not returns_weight else None,
            output_dir=gather_object([folder])[0],
            batch_size=size,
            micro_batches=MICRO_BATCHES,
            epochs=2,
            max_grad_norm=MAX_NORM,
            checkpointing_steps=None,
            check_loss=loss in SUMS,
            overwrite_output_dir=True,
        )
        dummies = 0
        with training:
            for step_batch in training:
                dummies += sum(
                    gather_object([sum(not m.counted for m in step_batch.micro_batches)])
                )
                outcome = training.step(computed)
                ids = step_batch.effective_ids.tolist()
                weight = float(data["weights"][ids].sum()) if has_weights else float(len(ids))
                parts = [ids] if loss in SUMS else counted_parts(step_batch)
                twin.step(loss, parts, data, weight)
                after = [p.detach().clone() for p in model.parameters()]
                moved = [(a - b) / RATE for a, b in zip(before, after, strict=True)]
                factor = max(1.0, outcome.grad_norm / MAX_NORM)
                twin.compare([each * factor for each in moved], outcome)
                before = after
        twin.compare_weights(model)
    return twin.worst, dummies


def table() -> dict[str, tuple[float, int]]:
    """Return the largest error of each cell, and its number of dummies."""
    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    found: dict[str, tuple[float, int]] = {}

    def note(name: str, result: tuple[float, int]) -> None:
        before = found.get(name, (0.0, 0))
        found[name] = (max(before[0], result[0]), before[1] + result[1])

    for extra in range(1, MICRO_BATCHES * processes + 1):
        for loss in LOSSES:
            for surface in SURFACES:
                for poisons in (False, True):
                    name = f"{surface.__name__} {loss.__name__}{' not finite' * poisons}"
                    note(name, error_of(surface, loss, extra=extra, poisons=poisons))
            note(f"training {loss.__name__}", error_of_training(loss, extra=extra))
        note("unguarded plain_sum", error_of(unguarded, plain_sum, extra=extra, poisons=False))
        note(
            "training row_weights tuple",
            error_of_training(row_weights, extra=extra, returns_weight=True),
        )
    return found


def refusal() -> str:
    """Return what a backward pass says that is not known to belong to a micro-batch."""
    accelerator, data = Accelerator(cpu=True), rows(1)
    batches = ampft.StepBatches.for_process(accelerator, ampft.TensorExamples(data), batch_size=1)
    model = network()
    micro_batches = list(next(batches.epoch(0)))
    try:
        ampft.backward(accelerator, plain_sum(model, micro_batches[0].inputs))
    except ampft.InputError as error:
        return str(error)
    return ""


def main(results: str) -> None:
    """Write the table of this process."""
    torch.set_num_threads(1)
    Accelerator(cpu=True)
    with patch.object(distributed, "destroy_process_group"):  # one group serves all cells
        found = {"table": table(), "refusal": refusal()}
    Path(results, f"rank{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(sys.argv[1])
