"""The trial before the plan: interruptions are ignored."""

from __future__ import annotations

import pytest

from ampft.comparison.execution.trial import mean_of_minima


def paused(*pauses):
    """Return a timer of steps 0 and 1 (0.1 and 0.2 s), whose calls in `pauses` take 18 s more."""
    calls = []

    def time_step(step):
        calls.append(step)
        return 0.1 * (step + 1) + 18.0 * (len(calls) - 1 in pauses)

    return time_step


@pytest.mark.parametrize("pauses", [(), (0,), (3,), (0, 1), (1, 2)])
def test_an_interruption_is_ignored(pauses):
    assert mean_of_minima(paused(*pauses), [0, 1]) == pytest.approx(0.15)


def test_constant_slowness_is_not_ignored():
    assert mean_of_minima(paused(0, 1, 2, 3), [0, 1]) == pytest.approx(18.15)
