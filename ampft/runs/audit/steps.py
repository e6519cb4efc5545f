"""Compares the repeated steps of a run with its record and its history."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ampft.features.validations import all_metrics
from ampft.precision.executed import ExecutedDtypes
from ampft.runs.audit.findings import DIFFERS, EQUAL, NOT_COMPARED, WITHIN, Check, judged
from ampft.runs.audit.rebuild import Rebuilt
from ampft.runs.audit.replay import Replay, replay
from ampft.runs.audit.tolerances import (
    AMPLIFICATION,
    AMPLIFIED_REPLAYS,
    LOSS_SCALE_FACTOR,
    MASK_DEVIATIONS,
    MASK_REPLAYS,
    NEIGHBOURS,
    tolerance_of,
)
from ampft.runs.history import HistoryRow
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord
from ampft.text.json_io import json_values
from ampft.text.numbers import counted

Values = npt.NDArray[np.float64]
STORED = ("parameters", "gradients", "optimizer_state")
COMPARED_KINDS = ("projection", "convolution", "recurrent")
MUST_REPEAT = "although CPU, versions, threads and processes are those of the run"


@dataclass(frozen=True)
class Repeated:
    """The first steps of a run, as recorded and as repeated."""

    rebuilt: Rebuilt
    rows: Sequence[HistoryRow]
    first: Replay

    @property
    def has_masks_of_run(self) -> bool:
        """Whether dropout drew the masks of the run, or none."""
        return self.first.random_state == self.rebuilt.record.random_state_sha256

    def again(self, **changes: Any) -> Replay:
        """Repeat the steps with other dropout masks or weights."""
        return replay(self.rebuilt.prepare(), micro_batches(self.rebuilt, self.rows), **changes)


def repeat_steps(
    rebuilt: Rebuilt, prepared: Prepared, rows: Sequence[HistoryRow], kept: int
) -> Repeated:
    """Repeat the steps of `rows`.

    Args:
        rebuilt: The run on this machine.
        prepared: Its training before the first step.
        rows: First rows of its history.
        kept: Number of steps after which the run saved its model.
    """
    validated = frozenset(part.step for part in rebuilt.record.validations)
    cut = micro_batches(rebuilt, rows)
    return Repeated(rebuilt, rows, replay(prepared, cut, validated=validated, kept=kept))


def micro_batches(rebuilt: Rebuilt, rows: Sequence[HistoryRow]) -> list[int]:
    """Return the number of micro-batches of each step that cuts it as the run did."""
    per_process = rebuilt.record.topology.num_processes / rebuilt.world_size
    batch_size = rebuilt.args.per_device_train_batch_size
    most = batch_size * rebuilt.args.gradient_accumulation_steps
    return [min(most, max(1, math.ceil(row.micro_batches * per_process))) for row in rows]


def check_loss(repeated: Repeated) -> Check:
    """Compare loss and gradient norm of each step."""
    rows, first = repeated.rows, repeated.first
    if first.stopped is not None:
        return Check("loss", DIFFERS, f"step {len(first.outcomes) + 1} stopped: {first.stopped}")
    actual = {name: _values(first, name) for name in ("loss", "grad_norm")}
    recorded = {name: np.array([getattr(row, name) for row in rows]) for name in actual}
    if all(np.array_equal(actual[name], recorded[name], equal_nan=True) for name in actual):
        steps = counted(len(rows), "step")
        return Check("loss", EQUAL, f"loss and gradient norm of {steps}, bit for bit")
    if not repeated.has_masks_of_run and not repeated.rebuilt.repeats_exactly:
        return _within_scatter(repeated, recorded)
    worst, step, name = _largest_difference(actual, recorded)
    found = f"the largest relative difference is {worst:.1e} ({_title(name)} of step {step})"
    if repeated.rebuilt.repeats_exactly:
        return Check("loss", DIFFERS, f"{found}, {MUST_REPEAT}")
    limits = _limits(repeated, actual)
    if _exceeded(actual, recorded, limits) is not None and len(rows) > 1:
        limits = _amplified_limits(repeated, actual, limits)
    exceeded = _exceeded(actual, recorded, limits)
    if exceeded is not None:
        name, index = exceeded
        return Check(
            "loss",
            DIFFERS,
            f"the {_title(name)} of step {index + 1} is {actual[name][index]:.7g}, and the record "
            f"states {recorded[name][index]:.7g}; rounding explains a difference of "
            f"{limits[name][index]:.1e}",
        )
    return Check("loss", WITHIN, f"{found}, which rounding explains")


def _values(result: Replay, name: str) -> Values:
    return np.array([getattr(outcome, name) for outcome in result.outcomes], dtype=np.float64)


def _relative(actual: Values, expected: Values) -> Values:
    """Return relative differences; values that are equally infinite or NaN do not differ."""
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = np.abs(actual - expected) / np.maximum(np.abs(actual), np.finfo(float).tiny)
    return np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))


def _largest_difference(
    actual: Mapping[str, Values], recorded: Mapping[str, Values]
) -> tuple[float, int, str]:
    relative = {name: _relative(actual[name], recorded[name]) for name in actual}
    name = max(relative, key=lambda key: float(relative[key].max()))
    index = int(relative[name].argmax())
    return float(relative[name][index]), index + 1, name


def _title(name: str) -> str:
    return {"grad_norm": "gradient norm"}.get(name, name)


def _limits(repeated: Repeated, actual: Mapping[str, Values]) -> dict[str, Values]:
    """Return the largest absolute differences that rounding explains without amplification."""
    precision = repeated.rebuilt.precision
    tolerance = tolerance_of(precision.compute_dtype, allows_tf32=precision.properties.allows_tf32)
    return {name: getattr(tolerance, name) * np.abs(actual[name]) for name in actual}


def _exceeded(
    actual: Mapping[str, Values], recorded: Mapping[str, Values], limits: Mapping[str, Values]
) -> tuple[str, int] | None:
    """Return name and index of the first value beyond its limit; skipped steps have no norm."""
    for index in range(len(next(iter(actual.values())))):
        for name in actual:
            ours, theirs = actual[name][index], recorded[name][index]
            both_overflow = not math.isfinite(ours) and not math.isfinite(theirs)
            if not both_overflow and not abs(ours - theirs) <= limits[name][index]:
                return name, index
    return None


def _amplified_limits(
    repeated: Repeated, actual: Mapping[str, Values], limits: Mapping[str, Values]
) -> dict[str, Values]:
    """Return the limits with the measured amplification of a rounding of the initial weights."""
    unit = torch.finfo(repeated.rebuilt.precision.compute_dtype).eps / 2
    grown = {name: np.zeros_like(limits[name]) for name in limits}
    for seed in range(AMPLIFIED_REPLAYS):
        other = repeated.again(rounding=(unit, seed))
        if len(other.outcomes) < len(repeated.rows):
            return dict(limits)
        for name in grown:
            difference = np.abs(_values(other, name) - actual[name])
            finite = np.where(np.isfinite(difference), difference, 0.0)
            grown[name] = np.maximum(grown[name], np.maximum.accumulate(finite))
    # The first step has its own rounding, but nothing that could be amplified.
    return {
        name: limits[name]
        + np.where(np.arange(len(grown[name])) > 0, AMPLIFICATION * grown[name], 0)
        for name in limits
    }


def _within_scatter(repeated: Repeated, recorded: Mapping[str, Values]) -> Check:
    """Compare the record with replays that differ from each other only in their dropout masks."""
    replays = [repeated.first]
    replays += [repeated.again(mask_seed=seed) for seed in range(1, MASK_REPLAYS + 1)]
    if any(len(other.outcomes) < len(repeated.rows) for other in replays):
        return Check("loss", DIFFERS, "a replay with other dropout masks stopped")
    largest = {}
    limits = _limits(repeated, {name: _values(repeated.first, name) for name in recorded})
    for name, values in recorded.items():
        stacked = np.stack([_values(other, name) for other in replays])
        stacked = np.where(np.isfinite(stacked), stacked, np.nan)
        mean = np.nanmean(stacked, axis=0)
        variance = _smoothed(np.nanvar(stacked, axis=0, ddof=1))
        deviation = np.sqrt(variance * (1 + 1 / len(replays))) + limits[name] / MASK_DEVIATIONS
        distance = np.abs(values - mean) / np.maximum(deviation, np.finfo(float).tiny)
        largest[name] = float(np.nanmax(np.where(np.isfinite(values), distance, np.nan)))
    worst = max(largest, key=lambda key: largest[key])
    text = (
        f"dropout cannot draw the masks of the run here; of {len(replays)} replays with other "
        f"masks, the record is at most {largest[worst]:.1f} standard deviations away "
        f"({_title(worst)}; limit "
        f"{MASK_DEVIATIONS:g})"
    )
    return Check("loss", WITHIN if largest[worst] <= MASK_DEVIATIONS else DIFFERS, text)


def _smoothed(values: Values) -> Values:
    """Return the mean of each value with its neighbours."""
    count = len(values)
    windows = (slice(max(0, i - NEIGHBOURS), i + NEIGHBOURS + 1) for i in range(count))
    return np.array([np.nanmean(values[window]) for window in windows])


def check_loss_scale(repeated: Repeated) -> Check:
    """Compare the loss scale after each step, and which steps were skipped."""
    rows, outcomes = repeated.rows, repeated.first.outcomes
    pairs = list(zip(rows, outcomes, strict=False))
    if all((r.loss_scale, r.skipped) == (o.loss_scale, o.skipped) for r, o in pairs):
        skipped = sum(row.skipped for row, _ in pairs)
        text = f"{counted(skipped, 'step')} skipped of {len(pairs)}, as recorded"
        return Check("scale", EQUAL, text)
    for row, outcome in pairs:
        ours, theirs = outcome.loss_scale, row.loss_scale
        if (ours is None) != (theirs is None):
            return Check(
                "scale", DIFFERS, f"step {row.step} has the loss scale {ours}, not {theirs}"
            )
        ratio = 1.0 if ours is None or theirs is None or not theirs else ours / theirs
        is_near = 1 / LOSS_SCALE_FACTOR <= ratio <= LOSS_SCALE_FACTOR
        if repeated.rebuilt.repeats_exactly or not is_near:
            text = f"step {row.step} has the loss scale {ours}, and the record states {theirs}"
            return Check("scale", DIFFERS, text)
    return Check("scale", WITHIN, "overflows in neighbouring steps, at scales one halving apart")


def check_executed(record: RunRecord, executed: ExecutedDtypes | None, *, exact: bool) -> Check:
    """Compare the dtypes that the first step multiplied and stored."""
    recorded = record.precision.executed
    if executed is None or recorded is None:
        return Check("dtypes", DIFFERS, "the dtypes of the first step are missing")
    actual = json_values(executed.as_dict())
    assert isinstance(actual, dict)
    if exact:
        names = [name for name in actual if actual[name] != recorded.get(name)]
        problems = [f"{name.replace('_', ' ')} of the first step differ" for name in names]
    else:
        problems = list(_dtype_problems(actual, recorded))
    return judged("dtypes", problems, executed.summary())


def _dtype_problems(actual: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs on another machine, where kernels fuse other products."""
    ours, theirs = _products(actual), _products(recorded)
    if ours != theirs:
        yield f"the products had operands of {sorted(ours)}, and the record states {sorted(theirs)}"
    for name in STORED:
        # A step that fp16 skips creates no optimizer state.
        if actual[name] and recorded.get(name) and set(actual[name]) != set(recorded[name]):
            found, stated = sorted(actual[name]), sorted(recorded[name])
            yield f"{name.replace('_', ' ')} had {found}, and the record states {stated}"


