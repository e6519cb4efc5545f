"""A comparison as Markdown for a pull request: verdicts and table first, the rest folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ampft.comparison.findings import ArmResult, Comparison
from ampft.comparison.report import markdown_predictions as prediction_sections
from ampft.comparison.report import markdown_runs as run_sections
from ampft.comparison.report.cells import (
    difference_cell,
    flips_cell,
    metric_cell,
    peak_cell,
    ratio_cell,
    step_cell,
    without_incomplete_medians,
)
from ampft.comparison.report.method import SOURCES, method_paragraphs
from ampft.comparison.verdict_text import verdict_texts
from ampft.text.markdown import code, prose, table
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    count_range,
    level,
    p_value,
    seed_list,
)


def markdown_text(comparison: Comparison) -> str:
    """Return the comparison as Markdown with a trailing newline.

    The verdicts, the stamps and the table of modes come first. All other sections are in
    `<details>`, the only HTML elements. Names, labels and texts are inert.

    Args:
        comparison: Comparison; empty `verdicts` are computed.
    """
    verdicts = comparison.verdicts or verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    sections = {
        "Results per seed": _seeds(comparison),
        "Changed predictions": prediction_sections.changed(comparison),
        "Predictions in fp32 (exploratory)": _evaluated_in_fp32(comparison),
        "Speed": run_sections.speed(comparison),
        "Memory": run_sections.memory(comparison),
        "Classes (exploratory)": prediction_sections.classes(comparison),
        "Other metrics and calibration (exploratory)": prediction_sections.calibration(comparison),
        "Gradient error relative to batch noise (exploratory)": run_sections.yardstick(
            comparison.yardstick
        ),
        "Runs": run_sections.runs(comparison),
        "Method": _method(comparison),
        "Setup and environment": _setup(comparison),
    }
    folded = (_details(summary, body) for summary, body in sections.items() if body)
    return "\n\n".join([*_top(comparison, verdicts), *folded]) + "\n"


def _top(comparison: Comparison, verdicts: Iterable[str]) -> list[str]:
    parts = [
        f"## Precision comparison: {prose(comparison.title)}",
        "\n".join(f"- {prose(verdict)}" for verdict in verdicts),
        "\n".join(f"> **Note:** {prose(stamp)}\\" for stamp in comparison.stamps).rstrip("\\"),
        _modes(comparison),
        f"{comparison.units.capitalized()} on {code(comparison.split)}, {comparison.examples:,} "
        f"examples, {seed_list(comparison.seeds)}. {_legend(comparison)}",
        _executed(comparison),
    ]
    return [part for part in parts if part]


def _modes(comparison: Comparison) -> str:
    levels = [arm.difference.level95 for arm in comparison.arms if arm.difference is not None]
    header = (
        "mode",
        "execution",
        "verdict",
        comparison.units.heading,
        f"difference{comparison.units.difference_suffix}"
        + (f" ({level(levels[0])} CI)" if levels else ""),
        f"changed predictions, of {comparison.examples:,}",
        "speed-up",
        "step, ms",
        "peak memory, MiB",
        "skipped steps",
    )
    return table(header, (_mode(comparison, arm) for arm in comparison.arms), left=3)


def _executed(comparison: Comparison) -> str:
    """Return the precision measured in the first step; arms with the same one share a line."""
    names: dict[str, list[str]] = {}
    for arm in comparison.arms:
        if arm.executed:
            names.setdefault(arm.executed, []).append(code(arm.name))
    lines = (f"- {', '.join(arms)}: {prose(executed)}" for executed, arms in names.items())
    return "Precision measured in the first step:\n\n" + "\n".join(lines) if names else ""


def _mode(comparison: Comparison, arm: ArmResult) -> tuple[str, ...]:
    verdict = arm.difference.verdict if arm.difference is not None else None
    if arm.status != "complete":
        verdict = arm.status_words
    return (
        code(arm.name),
        prose(arm.execution),
        prose(verdict or ""),
        metric_cell(comparison, arm),
        difference_cell(comparison, arm),
        flips_cell(comparison, arm),
        ratio_cell(comparison, arm),
        step_cell(arm),
        peak_cell(arm),
        count_range(arm.skipped_steps),
    )


def _legend(comparison: Comparison) -> str:
    base = code(comparison.baseline.name)
    text = (
        f"{PLUS_MINUS} is the standard deviation over seeds. Changed predictions and speed-up are "
        f"relative to {base}."
    )
    if any(arm.is_placebo for arm in comparison.arms):
        text += (
            f" The placebo is {base} trained again from initial weights changed by one unit in the "
            "last place."
        )
    return text


def _seeds(comparison: Comparison) -> str:
    """Return the metric and the difference per seed, and the components of the interval."""
    units = comparison.units
    header = ("", *(f"seed {seed}" for seed in comparison.seeds), "mean", "standard deviation")
    metrics = [
        (
            code(arm.name),
            *_by_seed(comparison, arm, [units.value(x, 1) for x in values.per_seed]),
            units.value(values.mean, 1),
            NOT_MEASURED if values.sd is None else units.value(values.sd, 1),
        )
        for arm in comparison.arms
        for values in [arm.metrics.get(comparison.metric)]
        if values is not None
    ]
    differences = [
        (
            code(arm.name),
            *_by_seed(comparison, arm, [units.difference(x, 1) for x in difference.per_seed]),
            units.difference(difference.estimate, 1),
            units.interval(difference.interval95, 1),
            units.interval(difference.interval90, 1),
        )
        for arm in comparison.arms
        for difference in [arm.difference]
        if difference is not None
    ]
    if not differences:
        return f"{_capitalised(units.heading)}:\n\n{table(header, metrics)}"
    first = next(arm.difference for arm in comparison.arms if arm.difference is not None)
    intervals = (f"{level(first.level95)} CI", f"{level(first.level90)} CI")
    return (
        f"{_capitalised(units.heading)}:\n\n{table(header, metrics)}\n\n"
        f"Difference to {code(comparison.baseline.name)}{units.difference_suffix}:\n\n"
        f"{table((*header[:-1], *intervals), differences)}\n\n"
        f"Components of the confidence intervals (square roots of the variances"
        f"{units.difference_suffix}) and p-values:\n\n{_variances(comparison)}"
    )


def _variances(comparison: Comparison) -> str:
    header = (
        *("", "s, over seeds", "√J, over examples", "√C, between seeds", "degrees of freedom"),
        *("p (difference)", "after Holm", "p (equivalence)", "after Holm"),
    )
    rows = [
        (
            code(arm.name),
            *(
                comparison.units.value(variance**0.5, 1)
                for variance in (
                    difference.seed_variance,
                    difference.jackknife_variance,
                    difference.jackknife_covariance,
                )
            ),
            f"{difference.degrees_of_freedom:.1f}",
            *map(p_value, (difference.p_difference, difference.p_difference_holm)),
            *map(p_value, (difference.p_equivalence, difference.p_equivalence_holm)),
        )
        for arm in comparison.arms
        for difference in [arm.difference]
        if difference is not None
    ]
    return table(header, rows)


def _by_seed(comparison: Comparison, arm: ArmResult, cells: Iterable[str]) -> list[str]:
    """Return one cell per seed of the comparison; "-" if the arm has no run."""
    cell_of = dict(zip((run.seed for run in arm.runs), cells, strict=False))
    return [cell_of.get(seed, NOT_MEASURED) for seed in comparison.seeds]


def _evaluated_in_fp32(comparison: Comparison) -> str:
    units = comparison.units
    rows = [
        (
            code(arm.name),
            metric_cell(comparison, arm),
            units.value(arm.metrics_fp32[comparison.metric].mean),
            difference_cell(comparison, arm),
            NOT_MEASURED
            if in_fp32 is None
            else f"{units.difference(in_fp32.estimate)} ({units.interval(in_fp32.interval95)})",
        )
        for arm in comparison.arms
        for in_fp32 in [arm.difference_fp32]
        if comparison.metric in arm.metrics_fp32
    ]
    if not rows:
        return ""
    header = (
        *("", f"{units.title} in own precision", f"{units.title} in fp32"),
        *("difference in own precision", "difference in fp32"),
    )
    explanation = (
        "The same trained models predict in their own precision and in fp32. A difference that "
        "remains in fp32 comes from training in the precision; the rest comes from predicting in "
        "it."
    )
    return f"{explanation}\n\n{table(header, rows)}"


def _method(comparison: Comparison) -> str:
    paragraphs = "\n\n".join(prose(paragraph) for paragraph in method_paragraphs(comparison))
    sources = "\n".join(f"- {prose(source)}" for source in SOURCES)
    return f"{paragraphs}\n\nSources:\n\n{sources}"


def _setup(comparison: Comparison) -> str:
    parts = [_facts("setting", comparison.setup), _facts("environment", comparison.environment)]
    return "\n\n".join(part for part in parts if part)


def _facts(heading: str, facts: Mapping[str, str]) -> str:
    rows: Sequence[Sequence[str]] = [(prose(k), prose(v)) for k, v in facts.items()]
    return table((heading, ""), rows, left=2) if rows else ""


def _details(summary: str, body: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
