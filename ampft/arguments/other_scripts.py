"""Flags of other scripts of the field, and what to write for each here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ampft.errors import InputError, nearest

ALWAYS_DONE = (
    "Leave it away: training, validation and test are always done, as far as there is data."
)
INSTEAD = {
    "fp16": "Write --mixed_precision fp16.",
    "bf16": "Write --mixed_precision bf16.",
    "fp8": "Write --mixed_precision fp8.",
    "tf32": "Write --mixed_precision tf32.",
    "fp16_full_eval": "Leave it away: evaluation is in the precision of --mixed_precision.",
    "bf16_full_eval": "Leave it away: evaluation is in the precision of --mixed_precision.",
    "no_cuda": "Write --use_cpu.",
    "do_train": ALWAYS_DONE,
    "do_eval": ALWAYS_DONE,
    "do_predict": ALWAYS_DONE,
} | {
    theirs: f"Write --{ours}."
    for theirs, ours in {
        "model_name": "model_name_or_path",
        "max_length": "max_seq_length",
        "pad_to_max_length": "padding",
        "task_name": "dataset_name",
        "text_column_name": "text_column_names",
        "label_column_names": "label_column_name",
        "train_batch_size": "per_device_train_batch_size",
        "eval_batch_size": "per_device_eval_batch_size",
        "batch_size": "per_device_train_batch_size",
        "per_gpu_train_batch_size": "per_device_train_batch_size",
        "per_gpu_eval_batch_size": "per_device_eval_batch_size",
        "gradient_clipping": "max_grad_norm",
        "label_smoothing": "label_smoothing_factor",
        "lr": "learning_rate",
        "lr_scheduler": "lr_scheduler_type",
        "epochs": "num_train_epochs",
        "num_epochs": "num_train_epochs",
        "max_steps": "max_train_steps",
        "warmup_steps": "num_warmup_steps",
        "max_val_samples": "max_eval_samples",
        "max_test_samples": "max_predict_samples",
        "train_val_split": "validation_fraction",
    }.items()
}  # fmt: skip
TRUTHS = ("true", "false", "yes", "no", "1", "0")


def suggestion(name: str, known: Iterable[str], *, dashes: str = "--") -> str:
    """Return what to write instead of the unknown setting `name`, or an empty string.

    Args:
        name: Without dashes before it.
        known: The settings that there are.
        dashes: Shown before a name of `known` that is merely similar.
    """
    if name in INSTEAD:
        return f" {INSTEAD[name]}"
    return nearest(name, known).replace("'", f"'{dashes}", 1)


def refuse_valued_switches(argv: Sequence[str], switches: Iterable[str]) -> None:
    """Raise InputError for a switch with a value after it, as transformers' scripts take one.

    Args:
        argv: The words after the program's name.
        switches: Names of the settings that are true or false.
    """
    spellings = {f"--{no}{name}": name for name in switches for no in ("", "no-")}
    for word, following in pairwise([*argv, ""]):
        spelling, equals, value = word.partition("=")
        if spelling in spellings and (equals or following.lower() in TRUTHS):
            name = spellings[spelling]
            raise InputError(
                f"{spelling} {value if equals else following}: it is a switch and takes no value. "
                f"Write --{name} or --no-{name}."
            )
