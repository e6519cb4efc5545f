"""The noise yardstick as rows of a table, from whatever of it was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampft.text.json_io import JSONValue
from ampft.text.numbers import number

LARGEST = 5  # modules that are named


@dataclass(frozen=True)
class Noise:
    """Gradient error of one mode beside the noise of the batches, at one set of weights.

    Attributes:
        at: The initial weights, or a checkpoint.
        mode: Such as "bf16".
        error: Over the noise, whole gradient.
        bias: The part that all batches share, over the noise.
        bias_z: How far the bias stands out from chance.
        underflow: Share of the entries that became 0.
        overflowed: Batches whose gradient was not finite at first.
        failed: Batches without a finite gradient at any scale.
        modules: Those with the largest error over noise.
    """

    at: str
    mode: str
    error: float | None
    bias: float | None
    bias_z: float | None
    underflow: float | None
    overflowed: float | None
    failed: float | None
    modules: tuple[tuple[str, float], ...]


def noise_rows(yardstick: Mapping[str, JSONValue] | None) -> tuple[Noise, ...]:
    """Return a row for each set of weights and mode; what has another layout is passed over."""
    return tuple(
        _row(str(point.get("name", "")), mode)
        for point in _mappings((yardstick or {}).get("checkpoints"))
        for mode in _mappings(point.get("modes"))
    )


def noise_protocol(yardstick: Mapping[str, JSONValue] | None) -> str:
    """Return on how many batches it was measured, in words; empty when that was not written."""
    settings = _mapping((yardstick or {}).get("settings"))
    batches, size = settings.get("batches"), settings.get("effective_batch_size")
    if not isinstance(batches, int):
        return ""
    return f"{batches} step batches" + (f" of {size} examples" if isinstance(size, int) else "")


def share(value: float) -> str:
    """Return a share with two digits, however small: "0.41 %", "3e-05 %"."""
    shown = 100 * value
    return f"{number(shown, 2)} %" if shown >= 0.01 or not shown else f"{shown:.0e} %"


def _row(at: str, figures: Mapping[str, JSONValue]) -> Noise:
    whole = _mapping(figures.get("whole"))
    modules = [
        (str(module.get("name", "")), value)
        for module in _mappings(figures.get("modules"))
        if (value := _number(module.get("error_over_noise"))) is not None
    ]
    modules.sort(key=lambda pair: (-pair[1], pair[0]))
    return Noise(
        at=at,
        mode=str(figures.get("mode", "")),
        error=_number(whole.get("error_over_noise")),
        bias=_number(whole.get("bias_over_noise")),
        bias_z=_number(whole.get("bias_z")),
        underflow=_number(whole.get("underflow")),
        overflowed=_number(figures.get("overflowed_batches")),
        failed=_number(figures.get("failed_batches")),
        modules=tuple(modules[:LARGEST]),
    )


def _number(value: JSONValue) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _mapping(value: JSONValue) -> Mapping[str, JSONValue]:
    return value if isinstance(value, dict) else {}


def _mappings(value: JSONValue) -> list[Mapping[str, JSONValue]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
