"""The result of a run in the hub's format for evaluations, `.eval_results/NAME.yaml`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from ampft.runs.show import describe_precision
from ampft.text.numbers import counted

if TYPE_CHECKING:
    from ampft.runs.record import RunRecord
    from ampft.tasks.outcome import Report

EVAL_RESULTS_FOLDER = ".eval_results"
_Z = 1.959964  # 0.975 quantile of the standard normal distribution


def eval_results(record: RunRecord, report: Report) -> tuple[str, str] | None:
    """Return the path in the repository and the YAML of the primary metric.

    None if the data are not from the hub, or only a part of the split was predicted: the hub shows
    such a result beside others on the same data set.

    Args:
        record: Record of a finished run.
        report: Its final report.
    """
    hub_id = record.data.hub_id
    if hub_id is None or record.arguments.get("max_predict_samples") is not None:
        return None
    metric = report.hub_metrics()[0]
    entry = EvalResultEntry(
        dataset_id=hub_id,
        task_id=str(record.arguments.get("dataset_config_name") or "default"),
        value=round(metric.value, 6),
        date=record.started,
        notes=_notes(record, report),
    )
    text = yaml.safe_dump(
        eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=1000
    )
    return f"{EVAL_RESULTS_FOLDER}/{hub_id.replace('/', '--')}.yaml", text


def _notes(record: RunRecord, report: Report) -> str:
    metric = report.hub_metrics()[0]
    fingerprint = record.data.fingerprints.get(report.split)
    parts = [f"{metric.title} on {report.split}, {counted(report.examples, 'example')}"]
    interval = accuracy_interval(record, report)
    if interval is not None:
        parts.append(interval_text(interval))
    if fingerprint is not None:
        parts.append(f"SHA-256 of the examples {fingerprint}")
    parts.append(f"trained in {describe_precision(record)}, seed {record.arguments.get('seed')}")
    return "; ".join(parts)


def accuracy_interval(record: RunRecord, report: Report) -> tuple[float, float] | None:
    """Return the 95 % interval of the accuracy over examples (Wilson 1927).

    It holds for this model on other examples like these, not for another training. None if the
    first metric of the report is not the accuracy over independent examples.

    Args:
        record: Record of the run.
        report: Its final report.
    """
    metric = report.hub_metrics()[0]
    if metric.kind != "accuracy" or record.arguments.get("group_column") or not report.examples:
        return None
    n, share = report.examples, metric.value
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval as a clause for readers."""
    return f"95 % interval over examples {interval[0]:.4f} to {interval[1]:.4f}"
