"""What came out of an evaluation: predictions, the metrics over them, the printed report."""

from __future__ import annotations

from pathlib import Path

from ampft.metrics.classification import Report, classification_report
from ampft.metrics.predictions import Predictions, check_census

__all__ = ["Predictions", "Report", "check_census", "classification_report", "metric_path"]


def metric_path() -> str:
    """Return the folder of the local `evaluate` metric, for `evaluate.load(metric_path())`."""
    return str(Path(__file__).parent / "ampft_classification")
