"""The random generator of an accelerator, whatever its type."""

from __future__ import annotations

import torch
from torch import Tensor


def device_random_state(device: torch.device) -> Tensor | None:
    """Return the state of the device's own generator, on the CPU; None for a CPU."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state.cpu()


def restore_device_random_state(state: Tensor | None, device: torch.device) -> None:
    """Let the device's own generator continue from a state; None changes nothing."""
    if state is None or device.type == "cpu":
        return
    module = torch.get_device_module(device)
    if device.type == "mps":
        module.set_rng_state(state)
    else:
        module.set_rng_state(state, device)