def _products(executed: Mapping[str, Any]) -> set[tuple[str, str]]:
    rows = executed.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return set()
    return {
        (str(row.get("kind")), str(dtype))
        for row in rows
        if row.get("kind") in COMPARED_KINDS
        for dtype in row.get("inputs") or ()
    }


def check_validations(repeated: Repeated) -> Check | None:
    """Compare the validations within the repeated steps; None if there are none."""
    parts = [p for p in repeated.rebuilt.record.validations if p.step in repeated.first.validations]
    if not parts:
        return None
    if not repeated.rebuilt.repeats_exactly:
        return Check("validated", NOT_COMPARED, "metrics after training on another machine")
    problems = [
        f"the validation after {counted(part.step, 'step')} gives other metrics"
        for part in parts
        if dict(part.metrics) != json_values(all_metrics(repeated.first.validations[part.step]))
    ]
    return judged("validated", problems, f"{counted(len(parts), 'validation')}, bit for bit")


def check_kept_weights(repeated: Repeated, saved: nn.Module) -> Check | None:
    """Compare the saved model with the repeated training, if it reached the saved weights."""
    weights = repeated.first.weights
    if weights is None:
        return None
    if not repeated.rebuilt.repeats_exactly:
        text = "AdamW amplifies the rounding of another machine"
        return Check("model", NOT_COMPARED, text)
    stored: Mapping[str, Tensor] = saved.state_dict()
    names = [
        n
        for n, w in weights.items()
        if n not in stored or not torch.equal(stored[n].to(w.dtype), w)
    ]
    problems = [f"{n} of the saved model is not that of the repeated training" for n in names]
    return judged("model", problems, "the repeated training ends in the saved weights, bit for bit")
