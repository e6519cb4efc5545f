"""Checks that the optimizer holds every trained parameter, and that its first update moves them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampft.errors import InputError, PrecisionContradicted
from ampft.training.update_rules import local_row, rule_of

SAMPLED = 64  # weights of each tensor: those with the largest gradient in as many parts of it


class _Sample(NamedTuple):
    name: str
    parameter: Tensor
    positions: Tensor
    before: Tensor
    has_gradient: Tensor


def check_parameters(model: nn.Module, optimizer: Any) -> None:
    """Check that the optimizer holds each trainable parameter now, and moves it when it steps.

    What prepares a model can replace its parameters after the optimizer was built: the optimizer
    then updates tensors that the model no longer uses, and the new ones stay as they were.

    The first step that is applied with a learning rate above 0 is checked while it is made. Of each
    tensor it compares `SAMPLED` weights with large gradients, without a copy of the
    others. A weight may stay as it was if its update is below the resolution of its dtype, as many
    updates of bfloat16 weights are.

    Args:
        model: Model after `Accelerator.prepare`, without the wrapper of several processes.
        optimizer: Optimizer of its parameters, prepared or not. Its first step raises
            `PrecisionContradicted` if a tensor does not change although its gradient is not zero
            and its update is large enough.

    Raises:
        InputError: The optimizer does not hold a parameter; the message names the first one.
    """
    plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
    message = _not_held(model, plain)
    if message is not None:
        raise InputError(message)
    _FirstUpdate(model, plain)


class _FirstUpdate:
    """Hooks around the step of an optimizer, which remove themselves after the first update."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._samples: list[_Sample] = []
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._samples = []
        if any(float(group["lr"]) > 0 for group in optimizer.param_groups):
            named = self._model.named_parameters()
            self._samples = [_sample(n, p) for n, p in named if p.requires_grad and _has_entries(p)]

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        found_inf = getattr(optimizer, "found_inf", None)  # a fused optimizer skips the step
        if not self._samples or (found_inf is not None and float(found_inf) > 0):
            return
        samples, self._samples = self._samples, []
        for hook in self._hooks:
            hook.remove()
        message = _not_held(self._model, optimizer)
        if message is None:
            unchanged = torch.stack([_is_unchanged(s) for s in samples]).tolist()
            still = [
                sample.name
                for sample, stays in zip(samples, unchanged, strict=True)
                if stays and _must_have_changed(optimizer, sample)
            ]
            if still:
                message = (
                    f"the first update left {len(still)} of {len(samples)} trained tensors "
                    f"unchanged, among them {still[0]}, although their gradients are not zero and "
                    "their updates are larger than the spacing of the weights. Use another "
                    "--mixed_precision, or other versions of torch and accelerate."
                )
        if message is not None:
            raise PrecisionContradicted(message)


def _not_held(model: nn.Module, optimizer: Optimizer) -> str | None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in trained.items() if id(p) not in held]
    if not missing:
        return None
    return (
        f"the optimizer holds {len(trained) - len(missing)} of {len(trained)} trainable tensors, "
        f"and {missing[0]} is not one of them: it was replaced or added after the optimizer was "
        "built, so training would never change it. Use another --mixed_precision, or other "
        "versions of accelerate and of the library that replaced it."
    )


def _has_entries(parameter: Tensor) -> bool:
    return parameter.grad is not None and local_row(parameter.grad).numel() > 0


def _sample(name: str, parameter: Tensor) -> _Sample:
    assert parameter.grad is not None
    gradient = local_row(parameter.grad)
    size = -(-gradient.numel() // SAMPLED)
    # Part by part, because a search in the whole tensor would need copies of it.
    largest = [part.abs().argmax() for part in gradient.split(size)]
    positions = torch.stack([size * number + place for number, place in enumerate(largest)])
    has_gradient = gradient[positions] != 0
    return _Sample(name, parameter, positions, local_row(parameter)[positions], has_gradient)


def _is_unchanged(sample: _Sample) -> Tensor:
    """Return whether no sampled weight changed although one has a gradient."""
    now = local_row(sample.parameter)[sample.positions]
    return (now == sample.before).all() & sample.has_gradient.any()


def _must_have_changed(optimizer: Optimizer, sample: _Sample) -> bool:
    """Return whether at least one sampled weight must have changed.

    An update of more than twice the spacing of the numbers at the weight changes it, however it is
    rounded.
    """
    parameter, before = sample.parameter, sample.before
    state = optimizer.state[parameter]
    if not state:
        return True
    groups = optimizer.param_groups
    group = next(group for group in groups if any(p is parameter for p in group["params"]))
    update = rule_of(group).update(parameter, state, group, sample.positions)
    limits = torch.finfo(before.dtype)
    spacing = (limits.eps * before.double().abs()).clamp(min=limits.tiny)
    return bool((sample.has_gradient & (update > 2 * spacing)).any())
