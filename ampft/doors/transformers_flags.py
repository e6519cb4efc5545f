"""Flags of transformers' scripts and `TrainingArguments`, converted by value to flags of ampft.

One row per field: of `TrainingArguments` (5.23), of the argument classes of run_classification,
run_glue, run_xnli, run_ner, run_image_classification, run_audio_classification and
run_semantic_segmentation, and of the examples without Trainer. A flag that is in no row is a flag
of ampft, or unknown.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.text.terminal import labelled, print_line

_FLAG = re.compile(r"--\S|-[A-Za-z]\S*$")
_Item = tuple[str, str, tuple[str, ...]]  # Name, value and words of a flag.
Given = Mapping[str, str]  # Values of the flags on the command line, "true" for a bare switch.

TAKEN, CONVERTED, HARMLESS, REFUSED = "taken", "converted", "harmless", "refused"
_TRUE, _FALSE = ("true", "yes", "1", "y", "t"), ("false", "no", "0", "n", "f")
_SWITCH, _VALUE, _LIST = "switch", "value", "list"
STSB = "stsb"  # whose labels are numbers
GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
_WORD_TASKS = ("ner", "pos", "chunk")
REPORTED = ("accuracy", "f1", "precision", "recall", "seqeval", "mean_iou")  # by every report
_FILES_OF_FOLDERS = {"train": "train", "validation": "dev", "test": "test"}
_SOURCES = {"dataset_name", "train_file", "config"}  # flags without which built-in data are read
# Metrics by the names of scikit-learn's scorers, and by those that notebooks compute.
_OTHER_METRICS = {
    "loss": "log_loss", "f1_macro": "macro_f1", "f1_micro": "micro_f1",
    "f1_weighted": "weighted_f1", "mcc": "matthews", "matthews_correlation": "matthews",
    "matthews_corrcoef": "matthews", "overall_f1": "micro_f1", "auc": "roc_auc", "rmse": "mse",
}  # fmt: skip
_STEPS = 500  # the Trainer's default of --save_steps, --eval_steps and --logging_steps


class _RefusedError(Exception):
    """A value that cannot be converted; its text says why, and what does the same here."""


@dataclass(frozen=True)
class Row:
    """What happens to one flag of transformers' scripts."""

    kind: str  # TAKEN, CONVERTED, HARMLESS or REFUSED.
    text: str  # What it does here, or why it cannot.
    takes: str = _VALUE  # _SWITCH, with or without a value; _VALUE; _LIST, of one or more values.
    convert: Callable[[str, Given], list[str]] | None = None  # Words of ampft's command line.
    differs: str | None = None  # Both defaults, where they are unequal.


@dataclass(frozen=True)
class Translation:
    """A command line in ampft's flags."""

    words: list[str]
    converted: list[tuple[str, str]]  # Words before and after.
    harmless: list[str]  # Flags without effect here.

    @property
    def lines(self) -> list[str]:
        """One line on what was converted, and one on what has no effect."""
        lines = []
        if self.converted:
            pairs = (f"{old} -> {new}" for old, new in self.converted)
            lines.append(labelled("read as", "; ".join(pairs)))
        if self.harmless:
            lines.append(labelled("unused", f"{', '.join(self.harmless)}: not needed here"))
        return lines


def is_true(value: str) -> bool:
    """Return the value of a switch.

    Raises:
        _RefusedError: It is neither true nor false.
    """
    if value.lower() not in (*_TRUE, *_FALSE):
        raise _RefusedError(f"received {value!r}; it must be True or False.")
    return value.lower() in _TRUE


def _if_true(*words: str) -> Callable[[str, Given], list[str]]:
    return lambda value, given: list(words) if is_true(value) else []


def _renamed(name: str) -> Row:
    return Row(CONVERTED, f"--{name}", convert=lambda value, given: [f"--{name}", value])


def _harmless(text: str, takes: str = _VALUE, check: Callable[[str], object] | None = None) -> Row:
    """A flag without effect here. A switch is checked to be one; so is what `check` can refuse."""
    check = is_true if check is None and takes == _SWITCH else check
    if check is None:
        return Row(HARMLESS, text, takes)

    def convert(value: str, given: Given) -> list[str]:
        check(value)
        return []

    return Row(HARMLESS, text, takes, convert)


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value.lower() not in allowed:
            raise _RefusedError(f"received {value!r}; it must be {', '.join(allowed)}.")

    return check


def _refused(text: str, takes: str = _VALUE) -> Row:
    """A flag without counterpart; a value that turns it off is accepted."""
    off = ("", "none", "no", "false", "off", "{}")

    def convert(value: str, given: Given) -> list[str]:
        if value.lower() in off:
            return []
        raise _RefusedError(text)

    return Row(REFUSED, text, takes, convert)


def _only(allowed: Sequence[str], text: str, takes: str = _VALUE) -> Row:
    """A flag that only accepts values that describe what ampft does anyway."""

    def convert(value: str, given: Given) -> list[str]:
        if value.lower() not in allowed:
            raise _RefusedError(text)
        return []

    return Row(HARMLESS, text, takes, convert)


def _precision(mode: str) -> Row:
    def convert(value: str, given: Given) -> list[str]:
        if not is_true(value):
            return []
        if given.get("mixed_precision") == "no":
            raise _RefusedError("--mixed_precision no is set too. Keep one of them.")
        halves = [name for name in given if name in ("fp16", "bf16") and is_true(given[name])]
        others = [name for name in halves if name != mode]
        if others and mode != "tf32" and halves[0] != mode:  # said once, of the later flag
            raise _RefusedError(f"--{others[0]} is set too. Keep one of them.")
        explicit = given.get("mixed_precision")
        if explicit not in (None, "no", mode) and mode != "tf32":
            raise _RefusedError(f"--mixed_precision {explicit} is set too. Keep one of them.")
        if mode == "tf32" and (others or explicit is not None):
            return []  # the products are computed in 16 bits
        return ["--mixed_precision", mode] if explicit is None else []

    return Row(CONVERTED, f"--mixed_precision {mode} if true", _SWITCH, convert)


