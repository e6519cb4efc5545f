"""Certificates of made-up predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampft.comparison.findings import BatchTiming
from ampft.export.certificate.certificate import (
    UNDECIDED,
    ArtifactDtypes,
    BatchInvariance,
    Certificate,
    Cost,
    Finding,
    ProductCount,
)
from ampft.export.certificate.gate import (
    BATCH_SIZES,
    CLASS_MARGIN,
    TOLERANCES,
    LogitTally,
    compare_outcomes,
    with_verdict,
)
from ampft.tasks.single_label import Predictions

NAMES = ("ant", "bee", "cow", "<script>")
FLOAT32 = ArtifactDtypes(
    weights={"float32": 4_000_000},
    products=(
        ProductCount(operator="MatMul", inputs=("float32", "float32"), count=12, with_weights=True),
    ),
    source="profile of onnxruntime 1",
)
INT8 = ArtifactDtypes(
    weights={"int8": 900_000, "float32": 100_000},
    products=(
        ProductCount(
            operator="DynamicQuantizeMatMul", inputs=("uint8", "int8"), count=12, with_weights=True
        ),
    ),
    source="profile of onnxruntime 1",
)
TIMES = tuple(
    BatchTiming(batch_size=size, seconds=0.01, quartiles=(0.009, 0.011), speed_up=None)
    for size in BATCH_SIZES
)


def drawn(rows: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, of which the last class has few, and the logits of a good model."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(4), rng.choice(4, rows - 4, p=[0.5, 0.3, 0.17, 0.03])])
    logits = rng.normal(0, 1, (rows, 4))
    logits[np.arange(rows), labels] += 3
    return labels, logits


def outcome(logits: np.ndarray, labels: np.ndarray) -> Predictions:
    """Return the predictions of logits."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Predictions(
        example_ids=np.arange(len(labels)),
        labels=labels,
        probabilities=(shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32),
        label_names=NAMES,
        split="test",
    )


def certificate(
    labels: np.ndarray,
    model: np.ndarray,
    artifact: np.ndarray,
    *,
    precision: str = "int8",
    scales_rows: bool = False,
    refused: Sequence[Finding] = (),
    **measured: Any,
) -> Certificate:
    """Return the certificate of an artifact's logits."""
    comparison, classes = compare_outcomes(
        outcome(model, labels), outcome(artifact, labels), name=f"onnx {precision}"
    )
    tally = LogitTally(TOLERANCES.get(precision))
    tally.add(model, artifact)
    draft = Certificate(
        verdict=UNDECIDED,
        failures=tuple(refused),
        notes=(),
        comparison=replace(comparison, title="a model on its data"),
        classes=classes,
        class_margin=CLASS_MARGIN,
        logits=tally.differences(),
        batches=invariance(artifact, artifact, precision),
        dtypes=INT8 if precision == "int8" else FLOAT32,
        cost=Cost(size=2**20, model_size=2**22, timings=TIMES, model_timings=TIMES, peak=2**28),
        artifact={
            "format": "onnx",
            "precision": precision,
            "int8": "blocks" if scales_rows else "dynamic",
        },
        artifact_sha256="a" * 64,
        run_sha256="b" * 64,
        rows_sha256="c" * 64,
        verify="test",
    )
    return with_verdict(replace(draft, **measured))


def invariance(one: np.ndarray, other: np.ndarray, precision: str) -> BatchInvariance:
    """Return how logits in batches of one differ from those in larger batches."""
    tally = LogitTally(TOLERANCES.get(precision))
    tally.add(one, other)
    changed = int((one.argmax(axis=1) != other.argmax(axis=1)).sum())
    return BatchInvariance(
        sizes=BATCH_SIZES, rows=len(one), changed=changed, logits=tally.differences()
    )


def without_times(made: Certificate) -> Certificate:
    """Return a certificate of an artifact that was not timed."""
    return replace(made, cost=Cost(size=made.cost.size, model_size=made.cost.model_size))
