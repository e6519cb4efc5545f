"""Every task can be exported, and its artifact gives the logits of the run."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
from exported import (
    artifact_of,
    logits_of_run,
    train_images,
    train_pixels,
    train_sounds,
    train_texts,
    train_words,
)

from ampft.decision import Contract
from ampft.errors import InputError
from ampft.export import open_artifact
from ampft.export.artifact import artifact_classifier
from ampft.export.source import sample_rows
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file
from ampft.runs.record import read_record

pytestmark = pytest.mark.slow

# Relative to the largest logit: float32 sums in another order.
ROUNDING = 2e-6


def several_labels(folder):
    settings = {"several": True, "task": "multi-label", "tune_thresholds": True}
    return train_texts(folder, **settings)


TASKS = {
    "pairs": (lambda folder: train_texts(folder, pairs=True), (4, 3)),
    "several labels": (several_labels, (4, 3)),
    "words": (train_words, (24, 5)),
    "images": (train_images, (4, 3)),
    "sounds as spectra": (lambda folder: train_sounds(folder, "ast"), (4, 3)),
    "sounds as waves": (lambda folder: train_sounds(folder, "wav2vec2 layer norm"), (4, 3)),
    "sounds without a mask": (lambda folder: train_sounds(folder, "wav2vec2 group norm"), (4, 3)),
    "pixels": (train_pixels, (4, 3, 8, 8)),
}


# Each trace takes seconds; one of each kind always runs.
FULL = ("pairs", "words", "images", "sounds as waves", "sounds without a mask")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name in FULL)) for name in TASKS]
)
def test_the_logits_of_a_task(tmp_path, name):
    train, shape = TASKS[name]
    run = train(tmp_path)
    artifact = open_artifact(artifact_of(run, tmp_path, "onnx", "fp32"))
    columns = list(zip(*sample_rows(read_record(run), run), strict=True))
    expected = logits_of_run(run, columns)
    assert expected.shape == shape
    for batch_size in (1, 4):
        predictor = artifact.predictor(batch_size)
        with predictor.numerics:
            found = predictor.logits(columns)
        bound = ROUNDING * abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    if name == "several labels":
        check_thresholds(run, artifact, tmp_path)


def check_thresholds(run, artifact, folder) -> None:
    """Tuned thresholds are in the contract, and decide what is predicted."""
    contract = Contract.read(artifact.folder)
    assert len(contract.rule.decisions.thresholds) == 3
    assert contract == Contract.read(run)
    table = folder / "test.jsonl"
    with_artifact = partial(predict_file, classifier=artifact_classifier)
    for model, predict in ((run, predict_file), (artifact.folder, with_artifact)):
        output = folder / f"{model.name}.csv"
        predict(str(model), PredictRequest(files=[str(table)], output_file=str(output)))
    expected, found = (pd.read_csv(folder / f"{f.name}.csv") for f in (run, artifact.folder))
    assert found.prediction.equals(expected.prediction)


def test_a_kind_without_samples_is_refused(text_run, tmp_path, monkeypatch):
    from dataclasses import replace

    from ampft.runs.run_text import task_row

    def row_without_samples(record):
        row = task_row(record)
        return replace(row, kind=replace(row.kind, samples=None))

    monkeypatch.setattr("ampft.export.source.task_row", row_without_samples)
    with pytest.raises(InputError, match="models of the kind 'text' cannot be exported"):
        artifact_of(text_run, tmp_path, "onnx", "fp32")
    assert list(tmp_path.iterdir()) == []
