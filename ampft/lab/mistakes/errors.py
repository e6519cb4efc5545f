"""The command `ampft errors`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampft.arguments.flags import ArgumentParser
from ampft.errors import InputError
from ampft.ownership import check_page_file, check_replaceable

DEFAULT_LIMIT = 24
PRINTED = 8
PAGE_NAME = "errors.html"


def main(argv: Sequence[str]) -> None:
    """Print the most confident errors and the most confused pairs of a run; write them as a page.

    Args:
        argv: Arguments of the command.

    Raises:
        InputError: A flag is invalid, or the folder does not hold a finished run.
    """
    args = _parser().parse_args(list(argv))
    if args.limit < 1:
        raise InputError(f"--limit {args.limit}: must be at least 1.")
    output = Path(args.run) / PAGE_NAME if args.output_file is None else Path(args.output_file)
    if args.output_file is not None:
        check_page_file("--output_file", output)
    else:
        check_replaceable("RUN", Path(args.run), [PAGE_NAME])
    from ampft.files import special_or_atomic_path, write_text_non_atomically
    from ampft.lab.mistakes.mistakes import find_mistakes, page_text, pair_table
    from ampft.text.numbers import counted
    from ampft.text.tables import terminal_table
    from ampft.text.terminal import labelled, print_line

    mistakes = find_mistakes(Path(args.run), args.limit)
    with special_or_atomic_path(output) as temporary:
        write_text_non_atomically(temporary, page_text(mistakes))
    total = counted(mistakes.cases, "prediction")
    print_line(f"{mistakes.wrong:,} of {total} on {mistakes.split} are wrong: {mistakes.summary}")
    for mistake in mistakes.confident[:PRINTED]:
        text = " | ".join(mistake.inputs.values())
        print_line(
            labelled(
                f"{mistake.confidence:.3f}",
                f"{mistake.statement} ({mistake.origin}): {text[:160]}{'…' * (len(text) > 160)}",
            )
        )
    if mistakes.pairs:
        print_line(f"\n{terminal_table(pair_table(mistakes))}\n")
    print_line(labelled("wrote", str(output)))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft errors",
        description="Show the most confident errors and the most confused pairs of classes of a "
        "finished run, in the terminal and as a page (HTML).",
    )
    parser.add_argument("run", metavar="RUN", help="output folder of a run")
    parser.add_argument(
        "--limit",
        type=int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"number of errors, and of pairs, in the page (default: {DEFAULT_LIMIT})",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help=f"page to write (default: {PAGE_NAME} in the folder of the run)",
    )
    return parser
