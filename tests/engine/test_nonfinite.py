"""Steps that are not finite: stopped or skipped before the update, counted, saved and replayed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from exact_step import Training, flat_gradient, flat_weights, poison, tensor_problem
from torch import nn

import ampft.engine.step as step_module
from ampft.engine.saved_step import StepRandomState, save_step
from ampft.engine.step import StepOutcome, accumulate_gradient, shared_autocast_cache
from ampft.errors import InputError, TrainingStopped
from ampft.features.nonfinite_steps import MAX_FALLS, MAX_SKIPPED, NonfiniteSkips
from ampft.own.replay import read_step, replay_step
from ampft.precision.accelerator import numerics
from ampft.text.warning_names import FALLING_SCALE, SKIPPED_NONFINITE

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.mark.parametrize("mode", ["bf16", "fp32"])
def test_a_skipped_step_changes_nothing_and_the_training_goes_on(mode):
    problem, counter = tensor_problem(n=12), itertools.count()
    poison(problem.model, math.nan, lambda: next(counter) == 1)
    rate = {"rate": lambda step: 1 / (1 + step)}
    training = Training(mode, problem, 3, skip_nonfinite=True, **rate)
    weights = [flat_weights(problem.model)]
    outcomes = []
    for step in training.steps():
        outcomes.append(step.outcome)
        weights.append(flat_weights(problem.model))
    assert [outcome.skipped for outcome in outcomes] == [False, True, False, False]
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(weights)]
    assert moved == [True, False, True, True]
    rates = [0.01 / (1 + count) for count in (0, 1, 1, 2)]
    assert [outcome.learning_rate for outcome in outcomes] == pytest.approx(rates)


def infinite_loss(problem, when):
    """Return the problem with a loss that is infinite where `when()` holds; gradients stay."""

    def loss(model, micro_batch):
        return problem.loss(model, micro_batch) + (math.inf if when() else 0.0)

    return replace(problem, loss=loss)


@pytest.mark.parametrize("mode", ["bf16", "fp32"])
def test_an_infinite_loss_with_a_finite_gradient_stops_before_the_update(mode):
    problem = infinite_loss(tensor_problem(), lambda: True)
    before = flat_weights(problem.model)
    with pytest.raises(TrainingStopped, match=r"the loss is not finite \(loss inf"):
        next(Training(mode, problem, 6).steps())
    assert torch.equal(flat_weights(problem.model), before)


@pytest.mark.add_ons
@pytest.mark.parametrize("fused", [True, False])
def test_the_scaler_skips_an_infinite_loss_with_a_finite_gradient(fused):
    counter = itertools.count()
    problem = infinite_loss(tensor_problem(), lambda: next(counter) == 0)
    before = flat_weights(problem.model)
    training = Training(
        "fp16", problem, 6, optimizer=lambda m: torch.optim.AdamW(m.parameters(), fused=fused)
    )
    steps = training.steps()
    first = next(steps)
    assert first.gradient.isfinite().all()
    assert (first.outcome.skipped, first.outcome.loss_scale) == (True, 32768.0)
    assert torch.equal(flat_weights(problem.model), before)
    assert not next(steps).outcome.skipped


@pytest.mark.add_ons
def test_the_scaler_skips_an_infinite_loss_with_an_infinite_gradient():
    # Fused kernels apply a step unless the flag is exactly 1.
    counter = itertools.count()
    problem = tensor_problem()

    def loss(model, micro_batch):
        return problem.loss(model, micro_batch) * (math.inf if next(counter) == 0 else 1.0)

    training = Training(
        "fp16",
        replace(problem, loss=loss),
        6,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), fused=True),
    )
    before = flat_weights(problem.model)
    steps = training.steps()
    first = next(steps)
    assert not first.gradient.isfinite().all()
    assert (first.outcome.skipped, first.outcome.loss_scale) == (True, 32768.0)
    assert torch.equal(flat_weights(problem.model), before)
    assert not next(steps).outcome.skipped


@pytest.mark.parametrize("mode", ["bf16", "fp32"])
def test_a_fused_optimizer_skips_a_step_before_its_scalars_are_read(monkeypatch, mode):
    read, stepped = [], []
    original = step_module._read
    monkeypatch.setattr(step_module, "_read", lambda *s: read.append(len(stepped)) or original(*s))
    counter = itertools.count()
    problem = tensor_problem()
    poison(problem.model, math.nan, lambda: next(counter) == 1)
    training = Training(
        mode,
        problem,
        4,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), fused=True),
        skip_nonfinite=True,
    )
    training.prepared.optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    weights, outcomes = [flat_weights(problem.model)], []
    for step in training.steps():
        outcomes.append(step.outcome.skipped)
        weights.append(flat_weights(problem.model))
    assert outcomes == [False, True, False]
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(weights)]
    assert moved == [True, False, True]
    assert read == [1, 2, 3]  # each time after the update
    states = training.prepared.optimizer.state.values()
    assert {float(state["step"]) for state in states} == {2.0}


# Counting


def scaled(scale, *, skipped):
    return StepOutcome(1.0, math.inf if skipped else 1.0, scale, skipped, 0.1)


def test_the_alarm_is_raised_once_when_the_scale_falls_for_long():
    watch = NonfiniteSkips()
    alarms = [watch.add(1, scaled(2.0**16, skipped=False))]
    alarms += [watch.add(2 + n, scaled(2.0 ** (15 - n), skipped=True)) for n in range(12)]
    assert alarms == [False] * MAX_FALLS + [True, False, False]
    assert (watch.alarm_step, watch.alarm_scale) == (11, 64.0)
    assert "to 64 at step 11" in watch.warnings(are_saved=True)[FALLING_SCALE]


def test_a_scale_that_rises_again_raises_no_alarm():
    watch = NonfiniteSkips()
    for n in range(40):
        skipped = n % 10 != 9
        # Nine falls, then a growth.
        scale = 2.0 ** (16 - n % 10) if skipped else 2.0**16
        assert not watch.add(n + 1, scaled(scale, skipped=skipped))
    assert watch.warnings(are_saved=True) == {}


def test_the_number_of_skipped_steps_is_bounded():
    watch = NonfiniteSkips()
    for n in range(MAX_SKIPPED):
        assert watch.may_skip
        watch.add(n + 1, StepOutcome(math.nan, math.nan, None, True, 0.1))
    assert not watch.may_skip
    assert f"in {MAX_SKIPPED} steps" in watch.warnings(are_saved=True)[SKIPPED_NONFINITE]


# Saving and replaying


def with_dropout(n=12):
    problem = tensor_problem(n)
    return replace(problem, model=nn.Sequential(problem.model, nn.Dropout(0.3)))


def saved_step(mode, folder, **options):
    """Save the second step of a training; return its gradient and its losses."""
    training = Training(mode, with_dropout(), 2, micro_batches=3, **options)
    device = training.accelerator.device
    steps = training.steps()
    next(steps)
    step_batch = list(training.batches.epoch(0))[1]
    start = StepRandomState.now(device)
    with numerics(training.precision):
        with shared_autocast_cache(training.accelerator, training.model, step_batch):
            losses = accumulate_gradient(
                training.accelerator, training.model, training.problem.loss, step_batch
            )
        scaler = training.accelerator.scaler
        save_step(
            folder, training.accelerator, training.model, step_batch, step=2, mode=mode,
            loss_scale=None if scaler is None else scaler.get_scale(), start=start, losses=losses,
        )  # fmt: skip
    return flat_gradient(training.model), torch.stack(losses)


def replayed(mode, folder):
    torch.manual_seed(99)
    problem = with_dropout()
    for parameter in problem.model.parameters():
        nn.init.zeros_(parameter)
    training = Training(mode, problem, 4)
    with numerics(training.precision):
        replay = replay_step(folder, training.accelerator, training.model, problem.loss)
    return replay, flat_gradient(training.model)


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_a_saved_step_is_replayed_bit_for_bit(mode, tmp_path):
    torch.manual_seed(1)
    gradient, losses = saved_step(mode, tmp_path, loss_scale=4096.0)
    replay, again = replayed(mode, tmp_path)
    assert replay.is_exact
    assert torch.equal(replay.losses[0], losses)
    assert torch.equal(again, gradient)
    saved = read_step(tmp_path)
    assert (saved.step, saved.epoch, saved.step_in_epoch, saved.mode) == (2, 0, 1, mode)
    ids = [sorted(part.ids) for part in saved.processes[0]]
    assert [len(part) for part in ids] == [2, 2, 2]
    assert sorted(itertools.chain(*ids)) == sorted(saved.effective_ids)


def test_without_the_random_state_a_replay_differs(tmp_path, monkeypatch):
    # Negative control: dropout draws another mask.
    saved_step("fp32", tmp_path)
    monkeypatch.setattr(StepRandomState, "restore", lambda self, device: None)
    replay, _ = replayed("fp32", tmp_path)
    assert not replay.is_exact


def test_a_folder_without_a_step_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not hold a saved step"):
        read_step(tmp_path)
