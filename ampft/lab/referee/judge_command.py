"""The command `ampft judge`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.flag import REQUIRED, flag, positional, split_names
from ampft.ownership import check_page_file

if TYPE_CHECKING:
    from ampft.lab.referee.ledger import LedgerSettings

NEW = "settings of a new ledger"


@dataclass(frozen=True)
class NewLedgerFlags:
    """The settings of a new ledger."""

    metric: str | None = flag(
        None, "metric; if none, the task's primary metric", group=NEW, metavar="NAME"
    )
    tries: int | None = flag(
        None,
        "number of tries to plan for, which may be exceeded; a look at a candidate with more seeds "
        "is a try; if none, 100",
        group=NEW,
    )
    error: float | None = flag(
        None,
        "largest probability, in percent, of keeping any candidate that is not better; if none, 5",
        group=NEW,
        metavar="PERCENT",
    )
    max_seeds: int | None = flag(
        None,
        "seeds at which a candidate that is not kept is dropped; with fewer it is undecided; if "
        "none, the number of seeds of the first best",
        group=NEW,
    )
    answers: str | None = flag(
        None,
        "sealed: no number is shown except the gain of a keep, so that changes may be tuned to the "
        "answers; open: all numbers are shown, and changes must not be tuned to them; if none, "
        "sealed",
        group=NEW,
        choices=("sealed", "open"),
    )
    label_names: str | None = flag(
        None,
        "all classes of tables; if none, those that occur",
        group=NEW,
        metavar="a,b",
        joined=True,
    )


@dataclass(frozen=True, kw_only=True)
class JudgeFlags(NewLedgerFlags):
    """The flags of `ampft judge`."""

    ledger: str = positional(REQUIRED, "LEDGER", "folder of the ledger")
    candidate: tuple[str, ...] = flag(
        (),
        "run folders of the change, one per seed, or tables of predictions from any framework, as "
        "ampft compare --predictions reads them: ARM-seed1.csv, or ARM:SEED=FILE",
        metavar="RUN",
        many=True,
    )
    best: tuple[str, ...] = flag(
        (),
        "runs or tables of the current best: the first ones start a ledger; later, more seeds of "
        "the best, or where its files are now",
        metavar="RUN",
        many=True,
    )
    claim: str = flag("better", "what the candidate must show", choices=("better", "not_worse"))
    margin: float | None = flag(
        None,
        "with not_worse, the loss that does not matter; with better, the steps in which a gain is "
        "shown, in points; if none, the ledger's, which starts with 1",
        metavar="POINTS",
    )
    final: bool = flag(
        False,
        "judge one final claim at full strength, on rows that the ledger has never used; it ends "
        "the ledger",
    )
    note: str = flag("", "text to keep with the entry")
    json: bool = flag(False, "print JSON (docs/judge.md)")
    page: str | None = flag(
        None,
        "write all tries as a page (HTML), with their numbers once the final claim has ended a "
        "sealed ledger; without --candidate, only that",
        metavar="FILE",
    )


def judge(line: CommandLine[JudgeFlags]) -> None:
    """Start a ledger, or judge a candidate, and print the answer.

    Raises:
        InputError: A flag is invalid, the ledger was edited, or the sides cannot be compared.
        SystemExit: The candidate is not kept; the exit code is 5 for a drop, 6 if undecided.
    """
    args = line.flags
    if args.page is not None and not (args.candidate or args.best):
        _write_page(args, args.page)
        return
    if args.page is not None:
        check_page_file("--page", Path(args.page))
    from ampft.lab.referee.answer_text import exit_code, judgement_text, judgement_values
    from ampft.lab.referee.judge import judge as judge_candidate
    from ampft.lab.referee.ledger import is_ledger
    from ampft.text.json_io import json_text
    from ampft.text.terminal import print_line

    judgement = judge_candidate(
        args.ledger,
        candidate=args.candidate,
        best=args.best,
        claim=args.claim,
        margin=args.margin,
        final=args.final,
        note=args.note,
        settings=_settings(args, is_new=not is_ledger(Path(args.ledger))),
    )
    if args.json:
        print_line(json_text(judgement_values(judgement)).rstrip("\n"))
    else:
        print_line(judgement_text(judgement))
    if args.page is not None:
        _write_page(args, args.page)
    if code := exit_code(judgement):
        raise SystemExit(code)


def _write_page(args: JudgeFlags, page: str) -> None:
    from ampft.lab.referee.ledger_page import write_page
    from ampft.text.terminal import labelled, print_line

    write_page(Path(args.ledger), Path(page))
    if not args.json:
        print_line(labelled("page", page))


def _settings(args: JudgeFlags, *, is_new: bool) -> LedgerSettings | None:
    """Return the settings of a new ledger; None if there is one and no setting was passed."""
    from ampft.lab.referee.ledger import LedgerSettings

    names = [f.name for f in fields(NewLedgerFlags)]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if "label_names" in given:
        given["label_names"] = split_names(args.label_names)
    if is_new and args.margin is not None:
        given["margin"] = args.margin
    return LedgerSettings(**given) if given else None


JUDGE = Command(
    JudgeFlags,
    judge,
    Help(
        "Judge a sequence of changes on one test set: is this candidate better than the best so "
        "far? At most 5 % of all sequences contain a false keep, however many changes are tried "
        "and although each is chosen after the earlier answers.",
        "Exit codes: 0 keep, 5 drop, 6 undecided, 2 invalid input, with nothing written. Start: "
        "ampft judge LEDGER --best RUN RUN RUN. What is guaranteed: docs/judge.md.",
    ),
)
