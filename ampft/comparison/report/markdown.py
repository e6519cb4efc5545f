"""A comparison in Markdown, fit for a pull request: verdict and table first, the rest folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ampft.comparison.findings import ArmResult, Comparison
from ampft.comparison.report import markdown_predictions as predictions
from ampft.comparison.report import markdown_runs as of_runs
from ampft.comparison.report.cells import (
    difference_cell,
    flips_cell,
    metric_cell,
    peak_cell,
    ratio_cell,
    step_cell,
    without_survivors,
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
    seed_words,
)


def markdown_text(comparison: Comparison) -> str:
    """Return the comparison as Markdown with a newline at its end.

    The verdicts, the stamps and the table of modes stand on top; everything else is in `<details>`,
    the only elements of HTML in it. Names, labels and texts are inert.

    Args:
        comparison: Where its `verdicts` are empty they are made here.
    """
    verdicts = comparison.verdicts or verdict_texts(comparison)
    comparison = without_survivors(comparison)
    sections = {
        "Seed by seed": _seeds(comparison),
        "Predictions that changed": predictions.changed(comparison),
        "Evaluated in fp32 and in its own precision": _evaluated_in_fp32(comparison),
        "Speed": of_runs.speed(comparison),
        "Memory": of_runs.memory(comparison),
        "Classes (exploratory)": predictions.classes(comparison),
        "Other metrics and calibration (exploratory)": predictions.calibration(comparison),
        "Gradient error beside the noise of the batches": of_runs.yardstick(comparison.yardstick),
        "Runs": of_runs.runs(comparison),
        "How it was measured": _method(comparison),
        "What all runs had in common, and where they ran": _setup(comparison),
    }
    folded = (_details(summary, body) for summary, body in sections.items() if body)
    return "\n\n".join([*_top(comparison, verdicts), *folded]) + "\n"


def _top(comparison: Comparison, verdicts: Iterable[str]) -> list[str]:
    parts = [
        f"## Precisions compared: {prose(comparison.title)}",
        "\n".join(f"- {prose(verdict)}" for verdict in verdicts),
        "\n".join(f"> **Note:** {prose(stamp)}\\" for stamp in comparison.stamps).rstrip("\\"),
        _modes(comparison),
        f"{comparison.units.sentence()} on {code(comparison.split)}, {comparison.examples:,} "
        f"examples, {seed_words(comparison.seeds)}. {_legend(comparison)}",
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
        f"difference{comparison.units.of_differences}"
        + (f" ({level(levels[0])} interval)" if levels else ""),
        f"predictions changed, of {comparison.examples:,}",
        "times as fast",
        "step, ms",
        "peak memory, MiB",
        "skipped steps",
    )
    return table(header, (_mode(comparison, arm) for arm in comparison.arms), left=3)


def _executed(comparison: Comparison) -> str:
    """Return what ran, measured in the first step; arms that ran the same share a line."""
    names: dict[str, list[str]] = {}
    for arm in comparison.arms:
        if arm.executed:
            names.setdefault(arm.executed, []).append(code(arm.name))
    lines = (f"- {', '.join(arms)}: {prose(words)}" for words, arms in names.items())
    return "Executed, measured in the first step:\n\n" + "\n".join(lines) if names else ""


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
    words = f"{PLUS_MINUS} is the standard deviation over seeds."
    if any(arm.is_placebo for arm in comparison.arms):
        base = code(comparison.baseline.name)
        words += f" The placebo is {base} again, from initial weights one unit in the last place "
        words += "off."
    return words


def _seeds(comparison: Comparison) -> str:
    """Return the metric and the difference at each seed, and what the interval is made of."""
    units = comparison.units
    header = ("", *(f"seed {seed}" for seed in comparison.seeds), "mean", "deviation")
    own = [
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
    apart = [
        (
            code(arm.name),
            *_by_seed(comparison, arm, [units.difference(x, 1) for x in found.per_seed]),
            units.difference(found.estimate, 1),
            units.interval(found.interval95, 1),
            units.interval(found.interval90, 1),
        )
        for arm in comparison.arms
        for found in [arm.difference]
        if found is not None
    ]
    if not apart:
        return f"{_sentence(units.heading)}:\n\n{table(header, own)}"
    ends = next(arm.difference for arm in comparison.arms if arm.difference is not None)
    wide = (*header[:-1], f"{level(ends.level95)} interval", f"{level(ends.level90)} interval")
    return (
        f"{_sentence(units.heading)}:\n\n{table(header, own)}\n\n"
        f"Difference to {code(comparison.baseline.name)}{units.of_differences}:\n\n"
        f"{table(wide, apart)}\n\n"
        f"What the intervals are made of (roots of the variances{units.of_differences}) and "
        f"p-values:\n\n{_variances(comparison)}"
    )


def _variances(comparison: Comparison) -> str:
    header = (
        *("", "s, over seeds", "√J, over examples", "√C, between seeds", "degrees of freedom"),
        *("p, difference", "after Holm", "p, equivalence", "after Holm"),
    )
    rows = [
        (
            code(arm.name),
            *(
                comparison.units.value(variance**0.5, 1)
                for variance in (
                    found.seed_variance,
                    found.jackknife_variance,
                    found.jackknife_covariance,
                )
            ),
            f"{found.degrees_of_freedom:.1f}",
            *map(p_value, (found.p_difference, found.p_difference_holm)),
            *map(p_value, (found.p_equivalence, found.p_equivalence_holm)),
        )
        for arm in comparison.arms
        for found in [arm.difference]
        if found is not None
    ]
    return table(header, rows)


def _by_seed(comparison: Comparison, arm: ArmResult, cells: Iterable[str]) -> list[str]:
    """Return one cell for each seed of the comparison; "-" where the arm has no run."""
    found = dict(zip((run.seed for run in arm.runs), cells, strict=False))
    return [found.get(seed, NOT_MEASURED) for seed in comparison.seeds]


def _evaluated_in_fp32(comparison: Comparison) -> str:
    units = comparison.units
    rows = [
        (
            code(arm.name),
            metric_cell(comparison, arm),
            units.value(arm.metrics_fp32[comparison.metric].mean),
            difference_cell(comparison, arm),
            NOT_MEASURED
            if found is None
            else f"{units.difference(found.estimate)} ({units.interval(found.interval95)})",
        )
        for arm in comparison.arms
        for found in [arm.difference_fp32]
        if comparison.metric in arm.metrics_fp32
    ]
    if not rows:
        return ""
    header = (
        *("", f"{units.title} in its own precision", f"{units.title} in fp32"),
        *("difference in its own precision", "difference in fp32"),
    )
    said = (
        "The same trained models, predicting in fp32: what remains of a difference comes from "
        "training, what goes away from predicting. Exploratory."
    )
    return f"{said}\n\n{table(header, rows)}"


def _method(comparison: Comparison) -> str:
    paragraphs = "\n\n".join(prose(words) for words in method_paragraphs(comparison))
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


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]
