"""AdamW for bfloat16 weights, against float64, exact scalars and PyTorch's own AdamW."""

import math
import struct
from copy import deepcopy
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ampft.engine.bfloat16_adamw import (
    KAHAN,
    STOCHASTIC,
    BFloat16AdamW,
    _chunks,
    add_stochastically,
    add_with_compensation,
)
from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.precision.resolve import resolve

BF16, CPU = torch.bfloat16, torch.device("cpu")
ROUNDINGS = (KAHAN, STOCHASTIC)


def weights(count, *, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(BF16)


def train(optimizer, parameter, steps=40, *, seed=1):
    """Apply steps with seeded random gradients whose mean is one third."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        drawn = torch.randn(parameter.shape, generator=generator) + 1 / 3
        parameter.grad = drawn.to(parameter.dtype)
        optimizer.step()
    return parameter.detach()


def bfloat16_adamw(initial, rounding, **options):
    parameter = nn.Parameter(initial.clone())
    return parameter, BFloat16AdamW([parameter], lr=1e-3, rounding=rounding, **options)


# Exact scalars, by rational arithmetic


def nearest(value: Fraction, *, bits: int) -> Fraction:
    """Round to `bits` significant bits, ties to even."""
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value)))
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (
        abs(value) < Fraction(2) ** exponent
    )
    unit = Fraction(2) ** (exponent - bits + 1)
    return round(value / unit) * unit


def exact_kahan(weight, compensation, update):
    y = nearest(Fraction(update) + Fraction(compensation), bits=24)
    new = nearest(nearest(Fraction(weight) + y, bits=24), bits=8)
    return new, nearest(y - (new - Fraction(weight)), bits=8)


def finite(low, high):
    magnitude = st.floats(low, high, width=32)
    return st.tuples(magnitude, st.sampled_from([-1.0, 1.0])).map(lambda pair: pair[0] * pair[1])


@pytest.mark.slow
@given(finite(2**-10, 2**10), finite(2**-30, 2**-4), finite(2**-30, 2**2))
def test_compensated_addition_is_exact_bit_for_bit(weight, compensation, update):
    stored = [torch.tensor([value]).to(BF16) for value in (weight, compensation)]
    expected = exact_kahan(stored[0].item(), stored[1].item(), update)
    add_with_compensation(*stored, torch.tensor([update]))
    assert tuple(Fraction(tensor.item()) for tensor in stored) == expected


@given(finite(2**-10, 2**10), finite(2**-30, 2**2), st.integers(0, 2**32 - 1))
def test_stochastic_addition_is_exact_bit_for_bit(weight, update, seed):
    stored = torch.tensor([weight]).to(BF16)
    words = torch.empty(1, dtype=torch.int64).random_(
        -(2**63), None, generator=torch.Generator().manual_seed(seed)
    )
    noise = struct.unpack("<4h", struct.pack("<q", words.item()))[0] + 2**15
    total = float(nearest(Fraction(stored.item()) + Fraction(update), bits=24))
    bits = struct.unpack("<I", struct.pack("<f", total))[0]
    expected = struct.unpack("<f", struct.pack("<I", (bits + noise) & 0xFFFF0000))[0]
    add_stochastically(stored, torch.tensor([update]), torch.Generator().manual_seed(seed))
    assert stored.item() == expected


# Stochastic rounding is unbiased

DRAWS = 200_000


@pytest.mark.parametrize("weight", [1.5, -1.5, 3.0])
@pytest.mark.parametrize("share", [1 / 16, 0.3, 0.9])
def test_stochastic_rounding_is_unbiased(weight, share):
    gap = 2.0**-7 * 2 ** math.floor(math.log2(abs(weight)))  # to the next bfloat16
    stored = torch.full((DRAWS,), weight, dtype=BF16)
    update = torch.full((DRAWS,), share * gap)
    add_stochastically(stored, update, torch.Generator().manual_seed(0))
    steps = (stored.double() - weight) / gap
    assert set(steps.tolist()) <= {-1.0, 0.0, 1.0}
    # Five standard errors of a Bernoulli mean, plus 2^-16, to which the share is truncated.
    tolerance = 5 * math.sqrt(share * (1 - share) / DRAWS) + 2**-16
    assert steps.mean().item() == pytest.approx(share, abs=tolerance)
    nearest_steps = ((torch.full((1,), weight) + share * gap).to(BF16).double() - weight) / gap
    assert nearest_steps.item() != pytest.approx(share, abs=tolerance)


def test_neighbouring_elements_are_independent():
    stored = torch.ones(DRAWS, dtype=BF16)
    update = torch.full((DRAWS,), 2.0**-8)
    add_stochastically(stored, update, torch.Generator().manual_seed(0))
    rounded_up = (stored != 1).double() - 0.5
    for distance in (1, 2, 3, 4):
        product = (rounded_up[distance:] * rounded_up[:-distance]).mean().item() * 4
        assert abs(product) < 5 / math.sqrt(DRAWS)


def test_the_draws_depend_only_on_seed_and_step():
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(runs))  # torch's global generator must not matter
        state = torch.get_rng_state()
        parameter, optimizer = bfloat16_adamw(weights(500), STOCHASTIC, seed=seed)
        runs.append(train(optimizer, parameter))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_every_step_draws_anew():
    parameter = nn.Parameter(torch.ones(DRAWS, dtype=BF16))
    # The gradient is 1 in every step, so each update is half of the distance to the next number.
    optimizer = BFloat16AdamW([parameter], lr=2.0**-9, rounding=STOCHASTIC)
    moved = []
    for _ in range(2):
        before = parameter.detach().clone()
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        moved.append((parameter != before).double() - 0.5)
    assert all(abs(each.mean().item()) < 0.05 for each in moved)
    assert abs((moved[0] * moved[1]).mean().item() * 4) < 5 / math.sqrt(DRAWS)


# The optimizer


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_moments_equal_torchs_bit_for_bit(rounding, decay):
    # One full chunk and a remainder.
    initial = weights(2**18 + 77)
    plain = nn.Parameter(initial.clone())
    twin = torch.optim.AdamW([plain], lr=1e-3, weight_decay=decay, fused=True)
    parameter, optimizer = bfloat16_adamw(initial, rounding, weight_decay=decay)
    train(twin, plain, steps=5)
    train(optimizer, parameter, steps=5)
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[parameter][name], twin.state[plain][name])
    assert {t.dtype for name, t in optimizer.state[parameter].items() if name != "step"} == {BF16}
    assert parameter.dtype == BF16


def error_of(stored, reference):
    return ((stored.double() - reference).abs().mean() / reference.abs().mean()).item()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_kahan_follows_float64_and_plain_rounding_does_not(decay):
    """The reference has the same initial weights and the same bfloat16 gradients."""
    initial = weights(4096) + 3
    options = {"lr": 1e-3, "weight_decay": decay}
    exact, plain = nn.Parameter(initial.double()), nn.Parameter(initial.clone())
    generator = torch.Generator().manual_seed(1)
    kahan, compensated = bfloat16_adamw(initial, KAHAN, weight_decay=decay)
    stochastic, randomized = bfloat16_adamw(initial, STOCHASTIC, weight_decay=decay)
    optimizers = (
        torch.optim.AdamW([exact], **options),
        torch.optim.AdamW([plain], fused=True, **options),
        compensated,
        randomized,
    )
    for _ in range(40):
        grad = (torch.randn(4096, generator=generator) + 1 / 3).to(BF16)
        for parameter in (exact, plain, kahan, stochastic):
            parameter.grad = grad.to(parameter.dtype)
        for optimizer in optimizers:
            optimizer.step()
    reference = exact.detach()
    moved = (reference - initial.double()).mean()
    shift = {
        name: ((parameter.double() - initial.double()).mean() / moved).item()
        for name, parameter in {"plain": plain, "kahan": kahan, "stochastic": stochastic}.items()
    }
    # Mean change of the weights, relative to the reference. The moments are bfloat16, which costs a
    # few percent; with rounding to nearest the weights hardly change.
    assert shift["kahan"] == pytest.approx(1, abs=0.05)
    assert shift["stochastic"] == pytest.approx(1, abs=0.05)
    assert shift["plain"] < 0.3
    compensated_weight = kahan.double() + compensated.state[kahan]["compensation"].double()
    assert error_of(compensated_weight, reference) < 0.1 * error_of(plain, reference)


def test_plain_rounding_loses_every_small_update_and_kahan_none():
    # Every step changes a weight of 1 by at most 2^-10, and the gap below 1 is 2^-8.
    initial = torch.ones(64, dtype=BF16)
    ends = {}
    for name in ("nearest", KAHAN):
        parameter = nn.Parameter(initial.clone())
        optimizer = (
            torch.optim.AdamW([parameter], lr=2**-10, weight_decay=0, fused=True)
            if name == "nearest"
            else BFloat16AdamW([parameter], lr=2**-10, rounding=KAHAN)
        )
        for _ in range(64):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        ends[name] = parameter.detach().float()
    assert torch.equal(ends["nearest"], torch.ones(64))
    assert ends[KAHAN].tolist() == pytest.approx([1 - 64 * 2**-10] * 64, abs=2**-8)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_reloaded_optimizer_continues_bit_for_bit(rounding):
    parameter, optimizer = bfloat16_adamw(weights(300), rounding, seed=5)
    train(optimizer, parameter, steps=7)
    copy, resumed = bfloat16_adamw(parameter.detach(), rounding, seed=5)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))  # loading shares tensors
    ends = [train(o, p, steps=7, seed=9) for o, p in ((optimizer, parameter), (resumed, copy))]
    assert torch.equal(*ends)


def test_noncontiguous_parameters_are_updated_too():
    ends = []
    for initial in (weights(600).view(20, 30), weights(600).view(20, 30).t().contiguous().t()):
        parameter, optimizer = bfloat16_adamw(torch.empty(0, dtype=BF16), KAHAN)
        parameter.data = initial
        ends.append(train(optimizer, parameter))
    assert not parameter.is_contiguous()
    assert torch.equal(*ends)


def test_parameters_updated_together_end_as_they_do_one_by_one():
    """On a GPU, small parameters are concatenated."""
    initial = [weights(600).view(20, 30), weights(33, seed=2), weights(600).view(30, 20).t()]
    entries = [
        {name: t.clone() for name in ("weight", "grad", "exp_avg", "exp_avg_sq", "compensation")}
        for t in initial
    ]
    joined = deepcopy(entries)

    def change(chunk):
        for factor, name in enumerate(chunk, start=2):
            chunk[name].mul_(factor)

    for chunk in _chunks(joined):
        change(chunk)
    for entry in entries:
        for chunk in _chunks([entry]):
            change(chunk)
    for one, other in zip(entries, joined, strict=True):
        for name in one.keys() - {"grad"}:
            assert torch.equal(one[name], other[name])


@pytest.mark.parametrize(
    ("mode", "kind", "rounding"),
    [
        ("bf16", torch.optim.AdamW, None),
        ("bf16-true", torch.optim.AdamW, None),
        ("bf16-true-kahan", BFloat16AdamW, KAHAN),
        ("bf16-true-stochastic", BFloat16AdamW, STOCHASTIC),
    ],
)
def test_a_mode_has_its_optimizer(mode, kind, rounding):
    settings = OptimizerSettings(learning_rate=0.1, betas=(0.8, 0.95), epsilon=1e-6, seed=3)
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)).to(BF16)
    optimizer = make_optimizer(model, settings, resolve(mode, CPU))
    assert type(optimizer) is kind
    assert getattr(optimizer, "rounding", None) == rounding
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.1, (0.8, 0.95), 1e-6)


def test_an_unknown_rounding_is_refused():
    with pytest.raises(ValueError, match="rounding: received 'up'; use 'kahan' or 'stochastic'"):
        bfloat16_adamw(weights(2), "up")
