"""The rows of the noise yardstick table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampft.text.json_io import JSONValue
from ampft.text.numbers import number

MAX_MODULES = 5  # modules listed per row


@dataclass(frozen=True)
class NoiseRow:
    """Gradient error of one mode relative to batch noise, for one set of weights.

    Attributes:
        weights: Name of the weights: the initial weights or a checkpoint.
        mode: Mode such as "bf16".
        error: Error of the whole gradient, divided by the noise.
        bias: Error that all batches share, divided by the noise.
        bias_z: z-score of the bias.
        underflow: Share of the entries that became 0.
        overflowed: Number of batches whose gradient was not finite at the initial loss scale.
        failed: Number of batches without a finite gradient at any scale.
        modules: Modules with the largest error divided by noise, and that ratio.
    """

    weights: str
    mode: str
    error: float | None
    bias: float | None
    bias_z: float | None
    underflow: float | None
    overflowed: float | None
    failed: float | None
    modules: tuple[tuple[str, float], ...]


def noise_rows(yardstick: Mapping[str, JSONValue] | None) -> tuple[NoiseRow, ...]:
    """Return a row for each set of weights and mode; parts with another layout are skipped."""
    return tuple(
        _row(str(checkpoint.get("name", "")), mode)
        for checkpoint in _mappings((yardstick or {}).get("checkpoints"))
        for mode in _mappings(checkpoint.get("modes"))
    )


def noise_protocol(yardstick: Mapping[str, JSONValue] | None) -> str:
    """Return the number and size of the measured batches; empty if unknown."""
    settings = _mapping((yardstick or {}).get("settings"))
    batches, size = settings.get("batches"), settings.get("effective_batch_size")
    if not isinstance(batches, int):
        return ""
    return f"{batches} step batches" + (f" of {size} examples" if isinstance(size, int) else "")


def share(value: float) -> str:
    """Return a share in percent, such as "0.41 %" or "3e-05 %"."""
    percent = 100 * value
    return f"{number(percent, 2)} %" if percent >= 0.01 or not percent else f"{percent:.0e} %"


def _row(weights: str, figures: Mapping[str, JSONValue]) -> NoiseRow:
    whole = _mapping(figures.get("whole"))
    modules = [
        (str(module.get("name", "")), value)
        for module in _mappings(figures.get("modules"))
        if (value := _number(module.get("error_over_noise"))) is not None
    ]
    modules.sort(key=lambda pair: (-pair[1], pair[0]))
    return NoiseRow(
        weights=weights,
        mode=str(figures.get("mode", "")),
        error=_number(whole.get("error_over_noise")),
        bias=_number(whole.get("bias_over_noise")),
        bias_z=_number(whole.get("bias_z")),
        underflow=_number(whole.get("underflow")),
        overflowed=_number(figures.get("overflowed_batches")),
        failed=_number(figures.get("failed_batches")),
        modules=tuple(modules[:MAX_MODULES]),
    )


def _number(value: JSONValue) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _mapping(value: JSONValue) -> Mapping[str, JSONValue]:
    return value if isinstance(value, dict) else {}


def _mappings(value: JSONValue) -> list[Mapping[str, JSONValue]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
