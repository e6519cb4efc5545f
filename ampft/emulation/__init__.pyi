from .cuda_autocast import AUTOCAST_TABLE
from .emulated_attention import attention, observers
from .products import Emulation, covered_products, emulation_suspended, inside_emulation

__all__ = [
    "AUTOCAST_TABLE",
    "Emulation",
    "attention",
    "covered_products",
    "emulation_suspended",
    "inside_emulation",
    "observers",
]
