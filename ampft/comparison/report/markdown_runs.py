"""Speed, memory, runs and gradient errors of a comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from ampft.comparison.findings import ArmResult, Comparison, Memory, Speed
from ampft.comparison.report.cells import mebibytes, ratio_cell, step_cell
from ampft.comparison.report.noise import noise_protocol, noise_rows, share
from ampft.text.json_io import JSONValue
from ampft.text.markdown import code, prose, table
from ampft.text.numbers import NOT_MEASURED, duration, percent


def speed(comparison: Comparison) -> str:
    """Return the timings of each arm, and reasons why modes are not faster."""
    has_tf32 = any(arm.speed and arm.speed.ratio_to_tf32 is not None for arm in comparison.arms)
    header = (
        *("", "step, ms", "speed-up", "range over seeds"),
        *(["speed-up over tf32"] * has_tf32),
        *("tokens/s", "waiting for data", "utilisation", "training time", "total time"),
    )
    rows = [
        _speed_row(comparison, arm, arm.speed, has_tf32=has_tf32)
        for arm in comparison.arms
        if arm.speed is not None
    ]
    if not rows:
        return ""
    reasons = [
        f"- {code(arm.name)}: {prose(arm.speed.reason)}"
        for arm in comparison.arms
        if arm.speed is not None and arm.speed.reason
    ]
    explanation = (
        "Waiting for data is a share of the step time. Utilisation is a share of the matrix "
        "product rate measured in the same process."
    )
    return "\n\n".join(filter(None, [table(header, rows), explanation, "\n".join(reasons)]))


def _speed_row(
    comparison: Comparison, arm: ArmResult, speed_: Speed, *, has_tf32: bool
) -> tuple[str, ...]:
    spread = speed_.ratio_spread
    return (
        code(arm.name),
        step_cell(arm),
        ratio_cell(comparison, arm),
        "" if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}",
        *([_or_dash(speed_.ratio_to_tf32, "{:.2f}")] * has_tf32),
        _or_dash(speed_.tokens_per_second, "{:,.0f}"),
        NOT_MEASURED if speed_.waiting_share is None else percent(speed_.waiting_share, 1),
        NOT_MEASURED if speed_.utilisation is None else percent(speed_.utilisation),
        *(
            NOT_MEASURED if seconds is None else duration(seconds)
            for seconds in (speed_.training_seconds, speed_.total_seconds)
        ),
    )


def memory(comparison: Comparison) -> str:
    """Return the peak memory of each arm and its parts in MiB."""
    measured = [(arm, arm.memory) for arm in comparison.arms if arm.memory is not None]
    if not measured:
        return ""
    header = (
        *("MiB", "peak", "relative to baseline", "weights", "gradients", "optimizer state"),
        *("activations", "rest", "before loading the model"),
    )
    rows = [(code(arm.name), *_memory_cells(sizes)) for arm, sizes in measured]
    protocols = dict.fromkeys(sizes.protocol for _, sizes in measured if sizes.protocol)
    explanation = "\n\n".join(prose(protocol) for protocol in protocols)
    return f"{table(header, rows)}\n\n{explanation}".rstrip()


def _memory_cells(sizes: Memory) -> tuple[str, ...]:
    parts = (sizes.weights, sizes.gradients, sizes.optimizer_state, sizes.activations, sizes.rest)
    return (
        mebibytes(sizes.peak),
        "" if sizes.ratio is None else percent(sizes.ratio),
        *map(mebibytes, parts),
        mebibytes(sizes.baseline),
    )


def runs(comparison: Comparison) -> str:
    """Return one row per run: its folder, how it ended, and its steps."""
    rows = []
    for arm in comparison.arms:
        skipped = dict(enumerate(arm.skipped_steps))
        total = dict(enumerate(arm.total_steps))
        for index, run in enumerate(arm.runs):
            ending = run.status + (f": {run.reason}" if run.reason else "")
            rows.append(
                (
                    code(arm.name),
                    code(run.folder),
                    prose(ending),
                    f"{run.seed}",
                    _or_dash(total.get(index), "{:,}"),
                    _or_dash(skipped.get(index), "{:,}"),
                )
            )
    return table(("mode", "folder", "status", "seed", "steps", "skipped steps"), rows, left=3)


def yardstick(values: Mapping[str, JSONValue] | None) -> str:
    """Return the gradient errors of the modes relative to batch noise.

    Args:
        values: `Yardstick.as_dict()`; None if not measured. Parts with another layout are skipped.
    """
    rows = noise_rows(values)
    if not rows:
        return ""
    protocol = noise_protocol(values)
    explanation = (
        "Error of each mode's gradient relative to float64, divided by the noise of the gradient "
        f"of a batch{f' ({protocol})' if protocol else ''}. The bias is the part of the error that "
        "all batches share. A z above 2 indicates a bias beyond chance."
    )
    header = (
        *("weights", "mode", "error / noise", "bias / noise", "z of the bias"),
        *("underflowed entries", "overflowed batches", "failed batches"),
    )
    cells = [
        (
            code(row.weights),
            code(row.mode),
            *(NOT_MEASURED if value is None else share(value) for value in (row.error, row.bias)),
            _or_dash(row.bias_z, "{:.1f}"),
            NOT_MEASURED if row.underflow is None else share(row.underflow),
            _or_dash(row.overflowed, "{:,.0f}"),
            _or_dash(row.failed, "{:,.0f}"),
        )
        for row in rows
    ]
    modules = [
        f"- {code(row.weights)}, {code(row.mode)}: "
        + ", ".join(f"{code(name)} {share(value)}" for name, value in row.modules)
        for row in rows
        if row.modules
    ]
    parts = [explanation, table(header, cells, left=2)]
    if modules:
        parts += ["Modules with the largest error / noise:", "\n".join(modules)]
    return "\n\n".join(parts)


def _or_dash(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else form.format(value)
