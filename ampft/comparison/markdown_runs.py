"""How the runs of a comparison went, in Markdown: speed, memory, steps, gradient errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ampft.comparison.cells import mebibytes, ratio_cell, step_cell
from ampft.comparison.findings import Arm, Comparison, Memory, Speed
from ampft.comparison.numbers import NOT_MEASURED, number, percent
from ampft.results.jsontext import JSONValue
from ampft.results.markdown import code, prose, table
from ampft.results.show import duration


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
    comparison: Comparison, arm: Arm, found: Speed, *, with_tf32: bool
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
    """Return the gradient errors beside the noise of the batches, as `ampft.yardstick` wrote them.

    Args:
        found: `Yardstick.as_dict()`; None for no yardstick.
    """
    if not found:
        return ""
    values = cast("Mapping[str, Any]", found)
    settings = values["settings"]
    said = (
        f"Error of each mode's gradient against float64, as a share of the noise of one batch's "
        f"gradient: {settings['batches']} batches of {settings['effective_batch_size']} examples, "
        f"before and after training where checkpoints were given. A bias of z above 2 stands out "
        f"from chance."
    )
    return "\n\n".join([said, *(_checkpoint(each) for each in values["checkpoints"])])


def _checkpoint(values: Mapping[str, Any]) -> str:
    modes = values["modes"]
    header = (
        *("", "error over noise", "bias over noise", "z of the bias", "entries that became 0"),
        *("overflowed batches", "failed batches"),
    )
    rows = [
        (
            f"{code(mode['mode'])} {prose(mode['execution'])}",
            _share(mode["whole"]["error_over_noise"]),
            _share(mode["whole"]["bias_over_noise"]),
            _or_dash(mode["whole"]["bias_z"], "{:.1f}"),
            _share(mode["whole"]["underflow"]),
            f"{mode['overflowed_batches']}",
            f"{mode['failed_batches']}",
        )
        for mode in modes
    ]
    parts = [f"At {code(values['name'])}:", table(header, rows)]
    modules = [module["name"] for module in values["modules"]]
    by_mode = [{part["name"]: part for part in mode["modules"]} for mode in modes]
    if modules:
        lines = [
            (
                code(name),
                *(_share(of[name]["error_over_noise"] if name in of else None) for of in by_mode),
            )
            for name in modules
        ]
        parts.append(table(("module", *(code(mode["mode"]) for mode in modes)), lines))
    return "\n\n".join(parts)


def _share(value: float | None) -> str:
    """Return a share with two digits, however small: "0.41 %", "3e-05 %"."""
    if value is None:
        return NOT_MEASURED
    shown = 100 * value
    return f"{number(shown, 2)} %" if shown >= 0.01 or not shown else f"{shown:.0e} %"


def _or_dash(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else form.format(value)
