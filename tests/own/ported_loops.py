"""Loops of users, written once, and driven by plain torch or by `ampft.Training`."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import ampft

EPOCHS, SIZE, ROWS = 4, 8, 37  # 5 steps per epoch; the last one has 5 rows
STEPS = EPOCHS * 5
RATE = 0.4


class Killed(Exception):
    """The process ends here."""


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] * 2 + x[:, 1] > 0).long())


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, **{"lr": RATE, "momentum": 0.9, **settings})


class Plain:
    """The loop that a user has: torch, and nothing else."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    @contextmanager
    def around(
        self, model: nn.Module, optimizer: Any, schedule: Any = None, every: str = "", **_: Any
    ) -> Iterator[Plain]:
        self.model, self.optimizer, self.schedule, self.every = model, optimizer, schedule, every
        yield self

    @property
    def epochs(self) -> Iterator[int]:
        for epoch in range(EPOCHS):
            self.model.train()
            yield epoch
            if self.every == "epoch":
                self.schedule.step()

    def batches(self, epoch: int) -> Iterator[Any]:
        del epoch
        # With a generator of its own, it draws no seed from the global one.
        yield from DataLoader(examples(), batch_size=SIZE, generator=torch.Generator())

    def step(self, batch: Any, weight: float = 1.0) -> None:
        loss = weight * cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.rates.append(max(group["lr"] for group in self.optimizer.param_groups))
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.every == "step":
            self.schedule.step()

    def validated(self, loss: float) -> None:
        if self.every == "metric":
            self.schedule.step(loss)


class Ours:
    """The same loop with `ampft.Training`."""

    def __init__(
        self, folder: Path, kill_at: int | None = None, stop_at: int | None = None, **settings: Any
    ) -> None:
        self.folder, self.kill_at, self.stop_at = folder, kill_at, stop_at
        self.settings = {"checkpointing_steps": "1", "batch_size": SIZE, **settings}
        self.rates: list[float] = []

    @contextmanager
    def around(
        self,
        model: nn.Module,
        optimizer: Any,
        schedule: Any = None,
        every: str = "",
        **objects: Any,
    ) -> Iterator[Ours]:
        del every  # it is told by the schedule
        self.model = model
        self.training = ampft.Training(
            model,
            optimizer,
            DataLoader(examples(), batch_size=SIZE),
            schedule=schedule,
            checkpointed=objects,
            epochs=EPOCHS,
            load_best_model_at_end=False,
            output_dir=self.folder,
            **self.settings,
        )
        with ExitStack() as stack:
            stack.enter_context(self.training)
            yield self

    @property
    def epochs(self) -> Iterator[int]:
        return self.training.epochs

    def batches(self, epoch: int) -> Iterator[Any]:
        return self.training.step_batches(epoch)

    def step(self, batch: Any, weight: float = 1.0) -> None:
        del batch
        outcome = self.training.step(
            lambda b: weight * ampft.summed_cross_entropy(self.model(b[0]), b[1])
        )
        self.rates.append(outcome.learning_rate)
        if self.training.steps == self.stop_at:
            signal.raise_signal(signal.SIGTERM)
        if self.training.steps == self.kill_at:
            raise Killed

    def validated(self, loss: float) -> None:
        with self.training.evaluation():
            self.training.validated(loss=loss)


Driver = Plain | Ours


def held_out(model: nn.Module) -> float:
    x, y = examples().tensors
    with torch.no_grad():
        return float(cross_entropy(model(x[::2]).float(), y[::2]))


def whole(driver: Driver, model: nn.Module, optimizer: Any, **parts: Any) -> None:
    """Train without anything between the steps, and validate after each epoch."""
    with driver.around(model, optimizer, **parts):
        for epoch in driver.epochs:
            for batch in driver.batches(epoch):
                driver.step(batch)
            driver.validated(held_out(model))


def rate_by_epoch(driver: Driver) -> nn.Module:
    """`adjust_learning_rate`, as the ImageNet and MoCo loops have it."""
    model = network()
    optimizer = sgd(model)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            for group in optimizer.param_groups:
                group["lr"] = RATE * 0.3**epoch
            for batch in driver.batches(epoch):
                driver.step(batch)
    return model


def rate_times_factor(driver: Driver) -> nn.Module:
    """A rate that is multiplied, before and after the steps of an epoch."""
    model = network()
    optimizer = sgd(model)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            for batch in driver.batches(epoch):
                driver.step(batch)
            if epoch == 1:
                for group in optimizer.param_groups:
                    group["lr"] /= 4
    return model


