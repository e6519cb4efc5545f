"""A mode beside float32: errors against a direct computation, roles, intervals, isolation."""

import statistics
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

import ampft
from ampft.checks.harm import GradientChange
from ampft.lab.doctor.alignment import align, batch_mean, error_role
from ampft.lab.doctor.case import ExaminedModel
from ampft.lab.doctor.diagnosis_page import alignment_chart
from ampft.lab.doctor.diagnosis_text import alignment_summary, alignment_table
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
MODES = ("fp16", "bf16")


class Cancelling(nn.Module):
    """Adds and subtracts a large number, so that most bits of a 16-bit input are lost."""

    def forward(self, hidden):
        return hidden + 1000 - 1000


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.cancel = Cancelling()
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(16, 3)

    def forward(self, hidden):
        return self.last(self.dropout(self.cancel(self.first(hidden))))


def loss(model, batch):
    return F.cross_entropy(model(batch).float(), torch.arange(len(batch)) % 3)


@pytest.fixture
def case():
    torch.manual_seed(0)
    return ExaminedModel(Model(), [torch.randn(6, 8) for _ in range(4)], loss, resolve("fp16", CPU))


def aligned(case, mode, **options):
    return align(replace(case, precision=resolve(mode, CPU)), **options)


@pytest.mark.parametrize("mode", MODES)
def test_the_errors_are_those_of_a_direct_computation(case, mode):
    found = aligned(case, mode)
    by_name = {each.module: each for each in found.modules}
    assert list(by_name) == ["first", "cancel", "dropout", "last"]
    case.model.eval()
    precision, errors = resolve(mode, CPU), []
    for batch in case.batches:
        exact = case.model.first(batch).detach()
        with ampft.numerics(precision), torch.autocast("cpu", precision.compute_dtype):
            rounded = case.model.first(batch).detach()
            errors.append(GradientChange.of([rounded], [exact]).error)
    assert by_name["first"].outputs.mean == pytest.approx(statistics.fmean(errors), rel=1e-6)
    unit = {"fp16": 2**-11, "bf16": 2**-8}[mode]
    assert unit / 10 < by_name["first"].outputs.mean < unit
    assert by_name["first"].inputs.mean == 0
    assert by_name["first"].role == "born"


def test_the_module_that_loses_bits_is_named(case):
    found = aligned(case, "fp16")
    by_name = {each.module: each for each in found.modules}
    assert by_name["cancel"].role == "born"
    assert by_name["cancel"].outputs.mean > 100 * by_name["first"].outputs.mean
    assert by_name["dropout"].role == "carried"
    assert alignment_summary(found).startswith("The error is born in `cancel`, ")


def test_gradients_and_loss_are_compared_too(case):
    found = aligned(case, "fp16")
    assert all(each.gradients is not None for each in found.modules)
    assert 0 < found.gradient_error.mean < 0.5
    cosine = found.gradient_cosine.mean
    assert cosine == pytest.approx(1 - found.gradient_error.mean**2 / 2, abs=0.02)
    assert found.loss_change.mean != 0
    assert found.batches == 4


def test_float32_beside_itself_has_no_error(case):
    found = aligned(case, "fp32")
    assert {each.outputs.mean for each in found.modules} == {0}
    assert {each.gradients.mean for each in found.modules} == {0}
    assert found.loss_change.mean == 0
    assert found.gradient_error.mean == 0
    assert found.gradient_cosine.mean == pytest.approx(1)
    assert alignment_chart(found) is None


def test_a_mode_leaves_nothing_behind(case):
    def plain():
        case.model.zero_grad()
        torch.manual_seed(3)
        loss(case.model, case.batches[0]).backward()
        return [p.grad.clone() for p in case.model.parameters()]

    before, state = plain(), torch.get_rng_state()
    aligned(case, "fp16")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(plain(), before, strict=True))
    assert case.model.training
    assert not any(module._forward_hooks for module in case.model.modules())


def test_kept_modules_have_smaller_errors(case):
    plain = aligned(case, "fp16")
    kept = aligned(case, "fp16", fp32_modules=("first",))
    assert kept.modules[0].outputs.mean == 0 < plain.modules[0].outputs.mean
    assert kept.fp32_modules == ("first",)
    assert "forward" not in case.model.first.__dict__


def test_a_module_that_returns_infinities_is_left_out(case):
    class Masking(nn.Module):
        def forward(self, scores):
            return scores.masked_fill(torch.arange(16) == 0, -torch.inf)

    case.model.cancel = nn.Sequential(Masking(), nn.Softmax(-1))
    found = aligned(case, "bf16")
    names = [each.module for each in found.modules]
    assert names == ["first", "cancel.1", "cancel", "dropout", "last"]


def test_a_mode_that_fails_has_no_alignment(case):
    nn.init.constant_(case.model.first.bias, 1e5)
    assert aligned(case, "fp16") is None


def test_intervals_are_students():
    values = [0.5, 0.7, 0.4, 0.9]
    low, high = stats.t.interval(0.95, 3, loc=statistics.fmean(values), scale=stats.sem(values))
    found = batch_mean(values)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert batch_mean([0.5]).low is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.0, 0.1, "born"), (0.1, 0.2, "born"), (0.1, 0.15, "grows"), (0.1, 0.1, "carried"),
        (0.1, 0.06, "carried"), (0.1, 0.05, "forgiven"), (0.0, 0.0, "carried"),
    ],
)  # fmt: skip
def test_roles(before, after, expected):
    assert error_role(before, after) == expected


def test_the_picture_has_every_module_and_its_interval(case):
    found = aligned(case, "bf16")
    chart = alignment_chart(found)
    assert chart.count('class="born"') == 2
    assert chart.count('class="gradient"') == 4
    assert chart.count('class="interval ') == 8
    assert "first: output" in chart
    assert len(alignment_table(found).rows) == 4
