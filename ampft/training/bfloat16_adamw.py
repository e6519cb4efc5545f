"""AdamW whose weights are bfloat16, by Kahan summation or stochastic rounding (`bfloat16_sums`).

Why not by a library: torchao compiles its step, which takes a C++ compiler on a CPU, and has no
Kahan summation; optimi has no stochastic rounding, and rounds each intermediate to bfloat16, where
PyTorch's fused AdamW computes in float32. Here the moments are PyTorch's own, bit for bit, so that
the modes differ in how the weight is rounded and in nothing else.

The moments are bfloat16 in every mode. With beta2 = 0.999 the second one stalls where a change is
below 2^-9 of it: that belongs to the cost of 16 bits (Zamirai et al. take 0.997 for this reason).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

NEAREST, KAHAN, STOCHASTIC = "nearest", "kahan", "stochastic"
COMPENSATION = "compensation"
# Elements that are float32 at a time: temporaries that fit a CPU's cache, few launches on a GPU.
_AT_ONCE_ON_CPU = 2**18
_AT_ONCE = 2**22


class BFloat16AdamW(Optimizer):
    """AdamW whose weights, moments and compensations are bfloat16; sums in float32.

    Args:
        params: Parameters or groups of them, all bfloat16.
        lr: Rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay per step, times the rate.
        rounding: `KAHAN` or `STOCHASTIC`.
        seed: Of stochastic rounding. The draws of a step depend on it and on the step's number
            alone: equal in every process, and after a resume.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rounding: str,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        if rounding not in (KAHAN, STOCHASTIC):
            raise ValueError(f"rounding: {rounding!r}; has to be {KAHAN!r} or {STOCHASTIC!r}")
        self._rounding = rounding
        self._seed = seed

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Apply one step to all parameters that have a gradient."""
        assert closure is None, "the loss is computed before the step"
        generators: dict[torch.device, torch.Generator] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self._state_of(parameter)
                device = parameter.device
                if device not in generators:
                    generators[device] = _generator(self._seed, int(state["step"]), device)
                for part in _parts(parameter, state):
                    update = _update(part, state["step"], group)
                    if self._rounding == KAHAN:
                        add_with_compensation(part["weight"], part[COMPENSATION], update)
                    else:
                        add_stochastically(part["weight"], update, generators[device])
                state["step"] += 1

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            kept = (COMPENSATION,) if self._rounding == KAHAN else ()
            for name in ("exp_avg", "exp_avg_sq", *kept):
                state[name] = torch.zeros_like(parameter)
        return state


def _generator(seed: int, step: int, device: torch.device) -> torch.Generator:
    # The CPU's generator takes 32 bits of a seed: mixed, so that neighbours are unrelated.
    mixed = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
    return torch.Generator(device).manual_seed(mixed)


def _parts(parameter: Tensor, state: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Yield views of a parameter, its gradient and its state, some elements at a time."""
    whole = {"weight": parameter.detach(), "grad": parameter.grad, **state}
    del whole["step"]
    at_once = _AT_ONCE_ON_CPU if parameter.device.type == "cpu" else _AT_ONCE
    if parameter.numel() <= at_once or not all(t.is_contiguous() for t in whole.values()):
        yield whole
        return
    split = [tensor.view(-1).split(at_once) for tensor in whole.values()]
    for views in zip(*split, strict=True):
        yield dict(zip(whole, views, strict=True))


def _update(part: dict[str, Tensor], step: Tensor, group: dict[str, Any]) -> Tensor:
    """Advance both moments, and return what AdamW adds to the weight, in float32."""
    names = ("grad", "exp_avg", "exp_avg_sq")
    grad, exp_avg, exp_avg_sq = (part[name].float() for name in names)
    # A weight of zero: what is added to it comes out unrounded. It cannot decay.
    update = torch.zeros_like(grad)
    device = grad.device
    adamw(
        [update], [grad], [exp_avg], [exp_avg_sq], [], [step.to(device, copy=True)],
        fused=device.type in {"cpu", "cuda"}, amsgrad=False, beta1=group["betas"][0],
        beta2=group["betas"][1], lr=group["lr"], weight_decay=0.0, eps=group["eps"],
        maximize=False,
    )  # fmt: skip
    part["exp_avg"].copy_(exp_avg)
    part["exp_avg_sq"].copy_(exp_avg_sq)
    if group["weight_decay"] != 0:
        update.sub_(part["weight"].float().mul_(group["lr"] * group["weight_decay"]))
    return update


def add_with_compensation(weight: Tensor, compensation: Tensor, update: Tensor) -> None:
    """Add by Kahan's summation, in place.

    Args:
        weight: bfloat16, any shape.
        compensation: bfloat16: what the weight lacks; holds what it lacks afterwards.
        update: float32; overwritten.
    """
    before = weight.float()
    update.add_(compensation.float())
    weight.copy_(before + update)
    compensation.copy_(update.sub_(weight.float().sub_(before)))


def add_stochastically(weight: Tensor, update: Tensor, generator: torch.Generator) -> None:
    """Add and round to one of the two neighbours, in place; the mean is the sum in float32.

    Adding 16 uniform bits below the last place of a bfloat16 and cutting there rounds away from
    zero with the probability that the cut bits, as a fraction, state.

    Args:
        weight: bfloat16, any shape.
        update: float32; overwritten.
        generator: Of the weight's device.
    """
    bits = update.add_(weight.float()).view(torch.int32)
    # One 64-bit draw holds the noise of four elements, as in `ampft.models.packing.dropout`.
    words = torch.empty(-(-bits.numel() // 4), dtype=torch.int64, device=bits.device)
    noise = words.random_(-(2**63), None, generator=generator).view(torch.int16)[: bits.numel()]
    bits.add_(noise.view(bits.shape).int().add_(2**15)).bitwise_and_(-(2**16))
    weight.copy_(update)
