"""The flags of transformers' scripts and `TrainingArguments`, and what each is in ampft.

One row per field: of `TrainingArguments` (5.23), of the argument classes of run_classification,
run_glue, run_xnli, run_ner, run_image_classification, run_audio_classification and
run_semantic_segmentation, and of the examples without Trainer. A flag that is in no row is a flag
of ampft, or unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ampft.arguments.classify import ADAFACTOR, OPTIMIZERS, SCHEDULES
from ampft.tasks.table import TASKS

Given = Mapping[str, str]  # Values of the flags on the command line, "true" for a bare switch.

TAKEN, CONVERTED, HARMLESS, REFUSED = "taken", "converted", "harmless", "refused"
TRUE, FALSE = ("true", "yes", "1", "y", "t"), ("false", "no", "0", "n", "f")
SWITCH, VALUE, LIST = "switch", "value", "list"
WHOLE, NUMBER = "whole", "number"  # values that are checked although they have no effect
# Schedules of transformers that ampft does not have.
ELSEWHERE = (
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "warmup_stable_decay", "greedy",
)  # fmt: skip
STSB = "stsb"  # whose labels are numbers
GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
OFF = ("", "none", "no", "false", "off", "{}")  # values that turn a flag off
_WORD_TASKS = ("ner", "pos", "chunk")
REPORTED = ("accuracy", "f1", "precision", "recall", "seqeval", "mean_iou")  # by every report
_FILES_OF_FOLDERS = {"train": "train", "validation": "dev", "test": "test"}
# Metrics by the names of scikit-learn's scorers, and by those that notebooks compute.
_OTHER_METRICS = {
    "loss": "log_loss", "f1_macro": "macro_f1", "f1_micro": "micro_f1",
    "f1_weighted": "weighted_f1", "mcc": "matthews", "matthews_correlation": "matthews",
    "matthews_corrcoef": "matthews", "overall_f1": "micro_f1", "auc": "roc_auc", "rmse": "mse",
}  # fmt: skip
_STEPS = 500  # the Trainer's default of --save_steps, --eval_steps and --logging_steps


class RefusedError(Exception):
    """A value that cannot be converted; its text says why, and what does the same here."""


@dataclass(frozen=True)
class Row:
    """What happens to one flag of transformers' scripts."""

    kind: str  # TAKEN, CONVERTED, HARMLESS or REFUSED.
    text: str  # What it does here, or why it cannot.
    takes: str = VALUE  # SWITCH, with or without a value; VALUE; LIST, of one or more values.
    convert: Callable[[str, Given], list[str]] | None = None  # Words of ampft's command line.
    differs: str | None = None  # Both defaults, where they are unequal.


def is_true(value: str) -> bool:
    """Return the value of a switch.

    Raises:
        RefusedError: It is neither true nor false.
    """
    if value.lower() not in (*TRUE, *FALSE):
        raise RefusedError(f"received {value!r}; it must be True or False.")
    return value.lower() in TRUE


def _if_true(words: str) -> Row:
    return Row(
        CONVERTED,
        f"{words} if true",
        SWITCH,
        lambda value, given: words.split() if is_true(value) else [],
    )


def _renamed(name: str) -> Row:
    return Row(CONVERTED, f"--{name}", VALUE, lambda value, given: [f"--{name}", value])


def _without_effect(takes: str, text: str) -> Row:
    """A flag that sets nothing here, and is refused only if no program takes its value.

    Args:
        takes: SWITCH, VALUE, LIST, WHOLE or NUMBER, or the values that are allowed.
    """
    if takes in (VALUE, LIST):
        return Row(HARMLESS, text, takes)
    checks: dict[str, Callable[[str], object]]
    checks = {SWITCH: is_true, WHOLE: _whole, NUMBER: _number}
    check = checks.get(takes) or _one_of(*takes.split())

    def convert(value: str, given: Given) -> list[str]:
        check(value)
        return []

    return Row(HARMLESS, text, SWITCH if takes == SWITCH else VALUE, convert)


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value.lower() not in allowed:
            raise RefusedError(f"received {value!r}; it must be {', '.join(allowed)}.")

    return check


def _only(takes: str, allowed: Sequence[str], text: str, kind: str = HARMLESS) -> Row:
    """A flag whose allowed values say what ampft does anyway, and whose others are refused."""

    def convert(value: str, given: Given) -> list[str]:
        if takes == SWITCH and kind == HARMLESS:
            is_true(value)
        if value.lower() not in allowed:
            raise RefusedError(text)
        return []

    return Row(kind, text, takes, convert)


