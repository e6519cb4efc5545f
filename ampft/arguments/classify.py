"""The settings of `recipes/classify.py`, named as in the transformers example scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampft.arguments.flags import flag, parse_duration
from ampft.precision.modes import MODES
from ampft.tasks import TASKS

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


# NumPy seeds have 32 bits.
MAX_SEED = 2**32 - 1

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
class ClassifyArguments:
    """Every setting of a run. `--help` describes each."""

    model_name_or_path: str | None = flag(
        None,
        "model folder or hub id; if none, all-MiniLM-L6-v2 for text and a small, randomly "
        "initialised ViT for digits",
        group=MODEL,
    )
    max_seq_length: int = flag(
        128,
        "maximum text length in tokens; longer texts are truncated (stdlib: 64)",
        group=MODEL,
        at_least=2,
    )
    padding: bool = flag(False, "pad inputs even if the model can run without padding", group=MODEL)
    pad_to_multiple_of: int | None = flag(
        None, "pad inputs to a multiple of this many tokens", group=MODEL, at_least=1
    )
    gradient_checkpointing: bool = flag(
        False,
        "recompute activations in the backward pass; uses less memory, but is slower",
        group=MODEL,
    )
    trust_remote_code: bool = flag(False, "run code from the model's repository", group=MODEL)

    task: str | None = flag(
        None,
        "what to classify; if none, the default task for the data",
        group=DATA,
        choices=tuple(TASKS),
    )
    dataset_name: str | None = flag(
        None,
        "stdlib (docstrings of Python's standard library), digits (images), a hub id or a folder; "
        "if none, stdlib unless --train_file is set",
        group=DATA,
    )
    dataset_config_name: str | None = flag(
        None, "configuration of the data set; stdlib has summary and full", group=DATA
    )
    train_file: str | None = flag(
        None, "training data: a CSV, TSV, JSON, JSON Lines or Parquet file", group=DATA
    )
    validation_file: str | None = flag(
        None, "validation data, for choosing the best epoch; same formats", group=DATA
    )
    test_file: str | None = flag(None, "test data, for the final report; same formats", group=DATA)
    text_column_names: str | None = flag(
        None, "text column, or two columns for text pairs: a,b", group=DATA
    )
    label_column_name: str | None = flag(
        None, "label column; with multi-label also one 0/1 column per label: a,b", group=DATA
    )
    label_separator: str = flag(",", "separator of the labels in a cell (multi-label)", group=DATA)
    image_column_name: str | None = flag(None, "image column", group=DATA)
    group_column: str | None = flag(
        None,
        "column of documents, patients, users, ...: rows with the same value stay in one split, "
        "and a comparison counts them as one case",
        group=DATA,
    )
    id_column: str | None = flag(
        None, "column of ids, which predictions.parquet then contains", group=DATA
    )
    max_train_samples: int | None = flag(
        None, "number of training examples to keep, chosen at random", group=DATA, at_least=1
    )
    max_eval_samples: int | None = flag(
        None,
        "number of validation examples to keep",
        group=DATA,
        at_least=1,
    )
    max_predict_samples: int | None = flag(
        None,
        "number of test examples to keep",
        group=DATA,
        at_least=1,
    )
    validation_fraction: float = flag(
        0.1,
        "share of the training data to hold out for validation if none is given, 0 to 1",
        group=DATA,
        at_least=0,
        below=1,
    )
    test_fraction: float = flag(
        0.2,
        "share of the training data to hold out for testing if there is neither validation nor "
        "test data, 0 to 1",
        group=DATA,
        at_least=0,
        below=1,
    )
    data_seed: int = flag(
        0, "seed for splitting and subsampling the data", group=DATA, at_least=0, at_most=MAX_SEED
    )
    drop_missing_text: bool = flag(False, "drop rows without text, and report how many", group=DATA)
    ignore_label: str | None = flag(None, "labels whose rows are dropped: a,b", group=DATA)
    fail_on_leak: bool = flag(
        False, "stop with an error if training and test rows overlap", group=DATA
    )
    encoding: str = flag("utf-8", "character encoding of text files", group=DATA)

    mixed_precision: str | None = flag(
        None,
        "precision; if none, the one set by accelerate launch, otherwise fp32",
        group=BATCH,
        choices=("no", *MODES),
    )
    per_device_train_batch_size: int = flag(
        8,
        "examples per micro-batch and process (stdlib: 16, digits: 32)",
        group=BATCH,
        at_least=1,
    )
    gradient_accumulation_steps: int = flag(
        1, "micro-batches per optimizer step and process", group=BATCH, at_least=1
    )
    auto_micro_batch: bool = flag(
        False,
        "use the largest micro-batches that fit into memory; the effective batch size stays the "
        "same",
        group=BATCH,
    )
    per_device_eval_batch_size: int = flag(
        64, "examples per forward pass and process in evaluation", group=BATCH, at_least=1
    )
    use_cpu: bool = flag(False, "train on the CPU even if there is an accelerator", group=BATCH)
    cpu_threads: int | None = flag(
        None,
        "CPU threads per process; if none, OMP_NUM_THREADS if you set it, and otherwise all cores",
        group=BATCH,
        at_least=1,
    )
    dataloader_num_workers: int = flag(
        0,
        "worker processes that load batches in advance; 0 loads them in the training process",
        group=BATCH,
        at_least=0,
    )

    learning_rate: float = flag(
        5e-5,
        "peak learning rate of AdamW (stdlib: 2e-4, digits: 1e-3)",
        group=OPTIMIZER,
        at_least=0,
    )
    weight_decay: float = flag(
        0.0,
        "decoupled weight decay, not applied to norms and biases (digits: 0.05)",
        group=OPTIMIZER,
        at_least=0,
    )
    adam_beta1: float = flag(
        0.9,
        "decay rate of the first moment",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    adam_beta2: float = flag(
        0.999, "decay rate of the second moment", group=OPTIMIZER, at_least=0, below=1
    )
    adam_epsilon: float = flag(
        1e-8, "added to the root of the second moment", group=OPTIMIZER, at_least=0
    )
    max_grad_norm: float = flag(
        1.0, "L2 norm to clip the gradient to; 0 turns clipping off", group=OPTIMIZER, at_least=0
    )
    num_train_epochs: int = flag(
        3, "passes over the training data (stdlib: 5, digits: 30)", group=OPTIMIZER, at_least=1
    )
    max_train_steps: int | None = flag(
        None,
        "number of optimizer steps; overrides --num_train_epochs",
        group=OPTIMIZER,
        at_least=1,
    )
    max_time: str | None = flag(
        None,
        "time after which training stops and the run is evaluated as usual, such as 90min or 2h, "
        "counted from its start",
        group=OPTIMIZER,
    )
    on_nonfinite: str = flag(
        "stop",
        "what to do if a loss or gradient is not finite and no scaler skips the step: stop, or "
        "skip at most 10 such steps",
        group=OPTIMIZER,
        choices=("stop", "skip"),
    )
    lr_scheduler_type: str = flag(
        "linear", "learning rate schedule", group=OPTIMIZER, choices=SCHEDULES
    )
    warmup_ratio: float = flag(
        0.0,
        "share of the steps used for learning rate warm-up, 0 to 1 (stdlib, digits: 0.1)",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    num_warmup_steps: int | None = flag(
        None,
        "number of warm-up steps; overrides --warmup_ratio",
        group=OPTIMIZER,
        at_least=0,
    )
    class_weights: str | None = flag(
        None,
        "balanced, or one weight per class: 1,2.5,1 (multi-label: of the examples that have it)",
        group=OPTIMIZER,
    )
    label_smoothing_factor: float = flag(
        0.0,
        "share of the target probability spread over all classes, 0 to 1",
        group=OPTIMIZER,
        at_least=0,
        below=1,
    )
    seed: int = flag(
        42,
        "seed of classification head, data order and dropout",
        group=OPTIMIZER,
        at_least=0,
        at_most=MAX_SEED,
    )
    perturb_initial_weights: bool = flag(
        False,
        "change every initial weight by one unit in the last place, as the placebo of a comparison",
        group=OPTIMIZER,
    )

    metric_for_best_model: str | None = flag(
        None,
        "validation metric for choosing the best weights; if none, the task's primary metric "
        "(accuracy)",
        group=EVALUATION,
    )
    eval_steps: int | None = flag(
        None,
        "optimizer steps between validations, with one more at the end; if none, one validation "
        "after each epoch",
        group=EVALUATION,
        at_least=1,
    )
    early_stopping_patience: int | None = flag(
        None, "stop after this many validations without improvement", group=EVALUATION, at_least=1
    )
    load_best_model_at_end: bool = flag(
        True,
        "report and save the weights with the best validation metric instead of the last ones",
        group=EVALUATION,
    )
    threshold: float = flag(
        0.5,
        "smallest probability at which a label is predicted (multi-label)",
        group=EVALUATION,
        at_least=0,
        at_most=1,
    )
    evaluate_fp32: bool = flag(
        False,
        "also predict the final split in fp32, to separate the effect of training in a precision "
        "from that of predicting in it",
        group=EVALUATION,
    )
    baseline: bool = flag(
        False, "also report TF-IDF with logistic regression as a baseline", group=EVALUATION
    )

    output_dir: str | None = flag(
        None, "folder for the results; if none, a new folder under runs/", group=OUTPUT
    )
    overwrite_output_dir: bool = flag(
        False, "overwrite the results of an earlier run", group=OUTPUT
    )
    checkpointing_steps: str | None = flag(
        None,
        "write a checkpoint every N optimizer steps (500), after every epoch (epoch) or every N "
        "minutes (10min); if none, never",
        group=OUTPUT,
    )
    checkpoint_total_limit: int | None = flag(
        None, "number of checkpoints to keep; if none, all", group=OUTPUT, at_least=1
    )
    async_checkpoints: bool = flag(
        False, "write checkpoints in the background while the training continues", group=OUTPUT
    )
    resume_from_checkpoint: str | None = flag(
        None,
        "continue from a checkpoint: its folder, or latest for the last one in --output_dir, where "
        "the training starts from the beginning if there is none yet",
        group=OUTPUT,
    )
    allow_topology_change: bool = flag(
        False,
        "resume with another number of processes or micro-batches or on another device; the "
        "examples stay the same, the rounding does not, and the record says so",
        group=OUTPUT,
    )
    history_csv: bool = flag(False, "also write the history as CSV", group=OUTPUT)
    with_tracking: bool = flag(False, "send the history to experiment trackers", group=OUTPUT)
    report_to: str = flag(
        "tensorboard",
        "experiment trackers by their Accelerate names, comma-separated, or all",
        group=OUTPUT,
    )

    @property
    def max_seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else parse_duration("max_time", self.max_time)

    def data_request(self) -> DataRequest:
        """Return the settings of the data."""
        from pathlib import Path

        from ampft.data.request import DataRequest

        def path(name: str | None) -> Path | None:
            return None if name is None else Path(name)

        several = self.task is not None and TASKS[self.task].several_labels
        name = self.label_column_name
        labels = _split_names(name) if several or name is None else (name,)
        return DataRequest(
            dataset_name=self.dataset_name,
            dataset_config_name=self.dataset_config_name,
            train_file=path(self.train_file),
            validation_file=path(self.validation_file),
            test_file=path(self.test_file),
            text_column_names=_split_names(self.text_column_names),
            label_column_names=labels,
            several_labels=several,
            label_separator=self.label_separator,
            image_column_name=self.image_column_name,
            group_column=self.group_column,
            id_column=self.id_column,
            max_train_samples=self.max_train_samples,
            max_eval_samples=self.max_eval_samples,
            max_predict_samples=self.max_predict_samples,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
            split_seed=self.data_seed,
            drop_missing_text=self.drop_missing_text,
            ignore_labels=_split_names(self.ignore_label) or (),
            fail_on_leak=self.fail_on_leak,
            encoding=self.encoding,
        )

    def task_settings(self) -> TaskSettings:
        """Return the settings of the task."""
        from ampft.tasks.task import TaskSettings

        return TaskSettings(
            task=self.task,
            model_name_or_path=self.model_name_or_path,
            max_seq_length=self.max_seq_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing_factor,
            threshold=self.threshold,
            remove_padding=not self.padding,
            gradient_checkpointing=self.gradient_checkpointing,
            trust_remote_code=self.trust_remote_code,
        )

    def optimizer_settings(self) -> OptimizerSettings:
        """Return the settings of AdamW."""
        from ampft.training.optimizer import OptimizerSettings

        return OptimizerSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            betas=(self.adam_beta1, self.adam_beta2),
            epsilon=self.adam_epsilon,
            seed=self.seed,
        )

    def schedule_settings(self) -> ScheduleSettings:
        """Return the settings of the learning rate schedule."""
        from ampft.training.optimizer import ScheduleSettings

        return ScheduleSettings(
            name=self.lr_scheduler_type,
            warmup_ratio=self.warmup_ratio,
            warmup_steps=self.num_warmup_steps,
        )


def _split_names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))