def _epochs(value: str, given: Given) -> list[str]:
    number = _number(value)
    if number != int(number):
        raise _RefusedError(
            f"received {value}; epochs are whole here. Set --max_train_steps to stop earlier."
        )
    return ["--num_train_epochs", str(int(number))]


def _number(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise _RefusedError(f"received {value!r}; it must be a number.") from None
    if not abs(number) < float("inf"):
        raise _RefusedError(f"received {value!r}; it must be finite.")
    return number


def _warmup(value: str, given: Given) -> list[str]:
    number = _number(value)
    others = [name for name in ("warmup_ratio", "num_warmup_steps") if name in given]
    if others and number:
        raise _RefusedError(f"--{others[0]} is set too. Keep one of them.")
    if number < 1:
        return [] if others else ["--warmup_ratio", value]
    if number != int(number):
        raise _RefusedError(f"received {value}; it must be a whole number, or a share below 1.")
    return ["--num_warmup_steps", str(int(number))]


def _max_steps(value: str, given: Given) -> list[str]:
    return ["--max_train_steps", value] if _number(value) > 0 else []


def _eval_strategy(value: str, given: Given) -> list[str]:
    chosen = value.lower()
    if chosen == "no":
        if is_true(given.get("load_best_model_at_end", "no")):
            raise _RefusedError("--load_best_model_at_end needs validations. Remove one of them.")
        return ["--no-load_best_model_at_end"]
    if chosen == "steps":
        return (
            []
            if "eval_steps" in given
            else ["--eval_steps", given.get("logging_steps", str(_STEPS))]
        )
    if chosen == "epoch":
        return []
    raise _RefusedError(f"received {value!r}; it must be no, steps or epoch.")


def _eval_steps(value: str, given: Given) -> list[str]:
    strategy = given.get("eval_strategy", given.get("evaluation_strategy", "steps")).lower()
    number = _number(value)
    if strategy != "steps":
        return []
    if number != int(number):
        raise _RefusedError(f"received {value}; it must be a whole number of steps here.")
    return ["--eval_steps", str(int(number))]


def _save_strategy(value: str, given: Given) -> list[str]:
    chosen = value.lower()
    if chosen == "epoch":
        return ["--checkpointing_steps", "epoch"]
    if chosen == "steps":
        return [] if "save_steps" in given else ["--checkpointing_steps", str(_STEPS)]
    if chosen in ("no", "best"):
        return []  # the best weights are kept in any case
    raise _RefusedError(f"received {value!r}; it must be no, steps, epoch or best.")


def _save_steps(value: str, given: Given) -> list[str]:
    if given.get("save_strategy", "steps").lower() != "steps":
        return []
    number = _number(value)
    if number < 0:
        return []
    if number != int(number) or number == 0:
        raise _RefusedError(f"received {value}; it must be a whole number of steps here.")
    return ["--checkpointing_steps", str(int(number))]


def _save_limit(value: str, given: Given) -> list[str]:
    writes = given.get("save_strategy", "").lower() in ("epoch", "steps")
    writes |= "checkpointing_steps" in given
    writes |= "save_strategy" not in given and _number(given.get("save_steps", "-1")) > 0
    _number(value)
    return ["--checkpoint_total_limit", value] if writes else []


def _optimizer(value: str, given: Given) -> list[str]:
    if value in ("adamw_torch", "adamw_torch_fused", "adamw_hf"):
        return ["--optim", "adamw_torch"]
    if value in ("adamw_8bit", "adamw_bnb_8bit"):
        return ["--optim", "adamw_8bit"]
    if value in ("adafactor", "muon"):
        return ["--optim", value]
    if value in ("paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw"):
        other = "adamw_8bit" if value.endswith("8bit") else "adamw_torch"
        raise _RefusedError(
            "states are not paged to the CPU's memory, which a run that must continue bit for bit "
            f"would have to copy. Use --optim {other}."
        )
    raise _RefusedError(
        f"received {value!r}; adamw_torch, adamw_8bit, adafactor and muon are here. With less "
        "memory for the optimizer: --optim adamw_8bit or adafactor, or LoRA with --lora_r 8."
    )


def _adafactor(value: str, given: Given) -> list[str]:
    if not is_true(value):
        return []
    if given.get("optim", "adafactor") != "adafactor":
        raise _RefusedError(f"--optim {given['optim']} is set too. Keep one of them.")
    return [] if "optim" in given else ["--optim", "adafactor"]


def _best_metric(value: str, given: Given) -> list[str]:
    name = value.removeprefix("eval_")
    return ["--metric_for_best_model", _OTHER_METRICS.get(name, name)]


def _report_to(value: str, given: Given) -> list[str]:
    if value.lower() == "none":
        return []
    on = [] if "with_tracking" in given else ["--with_tracking"]
    return ["--report_to", value.replace(" ", ","), *on]


def _best_model(value: str, given: Given) -> list[str]:
    return ["--load_best_model_at_end" if is_true(value) else "--no-load_best_model_at_end"]


def _resume(value: str, given: Given) -> list[str]:
    if value.lower() in _FALSE:
        return []
    return ["--resume_from_checkpoint", "latest" if value.lower() in _TRUE else value]


def _task_name(value: str, given: Given) -> list[str]:
    name = value.lower().replace("-", "")  # older scripts have SST-2
    if name in GLUE:
        numbers = ["--task", "regression"] if name == STSB else []
        if numbers and "train_file" in given:
            return numbers  # run_glue takes the kind of the task, and reads the files
        if "dataset_name" in given or "train_file" in given:
            source = "dataset_name" if "dataset_name" in given else "train_file"
            raise _RefusedError(f"--{source} names other data. Remove one of them.")
        return ["--dataset_name", "nyu-mll/glue", "--dataset_config_name", name, *numbers]
    if name in _WORD_TASKS:
        words = ["--task", "tokens"]
        if "dataset_name" in given and "label_column_name" not in given:
            words += ["--label_column_name", f"{name}_tags"]
        return words
    raise _RefusedError(
        f"received {value!r}; known are {', '.join((*GLUE, *_WORD_TASKS))}. For other tags: "
        f"--task tokens --label_column_name {value}_tags."
    )


def _data_dir(value: str, given: Given) -> list[str]:
    """Convert a folder of tagged words, or of images or sounds by class.

    A folder of GLUE is refused: its columns have no names.
    """
    folder = Path(value)
    files = {use: folder / f"{name}.txt" for use, name in _FILES_OF_FOLDERS.items()}
    if "labels" not in given or not files["train"].is_file():
        has_files = any(folder.glob("train.*")) or not folder.is_dir()
        if has_files or given.keys() & {"labels", "task_name", "dataset_name", "train_file"}:
            raise _RefusedError(
                "name its files with --train_file, --validation_file and --test_file; a folder of "
                "images or sounds with --dataset_name."
            )
        return ["--dataset_name", value]
    words = [(f"--{use}_file", str(file)) for use, file in files.items() if file.is_file()]
    return ["--task", "tokens", *chain.from_iterable(words)]


def _labels(value: str, given: Given) -> list[str]:
    if "data_dir" not in given:
        raise _RefusedError("use --label_column_name for the column of the labels.")
    return []


def _regression(value: str, given: Given) -> list[str]:
    return ["--task", "regression"] if is_true(value) else []


def _text_columns(value: str, given: Given) -> list[str]:
    """Convert `a,b,c` of run_classification, which joins columns; `a,b` alone is a pair here."""
    if "text_column_delimiter" in given or value.count(",") > 1:
        value = "+".join(part.strip() for part in value.split(","))
    return ["--text_column_names", value]


def _delimiter(value: str, given: Given) -> list[str]:
    if value.replace("\\n", " ").replace("\\t", " ").strip():
        raise _RefusedError(f"received {value!r}; columns are joined with a space.")
    return []


def _config_name(value: str, given: Given) -> list[str]:
    if value == given.get("model_name_or_path"):
        return []
    raise _RefusedError(
        "weights and configuration are one. Copy the model's folder, change its config.json, and "
        "pass it with --model_name_or_path."
    )


def _model_type(value: str, given: Given) -> list[str]:
    if "model_name_or_path" in given:
        return []
    raise _RefusedError(
        "save a model with random weights to a folder, and pass the folder with "
        "--model_name_or_path."
    )


def _lower_case(value: str, given: Given) -> list[str]:
    if is_true(value) and "uncased" not in given.get("model_name_or_path", ""):
        raise _RefusedError("the tokenizer of the model decides.")
    return []


def _metric_name(value: str, given: Given) -> list[str]:
    return [] if value in REPORTED else ["--metric", value]


def _train_language(value: str, given: Given) -> list[str]:
    if "language" not in given:
        raise _RefusedError("it needs --language, the language of the test. Add it.")
    return []


def _language(value: str, given: Given) -> list[str]:
    for other in ("dataset_name", "train_file", "task_name"):
        if other in given:
            raise _RefusedError(f"it is for XNLI, and --{other} names other data. Remove one.")
    train = given.get("train_language", value)
    words = ["--dataset_name", "facebook/xnli", "--dataset_config_name", train]
    return words if train == value else [*words, "--eval_dataset_config_name", value]


def _percentage(value: str, given: Given) -> list[str]:
    return ["--validation_fraction", f"{_number(value) / 100:g}"]


def _train_folder(value: str, given: Given) -> list[str]:
    if "dataset_name" in given:
        raise _RefusedError("--dataset_name names other data. Remove one of them.")
    validation = given.get("validation_dir")
    if validation is None:
        return ["--dataset_name", value]
    train, other = Path(value), Path(validation)
    if train.parent != other.parent or train.name not in ("train", "training"):
        raise _RefusedError(
            "one folder holds all splits here: put them beside each other as train and validation, "
            "and pass the folder above with --dataset_name."
        )
    return ["--dataset_name", str(train.parent)]


def _greater_is_better(value: str, given: Given) -> list[str]:
    metric, is_greater = given.get("metric_for_best_model", ""), is_true(value)
    if metric and is_greater == metric.endswith(("loss", "error", "score_brier", "brier")):
        raise _RefusedError(f"{metric} has the other direction. Remove the flag.")
    return []


def _attention_mask(value: str, given: Given) -> list[str]:
    is_true(value)
    return []


_LEVELS = _one_of("passive", "detail", "debug", "info", "warning", "error", "critical", "notset")
_LOGGING = "history.jsonl has every step, and the terminal a line per epoch"
_SAMPLER = "batches are collated by a thread; --dataloader_num_workers adds processes"
_DDP = "Accelerate's own settings of DDP are used"
_PUSH = "the model is pushed once, at the end"
_TOKEN = "the token comes from `hf auth login` or HF_TOKEN, so that it stands in no record"
_EVALUATION = "logits are reduced on the device, and a split is never held in memory"
_CACHE = "tokens are not cached on disk"
_COMPILE = "Use `accelerate launch --dynamo_backend inductor`."
_SHARD = "Use `accelerate launch --config_file accelerate_configs/fsdp2.yaml`."

# The fields of TrainingArguments that have the same name and meaning here.
SAME = (
    "output_dir", "per_device_train_batch_size", "learning_rate", "lr_scheduler_type",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_accumulation_steps",
    "max_grad_norm", "label_smoothing_factor", "per_device_eval_batch_size", "hub_model_id", "seed",
    "data_seed", "dataloader_num_workers", "warmup_ratio",
    "gradient_checkpointing", "push_to_hub", "hub_private_repo", "use_cpu", "overwrite_output_dir",
    # Of the scripts.
    "model_name_or_path", "model_revision", "trust_remote_code", "dataset_name",
    "dataset_config_name", "train_file", "validation_file", "test_file",
    "label_column_name", "max_seq_length", "max_train_samples", "max_eval_samples",
    "max_predict_samples", "image_column_name",
    "audio_column_name", "max_length_seconds", "num_warmup_steps", "max_train_steps",
    "with_tracking", "checkpointing_steps", "cache_dir", "train_split_name",
    "validation_split_name", "test_split_name", "remove_splits",
)  # fmt: skip
DIFFERENT_DEFAULTS = {
    "learning_rate": "1e-4 up to a hidden size of 512, ten times as much for a head or LoRA; there "
    "5e-5",
    "per_device_eval_batch_size": "64; there 8",
    "data_seed": "seeds splits and subsamples here; there the order of the examples, which follows "
    "--seed here",
    "max_train_samples": "drawn at random here; there the first ones for texts and words",
    "text_column_names": "a,b is a pair of texts, and a+b joins columns; there a,b joins columns",
    "max_length_seconds": "whole sounds; there 20 s, cut at random",
    "max_seq_length": "128, and windows for longer texts of words; there 128, and for words the "
    "model's maximum",
    "image_column_name": "--augment resized_crop,flip changes images at random; there always",
    "model_name_or_path": "for images, a small model from random weights; there a pretrained ViT",
}
ROWS: dict[str, Row] = {
    name: Row(TAKEN, f"--{name}", differs=DIFFERENT_DEFAULTS.get(name)) for name in SAME
} | {
    "fp16": _precision("fp16"),
    "bf16": _precision("bf16"),
    "tf32": _precision("tf32"),
    "num_train_epochs": Row(CONVERTED, "whole epochs", convert=_epochs),
    "max_steps": Row(CONVERTED, "--max_train_steps if above 0", convert=_max_steps),
    "warmup_steps": Row(
        CONVERTED, "--num_warmup_steps, or --warmup_ratio below 1", convert=_warmup
    ),
    "optim": Row(
        CONVERTED, "AdamW in each spelling and in 8 bits; adafactor; muon", convert=_optimizer
    ),
    "adafactor": Row(CONVERTED, "--optim adafactor if true", _SWITCH, _adafactor),
    "eval_strategy": Row(
        CONVERTED,
        "epoch: as always; steps: --eval_steps; no: --no-load_best_model_at_end",
        convert=_eval_strategy,
        differs="a validation after each epoch; there none",
    ),
    "evaluation_strategy": Row(CONVERTED, "as --eval_strategy", convert=_eval_strategy),
    "eval_steps": Row(CONVERTED, "--eval_steps, if validations go by steps", convert=_eval_steps),
    "save_strategy": Row(
        CONVERTED,
        "--checkpointing_steps",
        convert=_save_strategy,
        differs="no checkpoints; there every 500 steps",
    ),
    "save_steps": Row(CONVERTED, "--checkpointing_steps", convert=_save_steps),
    "save_total_limit": Row(CONVERTED, "--checkpoint_total_limit", convert=_save_limit),
    "load_best_model_at_end": Row(
        CONVERTED, "on or off", _SWITCH, _best_model, differs="on; there off"
    ),
    "metric_for_best_model": Row(
        CONVERTED,
        "without eval_; loss is log_loss; f1 is micro F1 for words and several labels, or macro F1",
        convert=_best_metric,
    ),
    "report_to": Row(CONVERTED, "--report_to with --with_tracking", _LIST, _report_to),
    "resume_from_checkpoint": Row(CONVERTED, "True is latest", convert=_resume),
    "auto_find_batch_size": Row(
        CONVERTED, "--auto_micro_batch", _SWITCH, _if_true("--auto_micro_batch")
    ),
    "activation_checkpointing": Row(
        CONVERTED, "--gradient_checkpointing", _SWITCH, _if_true("--gradient_checkpointing")
    ),
    "no_cuda": Row(CONVERTED, "--use_cpu", _SWITCH, _if_true("--use_cpu")),
    "max_length": _renamed("max_seq_length"),
    "text_column_name": Row(CONVERTED, "--text_column_names", convert=_text_columns),
    "text_column_names": Row(
        CONVERTED,
        "--text_column_names",
        convert=_text_columns,
        differs=DIFFERENT_DEFAULTS["text_column_names"],
    ),
    "eval_file": _renamed("validation_file"),
    "train_val_split": _renamed("validation_fraction"),
    "push_to_hub_model_id": _renamed("hub_model_id"),
    "lr_scheduler": _renamed("lr_scheduler_type"),
    "task_name": Row(CONVERTED, "the data set of GLUE, or --task tokens", convert=_task_name),
    "train_dir": Row(CONVERTED, "--dataset_name", convert=_train_folder),
    "validation_dir": _harmless("with --train_dir, the folder above both is read"),
    "wandb": Row(
        CONVERTED,
        "--report_to wandb --with_tracking",
        _SWITCH,
        _if_true("--report_to", "wandb", "--with_tracking"),
    ),
    # What happens in any case.
    "do_train": _only(_TRUE, "a run always trains. For predictions: ampft predict.", _SWITCH),
    "do_eval": _harmless("a run always validates and tests where it has rows", _SWITCH),
    "do_predict": _harmless("a run always validates and tests where it has rows", _SWITCH),
    "ignore_mismatched_sizes": _harmless("a head of another size is replaced, and said", _SWITCH),
    "use_fast_tokenizer": _harmless("fast where there is one", _SWITCH),
    "average_tokens_across_devices": _only(
        _TRUE, "the gradient is always computed for the whole effective batch.", _SWITCH
    ),
    "fp16_full_eval": _harmless("evaluation has the precision of training", _SWITCH),
    "bf16_full_eval": _harmless("evaluation has the precision of training", _SWITCH),
    "greater_is_better": Row(
        HARMLESS, "each metric knows its direction", _SWITCH, _greater_is_better
    ),
    "pad_to_max_length": _harmless("padding changes no result", _SWITCH),
    "group_by_length": _harmless("each step is sorted by length, with the same gradient", _SWITCH),
    "shuffle_train_dataset": _harmless("each epoch has a new order by --seed", _SWITCH),
    "shuffle_seed": _harmless("each epoch has a new order by --seed", check=_number),
    "train_sampling_strategy": _only(
        ("random", "group_by_length"),
        "each epoch is a random order here, and each step sorted by length.",
    ),
    "length_column_name": _harmless("lengths are counted"),
    "attention_mask": Row(
        HARMLESS, "as the model's feature extractor has it", _SWITCH, _attention_mask
    ),
    "return_entity_level_metrics": _harmless("the report has each entity", _SWITCH),
    "dataloader_drop_last": _only(_FALSE, "every example counts once per epoch here.", _SWITCH),
    "ignore_data_skip": _only(_FALSE, "a continued run repeats no example here.", _SWITCH),
    "prediction_loss_only": _only(_FALSE, "the report needs the predictions.", _SWITCH),
    "logging_dir": _harmless(_LOGGING),
    "logging_steps": _harmless(_LOGGING, check=_number),
    "logging_strategy": _harmless(_LOGGING, check=_one_of("no", "steps", "epoch")),
    **dict.fromkeys(("log_level", "log_level_replica"), _harmless(_LOGGING, check=_LEVELS)),
    **dict.fromkeys(
        (
            "logging_first_step",
            "log_on_each_node",
            "logging_nan_inf_filter",
            "disable_tqdm",
            "skip_memory_metrics",
        ),
        _harmless(_LOGGING, _SWITCH),
    ),
    "include_num_input_tokens_seen": _harmless(_LOGGING, _SWITCH),
    **dict.fromkeys(
        ("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        _harmless("MLflow and W&B get the name of the folder"),
    ),
    "dataloader_prefetch_factor": _harmless(_SAMPLER, check=_number),
    "dataloader_multiprocessing_context": _harmless(_SAMPLER),
    **dict.fromkeys(
        (
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "dataloader_in_order",
            "remove_unused_columns",
        ),
        _harmless(_SAMPLER, _SWITCH),
    ),
    "ddp_backend": _harmless(_DDP),
    **dict.fromkeys(
        ("ddp_bucket_cap_mb", "ddp_timeout", "local_rank"), _harmless(_DDP, check=_number)
    ),
    **dict.fromkeys(
        ("ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph"),
        _harmless(_DDP, _SWITCH),
    ),
    **dict.fromkeys(
        ("eval_accumulation_steps", "torch_empty_cache_steps"),
        _harmless(_EVALUATION, check=_number),
    ),
    **dict.fromkeys(
        (
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "batch_eval_metrics",
            "use_cache",
            "save_on_each_node",
            "save_only_model",
            "restore_callback_states_from_checkpoint",
            "enable_jit_checkpoint",
        ),
        _harmless(_EVALUATION, _SWITCH),
    ),
    "include_for_metrics": _harmless(_EVALUATION, _LIST),
    "hub_strategy": _harmless(
        _PUSH, check=_one_of("end", "every_save", "checkpoint", "all_checkpoints")
    ),
    "hub_revision": _harmless(_PUSH),
    "hub_always_push": _harmless(_PUSH, _SWITCH),
    **dict.fromkeys(
        ("hub_token", "push_to_hub_token", "token", "push_to_hub_organization"), _harmless(_TOKEN)
    ),
    "use_auth_token": Row(HARMLESS, _TOKEN, _SWITCH),
    "overwrite_cache": _harmless(_CACHE, _SWITCH),
    "preprocessing_num_workers": _harmless(_CACHE, check=_number),
    # Of earlier versions.
    **dict.fromkeys(
        ("half_precision_backend", "fp16_backend"),
        _only(("auto", "cuda_amp", "cpu_amp"), "apex is not supported; PyTorch's own is used."),
    ),
    "fp16_opt_level": _only(("o1",), "the levels belong to apex; PyTorch's autocast is like O1."),
    "save_safetensors": _only(_TRUE, "weights are only written as safetensors.", _SWITCH),
    # Of the scripts before transformers 4.
    "evaluate_during_training": _harmless("every epoch is validated", _SWITCH),
    "data_dir": Row(CONVERTED, "--train_file and the others, of words", convert=_data_dir),
    "labels": Row(HARMLESS, "with --data_dir: tags are found in the data", convert=_labels),
    "per_gpu_train_batch_size": _renamed("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _renamed("per_device_eval_batch_size"),
    "use_mps_device": _harmless("a GPU is used if there is one", _SWITCH),
    "include_inputs_for_metrics": _harmless(_EVALUATION, _SWITCH),
    "include_tokens_per_second": _harmless(_LOGGING, _SWITCH),
    "use_ipex": _refused("it is not needed: PyTorch has its operations.", _SWITCH),
    "jit_mode_eval": _refused(_COMPILE, _SWITCH),
    "torchdynamo": _refused(_COMPILE),
    "sharded_ddp": _refused(_SHARD),
    "fsdp_min_num_params": _refused(_SHARD),
    "fsdp_transformer_layer_cls_to_wrap": _refused(_SHARD),
    "tpu_num_cores": _refused("TPUs are not supported."),
    # Of Accelerate's examples.
    "cpu": Row(CONVERTED, "--use_cpu", _SWITCH, _if_true("--use_cpu")),
    "project_dir": _harmless("trackers write into --output_dir"),
    "use_stateful_dataloader": _harmless("a run continues at its next example", _SWITCH),
    "load_best_model": Row(CONVERTED, "as --load_best_model_at_end", _SWITCH, _best_model),
    "saving_steps": _renamed("checkpointing_steps"),
    "validation_split_percentage": Row(
        CONVERTED, "--validation_fraction, divided by 100", convert=_percentage
    ),
    "with_wandb_tracking": Row(
        CONVERTED,
        "--report_to wandb --with_tracking",
        _SWITCH,
        _if_true("--report_to", "wandb", "--with_tracking"),
    ),
    "num_folds": _refused(
        "a run trains one fold, such as --folds 5 --fold 0; `ampft compare --folds 5` trains all."
    ),
    "local_sgd_steps": _refused("every step is the exact one of the whole batch."),
    **dict.fromkeys(
        ("ddp_comm_hook", "ddp_comm_wrapper", "ddp_comm_state_option"),
        _refused("gradients are averaged exactly, without compression."),
    ),
    **dict.fromkeys(
        ("record_shapes", "profile_memory", "with_flops"),
        _refused("a run records its time and memory; for a profile use torch.profiler.", _SWITCH),
    ),
    "output_trace_dir": _refused("a run writes no trace; for a profile use torch.profiler."),
    "use_slow_tokenizer": _refused("tokenizers are fast ones where they exist.", _SWITCH),
    # What does not exist here.
    "loss_scale": _refused("the scale of fp16 follows the gradients by itself."),
    "local_files_only": _refused("set HF_HUB_OFFLINE=1, which forbids downloads.", _SWITCH),
    "label_list": _refused("labels are found in the data; for numbers: --class_names_file."),
    "lr_scheduler_kwargs": _refused("schedules have no further settings here."),
    "optim_args": _refused("optimizers have no further settings here."),
    "optim_target_modules": _refused("adapters are the way to train few weights: --lora_r 8."),
    "activation_checkpointing_kwargs": _refused("--gradient_checkpointing has no settings here."),
    "gradient_checkpointing_kwargs": _refused("--gradient_checkpointing has no settings here."),
    "torch_compile": _refused(_COMPILE, _SWITCH),
    "torch_compile_backend": _refused(_COMPILE),
    "torch_compile_mode": _refused(_COMPILE),
    "use_liger_kernel": _refused(
        "its kernels are for language models; steps without padding are fast already.", _SWITCH
    ),
    "liger_kernel_config": _refused("see --use_liger_kernel."),
    "neftune_noise_alpha": _refused(
        "noise on embeddings is for instruction tuning. For regularisation: --weight_decay or "
        "--ema_decay."
    ),
    "eval_delay": _refused("validations begin with the first epoch; use --eval_steps N."),
    "eval_on_start": _refused(
        "`ampft predict --model FOLDER` shows a model before it is trained.", _SWITCH
    ),
    "full_determinism": Row(CONVERTED, "--deterministic", _SWITCH, _if_true("--deterministic")),
    "accelerator_config": _refused("pass the settings to accelerate launch."),
    "parallelism_config": _refused("models are not split by tensors or sequences here. " + _SHARD),
    "fsdp": _refused(_SHARD),
    "fsdp_config": _refused(_SHARD),
    "deepspeed": _refused("DeepSpeed is not supported: its steps are not proven exact. " + _SHARD),
    "debug": _refused(
        "it debugs TPUs and overflow, or trains on a few rows. For overflow: `ampft doctor`; for "
        "few rows: --max_train_samples 100.",
        _SWITCH,
    ),
    "label_names": _refused(
        "the labels of a data set are found; --label_column_name names the column.", _LIST
    ),
    "do_regression": Row(CONVERTED, "--task regression if true", _SWITCH, _regression),
    "config_name": Row(
        REFUSED, "unless it is the model's: weights and configuration are one", convert=_config_name
    ),
    "tokenizer_name": _renamed("processor_name"),
    "feature_extractor_name": _renamed("processor_name"),
    "image_processor_name": _renamed("processor_name"),
    "model_type": Row(
        REFUSED, "unless there is --model_name_or_path, which has it", convert=_model_type
    ),
    "eval_split_name": _renamed("validation_split_name"),
    "remove_columns": _harmless("columns that are not named are not read"),
    "text_column_delimiter": Row(
        CONVERTED, "joins the columns of --text_column_names, with a space", convert=_delimiter
    ),
    "metric_name": Row(CONVERTED, "--metric, unless the report has it", convert=_metric_name),
    "language": Row(CONVERTED, "of XNLI: --eval_dataset_config_name", convert=_language),
    "train_language": Row(CONVERTED, "of XNLI: --dataset_config_name", convert=_train_language),
    "do_lower_case": Row(
        REFUSED, "unless the model is uncased: its tokenizer decides", _SWITCH, _lower_case
    ),
    "label_all_tokens": _only(_FALSE, "the first token of a word has its label here.", _SWITCH),
    "freeze_feature_encoder": Row(
        CONVERTED,
        "--freeze of the convolutions if true",
        _SWITCH,
        _if_true("--freeze", "*.feature_extractor"),
        differs="trained; there frozen",
    ),
    **dict.fromkeys(
        ("reduce_labels", "do_reduce_labels"),
        Row(CONVERTED, "--ignore_index 0 if true", _SWITCH, _if_true("--ignore_index", "0")),
    ),
}


@dataclass(frozen=True)
class OwnFlags:
    """What is asked of ampft's own parser."""

    switches: Mapping[str, bool]  # Its flags by name, and whether each is a switch.
    # What is wrong with the words of one flag, which may be unknown; None if nothing is.
    problem: Callable[[Sequence[str]], str | None]
    # What is wrong with a command line without such problems; None if nothing is.
    conflict: Callable[[Sequence[str]], str | None]
    # The flag that an unknown one stands for, with the same values.
    meant: Callable[[str], str | None]


def translate(argv: Sequence[str], own: OwnFlags, *, command: Sequence[str] | None) -> Translation:
    """Convert a command line of transformers' scripts into ampft's.

    Args:
        argv: Command line arguments, without the program name.
        command: Words before the flags in the corrected command; None for none.

    Raises:
        InputError: Some flags are unknown, wrong, or cannot be converted. The message lists all.
            If there are several or one of another script, it ends with a corrected command.
    """
    translation, problems = _checked(argv, own)
    if not problems:
        return translation
    lines = list(problems.values())
    is_simple = len(lines) == 1 and lines[0] not in problems  # its own message is advice enough
    if command is not None and not is_simple:
        words, is_whole, is_renamed = _corrected(argv, own)
        conflict = own.conflict(words) if words else None
        if conflict is not None:
            lines += conflict.splitlines()
        elif words:
            without = "Without it" if len(lines) == 1 else "Without them"
            without = "Corrected, without the others" if is_renamed else without
            lines.append(
                f"{'Corrected' if is_whole else without}: {shlex.join([*command, *words])}"
            )
    raise InputError("\n".join(lines))


def _corrected(argv: Sequence[str], own: OwnFlags) -> tuple[list[str], bool, bool]:
    """Return the command line without what is wrong, and unknown flags under what is meant.

    It is empty if it would train on the built-in data.

    Returns:
        The words, whether they replace all that was wrong, and whether a flag was renamed.
    """
    words, is_renamed = list(argv), False
    for old in argv:
        new = _meant(old, own)
        renamed = [new if new and word == old else word for word in words]
        if new and len(_checked(renamed, own)[1]) < len(_checked(words, own)[1]):
            words, is_renamed = renamed, True
    # Other unknown flags go before the rest is converted, which may depend on what is set.
    unknown = [_name(word) for word in words if _FLAG.match(word) and not _is_known(word, own)]
    flags = _by_flag(words)
    words = [word for name, group in flags.items() if name not in unknown for word in group]
    translation, problems = _checked(words, own)
    flags = {k: v for k, v in _by_flag(translation.words).items() if k not in problems}
    is_whole = not unknown and not problems
    if not is_whole and _SOURCES.isdisjoint(flags):
        return [], False, False
    return [word for group in flags.values() for word in group], is_whole, is_renamed


def _checked(argv: Sequence[str], own: OwnFlags) -> tuple[Translation, dict[str, str]]:
    """Return a command line in ampft's flags, and what is wrong with flags by their names."""
    translation, refused = _translate(argv, own.switches)
    found = {name: own.problem(group) for name, group in _by_flag(translation.words).items()}
    wrong = {name: text for name, text in found.items() if text is not None}
    return translation, {text: text for text in refused} | wrong


def _is_known(word: str, own: OwnFlags) -> bool:
    name = _name(word)
    return word.startswith("--") and bool({name, name.removeprefix("no_")} & {*own.switches, *ROWS})


def _meant(word: str, own: OwnFlags) -> str | None:
    """Return an unknown flag under the name that is meant; None for other words."""
    if not word.startswith("--") or _is_known(word, own):
        return None
    new, (_, equals, value) = own.meant(_name(word)), word.partition("=")
    return None if new is None else f"--{new}{equals}{value}"


def _name(flag: str) -> str:
    """Return the name of a flag as a word of a command line."""
    return flag.lstrip("-").partition("=")[0].replace("-", "_")


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """Return a command line by the names of its flags; words before the first have no name."""
    groups: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if _FLAG.match(word):
            name = _name(word.replace("--no-", "--", 1))
        groups.setdefault(name, []).append(word)
    return groups


def split_config_settings(
    settings: Mapping[str, Any], switches: Mapping[str, bool], path: str
) -> tuple[dict[str, Any], list[str]]:
    """Return ampft's settings in a file, and settings of transformers' scripts as words.

    Args:
        switches: Own flags by name, and whether each is a switch.

    Raises:
        InputError: Some settings cannot be converted. The message lists all.
    """
    foreign = {n for n, row in ROWS.items() if row.convert is not None or n not in switches}
    words = _words_of({name: value for name, value in settings.items() if name in foreign})
    context = _words_of(settings)
    translation, problems = _translate(words, switches, _items(context, switches))
    if problems:
        raise InputError("\n".join(f"--config {path}: {problem}" for problem in problems))
    for line in translation.lines:
        print_line(line)
    return {n: v for n, v in settings.items() if n not in foreign}, translation.words


def _translate(
    argv: Sequence[str], switches: Mapping[str, bool], context: Iterable[_Item] = ()
) -> tuple[Translation, list[str]]:
    """Return a command line in ampft's flags, and a sentence for each flag that has no counterpart.

    Args:
        argv: Command line arguments.
        switches: Own flags by name, and whether each is a switch.
        context: Flags that are set too, on which a conversion can depend.
    """
    items = list(_items(argv, switches))
    given = {name: value for name, value, _ in (*context, *items) if name}
    words: list[str] = []
    converted, harmless, problems = [], [], list(_set_twice(items, switches))
    for name, value, typed in items:
        row = ROWS.get(name) if name else None
        is_bare = len(typed) == 1 and "=" not in typed[0]
        if row is not None and row.takes != _SWITCH and row.kind != TAKEN and is_bare:
            problems.append(f"{typed[0]}: the value is missing.")
            continue
        if row is None or row.convert is None:
            if row is not None and row.kind == HARMLESS:
                harmless.append(typed[0])
            else:
                words += _own_words(name, value, typed, switches)
            continue
        try:
            new = row.convert(value, given)
        except _RefusedError as error:
            problems.append(f"{' '.join(typed)}: {error}")
            continue
        words += new
        if row.kind == HARMLESS or not new:
            harmless.append(" ".join(typed))
        elif " ".join(new) != " ".join(typed).replace("=", " ", 1):
            converted.append((" ".join(typed), " ".join(new)))
    return Translation(words, converted, harmless), problems


def _set_twice(items: Sequence[_Item], switches: Mapping[str, bool]) -> Iterator[str]:
    """Yield a sentence for each converted flag with two values; the parser finds own flags."""
    seen: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, value, typed in items:
        if name not in ROWS or ROWS[name].convert is None:
            continue
        key = "eval_strategy" if name == "evaluation_strategy" else name
        first = seen.setdefault(key, (value, typed))
        values = {first[0].lower(), value.lower()}
        if len(values) > 1 and (name not in switches or "none" in values):
            yield f"{' '.join(first[1])} and {' '.join(typed)}: only one can hold. Remove one."


def arguments_of_json(path: str) -> list[str]:
    """Return the settings in a JSON file as words; it is the only argument of such a command.

    Raises:
        InputError: The file is missing, or holds no object.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: the file cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: the file must map flag names to values.")
    return _words_of(content)


def _words_of(settings: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        if isinstance(value, dict | list) and (isinstance(value, dict) or not value):
            words.append(f"--{name}={json.dumps(value)}")
        elif isinstance(value, list):
            words.append(f"--{name}={','.join(map(str, value))}")
        elif value is not None:
            words.append(f"--{name}={value}")
    return words


def settings_of(training_arguments: Any) -> dict[str, Any]:
    """Return what a `TrainingArguments` sets to other values than its defaults, by name.

    Its own constructor fills some fields, such as the device's; these are left out.

    Raises:
        InputError: It is not a `TrainingArguments`.
    """
    kind: Any = type(training_arguments)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else []
    if "per_device_train_batch_size" not in names:
        raise InputError(
            f"training_arguments: received {kind.__name__}; it must be a "
            "TrainingArguments of transformers."
        )
    plain = kind(output_dir=training_arguments.output_dir)
    found = {}
    for name in names:
        value = getattr(training_arguments, name)
        if value is not None and (value != getattr(plain, name) or name == "output_dir"):
            found[name] = value.value if isinstance(value, Enum) else value
    return found


def _items(argv: Sequence[str], switches: Mapping[str, bool]) -> Iterator[_Item]:
    """Yield the name, the value and the words of each flag; other words have no name."""
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if not word.startswith("--"):
            yield "", "", (word,)
            continue
        spelled, equals, value = word[2:].partition("=")
        name = spelled.replace("-", "_")
        if name.startswith("no_") and name not in (*ROWS, *switches) and not equals:
            name = name.removeprefix("no_")  # as --no-padding, or transformers' --no_padding
            if name in (*ROWS, *switches):
                yield name, "false", (word,)
                continue
        row = ROWS.get(name)
        if row is None and name not in switches:
            yield "", "", (word,)
            continue
        takes = row.takes if row is not None and row.convert is not None else None
        if takes is None:
            takes = (
                _SWITCH if switches.get(name, row is not None and row.takes == _SWITCH) else _VALUE
            )
        following = [] if equals else _values(argv[position:], takes)
        position += len(following)
        if not equals:
            value = " ".join(following) if following else "true" if takes == _SWITCH else ""
        yield name, value, (word, *following)


def _values(following: Sequence[str], takes: str) -> list[str]:
    """Return the words after a flag that are its values."""
    if takes in (_SWITCH, _VALUE):  # no other word can follow a switch, because all are flags
        return [each for each in following[:1] if not each.startswith("--")]
    end = next((k for k, each in enumerate(following) if each.startswith("--")), len(following))
    return list(following[:end])


def _own_words(
    name: str, value: str, typed: tuple[str, ...], switches: Mapping[str, bool]
) -> list[str]:
    """Return a flag of ampft as it is parsed: a switch has no value."""
    if typed[0].startswith(("--no-", "--no_")):
        return [f"--no-{name}"] if name in switches else list(typed)
    if not switches.get(name, False) or (len(typed) == 1 and "=" not in typed[0]):
        return [f"--{name}", *typed[1:]] if name and "=" not in typed[0] else list(typed)
    if value.lower() not in (*_TRUE, *_FALSE):
        return list(typed)
    return [f"--{name}" if value.lower() in _TRUE else f"--no-{name}"]
