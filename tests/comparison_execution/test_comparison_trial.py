"""The trial before the plan: a pause of the machine does not count; FSDP is refused at once."""

from __future__ import annotations

import pytest

from ampft.comparison.execution.trial import mean_of_least, measure
from ampft.errors import InputError


def paused(*pauses):
    """Return a timer of steps 0 and 1, of 0.1 and 0.2 s; the calls of `pauses` take 18 s more."""
    calls = []

    def timed(step):
        calls.append(step)
        return 0.1 * (step + 1) + 18.0 * (len(calls) - 1 in pauses)

    return timed


@pytest.mark.parametrize("pauses", [(), (0,), (3,), (0, 1), (1, 2)])
def test_a_pause_of_the_machine_does_not_count(pauses):
    assert mean_of_least(paused(*pauses), [0, 1]) == pytest.approx(0.15)


def test_a_machine_that_is_always_slow_counts():
    assert mean_of_least(paused(0, 1, 2, 3), [0, 1]) == pytest.approx(18.15)


def test_sharding_is_refused_before_the_data_are_looked_at(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    words = ["--train_file", "absent.csv"]
    request = {"words": words, "modes": ("fp32",), "launched": 0.0}
    with pytest.raises(InputError, match=r"^--config_file: .*FSDP, which comparisons do not"):
        measure(request)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    with pytest.raises(InputError, match=r"absent\.csv"):
        measure(request)
