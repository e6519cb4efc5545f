"""Settings that contradict each other or are out of range, refused before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampft.errors import InputError

if TYPE_CHECKING:
    from ampft.arguments.classify import ClassifyArguments

LOWEST: dict[str, float] = {
    "max_seq_length": 2, "pad_to_multiple_of": 1, "max_train_samples": 1, "max_eval_samples": 1,
    "max_predict_samples": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1,
    "per_device_eval_batch_size": 1, "cpu_threads": 1, "dataloader_num_workers": 0,
    "learning_rate": 0, "weight_decay": 0, "adam_epsilon": 0, "max_grad_norm": 0,
    "num_train_epochs": 1, "max_train_steps": 1, "num_warmup_steps": 0, "seed": 0, "data_seed": 0,
    "early_stopping_patience": 1,
}  # fmt: skip
# numpy seeds with 32 bits.
HIGHEST = {"seed": 2**32 - 1, "data_seed": 2**32 - 1}
BELOW_ONE = (
    "validation_fraction", "test_fraction", "warmup_ratio", "label_smoothing_factor", "adam_beta1",
    "adam_beta2",
)  # fmt: skip


def check_arguments(arguments: ClassifyArguments) -> None:
    """Refuse empty texts, numbers out of range, and settings that contradict each other.

    Raises:
        InputError: Naming the flag, what was received and what is allowed.
    """
    for name, value in vars(arguments).items():
        if isinstance(value, str) and not value.strip():
            raise InputError(f"--{name}: received {value!r}. Give it a value or leave it away.")
    for name, low in LOWEST.items():
        value = getattr(arguments, name)
        # Written so that a NaN is refused too.
        if value is not None and not low <= value < float("inf"):
            raise InputError(f"--{name}: received {value}; it has to be {low:g} or more.")
    for name, high in HIGHEST.items():
        if getattr(arguments, name) > high:
            raise InputError(
                f"--{name}: received {getattr(arguments, name)}; it has to be {high} or less."
            )
    for name in BELOW_ONE:
        if not 0 <= getattr(arguments, name) < 1:
            raise InputError(
                f"--{name}: received {getattr(arguments, name)}; it has to be at least 0 and "
                "below 1."
            )
    _check_source(arguments)
    if arguments.early_stopping_patience and not arguments.load_best_model_at_end:
        raise InputError(
            "--early_stopping_patience and --no-load_best_model_at_end: stopping early goes by the "
            "best epoch, and the second flag keeps none. Leave one of them away."
        )


def _check_source(arguments: ClassifyArguments) -> None:
    if arguments.train_file and arguments.dataset_name:
        raise InputError(
            f"--train_file {arguments.train_file} and --dataset_name {arguments.dataset_name}: "
            "name one source of data."
        )
    files = arguments.validation_file or arguments.test_file
    if files and not arguments.train_file:
        raise InputError(f"--train_file is missing: {files} was given without data to train on.")
