"""Each feature with a state continues from what a checkpoint says of it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ampft.engine.ending import TimeLimit
from ampft.engine.step import StepOutcome
from ampft.features.early_stopping import EarlyStopping
from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.features.nonfinite_steps import MAX_SKIPPED, NonfiniteStepMonitor
from ampft.features.resources import PeakMemoryMonitor, TrainingClock
from ampft.features.trackers import TrackerReporting
from ampft.features.validations import ValidationPart, Validations
from ampft.features.weights import AveragedWeights
from ampft.metrics.paired import PairedGain
from ampft.text.json_io import from_json
from ampft.text.warning_names import SKIPPED_NONFINITE

STEP = 3


def saved(feature: Feature) -> SavedFeature:
    """Return the state of a feature as a checkpoint after step 3 has it."""
    state = feature.state()
    values = json.loads(json.dumps(asdict(state)))
    tensors = {name: tensor.clone() for name, tensor in feature.tensors().items()}
    return SavedFeature(from_json(type(state), values), tensors, STEP, b"", Path(), {})


def record(number: int, *, skipped: bool = False) -> StepRecord:
    outcome = StepOutcome(1.0, 1.0, None, skipped, 0.1)
    nothing: Any = None
    return StepRecord(number, nothing, (), outcome)


def nonfinite() -> NonfiniteStepMonitor:
    nothing: Any = None
    return NonfiniteStepMonitor(Path(), nothing, nothing, mode="bf16", skips=True, write=print)


def test_steps_that_are_not_finite():
    first, second = nonfinite(), nonfinite()
    first.watch.skipped = MAX_SKIPPED
    assert second.may_skip
    second.restore(saved(first))
    assert not second.may_skip
    assert SKIPPED_NONFINITE in second.warnings()
    assert second.after_step(record(4)) == {"alarm": False}


def clock(seconds_ago: float) -> TrainingClock:
    return TrainingClock(TimeLimit(60.0, time.perf_counter() - seconds_ago), "1min", 10)


def test_the_clock_counts_the_time_of_earlier_processes():
    first, second = clock(50.0), clock(20.0)
    first.checkpoint_seconds = 7.0
    assert not second.limit.has_passed
    second.restore(saved(first))
    assert second.limit.has_passed
    assert second.timings({})["total_seconds"] == pytest.approx(70, abs=5)
    assert second.timings({})["checkpoint_seconds"] == 7.0
    assert second.record() == {}
    second.limit.is_reached = True
    assert second.should_stop
    assert "--max_time 1min ended the training after step 3 of 10, so" in second.record()["reason"]


def test_the_clock_keeps_time_for_what_follows_the_training(monkeypatch):
    """By a clock of this test: gradients of 3 s for 10 rows, so a prediction of 0.1 s per row."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    measured = TrainingClock(
        TimeLimit(300.0, now[0]), "5min", 99, 10, validation_rows=50, final_rows=150
    )
    ended = []
    for number in range(1, 99):
        with measured.around_gradient(number):
            now[0] += 9 if number == 1 else 3  # the first step prepares kernels
        measured.after_step(record(number))
        if measured.limit.has_passed:
            ended.append(number)
            break
    # 2 s for files and 1.2 x 0.1 s for each of 200 rows are kept of 300 s: 274 s for steps.
    assert measured.limit.reserved == pytest.approx(26)
    assert ended == [90]
    assert now[0] - 100 + 26 == pytest.approx(302)
    with measured.around_evaluation():
        now[0] += 2.5  # faster than expected
    assert measured.limit.reserved == pytest.approx(2 + 1.2 * 200 * 0.05)
    without_rows = clock(59.0)
    with without_rows.around_evaluation():
        pass
    assert without_rows.limit.reserved == 0


