"""The optimizer, AdamW without decay of norms and biases, and learning rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from ampft.precision.resolve import Precision
from ampft.training.bfloat16_adamw import COMPENSATION, KAHAN, STOCHASTIC, BFloat16AdamW
from ampft.training.checkpoints.tensors import DTYPES

SMALL_HIDDEN_SIZE = 512
HEAD_OR_ADAPTERS_FACTOR = 10
ADAMW_MOMENTS = 2  # numbers of optimizer state per weight


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of AdamW.

    Attributes:
        learning_rate: Peak learning rate.
        weight_decay: Decoupled weight decay, which is multiplied by the learning rate.
        betas: Decay rates of the two moments.
        epsilon: Term added to the root of the second moment.
        seed: Seed for stochastic rounding.
    """

    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    seed: int = 0


@dataclass(frozen=True)
class ScheduleSettings:
    """Settings of the learning rate schedule.

    Attributes:
        name: A `transformers.SchedulerType`, such as "linear" or "cosine".
        warmup_ratio: Share of the steps over which the learning rate rises, 0 to 1.
        warmup_steps: Number of steps over which the learning rate rises; None uses the ratio.
    """

    name: str = "linear"
    warmup_ratio: float = 0.0
    warmup_steps: int | None = None


def default_learning_rate(config: Any, *, trains_head_or_adapters: bool = False) -> float:
    """Return a peak learning rate for training on data that nobody has tuned it for.

    A configuration can set its own (`default_learning_rate`), as ERFNet's does.

    Small models need larger steps. For MiniLM (hidden size 384), 1e-4 was 1 to 5 points better than
    5e-5 on 400 rows of each of four data sets (`benchmarks/LOG.md`, "The default learning rate").
    5e-5 is transformers' default, and the largest rate that Devlin et al. (2019) recommend for
    BERT.

    Args:
        config: Configuration of the model.
        trains_head_or_adapters: Whether only adapters or the head are trained, which takes ten
            times the rate (Schulman et al., 2025, "LoRA Without Regret").
    """
    own: float | None = getattr(config, "default_learning_rate", None)
    if own is not None:
        return own
    hidden_size = getattr(config, "hidden_size", None)
    is_small = hidden_size is not None and hidden_size <= SMALL_HIDDEN_SIZE
    rate = 1e-4 if is_small else 5e-5
    return HEAD_OR_ADAPTERS_FACTOR * rate if trains_head_or_adapters else rate


def make_optimizer(
    model: nn.Module, settings: OptimizerSettings, precision: Precision | None = None
) -> Optimizer:
    """Return AdamW for the trainable parameters, fused where PyTorch has a fused kernel.

    Parameters with fewer than two dimensions (biases, the weights of norms) do not decay, as in
    the Trainer of transformers.

    Args:
        model: Model, whose weights already have their storage dtype.
        settings: Settings of AdamW.
        precision: Precision, which determines how updates of bfloat16 weights are rounded. None and
            modes with float32 weights use PyTorch's AdamW.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [p for p in trainable if p.ndim >= 2],
            "weight_decay": settings.weight_decay,
        },
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    nonempty = [group for group in groups if group["params"]]
    rounding = None if precision is None else precision.rounding
    if rounding in (KAHAN, STOCHASTIC):
        return BFloat16AdamW(
            nonempty,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            rounding=rounding,
            seed=settings.seed,
        )
    return AdamW(
        nonempty,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=all(p.device.type in {"cpu", "cuda"} for p in trainable),
    )


def expected_state(
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
    counter: tuple[list[int], str] | None
    counter = None if isinstance(optimizer, BFloat16AdamW) else ([], "F32")
    keys = ["exp_avg", "exp_avg_sq"]
    if isinstance(optimizer, BFloat16AdamW) and optimizer.rounding == KAHAN:
        keys.append(COMPENSATION)
    return {
        names[id(parameter)].replace("_orig_mod.", ""): {
            "step": counter,
            **dict.fromkeys(keys, (list(parameter.shape), DTYPES[parameter.dtype])),
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def make_schedule(optimizer: Optimizer, steps: int, settings: ScheduleSettings) -> LRScheduler:
    """Return a schedule of transformers that counts applied optimizer steps.

    Do not pass it to `Accelerator.prepare`, which would step it once per process.

    Args:
        optimizer: Optimizer that is not yet prepared.
        steps: Number of optimizer steps of the whole training.
        settings: Settings of the schedule.
    """
    warmup = settings.warmup_steps
    if warmup is None:
        warmup = math.ceil(settings.warmup_ratio * steps)
    schedule: LRScheduler = get_scheduler(
        settings.name, optimizer, num_warmup_steps=warmup, num_training_steps=steps
    )
    return schedule
