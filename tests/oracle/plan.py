"""Which values every flag takes, who judges it, and how pairs of values are covered."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from oracle import loops, media
from oracle.cases import Case
from oracle.compared import TASKS as COMPARED
from oracle.decide import DOORS
from oracle.draw import CLASSES as CLASSES_OF_DRAWN
from oracle.draw import FAMILIES, MEDIA, TRAITS, Drawn
from oracle.read import LIMITS, is_missing, kept_rows, label_of, lacks, named_rows, overlaps
from oracle.relations import RELATIONS
from oracle.train import batches_of

TEXTS = ("text", "pairs", "multi-label", "columns", "regression", "ordinal")
ALL = (*TEXTS, "tokens")
CLASSES = ("text", "pairs", "ordinal")
ONE_LABEL = ("text", "pairs")
TASKS = (
    "text",
    "text",
    "text",
    "pairs",
    "multi-label",
    "regression",
    "ordinal",
    "columns",
    "tokens",
    "loop",
    "images",
    "sounds",
)

# Who judges a flag. An answer of these oracles depends on it:
TRAIN, READ, DECIDE, REPORT = "train", "read", "decide", "report"
FILES = "files"  # It adds something to the run that `effects` looks for, and changes no answer.
NOTHING = "nothing"  # The documentation says that it changes no answer.
REASON = "reason"  # It is not drawn, because of what `why` says.


@dataclass(frozen=True)
class Flag:
    """How a flag of the product is covered."""

    by: str  # Who judges it.
    values: tuple[Any, ...] = ()  # Values that are drawn, besides none.
    tasks: tuple[str, ...] = TEXTS  # Tasks that take it.
    why: str = ""  # Why it is not drawn.


def _not(why: str) -> Flag:
    return Flag(REASON, why=why)


_HUB = "needs the hub; tests/test_hub.py has a stand-in"
_GPU = "has an effect on GPUs only"
_MEDIA = "draws at random, or is of masks, which are not drawn; tests/media"
_SPLITS = "chooses rows at random, and no file says which; tests/data/test_data_splits.py"
_NAMES = "says where the data are, as every case does"

FLAGS: dict[str, Flag] = {
    "cache_dir": _not(_HUB), "model_revision": _not(_HUB), "trust_remote_code": _not(_HUB),
    "dataset_revision": _not(_HUB), "push_to_hub": _not(_HUB), "hub_model_id": _not(_HUB),
    "hub_private_repo": _not(_HUB), "dataset_config_name": _not(_HUB),
    "eval_dataset_config_name": _not(_HUB), "cuda_graphs": _not(_GPU), "fsdp_gathers": _not(_GPU),
    "augment": _not(_MEDIA), "max_length_seconds": _not(_MEDIA), "image_size": _not(_MEDIA),
    "multi_scale": _not(_MEDIA), "ignore_index": _not(_MEDIA),
    "image_column_name": _not(_NAMES), "audio_column_name": _not(_NAMES),
    "class_names_file": _not(_MEDIA),
    "leave_out_test": _not(_SPLITS), "remove_splits": _not(_SPLITS),
    "train_split_name": _not(_NAMES), "validation_split_name": _not(_NAMES),
    "test_split_name": _not(_NAMES), "model_name_or_path": _not(_NAMES),
    "dataset_name": _not(_NAMES), "train_file": _not(_NAMES), "validation_file": _not(_NAMES),
    "test_file": _not(_NAMES), "text_column_names": _not(_NAMES),
    "label_column_name": _not(_NAMES), "task": _not(_NAMES), "output_dir": _not(_NAMES),
    "processor_name": _not("names the tokenizer in the folder of the model"),
    "text_units": _not("is of files of words that the predictions divide; tests/words"),
    "pooling": _not("adds a layer; tests/models/test_mean_pooling.py"),
    "head_init": _not("begins at a regression; tests/evaluation/test_probe.py"),
    "probe_scale": _not("as head_init; tests/models/test_mean_pooling.py"),
    "lora_dropout": _not("draws at random; tests/models/test_adapters.py"),
    "load_in_4bit": _not("is of 4 bits; tests/models"),
    "fp32_modules": _not("is of 16 bits"),
    "max_time": _not("depends on the clock"),
    "metric": _not("needs modules of the package evaluate; tests/features/test_chosen_metrics.py"),
    "report_to": _not("trackers write their own files; tests/recipes/test_trackers.py"),
    "with_tracking": _not("as report_to"),
    "overwrite_output_dir": _not("every case has a new folder"),
    "allow_topology_change": _not("one process; tests/recipes/resumed_on_two.py"),
    "resume_from_checkpoint": _not("is passed where a case is interrupted, see `resume`"),
    "max_drawn_samples": _not(_SPLITS),
    "label_corrections": _not("needs a file of corrections; tests/checks"),
    "evaluate_only": _not("is a relation: a finished run is evaluated again"),
    "cpu_threads": _not("is 1 in every case"),
    # What the weights after each step depend on.
    "learning_rate": Flag(TRAIN, (2e-3, 5e-4)),
    "num_train_epochs": Flag(TRAIN, (1, 2), ALL),
    "max_train_steps": Flag(TRAIN, (5,), ALL),
    "seed": Flag(TRAIN, (7,)),
    "freeze": Flag(TRAIN, ("embeddings",)),
    "train_layers": Flag(TRAIN, (0, 1)),
    "class_weights": Flag(TRAIN, ("balanced", "list"), ("text", "pairs", "multi-label", "ordinal")),
    "label_smoothing_factor": Flag(TRAIN, (0.2,), ("text", "pairs", "multi-label", "columns")),
    "focal_gamma": Flag(TRAIN, (2,), ("text", "pairs", "multi-label", "columns")),
    "huber_delta": Flag(TRAIN, (0.5,), ("regression",)),
    "per_device_train_batch_size": Flag(TRAIN, (3, 6), ALL),
    "gradient_accumulation_steps": Flag(TRAIN, (2,), ALL),
    "optim": Flag(TRAIN, ("adafactor", "muon")),
    "layer_decay": Flag(TRAIN, (0.7,)),
    "weight_decay": Flag(TRAIN, (0.5,)),
    "adam_beta1": Flag(TRAIN, (0.5,)),
    "adam_beta2": Flag(TRAIN, (0.9,)),
    "adam_epsilon": Flag(TRAIN, (1e-3,)),
    "max_grad_norm": Flag(TRAIN, (0, 0.2)),
    "lr_scheduler_type": Flag(TRAIN, (
        "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
        "inverse_sqrt")),
    "warmup_ratio": Flag(TRAIN, (0.4,)),
    "num_warmup_steps": Flag(TRAIN, (2,)),
    "ema_decay": Flag(TRAIN, (0.8,)),
    "weight_column": Flag(TRAIN, ("importance",)),
    "max_seq_length": Flag(TRAIN, (12, 24)),
    "long_text": Flag(TRAIN, ("windows",), ("text", "multi-label", "ordinal", "columns")),
    "stride": Flag(TRAIN, (2,), ("text", "multi-label", "ordinal", "columns")),
    "feature_columns": Flag(TRAIN, ("age", "user,age"), ("text", "pairs", "multi-label")),
    "load_best_model_at_end": Flag(TRAIN, (False,), ALL),
    "eval_steps": Flag(TRAIN, (2,), ALL),
    "early_stopping_patience": Flag(TRAIN, (1,), ALL),
    "metric_for_best_model": Flag(TRAIN, ("accuracy", "macro_f1"), ("text", "pairs", "ordinal")),
    # The start of an adapter is not in the folder: the first loss, the rates and the answers.
    "lora_r": Flag(TRAIN, (2,)), "lora_alpha": Flag(TRAIN, (8,)),
    "lora_target_modules": Flag(TRAIN, ("all-linear",)), "merge_lora": Flag(TRAIN, (True, False)),
    # What the rows are.
    "max_train_samples": Flag(READ, (8,), (*CLASSES, "regression")),
    "max_eval_samples": Flag(READ, (5,), TEXTS), "max_predict_samples": Flag(READ, (5,), TEXTS),
    "validation_fraction": Flag(READ, (0.25, 0.4), (*CLASSES, "regression", "multi-label")),
    "test_fraction": Flag(READ, (0.3,), (*CLASSES, "regression", "multi-label")),
    "text_column_delimiter": Flag(READ, (" / ",), ("pairs",)),
    "sheet_name": Flag(READ, ("rows",)),
    "folds": Flag(READ, (3,), (*CLASSES, "regression")),
    "fold": Flag(READ, (2, 3), (*CLASSES, "regression")),
    "data_seed": Flag(READ, (5,), (*CLASSES, "regression")),
    "encoding": Flag(READ, ("utf-16",)),
    "label_separator": Flag(READ, (";",), ("multi-label",)),
    "label_order": Flag(READ, ("eel,ant,cow",), ("ordinal",)),
    "drop_missing_text": Flag(READ, (True,)), "drop_missing_labels": Flag(READ, (True,)),
    "ignore_label": Flag(READ, ("ant",), ONE_LABEL), "id_column": Flag(READ, ("id",)),
    "group_column": Flag(READ, ("user",), TEXTS),
    "fail_on_leak": Flag(READ, (True,)),
    # What is decided.
    "threshold": Flag(DECIDE, (0.3,), ("multi-label",)),
    "calibrate": Flag(DECIDE, (True,), ("text", "pairs", "multi-label", "ordinal")),
    "tune_thresholds": Flag(DECIDE, ("f1", "precision=0.6", "recall=0.9", "cost=5:1"),
                            ("multi-label", "text")),
    "positive_label": Flag(DECIDE, ("first",), ("text",)),
    "abstain": Flag(DECIDE, (0.45,), ("text", "pairs", "multi-label")),
    "weighted_metrics": Flag(REPORT, (True,)),
    # What changes no answer.
    "padding": Flag(NOTHING, (True,), ALL), "pad_to_multiple_of": Flag(NOTHING, (8,), ALL),
    "token_buckets": Flag(NOTHING, (16,), ALL),
    "gradient_checkpointing": Flag(NOTHING, (True,), ALL),
    "auto_micro_batch": Flag(NOTHING, (True,)),
    "channels_last": Flag(NOTHING, (True,), ("images",)),
    "per_device_eval_batch_size": Flag(NOTHING, (3,), ALL),
    "use_cpu": Flag(NOTHING, (True,), ALL), "deterministic": Flag(NOTHING, (True,), ALL),
    "dataloader_num_workers": Flag(NOTHING, (1,)),
    "mixed_precision": Flag(TRAIN, ("fp32", "bf16", "fp16"), ALL),  # "no" is the default
    "on_nonfinite": Flag(NOTHING, ("skip",), ALL),
    # What adds something to the folder.
    "check_precision": _not("is of 16 bits; tests/recipes/test_checked_precision.py"),
    "evaluate_fp32": Flag(FILES, (True,), ALL), "serve_back": Flag(FILES, (True,), ALL),
    "baseline": Flag(FILES, (True,)), "history_csv": Flag(FILES, (True,), ALL),
    "checkpointing_steps": Flag(FILES, ("2", "epoch"), ALL),
    "checkpoint_total_limit": Flag(FILES, (1,), ALL),
    "async_checkpoints": Flag(NOTHING, (True,), ALL),
    "watch": Flag(FILES, (2,), ALL), "inspect_data": Flag(FILES, (True,), ONE_LABEL),
    "perturb_initial_weights": Flag(FILES, (True,)),
}  # fmt: skip

NAMES_OF_EMBEDDINGS = ("bert", "roberta", "electra", "distilbert", "albert", "mpnet", "modernbert")
OF_ONE_PROCESS = {"dataloader_num_workers", "auto_micro_batch"}
# Settings that are drawn for images and sounds as for texts.
OF_MEDIA = {
    *("learning_rate", "num_train_epochs", "max_train_steps", "seed", "class_weights"),
    *("label_smoothing_factor", "focal_gamma", "per_device_train_batch_size", "weight_decay"),
    *("gradient_accumulation_steps", "adam_beta1", "adam_beta2", "max_grad_norm", "warmup_ratio"),
    *("lr_scheduler_type", "num_warmup_steps", "ema_decay", "weight_column", "eval_steps"),
    *("load_best_model_at_end", "early_stopping_patience", "metric_for_best_model"),
    *("id_column", "group_column", "calibrate", "weighted_metrics", "max_train_samples"),
    *("max_eval_samples", "max_predict_samples", "per_device_eval_batch_size", "use_cpu"),
    *("deterministic", "mixed_precision", "on_nonfinite", "evaluate_fp32", "serve_back"),
    *("history_csv", "checkpointing_steps", "checkpoint_total_limit", "async_checkpoints", "watch"),
    *("data_seed", "folds", "fold", "perturb_initial_weights"),
}
# Settings that are drawn for words as for texts.
OF_WORDS = {
    *("learning_rate", "seed", "freeze", "train_layers", "class_weights", "focal_gamma"),
    *("label_smoothing_factor", "optim", "layer_decay", "weight_decay", "adam_beta1"),
    *("adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type", "warmup_ratio"),
    *(
        "num_warmup_steps",
        "ema_decay",
        "weight_column",
        "id_column",
        "group_column",
        "fail_on_leak",
    ),
    *("perturb_initial_weights", "max_train_samples", "max_eval_samples", "max_predict_samples"),
    *("data_seed", "folds", "fold", "lora_r", "lora_alpha", "lora_target_modules", "merge_lora"),
    *("dataloader_num_workers", "auto_micro_batch", "max_seq_length"),
}
OF_OTHERS = {"images": OF_MEDIA, "sounds": OF_MEDIA, "tokens": OF_WORDS}
# Probability of the usual value, of what takes seconds.
RARE = {
    **dict.fromkeys(("abstain", "folds", "fold", "encoding", "processes", "baseline"), 0.9),
    **dict.fromkeys(("serve_back", "inspect_data", "dataloader_num_workers"), 0.9),
    **dict.fromkeys(("mixed_precision", "door"), 0.8), "relation": 0.7, "stop": 0.8,
}  # fmt: skip


# Settings that a run cannot be continued with, if they differ.
WITH_DEFAULTS = 0.1  # share of the cases that may set neither a learning rate nor a length
CHANGES = {"learning_rate": 3e-3, "seed": 3, "weight_decay": 0.25, "lr_scheduler_type": "cosine",
           "max_grad_norm": 0.5, "max_seq_length": 16, "num_train_epochs": 3,
           "adam_beta2": 0.5, "ema_decay": 0.5, "eval_steps": 3, "warmup_ratio": 0.3,
           "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3,
           "history_csv": True, "use_cpu": True}  # fmt: skip


PLAIN_LAYERS = ("albert", "mpnet")  # that transformers cannot compute again
OF_LAYERS = {"layer_decay", "train_layers", "optim"}
OF_ADAPTERS = {"lora_alpha", "lora_target_modules", "merge_lora"}
# Settings that the oracle does not combine with adapters.
NOT_WITH_ADAPTERS = {"freeze", "perturb_initial_weights", "ema_decay", *OF_LAYERS}

# Settings that must be refused, with the tasks that do take them.
UNFIT: dict[str, tuple[Any, tuple[str, ...]]] = {
    "class_weights": ("balanced", ("text", "pairs", "multi-label", "ordinal", "tokens")),
    "label_smoothing_factor": (0.1, ("text", "pairs", "multi-label", "columns", "tokens")),
    "focal_gamma": (2, ("text", "pairs", "multi-label", "columns", "tokens")),
    "huber_delta": (0.5, ("regression",)),
    "threshold": (0.3, ("multi-label",)),
    "calibrate": (True, ("text", "pairs", "multi-label", "ordinal")),
    "tune_thresholds": ("f1", ("text", "pairs", "multi-label", "ordinal")),
    "label_order": ("1,2", ("ordinal",)), "merge_lora": (True, ()),
    "label_separator": (";", ("multi-label", "columns")),
    "feature_columns": ("age", TEXTS),
    "weighted_metrics": (True, ()),  # without a column of weights
    "stride": (2, ("tokens",)),  # without windows
    "positive_label": ("ant", ()),  # without thresholds
    "augment": ("flip", ()), "image_size": ("8,8", ()), "max_length_seconds": (2, ()),
    "multi_scale": (True, ()), "ignore_index": (3, ()), "channels_last": (True, ()),
    "text_units": ("graphemes", ("tokens",)), "sheet_name": ("one", ()),
    "fsdp_gathers": ("bfloat16", ()), "lora_alpha": (4, ()), "lora_dropout": (0.1, ()),
    "checkpoint_total_limit": (1, ()), "async_checkpoints": (True, ()), "fold": (2, ()),
    "image_column_name": ("text", ()), "audio_column_name": ("text", ()),
    "class_names_file": ("names.txt", ("tokens",)), "hub_private_repo": (True, ()),
    "report_to": ("wandb", ()), "train_split_name": ("train", ()), "remove_splits": ("a", ()),
    "dataset_config_name": ("a", ()), "test_fraction": (0.3, ()),
    "cuda_graphs": (True, ()), "load_in_4bit": (True, ()),
    "allow_topology_change": (True, ()),
}  # fmt: skip


def unfit(random_: random.Random) -> Case:
    """Return a plain case with a setting that must be refused."""
    task = random_.choice(ALL)
    name = random_.choice([name for name, (_, takers) in UNFIT.items() if task not in takers])
    settings = {"max_train_steps": 1, name: UNFIT[name][0]}
    return Case(task, 0, format="jsonl", settings=settings, relation="unfit")


def conflict(task: str, family: str, s: Mapping[str, Any]) -> str:
    """Return why settings cannot be combined, as the documentation says; empty if they can."""
    for reason, holds in (
        ("stride without windows", "stride" in s and s.get("long_text") != "windows"),
        ("buckets and padding", "token_buckets" in s and "padding" in s),
        ("columns and windows", "feature_columns" in s and s.get("long_text") == "windows"),
        ("a multiple of what is not padded", "pad_to_multiple_of" in s and "padding" not in s),
        ("focal and smoothing", "focal_gamma" in s and "label_smoothing_factor" in s),
        ("no weights to count", "weighted_metrics" in s and "weight_column" not in s),
        (
            "weights and fitted",
            "weighted_metrics" in s and ("calibrate" in s or "tune_thresholds" in s),
        ),
        (
            "constant without warm-up",
            s.get("lr_scheduler_type") == "constant"
            and ("warmup_ratio" in s or "num_warmup_steps" in s),
        ),
        (
            "adafactor has no moments",
            s.get("optim") == "adafactor"
            and any(f"adam_{n}" in s for n in ("beta1", "beta2", "epsilon")),
        ),
        (
            "no validation",
            s.get("load_best_model_at_end") is False
            and {"eval_steps", "early_stopping_patience", "metric_for_best_model"} & set(s),
        ),
        (
            "no checkpoints",
            "checkpointing_steps" not in s
            and {"checkpoint_total_limit", "async_checkpoints"} & set(s),
        ),
        ("a fold of none", "fold" in s and "folds" not in s),
        ("threshold twice", "threshold" in s and "tune_thresholds" in s),
        ("one tuple of what is trained", "freeze" in s and "train_layers" in s),
        ("no gradient checkpointing", "gradient_checkpointing" in s and family in PLAIN_LAYERS),
        ("no thresholds", "positive_label" in s and "tune_thresholds" not in s),
        ("no matrix for Muon", s.get("optim") == "muon" and s.get("train_layers") == 0),
    ):
        if holds:
            return reason
    return ""


def undecided(task: str, family: str, s: Mapping[str, Any]) -> bool:
    """Return whether the oracle cannot speak about settings together."""
    return bool(
        ("freeze" in s and family not in NAMES_OF_EMBEDDINGS)
        # Shared layers, or a name of layers that tells no depth.
        or (family in ("albert", "t5", "deberta-v2") and OF_LAYERS & set(s))
        or (family in ("t5",) and task == "tokens")
        or ("max_train_steps" in s and "num_train_epochs" in s)
        or ("lora_r" in s and NOT_WITH_ADAPTERS & set(s))
        or ("lora_r" in s and family in ("albert", "t5"))
        or ("label_order" in s and "class_weights" in s)
        or ("folds" in s and {"inspect_data", "abstain", *LIMITS.values()} & set(s))
        or ("inspect_data" in s and "max_train_samples" in s)
        or (
            "validation_fraction" in s
            and {"folds", "inspect_data", "abstain", *LIMITS.values()} & set(s)
        )
        or ("abstain" in s and "max_eval_samples" in s)
        or ("warmup_ratio" in s and "num_warmup_steps" in s)
    )


def refusal_of(case: Case, drawn: Drawn) -> str:
    """Return why the product must refuse a case; empty if it must not."""
    if case.relation == "unfit":
        return "a setting without effect"
    if reason := conflict(case.task, case.family, case.settings):
        return reason
    for part in ("text", "label"):
        columns = drawn.texts if part == "text" else drawn.labels
        is_lacking = any(
            lacks(case, drawn, row) if part == "text" else any(is_missing(row[c]) for c in columns)
            for rows in drawn.rows.values()
            for row in rows
        )
        if part == "label" and case.task == "multi-label":
            continue
        if (
            is_lacking
            and f"drop_missing_{part}{'s' if part == 'label' else ''}" not in case.settings
        ):
            return f"a missing {part}"
    return _refusal_of_rows(case, drawn)


def _has_other_weights(case: Case, classes: int) -> bool:
    weights = str(case.settings.get("class_weights", "")).split(",")
    return len(weights) > 1 and len(weights) != classes


def _refusal_of_rows(case: Case, drawn: Drawn) -> str:
    """Return why the rows of a case cannot be trained on; empty if they can."""
    rows = kept_rows(case, drawn, "train")
    limit = case.settings.get("max_train_samples")
    if case.task in (*CLASSES, *MEDIA):
        everything = kept_rows(case, replace(drawn, chosen=None), "train")
        if limit is not None and limit < len({str(row["label"]) for _, row in everything}):
            return "fewer rows than classes"
        labels = {str(row["label"]) for row in named_rows(case, drawn)}
        if len(labels) < 2 or _has_other_weights(case, len(labels)):
            return "one class, or weights of others"
        for split in ("validation", "test"):
            others = {str(row["label"]) for _, row in kept_rows(case, drawn, split)}
            if not others <= labels:
                return "a label that training does not have"
            if not others:
                return "no rows"
        largest = max(Counter(str(row["label"]) for _, row in rows).values())
        if "inspect_data" in case.settings and largest < 5:
            return "a split that cannot be cut into five parts with each class"
    elif case.task in ("multi-label", "columns"):
        labels = _labels_in(case, drawn, "train")
        if not (_labels_in(case, drawn, "validation") | _labels_in(case, drawn, "test")) <= labels:
            return "a label that training does not have"
    steps = len(batches_of(case, len(rows)))
    if "fail_on_leak" in case.settings and overlaps(case, drawn):
        return "a leak"
    if case.settings.get("num_warmup_steps", 0) >= steps:
        return "the rate never reaches its peak"
    return ""


def _labels_in(case: Case, drawn: Drawn, split: str) -> set[str]:
    rows = kept_rows(case, drawn, split)
    return {name for _, row in rows for name in label_of(case, drawn, row)}


# Tasks that a relation is about; the others are about every task.
RELATED = {
    "classifier": ("text", "regression"), "renamed labels": ("text", "pairs", "multi-label"),
    "on a file": COMPARED,
}  # fmt: skip


@cache
def parameters(task: str) -> Mapping[str, Sequence[Any]]:
    """Return all that a case of a task consists of, with the values that are drawn."""
    if task == "loop":
        return loops.VALUES
    given: dict[str, list[Any]] = {
        name: [None, *flag.values]
        for name, flag in FLAGS.items()
        if flag.values and (task in flag.tasks or name in OF_OTHERS.get(task, ()))
    }
    if task in MEDIA:
        relations = ["none", "other format", "more columns", "from a file", "compared"]
        return {
            **given, "family": list(media.FAMILIES[task]), "format": ["csv", "jsonl", "parquet"],
            "door": ["none", "predict csv", "predict parquet", "python"], "relation": relations,
            "stop": [None, 1, 2], "change": [None, "learning_rate", "seed"], "processes": [1, 2],
        }  # fmt: skip
    formats = (
        ["jsonl", "parquet"]
        if task == "tokens"
        else ["csv", "tsv", "jsonl", "parquet", "json", "xlsx"]
    )
    doors = [name for name in DOORS if name != "pipeline" or task != "tokens"]
    relations = [name for name in RELATIONS if task in RELATED.get(name, TASKS) and name != "unfit"]
    return {
        **given, "family": list(FAMILIES), "format": formats, "door": doors,
        "relation": relations, "stop": [None, 1, 2],
        "change": [None, *CHANGES], "processes": [1, 2],
    }  # fmt: skip


Pair = tuple[str, int, str, int]  # Two names, each with the index of its value.


def pairs_of(task: str) -> list[Pair]:
    """Return all pairs of values that a case of a task can have, in a fixed order."""
    given = parameters(task)
    return [
        (a, x, b, y)
        for a, b in itertools.combinations(sorted(given), 2)
        for x in range(len(given[a]))
        for y in range(len(given[b]))
        if _fits(task, {a: given[a][x], b: given[b][y]}, closed=True)
    ]


def covering(task: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of values until each possible pair of values was in one of them.

    A greedy choice: of some random rows, the one with the most new pairs (Cohen et al., 1997).
    """
    random_ = random.Random(f"{task} {seed}")
    queue = pairs_of(task)
    random_.shuffle(queue)
    missing = set(queue)
    while queue:
        if (pair := queue[-1]) not in missing:
            queue.pop()
            continue
        candidates = [_candidate(task, pair, random_) for _ in range(4)]
        row, covered = max(candidates, key=lambda made: len(made[1] & missing))
        missing -= covered
        if pair in missing:  # it cannot be in a whole row
            queue.pop()
        yield row


