"""How the runs of a comparison went, in Markdown: speed, memory, steps, gradient errors."""

from __future__ import annotations

from collections.abc import Mapping

from ampft.comparison.findings import ArmResult, Comparison, Memory, Speed
from ampft.comparison.report.cells import mebibytes, ratio_cell, step_cell
from ampft.comparison.report.noise import noise_protocol, noise_rows, share
from ampft.text.json_io import JSONValue
from ampft.text.markdown import code, prose, table
from ampft.text.numbers import NOT_MEASURED, duration, percent


def speed(comparison: Comparison) -> str:
    """Return the clock's figures of each arm, and why a mode is no faster."""
    with_tf32 = any(arm.speed and arm.speed.ratio_to_tf32 is not None for arm in comparison.arms)
    header = (
        *("", "step, ms", "times as fast", "least to most over seeds"),
        *(["times tf32's speed"] * with_tf32),
        *("tokens/s", "waiting for data", "of the measured product rate", "training", "in all"),
    )
    rows = [
        _speed_row(comparison, arm, arm.speed, with_tf32=with_tf32)
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
    return table(header, rows) + ("\n\n" + "\n".join(reasons) if reasons else "")


def _speed_row(
    comparison: Comparison, arm: ArmResult, found: Speed, *, with_tf32: bool
) -> tuple[str, ...]:
    spread = found.ratio_spread
    return (
        code(arm.name),
        step_cell(arm),
        ratio_cell(comparison, arm),
        "" if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}",
        *([_or_dash(found.ratio_to_tf32, "{:.2f}")] * with_tf32),
        _or_dash(found.tokens_per_second, "{:,.0f}"),
        NOT_MEASURED if found.waiting_share is None else percent(found.waiting_share, 1),
        NOT_MEASURED if found.utilisation is None else percent(found.utilisation),
        *(
            NOT_MEASURED if seconds is None else duration(seconds)
            for seconds in (found.training_seconds, found.total_seconds)
        ),
    )


def memory(comparison: Comparison) -> str:
    """Return the peak of each arm and its parts, MiB."""
    found = [(arm, arm.memory) for arm in comparison.arms if arm.memory is not None]
    if not found:
        return ""
    header = (
        *("MiB", "peak", "of the baseline's", "weights", "gradients", "optimizer state"),
        *("activations", "rest", "before the model"),
    )
    rows = [(code(arm.name), *_memory_cells(sizes)) for arm, sizes in found]
    protocols = dict.fromkeys(sizes.protocol for _, sizes in found if sizes.protocol)
    said = "\n\n".join(prose(protocol) for protocol in protocols)
    return f"{table(header, rows)}\n\n{said}".rstrip()


def _memory_cells(sizes: Memory) -> tuple[str, ...]:
    parts = (sizes.weights, sizes.gradients, sizes.optimizer_state, sizes.activations, sizes.rest)
    return (
        mebibytes(sizes.peak),
        "" if sizes.ratio is None else percent(sizes.ratio),
        *map(mebibytes, parts),
        mebibytes(sizes.baseline),
    )


def runs(comparison: Comparison) -> str:
    """Return one line per run: how it ended, its steps, its folder."""
    rows = []
    for arm in comparison.arms:
        skipped = dict(enumerate(arm.skipped_steps))
        total = dict(enumerate(arm.total_steps))
        for index, run in enumerate(arm.runs):
            ended = run.status + (f": {run.reason}" if run.reason else "")
            rows.append(
                (
                    code(arm.name),
                    code(run.folder),
                    prose(ended),
                    f"{run.seed}",
                    _or_dash(total.get(index), "{:,}"),
                    _or_dash(skipped.get(index), "{:,}"),
                )
            )
    return table(("mode", "run", "ended", "seed", "steps", "skipped"), rows, left=3)


def yardstick(found: Mapping[str, JSONValue] | None) -> str:
    """Return the gradient errors beside the noise of the batches, as the yardstick wrote them.

    Args:
        found: `Yardstick.as_dict()`; what has another layout is passed over. None for none.
    """
    rows = noise_rows(found)
    if not rows:
        return ""
    protocol = noise_protocol(found)
    said = (
        f"Error of each mode's gradient against float64, as a share of the noise of one batch's "
        f"gradient{f': {protocol}' if protocol else ''}, before and after training where "
        "checkpoints were given. A bias of z above 2 stands out from chance."
    )
    header = (
        *("weights", "mode", "error over noise", "bias over noise", "z of the bias"),
        *("entries that became 0", "overflowed batches", "failed batches"),
    )
    cells = [
        (
            code(row.at),
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
        f"- {code(row.at)}, {code(row.mode)}: "
        + ", ".join(f"{code(name)} {share(value)}" for name, value in row.modules)
        for row in rows
        if row.modules
    ]
    parts = [said, table(header, cells, left=2)]
    if modules:
        parts += ["Error over noise of the largest modules:", "\n".join(modules)]
    return "\n\n".join(parts)


def _or_dash(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else form.format(value)
