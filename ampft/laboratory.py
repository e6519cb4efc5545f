"""The only door from the core to `ampft.lab`, which an installation may lack."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ampft.errors import InputError


def laboratory(module: str, asked: str) -> ModuleType:
    """Import a module of the laboratory by its name.

    Args:
        module: Name below `ampft.lab`, such as "cluster.launcher".
        asked: What the user asked for, such as "--engine ray"; the message begins with it.

    Raises:
        InputError: This installation has no laboratory.
    """
    if find_spec("ampft.lab") is None:
        raise InputError(
            f"{asked}: this installation of ampft lacks its folder `lab`, which does this. Install "
            "ampft as a whole."
        )
    return import_module(f"ampft.lab.{module}")
