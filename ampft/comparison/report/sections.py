"""The sections of the reports in Markdown and HTML, in order, the tables of some, the method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ampft.comparison.findings import DISTURBED, INFERENCE, PREDICTIONS, TRAINING, Comparison
from ampft.comparison.remarks import remark_text
from ampft.comparison.report import prediction_tables, tables
from ampft.comparison.verdict_text import covered_models_text, seeds_text
from ampft.text.json_io import JSONValue
from ampft.text.numbers import confidence_percent, counted, or_dash, percent, points
from ampft.text.page import Block, Cell, Items, Name, Paragraph, Quote, Section, Subheading, Table

EXPLORATORY = "exploratory"  # results that may only suggest a question
FOLDED = "folded"


def tables_of_arms(comparison: Comparison) -> Section:
    """Return the section with the settings, the results and the executed precisions of the arms."""
    differing, executed = tables.settings(comparison), tables.executed_precisions(comparison)
    part = "batch" if comparison.kind == INFERENCE else "step"
    blocks: list[Block] = [*([differing] if differing else []), tables.modes(comparison)]
    if executed:
        heading = Subheading(f"Precision measured in the first {part}")
        blocks += [heading, Items(tuple(map(Quote, executed)))]
    return Section("modes", f"{comparison.noun.capitalize()}s", blocks)


def sections(comparison: Comparison, *, max_classes: int | None = None) -> tuple[Section, ...]:
    """Return the sections below the table of modes that have content.

    Args:
        comparison: Comparison, from `without_incomplete_medians`.
        max_classes: Maximum number of classes in the table of classes; None for all.
    """
    c, shown = comparison, prediction_tables
    classes = (
        shown.classes(c, limit=max_classes),
        shown.class_intervals(c, limit=max_classes),
        shown.confusions(c),
    )
    seeds = "Results per seed, intervals and p-values"
    if c.has_one_model_each:
        seeds = "Intervals and p-values"
    command = {"command of the first run": c.command} if c.command else {}
    settings = tables.facts_table("Settings of all runs", {**c.setup, **command})
    machine = tables.facts_table("Hardware and versions", c.environment)
    every: tuple[tuple[str, str, str, Iterable[Table | None]], ...] = (
        ("subgroups", "Where losses and gains are largest", EXPLORATORY, subgroup_losses(c)),
        ("changed", "Changed predictions", EXPLORATORY, shown.changed(c)),
        ("in-fp32", "Predictions in fp32", EXPLORATORY, [shown.predicted_in_fp32(c)]),
        ("speed", "Speed", "", [tables.speed(c)]),
        ("memory", "Memory", "", [tables.memory(c)]),
        ("classes", "Classes", EXPLORATORY, classes),
        (
            "calibration",
            "Other metrics and calibration",
            EXPLORATORY,
            [shown.metrics(c), shown.calibration(c)],
        ),
        ("noise", "Gradient error relative to batch noise", EXPLORATORY, yardstick(c.yardstick)),
        ("seeds", seeds, FOLDED, shown.seeds(c)),
        ("runs", "Runs", FOLDED, [tables.runs(c)]),
        ("method", "Method", FOLDED, ()),
        ("sources", "Sources", FOLDED, ()),
        ("setup", "Setup and environment", FOLDED, [settings, machine]),
    )
    paragraphs = {"method": method_paragraphs(c)}
    reasons = [
        f"{arm.name}: {remark_text(arm.speed.reason)}"
        for arm in c.arms
        if arm.speed is not None and arm.speed.reason
    ]
    items = {"speed": tuple(reasons), "sources": SOURCES}
    found = []
    for name, heading, kind, listed in every:
        blocks: list[Block] = [Paragraph(text) for text in paragraphs.get(name, ())]
        blocks += [table for table in listed if table is not None]
        if texts := items.get(name):
            blocks.append(Items(tuple(map(Quote, texts))))
        if blocks:
            tag = EXPLORATORY if kind == EXPLORATORY else ""
            found.append(Section(name, heading, blocks, tag, kind == FOLDED))
    return tuple(found)


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
    """Yield the subgroups in which the arms lose and gain most, if subgroups were examined."""
    examined = [(arm, arm.subgroups) for arm in comparison.arms if arm.subgroups is not None]
    if not examined:
        return
    first = examined[0][1]
    rows: list[tuple[Cell, ...]] = []
    for arm, subgroups in examined:
        if not subgroups.losses and not subgroups.gains:
            rows.append((Name(arm.name, "arm"), "none", "", "", "", ""))
        for each in (*subgroups.losses, *subgroups.gains):
            low, high = each.interval
            beyond = ""
            if each.is_loss or each.is_gain:
                beyond = f"; a {'loss' if each.is_loss else 'gain'}"
            rows.append(
                (
                    *(Name(arm.name, "arm"), f"{each.kind}:", Name(each.name)),
                    *(f"{each.examples:,}", points(each.estimate)),
                    f"{points(low)} to {points(high)}{beyond}",
                )
            )
    detectable = 100 * max(subgroups.detectable for _, subgroups in examined)
    what = CORRECT.get(first.noun, "correct predictions")
    kinds = f"classes, words and lengths of {first.noun}" if first.has_words else "classes"
    models = f"With {counted(len(comparison.seeds), 'seed')}, a loss of {detectable:.0f} points at "
    models += "every seed"
    if comparison.has_fixed_models:
        models = f"A loss of {detectable:.0f} points"
    yield Table(
        title=f"Differences to {comparison.baseline.name} in {what}, in points",
        header=(comparison.noun, "subgroup", "", first.noun, "difference", "corrected interval"),
        rows=rows,
        note="The largest losses and gains, relative to their uncertainty, among "
        f"{first.examined:,} {kinds} (with at least 20 {first.noun} each). The intervals have a "
        f"level of {confidence_percent(first.level)}, so that all of them hold together with "
        "95 %: only an interval without 0 is a loss or a gain that the number of subgroups does "
        "not explain. "
        f"{models} in a subgroup of usual size ({first.usual_size:,} {first.noun}) would be "
        "found with a probability of 80 %; smaller ones may be there."
        + (" Compare with the placebo." if any(arm.is_placebo for arm, _ in examined) else ""),
        left=3,
    )


FORMULAS = (
    "Seeds are treated as readers and examples as cases (Obuchowski and Rockette 1995). The "
    "difference is the mean over the S seeds, s² is the variance of the differences over seeds, J "
    "is the mean jackknife variance over examples, and C is the mean jackknife covariance between "
    "seeds (at least 0). A confidence interval (CI) by t is the difference plus or minus the "
    "larger of two half-widths. Over seeds and examples, it is the square root of V = s²/S + C "
    "times w t(S - 1) + (1 - w) t(n - 1), where w is the share of s²/S in V and n is the number of "
    "examples (Cochran and Cox 1957). Over examples only, it is t(n - 1) times the square root of "
    "(J - C)/S + C. Both variances are at least the square of the effect of a single example, so "
    "that identical predictions are not mistaken for certainty; if V is not larger than that, w is "
    "1. "
)
RARE_LOSSES = (
    "A lower limit that is not above 0 is then lowered to the limit of rare losses, if that is "
    "lower, and an upper limit that is not below 0 is raised to that of rare gains: the largest "
    "ones that are plausible at this level although the test set may lack such examples (bootstrap "
    "tilting, Efron 1981; for examples that are lost at every seed, Clopper and Pearson 1934)."
)
HOLM = (
    "With several {noun}s, the p-values are corrected by Holm's method (1979), separately for "
    "difference, for difference beyond the margin and for equivalence. The intervals are not "
    "corrected for the number of {noun}s."
)
OTHER_RESULTS = (
    "All other results (predictions in fp32, classes, calibration, changed predictions, McNemar's "
    "tests) are exploratory: they may suggest a question, but they do not answer one."
)
INTERLEAVED = (
    "The runs were separate processes, trained one at a time with the {noun}s interleaved."
)
SIDE_BY_SIDE = (
    "The runs were separate processes, several at a time, started with the {noun}s interleaved."
)
AT_DIFFERENT_TIMES = (
    "No plan ordered the runs, so their speeds were measured at different times, possibly while "
    "other work was running, and are not ranked."
)
SPEED = (
    "Speed-up is the baseline's median optimizer step time after warm-up divided by that of the "
    "{noun}, seed by seed. Memory is the peak of the process or of the device's allocator. "
    "Emulated {noun}s are not ranked by speed."
)
SPEED_INTERVAL = (
    "The interval of a speed-up is Student's t interval of the mean logarithm over the pairs of "
    "times, or with more than 11 pairs that of Wilcoxon's signed-rank test (Hodges and Lehmann "
    "1963). The speed-up is faster or slower if the 95 % CI excludes 1, and as fast if the 90 % "
    "CI lies within 5 % of 1. It is not corrected for the number of {noun}s."
)
FIXED_MODELS = (
    "Examples are the only source of uncertainty (fixed readers in the terms of Obuchowski and "
    "Rockette 1995). The variance is (J - C)/S + C for S models, where J is the mean jackknife "
    "variance over examples and C is the mean jackknife covariance between models (at least 0; 0 "
    "with one model), and at least the square of the effect of a single example. A confidence "
    "interval (CI) by t is the difference plus or minus t(n - 1) times its square root, for n "
    "examples. "
)
LATENCY = (
    "Times are those of the forward pass, without tokenization, on the same texts in every mode. "
    "The modes took turns in rounds; a speed-up comes from the baseline's time divided by that of "
    "the mode in the same round. Emulated modes are not timed."
)
PER_EXAMPLE = "If effective batches differ, step times are divided by them."
SOURCES = (
    "Obuchowski and Rockette, Hypothesis testing of diagnostic accuracy for multiple readers and "
    "multiple tests, Communications in Statistics, Simulation and Computation 24, 1995",
    "Cochran and Cox, Experimental Designs, 2nd edition, 1957, section 4.14",
    "Hodges and Lehmann, Estimates of location based on rank tests, Annals of Mathematical "
    "Statistics 34, 1963",
    "Efron, Nonparametric standard errors and confidence intervals, Canadian Journal of Statistics "
    "9, 1981",
    "Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of the "
    "binomial, Biometrika 26, 1934",
    "Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of "
    "Statistics 6, 1979",
    "Summers and Dinneen, Nondeterminism and instability in neural network optimization, ICML 2021",
)


def method_paragraphs(comparison: Comparison) -> tuple[str, ...]:
    """Return the paragraphs on estimand, formulas, verdicts, placebo, speed and overhead.

    Args:
        comparison: Comparison. The name of its split is quoted verbatim, so the caller must escape
            the paragraphs for display.
    """
    estimand = (
        f"{_estimand(comparison)} It is based on {comparison.examples:,} examples of the split "
        f"{comparison.split} and {seeds_text(comparison)}. {_planning(comparison)}"
    )
    formulas = FIXED_MODELS if comparison.has_fixed_models else FORMULAS
    parts = [
        estimand,
        formulas + RARE_LOSSES,
        _verdict_rules(comparison),
        HOLM.format(noun=comparison.noun),
    ]
    if any(arm.is_placebo for arm in comparison.arms):
        parts.append(_placebo(comparison))
    if comparison.kind == TRAINING:
        order = INTERLEAVED if comparison.planned else AT_DIFFERENT_TIMES
        if any(each.kind in (*DISTURBED, "own_gpus") for each in comparison.stamps):
            order = SIDE_BY_SIDE
        per_example = f" {PER_EXAMPLE}" if comparison.noun == "arm" else ""
        interval = f" {SPEED_INTERVAL}" if comparison.planned else ""
        parts.append(f"{order} {SPEED}{per_example}{interval}".format(noun=comparison.noun))
    elif comparison.kind == INFERENCE:
        parts.append(f"{LATENCY} {SPEED_INTERVAL}".format(noun=comparison.noun))
    parts.append(OTHER_RESULTS)
    if comparison.overhead_share is not None:
        parts.append(
            f"The comparison added {percent(comparison.overhead_share, 1)} to the time of the runs."
        )
    return tuple(parts)


def _estimand(comparison: Comparison) -> str:
    base, metric = comparison.baseline.name, comparison.units.title
    if comparison.has_one_model_each:
        return (
            f"The estimate is the expected difference in {metric} ({comparison.noun} minus {base}) "
            f"over test examples, for {covered_models_text(comparison)} only. It says nothing "
            "about training them again, with other seeds or data."
        )
    if comparison.kind == INFERENCE and comparison.has_fixed_models:
        return (
            f"The estimate is the expected difference in {metric} (mode minus {base}) over test "
            "examples, for this trained model only. It says nothing about models trained with "
            "other seeds or data."
        )
    if comparison.kind == INFERENCE:
        return (
            f"The estimate is the expected difference in {metric} (mode minus {base}) over "
            "training seeds and test examples, where the same trained models predict in each mode."
        )
    if comparison.kind == PREDICTIONS:
        return (
            f"The estimate is the expected difference in {metric} (arm minus {base}) over training "
            "seeds and test examples, if the rows of each seed come from one training and the "
            "trainings of different seeds are independent, which cannot be checked without run "
            "records."
        )
    fixed = "a fixed training set, model and hyperparameters"
    if comparison.noun == "arm":
        fixed = f"fixed settings apart from {', '.join(f'--{each}' for each in comparison.varied)}"
    return (
        f"The estimate is the expected difference in {metric} ({comparison.noun} minus {base}) "
        "over training seeds (classification head, data order, dropout) and test examples, for "
        f"{fixed}."
    )


def _placebo(comparison: Comparison) -> str:
    base, what = comparison.baseline.name, tables.placebo_text(comparison)
    if comparison.kind == INFERENCE:
        return (
            f"{what} It shows what the smallest possible change of the arithmetic does, and its "
            "times show how reliable times are."
        )
    return (
        f"{what} If training is chaotic, even this changes predictions (Summers and "
        f"Dinneen 2021); otherwise, the placebo stays close to {base}. Judge the changes "
        f"caused by {comparison.an_arm} against those caused by the placebo."
    )


def _planning(comparison: Comparison) -> str:
    if comparison.kind == INFERENCE:
        return ""
    margin = comparison.units.margin_with_unit
    if comparison.planned:
        return f"The metric and the margin of {margin} were fixed before the first run."
    return (
        f"No plan preceded the runs, so the metric, the margin of {margin} and the number of seeds "
        "may have been chosen after results were seen."
    )


def _verdict_rules(comparison: Comparison) -> str:
    wide, narrow = (
        confidence_percent(1 - comparison.alpha),
        confidence_percent(1 - 2 * comparison.alpha),
    )
    margin = comparison.units.margin_with_unit
    rules = (
        f"{comparison.an_arm.capitalize()} is equivalent if its {narrow} CI lies within {margin} "
        f"on either side of 0. It is worse beyond the margin if its {wide} CI lies entirely below "
        f"that range, and worse, size uncertain, if its {wide} CI lies below 0 and neither of the "
        f"above holds. The same applies to better. Otherwise, the {comparison.noun} is undecided."
    )
    if len(comparison.seed_counts) < 2:
        return rules
    numbers = ", then at ".join(f"{seeds}" for seeds in comparison.seed_counts)
    return (
        f"{rules} Analyses were planned at {numbers} seeds. They share the error rate of 5 % "
        "equally, so their intervals are wider."
    )
