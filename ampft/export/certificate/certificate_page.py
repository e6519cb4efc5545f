"""A certificate for readers: lines for a terminal, tables, a page, a section of a card, files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from markupsafe import Markup

from ampft.comparison.charts import Axis, picture
from ampft.comparison.findings import BatchTiming
from ampft.comparison.report import prediction_tables, strips
from ampft.comparison.report.run_charts import arm_styles
from ampft.comparison.report.tables import evaluation_scope
from ampft.comparison.statistics.verdict import EQUIVALENT
from ampft.comparison.verdict_text import decision_text, difference_text, margin_text
from ampft.errors import InputError
from ampft.export.artifact import (
    CARD_NAME,
    CERTIFICATE_NAME,
    PAGE_NAME,
    checked_manifest,
    write_manifest,
)
from ampft.export.certificate.certificate import (
    FAILED,
    KEPT,
    OPEN,
    PASSED,
    SCHEMA,
    STEPS,
    TOO_FEW,
    UNDECIDED,
    WORSE,
    Certificate,
    ClassCheck,
    LogitDifferences,
)
from ampft.files import describe_file, write_errors_explained, write_text
from ampft.text.escaping import code, one_line, prose
from ampft.text.json_io import check_schema, from_json, json_text, read_json_object
from ampft.text.numbers import (
    NOT_MEASURED,
    milliseconds,
    or_dash,
    percent,
    points,
    ratio_range,
    ratio_text,
)
from ampft.text.page import (
    Block,
    Card,
    Cards,
    Details,
    Facts,
    Figure,
    Items,
    Name,
    Notices,
    Page,
    Paragraph,
    Quote,
    Section,
    Subheading,
    Table,
    ValueWithDetail,
    html_page,
    isolated,
    markdown,
    terminal,
)

CHIPS = {PASSED: "good", FAILED: "bad", UNDECIDED: "open"}
SAME_METRIC = 1e-9
CLASS_WORDS = {KEPT: "kept", WORSE: "falls", OPEN: "open", TOO_FEW: "not tested"}


def certificate_text(certificate: Certificate) -> str:
    """Return the certificate as lines for a terminal."""
    verdict = f"{headline(certificate)}. {metric_text(certificate)}."
    return terminal(
        [Paragraph(verdict, label="verdict"), *_notices(certificate), _facts(certificate)]
    )


def _notices(certificate: Certificate) -> list[Notices]:
    failures = [f"{each.text}." for each in certificate.failures]
    notes = [f"{each.text}." for each in certificate.notes]
    listed = (
        Notices("Why it failed", failures, "failure"),
        Notices("Before you rely on this", notes),
    )
    return [each for each in listed if each.texts]


def _facts(certificate: Certificate) -> Facts:
    return Facts(tuple(facts(certificate)), "What was measured")


def headline(certificate: Certificate) -> str:
    """Return the verdict in one clause."""
    name = certificate.name
    if certificate.verdict == PASSED:
        if certificate.is_equal:
            return f"passed: the outputs of {name} equal its model's to rounding"
        margin = certificate.comparison.units.margin_with_unit
        return f"passed: {name} is equivalent to its model at a margin of {margin}"
    if certificate.verdict == FAILED:
        return f"failed: {name} is not shown to match its model; do not ship it"
    return f"undecided: these examples cannot show that {name} is equivalent to its model"


def metric_text(certificate: Certificate) -> str:
    """Return the difference in the primary metric with the decision, and what is left open."""
    comparison = certificate.comparison
    difference = certificate.arm.difference
    if difference is None:
        return "The primary metric has no interval"
    if certificate.verdict == PASSED and certificate.arm.outcome != EQUIVALENT:  # it is equal
        value = comparison.baseline.metrics[comparison.metric].mean
        return f"Both have {comparison.primary.title} {value:z.4f} on these examples"
    decision = f"{difference_text(comparison, difference)}: {decision_text(comparison, difference)}"
    return f"{decision}. {margin_text(comparison, difference)}".rstrip(". ")


def facts(certificate: Certificate) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each measured fact, in one line each."""
    comparison, flips = certificate.comparison, certificate.arm.flips
    answers, probes = certificate.answers, certificate.probes
    has_numbers = answers is not None and answers.are_numbers
    if flips is not None and not has_numbers:
        yield (
            "flips",
            f"{flips.mean:,.0f} of {comparison.examples:,} predictions differ: "
            f"{flips.lost:,.0f} harmful, {flips.gained:,.0f} beneficial",
        )
    if certificate.served is not None:
        yield "served", certificate.served.text()
    if certificate.logits is not None:
        yield "logits", _logits_text(certificate.logits, has_numbers=has_numbers)
    if answers is not None:
        yield "answers", answers.text()
    if probes is not None:
        yield (
            "made up",
            f"{probes.rows:,} rows with {percent(probes.coverage)} of the vocabulary: logits "
            f"differ by up to {100 * probes.share:.2g} % of their range",
        )
    batches = certificate.batches
    if batches is not None:
        one, other = batches.sizes
        model = ""
        if batches.model_changed is not None:
            model = f" ({batches.model_changed:,} of the model's)"
        yield (
            "batches",
            f"{batches.changed:,} of {batches.rows:,} predictions change between batches of {one} "
            f"and {other}{model}",
        )
    dtypes = certificate.dtypes
    yield "weights", dtypes.weight_summary or "unknown"
    yield "products", f"{dtypes.product_summary} ({dtypes.source})"
    cost = certificate.cost
    yield "size", f"{_size(cost.size)} (model: {_size(cost.model_size)})"
    if cost.timings:
        yield "latency", "; ".join(map(_latency, cost.timings))
    if cost.peak is not None:
        model = "" if cost.model_peak is None else f" (model: {_size(cost.model_peak)})"
        yield "memory", f"peak {_size(cost.peak)}{model}, in a process that predicts one batch"


