"""The sections of the reports in Markdown and HTML, in order, and the tables of some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark_text
from ampft.comparison.report import prediction_tables, tables
from ampft.comparison.report.method import SOURCES, method_paragraphs
from ampft.text.json_io import JSONValue
from ampft.text.numbers import counted, level, or_dash, percent, points
from ampft.text.tables import Cell, Name, Quote, Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report.

    Attributes:
        name: Identifier, such as "classes".
        heading: Heading.
        is_exploratory: Whether its results may only suggest a question.
        is_folded: Whether the page shows only its heading until a reader opens it.
        tables: Tables.
        paragraphs: Paragraphs above the tables, not escaped.
        items: List below the tables, not escaped.
    """

    name: str
    heading: str
    is_exploratory: bool = False
    is_folded: bool = False
    tables: tuple[Table, ...] = ()
    paragraphs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()


def sections(comparison: Comparison, *, max_classes: int | None = None) -> tuple[Section, ...]:
    """Return the sections below the table of modes that have content.

    Args:
        comparison: Comparison, from `without_incomplete_medians`.
        max_classes: Maximum number of classes in the table of classes; None for all.
    """
    every = _sections(comparison, max_classes)
    return tuple(each for each in every if each.tables or each.paragraphs or each.items)


def _sections(comparison: Comparison, max_classes: int | None) -> Iterator[Section]:
    yield Section(
        name="subgroups",
        heading="Where losses are largest",
        is_exploratory=True,
        tables=tuple(subgroup_losses(comparison)),
    )
    yield Section(
        name="changed",
        heading="Changed predictions",
        is_exploratory=True,
        tables=tuple(prediction_tables.changed(comparison)),
    )
    yield Section(
        name="in-fp32",
        heading="Predictions in fp32",
        is_exploratory=True,
        tables=_present(tables.predicted_in_fp32(comparison)),
    )
    yield Section(
        name="speed",
        heading="Speed",
        tables=_present(tables.speed(comparison)),
        items=tuple(
            f"{arm.name}: {remark_text(arm.speed.reason)}"
            for arm in comparison.arms
            if arm.speed is not None and arm.speed.reason
        ),
    )
    yield Section(name="memory", heading="Memory", tables=_present(tables.memory(comparison)))
    yield Section(
        name="classes",
        heading="Classes",
        is_exploratory=True,
        tables=_present(
            prediction_tables.classes(comparison, limit=max_classes),
            prediction_tables.class_intervals(comparison, limit=max_classes),
            prediction_tables.confusions(comparison),
        ),
    )
    yield Section(
        name="calibration",
        heading="Other metrics and calibration",
        is_exploratory=True,
        tables=_present(
            prediction_tables.metrics(comparison), prediction_tables.calibration(comparison)
        ),
    )
    yield Section(
        name="noise",
        heading="Gradient error relative to batch noise",
        is_exploratory=True,
        tables=tuple(yardstick(comparison.yardstick)),
    )
    yield Section(
        name="seeds",
        heading="Intervals and p-values"
        if comparison.has_one_model_each
        else "Results per seed, intervals and p-values",
        is_folded=True,
        tables=tuple(tables.seeds(comparison)),
    )
    yield Section(name="runs", heading="Runs", is_folded=True, tables=(tables.runs(comparison),))
    yield Section(
        name="method", heading="Method", is_folded=True, paragraphs=method_paragraphs(comparison)
    )
    yield Section(name="sources", heading="Sources", is_folded=True, items=SOURCES)
    yield Section(
        name="setup",
        heading="Setup and environment",
        is_folded=True,
        tables=_present(
            tables.facts("Settings of all runs", comparison.setup),
            tables.facts("Hardware and versions", comparison.environment),
        ),
    )


def _present(*every: Table | None) -> tuple[Table, ...]:
    return tuple(each for each in every if each is not None)


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


# What counts as a correct prediction of an example that consists of words or pixels.
CORRECT = {"sentences": "sentences with all tags correct", "masks": "masks without a wrong pixel"}


def subgroup_losses(comparison: Comparison) -> Iterator[Table]:
    """Yield the subgroups in which the arms lose most, if subgroups were examined."""
    examined = [(arm, arm.subgroups) for arm in comparison.arms if arm.subgroups is not None]
    if not examined:
        return
    first = examined[0][1]
    rows: list[tuple[Cell, ...]] = []
    for arm, subgroups in examined:
        if not subgroups.losses:
            rows.append((Name(arm.name, "arm"), "none", "", "", "", ""))
        for each in subgroups.losses:
            low, high = each.interval
            rows.append(
                (
                    *(Name(arm.name, "arm"), f"{each.kind}:", Name(each.name)),
                    *(f"{each.examples:,}", points(each.estimate)),
                    f"{points(low)} to {points(high)}{'; a loss' if each.is_loss else ''}",
                )
            )
    detectable = 100 * max(subgroups.detectable for _, subgroups in examined)
    what = CORRECT.get(first.noun, "correct predictions")
    kinds = f"classes, words and lengths of {first.noun}" if first.has_words else "classes"
    yield Table(
        title=f"Differences to {comparison.baseline.name} in {what}, in points",
        header=(comparison.noun, "subgroup", "", first.noun, "difference", "corrected interval"),
        rows=rows,
        note=f"The largest losses, relative to their uncertainty, among {first.examined:,} "
        f"{kinds} (with at least 20 {first.noun} each). The intervals have a "
        f"level of {level(first.level)}, so that all of them hold together with 95 %: only an "
        "interval entirely below 0 is a loss that the number of subgroups does not explain. "
        f"With {counted(len(comparison.seeds), 'seed')}, a loss of {detectable:.0f} points at "
        f"every seed in a subgroup of usual size ({first.usual_size:,} {first.noun}) would be "
        "found with a probability of 80 %; smaller ones may be there."
        + " Compare with the placebo."
        * any(arm.is_placebo for arm, _ in examined),
        left=3,
    )
