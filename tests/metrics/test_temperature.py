"""The temperature: equal to an independent minimisation, and none where there is no minimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from ampft.decision import sigmoid, softmax
from ampft.metrics.calibration import fit_temperature

SEEDS = range(5)


def classes(seed: int, factor: float, n: int = 400, k: int = 4):
    """Return logits of a calibrated model times a factor, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, k))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(k, p=row) for row in shares])
    return (factor * logits).astype(np.float32), labels


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_it_is_the_minimum_of_the_log_loss(seed, factor):
    logits, labels = classes(seed, factor)
    fitted = fit_temperature(logits, labels[:, None] == np.arange(4), several=False)

    def loss(log_temperature):
        scaled = logits.astype(np.float64) / np.exp(log_temperature)
        powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return log_loss(labels, powers / powers.sum(axis=1, keepdims=True), labels=range(4))

    found = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert np.log(fitted) == pytest.approx(found.x, abs=1e-5)
    assert fitted == pytest.approx(factor, rel=0.25), "the factor is undone"


@pytest.mark.parametrize("seed", SEEDS)
def test_several_labels_are_decisions_with_two_answers(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (300, 5))
    has = rng.random((300, 5)) < 1 / (1 + np.exp(-logits))
    fitted = fit_temperature(3 * logits, has, several=True)

    def loss(log_temperature):
        p = 1 / (1 + np.exp(-3 * logits / np.exp(log_temperature)))
        return log_loss(has.ravel(), np.column_stack([1 - p.ravel(), p.ravel()]))

    found = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert np.log(fitted) == pytest.approx(found.x, abs=1e-5)


def test_a_model_without_errors_has_no_temperature():
    logits = np.array([[5.0, 0.0], [0.0, 5.0]], dtype=np.float32)
    assert fit_temperature(logits, np.eye(2, dtype=bool), several=False) is None
    assert fit_temperature(logits, ~np.eye(2, dtype=bool), several=False) is None, "all wrong"


def test_large_logits_do_not_overflow():
    logits = np.array([[1e4, -1e4], [0.0, 1.0]], dtype=np.float32)
    assert np.isfinite(softmax(logits, 0.1)).all()
    assert np.isfinite(sigmoid(logits, 0.1)).all()
    assert softmax(logits, 2.0)[1] == pytest.approx(sigmoid(np.array([-0.5, 0.5])))
