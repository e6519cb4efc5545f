"""The tables of the noise yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ampft.text.json_io import JSONValue
from ampft.text.numbers import or_dash, percent
from ampft.text.tables import Name, Quote, Table

MAX_MODULES = 5  # modules listed per row


def yardstick(values: Mapping[str, JSONValue] | None) -> Iterator[Table]:
    """Yield the gradient errors of the modes relative to batch noise, and the largest by module.

    Args:
        values: `Yardstick` as JSON; None if not measured. Parts with another layout are skipped.
    """
    measured = [
        (Name(str(checkpoint.get("name", ""))), Name(str(mode.get("mode", ""))), mode)
        for checkpoint in _mappings((values or {}).get("checkpoints"))
        for mode in _mappings(checkpoint.get("modes"))
    ]
    if not measured:
        return
    settings = _mapping((values or {}).get("settings"))
    batches, size = settings.get("batches"), settings.get("effective_batch_size")
    sizes = f" of {size} examples" if isinstance(size, int) else ""
    protocol = f" ({batches} step batches{sizes})" if isinstance(batches, int) else ""
    yield Table(
        title=f"Gradient error relative to float64, divided by batch noise{protocol}",
        header=(
            *("weights", "mode", "error / noise", "bias / noise", "z of the bias"),
            *("underflowed entries", "overflowed batches", "failed batches"),
        ),
        rows=[
            (
                *(weights, name),
                *(
                    or_dash(_number(whole.get(f"{key}_over_noise")), _share)
                    for key in ("error", "bias")
                ),
                or_dash(_number(whole.get("bias_z")), "{:.1f}".format),
                or_dash(_number(whole.get("underflow")), _share),
                or_dash(_number(mode.get("overflowed_batches")), "{:,.0f}".format),
                or_dash(_number(mode.get("failed_batches")), "{:,.0f}".format),
            )
            for weights, name, mode in measured
            for whole in [_mapping(mode.get("whole"))]
        ],
        note="Noise is what the choice of the batch changes in the gradient. The bias is the part "
        "of the error that all batches share, so it does not average out over steps. A z above 2 "
        "indicates a bias beyond chance.",
        left=2,
    )
    modules = [
        (weights, name, Quote(listed))
        for weights, name, mode in measured
        if (listed := _largest_modules(mode))
    ]
    if modules:
        header = ("weights", "mode", "modules")
        title = "Modules with the largest error / noise"
        yield Table(title=title, header=header, rows=modules, left=3)


def _largest_modules(mode: Mapping[str, JSONValue]) -> str:
    modules = [
        (-error, str(module.get("name", "")))
        for module in _mappings(mode.get("modules"))
        if (error := _number(module.get("error_over_noise"))) is not None
    ]
    return ", ".join(f"{name} {_share(-error)}" for error, name in sorted(modules)[:MAX_MODULES])


def _share(value: float) -> str:
    """Return a share in percent, such as "0.41 %" or "3e-05 %"."""
    is_shown = 100 * value >= 0.01 or not value
    return percent(value, 2) if is_shown else f"{100 * value:.0e} %"


def _number(value: JSONValue) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _mapping(value: JSONValue) -> Mapping[str, JSONValue]:
    return value if isinstance(value, dict) else {}


def _mappings(value: JSONValue) -> list[Mapping[str, JSONValue]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
