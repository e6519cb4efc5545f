"""README.md of a run: a model card with the metrics in the hub's metadata format."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCardData

from ampft.metrics.classification import Report
from ampft.metrics.scores import Scores
from ampft.text.markdown import code, metadata_text, prose, table
from ampft.runs.record import RunRecord
from ampft.runs.show import (precision_words, steps_words)
from ampft.text.numbers import (counted, duration)

# The hub's names: https://huggingface.co/tasks
PIPELINES = {"text": "text-classification", "image": "image-classification"}
ONE_INPUT = {"text": '"a text"', "image": '"a picture.png"'}
TWO_INPUTS = '{"text": "one text", "text_pair": "another"}'


def model_card(record: RunRecord, report: Report) -> str:
    """Return the card: YAML metadata, then Markdown in which labels and names are inert.

    The licence is left to whoever publishes the model. Nothing is sent anywhere: `validate` of
    huggingface_hub would call the hub, and is not used.

    Args:
        record: The finished run.
        report: Its final report.
    """
    sections = [
        f"---\n{_metadata(record, report).to_yaml()}\n---",
        _introduction(record, report),
        _use(record),
        _precision(record),
        _results(report),
        _data(record, report),
        _training(record),
        _versions(record),
    ]
    return "\n\n".join(sections) + "\n"


def _metadata(record: RunRecord, report: Report) -> ModelCardData:
    task = PIPELINES.get(record.data.kind)
    figures = {
        "accuracy": ("Accuracy", report.accuracy),
        "f1": ("Macro F1", report.macro_f1),
    }
    results = [
        EvalResult(
            task_type=task or record.data.kind,
            dataset_type=record.data.hub_id or "local",
            dataset_name=metadata_text(record.data.name),
            dataset_split=metadata_text(report.split),
            metric_type=kind,
            metric_name=name,
            metric_value=round(value, 6),
            metric_args={"average": "macro"} if kind == "f1" else None,
        )
        for kind, (name, value) in figures.items()
    ]
    mode = record.precision.resolved.get("mode", record.precision.requested)
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        base_model=record.model.hub_id,
        datasets=record.data.hub_id,
        metrics=list(figures),
        tags=["ampft", "mixed-precision", str(mode)],
        model_name=metadata_text(f"{record.model.name} on {record.data.name}"),
        eval_results=results,
    )


def _introduction(record: RunRecord, report: Report) -> str:
    return (
        f"# {code(record.model.name)} on {code(record.data.name)}\n\n"
        f"{prose(record.model.architecture)}, {record.model.parameters / 1e6:.1f} M parameters, "
        f"fine-tuned to tell {counted(len(record.label_names), 'class')} apart. "
        f"On {code(report.split)} ({counted(report.examples, 'example')}): "
        f"accuracy {report.accuracy:.4f}, macro F1 {report.macro_f1:.4f}."
    )


def _use(record: RunRecord) -> str:
    task = PIPELINES.get(record.data.kind, record.data.kind)
    is_pair = len(record.data.input_columns) == 2
    example = TWO_INPUTS if is_pair else ONE_INPUT.get(record.data.kind, "...")
    return (
        "## Use\n\n```python\nfrom transformers import pipeline\n\n"
        f'classify = pipeline("{task}", model="path/to/this/folder")\n'
        f"classify({example})\n```"
    )


def _precision(record: RunRecord) -> str:
    executed = record.precision.summary
    stored = record.precision.resolved.get("storage_dtype") or "float32"
    measured = f"\n\nMeasured in the first step: {prose(executed)}." if executed else ""
    return (
        f"## Precision\n\nTrained in {prose(precision_words(record))}.{measured}\n\n"
        f"The saved weights are {prose(str(stored))}; the model runs in any precision."
    )


def _results(report: Report) -> str:
    rows = [_row(code(n), s) for n, s in zip(report.label_names, report.per_class, strict=True)]
    averages = {"**macro average**": report.macro_avg, "**weighted average**": report.weighted_avg}
    rows += [_row(name, scores) for name, scores in averages.items()]
    others = {
        "balanced accuracy": report.balanced_accuracy,
        "Cohen's kappa": report.cohen_kappa,
        "Matthews correlation": report.matthews,
        "log loss (nats)": report.log_loss,
        "Brier score (0 to 2)": report.brier,
        "expected calibration error (15 bins)": report.expected_calibration_error,
    }
    words = (f"{name} {'undefined' if v is None else f'{v:.4f}'}" for name, v in others.items())
    header = ("class", "precision", "recall", "F1", "support")
    return f"## Results\n\n{table(header, rows)}\n\nAlso: {', '.join(words)}."


def _row(name: str, scores: Scores) -> list[str]:
    values = (scores.precision, scores.recall, scores.f1)
    return [name, *(f"{value:.3f}" for value in values), f"{scores.support:,}"]


def _data(record: RunRecord, report: Report) -> str:
    rows = [
        (code(split), code(record.data.fingerprints.get(split, "unknown")), f"{size:,}")
        for split, size in record.data.examples.items()
    ]
    notes = "\n".join(f"- {prose(note)}" for note in record.data.notes)
    return (
        f"## Data\n\n{table(('split', 'SHA-256 of the contents', 'examples'), rows, left=2)}\n\n"
        f"The results are those of {code(report.split)}." + (f"\n\n{notes}" if notes else "")
    )


def _training(record: RunRecord) -> str:
    seconds = record.timings.get("training_seconds", record.timings.get("total_seconds"))
    time = f", {duration(seconds)}" if isinstance(seconds, int | float) else ""
    cpu = record.hardware.get("cpu")
    gpus = record.hardware.get("gpus") or []
    machine = ", ".join(str(gpu) for gpu in gpus) if gpus else str(cpu or "an unknown CPU")
    best = ""
    if record.best is not None:
        best = f" Kept: epoch {record.best.epoch}, the best by {code(record.best.metric)}."
    return (
        f"## Training\n\nOptimizer steps: {steps_words(record)}{time} on {prose(machine)}.{best} "
        "Every setting stands in `run.json`, every step in `history.jsonl`."
    )


def _versions(record: RunRecord) -> str:
    return "## Versions\n\n" + ", ".join(
        f"{prose(name)} {prose(version)}" for name, version in record.versions.items()
    )
