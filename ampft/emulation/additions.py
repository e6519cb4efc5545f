"""What this add-on adds to the core."""

from __future__ import annotations

from ampft.precision.extension_points import EMULATION, EmulatedProducts


@EMULATION.add
def emulated_products() -> EmulatedProducts:
    """Return the emulation of 16-bit products."""
    from ampft.emulation import Emulation, emulation_suspended, inside_emulation

    return EmulatedProducts(Emulation, emulation_suspended, inside_emulation)
