"""The table of optimizers, their update rules, and the learning rate of each parameter and step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adafactor, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ampft.engine.bfloat16_adamw import COMPENSATION, KAHAN, STOCHASTIC, BFloat16AdamW
from ampft.engine.checkpoints.writing import DTYPES
from ampft.errors import InputError, check_type
from ampft.models.freezing import parameter_depths
from ampft.models.weights import local_shard
from ampft.precision.resolve import Precision

BLOCK_8BIT = 256  # weights with one scale, of bitsandbytes' optimizers
Group = Mapping[str, Any]
"""A group of parameters of an optimizer, with its settings."""


UNIT = "unit"  # Entry of groups whose parameters do not have the unit 1.


def rate_per_unit(group: Group, rate: float) -> float:
    """Return the learning rate of a group for parameters of the unit 1, from its own one."""
    return rate / float(group.get(UNIT, 1.0))


def rate_of(group: Group) -> float:
    """Return the learning rate that a group has now; NaN if its optimizer chooses its own."""
    rate = group.get("lr")
    return math.nan if rate is None else float(rate)


@dataclass(frozen=True)
class UpdateRule:
    """The rule by which an optimizer of torch updates the weights of a group."""

    setting: str  # Entry that groups of this rule have, and groups of other rules do not.
    # Function that returns the shapes of the state of a parameter, by key, from the parameter's
    # shape. They have its dtype.
    shapes: Callable[[list[int]], dict[str, list[int]]]
    counts_steps: bool  # Whether the state has a float32 scalar `step` too.
    # Function that returns by how much a step changed weights of a parameter, without weight decay,
    # as absolute float64 values. It takes the parameter with its gradient, its state after the
    # step, its group, and the positions of the weights in its local part.
    update: Callable[[Tensor, Group, Group, Tensor], Tensor]


def rule_of(group: Group) -> UpdateRule:
    """Return the rule that updates a group of parameters, recognized by its settings.

    Raises:
        KeyError: It has the setting of no rule in `UPDATE_RULES`.
    """
    for rule in UPDATE_RULES:
        if rule.setting in group:
            return rule
    raise KeyError(f"no update rule for a group with {', '.join(sorted(group))}")


def local_row(tensor: Tensor) -> Tensor:
    """Return a tensor, or the part of a sharded one on this process, as one row."""
    return local_shard(tensor).detach().reshape(-1)


def _adamw_update(parameter: Tensor, state: Group, group: Group, positions: Tensor) -> Tensor:
    """Return the learning rate times the first moment over the root of the second one.

    Both are corrected for their start at 0.
    """
    del parameter
    moments = [local_row(state[n])[positions].double() for n in ("exp_avg", "exp_avg_sq")]
    return _step_of_moments(moments, state, group)


def _step_of_moments(moments: Sequence[Tensor], state: Group, group: Group) -> Tensor:
    first, second = moments
    step, (first_decay, second_decay) = float(state["step"]), group["betas"]
    first, second = first / (1 - first_decay**step), second / (1 - second_decay**step)
    return group["lr"] * first.abs() / (second.sqrt() + group["eps"])


def _adamw_8bit_update(parameter: Tensor, state: Group, group: Group, positions: Tensor) -> Tensor:
    """Return AdamW's update from moments in 8 bits; 0 where the second one was rounded to 0."""
    del parameter
    moments = []
    for number in (1, 2):
        values = state[f"state{number}"]
        if values.dtype == torch.uint8:  # float32 for small tensors
            from bitsandbytes.functional import dequantize_blockwise

            scales, code = state[f"absmax{number}"], state[f"qmap{number}"]
            values = dequantize_blockwise(values, absmax=scales, code=code, blocksize=BLOCK_8BIT)
        moments.append(local_row(values)[positions].double())
    return _step_of_moments(moments, state, group).where(moments[1] > 0, 0.0)


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
MUON = UpdateRule("ns_steps", lambda shape: {"momentum_buffer": shape}, False, _muon_update)
# Its groups have the setting of AdamW too.
ADAMW_8BIT = UpdateRule("t_alpha", lambda shape: {}, False, _adamw_8bit_update)
UPDATE_RULES = (ADAMW_8BIT, ADAMW, ADAFACTOR, MUON)


