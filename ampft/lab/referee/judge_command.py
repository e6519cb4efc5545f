"""The command `ampft judge`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.flags import ArgumentParser
from ampft.ownership import check_page_file

if TYPE_CHECKING:
    from ampft.lab.referee.ledger import LedgerSettings

SETTINGS = ("metric", "tries", "error", "max_seeds", "answers", "label_names")


def main(argv: Sequence[str]) -> None:
    """Start a ledger, or judge a candidate, and print the answer.

    Args:
        argv: Arguments of the command.

    Raises:
        InputError: A flag is invalid, the ledger was edited, or the sides cannot be compared.
        SystemExit: The candidate is not kept; the exit code is 5 for a drop, 6 if undecided.
    """
    parser = _parser()
    args = parser.parse_args(list(argv))
    if args.page is not None and not (args.candidate or args.best):
        _write_page(args)
        return
    if args.page is not None:
        check_page_file("--page", Path(args.page))
    from ampft.lab.referee.answer_text import exit_code, judgement_text, judgement_values
    from ampft.lab.referee.judge import judge
    from ampft.lab.referee.ledger import is_ledger
    from ampft.text.json_io import json_text
    from ampft.text.terminal import print_line

    judgement = judge(
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
        _write_page(args)
    if code := exit_code(judgement):
        raise SystemExit(code)


def _write_page(args: argparse.Namespace) -> None:
    from ampft.lab.referee.ledger_page import write_page
    from ampft.text.terminal import labelled, print_line

    write_page(Path(args.ledger), Path(args.page))
    if not args.json:
        print_line(labelled("page", args.page))


def _settings(args: argparse.Namespace, *, is_new: bool) -> LedgerSettings | None:
    """Return the settings of a new ledger; None if there is one and no setting was passed."""
    from ampft.lab.referee.ledger import LedgerSettings

    given = {name: value for name in SETTINGS if (value := getattr(args, name)) is not None}
    if "label_names" in given:
        given["label_names"] = tuple(name.strip() for name in given["label_names"].split(","))
    if is_new and args.margin is not None:
        given["margin"] = args.margin
    return LedgerSettings(**given) if given else None


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft judge",
        description="Judge a sequence of changes on one test set: is this candidate better than "
        "the best so far? At most 5 % of all sequences contain a false keep, however many changes "
        "are tried and although each is chosen after the earlier answers.",
        epilog="Exit codes: 0 keep, 5 drop, 6 undecided, 2 invalid input, with nothing written. "
        "Start: ampft judge LEDGER --best RUN RUN RUN. What is guaranteed: docs/judge.md.",
    )
    parser.add_argument("ledger", metavar="LEDGER", help="folder of the ledger")
    parser.add_argument(
        "--candidate",
        metavar="RUN",
        nargs="+",
        default=[],
        help="run folders of the change, one per seed, or tables of predictions from any "
        "framework, as ampft compare --predictions reads them: ARM-seed1.csv, or ARM:SEED=FILE",
    )
    parser.add_argument(
        "--best",
        metavar="RUN",
        nargs="+",
        default=[],
        help="runs or tables of the current best: the first ones start a ledger; later, more seeds "
        "of the best, or where its files are now",
    )
    parser.add_argument(
        "--claim",
        choices=("better", "not_worse"),
        default="better",
        help="what the candidate must show (default: better)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        metavar="POINTS",
        help="with not_worse, the loss that does not matter; with better, the steps in which a "
        "gain is shown, in points (default: the ledger's, which starts with 1)",
    )
    parser.add_argument(
        "--final",
        action="store_true",
        help="judge one final claim at full strength, on rows that the ledger has never used; it "
        "ends the ledger",
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="text to keep with the entry")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/judge.md)")
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="write all tries as a page (HTML), with their numbers once the final claim has ended "
        "a sealed ledger; without --candidate, only that",
    )
    start = parser.add_argument_group("settings of a new ledger")
    start.add_argument(
        "--metric", metavar="NAME", help="metric (default: the task's primary metric)"
    )
    start.add_argument(
        "--tries",
        type=int,
        metavar="N",
        help="planned tries, more are possible; a look at a candidate with more seeds is a try "
        "(default: 100)",
    )
    start.add_argument(
        "--error",
        type=float,
        metavar="PERCENT",
        help="probability that any keep is false, at most (default: 5)",
    )
    start.add_argument(
        "--max_seeds",
        type=int,
        metavar="N",
        help="seeds at which a candidate that is not kept is dropped; with fewer it is undecided "
        "(default: the number of seeds of the first best)",
    )
    start.add_argument(
        "--answers",
        choices=("sealed", "open"),
        help="sealed: no number is shown except the gain of a keep, so that changes may be tuned "
        "to the answers; open: all numbers are shown, and changes must not be tuned to them "
        "(default: sealed)",
    )
    start.add_argument(
        "--label_names", metavar="a,b", help="all classes of tables (default: those that occur)"
    )
    return parser
