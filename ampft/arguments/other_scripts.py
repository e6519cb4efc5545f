"""Flags of other training scripts, and their equivalents here."""

from __future__ import annotations

import re
from collections.abc import Collection

from ampft.arguments.transformers_flags import ROWS
from ampft.errors import did_you_mean
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
# Hints for values of the wrong type, by the name of the flag.
INVALID_VALUES = {
    "num_train_epochs": " For part of an epoch, set --max_train_steps instead.",
}
_NAMED = re.compile(r"--(\w+)")
BOOLEAN_WORDS = ("true", "false", "yes", "no", "1", "0")


def suggestion(name: str, known: Collection[str], *, dashes: str = "--") -> str:
    """Return advice on the unknown setting `name`, or an empty string.

    Args:
        name: Name of the setting, without leading dashes.
        known: Names of all settings.
        dashes: Prefix of a similar name in the advice.
    """
    advice = REPLACEMENTS.get(name)
    if advice and ("train_file" in known or advice is DEVICE or _is_about(advice, known)):
        return f" {advice}"
    if name in ROWS and "train_file" in known and name not in ROWS[name].text:
        return f" Here it is: {ROWS[name].text}."
    return did_you_mean(name, known).replace("'", f"'{dashes}", 1)


def _is_about(advice: str, known: Collection[str]) -> bool:
    return any(name in known for name in _NAMED.findall(advice))


def choice_hint(text: str, choices: Collection[str]) -> str:
    """Return advice on a value that is not one of the choices, or an empty string.

    Args:
        text: The value.
        choices: The allowed ones.
    """
    name = text.lower()
    if name in OTHER_CHOICES:
        return OTHER_CHOICES[name]
    other = COMMANDS.get(name) or OTHER_NAMES.get(name) or TASK_NAMES.get(name)
    return f" Did you mean {other!r}?" if other in choices else did_you_mean(name, choices)