def _logits_text(logits: LogitDifferences, *, has_numbers: bool) -> str:
    allowed = ""
    if logits.tolerance is not None:
        allowed = f"; rounding explains {100 * logits.tolerance:.2g} %"
        allowed += f" and {STEPS * logits.step:.2g}" if has_numbers else ""
    if logits.rounding is not None:
        allowed = f"; {logits.rounding:.2g} times the effect of rounding all products to int8"
    return (
        f"largest difference {logits.largest:.2g} ({100 * logits.share:.2g} % of the range of "
        f"the logits{allowed}), typically {logits.typical:.2g}"
    )


def _size(number: int) -> str:
    value = number / 2**20
    return f"{value:.1f} MiB" if value < 99.95 else f"{value:,.0f} MiB"


def _latency(timing: BatchTiming) -> str:
    low, high = timing.quartiles
    text = (
        f"batch {timing.batch_size}: {milliseconds(timing.seconds)} ms (middle half "
        f"{milliseconds(low)} to {milliseconds(high)})"
    )
    speed = timing.speed_up
    if speed is None or speed.interval95 is None:
        return text
    return (
        f"{text}, {ratio_text(speed.ratio)}x the model's speed (95 % CI "
        f"{ratio_range(*speed.interval95)})"
    )


def class_table(certificate: Certificate) -> Table:
    """Return what the examples of each class show."""
    limit = percent(certificate.class_margin)
    figures = {each.name: each for each in certificate.arm.classes}
    has_groups = any(each.groups is not None for each in certificate.classes)
    return Table(
        title="What the examples of each class show",
        header=(
            *("class", "result", "examples", *(["groups"] if has_groups else [])),
            *("harmful", "beneficial", "F1, points", "largest loss not excluded"),
        ),
        rows=[
            (
                Name(each.name),
                CLASS_WORDS[each.status],
                f"{each.rows:,}",
                *([f"{each.groups:,}"] if each.groups is not None else []),
                f"{each.lost:,}",
                f"{each.gained:,}",
                or_dash(figures[each.name].f1_difference, points),
                percent(each.hidden_loss),
            )
            for each in certificate.classes
        ],
        note=f"Kept: a loss of {limit} of the class is excluded (one-sided, 95 %). Falls: its F1 "
        "falls beyond chance, after Holm's correction over the classes. Not tested: with so few "
        f"examples, even unchanged predictions exclude no loss of {limit}. Open: neither is shown."
        + (" A group of examples, such as equal inputs, counts once." if has_groups else ""),
        left=2,
    )


def dtype_table(certificate: Certificate) -> Table:
    """Return the executed products."""
    return Table(
        title=f"Products of one batch, from the {certificate.dtypes.source}",
        header=("operator", "operands", "weights", "number"),
        rows=[
            (
                Name(row.operator),
                " x ".join(row.inputs),
                "yes" if row.with_weights else "no",
                f"{row.count:,}",
            )
            for row in certificate.dtypes.products
        ],
        note=f"Stored weights: {certificate.dtypes.weight_summary or 'unknown'}.",
        left=3,
    )