class MuonWithAdamW(Optimizer):
    """Muon for matrices and AdamW for all other parameters, as one optimizer.

    Muon's updates are scaled to the root mean square of AdamW's (Liu et al., 2025, "Muon is
    Scalable for LLM Training"), so that both use one learning rate and one weight decay.

    Args:
        matrices: Groups of parameters with two dimensions, at least one.
        others: Groups of other parameters.
        lr: Peak learning rate.
        betas: Decay rates of AdamW's two moments.
        eps: Term added to the root of AdamW's second moment.
        fused: Whether AdamW uses PyTorch's fused kernel.
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        others: Iterable[dict[str, Any]],
        *,
        lr: float,
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
        # Schedules of transformers read the peak learning rate here, as other optimizers have it.
        super().__init__(groups, {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Apply one step to all parameters that have a gradient."""
        assert closure is None, "closures are not supported"
        for rule, part in self._parts:
            # Loading a state replaces both, so the parts take them from here in every step.
            part.param_groups = [group for group in self.param_groups if rule.setting in group]
            part.state = self.state
            part.step()


# Names of parameters to which weight decay does not apply, nor to those of `nn.LayerNorm`: the rule
# of `Trainer.get_decay_parameter_names` of transformers 5.23.
WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
SMALL_HIDDEN_SIZE = 512
HEAD_OR_ADAPTERS_FACTOR = 10
PROBED_HEAD_FACTOR = 0.5
# Of Adafactor, whose rate is relative to the weights: the constant with which Raffel et al. (2020),
# "Exploring the Limits of Transfer Learning", fine-tune.
ADAFACTOR_RATE = 1e-3
# Ten times the rate at which Raffel et al. pre-train T5 from random weights. A judgement, not a
# measurement.
LARGEST_RATE = 0.1
POLYNOMIAL_END = 1e-7  # of the schedule of transformers


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of an optimizer."""

    learning_rate: float  # Peak learning rate.
    weight_decay: float = 0.0  # Decoupled weight decay, which is multiplied by the learning rate.
    betas: tuple[float, float] = (0.9, 0.999)  # Decay rates of AdamW's two moments.
    epsilon: float = 1e-8  # Term added to the root of AdamW's second moment.
    seed: int = 0  # Seed for stochastic rounding.
    name: str = "adamw_torch"  # Key in `OPTIMIZERS`.
    # Factor on the learning rate from each layer to the one below; None for equal rates.
    layer_decay: float | None = None
    # Units of parameters that do not have the unit 1, by name: they are updated as if they were
    # divided by it, whatever the unit is.
    units: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleSettings:
    """Settings of the learning rate schedule."""

    name: str = "linear"  # A `transformers.SchedulerType`, such as "linear" or "cosine".
    warmup_ratio: float = 0.0  # Share of the steps over which the learning rate rises, 0 to 1.
    # Number of steps over which the learning rate rises; None uses the ratio.
    warmup_steps: int | None = None


@dataclass(frozen=True)
class TrainedParameter:
    """A trained parameter."""

    parameter: nn.Parameter  # The parameter.
    decays: bool  # Whether weight decay applies to it.
    factor: float  # Factor on the learning rate.
    is_in_layers: bool  # Whether it belongs to a layer of the encoder; False if the model has none.
    unit: float = 1.0  # Unit of its values.


@dataclass(frozen=True)
class OptimizerRow:
    """A row of the table of optimizers."""

    title: str  # Name for readers.
    # Function that returns the optimizer of parameters.
    make: Callable[[list[TrainedParameter], OptimizerSettings], Optimizer]
    state_per_weight: int  # Numbers that it stores or needs in a step per weight, at most.
    trains_16_bits: bool = False  # Whether it trains weights that are stored in 16 bits.
    # Default learning rate; None for AdamW's, by size of the model.
    learning_rate: float | None = None


def _groups(
    trained: Sequence[TrainedParameter], settings: OptimizerSettings
) -> list[dict[str, Any]]:
    """Return the groups of equal rate and decay, those with decay and a high rate first.

    With a unit u, the rate is u times as high, and decay and epsilon are divided by u. AdamW then
    moves the parameter as if it were divided by u, because it divides by the size of the gradient.
    """
    groups: dict[tuple[bool, float, bool, float], list[Tensor]] = {}
    for entry in trained:
        key = (entry.unit != 1, entry.unit, not entry.decays, -entry.factor)
        groups.setdefault(key, []).append(entry.parameter)
    return [
        {
            "params": groups[key],
            "weight_decay": 0.0 if is_kept else settings.weight_decay / unit,
            "lr": settings.learning_rate * -factor * unit,
            **({"eps": settings.epsilon / unit, UNIT: unit} if has_unit else {}),
        }
        for key in sorted(groups)
        for has_unit, unit, is_kept, factor in (key,)
    ]


def _has_fused_kernel(trained: Iterable[TrainedParameter]) -> bool:
    return all(entry.parameter.device.type in {"cpu", "cuda"} for entry in trained)


def _adamw(trained: list[TrainedParameter], settings: OptimizerSettings) -> Optimizer:
    return AdamW(
        _groups(trained, settings),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=_has_fused_kernel(trained),
    )


def _adafactor(trained: list[TrainedParameter], settings: OptimizerSettings) -> Optimizer:
    # Its rate is relative to the weights, whatever their unit.
    trained = [replace(entry, unit=1.0) for entry in trained]
    return Adafactor(_groups(trained, settings), lr=settings.learning_rate)


def _muon(trained: list[TrainedParameter], settings: OptimizerSettings) -> Optimizer:
    matrices = [entry for entry in trained if entry.is_in_layers and entry.parameter.ndim == 2]
    if not matrices:
        raise InputError(
            "--optim muon: no matrix in a list of layers of the model is trained, so Muon has "
            "nothing to update. Use --optim adamw_torch."
        )
    chosen = {id(entry.parameter) for entry in matrices}
    others = [entry for entry in trained if id(entry.parameter) not in chosen]
    return MuonWithAdamW(
        _groups(matrices, settings),
        _groups(others, settings),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=_has_fused_kernel(trained),
    )


def _adamw_8bit(trained: list[TrainedParameter], settings: OptimizerSettings) -> Optimizer:
    try:
        from bitsandbytes.optim.adamw import AdamW8bit
    except (ImportError, OSError) as error:  # OSError: of its library
        raise InputError(
            f"--optim adamw_8bit needs bitsandbytes ({error}). Install it: pip install "
            "'ampft[4bit]'. Without it, --optim adafactor needs little memory too."
        ) from error
    return AdamW8bit(
        _groups(trained, settings),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
    )


# A new optimizer adds a row, its name in `ampft.arguments.classify`, and its rule above.
OPTIMIZERS = {
    "adamw_torch": OptimizerRow("AdamW", _adamw, 2, trains_16_bits=True),
    "adafactor": OptimizerRow("Adafactor", _adafactor, 1, learning_rate=ADAFACTOR_RATE),
    "muon": OptimizerRow("Muon with AdamW", _muon, 2),
    "adamw_8bit": OptimizerRow("8-bit AdamW", _adamw_8bit, 1),
}


def rate_warning(rate: float, optimizer: str) -> str | None:
    """Return that a learning rate is far above usual ones; None if it is not.

    Args:
        optimizer: Key in `OPTIMIZERS`.
    """
    if rate <= LARGEST_RATE:
        return None
    moved = "by about this share of its size" if optimizer == "adafactor" else "by about as much"
    return (
        f"--learning_rate {rate:g} is far above usual rates with {OPTIMIZERS[optimizer].title}: a "
        f"step changes each weight {moved}. Check the number."
    )


def default_learning_rate(
    config: Any,
    *,
    optimizer: str = "adamw_torch",
    trains_head_or_adapters: bool = False,
    begins_at_probe: bool = False,
) -> float:
    """Return a peak learning rate for training on data that nobody has tuned it for.

    A configuration can set its own for AdamW (`default_learning_rate`), as ERFNet's does.

    Small models need larger steps. For MiniLM (hidden size 384), 1e-4 was 1 to 5 points better than
    5e-5 on 400 rows of each of four data sets (`benchmarks/LOG.md`, "The default learning rate").
    5e-5 is transformers' default, and the largest rate that Devlin et al. (2019) recommend for
    BERT.

    Args:
        config: Configuration of the model.
        optimizer: Key in `OPTIMIZERS`.
        trains_head_or_adapters: Whether only adapters or the head are trained, which takes ten
            times the rate (Schulman et al., 2025, "LoRA Without Regret").
        begins_at_probe: Whether the head begins at a probe, which takes half the rate
            (`benchmarks/LOG.md`, "The size of the probe").
    """
    row_rate = OPTIMIZERS[optimizer].learning_rate
    own: float | None = getattr(config, "default_learning_rate", None)
    if row_rate is None and own is not None:
        return own
    hidden_size = getattr(config, "hidden_size", None)
    is_small = hidden_size is not None and hidden_size <= SMALL_HIDDEN_SIZE
    rate = row_rate or (1e-4 if is_small else 5e-5)
    if trains_head_or_adapters:
        return HEAD_OR_ADAPTERS_FACTOR * rate
    return PROBED_HEAD_FACTOR * rate if begins_at_probe and row_rate is None else rate


def make_optimizer(
    model: nn.Module, settings: OptimizerSettings, precision: Precision | None = None
) -> Optimizer:
    """Return the optimizer of the trainable parameters, fused where PyTorch has a fused kernel.

    Args:
        model: Model, whose weights already have their storage dtype.
        settings: Settings of the optimizer.
        precision: Precision, which determines how updates of bfloat16 weights are rounded. None and
            modes with float32 weights use PyTorch's optimizers.

    Raises:
        InputError: The optimizer does not train weights of this precision, or not this model.
    """
    check_type("make_optimizer", "model", model, nn.Module)
    check_type("make_optimizer", "settings", settings, OptimizerSettings)
    check_type("make_optimizer", "precision", precision, (Precision, NoneType))
    row = OPTIMIZERS[settings.name]
    if precision is not None and precision.properties.stores_16_bits and not row.trains_16_bits:
        raise InputError(
            f"--optim {settings.name} is not supported with {precision.mode}, whose weights are "
            "stored in 16 bits. Use --optim adamw_torch, or --mixed_precision bf16."
        )
    trained = _trained_parameters(model, settings.layer_decay, settings.units)
    rounding = None if precision is None else precision.rounding
    if rounding in (KAHAN, STOCHASTIC):
        return BFloat16AdamW(
            _groups(trained, settings),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            rounding=rounding,
            seed=settings.seed,
        )
    return row.make(trained, settings)


def _trained_parameters(
    model: nn.Module, layer_decay: float | None, units: Mapping[str, float]
) -> list[TrainedParameter]:
    """Return the trained parameters with their learning rates.

    With a decay d, the rate of layer l of L is multiplied by d^(L + 1 - l), that of the embeddings
    by d^(L + 1), and that of the head by 1. Source: Bao et al. (2022), "BEiT", whose code does so.
    """
    depths = parameter_depths(model)
    if depths is None and layer_decay is not None:
        raise InputError(
            f"--layer_decay {layer_decay:g}: the layers of {type(model).__name__} are not a single "
            "list, so their depths are not defined. Remove the flag."
        )
    norms = {name for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)}
    trained = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = name.rpartition(".")[0] not in norms and not WITHOUT_DECAY.search(name.lower())
            depth, head = (0, 0) if depths is None else (depths.of_parameter[name], depths.head)
            factor = 1.0 if layer_decay is None else layer_decay ** (head - depth)
            unit = units.get(name, 1.0)
            trained.append(TrainedParameter(parameter, decays, factor, 0 < depth < head, unit))
    return trained


def has_known_state(optimizer: Optimizer) -> bool:
    """Return whether `expected_optimizer_state` and `rule_of` describe an optimizer."""
    known = (torch.optim.AdamW, torch.optim.Adafactor, BFloat16AdamW, MuonWithAdamW)
    return type(optimizer) in known and not optimizer.defaults.get("amsgrad")


def expected_optimizer_state(
    model: nn.Module, optimizer: Optimizer
) -> dict[str, dict[str, tuple[list[int], str] | None]]:
    """Return what an optimizer of `make_optimizer` holds for each parameter after a step.

    Args:
        model: Model with the optimizer's parameters.
        optimizer: The optimizer, not prepared.

    Returns:
        Shape and dtype, as safetensors names it, of each tensor of the state, by name of the
        parameter and key; None for a whole number.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    is_bfloat16 = isinstance(optimizer, BFloat16AdamW)
    expected: dict[str, dict[str, tuple[list[int], str] | None]] = {}
    for group in optimizer.param_groups:
        rule = rule_of(group)
        for parameter in group["params"]:
            shape = list(parameter.shape)
            shapes = rule.shapes(shape)
            if isinstance(optimizer, BFloat16AdamW) and optimizer.rounding == KAHAN:
                shapes[COMPENSATION] = shape
            entries: dict[str, tuple[list[int], str] | None] = {
                key: (part, DTYPES[parameter.dtype]) for key, part in shapes.items()
            }
            if rule.counts_steps:
                entries["step"] = None if is_bfloat16 else ([], "F32")
            expected[names[id(parameter)].replace("_orig_mod.", "")] = entries
    return expected


