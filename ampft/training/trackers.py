"""Experiment trackers: their names are checked, and settings are prepared for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ampft.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from accelerate import Accelerator


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
    """Return the arguments of `Accelerator.init_trackers` with which trackers continue a run.

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
