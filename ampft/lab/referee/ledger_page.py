"""The tries of a ledger for readers: a page, and the tables on it.

In a sealed ledger the numbers of a try are not stored, and not shown while it goes on. The final
claim ends it; from then on they are computed again from the files that still exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from markupsafe import Markup

from ampft.comparison.charts import Axis, picture
from ampft.comparison.report import strips
from ampft.errors import InputError
from ampft.files import special_or_atomic_path, write_errors_explained, write_text_non_atomically
from ampft.lab.referee.checks import CANDIDATE
from ampft.lab.referee.keep_or_drop import CandidateAnswer
from ampft.lab.referee.ledger import (
    OPEN,
    Entry,
    JudgedCandidate,
    LedgerState,
    ledger_state,
    read_entries,
)
from ampft.lab.referee.ledger_audit import repeat_decision
from ampft.lab.referee.sides import read_sides, stored_sources
from ampft.ownership import check_page_file
from ampft.text.numbers import NOT_MEASURED, Units, confidence_percent, counted, percent
from ampft.text.page import (
    Block,
    Cell,
    Page,
    Paragraph,
    Quote,
    Section,
    Table,
    ValueWithDetail,
    html_page,
    isolated,
)


@dataclass(frozen=True, kw_only=True)
class TryNumbers:
    """What the files of a try say."""

    score: float  # Mean score of the candidate over its seeds.
    gain: float  # Mean gain over the best at that time, positive if better.
    interval: tuple[float, float]  # Its 95 % interval as if it were the only try.


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """A ledger with what may be shown of it."""

    folder: Path  # Its folder.
    state: LedgerState  # Its state.
    sha256: str  # Hash of its last entry.
    numbers: dict[int, TryNumbers]  # Numbers of each try, by entry; empty while they are sealed.
    # Mean score of the first best; None while scores are sealed or without files.
    first_score: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the numbers may be shown."""
        return self.state.final is not None or self.state.settings.answers == OPEN

    @property
    def units(self) -> Units:
        """How values and differences are printed."""
        return self.state.test.units(self.state.settings.margin / 100)

    @property
    def keeps(self) -> list[Entry]:
        return [e for e in self.state.trials if e.trial and e.trial.answer == CandidateAnswer.KEEP]


def read_ledger_report(folder: Path) -> LedgerReport:
    """Read a ledger, and its files if its numbers may be shown.

    Raises:
        InputError: The ledger cannot be read, or its entries were edited.
    """
    entries, sha256 = read_entries(folder)
    state = ledger_state(entries)
    empty = LedgerReport(folder=folder, state=state, sha256=sha256, numbers={}, first_score=None)
    if not empty.is_shown:
        return empty
    numbers: dict[int, TryNumbers] = {}
    for position, entry in enumerate(entries):
        if entry.trial is None or entry.trial.number == 0:
            continue
        try:
            numbers[entry.number] = _numbers(folder, entry, entries[:position])
        except InputError:  # its files are gone, or other files took their place
            continue
    first = _score_of_first(folder, entries[0], state)
    return replace(empty, numbers=numbers, first_score=first)


def _numbers(folder: Path, entry: Entry, earlier: Sequence[Entry]) -> TryNumbers:
    read, found = repeat_decision(folder, entry, ledger_state(earlier))
    predictions = read.sides[CANDIDATE].predictions
    return TryNumbers(
        score=fmean(predictions[m.seed].metrics[read.metric.name] for m in entry.models),
        gain=found.estimate.gain,
        interval=found.estimate.interval,
    )


def _score_of_first(folder: Path, first: Entry, state: LedgerState) -> float | None:
    try:
        sources = {CANDIDATE: stored_sources(first.models, folder)}
        read = read_sides(sources, state.settings, folder, test=state.test)
    except InputError:
        return None
    predictions = read.sides[CANDIDATE].predictions
    return fmean(predictions[m.seed].metrics[read.metric.name] for m in first.models)


def summary(report: LedgerReport) -> list[str]:
    """Return what happened, in sentences."""
    state, units = report.state, report.units
    settings, tries = state.settings, len(state.trials)
    lines = [
        f"{counted(tries, 'try').replace('trys', 'tries')}: {len(report.keeps)} kept. At most "
        f"{settings.error:g} % of such sequences contain a false keep; these tries may have used "
        f"{confidence_percent(state.spent * settings.error / 100)} of it."
    ]
    if state.final is not None and state.final.trial is not None:
        lines.append(_final_text(state.final.trial, units))
    if not report.is_shown:
        lines.append(
            "The numbers of the tries are sealed, so that changes may be tuned to the answers. The "
            "final claim opens them."
        )
        return lines
    if report.first_score is not None and report.numbers:
        lines += _claims(report, report.first_score)
    return lines


def _final_text(trial: JudgedCandidate, units: Units) -> str:
    found = trial.estimate
    assert found is not None, "a final claim has numbers"
    shown = "confirmed" if trial.answer == CandidateAnswer.KEEP else "not confirmed"
    return (
        f"The final claim on new rows is {shown}: {units.difference_with_unit(found.gain)} "
        f"(95 % interval {units.interval(found.interval)})."
    )