def make_schedule(optimizer: Optimizer, steps: int, settings: ScheduleSettings) -> LRScheduler:
    """Return a schedule of transformers that counts applied optimizer steps.

    Do not pass it to `Accelerator.prepare`, which would step it once per process.

    Args:
        optimizer: Optimizer that is not yet prepared.
        steps: Number of optimizer steps of the whole training.
        settings: Settings of the schedule.

    Raises:
        InputError: The learning rate is not above the one at which the schedule ends.
    """
    check_type("make_schedule", "optimizer", optimizer, Optimizer)
    check_type("make_schedule", "steps", steps, int)
    check_type("make_schedule", "settings", settings, ScheduleSettings)
    if settings.name == "polynomial" and (rate := optimizer.defaults["lr"]) <= POLYNOMIAL_END:
        raise InputError(
            f"--lr_scheduler_type polynomial falls to a learning rate of {POLYNOMIAL_END:g}; "
            f"received --learning_rate {rate:g}. Use a higher rate, or another schedule."
        )
    warmup = settings.warmup_steps
    if warmup is None:
        warmup = math.ceil(settings.warmup_ratio * steps)
    if settings.name == "linear":
        # The same as transformers', whose module imports PEFT and bitsandbytes where they are
        # installed: a second before the first step of nearly every training.
        return LambdaLR(optimizer, partial(_linear_factor, warmup=warmup, steps=steps))
    from transformers import get_scheduler  # an own loop makes its schedule without it

    if settings.name == "polynomial":  # else it divides by 0 after a warm-up of all steps
        steps = max(steps, warmup + 1)
    return get_scheduler(
        settings.name, optimizer, num_warmup_steps=warmup, num_training_steps=steps
    )


def _linear_factor(step: int, *, warmup: int, steps: int) -> float:
    """Return the factor of a rate that rises for `warmup` steps and falls to 0 at step `steps`."""
    if step < warmup:
        return step / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))
