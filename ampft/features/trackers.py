"""Experiment trackers: their names are checked, and they receive settings and the final report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ampft.errors import InputError, did_you_mean
from ampft.metrics.scores import MAX_MATRIX_CLASSES
from ampft.text.tables import Name, Table, markdown_table, plain
from ampft.text.terminal import labelled, print_line

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ampft.tasks.outcome import Outcome, Report

REPORT_NAME, CONFUSION_NAME = "report", "confusion_matrix"


def tracked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of types that every tracker can display."""
    return {k: v for k, v in settings.items() if isinstance(v, int | float | str | bool)}


def tracker_run_ids(accelerator: Accelerator) -> dict[str, str]:
    """Return the ids under which trackers continue a run, by tracker, on the main process."""
    if not accelerator.is_main_process:
        return {}
    ids = {}
    for tracker in accelerator.trackers:
        if tracker.name == "wandb":
            ids["wandb"] = tracker.tracker.id
        elif tracker.name == "mlflow":
            ids["mlflow"] = tracker.tracker.info.run_id
    return ids


def continuing_trackers(ids: Mapping[str, str], step: int) -> dict[str, dict[str, Any]]:
    """Return the arguments of `Accelerator.init_trackers` that make trackers continue a run.

    Args:
        ids: Result of `tracker_run_ids` in an earlier process.
        step: Optimizer steps before the checkpoint; TensorBoard then hides what came after them.
    """
    arguments: dict[str, dict[str, Any]] = {"tensorboard": {"purge_step": step + 1}}
    if "wandb" in ids:
        arguments["wandb"] = {"id": ids["wandb"], "resume": "allow"}
    if "mlflow" in ids:
        arguments["mlflow"] = {"run_id": ids["mlflow"]}
    return arguments


def installed_trackers(report_to: str) -> list[str]:
    """Return the trackers to pass to an Accelerator as `log_with`.

    The check is needed because Accelerate silently ignores trackers that are not installed.

    Args:
        report_to: Accelerate's names, separated by commas, or "all" for all installed trackers.

    Raises:
        InputError: A tracker is unknown to Accelerate or not installed.
    """
    from accelerate.tracking import get_available_trackers
    from accelerate.utils import LoggerType

    known = [str(name) for name in LoggerType.list()]
    installed = [str(tracker.value) for tracker in get_available_trackers()]
    names = [name.strip() for name in report_to.split(",")]
    for name in names:
        if name not in known:
            raise InputError(
                f"--report_to {report_to}: {name!r} is not one of Accelerate's trackers."
                f"{did_you_mean(name, known)} Choose from {', '.join(known)}."
            )
        if name not in installed and name != "all":
            raise InputError(
                f"--report_to {report_to}: the package of {name} is not installed (installed: "
                f"{', '.join(installed) or 'none'}). Install it, or remove --with_tracking."
            )
    return installed if "all" in names else names


def track_results(accelerator: Accelerator, outcome: Outcome, step: int) -> None:
    """Send the final metrics to every tracker, and to some the report and the confusion matrix.

    TensorBoard receives them as texts, MLflow as files, and Weights & Biases as tables.

    Args:
        accelerator: Accelerator whose trackers receive them.
        outcome: Outcome of the final evaluation.
        step: Last optimizer step.
    """
    if not accelerator.trackers:
        return
    report = outcome.report()
    metrics = {
        f"{outcome.split}/{name}": value
        for name, value in report.metrics().items()
        if value is not None and math.isfinite(value)
    }
    accelerator.log(metrics, step=step)
    if not accelerator.is_main_process:
        return
    for tracker in accelerator.trackers:
        try:
            _send_report(tracker, report, confusion_table(outcome), step)
        except Exception as error:  # a server of a tracker must not cost the training
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print_line(labelled("warning", f"{tracker.name} did not accept the report ({reason})."))


def _send_report(tracker: Any, report: Report, confusion: Table | None, step: int) -> None:
    tables = {REPORT_NAME: report.tables()[0]}
    tables |= {} if confusion is None else {CONFUSION_NAME: confusion}
    if tracker.name == "tensorboard":
        for name, table in tables.items():
            tracker.tracker.add_text(name, markdown_table(table), step)
    elif tracker.name == "mlflow":
        import mlflow

        mlflow.log_dict(report.as_dict(), f"{REPORT_NAME}.json")
        for name, table in tables.items():
            mlflow.log_text(markdown_table(table), f"{name}.md")
    elif tracker.name == "wandb":
        for name, table in tables.items():
            rows = [[plain(cell) for cell in row] for row in table.rows]
            tracker.log_table(name, [*map(plain, table.header)], rows, step=step)


def confusion_table(outcome: Outcome) -> Table | None:
    """Return the confusion matrix as a table; None if it is undefined or very large."""
    matrix = outcome.confusion()
    if matrix is None or len(matrix) > MAX_MATRIX_CLASSES:
        return None
    names = outcome.class_names
    return Table(
        header=("label / prediction", *map(Name, names)),
        rows=[
            (Name(name), *map(str, row)) for name, row in zip(names, matrix.tolist(), strict=True)
        ],
    )
