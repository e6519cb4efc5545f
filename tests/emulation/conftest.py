from collections.abc import Iterator

import pytest
import torch

from ampft.emulation import Emulation


@pytest.fixture
def emulation() -> Iterator[None]:
    """Run the test inside the emulation, with a fixed seed."""
    torch.manual_seed(0)
    with Emulation(torch.float16):
        yield
