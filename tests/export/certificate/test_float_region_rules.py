"""The three rules by which the search for modules in float32 judges an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made import outcome

from ampft.export.certificate import float_region
from ampft.export.certificate.verify import RowPredictions

ROWS, MARGIN = 100, 0.05
LABELS = np.zeros(ROWS, dtype=np.int64)


@dataclass(frozen=True)
class Source:
    kept: tuple[str, ...] = ()
    record: None = None


def logits_of(wrong: int) -> np.ndarray:
    """Return logits that are wrong, by little, in the first rows."""
    logits = np.tile([3.0, 0.0, 0.0, 0.0], (ROWS, 1))
    logits[:20] = [0.02, 0.0, 0.0, 0.0]
    logits[:wrong] = [0.0, 0.02, 0.0, 0.0]
    return logits


def predictor(logits: np.ndarray) -> SimpleNamespace:
    def of(name, targets, decoded):
        return outcome(decoded, targets)

    return SimpleNamespace(logits=logits, problem=SimpleNamespace(outcome=of))


def predicted(model, rows, some, size) -> RowPredictions:
    logits = {int(row): torch.from_numpy(model.logits[row]) for row in some}
    labels = {row: str(int(each.argmax())) for row, each in logits.items()}
    return RowPredictions(labels=labels, logits=logits, decoded=model.logits[some])


@pytest.fixture
def search(monkeypatch):
    """Return a function: from logits of the model and of artifacts by kept modules to a search."""

    def begin(model, artifacts):
        class Rows(list):
            name, targets = "test", LABELS

        found = {"precision": "bf16"}
        monkeypatch.setattr(float_region, "batches_by_length", lambda *_: [np.arange(ROWS)])
        monkeypatch.setattr(float_region, "predict_rows", predicted)
        monkeypatch.setattr(
            float_region,
            "write_artifact",
            lambda folder, source, write: SimpleNamespace(**found, kept=source.kept),
        )
        monkeypatch.setattr(
            float_region,
            "load_artifact",
            lambda folder, manifest, record: SimpleNamespace(
                predictor=lambda size: predictor(artifacts[manifest.kept])
            ),
        )
        rows = Rows([("a",)] * ROWS)
        return float_region._Search(Source(), None, rows, predictor(model), MARGIN)

    return begin


@pytest.mark.parametrize(
    ("model", "artifact", "holds"),
    [
        (0, 0, (True, True, True)),
        (0, 5, (True, True, True)),  # as many as the margin allows
        (0, 6, (True, False, False)),
        (0, 11, (False, False, False)),
        (11, 0, (True, True, False)),  # a gain, but more changed predictions than allowed
    ],
)
def test_a_loss_counts_against_an_artifact_and_a_gain_as_a_change(search, model, artifact, holds):
    found = search(logits_of(model), {(): logits_of(artifact)})
    assert found.holds(()) == holds


def test_modules_in_float32_are_added_and_remembered(search):
    found = search(logits_of(0), {(): logits_of(11), ("a", "b"): logits_of(0)})
    assert (found.holds(()), found.holds(("a", "b"))) == ((False,) * 3, (True,) * 3)
    assert found.holds(("b", "a")) == (True,) * 3
    assert set(found.results) == {frozenset(), frozenset(("a", "b"))}


@pytest.mark.parametrize(("row", "value"), [(50, -np.inf), (slice(None), -9.0)])
def test_no_rule_holds_for_logits_that_are_infinite_or_far_off(search, row, value):
    artifact = logits_of(0)
    artifact[row, 1] = value  # the same predictions
    assert search(logits_of(0), {(): artifact}).holds(()) == (False,) * 3