def cost_table(certificate: Certificate) -> Table:
    """Return size, times and memory of the artifact and of its model."""
    cost, name = certificate.cost, certificate.name
    rows: list[tuple[str | ValueWithDetail, ...]] = [
        (
            *("size on disk", _size(cost.model_size), _size(cost.size)),
            f"{ratio_text(cost.model_size / cost.size)}x" if cost.size else NOT_MEASURED,
        )
    ]
    for own, model in zip(cost.timings, cost.model_timings, strict=True):
        faster = NOT_MEASURED
        if own.speed_up is not None and own.speed_up.interval95 is not None:
            interval = ratio_range(*own.speed_up.interval95)
            faster = f"{ratio_text(own.speed_up.ratio)}x ({interval})"
        rows.append((f"batch of {own.batch_size}, ms", _time(model), _time(own), faster))
    peaks = [or_dash(peak, _size) for peak in (cost.model_peak, cost.peak)]
    rows.append(("peak memory", *peaks, NOT_MEASURED))
    return Table(
        title="Cost",
        header=("", "model", Name(name), "faster or smaller (95 % CI)"),
        rows=rows,
        note="Times are medians, with the middle half of the rounds; both sides take turns on the "
        "same batches, without tokenization, the model in float32 by PyTorch. Peak memory is of a "
        "process that loads one of them and predicts a batch.",
    )


def _time(timing: BatchTiming) -> ValueWithDetail:
    low, high = timing.quartiles
    return ValueWithDetail(
        milliseconds(timing.seconds), f"{milliseconds(low)} to {milliseconds(high)}"
    )


def card_section(certificate: Certificate) -> str:
    """Return the section of the artifact's model card, in Markdown."""
    blocks: list[Block | Section] = [
        *_notices(certificate),
        _facts(certificate),
        class_table(certificate),
    ]
    return (
        f"## Certificate\n\n**{prose(headline(certificate))}.** "
        f"{prose(metric_text(certificate))}.\n\n{markdown(blocks)}\n\n"
        f"Verified on {prose(evaluation_scope(certificate.comparison))}. `{CERTIFICATE_NAME}` "
        "holds all figures; `ampft audit path/to/this/folder --run RUN` repeats the verification."
    )


def page(certificate: Certificate) -> str:
    """Return the certificate as one HTML document, in which every string of data is inert."""
    comparison, first = certificate.comparison, headline(certificate)
    styles = arm_styles(comparison.arms)
    drawn: list[Block] = []
    if certificate.arm.difference is not None:
        axis = strips.difference_axis(comparison)
        strip = strips.scaled_strip(comparison, certificate.arm, styles[1], axis)
        drawn.append(Figure(strip, "Difference to the model"))
    name = Markup("<strong>{}</strong>").format(isolated(certificate.name))
    how = (
        "The dot is the difference to the model; the thick line decides equivalence, the thin one "
        f"shows the uncertainty (CI). Dashed: the margin of ±{comparison.units.margin_with_unit}."
    )
    return html_page(
        Page(
            kind="certificate",
            title=f"Certificate of {certificate.name}",
            kicker=("Certificate: ", Quote(comparison.title)),
            headline=f"{first[0].upper()}{first[1:]}",
            lead=[Paragraph(f"{metric_text(certificate)}.", "answer")],
            cards=Cards([Card(name, drawn, CHIPS[certificate.verdict], certificate.verdict)]),
            reading=[Subheading("How to read the bar", level=2), Paragraph(how)],
            notices=[
                *_notices(certificate),
                Paragraph(f"{evaluation_scope(comparison)}.", "facts"),
            ],
            sections=_sections(certificate),
        )
    )


def _sections(certificate: Certificate) -> list[Section]:
    comparison = certificate.comparison
    classes = []
    if certificate.classes:  # labels that are numbers have none
        table = _with_loss_strips(class_table(certificate), certificate.classes)
        intervals = prediction_tables.class_intervals(comparison, limit=None)
        classes = [Section("classes", "Classes", [table, *_folded("Intervals of F1", intervals)])]
    metrics = prediction_tables.metrics(comparison)
    hashes = {
        "SHA-256 of the artifact": certificate.artifact_sha256,
        "SHA-256 of the record of the run": certificate.run_sha256,
        "SHA-256 of the verified examples": certificate.rows_sha256,
    }
    artifact = [(Quote(name), ": ", Quote(value)) for name, value in certificate.artifact.items()]
    code_of = Markup("<code>{}</code>")
    hashed = [(f"{name}: ", code_of.format(isolated(value))) for name, value in hashes.items()]
    return [
        Section("measured", "What was measured", [_facts(certificate)]),
        *classes,
        Section(
            "changed",
            "Changed predictions",
            [*prediction_tables.changed(comparison), *_folded("All metrics", metrics)],
        ),
        Section("precision", "Precision, as measured", [dtype_table(certificate)]),
        Section("cost", "Cost", [cost_table(certificate)]),
        Section("artifact", "Artifact", [Items([*artifact, *hashed])]),
    ]


