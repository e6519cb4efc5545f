"""Run folders as a recipe leaves them, with predictions that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.data.splits import Groups
from ampft.features.resources import PeakMemory
from ampft.runs.folder import RunFolder
from ampft.runs.predictions import write_predictions
from ampft.runs.record import (
    DataPart,
    ModelPart,
    PrecisionPart,
    RunRecord,
    StepsPart,
    TopologyPart,
    ValidationPart,
    write_record,
)
from ampft.tasks.outcome import Outcome
from ampft.tasks.single_label import Predictions, classification_report

SEEDS = (42, 43, 44, 45, 46)
NAMES = ("no", "yes", "maybe")
N = 200
MIB = 2**20


def labels(n: int = N, classes: int = len(NAMES)) -> np.ndarray:
    return np.arange(n, dtype=np.int64) % classes


def predicted(wrong: Iterable[int] = (), n: int = N) -> np.ndarray:
    """Return correct predictions except for the `wrong` examples, which get the next class."""
    classes = labels(n)
    classes[list(wrong)] = (classes[list(wrong)] + 1) % len(NAMES)
    return classes


def record_of(arm: str, seed: int, **changes: Any) -> RunRecord:
    """Return a run record. Everything that a fair comparison needs to be equal is equal."""
    placebo = arm == "placebo"
    mode = "fp32" if placebo else arm
    values: dict[str, Any] = {
        "status": "finished",
        "arguments": {
            "seed": seed,
            "mixed_precision": mode,
            "output_dir": f"{arm}-seed{seed}",
            "perturb_initial_weights": placebo,
            "learning_rate": 5e-5,
            "num_train_epochs": 3,
        },
        "command": ["recipes/classify.py", "--mixed_precision", mode],
        "task": "text",
        "label_names": NAMES,
        "data": DataPart(
            name="reviews.csv",
            kind="text",
            fingerprints={"train": "ab" * 32, "test": "cd" * 32},
            examples={"train": 1000, "test": N},
        ),
        "model": ModelPart(
            name="tiny",
            architecture="BertForSequenceClassification",
            parameters=1000,
            trainable_parameters=1000,
            initial_weights_sha256=f"{seed:064x}",
            perturbed=placebo,
            configuration={"hidden_act": "gelu"},
            preprocessing={"tokenizer.json": {"model": "ab" * 32}},
        ),
        "precision": PrecisionPart(
            requested="no" if mode == "fp32" else mode,
            resolved={"mode": mode, "execution": "emulated" if mode == "fp16" else "native"},
            summary=f"every product {mode}",
        ),
        "topology": TopologyPart(num_processes=1, cpu_threads=2, device="cpu"),
        "steps": StepsPart(
            total=60,
            applied=58 if mode == "fp16" else 60,
            skipped=2 if mode == "fp16" else 0,
            effective_batch_size=16,
        ),
        "example_ids_sha256": f"{seed:x}" * 16,
        "timings": {
            "step_seconds_median": {"bf16": 0.05, "fp16": 0.2}.get(mode, 0.1) + seed / 1e5,
            "waiting_share": 0.01,
            "utilisation": 0.6,
            "matrix_rate_gflops": {"bf16": 400.0}.get(mode, 180.0),
            "tokens_per_second": 1000.0,
            "training_seconds": 6.0,
            "total_seconds": 10.0,
        },
        "memory": PeakMemory(
            peak=(900 if mode == "bf16" else 1000) * MIB,
            baseline=100 * MIB,
            reserved=None,
            protocol="VmHWM",
        ),
        "validations": (
            ValidationPart(epoch=1, step=20, metrics={"accuracy": 0.5, "macro_f1": 0.4}),
            ValidationPart(epoch=2, step=40, metrics={"accuracy": 0.75, "macro_f1": 0.7}),
        ),
        "hardware": {"cpu": "a CPU", "gpus": [], "memory_bytes": 2**33, "usable_cores": 2},
        "versions": {"python": "3.13.5", "torch": "2.13.0", "transformers": "5.23.0"},
        "started": "2026-01-01T00:00:00+00:00",
    }
    return RunRecord(**values | changes)


def write_run(
    parent: Path,
    arm: str,
    seed: int,
    predictions: np.ndarray | None = None,
    *,
    in_fp32: np.ndarray | None = None,
    truth: np.ndarray | None = None,
    names: Sequence[str] = NAMES,
    confidence: float = 0.8,
    name: str | None = None,
    losses: Sequence[float | str] = (),
    rows: Sequence[Mapping[str, Any]] = (),
    groups: Groups | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder; `changes` go into its record.

    Args:
        parent: Parent of the folder.
        arm: Name of the arm.
        seed: Training seed.
        predictions: Predicted classes; None writes no predictions.
        in_fp32: Predicted classes of the same model in float32; None writes none.
        truth: Labels; None stands for `labels()`.
        names: Class names.
        confidence: Confidence of every prediction.
        name: Name of the folder; None stands for `{arm}-seed{seed}`.
        losses: Losses of the history, one per row.
        rows: Additional values of the history's rows.
        groups: Groups of the examples.
    """
    path = parent / (name or f"{arm}-seed{seed}")
    record = record_of(arm, seed, **changes)
    with RunFolder(path) as folder:
        if predictions is not None:
            written = _predictions(predictions, truth, names, confidence)
            metrics = classification_report(written).metrics()
            selected = {"split": "test", "selected": False}
            record = replace(record, metrics={**metrics, **selected, **record.metrics})
            file = folder / "predictions.parquet"
            write_predictions(file, written, _texts, groups=groups, rows_per_group=64)
        if in_fp32 is not None:
            written = _predictions(in_fp32, truth, names, confidence)
            write_predictions(folder / "predictions_fp32.parquet", written, _texts)
        if losses:
            more = rows or [{} for _ in losses]
            history = [
                {"step": step, "loss": loss, "loss_scale": None, "skipped": False, **row}
                for step, (loss, row) in enumerate(zip(losses, more, strict=True), 1)
            ]
            folder.write_text("history.jsonl", "".join(json.dumps(row) + "\n" for row in history))
        write_record(folder, record)
    return path