def _claims(report: LedgerReport, first: float) -> list[str]:
    """Return what the winner's score, and the best score of all tries, would have claimed."""
    units = report.units
    sign = 1.0 if report.state.test.metric.higher_is_better else -1.0
    lines = []
    if report.keeps and (winner := report.numbers.get(report.keeps[-1].number)):
        gain = units.difference_with_unit(sign * (winner.score - first))
        lines.append(
            f"The winner is entry {report.keeps[-1].number}: {gain} over the first best on the "
            "ledger's rows, which is before confirmation."
        )
    best = max(report.numbers, key=lambda number: sign * report.numbers[number].score)
    gain = units.difference_with_unit(sign * (report.numbers[best].score - first))
    lines.append(
        f"Choosing the best test score of all tries would have claimed {gain} (entry {best}), "
        "without an interval, and with the luck of having been chosen."
    )
    return lines


def tries_table(report: LedgerReport) -> Table:
    """Return all tries."""
    units = report.units
    rows = []
    for entry in report.state.trials:
        trial, numbers = entry.trial, report.numbers.get(entry.number)
        assert trial is not None, "it is a try"
        changes = (f"{name} {pair[0]} to {pair[1]}" for name, pair in trial.changes.items())
        parts = filter(None, (entry.note, "; ".join(changes)))
        shown = ""
        if trial.shows_gain:
            shown = f"{units.factor * trial.shown_points * trial.margin:g}"
        rows.append(
            (
                f"{trial.number}",
                Quote(", ".join(parts) or f"entry {entry.number}"),
                trial.answer,
                f"{len(entry.models)}",
                shown,
                NOT_MEASURED
                if numbers is None
                else ValueWithDetail(
                    units.difference(numbers.gain), f"({units.interval(numbers.interval)})"
                ),
                NOT_MEASURED if numbers is None else units.value(numbers.score),
                confidence_percent(trial.level),
            )
        )
    suffix = units.difference_suffix
    return Table(
        header=(
            *("try", "change", "answer", "seeds", f"shown above{suffix}"),
            *(f"gain{suffix}", units.heading, "level"),
        ),
        rows=rows,
        title="Tries",
        note="Gain over the best at that time, with its 95 % interval as if it were the only try. "
        "A keep is decided by a stricter limit, at the level of the try and with the price of "
        "reuse; the gain that it shows is that limit in whole steps.",
        left=3,
    )


def page(report: LedgerReport) -> str:
    """Return the ledger as one HTML document, in which every string of data is inert."""
    state, name = report.state, report.folder.resolve().name
    settings = state.settings
    judged = (
        f"{state.test.metric.title} on {counted(state.test.examples, 'example')}; "
        f"{settings.answers} answers; {percent(settings.error / 100)} error for the sequence, "
        f"{settings.tries:,} planned tries."
    )
    headline, *lines = summary(report)
    sha256 = Markup("<code>{}</code>").format(isolated(report.sha256))
    intervals = intervals_table(report)
    tries: list[Block] = [
        tries_table(report),
        Paragraph(("Hash of the last entry: ", sha256), "facts"),
    ]
    return html_page(
        Page(
            kind="ledger",
            title=f"Ledger {name}",
            kicker=("Ledger: ", Quote(name)),
            headline=headline,
            lead=[*(Paragraph(line, "answer") for line in lines), Paragraph(judged, "facts")],
            sections=[
                *([Section("intervals", "Gain of each try", [intervals])] if intervals else []),
                Section("tries", "Tries", tries),
            ],
        )
    )


def intervals_table(report: LedgerReport) -> Table | None:
    """Return number, answer and interval of each try whose numbers are shown; None without any."""
    units = report.units
    shown = [
        (e, report.numbers[e.number]) for e in report.state.trials if e.number in report.numbers
    ]
    if not shown:
        return None
    ends = [end for _, numbers in shown for end in units.cut(numbers.interval)]
    axis = Axis(min(*ends, 0.0), max(*ends, 0.0), strips.LEFT, strips.RIGHT)
    rows: list[tuple[Cell, ...]] = []
    for entry, numbers in shown:
        assert entry.trial is not None, "it is a try"
        colour = "a0" if entry.trial.answer == CandidateAnswer.KEEP else "a1"
        gain = f"gain {units.difference(numbers.gain)} ({units.interval(numbers.interval)})"
        drawn = picture(
            axis.upright(0.0, 0, "100%", "zero"),
            axis.level(*units.cut(numbers.interval), "50%", f"whisker {colour}"),
            axis.upright(numbers.gain, "20%", "80%", f"whisker inner {colour}"),
            height=None,
            alt=f"try {entry.trial.number}: {gain}",
            class_="fill",
        )
        strip = Markup('<div class="strip">{}</div>').format(drawn)
        rows.append((f"{entry.trial.number}", entry.trial.answer, strip))
    return Table(
        header=("try", "answer", f"gain{units.difference_suffix}"),
        rows=rows,
        label="Gain of each try",
        note="95 % interval over seeds and test examples, as if each were the only try; the mark "
        "is the mean, the line is 0.",
        left=3,
    )


def write_page(folder: Path, path: Path) -> None:
    """Write the page of a ledger, atomically.

    Raises:
        InputError: The ledger cannot be read, or the file cannot be written.
    """
    content = page(read_ledger_report(folder))
    check_page_file("--page", path)
    with (
        write_errors_explained(f"--page {path}: the file", "Choose another path."),
        special_or_atomic_path(path) as temporary,
    ):
        write_text_non_atomically(temporary, content)
