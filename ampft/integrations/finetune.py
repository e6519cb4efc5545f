"""`ampft.finetune`: a run from Python, with settings as keyword arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ampft.arguments import parse_classify_arguments
from ampft.arguments.classify import BUILT_IN_DEFAULTS, ClassifyArguments
from ampft.arguments.flags import fields_and_hints
from ampft.arguments.parsing import command_line_words, messages_for_python
from ampft.errors import AlreadyFinished, InputError
from ampft.integrations.transformers_flags import settings_of
from ampft.processes import are_several
from ampft.runs.finished import FinishedRun
from ampft.signals import hearing

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker
    from datasets import DatasetDict


# Arguments of transformers' Trainer that `finetune` does not take, and what to do instead.
OF_TRAINER = {
    "args": "Pass it as training_arguments.",
    "train_dataset": "Pass it as train, the first argument.",
    "eval_dataset": "Pass it as validation.",
    "test_dataset": "Pass it as test.",
    "compute_metrics": "The report has the usual metrics; metric='NAME' adds one of the package "
    "evaluate.",
    **dict.fromkeys(
        ("tokenizer", "processing_class"),
        "Remove it: the model's own is used; processor_name names another one.",
    ),
    **dict.fromkeys(
        ("data_collator", "callbacks", "optimizers", "model_init", "compute_loss_func"),
        "Remove it; ampft.Training takes a loop of your own.",
    ),
}


def finetune(
    train: Any = None,
    *,
    validation: Any = None,
    test: Any = None,
    precision: str | None = None,
    training_arguments: Any = None,
    **settings: Any,
) -> FinishedRun:
    """Fine-tune a classifier, as `recipes/classify.py` does; print and return the result.

    The process stays as it was: random generators, CPU threads, signal handlers and Accelerate's
    state are restored, so that several runs in several precisions fit into one notebook.

    Args:
        train: Training data: a path or a list of paths, a `pandas.DataFrame`, a `datasets.Dataset`
            or `DatasetDict`, or a list of (text, label) pairs or of dictionaries. None reads the
            data that a setting such as `dataset_name` names.
        validation: Validation data of the same kind; None splits some off the training data.
        test: Test data of the same kind; None splits some off the training data.
            With `do_eval=True` or `do_predict=True` alone, nothing is trained: the model is
            evaluated as it is.
        precision: Precision, such as "bf16"; None for fp32.
        training_arguments: A `TrainingArguments` of transformers, whose fields are converted to
            settings as on the page "Coming from transformers' scripts"; None for none.
        **settings: Settings with the names of the recipe's flags, such as `learning_rate=1e-4`;
            `ampft train --help` lists them. `report_to` also takes a `GeneralTracker` of
            Accelerate, or a list of names and trackers, and needs no `with_tracking=True`.

    Returns:
        The finished run: `report`, `predictions`, `predict(texts)`, `model`, `folder`. With
        `resume_from_checkpoint="latest"`, a run that has finished is returned as it is.

    Raises:
        InputError: The data or a setting must be corrected. Nothing has been written.
        TrainingStopped: The training diverged; its folder is kept.
        PartsFailed: The model is trained and saved, but something after the training failed. With
            an `output_dir`, the same call does what is missing.
        Preempted: It was interrupted; the message says how to continue.
    """
    with messages_for_python(), hearing(("SIGINT",)):
        if are_several():
            raise InputError(
                "ampft.finetune trains in one process, but several were started. For several, use"
                " `accelerate launch -m ampft train`."
            )
        of_trainer = [f"{name}: {OF_TRAINER[name]}" for name in settings if name in OF_TRAINER]
        of_trainer += [
            f"{name}: received an object. Save it, and pass its folder as model_name_or_path."
            for name in ("model", "model_name_or_path")
            if not isinstance(settings.get(name), str | os.PathLike | None)
        ]
        if of_trainer:
            raise InputError("\n".join(of_trainer))
        _check_truth_values({"precision": precision, **settings})
        if training_arguments is not None:
            settings = {**settings_of(training_arguments), **settings}
        data, named = data_settings(settings, train=train, validation=validation, test=test)
        if precision is not None:
            if "mixed_precision" in settings:
                raise InputError(
                    "precision and mixed_precision are the same setting. Remove one of them."
                )
            named["mixed_precision"] = precision
        trackers: tuple[GeneralTracker, ...] = ()
        if settings.get("report_to") is not None:
            settings["report_to"], trackers = _own_trackers(settings["report_to"])
            if settings["report_to"] is not None:
                settings.setdefault("with_tracking", True)
        words = command_line_words({**named, **settings})
        from ampft.runs.caller_state import caller_state_kept

        with caller_state_kept(["ampft.finetune", *words]):
            from ampft.runs.train import train as train_run  # draws numbers at the first import

            args = parse_classify_arguments(
                words, program="ampft.finetune", in_memory=data is not None
            )
            try:
                run = train_run(args, data, trackers)
            except AlreadyFinished:
                assert args.output_dir is not None, "checked with resume_from_checkpoint"
                return FinishedRun(args.output_dir)
    assert run.folder is not None, "the only process is the main process"
    return FinishedRun(run.folder.path)


def _check_truth_values(settings: Mapping[str, Any]) -> None:
    """Raise InputError for True or False as the value of a setting that is a number or a mode."""
    _, hints = fields_and_hints(ClassifyArguments)
    kinds = (int, float, int | None, float | None)
    for name, value in settings.items():
        is_wanted = name != "precision" and hints.get(name) not in kinds
        if isinstance(value, bool) and not is_wanted:
            kind = "a precision such as 'bf16'" if name == "precision" else "a number"
            raise InputError(f"{name}: received {value}; it must be {kind}.")


def data_settings(
    settings: dict[str, Any], **splits: Any
) -> tuple[DatasetDict | None, dict[str, Any]]:
    """Return data in memory, or the settings that name the data.

    Args:
        settings: Settings of the user.
        splits: Data of the user by split: paths or data in memory; None for none.

    Raises:
        InputError: Paths are mixed with data in memory, or a source is named twice.
    """
    from ampft.integrations.data_in_memory import is_path, splits_in_memory

    given = {
        split: ",".join(map(os.fspath, data)) if _are_paths(data) else data
        for split, data in splits.items()
        if data is not None
    }
    if not given:
        return None, {}
    for name in ("dataset_name", *(f"{split}_file" for split in splits)):
        if settings.get(name) is not None:
            raise InputError(f"{next(iter(given))} and {name} both name data. Remove one of them.")
    paths = {split for split, data in given.items() if is_path(data)}
    if paths == given.keys():
        if len(given) == 1 and given.get("train") in BUILT_IN_DEFAULTS:
            return None, {"dataset_name": given["train"]}
        return None, {f"{split}_file": os.fspath(path) for split, path in given.items()}
    if paths:
        raise InputError(
            f"{', '.join(sorted(paths))}: a path cannot be combined with data in memory. Pass paths"
            " for all splits, or read the files first, for example with pandas.read_csv."
        )
    if "train" not in given and not _only_evaluates(settings):
        raise InputError(f"train is missing: received only {', '.join(given)}.")
    return splits_in_memory(given), {}


def _only_evaluates(settings: Mapping[str, Any]) -> bool:
    """Return whether settings ask for an evaluation and for no training."""
    asked = ("evaluate_only", "do_eval", "do_predict")
    return not settings.get("do_train") and any(settings.get(name) for name in asked)


def _are_paths(data: object) -> bool:
    """Return whether data are a list of paths: strings count if they end like a file's name."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(each, str | os.PathLike) for each in data)
        and all(not isinstance(each, str) or re.search(r"\.\w{2,7}$", each) for each in data)
    )


def _own_trackers(report_to: Any) -> tuple[str | None, tuple[GeneralTracker, ...]]:
    """Return the names in `report_to` of `ampft.finetune`, and the trackers of the user.

    Args:
        report_to: A name, a `GeneralTracker`, or a list of both.

    Returns:
        The names, separated by commas, or None if there are none, and the trackers.

    Raises:
        InputError: An entry is neither a name nor a `GeneralTracker`.
    """
    from accelerate.tracking import GeneralTracker

    entries = report_to if isinstance(report_to, Iterable) else [report_to]
    entries = [report_to] if isinstance(report_to, str | GeneralTracker) else list(entries)
    for entry in entries:
        if isinstance(entry, type):
            raise InputError(
                f"--report_to {entry.__name__}: a class. Pass an object of it: {entry.__name__}()."
            )
        if not isinstance(entry, str | GeneralTracker):
            raise InputError(
                f"--report_to: received {entry!r}. Pass names of trackers and objects of"
                " accelerate.tracking.GeneralTracker, or a list of them."
            )
    names = ",".join(entry for entry in entries if isinstance(entry, str))
    return names or None, tuple(entry for entry in entries if isinstance(entry, GeneralTracker))
