"""The settings of `recipes/classify.py`, named as in the scripts of transformers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampft.arguments.flags import flag, parse_flags
from ampft.errors import InputError, nearest
from ampft.precision.modes import MODES
from ampft.tasks import TASKS, problem_types

if TYPE_CHECKING:
    from ampft.data.request import DataRequest
    from ampft.tasks.task import TaskSettings
    from ampft.training.optimizer import OptimizerSettings, ScheduleSettings

MODEL, DATA, BATCH = "model", "data", "batches and precision"
OPTIMIZER, EVALUATION, OUTPUT = "optimizer and schedule", "evaluation", "output"

SCHEDULES = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt",
)  # fmt: skip


# numpy seeds with 32 bits.
LARGEST_SEED = 2**32 - 1

# What the embedded data sets train with where the user says nothing.
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
class ClassifyArguments:
    """Every setting of a run. See `--help` for what each means."""

    model_name_or_path: str | None = flag(
        None,
        "folder or hub id of a model; none: all-MiniLM-L6-v2 for texts, a small random ViT for "
        "digits",
        group=MODEL,
    )
    max_seq_length: int = flag(
        128, "longest text, in tokens; longer ones are cut (stdlib: 64)", group=MODEL, at_least=2
    )
    padding: bool = flag(
        False, "pad even where the model's family can run without padding", group=MODEL
    )
    pad_to_multiple_of: int | None = flag(
        None, "padded length is a multiple of this, in tokens", group=MODEL, at_least=1
    )
    gradient_checkpointing: bool = flag(
        False, "compute activations again in the backward pass: less memory, slower", group=MODEL
    )
    trust_remote_code: bool = flag(
        False, "run the code that a model's repository carries", group=MODEL
    )

    task: str | None = flag(
        None,
        "what is classified; none: the default for the data",
        group=DATA,
        choices=tuple(TASKS),
    )
    dataset_name: str | None = flag(
        None,
        "stdlib (docstrings of Python's library), digits (images), a hub id or a folder; none: "
        "stdlib, unless files are given",
        group=DATA,
    )
    dataset_config_name: str | None = flag(
        None, "configuration of the data set; stdlib has summary and full", group=DATA
    )
    train_file: str | None = flag(
        None, "CSV, TSV, JSON, JSON Lines or Parquet file to train on", group=DATA
    )
    validation_file: str | None = flag(None, "the same to choose the best epoch on", group=DATA)
    test_file: str | None = flag(None, "the same for the final report", group=DATA)
    text_column_names: str | None = flag(
        None, "column of the texts, or two for pairs: a,b", group=DATA
    )
    label_column_name: str | None = flag(None, "column of the labels", group=DATA)
    image_column_name: str | None = flag(None, "column of the images", group=DATA)
    max_train_samples: int | None = flag(
        None, "training examples to keep, a seeded choice", group=DATA, at_least=1
    )
    max_eval_samples: int | None = flag(
        None,
        "validation examples to keep",
        group=DATA,
        at_least=1,
    )
    max_predict_samples: int | None = flag(
        None,
        "test examples to keep",
        group=DATA,
        at_least=1,
    )
    validation_fraction: float = flag(
        0.1,
        "share of the training data to validate on where none is given, 0 to 1",
        group=DATA,
        at_least=0,
        below=1,
    )
    test_fraction: float = flag(
        0.2,
        "share of the training data to test on where nothing is given, 0 to 1",
        group=DATA,
        at_least=0,
        below=1,
    )
    data_seed: int = flag(
        0, "seed of splits and choices of examples", group=DATA, at_least=0, at_most=LARGEST_SEED
    )
    drop_missing_text: bool = flag(
        False, "leave out rows without a text, and say how many", group=DATA
    )
    ignore_label: str | None = flag(None, "labels whose rows are left out: a,b", group=DATA)
    fail_on_leak: bool = flag(False, "refuse data whose training and test rows overlap", group=DATA)
    encoding: str = flag("utf-8", "character encoding of text files", group=DATA)

    mixed_precision: str | None = flag(
        None,
        "precision; none: what accelerate launch says, else fp32",
        group=BATCH,
        choices=("no", *MODES),
    )
    per_device_train_batch_size: int = flag(
        8,
        "examples of a micro-batch, per process (stdlib: 16, digits: 32)",
        group=BATCH,
        at_least=1,
    )
    gradient_accumulation_steps: int = flag(
        1, "micro-batches of an optimizer step, per process", group=BATCH, at_least=1
    )
    auto_micro_batch: bool = flag(
        False, "largest micro-batches that fit into memory; the product of both stays", group=BATCH
    )
    per_device_eval_batch_size: int = flag(
        64, "examples of a forward pass in evaluation, per process", group=BATCH, at_least=1
    )
    use_cpu: bool = flag(False, "leave accelerators alone", group=BATCH)
    cpu_threads: int | None = flag(
        None,
        "threads of a process on a CPU; none: all cores where the launcher set one",
        group=BATCH,
        at_least=1,
    )
    dataloader_num_workers: int = flag(
        0,
        "processes that prepare batches ahead; 0 prepares them in the loop",
        group=BATCH,
        at_least=0,
    )

    learning_rate: float = flag(
        5e-5, "peak rate of AdamW (stdlib: 2e-4, digits: 1e-3)", group=OPTIMIZER, at_least=0
    )
    weight_decay: float = flag(
        0.0, "decoupled decay, not on norms and biases (digits: 0.05)", group=OPTIMIZER, at_least=0
    )
    adam_beta1: float = flag(
        0.9,
        "decay of the first moment",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    adam_beta2: float = flag(
        0.999, "decay of the second moment", group=OPTIMIZER, at_least=0, below=1
    )
    adam_epsilon: float = flag(
        1e-8, "added to the root of the second moment", group=OPTIMIZER, at_least=0
    )
    max_grad_norm: float = flag(
        1.0, "L2 norm to clip the gradient to; 0 clips nothing", group=OPTIMIZER, at_least=0
    )
    num_train_epochs: int = flag(
        3, "passes over the training data (stdlib: 5, digits: 30)", group=OPTIMIZER, at_least=1
    )
    max_train_steps: int | None = flag(
        None, "optimizer steps after which to stop; wins over epochs", group=OPTIMIZER, at_least=1
    )
    lr_scheduler_type: str = flag(
        "linear", "schedule of the learning rate", group=OPTIMIZER, choices=SCHEDULES
    )
    warmup_ratio: float = flag(
        0.0,
        "share of the steps in which the rate rises, 0 to 1 (embedded data: 0.1)",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    num_warmup_steps: int | None = flag(
        None, "steps in which the rate rises; wins over --warmup_ratio", group=OPTIMIZER, at_least=0
    )
    class_weights: str | None = flag(
        None, "balanced, or one weight per class: 1,2.5,1", group=OPTIMIZER
    )
    label_smoothing_factor: float = flag(
        0.0,
        "share of the target spread over all classes, 0 to 1",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    seed: int = flag(
        42, "seed of head, order and dropout", group=OPTIMIZER, at_least=0, at_most=LARGEST_SEED
    )
    perturb_initial_weights: bool = flag(
        False,
        "the placebo of a comparison: every weight begins one unit in its last place off",
        group=OPTIMIZER,
    )

    metric_for_best_model: str | None = flag(
        None,
        "metric of the validation split by which an epoch is best; none: the task's primary one "
        "(accuracy)",
        group=EVALUATION,
    )
    early_stopping_patience: int | None = flag(
        None, "epochs without improvement after which to stop", group=EVALUATION, at_least=1
    )
    load_best_model_at_end: bool = flag(
        True, "report and save the best epoch on validation, else the last", group=EVALUATION
    )
    evaluate_fp32: bool = flag(
        False,
        "also predict the final split in fp32, so that training in a precision and predicting in "
        "it are told apart",
        group=EVALUATION,
    )
    baseline: bool = flag(
        False, "print TF-IDF with logistic regression beside the result", group=EVALUATION
    )

    output_dir: str | None = flag(
        None, "folder of the results; none: a new one under runs/", group=OUTPUT
    )
    overwrite_output_dir: bool = flag(
        False, "write into a folder that has results of an earlier run", group=OUTPUT
    )
    history_csv: bool = flag(False, "write the history as CSV too", group=OUTPUT)
    with_tracking: bool = flag(False, "send the history to experiment trackers", group=OUTPUT)
    report_to: str = flag(
        "tensorboard", "trackers as Accelerate names them, comma separated, or all", group=OUTPUT
    )

    def data_request(self) -> DataRequest:
        """Return what is asked of the data layer."""
        from pathlib import Path

        from ampft.data.request import DataRequest

        def path(name: str | None) -> Path | None:
            return None if name is None else Path(name)

        return DataRequest(
            dataset_name=self.dataset_name,
            dataset_config_name=self.dataset_config_name,
            train_file=path(self.train_file),
            validation_file=path(self.validation_file),
            test_file=path(self.test_file),
            text_column_names=_names(self.text_column_names),
            label_column_name=self.label_column_name,
            image_column_name=self.image_column_name,
            max_train_samples=self.max_train_samples,
            max_eval_samples=self.max_eval_samples,
            max_predict_samples=self.max_predict_samples,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
            split_seed=self.data_seed,
            drop_missing_text=self.drop_missing_text,
            ignore_labels=_names(self.ignore_label) or (),
            fail_on_leak=self.fail_on_leak,
            encoding=self.encoding,
        )

    def task_settings(self) -> TaskSettings:
        """Return what is asked of the task."""
        from ampft.tasks.task import TaskSettings

        return TaskSettings(
            task=self.task,
            model_name_or_path=self.model_name_or_path,
            max_seq_length=self.max_seq_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing_factor,
            remove_padding=not self.padding,
            gradient_checkpointing=self.gradient_checkpointing,
            trust_remote_code=self.trust_remote_code,
        )

    def optimizer_settings(self) -> OptimizerSettings:
        """Return what is asked of AdamW."""
        from ampft.training.optimizer import OptimizerSettings

        return OptimizerSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=(self.adam_beta1, self.adam_beta2),
            epsilon=self.adam_epsilon,
            seed=self.seed,
        )

    def schedule_settings(self) -> ScheduleSettings:
        """Return what is asked of the learning rate's schedule."""
        from ampft.training.optimizer import ScheduleSettings

        return ScheduleSettings(
            name=self.lr_scheduler_type,
            warmup_ratio=self.warmup_ratio,
            warmup_steps=self.num_warmup_steps,
        )


