"""Loss, loss scale and validation over the steps of a run, thinned to what a chart can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ampft.comparison.analysis.loading import RecordedRun
from ampft.comparison.findings import Curve
from ampft.runs.history import read_history
from ampft.text.json_io import JSONValue

HISTORY_NAME = "history.jsonl"
POINTS = 200


def curve(run: RecordedRun, metric: str) -> Curve:
    """Return the curve of a run; empty where it left no history.

    A stretch with a loss that is not finite has no mean: its point is `None`.

    Args:
        run: Finished or not.
        metric: The primary metric.

    Raises:
        InputError: The history is there and cannot be read.
    """
    path = run.folder / HISTORY_NAME
    rows = read_history(path) if path.exists() else ()
    stretches, validations = _stretches(rows), _validations(run, metric)
    has_scale = any(_finite(row.get("loss_scale")) is not None for row in rows)
    return Curve(
        seed=run.seed,
        steps=tuple(_step(stretch[-1]) for stretch in stretches),
        loss=tuple(_mean([_finite(row.get("loss")) for row in stretch]) for stretch in stretches),
        loss_scale=tuple(_finite(stretch[-1].get("loss_scale")) for stretch in stretches)
        if has_scale
        else None,
        skipped=tuple(_step(row) for row in rows if row.get("skipped")),
        validation_steps=tuple(step for step, _ in validations),
        validation_metric=tuple(value for _, value in validations),
    )


def _validations(run: RecordedRun, metric: str) -> list[tuple[int, float]]:
    found = [(part.step, part.metrics.get(metric)) for part in run.record.validations]
    return [(step, v) for step, v in found if v is not None and math.isfinite(v)]


def _stretches(
    rows: Sequence[dict[str, JSONValue]],
) -> list[Sequence[dict[str, JSONValue]]]:
    """Cut the rows into at most `POINTS` parts of nearly equal length."""
    count = min(POINTS, len(rows))
    edges = [len(rows) * k // count for k in range(count + 1)] if count else []
    return [rows[low:high] for low, high in pairwise(edges)]


def _step(row: dict[str, JSONValue]) -> int:
    return int(_finite(row.get("step")) or 0)


def _mean(values: Sequence[float | None]) -> float | None:
    whole = [value for value in values if value is not None]
    return math.fsum(whole) / len(whole) if whole and len(whole) == len(values) else None


def _finite(value: JSONValue) -> float | None:
    """Return a number; `None` for what a history writes as a word, such as "nan"."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
