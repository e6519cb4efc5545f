"""The time of a step at twice the batch, and the note on a training that is launch-bound."""

import time
from dataclasses import replace

import pytest
import torch
from exact_step import Training, flat_weights, tensor_problem

from ampft.engine.launch_bound import (
    MAX_GROWTH,
    doubled_batch_ratio,
    doubled_batch_timings,
    is_launch_bound,
    launch_bound_note,
)

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
SECONDS = 0.012


def trained(seconds):
    """A training whose loss takes `seconds(examples)` longer than its arithmetic."""
    problem = tensor_problem(n=12)

    def loss(model, micro_batch):
        time.sleep(seconds(len(micro_batch.ids)))
        return problem.loss(model, micro_batch)

    training = Training("fp32", replace(problem, loss=loss), 4)
    next(training.steps())
    return training


def ratio_of(training, measure=doubled_batch_ratio):
    return measure(training.accelerator, training.model, training.problem.loss, training.batches)


@pytest.mark.slow
def test_a_fixed_cost_per_step_is_launch_bound():
    training = trained(lambda examples: SECONDS)
    weights, state = flat_weights(training.model), torch.get_rng_state()
    ratio = ratio_of(training)
    assert 0.8 < ratio < MAX_GROWTH
    assert torch.equal(flat_weights(training.model), weights)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in training.model.parameters())


@pytest.mark.slow
def test_a_cost_per_example_is_not():
    ratio = ratio_of(trained(lambda examples: SECONDS * examples / 4))
    assert ratio > 1.6
    assert not is_launch_bound({"doubled_batch_ratio": ratio})


@pytest.mark.slow
def test_a_batch_that_does_not_fit_twice_is_not_measured():
    def too_large(examples):
        if examples > 4:
            raise torch.OutOfMemoryError("planted")
        return 0.0

    assert ratio_of(trained(too_large)) is None


def test_nothing_is_measured_on_a_cpu():
    training = trained(lambda examples: 0.0)
    growth = ratio_of(training, doubled_batch_timings)
    assert growth["doubled_batch_ratio"] is None
    assert "measured on accelerators" in growth["doubled_batch_protocol"]


def test_the_note_states_the_rule():
    note = launch_bound_note({"doubled_batch_ratio": 1.034})
    assert note is not None
    assert note.startswith("launch-bound: twice the batch takes 1.03 times as long (below 1.25")
    assert launch_bound_note({"doubled_batch_ratio": MAX_GROWTH}) is None
    assert launch_bound_note({"doubled_batch_ratio": None}) is None
    assert launch_bound_note({}) is None  # of an earlier version
