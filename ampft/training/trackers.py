"""Experiment trackers: which of those that were named are installed, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampft.errors import InputError, nearest


def tracked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that every tracker can show."""
    return {k: v for k, v in settings.items() if isinstance(v, int | float | str | bool)}


def installed_trackers(report_to: str) -> list[str]:
    """Return the trackers to give to an Accelerator as `log_with`.

    Accelerate itself passes over one that is not installed.

    Args:
        report_to: Names as Accelerate has them, comma separated, or "all" for all installed ones.

    Raises:
        InputError: Accelerate does not know one, or it is not installed.
    """
    from accelerate.tracking import get_available_trackers
    from accelerate.utils import LoggerType

    known = [str(name) for name in LoggerType.list()]
    installed = [str(tracker.value) for tracker in get_available_trackers()]
    names = [name.strip() for name in report_to.split(",")]
    for name in names:
        if name not in known:
            raise InputError(
                f"--report_to {report_to}: Accelerate knows no tracker {name!r}."
                f"{nearest(name, known)} Choose from {', '.join(known)}."
            )
        if name not in installed and name != "all":
            raise InputError(
                f"--report_to {report_to}: the package of {name} is not installed here; installed: "
                f"{', '.join(installed) or 'none'}. Install it, or leave --with_tracking away."
            )
    return installed if "all" in names else names
