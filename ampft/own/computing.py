"""One context that computes in a precision: its numerics, its autocast, and a check of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampft.errors import InputError, PrecisionContradicted
from ampft.precision.accelerator import numerics, resolved
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.resolve import Precision


@contextmanager
def computing_in(
    precision: Precision | str, device: torch.device | str | None = None
) -> Iterator[Precision]:
    """Return a context in which matrix products are computed in a precision, and in no other.

    It enters the numerics of the precision and its autocast. Weights are cast again in each pass,
    because they may change inside the context. Train inside it with `Precision.scaler`, which
    does nothing where no scaling is needed:

        with ampft.computing_in("fp16") as precision:
            scaler = precision.scaler()

    Args:
        precision: A mode such as "fp16", or the result of `ampft.resolve`.
        device: Device of the computation, for a mode; None for the one that Accelerate uses.

    Yields:
        The precision, resolved for the device.

    Raises:
        InputError: The device does not support the mode, or the mode replaces layers.
        PrecisionContradicted: The first module with matrix products that is called inside the
            context has used other dtypes.
    """
    precision = resolved(precision, device)
    if precision.properties.replaces_layers:
        raise InputError(
            f"precision {precision.mode}: this mode replaces layers of the model, which a context "
            "cannot do. Use ampft.make_accelerator and Accelerator.prepare, or another precision."
        )
    cast = precision.compute_dtype if precision.uses_autocast else None
    with ExitStack() as stack:
        stack.enter_context(numerics(precision))
        stack.enter_context(
            torch.autocast(
                precision.device_type, cast, enabled=cast is not None, cache_enabled=False
            )
        )
        stack.enter_context(_FirstModule(precision))
        yield precision


class _FirstModule:
    """Context that records the first module with products, and compares their dtypes."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._recorded: tuple[nn.Module, ProductRecorder] | None = None
        self._is_disturbed = False  # Whether the recorded module has entered another context.

    def __enter__(self) -> None:
        for outer in _entered:
            outer._is_disturbed = outer._recorded is not None
        _entered.append(self)
        self._hooks = (
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        )

    def __exit__(self, *_: object) -> None:
        _entered.remove(self)
        self._stop()

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, module: nn.Module, args: Any) -> None:
        del args
        is_own = _entered[-1] is self  # not a module inside a context of another precision
        if is_own and self._recorded is None and not torch.compiler.is_compiling():
            self._recorded = module, ProductRecorder(self._precision)
            self._recorded[1].__enter__()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        del args, output
        if self._recorded is None or self._recorded[0] is not module:
            return
        recorder = self._recorded[1]
        self._recorded = None
        recorder.__exit__(None, None, None)
        executed, is_disturbed = recorder.census(), self._is_disturbed
        self._is_disturbed = False
        if is_disturbed or not executed.rows:
            return
        self._stop()
        message = precision_contradiction(
            self._precision, executed, where=f"the first module ({type(module).__name__})"
        )
        if message is not None:
            raise PrecisionContradicted(message)


_entered: list[_FirstModule] = []  # The contexts that have been entered, the innermost last.
