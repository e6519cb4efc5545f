"""The one notion of harm: its sums, its limits, and that diagnosis, cure and check share it."""

from __future__ import annotations

import math

import pytest
import torch
from planted_faults import FAULTS, around, cross, inputs, nan_beside, plain, tiny_loss
from torch.nn import functional

from ampft.checks import harm
from ampft.checks.harm import GradientChange, Harm, ShortTrainingResult, gradient_harm
from ampft.lab.doctor.case import ExaminedModel, TrialSettings
from ampft.lab.doctor.cure import find_cure
from ampft.lab.doctor.examine import scan
from ampft.precision.float32_modules import keep_in_fp32
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")


def change(actual, expected):
    return GradientChange.of([torch.tensor(actual)], [torch.tensor(expected)])


def test_the_sums_are_those_of_whole_vectors_and_add_up_over_batches():
    torch.manual_seed(0)
    a, b = ([[torch.randn(3, 4), torch.randn(5)] for _ in range(2)] for _ in range(2))
    whole = [torch.cat([t.flatten() for batch in each for t in batch]) for each in (a, b)]
    found = GradientChange.of(a[0], b[0]) + GradientChange.of(a[1], b[1])
    cosine = functional.cosine_similarity(*whole, dim=0)
    assert found.cosine == pytest.approx(float(cosine), rel=1e-5)
    assert found.size == pytest.approx(float(whole[0].norm() / whole[1].norm()), rel=1e-5)
    error = float((whole[0] - whole[1]).norm() / whole[1].norm())
    assert found.error == pytest.approx(error, rel=1e-5)
    assert found.norm32 == pytest.approx(float(whole[1].norm()), rel=1e-5)


@pytest.mark.parametrize(
    ("actual", "expected", "found"),
    [
        ([1.0, 0.0], [1.0, 0.0], None),
        ([0.0, 0.0], [0.0, 0.0], None),
        ([1.0, 0.4], [1.0, 0.0], None),
        ([1.0, 0.6], [1.0, 0.0], Harm.DIRECTION),
        ([0.0, 0.0], [1.0, 0.0], Harm.DIRECTION),
        ([-1.0, 0.0], [1.0, 0.0], Harm.DIRECTION),
        ([0.4, 0.0], [1.0, 0.0], Harm.SIZE),
        ([2.1, 0.0], [1.0, 0.0], Harm.SIZE),
        ([math.inf, 0.0], [1.0, 0.0], Harm.NOT_FINITE),
        ([math.nan, 0.0], [1.0, 0.0], Harm.NOT_FINITE),
    ],
)
def test_direction_and_size_decide(actual, expected, found):
    assert change(actual, expected).harm == found


def test_parameters_whose_small_gradients_are_lost_count_by_their_weights():
    """AdamW moves them as far as the others, although they hardly turn the whole gradient."""
    large, small = torch.ones(4), torch.full((4,), 1e-3)
    lost = GradientChange.of([large, torch.zeros(4)], [large, small])
    assert lost.cosine > 0.999
    assert lost.lost_share == 0.5
    assert lost.harm == Harm.PARAMETERS
    few = GradientChange.of([large, torch.zeros(1)], [large, small[:1]])
    assert (few.lost_share, few.harm) == (0.2, None)


def test_a_batch_with_a_small_gradient_is_not_judged_by_itself():
    good, wrong = change([1.0, 0.0], [1.0, 0.0]), change([0.0, 0.2], [0.2, 0.0])
    assert gradient_harm([good, good, good, wrong]) == Harm.DIRECTION
    tiny = change([0.0, 0.02], [0.02, 0.0])
    assert gradient_harm([good, tiny]) is None
    assert gradient_harm([tiny]) == Harm.DIRECTION
    assert gradient_harm([]) is None


@pytest.mark.parametrize(
    ("before", "after", "steps", "found"),
    [
        (1.0, 0.5, 200, None),
        (1.0, 1.5, 3, None),
        (1.0, 2.5, 3, Harm.DIVERGES),
        (1.0, 1.5, 200, Harm.LEARNS_NOTHING),
        (1.0, None, 200, Harm.NOT_FINITE),
        (1.0, 0.9, 200, Harm.LEARNS_LESS),
        (-1.0, -1.5, 200, None),
    ],
)
def test_a_trial_is_compared_with_its_start_and_with_float32(before, after, steps, found):
    def trial(before, after):
        return ShortTrainingResult(
            mode="fp16", steps=steps, learning_rate=1.0, before=before, after=after
        )

    in_float32 = trial(before, before - 0.5)
    assert trial(before, after).harm(in_float32) == found
    if found == Harm.LEARNS_LESS:
        assert trial(before, after).harm() is None