def write_runs(
    parent: Path,
    wrong: Mapping[str, Sequence[Sequence[int]]],
    *,
    seeds: Sequence[int] = SEEDS,
    **changes: Any,
) -> list[Path]:
    """Write a run for each arm and seed, given its wrong examples."""
    return [
        write_run(parent, arm, seed, predicted(examples), **changes)
        for arm, per_seed in wrong.items()
        for seed, examples in zip(seeds, per_seed, strict=True)
    ]


def write_outcomes(
    parent: Path,
    outcomes: Mapping[str, Sequence[Outcome]],
    references: Callable[[slice], dict[str, list[str]]] | None = None,
    arguments: Mapping[str, Any] | None = None,
    **changes: Any,
) -> list[Path]:
    """Write a run for each arm and seed, given its predictions; `changes` go into the records.

    Args:
        parent: Parent of the folders.
        outcomes: Predictions of each arm, in the order of `SEEDS`.
        references: Function that returns the input columns of some rows; None writes any texts.
        arguments: Further settings of all runs.
    """
    folders = []
    for arm, each in outcomes.items():
        for seed, outcome in zip(SEEDS, each, strict=True):
            metrics = {**outcome.report().metrics(), "split": outcome.split, "selected": False}
            settings = {**record_of(arm, seed).arguments, **(arguments or {})}
            record = record_of(
                arm,
                seed,
                arguments=settings,
                label_names=outcome.label_names,
                validations=(),
                metrics=metrics,
                **changes,
            )
            with RunFolder(parent / f"{arm}-{seed}") as folder:
                file = folder / "predictions.parquet"
                write_predictions(file, outcome, references or _texts, rows_per_group=50)
                write_record(folder, record)
            folders.append(folder.path)
    return folders


def assert_has_interval(
    folders: Sequence[Path], outcomes: Mapping[str, Sequence[Outcome]], metric: str
) -> None:
    """Check that bf16 is compared with fp32 in a metric, with an interval."""
    arm = compare_folders(folders, metric=metric).arm("bf16")
    own, base = ([each.metrics()[metric] for each in outcomes[name]] for name in ("bf16", "fp32"))
    assert arm.metrics[metric].per_seed == pytest.approx(own, abs=1e-12)
    assert arm.difference is not None
    assert arm.difference.estimate == pytest.approx(np.mean(own) - np.mean(base), abs=1e-12)
    low, high = arm.difference.interval95
    assert low < arm.difference.estimate < high


def _predictions(
    predicted_classes: np.ndarray, truth: np.ndarray | None, names: Sequence[str], confidence: float
) -> Predictions:
    n, classes = len(predicted_classes), len(names)
    shares = np.full((n, classes), (1 - confidence) / (classes - 1), dtype=np.float32)
    shares[np.arange(n), predicted_classes] = confidence
    truth = labels(n, classes) if truth is None else truth
    return Predictions(np.arange(n), truth, shares, tuple(names), "test")


def _texts(rows: slice) -> dict[str, list[str]]:
    return {
        "text": [f"text {i} " + "word " * (60 * (i == 7)) for i in range(rows.start, rows.stop)]
    }