def _refused(takes: str, text: str) -> Row:
    """A flag without counterpart; a value that turns it off is accepted."""
    if takes == NUMBER:
        return _only(VALUE, (*OFF, "0", "0.0"), text, REFUSED)
    return _only(takes, OFF, text, REFUSED)


def _precision(mode: str) -> Row:
    def convert(value: str, given: Given) -> list[str]:
        if not is_true(value):
            return []
        if given.get("mixed_precision") == "no":
            raise RefusedError("--mixed_precision no is set too. Keep one of them.")
        halves = [name for name in given if name in ("fp16", "bf16") and is_true(given[name])]
        others = [name for name in halves if name != mode]
        if others and mode != "tf32" and halves[0] != mode:  # said once, of the later flag
            raise RefusedError(f"--{others[0]} is set too. Keep one of them.")
        explicit = given.get("mixed_precision")
        if explicit not in (None, "no", mode) and mode != "tf32":
            raise RefusedError(f"--mixed_precision {explicit} is set too. Keep one of them.")
        if mode == "tf32" and (others or explicit is not None):
            return []  # the products are computed in 16 bits
        return ["--mixed_precision", mode] if explicit is None else []

    return Row(CONVERTED, f"--mixed_precision {mode} if true", SWITCH, convert)


def _epochs(value: str, given: Given) -> list[str]:
    number = _number(value)
    if number != int(number):
        raise RefusedError(
            f"received {value}; epochs are whole here. Set --max_train_steps to stop earlier."
        )
    return ["--num_train_epochs", str(int(number))]


