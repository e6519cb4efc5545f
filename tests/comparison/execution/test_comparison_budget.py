"""A budget reduces epochs, then training examples, until the runs fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import ESTIMATE, SIZE, plan

from ampft.comparison.execution.plan import CostEstimate, ModeCost, TrainingSize
from ampft.comparison.execution.planning import fit_to_budget, total_seconds
from ampft.comparison.remarks import remark_texts
from ampft.errors import InputError
from ampft.text.numbers import approximate_duration

SECONDS = st.floats(1e-4, 10)


@st.composite
def estimates(draw) -> CostEstimate:
    cost = st.builds(ModeCost, step=SECONDS, evaluated_example=SECONDS)
    size = TrainingSize(
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


@pytest.mark.slow
@given(estimate=estimates(), share=st.floats(0.01, 1.5))
def test_the_reduced_size_fits_and_a_little_more_would_not(estimate, share):
    requested, planned = estimate.size, plan(estimate=estimate, size=estimate.size)
    budget = share * total_seconds(planned)
    minimum = replace(requested, epochs=1, train_examples=estimate.min_examples())
    if requested.max_steps:
        minimum = replace(requested, max_steps=1)
    if total_seconds(planned, minimum) > budget:
        with pytest.raises(InputError, match="never reduces seeds or evaluation data"):
            fit_to_budget(planned, budget)
        return
    fitted = fit_to_budget(planned, budget)
    size = fitted.size
    assert total_seconds(planned, size) <= budget
    if size == requested:
        assert (fitted.overrides, fitted.reductions) == ({}, ())
        return
    assert len(fitted.overrides) == len(fitted.reductions) > 0
    larger = {
        "max_train_samples": replace(size, train_examples=size.train_examples + 1),
        "max_train_steps": replace(size, max_steps=(size.max_steps or 0) + 1),
        "num_train_epochs": replace(size, epochs=size.epochs + 1),
    }
    finest = next(name for name in larger if name in fitted.overrides)
    assert total_seconds(planned, larger[finest]) > budget
    assert size.train_examples == requested.train_examples or size.epochs == 1


def test_no_budget_reduces_nothing():
    assert fit_to_budget(unreduced := plan(), 1e9) == unreduced
    assert unreduced.size == SIZE


def test_epochs_are_reduced_first_with_a_note():
    fitted = fit_to_budget(plan(), 600)
    assert dict(fitted.overrides) == {"num_train_epochs": 3}
    assert remark_texts(fitted.reductions) == (
        "--num_train_epochs reduced from 5 to 3 to fit the budget.",
    )


def test_training_examples_are_reduced_next():
    fitted = fit_to_budget(plan(), 180)
    assert list(fitted.overrides) == ["num_train_epochs", "max_train_samples"]
    assert fitted.size.epochs == 1
    assert 96 <= fitted.size.train_examples < 1642


def test_a_budget_that_is_too_small_is_refused_with_the_minimum_time():
    with pytest.raises(InputError, match=r"--budget: 60 s are left for 9 runs.* about 2 min\."):
        fit_to_budget(plan(), 60)


def test_the_estimate_of_a_run_by_hand():
    size = TrainingSize(epochs=2, train_examples=33)  # 3 steps per epoch
    evaluated = (2 * 251 + 648) * 0.002 + 648 * 0.004
    assert ESTIMATE.run_seconds("bf16", size) == pytest.approx(9 + 6 * 0.1 + evaluated)
    more_often = replace(ESTIMATE, eval_steps=2)  # 3 validations instead of 2
    assert more_often.run_seconds("bf16", size) == pytest.approx(9 + 6 * 0.1 + evaluated + 0.502)
    by_steps = replace(size, max_steps=4)
    assert ESTIMATE.run_seconds("bf16", by_steps) == pytest.approx(9 + 4 * 0.1 + evaluated)


@pytest.mark.parametrize(
    ("seconds", "words"), [(9.4, "9 s"), (99, "99 s"), (720, "12 min"), (7500, "2 h 5 min")]
)
def test_estimates_are_rounded_to_their_precision(seconds, words):
    assert approximate_duration(seconds) == words
