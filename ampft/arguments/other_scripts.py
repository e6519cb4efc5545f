"""Flags of other training scripts, and their equivalents here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ampft.arguments.transformers_flags import ROWS
from ampft.errors import InputError, did_you_mean
from ampft.precision.modes import OTHER_NAMES

DEVICE = (
    "Remove the flag: a GPU is used if there is one. CUDA_VISIBLE_DEVICES chooses which, and"
    " accelerate launch --num_processes N uses several."
)
DEVICE_FLAGS = ("device", "devices", "gpu", "gpus", "n_gpu", "num_gpus", "cuda", "gpu_id")
REPLACEMENTS = {
    "fp8": "Use --mixed_precision fp8.",
    "load_in_8bit": "Train without it; ampft compare RUN --inference fp32,int8 measures int8.",
} | dict.fromkeys(DEVICE_FLAGS, DEVICE) | {
    other: f"Use --{name}."
    for other, name in {
        "model": "model_name_or_path",
        "model_name": "model_name_or_path",
        "precision": "mixed_precision",
        "dtype": "mixed_precision",
        "torch_dtype": "mixed_precision",
        "resume": "resume_from_checkpoint",
        "data": "train_file",
        "train": "train_file",
        "dataset": "dataset_name",
        "output": "output_dir",
        "batch": "per_device_train_batch_size",
        "cpu": "use_cpu",
        "target": "label_column_name",
        "label": "label_column_name",
        "label_column": "label_column_name",
        "text": "text_column_names",
        "text_column": "text_column_names",
        "file": "train_file",
        "epoch": "num_train_epochs",
        "label_column_names": "label_column_name",
        "train_batch_size": "per_device_train_batch_size",
        "eval_batch_size": "per_device_eval_batch_size",
        "batch_size": "per_device_train_batch_size",
        "per_gpu_train_batch_size": "per_device_train_batch_size",
        "per_gpu_eval_batch_size": "per_device_eval_batch_size",
        "gradient_clipping": "max_grad_norm",
        "label_smoothing": "label_smoothing_factor",
        "log_with": "report_to",
        "lr": "learning_rate",
        "epochs": "num_train_epochs",
        "num_epochs": "num_train_epochs",
        "max_val_samples": "max_eval_samples",
        "max_test_samples": "max_predict_samples",
    }.items()
}  # fmt: skip
# What users type for a command of `ampft`.
COMMANDS = {
    **dict.fromkeys(("finetune", "fine-tune", "fintune", "fit", "run"), "train"),
    **dict.fromkeys(("classify", "infer", "inference", "test"), "predict"),
    **dict.fromkeys(("show", "evaluate", "eval"), "report"),
}
# What users type for a task of `ampft`.
TASK_NAMES = {
    **dict.fromkeys(("classification", "text-classification", "sentiment", "binary"), "text"),
    **dict.fromkeys(("multilabel", "multi_label"), "multi-label"),
    **dict.fromkeys(("ner", "token-classification", "pos", "tagging"), "tokens"),
    **dict.fromkeys(("image-classification", "vision"), "images"),
    **dict.fromkeys(("audio-classification", "audio"), "sounds"),
    **dict.fromkeys(("segmentation", "semantic-segmentation", "image-segmentation"), "pixels"),
}
# Advice on values that no program here has.
OTHER_CHOICES = {
    "int8": " Nothing trains in int8; ampft compare RUN --inference fp32,int8 lets a trained model"
    " predict in it.",
    "regression": " Only classification is supported: replace the numbers by classes, such as low"
    " and high.",
}
# Hints for values of the wrong type, by the beginning of argparse's message.
INVALID_VALUES = {
    "argument --num_train_epochs: ": " For part of an epoch, set --max_train_steps instead.",
}
_INVALID_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)$")
BOOLEAN_WORDS = ("true", "false", "yes", "no", "1", "0")


def suggestion(name: str, known: Iterable[str], *, dashes: str = "--") -> str:
    """Return advice on the unknown setting `name`, or an empty string.

    Args:
        name: Name of the setting, without leading dashes.
        known: Names of all settings.
        dashes: Prefix of a similar name in the advice.
    """
    if name in REPLACEMENTS:
        return f" {REPLACEMENTS[name]}"
    if name in ROWS:
        return f" Here it is: {ROWS[name].text}."
    return did_you_mean(name, known).replace("'", f"'{dashes}", 1)


def hint_for(message: str, options: Iterable[str]) -> str:
    """Return ` Did you mean ...?` for an error of argparse, or an empty string.

    Args:
        message: The error.
        options: All options of the program, with their dashes.
    """
    choice = _INVALID_CHOICE.search(message)
    if choice is not None:
        choices = [name.strip("'") for name in choice[2].split(", ")]
        name = choice[1].lower()
        if name in OTHER_CHOICES:
            return OTHER_CHOICES[name]
        other = COMMANDS.get(name) or OTHER_NAMES.get(name) or TASK_NAMES.get(name)
        return f" Did you mean {other!r}?" if other in choices else did_you_mean(name, choices)
    for start, hint in INVALID_VALUES.items():
        if message.startswith(start):
            return hint
    _, unknown, arguments = message.partition("unrecognized arguments: ")
    name = arguments.split()[0].split("=")[0] if unknown else ""
    if name.removeprefix("--") in DEVICE_FLAGS:
        return f" {DEVICE}"
    return did_you_mean(name, options) if unknown else ""


def refuse_valued_switches(argv: Sequence[str], switches: Iterable[str]) -> None:
    """Reject a switch that is followed by a value, which the transformers scripts allow.

    Args:
        argv: Command line arguments, without the program name.
        switches: Names of the settings that are true or false.

    Raises:
        InputError: A switch has a value.
    """
    spellings = {f"--{no}{name}": name for name in switches for no in ("", "no-")}
    for argument, following in pairwise([*argv, ""]):
        spelling, equals, value = argument.partition("=")
        if spelling in spellings and (equals or following.lower() in BOOLEAN_WORDS):
            name = spellings[spelling]
            raise InputError(
                f"{spelling} {value if equals else following}: this flag is a switch and takes no "
                f"value. Use --{name} or --no-{name}."
            )
