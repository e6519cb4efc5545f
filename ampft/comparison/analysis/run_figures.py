"""What runs recorded: the figures of an arm, why a mode is hardly faster, what all runs share."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from ampft.comparison.analysis.loading import RecordedRun, RunGroup
from ampft.comparison.findings import Memory, Speed, TrainingCurve
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.statistics.speed_up import speed_up
from ampft.engine.launch_bound import MAX_GROWTH, MAX_WAITING
from ampft.runs.history import read_history
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.record import RunRecord
from ampft.tasks.report import outputs_text
from ampft.text.json_io import JSONValue
from ampft.text.numbers import byte_size, counted

MIN_SPEEDUP = 1.2  # below it, a reason is given
MIN_UTILISATION = 0.35  # of the rate of large products; below it, the device is not filled
MIN_SHARE_OF_AMDAHL = 0.9
MEMORY_PARTS = tuple(f.name for f in fields(Memory) if f.name not in ("ratio", "protocol"))
MAX_POINTS = 200  # of a curve


def speed(
    group: RunGroup, groups: Sequence[RunGroup], *, in_turns: bool, explain: bool = True
) -> Speed | None:
    """Return the speed of an arm; None if none of its runs finished.

    Args:
        groups: Runs of every arm, the baseline first.
        in_turns: Whether the runs were trained one at a time with the arms interleaved.
        explain: Whether to give the reason why a mode is hardly faster.
    """
    if not group.finished:
        return None
    baseline, tf32 = groups[0], next((each for each in groups if each.name == "tf32"), None)
    over_baseline = speed_up(_ratios(group, baseline), in_turns=in_turns)
    ratio = over_baseline.ratio if over_baseline else None
    return Speed(
        step_seconds=tuple(_figures(group.finished, "step_seconds_median")),
        speed_up=over_baseline,
        speed_up_over_tf32=speed_up(_ratios(group, tf32), in_turns=in_turns),
        tokens_per_second=_median(group, "tokens_per_second"),
        waiting_share=_median(group, "waiting_share"),
        utilisation=_median(group, "utilisation"),
        training_seconds=_median(group, "training_seconds"),
        total_seconds=_median(group, "total_seconds"),
        reason=_reason(group, baseline, ratio)
        if explain and ratio is not None and ratio < MIN_SPEEDUP and not group.is_placebo
        else None,
    )


def execution_kind(group: RunGroup) -> str:
    """Return how the runs of an arm computed: "emulated", "unproven" or "native"."""
    found = {run.record.precision.resolved.get("execution") for run in group.runs}
    return next((word for word in ("emulated", "unproven") if word in found), "native")


def _ratios(group: RunGroup, other: RunGroup | None) -> list[float]:
    """Return step time of `other` / step time of the arm for each seed at which both finished.

    If their effective batches differ, the times are those per example.
    """
    if other is None or group.name == other.name:
        return []
    if "emulated" in map(execution_kind, (group, other)):  # not the speed of the hardware
        return []
    ratios = []
    for pair in zip(group.runs, other.runs, strict=True):
        step, other_step = (_number(run.record.timings, "step_seconds_median") for run in pair)
        size, other_size = (run.record.steps.effective_batch_size for run in pair)
        if all(run.is_finished for run in pair) and step and other_step:
            batches = size / other_size if size and other_size else 1.0
            ratios.append(other_step / step * batches)
    return ratios


def _reason(group: RunGroup, baseline: RunGroup, ratio: float) -> Remark:
    """Return why a native mode is not clearly faster, from measurements."""
    waiting = _median(group, "waiting_share")
    if waiting is not None and waiting > MAX_WAITING:
        return remark("waiting", share=waiting)
    growth = _median(baseline, "doubled_batch_ratio")
    if growth is not None and growth < MAX_GROWTH:
        return remark("launch_bound", baseline=baseline.name, growth=growth, limit=MAX_GROWTH)
    busy = _median(baseline, "utilisation")
    if busy is not None and busy < MIN_UTILISATION:
        return remark("small_products", baseline=baseline.name, busy=busy)
    if _has_unaligned_padding(group):
        return remark("unaligned")
    # The speed-up that is possible if only the products are faster (Amdahl, 1967).
    rates = [_median(side, "matrix_rate_gflops") for side in (group, baseline)]
    if busy is None or not rates[0] or not rates[1]:
        return remark("no_utilisation")
    gain = rates[0] / rates[1]
    possible = 1 / (1 - busy + busy / gain)
    return remark(
        "amdahl",
        arm=group.name,
        baseline=baseline.name,
        busy=busy,
        gain=gain,
        possible=possible,
        is_reached=ratio >= MIN_SHARE_OF_AMDAHL * possible,
    )


def _has_unaligned_padding(group: RunGroup) -> bool:
    record = group.finished[0].record
    length = record.arguments.get("pad_to_multiple_of")
    padded = bool(record.arguments.get("padding")) or length is not None
    return record.topology.device == "cuda" and padded and (length is None or length % 8 != 0)


def _median(group: RunGroup, name: str) -> float | None:
    values = list(_figures(group.finished, name))
    return statistics.median(values) if values else None


def _figures(runs: Sequence[RecordedRun], name: str) -> Iterable[float]:
    values = (_number(run.record.timings, name) for run in runs)
    return (value for value in values if value is not None)


def _number(timings: Mapping[str, Any], name: str) -> float | None:
    """Return a timing; None if it is missing or not finite."""
    value = timings.get(name)
    return float(value) if isinstance(value, int | float) else None


def memory(group: RunGroup, baseline: RunGroup) -> Memory | None:
    """Return medians over the finished runs; None if there are none or they measured no memory.

    Each part is a separate median, so the parts add up to the peak only approximately.

    Args:
        baseline: Runs of the baseline, possibly the same.
    """
    measured = [part for run in group.finished if (part := run.record.memory) is not None]
    if not measured:
        return None
    ratios = [
        run.record.memory.peak / base.record.memory.peak
        for run, base in zip(group.runs, baseline.runs, strict=True)
        if run.is_finished and base.is_finished and run.record.memory and base.record.memory
        if run.record.memory.peak and base.record.memory.peak
    ]
    medians: dict[str, int | None] = {}
    for name in MEMORY_PARTS:
        sizes = [size for part in measured if (size := getattr(part, name)) is not None]
        medians[name] = round(statistics.median(sizes)) if sizes else None
    return Memory(
        ratio=statistics.median(ratios) if ratios and group.name != baseline.name else None,
        protocol=measured[0].protocol,
        **medians,
    )


def curve(run: RecordedRun, metric: str) -> TrainingCurve:
    """Return the curve of a run; empty if the run left no history.

    A segment with a loss that is not finite has no mean, and its point is None.

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
    return TrainingCurve(
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


# Name in the report -> name of the argument.
SETTINGS = {
    "optimizer": "optim",
    "learning rate": "learning_rate",
    "learning rate decay per layer": "layer_decay",
    "schedule": "lr_scheduler_type",
    "epochs": "num_train_epochs",
    "weight decay": "weight_decay",
    "gradient clipping norm": "max_grad_norm",
    "maximum sequence length": "max_seq_length",
}
PACKAGES = ("ampft", "torch", "transformers", "accelerate", "numpy", "scikit-learn")


def title(records: Sequence[RunRecord]) -> str:
    """Return the title, such as "all-MiniLM-L6-v2 on stdlib (summary)"."""
    models = dict.fromkeys(record.model.name for record in records)
    data = dict.fromkeys(record.data.name for record in records)
    model = next(iter(models)) if len(models) == 1 else f"{len(models)} models"
    return f"{model} on {' and '.join(data)}"


def shared_settings(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return what all arms trained and how, in display order."""
    first, *others = map(_setup, records)
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _setup(record: RunRecord) -> dict[str, str]:
    sizes = ", ".join(f"{name} {count:,}" for name, count in record.data.examples.items())
    steps = record.steps
    batch = "unknown" if steps.effective_batch_size is None else f"{steps.effective_batch_size:,}"
    facts = {
        "model": f"{record.model.name}, {record.model.architecture}, "
        f"{record.model.parameters / 1e6:.1f} M parameters",
        "data": f"{record.data.name}: {sizes}; {outputs_text(record.label_names)}",
        "effective batch": batch,
        "optimizer steps": f"{steps.total:,}",
    }
    for title_, name in SETTINGS.items():
        value = record.arguments.get(name)
        if value is not None:
            facts[title_] = f"{value:g}" if isinstance(value, float) else str(value)
    return facts


def command(record: RunRecord) -> str:
    """Return the command of a run, with files and folders only by their names."""
    words = [re.sub(r"[^=\s]*/(?=.)", "", word) for word in record.command]
    program = ["ampft"] if words[:1] == ["__main__.py"] else words[:1]
    return shlex.join([*program, *words[1:]])


def environment(record: RunRecord) -> dict[str, str]:
    """Return hardware and versions, in display order."""
    topology, hardware = record.topology, record.hardware
    facts = {
        "device": f"{topology.device}, {counted(topology.num_processes, 'process')}, "
        f"{counted(topology.cpu_threads, 'CPU thread')}"
        + (" each" if topology.num_processes > 1 else "")
        + (", weights sharded (FSDP2)" if topology.sharded else "")
        + (f", compiled by {topology.compiled}" if topology.compiled else ""),
        **_machine(hardware),
        "Python": record.versions.get("python", "unknown"),
    }
    return facts | {name: record.versions[name] for name in PACKAGES if name in record.versions}


def _machine(hardware: Mapping[str, Any]) -> dict[str, str]:
    gpus = ", ".join(str(gpu) for gpu in hardware.get("gpus") or [])
    memory = hardware.get("memory_bytes")
    facts = {
        "GPU": gpus,
        "CPU": str(hardware.get("cpu") or ""),
        "cores": str(hardware.get("usable_cores") or ""),
        "memory": byte_size(memory) if isinstance(memory, int) else "",
        "system": str(hardware.get("system") or ""),
    }
    return {name: value for name, value in facts.items() if value}
