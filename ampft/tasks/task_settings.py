"""Settings of a task: everything that its model, inputs and loss need; refusals of decisions.

Importing this loads neither NumPy nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ampft.errors import InputError, quoted_list
from ampft.flag import BATCH, DATA, flag
from ampft.kinds.input_settings import InputSettings
from ampft.metrics.targets import FLAG, parse_threshold_target
from ampft.models.model_settings import TrainedPartSettings
from ampft.tasks.loss_settings import LossSettings, ValidationFitSettings
from ampft.tasks.table import TASKS, default_task


@dataclass(frozen=True)
class TaskSettings(LossSettings, TrainedPartSettings, InputSettings):
    """The user's choices about a task. `--help` describes each setting."""

    task: str | None = flag(
        None,
        "what to classify; if none, the default task for the data",
        group=DATA,
        choices=TASKS.keys(),
    )
    fp32_modules: str | None = flag(
        None,
        "modules that compute in float32 inside a 16-bit model, as globs over their paths: "
        "encoder.layer.3.*,wo; the saved model keeps them so; if none, those that the model was "
        "saved with",
        group=BATCH,
        joined=True,
    )

    @property
    def fp32_patterns(self) -> tuple[str, ...]:
        """The patterns in `fp32_modules`.

        Raises:
            InputError: One is empty.
        """
        if self.fp32_modules is None:
            return ()
        from ampft.precision.float32_modules import FLAG, split_patterns  # imports torch

        return split_patterns(FLAG, self.fp32_modules)


def check_read_settings(settings: Any, task: str | None) -> None:
    """Reject settings that the task does not read, of those that a task or a kind of data lists.

    Args:
        settings: A dataclass with the user's choices.
        task: Task of the run; None if the data decide. Then the default task of some kind of data
            must read a setting.

    Raises:
        InputError: Settings have no effect. The message lists all.
    """
    chosen = {f.name for f in fields(settings) if getattr(settings, f.name) != f.default}
    problems = []
    if task is not None:
        kind = TASKS[task].kind
        of_some_kinds = {name for row in TASKS.values() for name in row.kind.flags}
        for name in sorted(chosen & of_some_kinds - kind.flags):
            problems.append(f"--{name} has no effect on {kind.name} data. Remove the flag.")
    tasks = {default_task(row.kind.name) for row in TASKS.values()} if task is None else {task}
    readable = {name for each in tasks for name in TASKS[each].flags}
    of_some_tasks = {name for row in TASKS.values() for name in row.flags}
    for name in sorted(chosen & of_some_tasks - readable):
        readers = " or ".join(each for each, row in TASKS.items() if name in row.flags)
        if task is None:
            problems.append(f"--{name} needs --task {readers}. Add it, or remove the flag.")
        else:
            problems.append(
                f"--{name} has no effect on --task {task}. Remove it, or use --task {readers}."
            )
    if problems:
        raise InputError("\n".join(problems))


def check_decision_flags(settings: ValidationFitSettings, task: str | None) -> None:
    """Reject settings that contradict each other or the task.

    Args:
        settings: The user's choices.
        task: Task of the run; None if it is not known yet.

    Raises:
        InputError: The target is not one, or a flag has no meaning for the task.
    """
    if settings.tune_thresholds is not None:
        parse_threshold_target(settings.tune_thresholds)
    elif settings.positive_label is not None:
        raise InputError(
            f"--positive_label {settings.positive_label} has no effect without {FLAG}. Add it, or "
            "remove the flag."
        )
    if task is not None and settings.fitted_flags and not TASKS[task].decides_per_case:
        allowed = [name for name, row in TASKS.items() if row.decides_per_case]
        raise InputError(
            f"{settings.fitted_flags[0]}: the flag is for tasks in which each example has one "
            f"prediction ({', '.join(allowed)}), and the task is {task}. Remove the flag."
        )


def check_data_for_decisions(
    settings: ValidationFitSettings,
    task: str,
    label_names: Sequence[str],
    rows: Mapping[str, int],
    independent: int,
) -> None:
    """Reject decisions that cannot be fitted on the data, before the training.

    Args:
        settings: The user's choices.
        rows: Number of rows of each split.
        independent: Number of independent rows, or groups of rows, of the half of the validation
            split that proves the promise.

    Raises:
        InputError: A split is missing, the classes are not two, or the promise needs more rows.
    """
    check_decision_flags(settings, task)
    if not settings.fitted_flags:
        return
    if not {"validation", "test"} <= rows.keys():
        raise InputError(
            f"{settings.fitted_flags[0]}: the data have only {', '.join(rows)}. Decisions are "
            "fitted on a validation split, and the report needs another one. Add a "
            "--validation_file or a --test_file, or remove the flag."
        )
    if settings.tune_thresholds is not None and not TASKS[task].several_labels:
        if len(label_names) != 2:
            raise InputError(
                f"{FLAG}: thresholds are for two classes or for several labels per example, and "
                f"each example has one of {len(label_names)} classes. Remove the flag."
            )
    elif settings.positive_label is not None:
        raise InputError(
            "--positive_label is for two classes; with several labels per example, each has a "
            "threshold. Remove the flag."
        )
    if settings.positive_label is not None and settings.positive_label not in label_names:
        raise InputError(
            f"--positive_label {settings.positive_label}: the classes are "
            f"{quoted_list(list(label_names))}."
        )
    _check_promise(settings.abstain, rows["validation"], independent)


def _check_promise(error: float | None, rows: int, independent: int) -> None:
    from ampft.metrics.abstention import least_error, rows_needed  # imports NumPy

    if error is None or independent >= rows_needed(error):
        return
    needed = rows_needed(error)
    least = math.ceil(1000 * least_error(independent)) / 1000
    possible = f", or a promise of at least {least:g}" if least < 0.5 else ""
    raise InputError(
        f"--abstain {error:g}: the promise needs {2 * needed} independent validation rows "
        f"({needed} to choose what is answered, {needed} to prove it), but only {independent} of "
        f"the {rows} can prove it. Use more validation rows (--validation_fraction){possible}."
    )