def _folded(summary: str, table: Table | None) -> list[Details]:
    return [] if table is None else [Details(summary, [table])]


def _with_loss_strips(table: Table, classes: Sequence[ClassCheck]) -> Table:
    """Return the table of classes with a bar per class: the largest loss that is not excluded."""
    axis = Axis(0.0, max((each.hidden_loss for each in classes), default=0.05) * 1.05, 5.0, 95.0)
    rows = []
    for each, row in zip(classes, table.rows, strict=True):
        alt = f"{one_line(each.name) or 'blank'}: up to {percent(each.hidden_loss)}"
        colour = "a3" if each.status == WORSE else "a2"
        bar = picture(
            axis.upright(0, 0, "100%", "zero"),
            axis.level(0, each.hidden_loss, "50%", f"inner {colour}"),
            height=None,
            alt=alt,
            class_="fill",
        )
        rows.append((row[0], Markup('<div class="strip">{}</div>').format(bar), *row[1:]))
    header = (table.header[0], "loss not excluded", *table.header[1:])
    return replace(table, header=header, rows=rows, left=table.left + 1)


def certificate_json(certificate: Certificate) -> str:
    """Return the certificate as the text of `certificate.json`, with its sentences."""
    sentences = {
        "verdict": f"{headline(certificate)}. {metric_text(certificate)}.",
        "failures": [each.text for each in certificate.failures],
        "notes": [each.text for each in certificate.notes],
    }
    return json_text({**asdict(certificate), "sentences": sentences})


def read_certificate(path: Path) -> Certificate:
    """Read a certificate.

    Raises:
        InputError: The file is missing, damaged, or of another version.
    """
    try:
        values = read_json_object(path)
        check_schema(path, values, SCHEMA, "Verify the artifact again with ampft audit.")
        values.pop("sentences", None)
        certificate = from_json(Certificate, values, CERTIFICATE_NAME)
        certificate_text(certificate)
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        raise InputError(
            f"{path}: this is not the certificate of an artifact ({type(error).__name__}: {error})."
            " Verify the artifact again with ampft audit."
        ) from error
    return certificate


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json, certificate.html and the model card, and list them in the manifest.

    Raises:
        InputError: A file cannot be written.
    """
    manifest = checked_manifest(folder)
    card = folder / CARD_NAME
    title = f"# {code(certificate.name)} of {code(certificate.comparison.title)}\n"
    before = card.read_text(encoding="utf-8") if card.is_file() else title
    texts = {
        CERTIFICATE_NAME: certificate_json(certificate),
        PAGE_NAME: page(certificate),
        CARD_NAME: f"{before.rstrip()}\n\n{card_section(certificate)}\n",
    }
    remedy = "Free disk space, and export again."
    with write_errors_explained(f"--output_dir {folder}: the certificate", remedy):
        for name, text in texts.items():
            write_text(folder / name, text)
    files = {**manifest.files, **{name: describe_file(folder / name) for name in texts}}
    write_manifest(folder, replace(manifest, files=files))


def differences(stored: Certificate, found: Certificate) -> Iterator[str]:
    """Yield how a repeated verification differs from a stored certificate, in sentences.

    Times and memory are not compared. Digits of logits may differ on another machine.
    """
    if stored.artifact_sha256 != found.artifact_sha256:
        yield "the artifact has other files than the certificate states."
    if stored.run_sha256 != found.run_sha256:
        yield "the certificate belongs to an artifact of another run."
    if stored.rows_sha256 != found.rows_sha256:
        yield "the certificate was made on other examples."
    if stored.verdict != found.verdict:
        yield f"the certificate states: {headline(stored)}."
    name = stored.comparison.metric
    pairs = [
        (side.metrics[name].mean, other.metrics[name].mean)
        for side, other in zip(stored.comparison.arms, found.comparison.arms, strict=True)
        if name in side.metrics and name in other.metrics
    ]
    if any(abs(one - other) > SAME_METRIC for one, other in pairs):
        shown = " and ".join(f"{one:z.4f}" for one, _ in pairs)
        title = stored.comparison.primary.title
        yield f"the certificate states another {title} of model and artifact: {shown}."
