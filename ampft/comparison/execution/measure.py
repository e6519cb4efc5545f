"""Measuring before the first run, in a process of its own: this one stays light."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampft.comparison.execution.estimate import Estimate, ModeCost, Size
from ampft.comparison.execution.launch import launch_command, run_to_end
from ampft.errors import InputError
from ampft.text.escaping import inert

MODULE = "ampft.comparison.execution.trial"


@dataclass(frozen=True)
class Measured:
    """What the trial found; `modes` are those asked for, or of the default those available."""

    estimate: Estimate
    modes: tuple[str, ...]


def measure(words: Sequence[str], modes: Sequence[str] | None, config_file: str | None) -> Measured:
    """Time a few steps of each mode.

    Args:
        words: Settings of classify.py.
        modes: To measure; None for those of the default that the device has.
        config_file: Of Accelerate.

    Raises:
        InputError: A run would refuse its input, a mode is not available, or the trial failed.
    """
    with tempfile.TemporaryDirectory(prefix="ampft-") as name:
        folder = Path(name)
        request = {"words": list(words), "modes": modes, "launched": time.time()}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        paths = str(folder / "request.json"), str(folder / "result.json")
        run_to_end(launch_command(config_file, "-m", MODULE, *paths), folder / "log")
        try:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(_failed(folder / "log")) from None
    if "error" in result:
        raise InputError(result["error"])
    return _measured(result)


def _measured(result: dict[str, Any]) -> Measured:
    modes, threads = tuple(result.pop("modes_here")), result.pop("threads")
    if result["device"] == "cpu":
        result["device"] = f"CPU, {threads} thread{'s' * (threads != 1)}"
    costs = {mode: ModeCost(**cost) for mode, cost in result["modes"].items()}
    size = Size(**result["size"])
    return Measured(Estimate(**{**result, "modes": costs, "size": size}), modes)


def _failed(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The launcher's own traceback comes after that of the process.
    ends = [line for line in lines if "Error" in line and not line.startswith(" ")]
    reason = inert(ends[0]) if ends else "it said nothing"
    return (
        f"a trial of a few steps failed: {reason}. Try recipes/classify.py with the same settings "
        "and each --mixed_precision."
    )
