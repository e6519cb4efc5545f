"""`--deterministic`: operators that cannot give the same bits each time are refused by name."""

import pytest
import torch

from ampft.errors import InputError
from ampft.precision.determinism import deterministic_operators


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def test_settings_are_set_inside_and_restored():
    before = settings()
    with deterministic_operators(True):
        assert settings() == (True, False, False)
    assert settings() == before
    with deterministic_operators(False):
        assert settings() == before


def test_an_operator_without_a_deterministic_implementation_is_named():
    before = settings()
    message = r"--deterministic: .* needs put_ ?, .*Remove the flag"
    with pytest.raises(InputError, match=message), deterministic_operators(True):
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
    assert settings() == before


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), deterministic_operators(True):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
