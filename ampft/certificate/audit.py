"""`ampft audit` of an artifact: repeats its verification, and compares with its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampft.arguments.flags import ArgumentParser
from ampft.certificate.command import (
    MARGIN,
    NOT_PASSED,
    add_verification,
    exit_with,
    print_certificate,
    verify_request,
)


def main(argv: Sequence[str]) -> None:
    """Repeat the verification of an artifact, and compare it with its certificate.

    Args:
        argv: Arguments of `ampft audit`; the first is the folder of the artifact.

    Raises:
        InputError: The artifact, its run or the rows cannot be read.
        SystemExit: The artifact did not pass (exit code 4), or passed with other results than its
            certificate states (1).
    """
    args = _parser().parse_args(argv)
    folder = Path(args.artifact)
    from ampft.certificate.files import differences
    from ampft.certificate.report import read_certificate
    from ampft.certificate.verify import certify
    from ampft.export.manifest import CERTIFICATE_NAME
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    quiet_libraries()
    stored = None
    if (folder / CERTIFICATE_NAME).is_file():
        stored = read_certificate(folder / CERTIFICATE_NAME)
    if stored is not None:  # the same verification, unless a flag asks for another
        defaults = {
            "verify": stored.verify,
            "metric": stored.comparison.metric,
            "margin": 100 * stored.comparison.margin,
        }
        for name, value in defaults.items():
            if getattr(args, name) is None:
                setattr(args, name, value)
    elif args.margin is None:
        args.margin = MARGIN
    found = certify(folder, Path(args.run), verify_request(args))
    print_certificate(found)
    if stored is None:
        print_line(labelled("stored", f"the folder has no {CERTIFICATE_NAME} to compare with."))
        exit_with(found)
        return
    problems = differences(stored, found)
    for problem in problems or ("the results agree with the certificate.",):
        print_line(labelled("stored", problem))
    exit_with(found)
    if problems:
        raise SystemExit(1)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft audit",
        description="Repeat the verification of an artifact that ampft export wrote: it and its "
        "model predict the same examples, here and now. Nothing is written into the folder.",
        epilog="Exit codes: 0 if the artifact passes with the results of its certificate; 1 if it "
        f"passes with others; {NOT_PASSED} if it does not pass; 2 if it could not be verified.",
    )
    parser.add_argument("artifact", metavar="DIR", help="folder of the artifact")
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="output folder of the run that it came from"
    )
    add_verification(parser)
    parser.set_defaults(margin=None)
    return parser