def parse_classify_arguments(argv: Sequence[str] | None = None) -> ClassifyArguments:
    """Parse the command line of `recipes/classify.py`.

    Args:
        argv: The words after the program's name; None takes `sys.argv`.

    Raises:
        InputError: A flag is unknown, has a wrong value, or contradicts another.
    """
    arguments, given = parse_flags(
        ClassifyArguments,
        sys.argv[1:] if argv is None else argv,
        program="classify.py",
        description="Fine-tune a classifier of transformers in the precision you ask for, and "
        "report what came out and what really ran.",
    )
    name = arguments.dataset_name
    if name is None and arguments.train_file is None:
        name = "stdlib"
    defaults = {k: v for k, v in BUILT_IN_DEFAULTS.get(name or "", {}).items() if k not in given}
    arguments = dataclasses.replace(arguments, dataset_name=name, **defaults)
    _check(arguments)
    return arguments


def _check(arguments: ClassifyArguments) -> None:
    """Refuse settings that contradict each other, before anything is loaded."""
    if arguments.train_file and arguments.dataset_name:
        raise InputError(
            f"--train_file {arguments.train_file} and --dataset_name {arguments.dataset_name}: "
            "name one source of data."
        )
    other_files = arguments.validation_file or arguments.test_file
    if other_files and not arguments.train_file:
        raise InputError(
            f"--train_file is missing: {other_files} was given without data to train on."
        )
    if arguments.early_stopping_patience and not arguments.load_best_model_at_end:
        raise InputError(
            "--early_stopping_patience and --no-load_best_model_at_end: early stopping goes by the "
            "best epoch, and the second flag keeps none. Remove one of them."
        )
    _check_metric(arguments.metric_for_best_model)


def _check_metric(name: str | None) -> None:
    """Refuse a metric that no task has; the task itself is checked when the data are known."""
    if name is None:
        return
    known = [metric for problem in problem_types().values() for metric in problem.metrics]
    if name not in known:
        raise InputError(
            f"--metric_for_best_model: received {name!r}.{nearest(name, known)} "
            f"Allowed are {', '.join(dict.fromkeys(known))}."
        )


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))
