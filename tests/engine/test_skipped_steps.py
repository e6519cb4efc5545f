"""A step that overflows changes only the loss scale; without a scaler it stops the run."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from exact_step import Training, flat_weights, poison, tensor_problem

from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.errors import TrainingStopped
from ampft.runs.history import History, write_csv

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

OPTIMIZERS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True, "fused": False},
    "loop": {"foreach": False, "fused": False},
}
INFINITE = float("inf")


def adamw(kind):
    return lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, **OPTIMIZERS[kind])


def state_of(optimizer):
    """Return copies of all moments and step counts."""
    states = [state for _, state in sorted(optimizer.state_dict()["state"].items())]
    return [{name: value.clone() for name, value in state.items()} for state in states]


def falling(step):
    return 1 / (1 + step)


@pytest.mark.add_ons
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_overflow_changes_only_the_scale(kind, tmp_path):
    problem = tensor_problem(n=12)
    training = Training("fp16", problem, 3, optimizer=adamw(kind), rate=falling)
    counter = itertools.count()
    poison(problem.model, INFINITE, lambda: next(counter) == 2)
    steps, weights, states = [], [flat_weights(problem.model)], []
    path = tmp_path / "history.jsonl"
    with History(path, training.accelerator, 4) as history:
        for step, step_batch in zip(training.steps(), training.batches.epoch(0), strict=True):
            steps.append(step)
            history.record(step_batch, step.outcome, {})
            weights.append(flat_weights(problem.model))
            states.append(state_of(training.prepared))
    assert history.skipped == 1

    outcomes = [step.outcome for step in steps]
    assert [outcome.skipped for outcome in outcomes] == [False, False, True, False]
    assert [outcome.loss_scale for outcome in outcomes] == [65536.0, 65536.0, 32768.0, 32768.0]
    assert [not math.isfinite(o.grad_norm) for o in outcomes] == [False, False, True, False]
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(weights)]
    assert moved == [True, True, False, True]
    for before, after in zip(states[1], states[2], strict=True):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert {float(state["step"]) for state in states[3]} == {3.0}
    # The schedule counts applied steps, so that the step after the skipped one uses the same rate.
    rates = [0.01 * falling(count) for count in (0, 1, 2, 2)]
    assert [outcome.learning_rate for outcome in outcomes] == pytest.approx(rates)
    check_history(path, outcomes)


def check_history(path, outcomes):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["skipped"] for row in rows] == [outcome.skipped for outcome in outcomes]
    assert [row["loss_scale"] for row in rows] == [outcome.loss_scale for outcome in outcomes]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["learning_rate"] for row in rows] == [o.learning_rate for o in outcomes]
    assert rows[2]["grad_norm"] in {"inf", "nan"}
    target = path.with_suffix(".csv")
    write_csv(path, target)
    header, *lines = target.read_text(encoding="utf-8").splitlines()
    assert header.split(",") == list(rows[0])
    assert len(lines) == 4


@pytest.mark.add_ons
def test_the_first_step_may_be_skipped():
    problem = tensor_problem()
    training = Training("fp16", problem, 6, optimizer=adamw("fused"), rate=falling)
    counter = itertools.count()
    poison(problem.model, INFINITE, lambda: next(counter) == 0)
    outcomes = [step.outcome for step in training.steps()]
    assert [outcome.skipped for outcome in outcomes] == [True, False]
    assert [outcome.learning_rate for outcome in outcomes] == [0.01, 0.01]


@pytest.mark.add_ons
def test_an_overflow_in_one_micro_batch_skips_the_step():
    problem = tensor_problem(n=12)
    training = Training("fp16", problem, 2, micro_batches=3)
    before = flat_weights(problem.model)
    counter = itertools.count()
    poison(problem.model, INFINITE, lambda: next(counter) == 1)
    steps = training.steps()
    assert next(steps).outcome.skipped
    assert torch.equal(flat_weights(problem.model), before)
    assert not next(steps).outcome.skipped


@pytest.mark.add_ons
def test_a_growing_scale_is_not_a_skipped_step():
    problem = tensor_problem(n=6)
    training = Training("fp16", problem, 3, optimizer=adamw("fused"))
    training.accelerator.scaler.set_growth_interval(1)
    outcomes = [step.outcome for step in training.steps()]
    assert [outcome.skipped for outcome in outcomes] == [False, False]
    assert [outcome.loss_scale for outcome in outcomes] == [2.0**17, 2.0**18]


@pytest.mark.add_ons
@pytest.mark.parametrize(("kind", "noticed"), [("fused", False), ("foreach", True), ("loop", True)])
def test_accelerate_does_not_notice_skipped_steps_of_fused_optimizers(kind, noticed):
    # accelerate#4242, in accelerate 1.15.0. When this fails, `apply_step` can rely on Accelerate.
    problem = tensor_problem()
    training = Training("fp16", problem, 12, optimizer=adamw(kind))
    poison(problem.model, INFINITE, lambda: True)
    assert next(training.steps()).outcome.skipped
    assert training.prepared.step_was_skipped is noticed


def test_the_default_optimizer_is_fused():
    optimizer = make_optimizer(tensor_problem().model, OptimizerSettings(learning_rate=0.01))
    assert optimizer.defaults["fused"] is True


# The minimum of the loss scale


@pytest.mark.add_ons
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_overflow_at_every_scale_stops_before_the_scale_falls_below_one(kind):
    problem = tensor_problem(n=40)
    training = Training("fp16", problem, 1, optimizer=adamw(kind), rate=falling)
    before = flat_weights(problem.model)
    poison(problem.model, INFINITE, lambda: True)
    steps = training.steps()
    outcomes = [next(steps).outcome for _ in range(16)]
    with pytest.raises(TrainingStopped, match=r"every loss scale down to 1 .* bf16 or fp32"):
        next(steps)
    scales = [outcome.loss_scale for outcome in outcomes]
    assert scales == [2.0**power for power in range(15, -1, -1)]
    assert all(outcome.skipped for outcome in outcomes)
    assert torch.equal(flat_weights(problem.model), before)
    assert training.schedule.get_last_lr() == [0.01]


def test_without_a_minimum_the_scale_falls_to_zero_and_weights_become_nan():
    # Negative control: this is what the minimum prevents.
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(166):
        scaler.scale(parameter.sum() * INFINITE).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 0.0
    assert parameter.isfinite().all()
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    assert parameter.isnan().all()


# Without a scaler


@pytest.mark.parametrize("mode", ["bf16", "fp32"])
@pytest.mark.parametrize("value", [math.nan, INFINITE])
@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_a_gradient_that_is_not_finite_stops_before_the_update(mode, value, max_grad_norm):
    problem = tensor_problem(n=12)
    options = {"optimizer": adamw("fused"), "rate": falling, "max_grad_norm": max_grad_norm}
    training = Training(mode, problem, 3, **options)
    counter = itertools.count()
    poison(problem.model, value, lambda: next(counter) == 2)
    steps = training.steps()
    next(steps)
    assert not next(steps).outcome.skipped
    weights, state = flat_weights(problem.model), state_of(training.prepared)
    with pytest.raises(TrainingStopped, match=r"gradient is not finite .* not applied"):
        next(steps)
    assert torch.equal(flat_weights(problem.model), weights)
    for before, after in zip(state, state_of(training.prepared), strict=True):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert training.schedule.get_last_lr() == [0.01 * falling(2)]


@pytest.mark.add_ons
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("value", [math.nan, INFINITE])
def test_a_loss_that_is_not_finite_is_not_applied_although_its_gradient_is(mode, kind, value):
    plain = tensor_problem(n=12)
    problem = replace(plain, loss=lambda model, batch: plain.loss(model, batch) + value)
    training = Training(mode, problem, 12, optimizer=adamw(kind))
    weights = flat_weights(problem.model)
    if mode == "fp16":
        step = next(training.steps())
        assert step.outcome.skipped
        assert step.gradient.isfinite().all()
    else:
        with pytest.raises(TrainingStopped, match="the loss is not finite") as stopped:
            next(training.steps())
        assert math.isfinite(stopped.value.outcome.grad_norm)
    assert torch.equal(flat_weights(problem.model), weights)