def _candidate(task: str, pair: Pair, random_: random.Random) -> tuple[dict[str, Any], set[Pair]]:
    """Return a row that has a pair and else random values, and the pairs in it."""
    given = parameters(task)
    a, x, b, y = pair
    row = {a: given[a][x], b: given[b][y]}
    for needed, value in _needs(row).items():
        row.setdefault(needed, value)
    names = [name for name in given if name not in row]
    random_.shuffle(names)
    for name in names:
        values = list(given[name])
        random_.shuffle(values)
        if random_.random() < RARE.get(name, 0.5):
            values = [given[name][0], *values]
        for value in values:
            if _fits(task, {**row, name: value}, closed=False):
                row[name] = value
                break
    return row, pairs_in(task, row)


def pairs_in(task: str, row: Mapping[str, Any]) -> set[Pair]:
    """Return the pairs of values in a row."""
    given = parameters(task)
    index = {n: given[n].index(v) for n, v in row.items() if n in given and v in given[n]}
    return {(a, index[a], b, index[b]) for a, b in itertools.combinations(sorted(index), 2)}


NEEDS: dict[str, tuple[str, Any]] = {
    "fold": ("folds", 3), "stride": ("long_text", "windows"),
    "positive_label": ("tune_thresholds", "f1"), "test_fraction": ("validation_fraction", 0.25),
    **dict.fromkeys(OF_ADAPTERS, ("lora_r", 2)),
    "encoding": ("format", "csv"), "label_separator": ("format", "csv"),
    "sheet_name": ("format", "xlsx"), "pad_to_multiple_of": ("padding", True),
    "weighted_metrics": ("weight_column", "importance"),
    "checkpoint_total_limit": ("checkpointing_steps", "2"),
    "async_checkpoints": ("checkpointing_steps", "2"),
}  # fmt: skip


