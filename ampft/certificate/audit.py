"""`ampft audit` of an artifact: repeats its verification, and compares with its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampft.arguments.flags import ArgumentParser
from ampft.certificate.command import MARGIN, NOT_PASSED, add_verification, verify_request


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
    from ampft.certificate.findings import PASSED
    from ampft.certificate.report import certificate_text, differences, read_certificate
    from ampft.certificate.verify import certify
    from ampft.export.artifact import CERTIFICATE_NAME
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    quiet_libraries()
    path = folder / CERTIFICATE_NAME
    stored = read_certificate(path) if path.is_file() else None
    defaults: dict[str, Any] = {"margin": MARGIN}
    if stored is not None:  # the same verification, unless a flag asks for another
        comparison = stored.comparison
        defaults = {"margin": 100 * comparison.margin, "metric": comparison.metric}
        defaults["verify"] = stored.verify
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    found = certify(folder, Path(args.run), verify_request(args))
    print_line(certificate_text(found))
    problems: tuple[str, ...] = ()
    if stored is None:
        print_line(labelled("stored", f"the folder has no {CERTIFICATE_NAME} to compare with."))
    else:
        problems = tuple(differences(stored, found))
        for problem in problems or ("the results agree with the certificate.",):
            print_line(labelled("stored", problem))
    if found.verdict != PASSED:
        raise SystemExit(NOT_PASSED)
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
