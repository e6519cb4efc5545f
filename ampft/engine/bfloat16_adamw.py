"""AdamW for bfloat16 weights, with Kahan summation or stochastic rounding, and updates it loses.

No library provides both: torchao compiles its step, which requires a C++ compiler on a CPU, and has
no Kahan summation; optimi has no stochastic rounding, and rounds each intermediate result to
bfloat16, where PyTorch's fused AdamW computes in float32. Here the moments equal PyTorch's bit for
bit, so that the modes differ only in how weights are rounded.

The moments are bfloat16 in every mode. With beta2 = 0.999 the second moment does not change if its
relative change is below 2^-9. This is part of the cost of 16 bits (Zamirai et al. use 0.997 for
this reason).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

NEAREST, KAHAN, STOCHASTIC = "nearest", "kahan", "stochastic"
COMPENSATION = "compensation"
# Elements converted to float32 at a time, so that temporaries fit into a CPU's cache, and a GPU
# needs few kernel launches.
_CHUNK_SIZE_ON_CPU = 2**18
_CHUNK_SIZE = 2**24
_Tensors = dict[str, Tensor]


class BFloat16AdamW(Optimizer):
    """AdamW with bfloat16 weights, moments and compensations, and float32 arithmetic.

    Args:
        params: Parameters or groups of parameters, all bfloat16.
        lr: Learning rate.
        betas: Decay rates of the two moments.
        eps: Term added to the root of the second moment.
        weight_decay: Decoupled weight decay, which is multiplied by the learning rate.
        rounding: `KAHAN` or `STOCHASTIC`.
        seed: Seed for stochastic rounding. The draws of a step depend only on the seed and the
            number of the step, so they are equal in all processes and after a resume.

    Raises:
        ValueError: `rounding` is neither of the two.
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
            raise ValueError(f"rounding: received {rounding!r}; use {KAHAN!r} or {STOCHASTIC!r}")
        self.rounding = rounding
        self._seed = seed

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Apply one step to all parameters that have a gradient."""
        assert closure is None, "closures are not supported"
        generators: dict[torch.device, torch.Generator] = {}
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for batch in _batches(trained, [self._state_of(parameter) for parameter in trained]):
                step, device = batch[0][1]["step"], batch[0][0].device
                if self.rounding == STOCHASTIC and device not in generators:
                    generators[device] = _generator(self._seed, step, device)
                for chunk in _chunks([_tensors_of(*entry) for entry in batch]):
                    update = _update(chunk, step, group)
                    if self.rounding == KAHAN:
                        add_with_compensation(chunk["weight"], chunk[COMPENSATION], update)
                    else:
                        add_stochastically(chunk["weight"], update, generators[device])
                for _, state in batch:
                    state["step"] += 1

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            extra = (COMPENSATION,) if self.rounding == KAHAN else ()
            for name in ("exp_avg", "exp_avg_sq", *extra):
                state[name] = torch.zeros_like(parameter)
        return state


def _batches(
    parameters: list[Tensor], states: list[dict[str, Any]]
) -> Iterator[list[tuple[Tensor, dict[str, Any]]]]:
    """Yield parameters with their states: one at a time on a CPU, several small ones elsewhere."""
    batch: list[tuple[Tensor, dict[str, Any]]] = []
    size, key = 0, None
    for parameter, state in zip(parameters, states, strict=True):
        new_size, new_key = size + parameter.numel(), (parameter.device, state["step"])
        fits = new_key == key and parameter.device.type != "cpu" and new_size <= _CHUNK_SIZE
        if batch and not fits:
            yield batch
            batch, new_size = [], parameter.numel()
        batch.append((parameter, state))
        size, key = new_size, new_key
    if batch:
        yield batch


def _generator(seed: int, step: int, device: torch.device) -> torch.Generator:
    # The CPU's generator uses 32 bits of a seed; mixing makes adjacent steps' seeds unrelated.
    mixed = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
    return torch.Generator(device).manual_seed(mixed)


def _tensors_of(parameter: Tensor, state: dict[str, Any]) -> _Tensors:
    assert parameter.grad is not None
    moments = {name: value for name, value in state.items() if name != "step"}
    return {"weight": parameter.detach(), "grad": parameter.grad, **moments}


def _chunks(batch: list[_Tensors]) -> Iterator[_Tensors]:
    """Yield the tensors of a batch, to be changed in place: concatenated, or parts of a large one.

    Args:
        batch: Weight, gradient and state of each parameter.
    """
    if len(batch) > 1:
        joined = {name: torch.cat([t[name].reshape(-1) for t in batch]) for name in batch[0]}
        yield joined
        sizes = [tensors["weight"].numel() for tensors in batch]
        for name in joined.keys() - {"grad"}:
            targets = [tensors[name] for tensors in batch]
            parts = joined[name].split(sizes)
            views = [part.view(t.shape) for part, t in zip(parts, targets, strict=True)]
            torch._foreach_copy_(targets, views)
        return
    (tensors,) = batch
    weight = tensors["weight"]
    size = _CHUNK_SIZE_ON_CPU if weight.device.type == "cpu" else _CHUNK_SIZE
    if weight.numel() <= size or not all(t.is_contiguous() for t in tensors.values()):
        yield tensors
        return
    split = [tensor.view(-1).split(size) for tensor in tensors.values()]
    for parts_of_all in zip(*split, strict=True):
        yield dict(zip(tensors, parts_of_all, strict=True))


def _update(chunk: _Tensors, step: int, group: dict[str, Any]) -> Tensor:
    """Update both moments, and return what AdamW adds to the weight, in float32."""
    names = ("grad", "exp_avg", "exp_avg_sq")
    grad, exp_avg, exp_avg_sq = (chunk[name].float() for name in names)
    # A step from zero weights returns the update unrounded; weight decay is applied below.
    update = torch.zeros_like(grad)
    device = grad.device
    step_before = torch.full((), float(step), device=device)  # filled there: nothing is copied
    adamw(
        [update], [grad], [exp_avg], [exp_avg_sq], [], [step_before],
        fused=device.type in {"cpu", "cuda"}, amsgrad=False, beta1=group["betas"][0],
        beta2=group["betas"][1], lr=group["lr"], weight_decay=0.0, eps=group["eps"],
        maximize=False,
    )  # fmt: skip
    chunk["exp_avg"].copy_(exp_avg)
    chunk["exp_avg_sq"].copy_(exp_avg_sq)
    if group["weight_decay"] != 0:
        update.sub_(chunk["weight"].float().mul_(group["lr"] * group["weight_decay"]))
    return update


def add_with_compensation(weight: Tensor, compensation: Tensor, update: Tensor) -> None:
    """Add an update to a weight by Kahan summation, in place.

    Args:
        weight: bfloat16, any shape.
        compensation: bfloat16, rounding error of the weight, which is updated in place.
        update: float32, overwritten.
    """
    before = weight.float()
    update.add_(compensation.float())
    weight.copy_(before + update)
    compensation.copy_(update.sub_(weight.float().sub_(before)))


def add_stochastically(weight: Tensor, update: Tensor, generator: torch.Generator) -> None:
    """Add an update to a weight and round stochastically, in place.

    The expectation is the float32 sum. Adding 16 uniform bits below the last place of a bfloat16
    and truncating rounds away from zero with a probability equal to the fraction given by the
    truncated bits.

    Args:
        weight: bfloat16, any shape.
        update: float32, overwritten.
        generator: Random generator on the weight's device.
    """
    bits = update.add_(weight.float()).view(torch.int32)
    # One 64-bit draw provides the noise of four elements, as in `ampft.fast.packing.cpu_kernels`.
    words = torch.empty(-(-bits.numel() // 4), dtype=torch.int64, device=bits.device)
    noise = words.random_(-(2**63), None, generator=generator).view(torch.int16)[: bits.numel()]
    bits.add_(noise.view(bits.shape).int().add_(2**15)).bitwise_and_(-(2**16))
    weight.copy_(update)


MEASURED_EVERY = 10
# Models with more weights than this are sampled, to save memory and time: every 101st weight of
# each tensor. The stride is prime, so that it visits all columns of a matrix.
MIN_SAMPLED_WEIGHTS, STRIDE = 1_000_000, 101


def step_measuring_lost_updates(optimizer: Any, *, step: int) -> float | None:
    """Apply an optimizer step, and return the share of weight updates that rounding lost.

    An update is lost if it is not zero but leaves the stored weight unchanged, including its
    compensation in Kahan summation. With stochastic rounding the other updates compensate for
    lost ones on average.

    Args:
        optimizer: AdamW, prepared or not.
        step: Number of this step, counted from 1.

    Returns:
        Number of lost updates divided by number of non-zero updates, 0 to 1. None if nothing is
        measured: the weights are not bfloat16, the optimizer is not Adam, the step is not a
        multiple of `MEASURED_EVERY`, or all updates are zero.
    """
    plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
    trained = [(p, group) for group in plain.param_groups for p in group["params"]]
    is_adam = all("betas" in group for group in plain.param_groups)  # has a first moment
    if step % MEASURED_EVERY or not is_adam or any(p.dtype != torch.bfloat16 for p, _ in trained):
        optimizer.step()
        return None
    stride = STRIDE if sum(p.numel() for p, _ in trained) > MIN_SAMPLED_WEIGHTS else 1
    snapshots = [
        (parameter, group, [part.clone() for part in _stored(plain, parameter, stride)])
        for parameter, group in trained
        if parameter.grad is not None
    ]
    optimizer.step()
    counts = [count for entry in snapshots for count in _counts(plain, *entry, stride)]
    lost, nonzero = torch.stack(counts).view(-1, 2).sum(dim=0).tolist()
    return lost / nonzero if nonzero else None


def _stored(optimizer: Optimizer, parameter: Tensor, stride: int) -> list[Tensor]:
    """Return the tensors that together store a weight."""
    compensation = optimizer.state[parameter].get(COMPENSATION)
    parts = [parameter.detach(), *([] if compensation is None else [compensation])]
    return [part.reshape(-1)[::stride] for part in parts]


def _counts(
    optimizer: Optimizer,
    parameter: Tensor,
    group: dict[str, Any],
    former: list[Tensor],
    stride: int,
) -> Iterator[Tensor]:
    """Yield the numbers of lost updates and of non-zero updates since the `former` tensors."""
    # An update is zero if the first moment is, because its divisor is positive.
    nonzero = optimizer.state[parameter]["exp_avg"].reshape(-1)[::stride] != 0
    if group["weight_decay"] != 0:
        nonzero |= former[0] != 0
    nonzero &= group["lr"] != 0
    unchanged = torch.ones_like(nonzero)
    # A compensation that this step created counts as zero before it.
    now = _stored(optimizer, parameter, stride)
    for before, after in zip_longest(former, now, fillvalue=0):
        unchanged &= after == before
    yield (unchanged & nonzero).sum()
    yield nonzero.sum()
