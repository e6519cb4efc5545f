"""`ampft audit LEDGER`: verify the entries, and repeat each decision whose files still exist."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.files import CHANGED, GONE, SAME, STATES
from ampft.flag import REQUIRED, flag, positional
from ampft.lab.referee.answer_text import UNCHECKED
from ampft.lab.referee.checks import BEST, CANDIDATE, check_training, check_unchanged
from ampft.lab.referee.judge import candidate_decision, final_level, next_level
from ampft.lab.referee.keep_or_drop import Claim, Decision, GainEstimate, TryErrorBudget
from ampft.lab.referee.ledger import FINAL, TRY, Entry, LedgerState, ledger_state, read_entries
from ampft.lab.referee.sides import Sides, read_sides, stored_file, stored_sources, training_state
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.record import read_record
from ampft.text.numbers import counted

TOLERANCE = 1e-9  # of levels and estimates


@dataclass(frozen=True, kw_only=True)
class LedgerAudit:
    """The result of an audit."""

    entries: int  # Number of entries, whose chain of hashes is whole.
    sha256: str  # Hash of the last entry.
    answers: int  # Number of answers in the ledger: to tries, and to the final claim.
    repeated: int  # Number of them that were computed again.
    # What was not repeated, one sentence each: files that are gone or were changed.
    lost: tuple[str, ...]
    wrong: tuple[str, ...]  # What contradicts the entries, one sentence each.

    @property
    def verdict(self) -> str:
        """The verdict; "confirmed" only if every file is what the ledger read."""
        if self.wrong:
            return "not confirmed"
        if self.lost:
            return "partly repeated" if self.repeated else "not repeated"
        return "confirmed"


@dataclass(frozen=True, kw_only=True)
class LedgerAuditFlags:
    """The flags of `ampft audit` for a ledger."""

    ledger: str = positional(REQUIRED, "LEDGER", "folder of the ledger")
    json: bool = flag(False, "print JSON")


def print_ledger_audit(line: CommandLine[LedgerAuditFlags]) -> None:
    """Audit a ledger and print the result.

    Raises:
        InputError: The ledger cannot be read, or its entries were edited.
        SystemExit: An answer does not follow from its files, or could not be repeated; the exit
            code is 1.
    """
    from ampft.text.json_io import json_text
    from ampft.text.terminal import print_line

    found = audit_ledger(Path(line.flags.ledger))
    if line.flags.json:
        print_line(json_text({"verdict": found.verdict, **asdict(found)}).rstrip("\n"))
    else:
        print_line(audit_text(found))
    if found.verdict != "confirmed":
        raise SystemExit(1)


def audit_ledger(folder: Path) -> LedgerAudit:
    """Verify the chain of a ledger, the levels of its tries, and the answers with files.

    Raises:
        InputError: The ledger cannot be read, or its entries were edited.
    """
    entries, sha256 = read_entries(folder)
    wrong: list[str] = []
    lost: list[str] = []
    answers = [entry for entry in entries if entry.kind in (TRY, FINAL)]
    repeated = 0
    for position, entry in enumerate(entries):
        if lines := _lost_files(folder, entry):
            lost += lines
        if entry.kind != TRY and not lines:  # a try compares its rows with the ledger's, too
            lost += _changed_training_files(folder, entry)
        if entry not in answers:
            continue
        before = ledger_state(entries[:position])
        wrong += _wrong_level(entry, before)
        try:
            problems, unchecked = _repeated_answer(folder, entry, before)
        except InputError as error:
            if not lines:
                lost.append(f"entry {entry.number}: {error}")
            continue
        repeated += 1
        wrong += problems
        lost += unchecked
    return LedgerAudit(
        entries=len(entries),
        sha256=sha256,
        answers=len(answers),
        repeated=repeated,
        lost=tuple(lost),
        wrong=tuple(wrong),
    )


def _lost_files(folder: Path, entry: Entry) -> list[str]:
    """Return a sentence about the files of an entry that are not what the ledger read, if any."""
    files = dict.fromkeys(stored_file(m, folder)[1] for m in (*entry.models, *entry.compared))
    states = {recorded.path: state for recorded in files if (state := recorded.state) != SAME}
    if not states:
        return []
    path, state = next(iter(states.items()))
    more = f", and so are {len(states) - 1} others of its files" if len(states) > 1 else ""
    return [f"entry {entry.number}: {path} {STATES[state]}{more}"]


def _changed_training_files(folder: Path, entry: Entry) -> list[str]:
    """Return a sentence if a training file of the entry's runs was changed or is gone."""
    models = (*entry.models, *entry.compared)
    runs = sorted({stored_file(model, folder)[1].path.parent for model in models})
    try:
        states = {training_state(read_record(r)) for r in runs if (r / RECORD_NAME).is_file()}
    except InputError as error:
        return [f"entry {entry.number}: {error}"]
    state = next((each for each in (CHANGED, GONE) if each in states), None)
    return [] if state is None else [f"entry {entry.number}: {UNCHECKED[state]}"]


