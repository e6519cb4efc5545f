"""Clipping, loss scale and optimizer of a step as one CUDA graph.

The graph follows the last micro-batch of a step, whose gradient is in memory that stays where it
is, so that one graph serves steps of any shapes. It contains what the host does not have to decide:
gradients are unscaled and clipped, a step that is not finite leaves the weights as they are, and
the loss scale changes. The host then reads loss, norm and scale, as it does without graphs.

Learning rates are float32 numbers on the device. The first steps, and all others that are not
replayed, use them too, so that every step has the same bits with the graph and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from ampft.engine.step import Update
from ampft.fast.graphs import VERIFIED, GraphedGradient
from ampft.precision.transfer import copy_into
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from accelerate import Accelerator

# Of the change of all weights. Both updates run the same kernels on the same numbers.
UPDATE_TOLERANCE = 1e-5


@dataclass
class GraphedUpdate:
    """Calls the updates of `apply_step`, and replays a graph in their place; see the module."""

    graphs: GraphedGradient  # Graphs of the gradient.
    accelerator: Accelerator  # Accelerator that prepared the optimizer.
    optimizer: Optimizer  # Optimizer, not prepared.
    reason: str | None = None  # Why no update is captured; None if it is.
    replayed: int = 0  # Updates by the graph.
    others: int = 0  # Updates without it.
    _rates: Tensor | None = None
    _loss: Tensor | None = None
    _captured: tuple[Callable[[], None], list[Tensor]] | None = field(default=None, repr=False)
    _inputs: list[Tensor] = field(default_factory=list, repr=False)
    _unverified: int = VERIFIED
    _is_said: bool = False

    def __post_init__(self) -> None:
        """Find out whether the optimizer can be captured, and make room for its numbers."""
        groups, device = self.optimizer.param_groups, self.graphs.device
        if type(self.optimizer) is not AdamW or not all(group["fused"] for group in groups):
            self.reason = f"{type(self.optimizer).__name__} computes on the host"
            return
        if any(p.dtype != torch.float32 for group in groups for p in group["params"]):
            self.reason = "lost updates of 16-bit weights are counted between the steps"
            return
        self._rates = torch.zeros(len(groups), dtype=torch.float32, device=device)
        self._loss = torch.zeros((), dtype=torch.float32, device=device)

    def as_dict(self) -> dict[str, object]:
        """Return what was captured in this process, for the record."""
        return {
            "replayed_updates": self.replayed,
            "other_updates": self.others,
            "reason_of_updates": self.reason,
        }

    def __call__(self, update: Update, loss: Tensor) -> list[Tensor]:
        """Call an update, or replay it; return what it returns."""
        if self._rates is None or self._loss is None:
            self.others += 1
            if self.graphs.is_in_use and not self._is_said:
                self._say(f"without the update: {self.reason}")
            return update(loss)
        with self._rates_on_device(self._rates):
            self._loss.copy_(loss)
            if self._captured is None and self._may_capture():
                self._capture(update, self._loss)
            is_same = _ids(_gradients(self.optimizer)) == _ids(self._inputs)
            if self._captured is None or not is_same or not self.graphs.is_in_use:
                self.others += 1
                return update(self._loss)
            if self._unverified > 0:
                self.others += 1
                return self._verified(update, self._loss)
            replay, result = self._captured
            replay()
            self.replayed += 1
            return result

    @contextmanager
    def _rates_on_device(self, rates: Tensor) -> Iterator[None]:
        """Give the optimizer its learning rates as tensors, which a graph reads in each replay."""
        groups = self.optimizer.param_groups
        numbers = [group["lr"] for group in groups]
        on_host = torch.tensor(numbers, dtype=torch.float32)
        copy_into(rates, on_host.pin_memory() if rates.device.type == "cuda" else on_host)
        for group, rate in zip(groups, rates.unbind(), strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number

    def _may_capture(self) -> bool:
        """Return whether all that the update reads and changes is there, and stays there."""
        kept, own = _ids(self.graphs.gradients.values()), _ids(_gradients(self.optimizer))
        has_hooks = self.optimizer._optimizer_step_pre_hooks  # the check of the first update
        has_state = all(p in self.optimizer.state for p in _trained(self.optimizer))
        is_ready = bool(own) and set(own) <= set(kept) and has_state and not has_hooks
        return self.reason is None and self.graphs.is_in_use and is_ready

    def _capture(self, update: Update, loss: Tensor) -> None:
        """Capture an update, or say why not. Nothing is computed."""
        groups = self.optimizer.param_groups
        try:
            for group in groups:
                group["capturable"] = True  # which torch demands during a capture
            self._captured = self.graphs.recorder.capture(lambda: update(loss))
            self._inputs = _gradients(self.optimizer)
        except Exception as error:
            self.graphs.give_up(error)
            # What the scaler has begun to note about this step.
            if self.accelerator.scaler is not None:
                self.accelerator.scaler._per_optimizer_states.clear()
            for name in ("found_inf", "grad_scale"):
                self.optimizer.__dict__.pop(name, None)
        finally:
            for group in groups:
                group["capturable"] = False

    @torch.no_grad()
    def _verified(self, update: Update, loss: Tensor) -> list[Tensor]:
        """Apply an update by the graph and without it, and keep the graph if both agree."""
        assert self._captured is not None
        trained, scaler = _trained(self.optimizer), self.accelerator.scaler
        changing: list[Any] = [*trained, *self._inputs]
        changing += [t for p in trained for t in self.optimizer.state[p].values()]
        changing += [] if scaler is None else [scaler._scale, scaler._growth_tracker]
        try:
            before = [tensor.clone() for tensor in changing]
            replayed = [torch.empty_like(parameter) for parameter in trained]
        except Exception as error:  # memory runs out
            self.graphs.give_up(error)
            return update(loss)
        self._captured[0]()
        torch._foreach_copy_(replayed, trained)
        for tensor, former in zip(changing, before, strict=True):
            tensor.copy_(former)
        result = update(loss)
        torch._foreach_sub_(replayed, trained)
        moved = before[: len(trained)]
        torch._foreach_sub_(moved, trained)
        norms = [torch.stack(torch._foreach_norm(each)).norm() for each in (replayed, moved)]
        difference, change = torch.stack(norms).tolist()
        self._unverified -= change > 0  # not after a step that was skipped
        if not difference <= UPDATE_TOLERANCE * change:
            self.reason = "an update by the graph is not the one without it"
            self._captured = None
            self._say(f"without the update: {self.reason}")
        return result

    def _say(self, text: str) -> None:
        self._is_said = True
        self.graphs.write(labelled("graphs", text))


def _ids(tensors: Iterable[Tensor]) -> list[int]:
    return [id(tensor) for tensor in tensors]


def _trained(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that have a gradient."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p.grad for p in _trained(optimizer) if p.grad is not None]
