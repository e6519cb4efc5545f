"""Binary16 (fp16) on a CPU, computed as a GPU's tensor cores and CUDA's autocast compute it."""

from ampft.precision.emulation.attention import attention, observers
from ampft.precision.emulation.cuda_autocast_table import AUTOCAST_TABLE
from ampft.precision.emulation.mode import (
    Binary16Emulation,
    covered_products,
    emulation_suspended,
    inside_emulation,
)

__all__ = [
    "AUTOCAST_TABLE",
    "Binary16Emulation",
    "attention",
    "covered_products",
    "emulation_suspended",
    "inside_emulation",
    "observers",
]
