"""The perturbation for a placebo run changes every weight by one unit in the last place."""

import numpy as np
import pytest
import torch
from torch import nn

from ampft.models.weights import perturb_weights


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first, self.tied = nn.Linear(40, 40), nn.Linear(40, 40)
        self.tied.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("buffer", torch.ones(3))
        # Powers of two, at which the spacing below is half of the spacing above.
        self.scales = nn.Parameter(2.0 ** torch.arange(-30, 30))
        with torch.no_grad():
            self.first.weight.copy_(torch.randn(40, 40, generator=generator))
            self.first.bias.zero_()
            self.tied.bias.fill_(0.1)


def perturbed(seed: int) -> dict[str, np.ndarray]:
    model = Model()
    perturb_weights(model, seed)
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("seed", range(5))
def test_every_weight_changes_by_one_unit_in_the_last_place(seed):
    before, after = {k: v.numpy() for k, v in Model().state_dict().items()}, perturbed(seed)
    for name in ("first.weight", "scales"):
        old, new = before[name], after[name]
        up = new > old
        expected = np.where(up, np.nextafter(old, np.inf), np.nextafter(old, -np.inf))
        assert np.array_equal(new.view(np.int32), expected.astype(np.float32).view(np.int32))
        assert (new != old).all()
        assert 0.25 < up.mean() < 0.75
    assert np.array_equal(after["tied.weight"], after["first.weight"])


def test_zeros_frozen_weights_and_buffers_do_not_change():
    after = perturbed(0)
    assert not after["first.bias"].any()
    assert (after["frozen"] == 1).all()
    assert (after["buffer"] == 1).all()


def test_the_change_depends_on_the_seed():
    first, second, other = perturbed(3), perturbed(3), perturbed(4)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["first.weight"], other["first.weight"])


def test_the_largest_number_stays_finite_and_the_random_state_does_not_change():
    weight = nn.Linear(50, 1, bias=False)
    with torch.no_grad():
        weight.weight.fill_(torch.finfo(torch.float32).max)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    perturb_weights(weight, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert weight.weight.isfinite().all()
    assert (weight.weight < torch.finfo(torch.float32).max).any()
