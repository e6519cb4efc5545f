"""Experiment trackers: their names are checked, and they receive settings and the final report."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.errors import InputError, check_type, did_you_mean
from ampft.features.feature import Feature, SavedFeature
from ampft.files import write_text
from ampft.metrics.scores import MAX_MATRIX_CLASSES
from ampft.text.page import Name, Table, cell_text, markdown_table
from ampft.text.terminal import labelled, print_line

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ampft.tasks.outcome import Outcome
    from ampft.tasks.report import Report

IDS_NAME = "trackers.json"  # the ids of a run in its folder, from the first step on
REPORT_NAME, CONFUSION_NAME = "report", "confusion_matrix"


@dataclass(frozen=True)
class TrackerState:
    """The ids under which trackers continue a run, by tracker."""

    run_ids: Mapping[str, str]


@dataclass
class TrackerReporting(Feature):
    """Sends settings, and the final report, to the trackers of an Accelerator.

    TensorBoard receives the report and the confusion matrix as texts, MLflow as files, and Trackio
    and trackers with a method `log_table`, such as Weights & Biases, as tables. The rows of the
    history are sent by `History`.
    """

    name = "trackers"

    accelerator: Accelerator  # Accelerator whose trackers receive everything.
    # Settings of the run, without secrets; None without trackers.
    settings: Mapping[str, Any] | None
    run_name: str | None = None  # Name of the run in trackers; None lets them choose one.
    folder: Path | None = None  # Output folder; None stores no ids.
    begins_again: bool = False  # Whether the run of this folder ended before its first checkpoint.
    sent: int = 0  # Number of steps that the run of this folder had sent before it ended.
    _arguments: dict[str, dict[str, Any]] = field(default_factory=dict)

    def begin(self) -> None:
        """Send the settings that every tracker can display, by their types."""
        if self.settings is not None:
            shown = {
                name: value
                for name, value in self.settings.items()
                if isinstance(value, int | float | str | bool)
            }
            # A run that begins again in its folder replaces what TensorBoard has of it.
            named: dict[str, dict[str, Any]] = {}
            if self.run_name is not None:
                named["mlflow"] = {"run_name": self.run_name}
                # Trackio finds a run by its name, so that a folder of another run must not have it.
                named["trackio"] = {"name": f"{self.run_name}-{secrets.token_hex(3)}"}
                if "WANDB_NAME" not in os.environ:
                    named["wandb"] = {"name": self.run_name}
            if self.begins_again and not self._arguments:
                self._continue(self._stored_ids())
            arguments = {"tensorboard": {"purge_step": 1}, **named, **self._arguments}
            self.accelerator.init_trackers("ampft", shown, arguments)
            ids = self.state().run_ids
            for tracker in self.accelerator.trackers:
                known = self._arguments.get(tracker.name, {})
                if self.sent and ids.get(tracker.name) in known.values():
                    # Trackio and W&B send later; a killed run has lost some of its last steps.
                    # Offline, W&B begins another log with step 0, which must be whole by itself.
                    run = tracker.tracker
                    step = getattr(run, "starting_step", getattr(run, "_next_step", self.sent + 1))
                    _skip_sent(tracker, min(self.sent, step - 1))
            if ids and self.folder is not None:
                write_text(self.folder / IDS_NAME, json.dumps(ids))

    def end(self, step: int, outcome: Outcome) -> None:
        """Send the final metrics to every tracker, and to some the report."""
        if not self.accelerator.trackers:
            return
        report = outcome.report()
        metrics = {
            f"{outcome.split}/{name}": value
            for name, value in report.metrics().items()
            if value is not None and math.isfinite(value)
        }
        self.accelerator.log(metrics, step=step)
        if not self.accelerator.is_main_process:
            return
        for tracker in self.accelerator.trackers:
            try:
                _send_report(tracker, report, confusion_table(outcome), step)
            except Exception as error:  # a server of a tracker must not cost the training
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                text = f"{tracker.name} did not accept the report ({reason})."
                print_line(labelled("warning", text))

    def state(self) -> TrackerState:
        """Return the ids of the run, on the main process."""
        ids = {}
        for tracker in self.accelerator.trackers if self.accelerator.is_main_process else ():
            if tracker.name == "wandb":
                ids["wandb"] = tracker.tracker.id
            elif tracker.name == "mlflow":
                ids["mlflow"] = tracker.tracker.info.run_id
            elif tracker.name == "trackio":
                ids["trackio"] = tracker.tracker.name
        return TrackerState(ids)

    def restore(self, saved: SavedFeature) -> None:
        """Continue the run in its trackers; TensorBoard hides what came after the checkpoint."""
        self._arguments = {"tensorboard": {"purge_step": saved.step + 1}}
        self._continue(saved.state.run_ids)

    def _stored_ids(self) -> Mapping[str, str]:
        """Return the ids in the folder; none if they cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.folder or Path()).joinpath(IDS_NAME).read_text("utf-8"))
            if isinstance(found, dict) and all(isinstance(each, str) for each in found.values()):
                return found
        return {}

    def _continue(self, ids: Mapping[str, str]) -> None:
        if "wandb" in ids:
            self._arguments["wandb"] = {"id": ids["wandb"], "resume": "allow"}
        if "mlflow" in ids:
            self._arguments["mlflow"] = {"run_id": ids["mlflow"]}
        if "trackio" in ids:
            self._arguments["trackio"] = {"name": ids["trackio"], "resume": "allow"}


def installed_trackers(report_to: str) -> list[str]:
    """Return the trackers to pass to an Accelerator as `log_with`.

    The check is needed because Accelerate silently ignores trackers that are not installed.

    Args:
        report_to: Names of Accelerate or of `accelerate.tracking.register_tracker_class`, separated
            by commas, or "all" for all installed trackers.

    Raises:
        InputError: A tracker is unknown to Accelerate or not installed.
    """
    check_type("installed_trackers", "report_to", report_to, str)
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    accelerates = [str(name) for name in LoggerType.list()]
    registered = [name for name in LOGGER_TYPE_TO_CLASS if name not in accelerates]
    known = [*accelerates, *registered]
    installed = [*(str(tracker.value) for tracker in get_available_trackers()), *registered]
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


def _skip_sent(tracker: Any, sent: int) -> None:
    """Let a tracker ignore the steps that it has, which would be logged twice.

    The validation after the last of them may be missing, and is sent.
    """
    log = tracker.log

    def log_later(values: Mapping[str, Any], step: int | None = None, **more: Any) -> None:
        is_row = "loss" in values
        if step is None or step > sent or (step == sent and not is_row):
            log(values, step=step, **more)

    tracker.log = log_later


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
    elif tracker.name == "trackio":
        import pandas as pd
        import trackio

        for name, table in tables.items():
            frame = pd.DataFrame(_plain_rows(table), columns=[*map(cell_text, table.header)])
            tracker.log({name: trackio.Table(dataframe=frame)}, step=step)
    elif hasattr(tracker, "log_table"):
        for name, table in tables.items():
            tracker.log_table(name, [*map(cell_text, table.header)], _plain_rows(table), step=step)


def _plain_rows(table: Table) -> list[list[str]]:
    return [[cell_text(cell) for cell in row] for row in table.rows]


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
