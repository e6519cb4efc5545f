"""16-bit products on a CPU, computed as a GPU's tensor cores compute them."""

from ampft.precision.emulation.attention import attention, observers
from ampft.precision.emulation.cuda_autocast_table import AUTOCAST_TABLE
from ampft.precision.emulation.mode import (
    Emulation,
    covered_products,
    emulation_suspended,
    inside_emulation,
)

__all__ = [
    "AUTOCAST_TABLE",
    "Emulation",
    "attention",
    "covered_products",
    "emulation_suspended",
    "inside_emulation",
    "observers",
]
