"""Loss, loss scale and validation over the steps of a run, thinned out for a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ampft.comparison.analysis.loading import RecordedRun
from ampft.comparison.findings import Curve
from ampft.runs.history import read_history
from ampft.text.json_io import JSONValue

HISTORY_NAME = "history.jsonl"
MAX_POINTS = 200


def curve(run: RecordedRun, metric: str) -> Curve:
    """Return the curve of a run; empty if the run left no history.

    A segment with a loss that is not finite has no mean, and its point is None.

    Args:
        run: The run, finished or not.
        metric: Name of the primary metric.

    Raises:
        InputError: The history exists and cannot be read.
    """
    path = run.folder / HISTORY_NAME
    rows = read_history(path) if path.exists() else ()
    # At most `MAX_POINTS` segments of nearly equal length.
    count = min(MAX_POINTS, len(rows))
    edges = [len(rows) * k // count for k in range(count + 1)] if count else []
    segments = [rows[low:high] for low, high in pairwise(edges)]
    values = [(part.step, part.metrics.get(metric)) for part in run.record.validations]
    validations = [(step, v) for step, v in values if v is not None and math.isfinite(v)]
    has_scale = any(_finite(row.get("loss_scale")) is not None for row in rows)
    return Curve(
        seed=run.seed,
        steps=tuple(_step(segment[-1]) for segment in segments),
        loss=tuple(_mean([_finite(row.get("loss")) for row in segment]) for segment in segments),
        loss_scale=tuple(_finite(segment[-1].get("loss_scale")) for segment in segments)
        if has_scale
        else None,
        skipped=tuple(_step(row) for row in rows if row.get("skipped")),
        validation_steps=tuple(step for step, _ in validations),
        validation_metric=tuple(value for _, value in validations),
    )


def _step(row: dict[str, JSONValue]) -> int:
    return int(_finite(row.get("step")) or 0)


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present and len(present) == len(values) else None


def _finite(value: JSONValue) -> float | None:
    """Return a finite number; None for any other value, such as the string "nan" in a history."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