def _number(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise RefusedError(f"received {value!r}; it must be a number.") from None
    if not abs(number) < float("inf"):
        raise RefusedError(f"received {value!r}; it must be finite.")
    return number


def _whole(value: str) -> int:
    number = _number(value)
    if number != int(number):
        raise RefusedError(f"received {value}; it must be a whole number.")
    return int(number)


def _warmup(value: str, given: Given) -> list[str]:
    number = _number(value)
    others = [name for name in ("warmup_ratio", "num_warmup_steps") if name in given]
    if others and number:
        raise RefusedError(f"--{others[0]} is set too. Keep one of them.")
    if number < 1:
        return [] if others else ["--warmup_ratio", value]
    if number != int(number):
        raise RefusedError(f"received {value}; it must be a whole number, or a share below 1.")
    return ["--num_warmup_steps", str(int(number))]


def _max_steps(value: str, given: Given) -> list[str]:
    return ["--max_train_steps", value] if _number(value) > 0 else []


def _eval_strategy(value: str, given: Given) -> list[str]:
    chosen = value.lower()
    if chosen == "no":
        if is_true(given.get("load_best_model_at_end", "no")):
            raise RefusedError("--load_best_model_at_end needs validations. Remove one of them.")
        return ["--no-load_best_model_at_end"]
    if chosen not in ("steps", "epoch"):
        raise RefusedError(f"received {value!r}; it must be no, steps or epoch.")
    if chosen == "epoch" or "eval_steps" in given:
        return []
    return _eval_steps(given.get("logging_steps", str(_STEPS)), {})


def _eval_steps(value: str, given: Given) -> list[str]:
    strategy = given.get("eval_strategy", given.get("evaluation_strategy", "steps")).lower()
    number = _number(value)
    if strategy != "steps":
        return []
    if number != int(number):
        raise RefusedError(f"received {value}; it must be a whole number of steps here.")
    return ["--eval_steps", str(int(number))]


def _save_strategy(value: str, given: Given) -> list[str]:
    chosen = value.lower()
    if chosen == "epoch":
        return ["--checkpointing_steps", "epoch"]
    if chosen == "steps":
        return [] if "save_steps" in given else ["--checkpointing_steps", str(_STEPS)]
    if chosen in ("no", "best"):
        return []  # the best weights are kept in any case
    raise RefusedError(f"received {value!r}; it must be no, steps, epoch or best.")


def _save_steps(value: str, given: Given) -> list[str]:
    if given.get("save_strategy", "steps").lower() != "steps":
        return []
    number = _number(value)
    if number < 0:
        return []
    if number != int(number) or number == 0:
        raise RefusedError(f"received {value}; it must be a whole number of steps here.")
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
    if value in OPTIMIZERS:
        return ["--optim", value]
    if value in ("paged_adamw_8bit", "paged_adamw_32bit", "paged_adamw"):
        other = "adamw_8bit" if value.endswith("8bit") else "adamw_torch"
        raise RefusedError(
            "states are not paged to the CPU's memory, which a run that must continue bit for bit "
            f"would have to copy. Use --optim {other}."
        )
    raise RefusedError(
        f"received {value!r}; here are {', '.join(OPTIMIZERS)}. With less "
        "memory for the optimizer: --optim adamw_8bit or adafactor, or LoRA with --lora_r 8."
    )


def _adafactor(value: str, given: Given) -> list[str]:
    if not is_true(value):
        return []
    if given.get("optim", ADAFACTOR) != ADAFACTOR:
        raise RefusedError(f"--optim {given['optim']} is set too. Keep one of them.")
    return [] if "optim" in given else ["--optim", ADAFACTOR]


def _best_metric(value: str, given: Given) -> list[str]:
    name = value.removeprefix("eval_")
    return ["--metric_for_best_model", _OTHER_METRICS.get(name, name)]


def _report_to(value: str, given: Given) -> list[str]:
    if value.lower() == "none":
        return []
    on = [] if "with_tracking" in given else ["--with_tracking"]
    return ["--report_to", value.replace(" ", ","), *on]


def _best_model(value: str, given: Given) -> list[str]:
    if is_true(value):
        return ["--load_best_model_at_end"]
    chosen = [given.get(name, "no").lower() for name in ("eval_strategy", "evaluation_strategy")]
    if {"steps", "epoch"} & {*chosen} or given.get("save_strategy", "").lower() == "best":
        raise RefusedError(
            "a run with validations keeps the last weights unless earlier ones are better by more "
            "than chance. Remove the flag."
        )
    return ["--no-load_best_model_at_end"]


def _resume(value: str, given: Given) -> list[str]:
    if value.lower() in FALSE:
        return []
    return ["--resume_from_checkpoint", "latest" if value.lower() in TRUE else value]


def _evaluate_only(value: str, given: Given) -> list[str]:
    """Convert `--do_eval` and `--do_predict`, with which scripts train nothing by themselves."""
    if not is_true(value) or is_true(given.get("do_train", "no")):
        return []
    uses = {"do_eval": "validation", "do_predict": "test"}
    splits = [split for name, split in uses.items() if is_true(given.get(name, "no"))]
    return ["--evaluate_only", ",".join(splits)]


def _do_train(value: str, given: Given) -> list[str]:
    if is_true(value):
        if "evaluate_only" in given:
            raise RefusedError("--evaluate_only is set too. Keep one of them.")
    elif not any(is_true(given.get(n, "no")) for n in ("do_eval", "do_predict", "evaluate_only")):
        raise RefusedError("nothing is left to do. Add --do_eval or --do_predict, or remove it.")
    return []


def _task_name(value: str, given: Given) -> list[str]:
    name = value.lower().replace("-", "")  # older scripts have SST-2
    if name in GLUE:
        numbers = ["--task", "regression"] if name == STSB else []
        if numbers and "train_file" in given:
            return numbers  # the user's files, where run_glue reads GLUE's; that is printed
        if "dataset_name" in given or "train_file" in given:
            source = "dataset_name" if "dataset_name" in given else "train_file"
            raise RefusedError(f"--{source} names other data. Remove one of them.")
        return ["--dataset_name", "nyu-mll/glue", "--dataset_config_name", name, *numbers]
    if name in _WORD_TASKS:
        words = ["--task", "tokens"]
        if "dataset_name" in given and "label_column_name" not in given:
            words += ["--label_column_name", f"{name}_tags"]
        return words
    if value in TASKS:
        raise RefusedError(f"this is --task {value} here.")
    sources = [name for name in ("dataset_name", "train_file", "train_dir") if name in given]
    instead = f"a data set of the hub is --dataset_name {value}, and your own --train_file FILE"
    if sources:
        instead = f"--{sources[0]} names the data already: remove the flag"
    raise RefusedError(
        f"received {value!r}, and the flag names a task of GLUE ({', '.join(GLUE)}) or a kind of "
        f"tags ({', '.join(_WORD_TASKS)}). For other data, {instead}. Tags of words in a column "
        "are --task tokens --label_column_name COLUMN."
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
            raise RefusedError(
                "name its files with --train_file, --validation_file and --test_file; a folder of "
                "images or sounds with --dataset_name."
            )
        return ["--dataset_name", value]
    words = [(f"--{use}_file", str(file)) for use, file in files.items() if file.is_file()]
    return ["--task", "tokens", *chain.from_iterable(words)]


def _labels(value: str, given: Given) -> list[str]:
    if "data_dir" not in given:
        raise RefusedError("use --label_column_name for the column of the labels.")
    return []


def _text_columns(value: str, given: Given) -> list[str]:
    """Convert `a,b,c` of run_classification, which joins columns; `a,b` alone is a pair here.

    With a plus, as in `a+b,c`, it is written for ampft.
    """
    if "+" not in value and ("text_column_delimiter" in given or value.count(",") > 1):
        value = "+".join(part.strip() for part in value.split(","))
    return ["--text_column_names", value]


def _config_name(value: str, given: Given) -> list[str]:
    if value == given.get("model_name_or_path"):
        return []
    raise RefusedError(
        "weights and configuration are one. Copy the model's folder, change its config.json, and "
        "pass it with --model_name_or_path."
    )


def _model_type(value: str, given: Given) -> list[str]:
    if "model_name_or_path" in given:
        return []
    raise RefusedError(
        "save a model with random weights to a folder, and pass the folder with "
        "--model_name_or_path."
    )


def _lower_case(value: str, given: Given) -> list[str]:
    if is_true(value) and "uncased" not in given.get("model_name_or_path", ""):
        raise RefusedError("the tokenizer of the model decides.")
    return []


def _metric_name(value: str, given: Given) -> list[str]:
    return [] if value in REPORTED else ["--metric", value]


def _train_language(value: str, given: Given) -> list[str]:
    if "language" not in given:
        raise RefusedError("it needs --language, the language of the test. Add it.")
    return []


def _language(value: str, given: Given) -> list[str]:
    for other in ("dataset_name", "train_file", "task_name"):
        if other in given:
            raise RefusedError(f"it is for XNLI, and --{other} names other data. Remove one.")
    train = given.get("train_language", value)
    words = ["--dataset_name", "facebook/xnli", "--dataset_config_name", train]
    return words if train == value else [*words, "--eval_dataset_config_name", value]


def _held_out(value: str, given: Given) -> list[str]:
    """Convert a share of the training rows, which scripts hold out if nothing else is given."""
    if not given.keys().isdisjoint(("validation_file", "validation_dir", "eval_file")):
        return []
    return ["--validation_fraction", value]


def _percentage(value: str, given: Given) -> list[str]:
    return _held_out(f"{_number(value) / 100:g}", given)


def _train_folder(value: str, given: Given) -> list[str]:
    if "dataset_name" in given:
        raise RefusedError("--dataset_name names other data. Remove one of them.")
    validation = given.get("validation_dir")
    if validation is None:
        return ["--dataset_name", value]
    train, other = Path(value), Path(validation)
    if train.parent != other.parent or train.name not in ("train", "training"):
        raise RefusedError(
            "one folder holds all splits here: put them beside each other as train and validation, "
            "and pass the folder above with --dataset_name."
        )
    return ["--dataset_name", str(train.parent)]


def _greater_is_better(value: str, given: Given) -> list[str]:
    from ampft.tasks.table import problem_types

    metric, is_greater = given.get("metric_for_best_model", ""), is_true(value)
    tables = [problem.metrics.values() for problem in problem_types().values()]
    known = {each.name: each.higher_is_better for each in chain.from_iterable(tables)}
    name = metric.removeprefix("eval_")
    if known.get(_OTHER_METRICS.get(name, name), is_greater) != is_greater:
        raise RefusedError(f"{metric} has the other direction. Remove the flag.")
    return []


def _hub_revision(value: str, given: Given) -> list[str]:
    if is_pushed(given) and value.lower() not in (*OFF, "main"):
        raise RefusedError(
            "the model is pushed to the main branch. Remove the flag, and make a branch on the hub."
        )
    return []


def _organization(value: str, given: Given) -> list[str]:
    if is_pushed(given) and value.lower() not in OFF:
        name = given.get("push_to_hub_model_id") or "NAME"
        raise RefusedError(f"use --hub_model_id {value}/{name}.")
    return []


def is_pushed(given: Given) -> bool:
    """Return whether the model goes to the hub."""
    return is_true(given.get("push_to_hub", "no"))


def _validation_folder(value: str, given: Given) -> list[str]:
    if "train_dir" not in given:
        raise RefusedError("it needs --train_dir, beside it in one folder. Add it.")
    return []


def _schedule(value: str, given: Given) -> list[str]:
    if value in ELSEWHERE:
        raise RefusedError(f"this schedule is not supported. Choose from {', '.join(SCHEDULES)}.")
    return ["--lr_scheduler_type", value]


_LEVELS = "passive detail debug info warning error critical notset"
_BACKENDS = "nccl gloo mpi ccl xccl hccl cncl mccl"
_LOGGING = "history.jsonl has every step, and the terminal a line per epoch"
_SAMPLER = "batches are collated by a thread; --dataloader_num_workers adds processes"
_DDP = "Accelerate's own settings of DDP are used"
_PUSH = "the model is pushed once, at the end"
_TOKEN = "the token comes from `hf auth login` or HF_TOKEN, so that it stands in no record"
_EVALUATION = "logits are reduced on the device, and a split is never held in memory"
_CACHE = "tokens are not cached on disk"
_COMPILE = "Use `accelerate launch --dynamo_backend inductor`."
_ORDER = "each epoch has a new order by --seed"
_AUTOCAST = "apex is not supported; PyTorch's own is used."
_EXACT = "gradients are averaged exactly, without compression."
_PROFILE = "a run records its time and memory; for a profile use torch.profiler."
_SHARD = "Use `accelerate launch --config_file accelerate_configs/fsdp2.yaml`."

# The fields of TrainingArguments that have the same name and meaning here.
SAME = (
    "output_dir", "per_device_train_batch_size", "learning_rate", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "gradient_accumulation_steps",
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
# Flags of the same meaning whose defaults, or what follows from them, differ.
DIFFERENCES = {
    "learning_rate": "1e-4 up to a hidden size of 512, ten times as much for a head or LoRA; there "
    "5e-5",
    "per_device_eval_batch_size": "64; there 8",
    "data_seed": "seeds splits and subsamples here; there the order of the examples, which follows "
    "--seed here",
    **dict.fromkeys(
        ("max_train_samples", "max_eval_samples", "max_predict_samples"),
        "drawn at random here; there the first ones for texts and words",
    ),
    "validation_file": "without one, a tenth of the training rows is held out, and a fifth for the "
    "test if there is no test file; there refused for texts and words, and 15 % held out for "
    "images. Nothing is held out if nothing is trained",
    "test_file": "rows without labels are left out, for ampft predict; there predicted",
    "output_dir": "a new folder under runs/; there required or trainer_output",
    "overwrite_output_dir": "a folder with other files is refused without it; there written into",
    "text_column_names": "a,b is a pair of texts, and a+b joins columns; there a,b joins columns",
    "max_length_seconds": "whole sounds; there 20 s, cut at random",
    "max_seq_length": "128, and windows for longer texts of words; there 128, and for words the "
    "model's maximum",
    "image_column_name": "--augment resized_crop,flip changes images at random; there always",
    "model_name_or_path": "for images, a small model from random weights; there a pretrained ViT",
    "num_train_epochs": "3, and for texts and words as many as make 250 steps, at most 16; there 3",
    "optim": "the learning rate of adafactor is relative to the weights here, absolute there",
    "eval_strategy": "a validation after each epoch; there none",
    "save_strategy": "no checkpoints; there every 500 steps",
    "load_best_model_at_end": "on; there off",
    "do_train": "without any of --do_train, --do_eval and --do_predict a run trains; there nothing "
    "happens",
    "do_eval": "a training always ends with its report; there only with the flag",
    "do_predict": "a training always predicts the test rows; there only with the flag",
    "ignore_mismatched_sizes": "a head for other labels is replaced, and said; there an error "
    "without it",
    "freeze_feature_encoder": "trained; there frozen",
}
# Flags by their names here.
RENAMED = {
    "max_length": "max_seq_length",
    "eval_file": "validation_file",
    "push_to_hub_model_id": "hub_model_id",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "saving_steps": "checkpointing_steps",
    "tokenizer_name": "processor_name",
    "feature_extractor_name": "processor_name",
    "image_processor_name": "processor_name",
    "eval_split_name": "validation_split_name",
}
# Switches, and what they turn on.
SWITCHES = {
    "auto_find_batch_size": "--auto_micro_batch",
    "activation_checkpointing": "--gradient_checkpointing",
    "no_cuda": "--use_cpu",
    "cpu": "--use_cpu",
    "wandb": "--report_to wandb --with_tracking",
    "with_wandb_tracking": "--report_to wandb --with_tracking",
    "full_determinism": "--deterministic",
    "do_regression": "--task regression",
    "freeze_feature_encoder": "--freeze *.feature_extractor",
    "reduce_labels": "--ignore_index 0",
    "do_reduce_labels": "--ignore_index 0",
}
# Flags whose value decides what they are here.
BY_VALUE = {
    "fp16": _precision("fp16"),
    "bf16": _precision("bf16"),
    "tf32": _precision("tf32"),
    "num_train_epochs": Row(CONVERTED, "whole epochs", VALUE, _epochs),
    "max_steps": Row(CONVERTED, "--max_train_steps if above 0", VALUE, _max_steps),
    "warmup_steps": Row(CONVERTED, "--num_warmup_steps, or --warmup_ratio below 1", VALUE, _warmup),
    "optim": Row(
        CONVERTED,
        "; ".join(
            (
                "AdamW in each spelling and in 8 bits",
                *(name for name in OPTIMIZERS if not name.startswith("adamw")),
            )
        ),
        VALUE,
        _optimizer,
    ),
    "adafactor": Row(CONVERTED, "--optim adafactor if true", SWITCH, _adafactor),
    "eval_strategy": Row(
        CONVERTED,
        "epoch: as always; steps: --eval_steps; no: --no-load_best_model_at_end",
        VALUE,
        _eval_strategy,
    ),
    "evaluation_strategy": Row(CONVERTED, "as --eval_strategy", VALUE, _eval_strategy),
    "eval_steps": Row(CONVERTED, "--eval_steps, if validations go by steps", VALUE, _eval_steps),
    "save_strategy": Row(CONVERTED, "--checkpointing_steps", VALUE, _save_strategy),
    "save_steps": Row(CONVERTED, "--checkpointing_steps", VALUE, _save_steps),
    "save_total_limit": Row(CONVERTED, "--checkpoint_total_limit", VALUE, _save_limit),
    "load_best_model_at_end": Row(CONVERTED, "on or off", SWITCH, _best_model),
    "load_best_model": Row(CONVERTED, "as --load_best_model_at_end", SWITCH, _best_model),
    "metric_for_best_model": Row(
        CONVERTED,
        "without eval_; loss is log_loss; f1 is micro F1 for words and several labels, or macro F1",
        VALUE,
        _best_metric,
    ),
    "greater_is_better": Row(
        HARMLESS, "each metric knows its direction", SWITCH, _greater_is_better
    ),
    "report_to": Row(CONVERTED, "--report_to with --with_tracking", LIST, _report_to),
    "resume_from_checkpoint": Row(CONVERTED, "True is latest", VALUE, _resume),
    "text_column_name": Row(CONVERTED, "--text_column_names", VALUE, _text_columns),
    "text_column_names": Row(CONVERTED, "--text_column_names", VALUE, _text_columns),
    "train_val_split": Row(
        CONVERTED,
        "--validation_fraction, unless there is a file or folder of validation data; a validation "
        "split of the data wins, and that is said",
        VALUE,
        _held_out,
    ),
    "validation_split_percentage": Row(
        CONVERTED, "--validation_fraction, divided by 100", VALUE, _percentage
    ),
    **dict.fromkeys(
        ("lr_scheduler", "lr_scheduler_type"),
        Row(CONVERTED, "--lr_scheduler_type, unless it is not here", VALUE, _schedule),
    ),
    "task_name": Row(CONVERTED, "the data set of GLUE, or --task tokens", VALUE, _task_name),
    "train_dir": Row(CONVERTED, "--dataset_name", VALUE, _train_folder),
    "validation_dir": Row(
        HARMLESS, "with --train_dir, the folder above both is read", VALUE, _validation_folder
    ),
    "do_train": Row(
        HARMLESS, "trains; --do_eval or --do_predict without it train nothing", SWITCH, _do_train
    ),
    "do_eval": Row(
        CONVERTED, "--evaluate_only validation, unless there is --do_train", SWITCH, _evaluate_only
    ),
    "do_predict": Row(
        CONVERTED, "--evaluate_only test, unless there is --do_train", SWITCH, _evaluate_only
    ),
    "hub_revision": Row(
        REFUSED, "with --push_to_hub: the model is pushed to the main branch", VALUE, _hub_revision
    ),
    "push_to_hub_organization": Row(
        REFUSED, "with --push_to_hub: use --hub_model_id ORGANIZATION/NAME", VALUE, _organization
    ),
    "data_dir": Row(CONVERTED, "--train_file and the others, of words", VALUE, _data_dir),
    "labels": Row(HARMLESS, "with --data_dir: tags are found in the data", VALUE, _labels),
    "config_name": Row(
        REFUSED, "unless it is the model's: weights and configuration are one", VALUE, _config_name
    ),
    "model_type": Row(
        REFUSED, "unless there is --model_name_or_path, which has it", VALUE, _model_type
    ),
    "do_lower_case": Row(
        REFUSED, "unless the model is uncased: its tokenizer decides", SWITCH, _lower_case
    ),
    "text_column_delimiter": Row(
        TAKEN, "--text_column_delimiter; it also joins the columns of --text_column_names"
    ),
    "metric_name": Row(CONVERTED, "--metric, unless the report has it", VALUE, _metric_name),
    "language": Row(CONVERTED, "of XNLI: --eval_dataset_config_name", VALUE, _language),
    "train_language": Row(CONVERTED, "of XNLI: --dataset_config_name", VALUE, _train_language),
    "include_num_input_tokens_seen": Row(
        HARMLESS,
        _LOGGING,
        SWITCH,
        _without_effect(" ".join((*TRUE, *FALSE, "all", "non_padding")), _LOGGING).convert,
    ),
    **dict.fromkeys(
        ("hub_token", "push_to_hub_token", "token", "use_auth_token"),
        Row(HARMLESS, _TOKEN, SWITCH),  # True is the token of `hf auth login`
    ),
}
# Flags without an effect, by what they take, and what happens in any case.
WITHOUT_EFFECT = (
    ("ignore_mismatched_sizes", SWITCH, "a head of another size is replaced, and said"),
    ("fp16_full_eval bf16_full_eval", SWITCH, "evaluation has the precision of training"),
    ("pad_to_max_length", SWITCH, "padding changes no result"),
    ("group_by_length", SWITCH, "each step is sorted by length, with the same gradient"),
    ("shuffle_train_dataset", SWITCH, _ORDER),
    ("shuffle_seed", WHOLE, _ORDER),
    ("length_column_name", VALUE, "lengths are counted"),
    ("attention_mask", SWITCH, "as the model's feature extractor has it"),
    ("return_entity_level_metrics", SWITCH, "the report has each entity"),
    ("logging_dir", VALUE, _LOGGING),
    ("logging_steps", NUMBER, _LOGGING),
    ("logging_strategy", "no steps epoch", _LOGGING),
    ("log_level log_level_replica", _LEVELS, _LOGGING),
    ("logging_first_step log_on_each_node logging_nan_inf_filter disable_tqdm", SWITCH, _LOGGING),
    ("skip_memory_metrics include_tokens_per_second", SWITCH, _LOGGING),
    (
        "run_name project trackio_space_id trackio_bucket_id trackio_static_space_id",
        VALUE,
        "MLflow and W&B get the name of the folder",
    ),
    ("dataloader_prefetch_factor", WHOLE, _SAMPLER),
    ("dataloader_multiprocessing_context", "fork forkserver spawn", _SAMPLER),
    ("dataloader_pin_memory dataloader_persistent_workers", SWITCH, _SAMPLER),
    ("dataloader_in_order remove_unused_columns", SWITCH, _SAMPLER),
    ("ddp_backend", _BACKENDS, _DDP),
    ("ddp_bucket_cap_mb ddp_timeout local_rank", WHOLE, _DDP),
    ("ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph", SWITCH, _DDP),
    ("eval_accumulation_steps torch_empty_cache_steps", WHOLE, _EVALUATION),
    ("eval_do_concat_batches eval_use_gather_object batch_eval_metrics", SWITCH, _EVALUATION),
    ("include_inputs_for_metrics", SWITCH, _EVALUATION),
    ("include_for_metrics", LIST, _EVALUATION),
    ("use_cache", SWITCH, "a classifier has no cache of keys and values"),
    (
        "save_on_each_node save_only_model restore_callback_states_from_checkpoint",
        SWITCH,
        "a checkpoint holds all that its continuation needs",
    ),
    ("enable_jit_checkpoint", SWITCH, "SIGTERM always writes a checkpoint"),
    ("hub_strategy", "end every_save checkpoint all_checkpoints", _PUSH),
    ("hub_always_push", SWITCH, _PUSH),
    ("overwrite_cache", SWITCH, _CACHE),
    ("preprocessing_num_workers", WHOLE, _CACHE),
    ("evaluate_during_training", SWITCH, "every epoch is validated"),
    ("use_mps_device", SWITCH, "a GPU is used if there is one"),
    ("project_dir", VALUE, "trackers write into --output_dir"),
    ("use_stateful_dataloader", SWITCH, "a run continues at its next example"),
    ("remove_columns", VALUE, "columns that are not named are not read"),
)
# Flags that may only say what happens in any case.
ONE_WAY = (
    ("use_fast_tokenizer", SWITCH, TRUE, "tokenizers are fast ones where they exist."),
    (
        "average_tokens_across_devices",
        SWITCH,
        TRUE,
        "the gradient is always computed for the whole effective batch.",
    ),
    (
        "train_sampling_strategy",
        VALUE,
        ("random", "group_by_length"),
        "each epoch is a random order here, and each step sorted by length.",
    ),
    ("dataloader_drop_last", SWITCH, FALSE, "every example counts once per epoch here."),
    ("ignore_data_skip", SWITCH, FALSE, "a continued run repeats no example here."),
    ("prediction_loss_only", SWITCH, FALSE, "the report needs the predictions."),
    ("half_precision_backend", VALUE, ("auto", "cuda_amp", "cpu_amp"), _AUTOCAST),
    ("fp16_backend", VALUE, ("auto", "cuda_amp", "cpu_amp"), _AUTOCAST),
    ("fp16_opt_level", VALUE, ("o1",), "the levels belong to apex; PyTorch's autocast is like O1."),
    ("save_safetensors", SWITCH, TRUE, "weights are only written as safetensors."),
    ("label_all_tokens", SWITCH, FALSE, "the first token of a word has its label here."),
)
# Flags that do not exist here, and what does the same. NUMBER is also off as 0.
UNSUPPORTED = (
    ("use_ipex", SWITCH, "it is not needed: PyTorch has its operations."),
    ("jit_mode_eval torch_compile", SWITCH, _COMPILE),
    ("torchdynamo torch_compile_backend torch_compile_mode", VALUE, _COMPILE),
    ("sharded_ddp fsdp fsdp_config fsdp_min_num_params", VALUE, _SHARD),
    ("fsdp_transformer_layer_cls_to_wrap", VALUE, _SHARD),
    ("tpu_num_cores", VALUE, "TPUs are not supported."),
    (
        "num_folds",
        VALUE,
        "a run trains one fold, such as --folds 5 --fold 1; `ampft compare --folds 5` trains all.",
    ),
    ("local_sgd_steps", VALUE, "every step is the exact one of the whole batch."),
    ("ddp_comm_hook ddp_comm_wrapper ddp_comm_state_option", VALUE, _EXACT),
    ("record_shapes profile_memory with_flops", SWITCH, _PROFILE),
    ("output_trace_dir", VALUE, "a run writes no trace; for a profile use torch.profiler."),
    ("use_slow_tokenizer", SWITCH, "tokenizers are fast ones where they exist."),
    ("loss_scale", VALUE, "the scale of fp16 follows the gradients by itself."),
    ("local_files_only", SWITCH, "set HF_HUB_OFFLINE=1, which forbids downloads."),
    ("label_list", VALUE, "labels are found in the data; for numbers: --class_names_file."),
    ("lr_scheduler_kwargs", VALUE, "schedules have no further settings here."),
    ("optim_args", VALUE, "optimizers have no further settings here."),
    ("optim_target_modules", VALUE, "adapters are the way to train few weights: --lora_r 8."),
    (
        "activation_checkpointing_kwargs gradient_checkpointing_kwargs",
        VALUE,
        "--gradient_checkpointing has no settings here.",
    ),
    (
        "use_liger_kernel",
        SWITCH,
        "its kernels are for language models; steps without padding are fast already.",
    ),
    ("liger_kernel_config", VALUE, "see --use_liger_kernel."),
    (
        "neftune_noise_alpha",
        NUMBER,
        "noise on embeddings is for instruction tuning. For regularisation: --weight_decay or "
        "--ema_decay.",
    ),
    ("eval_delay", NUMBER, "validations begin with the first epoch; use --eval_steps N."),
    ("eval_on_start", SWITCH, "`ampft predict --model FOLDER` shows a model before it is trained."),
    ("accelerator_config", VALUE, "pass the settings to accelerate launch."),
    ("parallelism_config", VALUE, f"models are not split by tensors or sequences here. {_SHARD}"),
    ("deepspeed", VALUE, f"DeepSpeed is not supported: its steps are not proven exact. {_SHARD}"),
    (
        "debug",
        SWITCH,
        "it debugs TPUs and overflow, or trains on a few rows. For overflow: `ampft doctor`; for "
        "few rows: --max_train_samples 100.",
    ),
    (
        "label_names",
        LIST,
        "the labels of a data set are found; --label_column_name names the column.",
    ),
)


def _rows() -> dict[str, Row]:
    rows = {name: Row(TAKEN, f"--{name}") for name in SAME}
    rows |= {name: _renamed(new) for name, new in RENAMED.items()}
    rows |= {name: _if_true(words) for name, words in SWITCHES.items()}
    rows |= BY_VALUE
    for names, takes, text in WITHOUT_EFFECT:
        rows |= dict.fromkeys(names.split(), _without_effect(takes, text))
    rows |= {name: _only(takes, allowed, text) for name, takes, allowed, text in ONE_WAY}
    for names, takes, text in UNSUPPORTED:
        rows |= dict.fromkeys(names.split(), _refused(takes, text))
    return {name: replace(row, differs=DIFFERENCES.get(name)) for name, row in rows.items()}


ROWS = _rows()
