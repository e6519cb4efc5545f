"""Cures: the smallest set of modules, the shortest pattern, and what is verified before."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ampft
from ampft.checks.harm import Harm
from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings
from ampft.export.module_search import shortest_patterns, smallest_sufficient_modules
from ampft.lab.doctor.case import ExaminedModel, TrialSettings
from ampft.lab.doctor.cure import _holds, find_cure
from ampft.lab.doctor.diagnosis import Cause, Diagnosis, ExaminedSetup, Fault
from ampft.precision.float32_modules import matching_modules, replaced_forwards
from ampft.precision.resolve import resolve

CPU = torch.device("cpu")
FP16 = resolve("fp16", CPU)


def trial(rate=1e-3, steps=3):
    return TrialSettings(steps=steps, optimizer=OptimizerSettings(learning_rate=rate))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.wi = nn.Linear(8, 16)
        self.wo = nn.Linear(16, 8)

    def forward(self, hidden):
        return hidden + self.wo(F.gelu(self.wi(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(blocks)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)
        self.scale = 1.0

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden)) * self.scale


def model(*overflowing, blocks=4):
    """A model in which the products of some `wo` exceed 65504."""
    torch.manual_seed(0)
    made = Model(blocks)
    for index in overflowing:
        torch.nn.init.constant_(made.layers[index].wo.bias, 90_000.0)
    return made


def loss(model, batch):
    return F.cross_entropy(model(batch).float(), torch.arange(len(batch)) % 2)


def case(model, *, batches=2, loss=loss, **options):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(4, 8, generator=generator) for _ in range(batches)]
    return ExaminedModel(model, tensors, loss, FP16, **{"trial": trial(), **options})


def fault(module, cause=Cause.SUM, **more):
    return Fault(module=module, direction="forward", operation="addmm", cause=cause, **more)


def found(faults):
    """The diagnosis of a case that has these faults."""
    setting = ExaminedSetup(
        model="made", data="made", mode="fp16", execution="emulated", device="cpu", batches=2,
        examples=8,
    )  # fmt: skip
    return Diagnosis(setting=setting, holds=False, faults=faults)


def cure_of(case, faults):
    return find_cure(case, found(faults)).cure


# Search


def covers(*needed):
    """A model holds if every needed module is inside a module that is kept."""
    calls = []

    def holds(paths):
        calls.append(paths)
        return all(any(f"{need}.".startswith(f"{path}.") for path in paths) for need in needed)

    return holds, calls


@pytest.mark.parametrize(
    "needed",
    [
        ("layers.2.wo",),
        ("layers.0.wi", "layers.3.wo", "head"),
        ("layers.1",),  # code of the layer itself, outside of the modules inside it
        tuple(f"layers.{index}.wo" for index in range(12)),
    ],
)
def test_the_smallest_set_is_found(needed):
    holds, calls = covers(*needed)
    assert smallest_sufficient_modules(model(blocks=12), holds) == needed
    assert len(calls) < 120


def test_hints_save_tests():
    holds, with_hints = covers("layers.7.wo")
    assert smallest_sufficient_modules(
        model(blocks=12), holds, [("layers.3",), ("layers.7.wo", "head")]
    )
    holds, without = covers("layers.7.wo")
    assert smallest_sufficient_modules(model(blocks=12), holds) == ("layers.7.wo",)
    assert len(with_hints) < len(without) / 2


def test_a_model_that_never_holds_has_no_set():
    assert smallest_sufficient_modules(model(), lambda paths: False, [("head",)]) is None


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        ([f"layers.{index}.wo" for index in range(4)], ("wo",)),
        (["layers.2.wo"], ("layers.2.wo",)),
        (["layers.1.wi", "layers.1.wo"], ("layers.1.wi", "layers.1.wo")),
        (["layers.0", "layers.1", "layers.2", "layers.3"], ("layers.*",)),
        (["layers.0.wo", "head"], ("layers.0.wo", "head")),
        # The other modules of this name are inside the layers.
        (["norm"], ("norm",)),
    ],
)
def test_patterns_are_short_and_match_no_other_module(paths, patterns):
    made = model()
    if paths == ["norm"]:
        made.norm, made.final = nn.Identity(), made.norm
        paths, patterns = ["final"], ("final",)
    assert shortest_patterns(made, paths) == patterns
    assert list(matching_modules(made, patterns)) == sorted(paths, key=paths.index)


# Cures


@pytest.mark.slow
def test_an_overflow_is_cured_by_the_module_that_overflows():
    made = case(model(1))
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    generator_state = torch.get_rng_state()
    cure = cure_of(made, [fault("layers.1.wo", in_float32=False)])
    assert cure.fp32_modules == ("layers.1.wo",)
    assert cure.verified
    assert cure.flag == "--fp32_modules layers.1.wo"
    assert cure.sentence.startswith(
        "Keep 1 module in float32: --fp32_modules layers.1.wo. Verified on "
    )
    assert "in 3 training steps with a learning rate of 0.001: gradient and " in cure.sentence
    assert "in this emulation. Or use bf16." in cure.sentence
    assert cure.cost > 0
    # Nothing is left behind.
    assert all(torch.equal(value, before[n]) for n, value in made.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator_state)
    assert replaced_forwards(made.model) == {}
    assert made.model.training
    assert all(parameter.grad is None for parameter in made.model.parameters())


@pytest.mark.slow
def test_the_cured_model_holds_and_the_sick_one_does_not():
    made = case(model(0, 3))
    cure = cure_of(made, [fault("layers.0.wo")])
    assert cure.fp32_modules == ("layers.0.wo", "layers.3.wo")
    holds = {}
    for patterns in ((), cure.fp32_modules, ("layers.0.wo",)):
        handle = ampft.keep_in_fp32(made.model, patterns)
        plain = made.in_float32()
        holds[patterns] = [_holds(made, index, plain.run(index)) for index in (0, 1)]
        handle.remove()
    assert list(holds.values()) == [[False, False], [True, True], [False, False]]


def test_modules_that_are_in_float32_already_stay_there():
    made = case(model(0, 3))
    ampft.keep_in_fp32(made.model, ["layers.0.w*"])
    cure = cure_of(made, [fault("layers.3.wo")])
    assert cure.fp32_modules == ("layers.0.w*", "layers.3.wo")
    assert list(replaced_forwards(made.model)) == ["layers.0.wi", "layers.0.wo"]


@pytest.mark.slow
def test_a_batch_that_fails_elsewhere_is_found_by_the_verification():
    """Three batches overflow in one module, and the last one in another."""

    class Surging(nn.Linear):
        surges = False

        def forward(self, hidden):
            return super().forward(hidden) + (9e4 if self.surges else 0.0)

    class Gated(Model):
        def forward(self, hidden):
            for index, layer in enumerate(self.layers):
                layer.wo.surges = index == (3 if hidden[0, 0] > 100 else 1)
            return super().forward(hidden)

    torch.manual_seed(0)
    made = case(Gated(), batches=4)
    for layer in made.model.layers:
        layer.wo = Surging(16, 8)
    made.batches[3][0, 0] = 200.0
    cure = cure_of(made, [fault("layers.1.wo")])
    assert cure.fp32_modules == ("layers.1.wo", "layers.3.wo")
    assert cure.verified


def test_a_fault_of_the_model_has_no_cure():
    assert cure_of(case(model(1)), [fault("layers.1.wo", in_float32=True)]) is None
    assert cure_of(case(model(1)), [fault("layers.1.wo", is_harmless=True)]) is None
    broken = case(model(), loss=lambda model, batch: loss(model, batch).sub(9).log())
    assert cure_of(broken, [fault("")]) is None


def test_a_healthy_model_needs_no_cure():
    assert cure_of(case(model()), [fault("head")]) is None


def test_vanishing_gradients_are_cured_by_a_larger_scale():
    made = case(model(), loss=lambda model, batch: loss(model, batch) * 1e-9, loss_scale=1.0)
    faults = [fault("", Cause.VANISHING)]
    cure = cure_of(made, faults)
    assert cure.fp32_modules == ()
    assert cure.verified
    scaler = "torch.amp.GradScaler(init_scale=65536)"
    assert cure.sentence.startswith(f"Scale the loss by 65,536: {scaler}. Verified on ")


def test_an_overflow_outside_the_modules_is_cured_by_bf16():
    def large_loss(model, batch):
        return F.linear(model(batch), torch.full((1, 2), 6e4)).float().square().mean() * 1e-9

    made = case(model(), loss=large_loss)
    made.model.scale = 9.0
    cure = cure_of(made, [fault("")])
    assert cure.flag == "--mixed_precision bf16"
    assert cure.fp32_modules == ()
    assert cure.verified


@pytest.mark.slow
def test_gradients_that_no_scale_can_save_are_cured_by_bf16():
    made = case(model(), loss=lambda model, batch: loss(model, batch) * 1e-20, loss_scale=1.0)
    cure = cure_of(made, [fault("", Cause.VANISHING)])
    assert cure.flag == "--mixed_precision bf16"
    assert cure.verified


def test_bf16_is_no_cure_if_another_batch_fails_in_it():
    def fragile_loss(model, batch):
        logits = model(batch)
        if batch is made.batches[1]:  # numbers of bf16 are 64 apart at 8,192, those of fp16 are 8
            return (logits + 8192 - 8192).float().square().mean()
        return F.linear(logits, torch.full((1, 2), 6e4)).float().square().mean() * 1e-9

    made = case(model(), loss=fragile_loss)
    made.model.scale = 9.0
    assert cure_of(made, [fault("")]) is None


class Exploding(nn.Linear):
    """A layer whose output overflows in fp16 as soon as its weights have moved a little."""

    def __init__(self):
        super().__init__(16, 8)
        self.register_buffer("first", self.weight.detach().clone())

    def forward(self, hidden):
        moved = (self.weight - self.first).abs().mean().detach()
        return super().forward(hidden) + 1e8 * moved * torch.ones(8, dtype=hidden.dtype)


@pytest.mark.slow
def test_a_cure_that_does_not_survive_training_is_not_verified():
    made = case(model(1))
    made.model.layers[2].wo = Exploding()
    cure = cure_of(made, [fault("layers.1.wo")])
    assert cure.verified  # in bf16
    assert cure.fp32_modules == ()


@pytest.mark.slow
def test_a_rate_that_is_too_high_in_float32_has_no_cure_of_the_precision():
    """The trial has the settings of the run, and float32 is tried with them first."""
    for rate, harm in ((1e-3, None), (300.0, Harm.DIVERGES), (1e30, Harm.NOT_FINITE)):
        made = case(model(1), trial=trial(rate, steps=20))
        tried = find_cure(made, found([fault("layers.1.wo")]))
        assert tried.float32_trial.learning_rate == rate
        assert tried.float32_trial.harm() == harm
        assert (tried.cure is None) == (harm is not None)


def test_the_trial_uses_the_schedule_and_the_clipping_of_the_run():
    """A long warm-up, or clipping to almost nothing, makes a high rate harmless."""
    # An epsilon of 1 makes the size of the gradient matter.
    high = replace(trial(300.0, 20), optimizer=OptimizerSettings(learning_rate=300.0, epsilon=1.0))
    warmup = ScheduleSettings(name="constant_with_warmup", warmup_steps=10**9)
    calm = [replace(high, schedule=warmup), replace(high, max_grad_norm=1e-9)]
    harms = [case(model(), trial=each).in_float32().train().harm() for each in (high, *calm)]
    assert harms == [Harm.DIVERGES, None, None]


class Norm(nn.Module):
    """A norm by hand; its epsilon is too small for any precision if the rows are constant."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, hidden):
        centred = hidden - hidden.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps)


def with_norms(eps):
    made = case(model(blocks=2))
    for layer in made.model.layers:
        layer.norm = Norm(eps)
    made.batches[1].fill_(1.0)
    return made


def test_a_division_by_zero_in_float32_is_cured_by_a_larger_epsilon():
    made = with_norms(0.0)
    faults = [fault("layers.0.norm", Cause.ZERO_BY_ZERO, in_float32=True)]
    cure = cure_of(made, faults)
    expected = "Set `eps` of 2 modules of class Norm to 0.0001 (it is 0). Verified on "
    assert cure.sentence.startswith(expected)
    assert cure.verified
    assert cure.fp32_modules == ()
    assert [layer.norm.eps for layer in made.model.layers] == [0.0, 0.0]


@pytest.mark.parametrize("cause", [Cause.INPUT, Cause.ZERO_BY_ZERO])
def test_an_epsilon_that_does_not_help_is_not_named(cause):
    made = with_norms(0.0)
    made.batches[1].fill_(float("nan"))
    assert cure_of(made, [fault("layers.0.norm", cause, in_float32=True)]) is None
    large = [fault("layers.0.norm", Cause.ZERO_BY_ZERO, in_float32=True)]
    assert cure_of(with_norms(1e-3), large) is None