def test_diagnosis_cure_and_check_ask_the_same_function(monkeypatch):
    """With a limit that nothing can keep, a healthy model fails each of them."""
    case = ExaminedModel(
        plain(), [inputs()], cross, resolve("bf16", CPU), trial=TrialSettings(steps=2)
    )
    healthy = scan(case.model, case.batches, cross, mixed_precision="bf16")
    assert healthy.holds
    monkeypatch.setattr(harm, "MIN_COSINE", 1.1)
    sick = scan(case.model, case.batches, cross, mixed_precision="bf16")
    assert not sick.holds
    cure = find_cure(case, sick).cure
    assert cure is None or not cure.verified
    assert change([1.0, 0.01], [1.0, 0.0]).harm == Harm.DIRECTION  # as in `precision_check`


@pytest.mark.parametrize("weight", [1e2, 1e4])
def test_class_weights_lower_the_scale_and_do_no_harm(weight):
    def loss(model, batch):
        weights = torch.tensor([weight, 1.0, 1.0])
        logits = model(batch["x"]).float()
        return functional.cross_entropy(logits, batch["labels"], weights, reduction="sum")

    found = scan(plain(), [inputs()], loss)
    assert found.holds
    assert found.faults == ()
    assert found.loss_scales.found < 65536


def test_lost_entries_explain_a_harm_and_are_none():
    """A tenth of the gradient's entries vanish, and nearly nothing of it."""

    def loss(model, batch):
        logits = model(batch["x"] * 1e-7).float()
        return functional.cross_entropy(logits, batch["labels"]) * 1e-2

    found = scan(plain(), [inputs()], loss, loss_scale=1.0)
    assert found.loss_scales.lost_at_found > 0.05
    assert found.holds == (found.gradient.lost_share <= harm.MAX_LOST)


CURED = (
    *("one layer", "exploding residual stream", "only one example", "gradients that vanish"),
    *("negative: residual", "negative: buffer added"),
    *("negative: rounding in one module", "positive: rounding in two modules"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CURED)
def test_a_cured_case_passes_the_check_that_it_failed(name):
    planted = FAULTS[name]()
    found = scan(planted.model, planted.batches, planted.loss, **planted.options)
    assert not found.holds
    case = ExaminedModel(
        planted.model, planted.batches, planted.loss, resolve("fp16", CPU),
        loss_scale=planted.options.get("loss_scale"), trial=TrialSettings(steps=2),
    )  # fmt: skip
    cure = find_cure(case, found).cure
    assert cure is not None
    assert cure.verified
    keep_in_fp32(planted.model, cure.fp32_modules)
    mode = "bf16" if cure.flag.endswith("bf16") else "fp16"
    again = scan(planted.model, planted.batches, planted.loss, mixed_precision=mode)
    assert again.holds


@pytest.mark.parametrize("scale", [1.0, 256.0, 2.0**12, 2.0**20])
def test_a_cure_of_a_fixed_scale_passes_the_check_too(scale):
    case = ExaminedModel(plain(), [inputs()], tiny_loss, resolve("fp16", CPU), loss_scale=scale,
                trial=TrialSettings(steps=2))  # fmt: skip
    found = scan(case.model, case.batches, tiny_loss, loss_scale=scale)
    cure = find_cure(case, found).cure
    assert (cure is None) == found.holds
    assert cure is None or scan(case.model, case.batches, tiny_loss).holds


@pytest.mark.slow
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_an_example_that_is_nan_does_not_hide_an_overflow_beside_it(in_one_batch):
    model, batches = around(torch.relu, gain=400.0), nan_beside(in_one_batch=in_one_batch)
    found = scan(model, batches, cross)
    nan, overflow = found.faults
    assert (nan.cause, nan.example_ids, nan.in_float32) == ("input not finite", (6,), True)
    assert (overflow.module, overflow.cause) == ("0", "overflow of a product")
    assert overflow.example_ids == ((3,) if in_one_batch else (11,))
    assert not overflow.in_float32
    case = ExaminedModel(model, batches, cross, resolve("fp16", CPU), trial=TrialSettings(steps=2))
    cure = find_cure(case, found).cure
    assert cure is not None
    assert cure.verified is not in_one_batch  # no batch is left to train with


def test_an_overflow_of_float32_has_no_remedy_in_a_precision():
    model = around(lambda x: x * 1e30 * 1e30)
    (fault,) = scan(model, [inputs()], cross).faults
    assert fault.in_float32
    assert "no precision helps" in fault.remedy
    assert "bf16" not in fault.remedy
