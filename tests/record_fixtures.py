"""A run's record and report, like those of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ampft.features.resources import PeakMemory
from ampft.machine import hardware
from ampft.runs.record import (
    BestPart,
    DataPart,
    ModelPart,
    PrecisionPart,
    RunRecord,
    StepsPart,
    TopologyPart,
)
from ampft.tasks.single_label import ClassificationReport, Predictions, classification_report

# Labels and names that would do harm if they were not escaped.
HOSTILE = (
    "<script>alert(1)</script>",
    '" onload="alert(1)',
    "](javascript:alert(1))",
    "a|b`c\\",
    "\u202egnp.exe\nnext",
    "![x](http://evil.example/x.png) www.evil.example me@evil.example",
    "`` ` ``",
    "&lt;b&gt; **bold** # ",
    "---",
    " ",
)


def report_of(
    label_names: tuple[str, ...] = ("no", "yes", "maybe"), n: int = 40
) -> ClassificationReport:
    rng = np.random.default_rng(0)
    classes = len(label_names)
    labels = rng.integers(0, classes, n)
    scores = rng.uniform(0.1, 1, (n, classes))
    scores[np.arange(n), labels] += 0.5
    probabilities = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    predictions = Predictions(np.arange(n), labels, probabilities, label_names, "test")
    return classification_report(predictions)


def record_of(**changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "status": "finished",
        "arguments": {"learning_rate": 5e-5, "mixed_precision": "fp16", "train_file": None},
        "command": ["recipes/classify.py", "--mixed_precision", "fp16"],
        "task": "text",
        "label_names": ("no", "yes", "maybe"),
        "data": DataPart(
            name="reviews.csv",
            kind="text",
            input_columns=("text",),
            fingerprints={"train": "ab" * 32, "test": "cd" * 32},
            examples={"train": 2227, "test": 40},
            notes=("A tenth of train was made validation (stratified, seed 42).",),
        ),
        "model": ModelPart(
            name="all-MiniLM-L6-v2",
            architecture="BertForSequenceClassification",
            parameters=22_713_216,
            trainable_parameters=22_713_216,
            initial_weights_sha256="ef" * 32,
        ),
        "precision": PrecisionPart(
            requested="fp16",
            resolved={
                "mode": "fp16",
                "execution": "emulated",
                "reason": "this CPU has no AVX512-FP16",
                "compute_dtype": "float16",
                "uses_scaler": True,
            },
            executed={"rows": [{"kind": "projection", "count": 3}]},
            summary="projections float16 x float16 -> float16 (float32 sums), emulated",
        ),
        "topology": TopologyPart(num_processes=1, cpu_threads=2, device="cpu"),
        "steps": StepsPart(total=560, applied=558, skipped=2),
        "example_ids_sha256": "01" * 32,
        "timings": {"protocol": "median of steps", "total_seconds": 125.2},
        "memory": PeakMemory(peak=2**31, baseline=2**28, reserved=None, protocol="VmHWM"),
        "metrics": {"split": "test", "accuracy": 0.875},
        "best": BestPart(metric="macro_f1", epoch=3, value=0.8712),
        "hardware": hardware(),
    }
    return RunRecord(**values | changes)


@pytest.fixture
def hostile() -> tuple[str, ...]:
    return HOSTILE


@pytest.fixture
def make_report() -> Callable[..., ClassificationReport]:
    return report_of


@pytest.fixture
def make_record() -> Callable[..., RunRecord]:
    return record_of
