"""The settings of `recipes/classify.py`, named as in the transformers example scripts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.arguments.flags import parse_duration
from ampft.data.request import DataRequest
from ampft.engine.checkpoints.checkpoint_interval import parse_interval
from ampft.errors import InputError
from ampft.flag import BATCH, DATA, EVALUATION, OPTIMIZER, OUTPUT, flag, split_names
from ampft.models.model_settings import TrainedPartSettings
from ampft.precision.modes import MODES
from ampft.tasks.loss_settings import LossSettings
from ampft.tasks.table import TASKS
from ampft.tasks.task_settings import TaskSettings

if TYPE_CHECKING:
    from ampft.data.model_labels import ModelLabels
    from ampft.decision import Contract
    from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings

_batch = partial(flag, group=BATCH)
_update = partial(flag, group=OPTIMIZER)
_evaluation = partial(flag, group=EVALUATION)
_output = partial(flag, group=OUTPUT)

SCHEDULES = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt",
)  # fmt: skip
ADAMW, ADAFACTOR, *_ = OPTIMIZERS = ("adamw_torch", "adafactor", "muon", "adamw_8bit")

EPOCHS, MOST_EPOCHS, LEAST_STEPS = 3, 16, 250  # of a training whose length is not set
TWO_CLASSES_SHARE = 0.5  # of the last two, where the head of two classes begins at a probe

# Settings that have no effect without training. The settings of the optimizer and of the trained
# part are added to them.
OF_TRAINING = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "auto_micro_batch"),
    *("gradient_checkpointing", "check_precision", "inspect_data", "watch", "history_csv"),
    *("augment", "max_length_seconds", "multi_scale"),
    *(f.name for f in fields(LossSettings) if f.name != "threshold"),
    *("pooling", "cuda_graphs", "load_best_model_at_end", "metric_for_best_model", "eval_steps"),
    *("early_stopping_patience", "baseline", "checkpointing_steps", "checkpoint_total_limit"),
    *("async_checkpoints", "allow_topology_change", "folds", "fold", "leave_out_test"),
    "test_fraction",
)

# Settings that say how a run reads its data. A run that only evaluates it has the same.
OF_READING = (
    *("max_seq_length", "long_text", "stride", "pad_to_multiple_of", "feature_columns"),
    *("text_column_delimiter", "label_separator", "text_units", "image_size", "ignore_index"),
)

# Defaults that the built-in data sets override.
BUILT_IN_DEFAULTS: dict[str, dict[str, Any]] = {
    "stdlib": {
        "per_device_train_batch_size": 16,
        "learning_rate": 2e-4,
        "num_train_epochs": 5,
        "max_seq_length": 64,
        "warmup_ratio": 0.1,
    },
    "digits": {
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "num_train_epochs": 30,
        "warmup_ratio": 0.1,
    },
}


@dataclass(frozen=True)
class PrecisionAndBatchArguments:
    """Batches, precision and device."""

    mixed_precision: str | None = _batch(
        None,
        "precision; if none, the one set by accelerate launch, otherwise fp32",
        choices=("no", *MODES),
    )
    check_precision: bool = _batch(
        False,
        "before training, compare loss and gradient of a few examples in the precision with "
        "float32, and stop if it does not hold",
    )
    per_device_train_batch_size: int = _batch(
        8, "examples per micro-batch and process (stdlib: 16, digits: 32, pixels: 4)", at_least=1
    )
    gradient_accumulation_steps: int = _batch(
        1, "micro-batches per optimizer step and process", at_least=1
    )
    auto_micro_batch: bool = _batch(
        False,
        "use the largest micro-batches that fit into memory; the effective batch size stays the "
        "same",
    )
    per_device_eval_batch_size: int = _batch(
        64,
        "examples per forward pass and process in evaluation, with all their windows (pixels: 4)",
        at_least=1,
    )
    use_cpu: bool = _batch(False, "train on the CPU even if there is an accelerator")
    deterministic: bool = _batch(
        False,
        "run only operators that give the same bits each time; without it, attention to more than "
        "about 128 tokens on a GPU does not",
    )
    cpu_threads: int | None = _batch(
        None,
        "CPU threads per process; if none, OMP_NUM_THREADS if you set it, and otherwise all cores",
        at_least=1,
    )
    dataloader_num_workers: int = _batch(
        0,
        "worker processes that load batches in advance; 0 loads them in the training process",
        at_least=0,
    )


@dataclass(frozen=True)
class OptimizerArguments:
    """The optimizer, its schedule, and when the training ends."""

    optim: str = _update(
        ADAMW,
        "AdamW; Adafactor, whose learning rate is relative to the weights; Muon for the matrices "
        "of the layers with AdamW for the rest; or bitsandbytes' AdamW with a state of 8 bits",
        choices=OPTIMIZERS,
    )
    learning_rate: float | None = _update(
        None,
        "peak learning rate; if none, 1e-4 for models with a hidden size of at most 512 and 5e-5 "
        "for others, half of it where the head begins at a probe, and ten times as much where only "
        "adapters or the head are trained (stdlib: 2e-4, digits: 1e-3; adafactor: 1e-3)",
        at_least=0,
    )
    layer_decay: float | None = _update(
        None,
        "factor on the learning rate from each layer to the one below, such as 0.9; the head has "
        "the whole rate; if none, all layers have it",
        at_least=0.1,
        at_most=1,
    )
    weight_decay: float = _update(
        0.0,
        "decoupled weight decay, applied to the parameters that the Trainer of transformers "
        "decays: not to biases and layer norms (digits: 0.05)",
        at_least=0,
    )
    adam_beta1: float = _update(0.9, "decay rate of AdamW's first moment", at_least=0, below=1)
    adam_beta2: float = _update(0.999, "decay rate of AdamW's second moment", at_least=0, below=1)
    adam_epsilon: float = _update(
        1e-8, "added to the root of AdamW's second moment", at_least=1e-30
    )
    max_grad_norm: float = _update(
        1.0, "L2 norm to clip the gradient to; 0 turns clipping off", at_least=0
    )
    num_train_epochs: int | None = _update(
        None,
        "passes over the training data; if none, 3, and for texts and words as many as make 250 "
        "steps, at most 16, or half of both if the head of two classes begins at a probe "
        "(stdlib: 5, digits: 30)",
        at_least=1,
    )
    max_train_steps: int | None = _update(
        None, "number of optimizer steps; overrides --num_train_epochs", at_least=1
    )
    max_time: str | None = _update(
        None,
        "time that the run may take from the start of the command, such as 90min or 2h: training "
        "ends so early that the evaluation fits",
        metavar="TIME",
        check=parse_duration,
    )
    on_nonfinite: str = _update(
        "stop",
        "what to do if a loss or gradient is not finite and no scaler skips the step: stop, or "
        "skip at most 10 such steps",
        choices=("stop", "skip"),
    )
    lr_scheduler_type: str = _update("linear", "learning rate schedule", choices=SCHEDULES)
    warmup_ratio: float = _update(
        0.0,
        "share of the steps used for learning rate warm-up, 0 to 1 (stdlib, digits: 0.1)",
        at_least=0,
        below=1,
    )
    num_warmup_steps: int | None = _update(
        None, "number of warm-up steps; overrides --warmup_ratio", at_least=0
    )
    ema_decay: float | None = _update(
        None,
        "average the weights over the steps with this decay, such as 0.999, at most (1 + t) / "
        "(10 + t) after t steps, and evaluate and save the average; if none, no average",
        above=0,
        below=1,
    )
    perturb_initial_weights: bool = _update(
        False,
        "change every initial weight by one unit in the last place, as the placebo of a comparison",
    )

    @property
    def max_seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else parse_duration("max_time", self.max_time)

    def optimizer_conflicts(self) -> Iterator[str]:
        """Yield which settings of AdamW are set for an optimizer that does not use AdamW."""
        if self.optim != ADAFACTOR:
            return
        for name in ("adam_beta1", "adam_beta2", "adam_epsilon"):
            value = getattr(self, name)
            if value != getattr(OptimizerArguments, name):
                yield (
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


@dataclass(frozen=True)
class EvaluationArguments:
    """Validation and the final evaluation."""

    metric_for_best_model: str | None = _evaluation(
        None,
        "validation metric whose best value chooses the weights; if none, the last weights are "
        "kept unless earlier ones are better by more than chance, in log loss",
        needs=("load_best_model_at_end",),
    )
    metric: str | None = _evaluation(
        None,
        "further metrics of the package evaluate for validations and the final split, "
        "comma-separated: names on the hub, or files of local modules",
        joined=True,
    )
    eval_steps: int | None = _evaluation(
        None,
        "optimizer steps between validations, with one more at the end; if none, one validation "
        "after each epoch, or three in all if neither --num_train_epochs, --max_train_steps nor "
        "--early_stopping_patience is set",
        at_least=1,
        needs=("load_best_model_at_end",),
    )
    early_stopping_patience: int | None = _evaluation(
        None,
        "stop after this many validations without a lower log loss, or without a better value of "
        "--metric_for_best_model",
        at_least=1,
        needs=("load_best_model_at_end",),
    )
    load_best_model_at_end: bool = _evaluation(
        True,
        "validate, and report and save earlier weights if they are better; if not, train without "
        "validation and keep the last ones",
    )
    evaluate_fp32: bool = _evaluation(
        False,
        "also predict the final split in fp32, to tell the effect of training in a precision from "
        "the effect of predicting in it",
    )
    serve_back: bool = _evaluation(
        True,
        "at the end, load the saved folder with transformers.pipeline and ampft predict, and hold "
        "their answers on up to 40 final rows against the predictions; takes seconds",
    )
    baseline: bool | None = _evaluation(
        None,
        "report what simple methods reach on the same rows: logistic regression on TF-IDF, and on "
        "features of the model before fine-tuning; if neither flag is passed, those that take at "
        "most a tenth of the training's time or 5 seconds",
    )


@dataclass(frozen=True)
class OutputArguments:
    """Results, checkpoints and trackers."""

    output_dir: str | None = _output(
        None, "folder for the results; if none, a new folder under runs/"
    )
    overwrite_output_dir: bool = _output(
        False,
        "overwrite the results of an earlier run",
        excludes={
            "resume_from_checkpoint": "the first would remove the run that the second continues"
        },
    )
    checkpointing_steps: str | None = _output(
        None,
        "write a checkpoint every N optimizer steps (500), after every epoch (epoch) or every N "
        "minutes (10min); if none, never",
        check=lambda name, text: parse_interval(text),
    )
    checkpoint_total_limit: int | None = _output(
        None,
        "number of checkpoints to keep; if none, all",
        at_least=1,
        needs=("checkpointing_steps",),
    )
    async_checkpoints: bool = _output(
        False,
        "write checkpoints in the background while the training continues",
        needs=("checkpointing_steps",),
    )
    resume_from_checkpoint: str | None = _output(
        None,
        "continue from a checkpoint: its folder, or latest for the last one in --output_dir, where "
        "the training starts from the beginning if there is none yet",
    )
    allow_topology_change: bool = _output(
        False,
        "resume with another number of processes or micro-batches or on another device; the "
        "examples stay the same, rounding and dropout masks do not, and the record says so",
        needs=("resume_from_checkpoint",),
    )
    watch: int | None = _output(
        None,
        "optimizer steps between measurements of headroom, underflow and gradient norm of every "
        "block of the model, which are added to the history; if none, nothing is measured",
        at_least=1,
    )
    history_csv: bool = _output(False, "also write the history as CSV")
    with_tracking: bool = _output(False, "send the history to experiment trackers")
    report_to: str = _output(
        "tensorboard",
        "experiment trackers by their Accelerate names, comma-separated, or all",
        joined=True,
        needs=("with_tracking",),
    )
    push_to_hub: bool = _output(
        False, "push the model, its card and its report to the Hugging Face hub"
    )
    hub_model_id: str | None = _output(
        None,
        "name on the hub; if none, the name of the output folder",
        metavar="USER/NAME",
        needs=("push_to_hub",),
    )
    hub_private_repo: bool = _output(
        False, "make a new repository on the hub private", needs=("push_to_hub",)
    )


# The fields of the last base come first, so this is the reverse of the order in the help.
@dataclass(frozen=True)
class TaskArguments(DataRequest, TaskSettings):
    """The settings that say which data are read and what is classified: nothing of the training."""

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Splits that a run without training reports on; empty if it trains."""
        return split_names(self.evaluate_only) or ()

    @property
    def evaluated_run(self) -> str | None:
        return self.model_name_or_path if self._trained[0] is not None else None

    @property
    def model_labels(self) -> ModelLabels | None:
        """Labels of the model of a run without training; None if the data give the labels.

        Raises:
            InputError: The configuration of the model cannot be loaded.
        """
        if not self.evaluated or self.number_labels or self.model_path is None:
            return None
        from ampft.data.model_labels import ModelLabels
        from ampft.models.pretrained import MODEL_NAME_FLAG, load_config

        config = load_config(self.model_path, trust_remote_code=self.trust_remote_code)
        names = tuple(config.id2label[index] for index in sorted(config.id2label))
        return ModelLabels(names, f"{MODEL_NAME_FLAG} {self.model_name_or_path}")

    @property
    def _trained(self) -> tuple[Contract | None, dict[str, Any]]:
        """The contract of the model of a run without training, and the arguments of its training.

        They are None and empty if the model is none that a run saved.
        """
        if not self.evaluated or self.model_name_or_path is None:
            return None, {}
        # Imported here, because `--help` and refusals must not wait for numpy.
        from ampft.decision import Contract
        from ampft.files import read_hashed

        folder = Path(self.model_name_or_path)
        try:
            contract = Contract.read(folder)
            record, _ = read_hashed(folder / "run.json")
            return contract, dict(record["arguments"])
        except (OSError, ValueError, KeyError, TypeError):  # `load_task` says which is damaged
            return None, {}

    @property
    def model_columns(self) -> dict[str, str]:
        contract, arguments = self._trained
        if contract is None:
            return {}
        texts = arguments.get("text_column_names")
        if TASKS[contract.task].kind.name == "text":
            texts = ",".join(contract.input_columns)
        names = {"text_column_names": texts}
        for name in ("label_column_name", "image_column_name", "audio_column_name"):
            names[name] = arguments.get(name)
        return {name: value for name, value in names.items() if value is not None}

    @property
    def data_kind(self) -> str | None:
        """Kind of data that the task needs; None infers it from the data."""
        return None if self.task is None else TASKS[self.task].kind.name

    @property
    def several_labels(self) -> bool:
        """Whether an example can have any number of labels; otherwise it has one."""
        return self.task is not None and TASKS[self.task].several_labels

    @property
    def number_labels(self) -> bool:
        """Whether labels are numbers; otherwise they are names of classes."""
        return self.task is not None and TASKS[self.task].number_labels

    @property
    def ordered_labels(self) -> bool:
        """Whether classes have an order."""
        return self.task is not None and TASKS[self.task].ordered_labels

    @property
    def labels_of_columns(self) -> bool:
        """Whether each label column holds its own labels."""
        return self.task is not None and TASKS[self.task].labels_of_columns


