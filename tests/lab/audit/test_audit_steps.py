"""What an audit on another machine takes for rounding, and what for a forgery."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ampft.engine.step import StepOutcome
from ampft.lab.audit import audit
from ampft.lab.audit.audit import ReplayedSteps, check_kept_weights, check_loss, check_loss_scale
from ampft.lab.audit.audit_result import DIFFERS, EQUAL, TOLERANCES, WITHIN
from ampft.precision.resolve import resolve

COUNT = 6


def outcomes(relative: float = 0.0, *, step: int = 0) -> list[StepOutcome]:
    """Steps whose losses differ from those of `outcomes()` by a share, from `step` on."""
    factors = np.where(np.arange(COUNT) >= step, 1 + relative, 1.0)
    return [
        StepOutcome(loss=2.0 * factor, grad_norm=3.0, loss_scale=None, skipped=False,
                    learning_rate=1e-3)
        for factor in factors.tolist()
    ]  # fmt: skip


def rebuilt(*, has_masks: bool = True) -> Any:
    """A run of another machine in fp32, whose dropout masks can be drawn here or not."""
    return SimpleNamespace(
        record=SimpleNamespace(random_state_sha256="a" if has_masks else "b"),
        precision=resolve("fp32", torch.device("cpu")),
        repeats_exactly=False,
        tolerance=TOLERANCES[torch.float32],
        prepare=lambda: None,
        micro_batches=lambda rows: [1] * len(rows),
    )


def check(recorded: list[StepOutcome], run: Any = None) -> Any:
    rows: Any = [replace(row) for row in recorded]
    return check_loss(run or rebuilt(), rows, ReplayedSteps(outcomes=outcomes(), random_state="a"))


@pytest.fixture
def replays(monkeypatch):
    """Make each further replay return the next of these steps."""

    def plan(*planned: list[StepOutcome]) -> None:
        each = iter(planned)
        monkeypatch.setattr(
            audit, "replay_first_steps", lambda *a, **k: ReplayedSteps(outcomes=next(each))
        )

    return plan


def test_equal_steps_are_equal_and_rounding_is_within_tolerance():
    assert check(outcomes()).status == EQUAL
    within = check(outcomes(0.9e-5))
    assert within.status == WITHIN
    assert "9.0e-06 (loss of step" in within.text


def test_the_first_step_beyond_rounding_is_named_with_both_values(replays):
    replays(outcomes(), outcomes())
    found = check(outcomes(1e-3, step=2))
    assert found.status == DIFFERS
    assert found.text.startswith("the loss of step 3 is 2, and the record states 2.002; rounding")


@pytest.mark.parametrize(
    ("step", "grown", "status"), [(1, 3e-4, WITHIN), (1, 1e-4, DIFFERS), (0, 3e-4, DIFFERS)]
)
def test_rounding_grows_as_it_is_measured_but_not_before_the_first_step(
    replays, step, grown, status
):
    replays(outcomes(), outcomes(grown))
    assert check(outcomes(1e-3, step=step)).status == status


@pytest.mark.parametrize(("relative", "status"), [(0.05, WITHIN), (0.5, DIFFERS)])
def test_other_masks_scatter_as_much_as_the_replays_do(replays, relative, status):
    replays(*(outcomes(share) for share in (-0.03, 0.03, -0.02, 0.02)))
    found = check(outcomes(relative), rebuilt(has_masks=False))
    assert found.status == status
    assert "of 5 replays with other masks" in found.text


def test_loss_scales_may_be_one_halving_apart():
    scaled = [replace(outcome, loss_scale=2.0**15) for outcome in outcomes()]
    for factor, status in ((1.0, EQUAL), (2.0, WITHIN), (0.5, WITHIN), (4.0, DIFFERS)):
        rows: Any = [SimpleNamespace(loss_scale=2.0**15 * factor, skipped=False, step=1)] * COUNT
        assert check_loss_scale(rebuilt(), rows, scaled).status == status


def test_kept_weights_are_compared_without_a_copy(monkeypatch):
    trained, saved = nn.Linear(3, 2), nn.Linear(3, 2)
    saved.load_state_dict(trained.state_dict())
    prepared: Any = SimpleNamespace(
        accelerator=None, model=trained, args=SimpleNamespace(merges_lora=False)
    )
    monkeypatch.setattr(audit, "gather_model_state", lambda accelerator, model: model.state_dict())
    kept = audit._weights(prepared)
    assert not any(isinstance(part, torch.Tensor) for entry in kept.values() for part in entry)
    run = rebuilt()
    run.repeats_exactly = True
    assert check_kept_weights(run, kept, saved).status == EQUAL
    with torch.no_grad():
        saved.weight[0, 0] = torch.nextafter(saved.weight[0, 0], torch.tensor(9.0))
    found = check_kept_weights(run, kept, saved)
    assert found.status == DIFFERS
    assert "weight of the saved model differs" in found.text
