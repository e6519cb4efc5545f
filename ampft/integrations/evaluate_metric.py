"""Where the local metric of the library `evaluate` is."""

from __future__ import annotations

from pathlib import Path


def metric_path() -> str:
    """Return the folder of the local `evaluate` metric, for `evaluate.load(metric_path())`."""
    return str(Path(__file__).parent / "ampft_classification")