def test_the_peak_of_the_memory_is_the_largest():
    first, second = (PeakMemoryMonitor(torch.device("cpu"), None) for _ in range(2))
    state = saved(first)
    peak = state.state.peak
    object.__setattr__(state.state, "peak", 2 * peak)
    second.restore(state)
    assert second.after_step(record(4)) == {"memory_mib": 2 * peak / 2**20}
    object.__setattr__(state.state, "peak", peak // 2)
    assert second.peak.peak >= peak


def validations(*, by_loss: bool = False, **best: Any) -> Validations:
    metric: Any = SimpleNamespace(name="accuracy", higher_is_better=True)
    nothing: Any = None
    chooses = SimpleNamespace(name="log_loss", higher_is_better=False) if by_loss else metric
    model: Any = SimpleNamespace(metric=chooses, tie=None, **best)
    accelerator: Any = SimpleNamespace(is_main_process=False)
    return Validations(
        model, nothing, accelerator, nothing, print, steps_per_epoch=2, metric=metric,
        lowest=torch.zeros(3, dtype=torch.float64) if by_loss else None,
    )  # fmt: skip


def test_validations_and_the_best_of_them():
    first = validations(step=2, value=0.75, stopping=EarlyStopping(None, 1))
    first.parts += [
        ValidationPart(epoch=1, step=2, metrics={"accuracy": 0.75, "auc": None}),
        ValidationPart(epoch=2, step=3, metrics={"accuracy": 0.5, "auc": 1.0}),
    ]
    second = validations(step=None, value=None, stopping=EarlyStopping(None, 0))
    assert second.record() == {"validations": (), "best": None}
    second.restore(saved(first))
    assert second.record() == first.record()
    assert second.best.stopping.without_improvement == 1
    assert not second.is_due(3, is_last=True), "it was done before the checkpoint"
    assert second.is_due(4, is_last=False)
    assert second.replaces_weights(3)


def test_the_losses_of_the_lowest_log_loss():
    first = validations(by_loss=True, step=2, value=0.4, stopping=EarlyStopping(None, 1))
    for step, accuracy in ((2, 0.75), (4, 0.75)):
        metrics = {"accuracy": accuracy, "log_loss": 0.4}
        first.parts.append(ValidationPart(epoch=step // 2, step=step, metrics=metrics))
    first.lowest.copy_(torch.tensor([0.1, 0.2, 0.9]))
    first.cases, first.gain = 3, PairedGain(0.5, 0.1, 3)
    second = validations(by_loss=True, step=None, value=None, stopping=EarlyStopping(None, 0))
    second.restore(saved(first))
    assert second.record() == first.record()
    assert second.record()["best"].by == "log_loss"
    assert torch.equal(second.lowest, first.lowest)
    assert second.replaces_weights(4)
    assert not second.replaces_weights(2)


def test_trackers_continue_their_runs():
    tracker = SimpleNamespace(name="wandb", tracker=SimpleNamespace(id="a1"))
    calls: list[tuple[Any, ...]] = []
    accelerator: Any = SimpleNamespace(
        is_main_process=True, trackers=[tracker], init_trackers=lambda *call: calls.append(call)
    )
    first, second = (TrackerReporting(accelerator, {"seed": 1, "files": ["a"]}) for _ in range(2))
    first.begin()
    second.restore(saved(first))
    second.begin()
    TrackerReporting(accelerator, None).begin()
    new = {"tensorboard": {"purge_step": 1}}
    continued = {"tensorboard": {"purge_step": 4}, "wandb": {"id": "a1", "resume": "allow"}}
    assert calls == [("ampft", {"seed": 1}, new), ("ampft", {"seed": 1}, continued)]


def test_the_average():
    model = nn.Linear(2, 2)
    first, second = (AveragedWeights(model, 0.9) for _ in range(2))
    nn.init.zeros_(model.weight)
    first.after_step(record(1))
    first.after_step(record(2, skipped=True))
    assert first.updates == 1
    second.restore(saved(first))
    assert second.updates == 1
    assert torch.equal(second.tensors()["weight"], first.tensors()["weight"])


def test_only_a_feature_that_has_other_weights_replaces_those_of_the_last_step():
    """Otherwise, the last ones are copied before the end, and a sharded run cannot be stopped."""

    class Plain(Feature):
        pass

    assert not Plain().replaces_weights(STEP)