@dataclass(frozen=True)
class ClassifyArguments(
    OutputArguments,
    EvaluationArguments,
    OptimizerArguments,
    PrecisionAndBatchArguments,
    TaskArguments,
):
    """Every setting of a run. `--help` describes each."""

    inspect_data: bool = flag(
        False,
        "before training, list the training labels that are probably wrong (not of masks)",
        group=DATA,
    )

    def of_task(self) -> TaskArguments:
        """Return only the settings of data and task."""
        return TaskArguments(
            **{each.name: getattr(self, each.name) for each in fields(TaskArguments)}
        )

    def with_learning_rate(
        self, config: Any, *, begins_at_probe: bool = False
    ) -> ClassifyArguments:
        """Return the settings with a learning rate: the default for a model, if none is set."""
        from ampft.engine.optimizer import default_learning_rate

        if self.learning_rate is not None:
            return self
        rate = default_learning_rate(
            config,
            optimizer=self.optim,
            trains_head_or_adapters=self.trains_head_or_adapters,
            begins_at_probe=begins_at_probe,
        )
        return replace(self, learning_rate=rate)

    def with_epochs(
        self, steps_per_epoch: int, *, has_words: bool, probed_classes: int | None = None
    ) -> ClassifyArguments:
        """Return the settings with a number of epochs: the default for the data, if none is set.

        Three epochs of a few rows are too few steps to learn anything: `benchmarks/LOG.md`, "What a
        run without settings reaches". From the probe of two classes, half of the steps reach the
        same accuracy with less overconfidence: "The rate and the length of the default, by size".

        Args:
            has_words: Whether the data are texts or words, for which it was measured.
            probed_classes: Number of classes of a head that begins at a probe; None for another.
        """
        if self.num_train_epochs is not None:
            return self
        share = TWO_CLASSES_SHARE if probed_classes == 2 else 1
        epochs = min(share * MOST_EPOCHS, math.ceil(share * LEAST_STEPS / steps_per_epoch))
        return replace(self, num_train_epochs=max(EPOCHS, int(epochs)) if has_words else EPOCHS)

    def settings_of_model(self, given: Collection[str]) -> dict[str, Any]:
        """Return the task of the model of a run without training, and how it reads its data.

        Args:
            given: Names of the settings that the user set, which stay as they are.
        """
        contract, arguments = self._trained
        if contract is None:
            return {}
        settings = {name: arguments[name] for name in OF_READING if name in arguments}
        settings["task"] = contract.task
        if (read := contract.tokenization) is not None:
            settings |= {"max_seq_length": read.max_length, "stride": read.stride}
        if not {"long_text", "stride"}.isdisjoint(given):
            given = {*given, "long_text", "stride"}
        return {name: value for name, value in settings.items() if name not in given}

    def without_training(self, given: Collection[str]) -> tuple[ClassifyArguments, list[str]]:
        """Return the settings of a run that only evaluates, and the given settings of training.

        Args:
            given: Names of the settings that the user set.
        """
        of_training = [*OF_TRAINING, *(f.name for f in fields(OptimizerArguments))]
        of_training += [f.name for f in fields(TrainedPartSettings)]
        defaults = {name: getattr(ClassifyArguments, name) for name in of_training}
        unused = [n for n in of_training if n in given and getattr(self, n) != defaults[n]]
        return replace(self, **defaults), unused

    def optimizer_settings(self) -> OptimizerSettings:
        from ampft.engine.optimizer import OptimizerSettings

        assert self.learning_rate is not None, "prepare_training() chooses the default"
        return OptimizerSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=(self.adam_beta1, self.adam_beta2),
            epsilon=self.adam_epsilon,
            seed=self.seed,
            name=self.optim,
            layer_decay=self.layer_decay,
        )

    def schedule_settings(self) -> ScheduleSettings:
        """Return the settings of the learning rate schedule."""
        from ampft.engine.optimizer import ScheduleSettings

        return ScheduleSettings(
            name=self.lr_scheduler_type,
            warmup_ratio=self.warmup_ratio,
            warmup_steps=self.num_warmup_steps,
        )
