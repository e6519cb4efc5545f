"""The recipe's loop, which keeps the gradient of every step, and the same training in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from ampft.data.step_batches import Examples, MicroBatch, StepBatches, TensorExamples
from ampft.engine.step import (
    StepOutcome,
    apply_step,
    backward,
    shared_autocast_cache,
    synchronized_last,
)
from ampft.engine.trained_parameters import allow_unused_parameters
from ampft.precision.accelerator import make_accelerator, numerics, prepare_training_objects
from ampft.precision.resolve import resolve
from ampft.tasks.loss import summed_cross_entropy
from ampft.tasks.task import Task

CPU = torch.device("cpu")

# Relative error of the whole gradient for any split of the same examples, because sums in another
# order round differently.
GRADIENT_TOLERANCE = {"fp32": 1e-6, "fp16": 2e-3}


@dataclass(frozen=True)
class Problem:
    """A model with its examples and its summed loss."""

    model: nn.Module
    examples: Examples
    loss: Callable[[nn.Module, MicroBatch], Tensor]
    padded: bool = True


def text_problem(task: Task) -> Problem:
    loaded = task.load_model()
    return Problem(loaded.model, task.examples("train"), task.loss, padded=not loaded.padding_free)


def tensor_problem(n: int = 12) -> Problem:
    """A small network with a layer norm, for random vectors of four classes."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n, 8, generator=generator)
    labels = torch.randint(4, (n,), generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))

    def loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        return summed_cross_entropy(model(micro_batch.inputs["x"]), micro_batch.inputs["labels"])

    return Problem(model, TensorExamples({"x": inputs, "labels": labels}), loss)


@dataclass(frozen=True)
class Step:
    """One optimizer step: ids of this process and of all, the unscaled gradient, the outcome."""

    ids: list[int]
    effective_ids: list[int]
    gradient: Tensor
    outcome: StepOutcome


@dataclass
class Training:
    """A problem prepared in a mode as in the recipe; iterate over `steps` to train."""

    mode: str
    problem: Problem
    batch_size: int
    micro_batches: int = 1
    optimizer: Callable[[nn.Module], Any] | None = None
    rate: Callable[[int], float] | None = None
    max_grad_norm: float | None = None
    loss_scale: float | None = None
    skip_nonfinite: bool = False
    autocast_cache: Callable[..., AbstractContextManager[object]] = shared_autocast_cache

    def __post_init__(self) -> None:
        # Reset without the process group, which the new Accelerator must share.
        AcceleratorState._reset_state()
        GradientState._reset_state()
        self.precision = resolve(self.mode, CPU)
        self.accelerator = make_accelerator(
            self.precision, gradient_accumulation_steps=self.micro_batches
        )
        if self.accelerator.scaler is not None and self.loss_scale is not None:
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=self.loss_scale)
        self.batches = StepBatches.for_process(
            self.accelerator,
            self.problem.examples,
            batch_size=self.batch_size,
            seed=5,
            padded=self.problem.padded,
        )
        optimizer = (self.optimizer or sgd)(self.problem.model)
        self.schedule = LambdaLR(optimizer, self.rate or (lambda step: 1.0))
        allow_unused_parameters(
            self.accelerator, self.problem.model, self.problem.loss, self.batches
        )
        self.model, self.prepared = prepare_training_objects(
            self.accelerator, self.problem.model, optimizer
        )

    def steps(self, epochs: int = 1) -> Iterator[Step]:
        with numerics(self.precision):
            for epoch in range(epochs):
                self.model.train()
                for step_batch in self.batches.epoch(epoch):
                    losses = []
                    with self.autocast_cache(self.accelerator, self.model, step_batch):
                        for micro_batch in step_batch:
                            with synchronized_last(self.accelerator, self.model, micro_batch):
                                summed = self.problem.loss(self.model, micro_batch)
                                loss = summed / step_batch.effective_weight
                                losses.append(backward(self.accelerator, loss))
                    outcome = apply_step(
                        self.accelerator,
                        self.model,
                        self.prepared,
                        self.schedule,
                        losses=losses,
                        max_grad_norm=self.max_grad_norm,
                        skip_nonfinite=self.skip_nonfinite,
                    )
                    gradient = flat_gradient(self.model)
                    self.prepared.zero_grad()
                    yield Step(
                        step_batch.ids.tolist(),
                        step_batch.effective_ids.tolist(),
                        gradient,
                        outcome,
                    )


def plain_torch(
    mode: str,
    problem: Problem,
    ids_per_step: Sequence[Sequence[int]],
    loss_function: Callable[[Tensor, Tensor], Tensor],
    forward: Callable[[nn.Module, Any], Tensor],
) -> list[Tensor]:
    """Train on each effective batch at once, without ampft's or Accelerate's steps."""
    precision = resolve(mode, CPU)
    optimizer = sgd(problem.model)
    scaler = torch.amp.GradScaler("cpu", enabled=mode == "fp16")
    gradients = []
    with numerics(precision):
        for ids in ids_per_step:
            inputs = problem.examples.collate(torch.tensor(ids).numpy())
            with torch.autocast("cpu", dtype=torch.float16, enabled=mode == "fp16"):
                logits = forward(problem.model, inputs)
            scaler.scale(loss_function(logits.float(), inputs["labels"])).backward()
            scaler.unscale_(optimizer)
            gradients.append(flat_gradient(problem.model))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return gradients


def bert_logits(model: nn.Module, inputs: Any) -> Tensor:
    return model(**{name: value for name, value in inputs.items() if name != "labels"}).logits


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def flat_gradient(model: nn.Module) -> Tensor:
    """Return a copy of all gradients as one float64 vector; unused parameters have none."""
    trained = (p for p in model.parameters() if p.grad is not None)
    return torch.cat([whole(p.grad).double().flatten() for p in trained])


def flat_weights(model: nn.Module) -> Tensor:
    """Return a copy of all parameters as one float64 vector."""
    return torch.cat([whole(p).double().flatten() for p in model.parameters()])


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be sharded over processes as one, detached."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def poison(model: nn.Module, value: float, when: Callable[[], bool]) -> None:
    """Set one entry of the first parameter's gradient to `value` in passes where `when()` holds."""

    def hook(gradient: Tensor) -> Tensor:
        # Zeros come from before the training, with three processes and more.
        if not gradient.any() or not when():
            return gradient
        poisoned = gradient.clone()
        poisoned.view(-1)[0] = value
        return poisoned

    next(model.parameters()).register_hook(hook)
