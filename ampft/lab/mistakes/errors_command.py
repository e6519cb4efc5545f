"""The command `ampft errors`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.flag import REQUIRED, flag, positional
from ampft.ownership import check_page_file, check_replaceable

PAGE_NAME = "errors.html"


@dataclass(frozen=True, kw_only=True)
class ErrorsFlags:
    """The flags of `ampft errors`."""

    run: str = positional(REQUIRED, "RUN", "output folder of a run")
    limit: int = flag(24, "number of errors, and of pairs, in the page", at_least=1)
    output_file: str | None = flag(
        None, f"page to write; if none, {PAGE_NAME} in the folder of the run"
    )


def show_errors(line: CommandLine[ErrorsFlags]) -> None:
    """Print the most confident errors and the most confused pairs of a run; write them as a page.

    Raises:
        InputError: A flag is invalid, or the folder does not hold a finished run.
    """
    run, output_file = Path(line.flags.run), line.flags.output_file
    output = run / PAGE_NAME if output_file is None else Path(output_file)
    if output_file is not None:
        check_page_file("--output_file", output)
    else:
        check_replaceable("RUN", run, [PAGE_NAME])
    from ampft.files import special_or_atomic_path, write_text_non_atomically
    from ampft.lab.mistakes.mistakes import find_mistakes, mistakes_text, page_text
    from ampft.text.terminal import labelled, print_line

    mistakes = find_mistakes(run, line.flags.limit)
    with special_or_atomic_path(output) as temporary:
        write_text_non_atomically(temporary, page_text(mistakes))
    print_line(mistakes_text(mistakes))
    print_line(labelled("wrote", str(output)))


ERRORS = Command(
    ErrorsFlags,
    show_errors,
    Help(
        "Show the most confident errors and the most confused pairs of classes of a finished run, "
        "in the terminal and as a page (HTML)."
    ),
)
