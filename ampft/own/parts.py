"""What an own loop is made of: its settings, models, optimizers and schedules, and its record."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampft.data.step_batches import StepBatches
from ampft.errors import InputError, did_you_mean, quoted
from ampft.machine import hardware
from ampft.models.weights import class_name, tensors_hash
from ampft.own.examples import OwnExamples, loader_order
from ampft.own.schedules import JointSchedule, OwnSchedule
from ampft.precision.executed import dtype_name
from ampft.precision.resolve import Precision
from ampft.runs.record import DataPart, ModelPart, PrecisionPart, RunRecord, StepsPart, TopologyPart
from ampft.runs.resume import LATEST

if TYPE_CHECKING:
    from accelerate import Accelerator

OWN = "own"  # task and kind of data in the record of an own loop
# Last words of the names of metrics where lower values are better.
LOWER_IS_BETTER = (
    "mse", "rmse", "mae", "mape", "brier", "nll", "perplexity", "ppl", "wer", "cer", "fid",
)  # fmt: skip
ONLY = "the only"  # name of the optimizer of a loop that has one


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """The settings of an own loop. They mean what the flags of `ampft train` do."""

    output_dir: str  # Folder of the results; the same call continues a run that stopped in it.
    batch_size: int = 32  # Examples of an optimizer step, over all micro-batches and processes.
    micro_batches: int = 1  # Parts of a step that go through the model at once, per process.
    epochs: int = 3  # Passes over the examples.
    max_train_steps: int | None = None  # Optimizer steps; None for `epochs`.
    seed: int = 42  # Seed of the order of the examples, and of what they draw.
    # Whether each epoch has an order of its own; None for that of a DataLoader, otherwise True.
    shuffle: bool | None = None
    # Whether a last batch that is smaller is left out; None for a DataLoader's, otherwise False.
    drop_last: bool | None = None
    # What advances a schedule: "step" or "epoch"; None decides by its constants.
    schedule_every: str | None = None
    # Metric of a validation that ReduceLROnPlateau follows; None for `metric_for_best_model`.
    schedule_metric: str | None = None
    max_grad_norm: float | None = None  # L2 norm to clip the gradient to; None or 0 does not clip.
    ema_decay: float | None = None  # Decay of the average of the weights; None for no average.
    # Metric of a validation that selects the best weights; None for the first one given.
    metric_for_best_model: str | None = None
    # Whether higher values of it are better; None unless its name ends with loss or error, or its
    # last word is in `LOWER_IS_BETTER`.
    greater_is_better: bool | None = None
    # Whether the model has the weights of the best validation at the end; otherwise the last ones.
    load_best_model_at_end: bool = True
    # Validations without improvement after which to stop; None never stops early.
    early_stopping_patience: int | None = None
    eval_steps: int | None = None  # Steps between validations; None validates after each epoch.
    max_time: str | None = None  # Longest duration, such as "2h"; None for no limit.
    on_nonfinite: str = "stop"  # "skip" skips steps that are not finite, without a scaler.
    # Whether a step that runs out of memory is repeated in smaller micro-batches.
    auto_micro_batch: bool = True
    # When checkpoints are written: a number of steps, "epoch" or "10min"; None for a signal only.
    checkpointing_steps: str | None = "epoch"
    checkpoint_total_limit: int | None = 1  # Number of checkpoints to keep; None keeps all.
    async_checkpoints: bool = False  # Whether they are written while the training continues.
    # Checkpoint to continue from; "latest" continues a stopped run; None begins at the first step.
    resume_from_checkpoint: str | None = LATEST
    allow_topology_change: bool = False  # Whether processes and devices may differ after a stop.
    # Whether the run begins anew, and replaces the results of an earlier one.
    overwrite_output_dir: bool = False
    dataloader_num_workers: int = 0  # Processes that read examples in advance.
    report_to: str | None = None  # Names of trackers, separated by commas; None for none.
    # Whether the first step checks that the loss is a sum over the examples.
    check_loss: bool = True
    # Other settings of the training, by name, which are recorded and compared.
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        for name in (
            *("batch_size", "micro_batches", "epochs", "max_train_steps", "eval_steps"),
            *("early_stopping_patience", "checkpoint_total_limit"),
        ):
            value = getattr(self, name)
            is_off = value is None and getattr(OwnSettings, name) is None
            if not is_off and (not _is_number(value, int) or value < 1):
                raise InputError(f"{name}: received {value!r}. Pass a whole number of at least 1.")
        if self.micro_batches > self.batch_size:
            raise InputError(
                f"micro_batches: received {self.micro_batches} for a batch_size of "
                f"{self.batch_size}. Each micro-batch needs at least one example."
            )
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise InputError(f"ema_decay: received {self.ema_decay}. It is between 0 and 1.")
        if self.max_grad_norm is not None and not self.max_grad_norm >= 0:
            raise InputError(f"max_grad_norm: received {self.max_grad_norm}. It is at least 0.")
        if named := {each.name for each in fields(self)} & {*self.hyperparameters}:
            raise InputError(
                f"hyperparameters: {', '.join(sorted(named))} is a setting of ampft.Training. Pass "
                "it as one, so that the record states what was used."
            )
        if self.on_nonfinite not in ("stop", "skip"):
            raise InputError(f"on_nonfinite: received {self.on_nonfinite!r}. Pass stop or skip.")

    def _check_types(self) -> None:
        if not _is_number(self.seed, int) or self.seed < 0:
            raise InputError(f"seed: received {self.seed!r}. Pass a whole number of at least 0.")
        for name in ("ema_decay", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not _is_number(value, int | float):
                raise InputError(f"{name}: received {value!r}. Pass a number.")
        if not isinstance(self.hyperparameters, Mapping):
            raise InputError(
                f"hyperparameters: received {self.hyperparameters!r}. Pass values by name, such as "
                '{"margin": 0.2}.'
            )
        for name, value in self.hyperparameters.items():
            try:
                json.dumps({name: value})
            except (TypeError, ValueError):
                raise InputError(
                    f"hyperparameters: {name!r} is a {type(value).__name__}, which JSON does not "
                    "have. Pass numbers, texts, and lists of them."
                ) from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OwnSettings:
        """Return settings by name.

        Raises:
            InputError: A name is unknown, or `output_dir` is missing.
        """
        names = [each.name for each in fields(cls)]
        for name in values:
            if name not in names:
                raise InputError(
                    f"{name} is not a setting of ampft.Training.{did_you_mean(name, names)} It has "
                    f"{', '.join(names)}."
                )
        if not values.get("output_dir"):
            raise InputError('output_dir: choose a folder for the results, such as "runs/mine".')
        begins_anew = {"resume_from_checkpoint": None} if values.get("overwrite_output_dir") else {}
        own = {**begins_anew, **values, "output_dir": str(values["output_dir"])}
        if isinstance(own.get("checkpointing_steps"), int):
            own["checkpointing_steps"] = str(own["checkpointing_steps"])
        return cls(**own)

    def in_order_of(self, examples: Any) -> OwnSettings:
        """Return the settings with the order of a `DataLoader`, where none was chosen."""
        shuffles, drops = loader_order(examples)
        return replace(
            self,
            shuffle=shuffles if self.shuffle is None else self.shuffle,
            drop_last=drops if self.drop_last is None else self.drop_last,
        )

    def recorded(self) -> dict[str, Any]:
        """Return the settings for the record; hyperparameters are settings like the others."""
        values = asdict(self)
        return {**values, **values.pop("hyperparameters")}


class JointOptimizer:
    """Several optimizers as one, for checkpoints and measurements. Each steps on its own."""

    def __init__(self, prepared: Mapping[str, Any]) -> None:
        self._parts: list[Optimizer] = [each.optimizer for each in prepared.values()]
        self.defaults: Mapping[str, Any] = {}

    @property
    def optimizer(self) -> JointOptimizer:
        """Itself, where a prepared optimizer has the plain one."""
        return self

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers."""
        return [group for part in self._parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        """The state of all parameters."""
        return {p: state for part in self._parts for p, state in part.state.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restore all optimizers from the joint form of `Optimizer.state_dict`."""
        first_group, first = 0, 0
        for part in self._parts:
            groups = values["param_groups"][first_group : first_group + len(part.param_groups)]
            first_group += len(groups)
            count = sum(len(group["params"]) for group in groups)
            own = range(first, first + count)
            part.load_state_dict({
                "state": {i - first: values["state"][i] for i in own if i in values["state"]},
                "param_groups": [
                    {**group, "params": [i - first for i in group["params"]]} for group in groups
                ],
            })  # fmt: skip
            first += count


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def check_types(model: object, optimizers: Mapping[str, Any]) -> None:
    """Check that models and optimizers are some.

    Raises:
        InputError: One has another type.
    """
    models = model.values() if isinstance(model, Mapping) else [model]
    for what, values, kind, example in (
        ("model", models, nn.Module, "a torch.nn.Module"),
        ("optimizer", optimizers.values(), Optimizer, "an optimizer of torch.optim"),
    ):
        for value in values:
            if not isinstance(value, kind):
                received = f"the {quoted(value)}"
                if not isinstance(value, type):
                    received = type(value).__name__
                raise InputError(
                    f"{what}: received {received}. Pass {example}, or several by name in a "
                    "dictionary."
                )


def check_parameters(root: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Check that each trainable parameter belongs to one optimizer, and each of these to a model.

    Raises:
        InputError: One does not.
    """
    names = {id(p): name for name, p in root.named_parameters()}
    held = [id(p) for each in optimizers.values() for g in each.param_groups for p in g["params"]]
    if any(each not in names for each in held):
        raise InputError(
            "optimizer: it holds a parameter that is not one of the model. Pass all models that "
            'are trained, as model={"name": module, ...}.'
        )
    if len(held) != len(set(held)):
        raise InputError("optimizer: two optimizers hold the same parameter.")
    missing = [n for n, p in root.named_parameters() if p.requires_grad and id(p) not in set(held)]
    if missing:
        raise InputError(
            f"optimizer: {len(missing)} trainable parameters, such as {missing[0]}, are held by no "
            "optimizer, so training would never change them. Pass them to it, or call "
            "requires_grad_(False) on them."
        )


@dataclass(frozen=True, kw_only=True)
class OwnParts:
    """What an own loop trains, with what."""

    args: OwnSettings  # Settings.
    accelerator: Accelerator  # Accelerator of the precision.
    precision: Precision  # Precision, resolved for the device.
    model: nn.Module  # The model, or all models by name. They are not wrapped.
    optimizers: Mapping[str, Any]  # Prepared optimizers by name.
    schedules: Mapping[str, OwnSchedule]  # Their schedules by name.
    step_batches: StepBatches  # Step batches of the examples.
    can_resume: bool = True
    groups_may_change: bool = True

    @property
    def plain_model(self) -> nn.Module:
        """The model."""
        return self.model

    @cached_property
    def optimizer(self) -> Any:
        """The prepared optimizer, or all of them as one."""
        several = len(self.optimizers) > 1
        return JointOptimizer(self.optimizers) if several else next(iter(self.optimizers.values()))

    @cached_property
    def schedule(self) -> Any:
        """The schedule, or all of them as one."""
        several = len(self.schedules) > 1
        return JointSchedule(self.schedules) if several else next(iter(self.schedules.values()))

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return Path(self.args.output_dir)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.args.max_train_steps or self.args.epochs * len(self.step_batches)

    @cached_property
    def record(self) -> RunRecord:
        """Record before the first step."""
        model, accelerator, batches = self.model, self.accelerator, self.step_batches
        device, parameters = accelerator.device, list(model.parameters())
        examples = batches.examples
        fingerprint = examples.fingerprint() if isinstance(examples, OwnExamples) else ""
        source = type(getattr(examples, "source", examples)).__name__
        float32 = {
            name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            for name, tensor in model.state_dict().items()
        }
        names = [class_name(each) for each in self.models.values()]
        gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
        return RunRecord(
            status="running",
            arguments={
                **self.args.recorded(),
                **_optimizer_settings(self.optimizers),
                "schedule": " and ".join(map(str, self.schedules.values())),
            },
            command=sys.argv,
            task=OWN,
            label_names=(),
            data=DataPart(
                name=source,
                kind=OWN,
                fingerprints={"train": fingerprint},
                examples={"train": len(examples.weights)},
            ),
            model=ModelPart(
                name=" and ".join(names),
                architecture=" and ".join(names),
                parameters=sum(p.numel() for p in parameters),
                trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
                initial_weights_sha256=tensors_hash(float32),
                configuration={"modules": hashlib.sha256(repr(model).encode()).hexdigest()},
                preprocessing={},
            ),
            precision=PrecisionPart(
                requested=self.precision.mode,
                resolved={
                    name: value if isinstance(value, str | bool) else dtype_name(value)
                    for name, value in vars(self.precision).items()
                },
            ),
            topology=TopologyPart(
                num_processes=accelerator.num_processes,
                cpu_threads=torch.get_num_threads(),
                device=device.type,
            ),
            steps=StepsPart(
                total=self.total_steps,
                effective_batch_size=batches.effective_batch_size,
                micro_batches=batches.micro_batches,
            ),
            hardware=hardware(gpus),
        )

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The models by name; a single one has the name of its class."""
        if type(self.model) is nn.ModuleDict:
            return dict(self.model.items())
        return {class_name(self.model): self.model}


def _optimizer_settings(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of each optimizer with its defaults, for the record."""
    plain = (each.optimizer for each in optimizers.values())
    parts = [
        {"optimizer": type(each).__name__}
        | {n: v for n, v in each.defaults.items() if isinstance(v, int | float | str | tuple)}
        for each in plain
    ]
    if len(parts) == 1:
        return {name.replace("lr", "learning_rate") if name == "lr" else name: value
                for name, value in parts[0].items()}  # fmt: skip
    pairs = zip(optimizers, parts, strict=True)
    return dict(chain(*(((f"{n}.{key}", v) for key, v in part.items()) for n, part in pairs)))
