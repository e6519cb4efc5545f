"""A budget takes epochs, then training examples; what is left fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import ESTIMATE, SIZE

from ampft.comparison.execution.estimate import Estimate, ModeCost, Size, fit
from ampft.errors import InputError
from ampft.text.numbers import about

RUNS = ["fp32", "fp32", "bf16"] * 3
SECONDS = st.floats(1e-4, 10)


@st.composite
def estimates(draw) -> Estimate:
    cost = st.builds(ModeCost, step=SECONDS, evaluated_example=SECONDS)
    size = Size(
        epochs=draw(st.integers(1, 40)),
        train_examples=draw(st.integers(1, 100_000)),
        max_steps=draw(st.none() | st.integers(1, 5000)),
    )
    return replace(
        ESTIMATE,
        startup=draw(SECONDS),
        modes={"fp32": draw(cost), "bf16": draw(cost)},
        size=size,
        effective_batch_size=draw(st.integers(1, 512)),
        validation_examples=draw(st.integers(0, 500)),
        classes=draw(st.integers(2, 50)),
    )


@given(estimate=estimates(), share=st.floats(0.01, 1.5))
def test_what_is_left_fits_and_a_little_more_would_not(estimate, share):
    asked = estimate.size
    budget = share * estimate.total_seconds(RUNS, asked)
    least = replace(asked, epochs=1, train_examples=estimate.least_examples())
    if asked.max_steps:
        least = replace(asked, max_steps=1)
    if estimate.total_seconds(RUNS, least) > budget:
        with pytest.raises(InputError, match="it never takes away seeds or evaluation data"):
            fit(estimate, RUNS, budget)
        return
    fitted = fit(estimate, RUNS, budget)
    size = fitted.size
    assert estimate.total_seconds(RUNS, size) <= budget
    if size == asked:
        assert (fitted.overrides, fitted.sentences) == ({}, ())
        return
    assert len(fitted.overrides) == len(fitted.sentences) > 0
    larger = {
        "max_train_samples": replace(size, train_examples=size.train_examples + 1),
        "max_train_steps": replace(size, max_steps=(size.max_steps or 0) + 1),
        "num_train_epochs": replace(size, epochs=size.epochs + 1),
    }
    finest = next(name for name in larger if name in fitted.overrides)
    assert estimate.total_seconds(RUNS, larger[finest]) > budget
    assert size.train_examples == asked.train_examples or size.epochs == 1


def test_no_budget_takes_nothing():
    assert fit(ESTIMATE, RUNS, None).size == SIZE
    assert fit(ESTIMATE, RUNS, 1e9).sentences == ()


def test_epochs_go_first_and_that_is_said():
    fitted = fit(ESTIMATE, RUNS, 600)
    assert dict(fitted.overrides) == {"num_train_epochs": 3}
    assert fitted.sentences == ("--num_train_epochs 3 in place of 5, to fit the budget.",)


def test_then_training_examples_go():
    fitted = fit(ESTIMATE, RUNS, 180)
    assert list(fitted.overrides) == ["num_train_epochs", "max_train_samples"]
    assert fitted.size.epochs == 1
    assert 96 <= fitted.size.train_examples < 1642


def test_what_never_fits_is_refused_with_the_least_it_takes():
    with pytest.raises(InputError, match=r"--budget: 60 s are left for 9 runs.* about 2 min\."):
        fit(ESTIMATE, RUNS, 60)


def test_the_estimate_of_a_run_by_hand():
    size = Size(epochs=2, train_examples=33)  # 3 steps per epoch
    evaluated = (2 * 251 + 648) * 0.002 + 648 * 0.004
    assert ESTIMATE.run_seconds("bf16", size) == pytest.approx(9 + 6 * 0.1 + evaluated)
    by_steps = replace(size, max_steps=4)
    assert ESTIMATE.run_seconds("bf16", by_steps) == pytest.approx(9 + 4 * 0.1 + evaluated)


@pytest.mark.parametrize(
    ("seconds", "words"), [(9.4, "9 s"), (99, "99 s"), (720, "12 min"), (7500, "2 h 5 min")]
)
def test_estimates_are_said_no_more_precisely_than_they_are(seconds, words):
    assert about(seconds) == words
