"""The sums compared with planted noise, planted errors and explicit formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import BLOCKS, Planted, added, draw, norm

from ampft.lab.yardstick.figures import ErrorSums, NoiseSums, StepGradient
from ampft.lab.yardstick.measure import accumulate

ENTRIES = 697
SEEDS = 60


def measured(planted, batches, **modes):
    modes = modes or {"mode": planted}
    pairs = ((batch, batch) for batch in range(batches))
    noise, errors = accumulate(pairs, planted.exact, modes, BLOCKS)
    whole, parts = noise.figures()
    return whole, parts, {name: sums.figures(whole, parts) for name, sums in errors.items()}


def flat(gradient):
    return torch.cat([part.flatten() for part in gradient.values()]).numpy()


def test_the_sums_match_the_formulas():
    planted, n = Planted(bias=0.3, spread=0.2), 9
    whole, parts, errors = measured(planted, n)
    exact = np.stack([flat(planted.exact(b).gradient) for b in range(n)])
    error = np.stack([flat(planted(b).gradient) for b in range(n)]) - exact
    for columns, noise, result in (
        (slice(None), whole, errors["mode"][0]),
        (slice(0, 620), parts[0], errors["mode"][1][0]),
        (slice(620, None), parts[1], errors["mode"][1][1]),
    ):
        g, e = exact[:, columns], error[:, columns]
        variance = ((g - g.mean(0)) ** 2).sum() / (n - 1)
        pairs = [float(e[b] @ e[:b].sum(0)) for b in range(n)]
        assert noise.parameters == g.shape[1]
        assert noise.noise == pytest.approx(math.sqrt(variance), rel=1e-6)
        assert noise.gradient_norm == pytest.approx(np.linalg.norm(g.mean(0)), rel=1e-6)
        signal = math.sqrt((g.mean(0) ** 2).sum() - variance / n)
        assert noise.signal == pytest.approx(signal, rel=1e-6)
        rms = math.sqrt((e**2).sum() / n)
        assert result.error_over_noise == pytest.approx(rms / noise.noise, rel=1e-6)
        bias = math.sqrt(2 * sum(pairs) / (n * (n - 1)))
        assert result.bias_over_noise == pytest.approx(bias / noise.noise, rel=1e-5)
        z = sum(pairs) / math.sqrt(sum(h * h for h in pairs))
        assert result.bias_z == pytest.approx(z, rel=1e-5)


def test_planted_noise_signal_and_error_are_found():
    planted = Planted(bias=0.02, spread=0.05)
    whole, _, errors = measured(planted, 64)
    (result, _) = errors["mode"]
    # The covariance is the identity over 697 entries: its trace, within four standard errors.
    assert whole.noise == pytest.approx(math.sqrt(ENTRIES), rel=4 / math.sqrt(2 * 63 * ENTRIES))
    assert whole.signal == pytest.approx(norm(draw(0, 3.0)), rel=0.01)
    bias = norm(draw(1, 0.02))
    expected = math.sqrt(bias**2 + ENTRIES * 0.05**2) / math.sqrt(ENTRIES)
    assert result.error_over_noise == pytest.approx(expected, rel=0.02)
    assert result.bias_over_noise == pytest.approx(bias / math.sqrt(ENTRIES), rel=0.05)
    assert result.has_significant_bias


def test_an_exact_mode_has_no_error_and_a_differing_one_has():
    planted = Planted(bias=0.0, spread=0.0)
    off = replace(planted, spread=1e-9)
    _, _, errors = measured(planted, 8, exact=planted.exact, off=off)
    whole, modules = errors["exact"]
    for result in (whole, *modules):
        figures = (result.error_over_noise, result.bias_over_noise, result.bias_z, result.underflow)
        assert figures == (0.0, 0.0, 0.0, 0.0)
    assert errors["off"][0].error_over_noise == pytest.approx(1e-9, rel=0.05)


@pytest.mark.slow
def test_a_mode_without_bias_is_rarely_found_biased():
    alarms, squares, naive = 0, [], []
    for seed in range(SEEDS):
        planted = Planted(bias=0.0, spread=0.1, seed=10_000 * (seed + 1))
        _, _, errors = measured(planted, 12)
        alarms += errors["mode"][0].has_significant_bias
        errors_only = [flat(draw(planted.seed + 5000 + b, 0.1)) for b in range(12)]
        h = sum(
            float(e @ sum(errors_only[:b], np.zeros(ENTRIES))) for b, e in enumerate(errors_only)
        )
        squares.append(2 * h / (12 * 11))
        naive.append(float(np.mean(errors_only, axis=0) @ np.mean(errors_only, axis=0)))
    # 2.3 % by the normal distribution; three binomial standard errors above it.
    assert alarms / SEEDS <= 0.023 + 3 * math.sqrt(0.023 * 0.977 / SEEDS)
    # The estimate is unbiased, but the naive square of the mean is too large by error^2 / n.
    assert abs(np.mean(squares)) <= 4 * np.std(squares) / math.sqrt(SEEDS)
    assert np.mean(naive) == pytest.approx(ENTRIES * 0.1**2 / 12, rel=0.05)


def test_underflow_counts_entries_that_became_zero():
    exact = added(draw(3, 1.0))
    exact["second.weight"][0] = 0.0  # zero in the reference too, so not counted
    computed = {name: part.float() for name, part in exact.items()}
    computed["first.bias"][:5] = 0.0
    noise, errors = NoiseSums(BLOCKS), ErrorSums(BLOCKS)
    for factor in (1.0, 2.0):
        noise.add({name: factor * part for name, part in exact.items()})
        errors.add(StepGradient(computed), {name: factor * part for name, part in exact.items()})
    whole, (first, second) = errors.figures(*noise.figures())
    assert whole.underflow == pytest.approx(5 / (ENTRIES - 11))
    assert first.underflow == pytest.approx(5 / 620)
    assert second.underflow == 0.0


def test_a_failed_batch_leaves_no_figures():
    noise, errors = NoiseSums(BLOCKS), ErrorSums(BLOCKS)
    for batch in range(3):
        noise.add(draw(batch, 1.0))
        errors.add(
            StepGradient(None if batch == 1 else draw(batch, 1.0), overflowed=batch == 1),
            draw(batch, 1.0),
        )
    whole, _ = errors.figures(*noise.figures())
    assert (errors.failed, errors.overflowed) == (1, 1)
    assert whole.error_over_noise is None


def test_equal_batches_have_no_noise():
    noise, errors = NoiseSums(BLOCKS), ErrorSums(BLOCKS)
    for _ in range(2):
        noise.add(draw(0, 1.0))
        errors.add(StepGradient(draw(1, 1.0)), draw(0, 1.0))
    whole, parts = noise.figures()
    assert whole.noise <= 1e-6 * whole.gradient_norm
    assert errors.figures(whole, parts)[0].error_over_noise is None
