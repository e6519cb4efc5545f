"""How the optimizers of torch update weights: what they keep for each, and how far they move it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from ampft.models.sharded import local_part

Group = Mapping[str, Any]
"""A group of parameters of an optimizer, with its settings."""


@dataclass(frozen=True)
class UpdateRule:
    """The rule by which an optimizer of torch updates the weights of a group.

    Attributes:
        setting: Entry that groups of this rule have, and groups of other rules do not.
        shapes: Function that returns the shapes of the state of a parameter, by key, from the
            parameter's shape. They have its dtype.
        counts_steps: Whether the state has a float32 scalar `step` too.
        update: Function that returns by how much a step changed weights of a parameter, without
            weight decay, as absolute float64 values. It takes the parameter with its gradient, its
            state after the step, its group, and the positions of the weights in its local part.
    """

    setting: str
    shapes: Callable[[list[int]], dict[str, list[int]]]
    counts_steps: bool
    update: Callable[[Tensor, Group, Group, Tensor], Tensor]


def rule_of(group: Group) -> UpdateRule:
    """Return the rule of a group.

    Raises:
        KeyError: No rule in the table updates it.
    """
    for rule in UPDATE_RULES:
        if rule.setting in group:
            return rule
    raise KeyError(f"no update rule for a group with {', '.join(sorted(group))}")


def local_row(tensor: Tensor) -> Tensor:
    """Return a tensor, or the part of a sharded one on this process, as one row."""
    return local_part(tensor).detach().reshape(-1)


def _adamw_update(parameter: Tensor, state: Group, group: Group, positions: Tensor) -> Tensor:
    """Return the learning rate times the first moment over the root of the second one.

    Both are corrected for their start at 0.
    """
    del parameter
    step, (first_decay, second_decay) = float(state["step"]), group["betas"]
    first, second = (local_row(state[n])[positions].double() for n in ("exp_avg", "exp_avg_sq"))
    first, second = first / (1 - first_decay**step), second / (1 - second_decay**step)
    update: Tensor = group["lr"] * first.abs() / (second.sqrt() + group["eps"])
    return update


def _adafactor_shapes(shape: list[int]) -> dict[str, list[int]]:
    if len(shape) < 2:
        return {"variance": shape}
    return {"row_var": [*shape[:-1], 1], "col_var": [*shape[:-2], 1, shape[-1]]}


def _adafactor_update(parameter: Tensor, state: Group, group: Group, positions: Tensor) -> Tensor:
    """Return the update of `torch.optim.Adafactor`, which follows Shazeer and Stern (2018).

    The gradient is divided by the root of the factored second moment, clipped to a root mean square
    of `d`, and multiplied by a rate that is relative to the root mean square of the weights.
    """
    assert parameter.grad is not None
    smallest, least_scale = group["eps"]
    if smallest is None:
        smallest = torch.finfo(parameter.dtype).eps
    if "variance" in state:
        variance = state["variance"].clone()
    else:
        rows = state["row_var"]
        variance = rows @ state["col_var"] / rows.mean(-2, keepdim=True).clamp(min=smallest)
    update = variance.clamp_(min=smallest**2).rsqrt_().mul_(parameter.grad).flatten()
    rate = min(group["lr"], float(state["step"]) ** -0.5)
    scale = max(least_scale, _root_mean_square(parameter.detach()))
    clipping = max(1.0, _root_mean_square(update) / group["d"])
    return update[positions].double().abs() * (rate * scale / clipping)


def _root_mean_square(tensor: Tensor) -> float:
    return float(tensor.norm(2)) / tensor.numel() ** 0.5


def _muon_update(parameter: Tensor, state: Group, group: Group, positions: Tensor) -> Tensor:
    """Return what Muon itself makes of the direction of the step, from weights of 0."""
    assert parameter.grad is not None
    twin = nn.Parameter(torch.zeros_like(parameter))
    twin.grad = parameter.grad.lerp(state["momentum_buffer"], group["momentum"])
    names = ("lr", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")
    settings = {name: group[name] for name in names}
    Muon([twin], weight_decay=0.0, momentum=0.0, nesterov=False, **settings).step()
    return local_row(twin)[positions].double().abs()


ADAMW = UpdateRule(
    "betas", lambda shape: dict.fromkeys(("exp_avg", "exp_avg_sq"), shape), True, _adamw_update
)
ADAFACTOR = UpdateRule("beta2_decay", _adafactor_shapes, True, _adafactor_update)
MUON = UpdateRule("momentum", lambda shape: {"momentum_buffer": shape}, False, _muon_update)
UPDATE_RULES = (ADAMW, ADAFACTOR, MUON)


class MuonWithAdamW(Optimizer):
    """Muon for matrices and AdamW for all other parameters, as one optimizer.

    Muon's updates are scaled to the root mean square of AdamW's (Liu et al., 2025, "Muon is
    Scalable for LLM Training"), so that both use one learning rate and one weight decay.

    Args:
        matrices: Groups of parameters with two dimensions, at least one.
        others: Groups of other parameters.
        betas: Decay rates of AdamW's two moments.
        eps: Term added to the root of AdamW's second moment.
        fused: Whether AdamW uses PyTorch's fused kernel.
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        others: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float],
        eps: float,
        fused: bool,
    ) -> None:
        self._parts: list[tuple[UpdateRule, Optimizer]] = [
            (MUON, Muon(list(matrices), adjust_lr_fn="match_rms_adamw"))
        ]
        if rest := list(others):
            self._parts.append((ADAMW, AdamW(rest, betas=betas, eps=eps, fused=fused)))
        groups = [group for _, part in self._parts for group in part.param_groups]
        super().__init__(groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Apply one step to all parameters that have a gradient."""
        assert closure is None, "closures are not supported"
        for rule, part in self._parts:
            # Loading a state replaces both, so the parts take them from here in every step.
            part.param_groups = [group for group in self.param_groups if rule.setting in group]
            part.state = self.state
            part.step()