def rate_by_step(driver: Driver) -> nn.Module:
    """A rate that decays after each step, and groups of parameters with rates of their own."""
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.5)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            for batch in driver.batches(epoch):
                driver.step(batch)
                for group in optimizer.param_groups:
                    group["lr"] *= 0.93
    return model


def schedule_outside(driver: Driver, make: Callable[[Any], Any] | None = None) -> nn.Module:
    model = network()
    optimizer = sgd(model)
    schedule = (make or (lambda o: lr_scheduler.StepLR(o, 2, 0.2)))(optimizer)
    with driver.around(model, optimizer, outside=schedule):
        for epoch in driver.epochs:
            for batch in driver.batches(epoch):
                driver.step(batch)
            schedule.step()
    return model


def milestones_outside(driver: Driver) -> nn.Module:
    return schedule_outside(driver, lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.2))


def plateau_outside(driver: Driver) -> nn.Module:
    model = network()
    optimizer = sgd(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.3)
    with driver.around(model, optimizer, outside=schedule):
        for epoch in driver.epochs:
            for batch in driver.batches(epoch):
                driver.step(batch)
            schedule.step(held_out(model))
    return model


def inside(make: Callable[[Any], Any], every: str) -> Callable[[Driver], nn.Module]:
    def loop(driver: Driver) -> nn.Module:
        model = network()
        optimizer = sgd(model)
        whole(driver, model, optimizer, schedule=make(optimizer), every=every)
        return model

    return loop


def other_settings(driver: Driver) -> nn.Module:
    """Momentum and weight decay, which whole numbers begin, change."""
    model = network()
    optimizer = sgd(model, momentum=0, weight_decay=0, lr=1)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            for group in optimizer.param_groups:
                group["momentum"] += 0.2
                group["weight_decay"] += 0.01
            for batch in driver.batches(epoch):
                driver.step(batch)
                optimizer.param_groups[0]["lr"] = 0.1
    return model


def unfrozen(driver: Driver) -> nn.Module:
    """The first layer trains from the second epoch on, and not in the last one."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            if epoch == 1:
                model[0].requires_grad_(True)
            if epoch == 3:
                model[0].weight.requires_grad_(False)
            for batch in driver.batches(epoch):
                driver.step(batch)
    return model


def added_group(driver: Driver) -> nn.Module:
    """A group of parameters is added in the second epoch."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            if epoch == 1:
                model[0].requires_grad_(True)
                optimizer.add_param_group({"params": [*model[0].parameters()], "lr": 0.05})
            for batch in driver.batches(epoch):
                driver.step(batch)
    return model


def drawn_by_epoch(driver: Driver) -> nn.Module:
    """The code before the steps of an epoch draws at random, and changes the weights."""
    model = network()
    optimizer = sgd(model)
    torch.manual_seed(5)
    random.seed(5)
    with driver.around(model, optimizer):
        for epoch in driver.epochs:
            weight = 0.5 + random.random()
            with torch.no_grad():
                model[2].bias.add_(0.1 * torch.randn(2))
            for batch in driver.batches(epoch):
                driver.step(batch, weight)
    return model


def warm_restarts(optimizer: Any) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1)
    second = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS - 1)
    return lr_scheduler.SequentialLR(optimizer, [first, second], [1])


def plateau(optimizer: Any) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.3)


LOOPS: dict[str, Callable[[Driver], nn.Module]] = {
    **{
        each.__name__: each
        for each in (
            *(rate_by_epoch, rate_times_factor, rate_by_step, schedule_outside),
            *(milestones_outside, plateau_outside, other_settings, unfrozen, added_group),
        )
    },
    "steps inside": inside(lambda o: lr_scheduler.StepLR(o, 2, 0.2), "epoch"),
    "milestones inside": inside(lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.2), "epoch"),
    "exponential inside": inside(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "epoch"),
    "cosine by epoch": inside(lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS), "epoch"),
    "cosine by step": inside(lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS), "step"),
    "sequence by epoch": inside(warm_restarts, "epoch"),
    "one cycle": inside(lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=STEPS + 1), "step"),
    "lambda": inside(lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.95**step), "step"),
    "plateau inside": inside(plateau, "metric"),
    # Last, because its steps depend on numbers that are drawn between them.
    "drawn_by_epoch": drawn_by_epoch,
}


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