def audit_text(audit: LedgerAudit) -> str:
    """Return the lines that `ampft audit` prints."""
    from ampft.text.terminal import labelled

    repeated = f"{audit.repeated} of {counted(audit.answers, 'answer')} repeated from the files"
    entries = "1 entry" if audit.entries == 1 else f"{audit.entries} entries"
    lines = [
        labelled("chain", f"{entries}, each with the hash of the one before it"),
        labelled("answers", repeated),
    ]
    lines += [labelled("lost", each) for each in audit.lost]
    lines += [labelled("wrong", each) for each in audit.wrong]
    lines.append(labelled("verdict", f"{audit.verdict}; last hash {audit.sha256}"))
    lines.append(
        labelled(
            "", "Entries removed from the end leave no trace: compare the last hash with yours."
        )
    )
    return "\n".join(lines)


def _wrong_level(entry: Entry, before: LedgerState) -> list[str]:
    """Return a sentence if a try used another level than its place in the ledger allows."""
    trial = entry.trial
    assert trial is not None, "it is a try"
    allowed = _allowed(entry, before)
    fits = (
        trial.number == allowed.number
        and trial.best_entry == before.best_entry
        and math.isclose(trial.level, allowed.level, rel_tol=TOLERANCE)
        and math.isclose(trial.log_share, allowed.log_share, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    )
    return [] if fits else [f"entry {entry.number} was not judged at the level of its place"]


def _repeated_answer(
    folder: Path, entry: Entry, before: LedgerState
) -> tuple[list[str], list[str]]:
    """Return what contradicts an answer, and what of it could not be checked again.

    Raises:
        InputError: The files are missing or have changed.
    """
    trial, number = entry.trial, entry.number
    assert trial is not None, "it is a try or the final claim"
    read, found = repeat_decision(folder, entry, before)
    wrong, unchecked = [], []
    if (found.answer, found.shown_points) != (trial.answer, trial.shown_points):
        wrong.append(f"entry {number} says {trial.answer}, but its files say {found.answer}")
    elif trial.estimate is not None and not _agree(trial.estimate, found.estimate):
        wrong.append(f"entry {number} has other numbers than its files")
    if entry.kind == TRY:
        try:
            training = check_training(before.test, read.sides[CANDIDATE])
        except InputError as error:
            wrong.append(f"entry {number}: {error}")
        else:
            if training.files in (CHANGED, GONE):
                unchecked.append(f"entry {number}: {UNCHECKED[training.files]}")
    return wrong, unchecked


def repeat_decision(folder: Path, entry: Entry, before: LedgerState) -> tuple[Sides, Decision]:
    """Read both sides of a try, or of the final claim, from their files, and decide again.

    Args:
        entry: Entry of the try or of the final claim.

    Raises:
        InputError: The files are missing or have changed.
    """
    trial, settings = entry.trial, before.settings
    assert trial is not None, "it is a try or the final claim"
    compared = entry.compared if entry.kind == FINAL else before.best
    models = {BEST: compared, CANDIDATE: entry.models}
    sources = {name: stored_sources(each, folder) for name, each in models.items()}
    read = read_sides(sources, settings, folder, test=None if entry.kind == FINAL else before.test)
    test = entry.test or before.test
    if read.test.sha256 != test.sha256:
        raise InputError(f"entry {entry.number}: other rows")
    for name, each in models.items():
        check_unchanged(read.sides[name], each)
    seeds, allowed = [model.seed for model in entry.models], _allowed(entry, before)
    return read, candidate_decision(
        read, seeds, allowed, settings, Claim(trial.claim), trial.margin
    )


def _allowed(entry: Entry, before: LedgerState) -> TryErrorBudget:
    return final_level(before) if entry.kind == FINAL else next_level(before)


def _agree(stored: GainEstimate, found: GainEstimate) -> bool:
    """Return whether two estimates are equal but for rounding."""
    ours, theirs = ((each.gain, each.lower, *each.interval) for each in (stored, found))
    pairs = zip(ours, theirs, strict=True)
    return all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in pairs) and (
        (stored.seeds_to_decide, stored.cases_to_show)
        == (found.seeds_to_decide, found.cases_to_show)
    )


AUDIT_LEDGER = Command(
    LedgerAuditFlags,
    print_ledger_audit,
    Help(
        "Check a ledger of ampft judge: its chain of entries, the level of each try, and every "
        "answer, from files that are still what the ledger read. Nothing is written.",
        "Exit codes: 0 if the ledger is confirmed; 1 if an answer does not follow from its files, "
        "or could not be repeated because files are gone or were changed; 2 if entries were edited "
        "or removed.",
    ),
)
