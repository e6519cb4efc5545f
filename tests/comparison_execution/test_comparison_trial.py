"""The trial before the plan: interruptions are ignored, and FSDP is refused at once."""

from __future__ import annotations

import pytest

from ampft.comparison.execution.trial import mean_of_minima, run_trial
from ampft.errors import InputError


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


def test_sharding_is_refused_before_the_data_is_read(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    argv = ["--train_file", "absent.csv"]
    request = {"classify_argv": argv, "modes": ("fp32",), "launched": 0.0}
    with pytest.raises(InputError, match=r"^--config_file: .*FSDP, which comparisons do not"):
        run_trial(request)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    with pytest.raises(InputError, match=r"absent\.csv"):
        run_trial(request)
