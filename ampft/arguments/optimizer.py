"""Flags of the optimizer and its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ampft.arguments.flags import parse_duration
from ampft.errors import InputError
from ampft.flag import OPTIMIZER, flag

if TYPE_CHECKING:
    from ampft.training.optimizer import ScheduleSettings

SCHEDULES = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt",
)  # fmt: skip
ADAMW, ADAFACTOR, _ = OPTIMIZERS = ("adamw_torch", "adafactor", "muon")
_flag = partial(flag, group=OPTIMIZER)


@dataclass(frozen=True)
class OptimizerArguments:
    """The optimizer, its schedule, and when the training ends."""

    optim: str = _flag(
        ADAMW,
        "optimizer of torch: AdamW; Adafactor, whose learning rate is relative to the weights; or "
        "Muon for the matrices of the layers with AdamW for the rest",
        choices=OPTIMIZERS,
    )
    learning_rate: float | None = _flag(
        None,
        "peak learning rate; if none, 1e-4 for models with a hidden size of at most 512 and 5e-5 "
        "for others (stdlib: 2e-4, digits: 1e-3; adafactor: 1e-3)",
        at_least=0,
    )
    layer_decay: float | None = _flag(
        None,
        "factor on the learning rate from each layer to the one below, such as 0.9; the head has "
        "the whole rate; if none, all layers have it",
        at_least=0.1,
        at_most=1,
    )
    weight_decay: float = _flag(
        0.0,
        "decoupled weight decay, not applied to norms and biases (digits: 0.05)",
        at_least=0,
    )
    adam_beta1: float = _flag(
        0.9,
        "decay rate of AdamW's first moment",
        at_least=0,
        below=1,
    )
    adam_beta2: float = _flag(0.999, "decay rate of AdamW's second moment", at_least=0, below=1)
    adam_epsilon: float = _flag(1e-8, "added to the root of AdamW's second moment", at_least=0)
    max_grad_norm: float = _flag(
        1.0, "L2 norm to clip the gradient to; 0 turns clipping off", at_least=0
    )
    num_train_epochs: int = _flag(
        3, "passes over the training data (stdlib: 5, digits: 30)", at_least=1
    )
    max_train_steps: int | None = _flag(
        None,
        "number of optimizer steps; overrides --num_train_epochs",
        at_least=1,
    )
    max_time: str | None = _flag(
        None,
        "time after which training stops and the run is evaluated as usual, such as 90min or 2h, "
        "counted from its start",
    )
    on_nonfinite: str = _flag(
        "stop",
        "what to do if a loss or gradient is not finite and no scaler skips the step: stop, or "
        "skip at most 10 such steps",
        choices=("stop", "skip"),
    )
    lr_scheduler_type: str = _flag("linear", "learning rate schedule", choices=SCHEDULES)
    warmup_ratio: float = _flag(
        0.0,
        "share of the steps used for learning rate warm-up, 0 to 1 (stdlib, digits: 0.1)",
        at_least=0,
        below=1,
    )
    num_warmup_steps: int | None = _flag(
        None,
        "number of warm-up steps; overrides --warmup_ratio",
        at_least=0,
    )
    ema_decay: float | None = _flag(
        None,
        "average the weights over the steps with this decay, such as 0.999, and evaluate and save "
        "the average; if none, no average",
        at_least=0,
        below=1,
    )
    perturb_initial_weights: bool = _flag(
        False,
        "change every initial weight by one unit in the last place, as the placebo of a comparison",
    )

    @property
    def max_seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else parse_duration("max_time", self.max_time)

    def check_optimizer(self) -> None:
        """Reject settings that the optimizer does not have.

        Raises:
            InputError: A setting of AdamW is set, and the optimizer does not use AdamW.
        """
        if self.optim != ADAFACTOR:
            return
        for name in ("adam_beta1", "adam_beta2", "adam_epsilon"):
            value = getattr(self, name)
            if value != getattr(OptimizerArguments, name):
                raise InputError(
                    f"--{name} {value:g} has no effect on --optim {self.optim}. Remove one of them."
                )

    def check_schedule(self, default_ratio: float) -> None:
        """Reject a warm-up for a schedule without one.

        Args:
            default_ratio: Default of `warmup_ratio` for the data.

        Raises:
            InputError: The schedule is constant, and a warm-up is set.
        """
        if self.lr_scheduler_type != "constant":
            return
        defaults = {"num_warmup_steps": None, "warmup_ratio": default_ratio}
        for name, default in defaults.items():
            value = getattr(self, name)
            if value and value != default:
                raise InputError(
                    f"--{name} {value:g} has no effect on --lr_scheduler_type constant. Use "
                    "constant_with_warmup, or remove the flag."
                )

    def schedule_settings(self) -> ScheduleSettings:
        """Return the settings of the learning rate schedule."""
        from ampft.training.optimizer import ScheduleSettings

        return ScheduleSettings(
            name=self.lr_scheduler_type,
            warmup_ratio=self.warmup_ratio,
            warmup_steps=self.num_warmup_steps,
        )