def _needs(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what values of a row need to have an effect."""
    needs = dict(need for name, need in NEEDS.items() if row.get(name) is not None)
    if row.get("data_seed") and not row.get("folds") and not row.get("validation_fraction"):
        needs["max_eval_samples"] = 5
    return needs


def _fits(task: str, row: Mapping[str, Any], *, closed: bool) -> bool:
    """Return whether a part of a row can belong to a case; `closed` adds what it needs."""
    if task == "loop":
        return not loops.conflict(row)
    needs = _needs(row)
    if closed:
        if any(name in row and row[name] != value for name, value in needs.items()):
            return False
        row = {**row, **needs}
    elif any(row.get(name, value) != value for name, value in needs.items()):
        return False
    else:
        row = {**needs, **row}
    settings = {n: v for n, v in row.items() if n in FLAGS and v is not None}
    family = row.get("family", "bert")
    if row.get("processes", 1) > 1 and set(settings) & OF_ONE_PROCESS:
        return False
    return not conflict(task, family, settings) and not undecided(task, family, settings)


def cases(seed: int, tasks: Sequence[str] = TASKS) -> Iterator[Case]:
    """Yield cases without end: the rows of covering arrays of all tasks, in turn."""
    random_ = random.Random(seed)
    made = {task: _rows_without_end(task, seed) for task in dict.fromkeys(tasks)}
    for task in itertools.cycle(tasks):
        make = loops.make_case if task == "loop" else partial(make_case, task)
        yield make(next(made[task]), random_)
        if random_.random() < 0.15:
            yield unfit(random_)


def _rows_without_end(task: str, seed: int) -> Iterator[dict[str, Any]]:
    for round_ in itertools.count():
        yield from covering(task, seed + 1_000_003 * round_)


def _traits(settings: Mapping[str, Any], format_: str, random_: random.Random) -> set[str]:
    """Return what is unusual about the data, where the settings allow it."""
    traits = {trait for trait in TRAITS if random_.random() < 0.3}
    if "fail_on_leak" in settings:
        traits.discard("duplicates")
    for part, flag in (("text", "drop_missing_text"), ("labels", "drop_missing_labels")):
        traits.discard(f"missing_{part}")
        traits -= {"blank"} if flag == "drop_missing_text" and flag not in settings else set()
        if flag in settings:
            traits.add(f"missing_{part}")
    if {"positive_label", "label_order", "ignore_label"} & set(settings):
        traits -= {"odd_labels", "number_labels"}
    if settings.get("max_seq_length") == 12:
        traits.add("long")
    if format_ == "xlsx":
        traits -= {
            "number_labels",
            "scripts",
            "newlines",
        }  # which a workbook cannot hold as they are
    if format_ not in ("csv", "tsv"):
        traits.discard("crlf")
    return traits


def _sizes(settings: Mapping[str, Any], random_: random.Random) -> tuple[int, int, int]:
    """Return the number of rows for training, validation and testing."""
    train, validation, test = (random_.randint(least, 10 + least) for least in (9, 6, 6))
    if {"folds", "validation_fraction"} & set(settings):
        train *= 3
    return train, 50 if "abstain" in settings else validation, test


def _changes(task: str, row: Mapping[str, Any], random_: random.Random) -> dict[str, Any]:
    """Return the settings that differ when a stopped run continues: that of the row, and others."""
    names = [name for name in CHANGES if name in parameters(task)]
    chosen = [row["change"], *random_.sample(names, 3)] if row["change"] else []
    return {name: CHANGES[name] for name in dict.fromkeys(chosen)}


def make_case(task: str, row: Mapping[str, Any], random_: random.Random) -> Case:
    """Return a case of the settings in a row, on drawn data."""
    settings = {n: v for n, v in row.items() if n in FLAGS and v is not None}
    if random_.random() > WITH_DEFAULTS:
        usual = {"learning_rate": 1e-3} | (
            {} if "max_train_steps" in settings else {"num_train_epochs": 2}
        )
        settings = usual | settings
    classes = random_.choice((2, 3, 3, 4))
    if task == "text" and "tune_thresholds" in settings:
        classes = 2
        settings.pop("ignore_label", None)
    if settings.get("class_weights") == "list" and task == "tokens":
        settings["class_weights"] = "balanced"
    if settings.get("class_weights") == "list":
        settings["class_weights"] = ",".join(str(1 + i / 2) for i in range(classes))
    if "positive_label" in settings:
        settings["positive_label"] = CLASSES_OF_DRAWN[0]
    traits = _traits(settings, row["format"], random_)
    if task in MEDIA:
        traits -= {"number_labels", "missing_text", "missing_labels"}
    if "label_order" in settings:
        classes = 3
    if settings.get("ignore_label"):
        classes = max(classes, 3)
        if "," in str(settings.get("class_weights")):
            settings["class_weights"] = "balanced"
    rows = _sizes(settings, random_)
    if row["relation"] == "on a file" and task in COMPARED and random_.random() < 0.5:
        settings["group_column"] = "user"  # whose rows are not independent
    return Case(
        task, random_.randrange(10**6), row["family"], rows, classes, row["format"],
        tuple(sorted(traits)), settings, row["door"], row["relation"], row["stop"],
        _changes(task, row, random_) if row["stop"] else {},
        row["processes"],
    )  # fmt: skip
