"""The command `ampft export`, which ends with the verification of the artifact."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ampft.arguments.flags import ArgumentParser
from ampft.export.command import AUTO, MOVED, data_flags, export, export_parser, export_request

if TYPE_CHECKING:
    from ampft.certificate.findings import Certificate
    from ampft.certificate.rows import VerifiedRows
    from ampft.certificate.verify import VerifyRequest
    from ampft.export.export import ExportRequest

NOT_PASSED = 4  # exit code
MARGIN = 1.0  # points
# Failures that modules in float32 can repair.
OF_PRECISION = {"logits", "rounding", "batch", "difference", "classes", "not_finite"}


def main(argv: Sequence[str]) -> None:
    """Export a run, verify the artifact, and write its certificate.

    Args:
        argv: Arguments of the command.

    Raises:
        InputError: A flag is invalid, the run or the rows to verify on cannot be read, a package is
            missing, or the format cannot hold the model.
        SystemExit: The artifact did not pass; the exit code is 4.
    """
    parser = export_parser()
    parser.epilog = (
        f"{parser.epilog or ''} Exit codes: 0 if the artifact passed its verification, "
        f"{NOT_PASSED} if it failed or the examples could not decide, 2 if nothing was exported."
    ).strip()
    add_verification(parser)
    args = parser.parse_args(argv)
    request = export_request(args)
    from ampft.certificate.files import write_certificate
    from ampft.certificate.report import PAGE_NAME
    from ampft.certificate.verify import certify, check_verification
    from ampft.export.export import check_request
    from ampft.runs.predict import run_classifier
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    quiet_libraries()
    check_request(request)
    verification = verify_request(args)
    rows = check_verification(run_classifier(request.run).record, verification)
    export(request)
    print_line(labelled("verify", f"{len(rows):,} examples of {rows.name}"))
    certificate = certify(request.output_dir, request.run, verification, rows)
    if args.keep_float == AUTO and can_be_repaired(certificate):
        print_certificate(certificate)
        request = repaired(request, verification, rows)
        certificate = certify(request.output_dir, request.run, verification, rows)
    write_certificate(request.output_dir, certificate)
    print_certificate(certificate)
    print_line(labelled("page", str(request.output_dir / PAGE_NAME)))
    exit_with(certificate)


def can_be_repaired(certificate: Certificate) -> bool:
    """Return whether an artifact did not pass, and modules in float32 can change that."""
    from ampft.certificate.findings import PASSED

    kinds = {each.kind for each in certificate.failures}
    return certificate.verdict != PASSED and kinds <= OF_PRECISION


def repaired(
    request: ExportRequest, verification: VerifyRequest, rows: VerifiedRows
) -> ExportRequest:
    """Replace an artifact that does not pass by one with the fewest modules in float32.

    Args:
        request: Export that wrote it.
        verification: How it was verified.
        rows: Rows of the verification.

    Returns:
        The request of the new artifact; the old one if no modules help.
    """
    from ampft.certificate.float_region import smallest_region
    from ampft.export.export import remove_artifact
    from ampft.text.numbers import counted
    from ampft.text.terminal import labelled, print_line

    region = smallest_region(request, verification, rows)
    searched = f"{counted(region.tests, 'artifact')} compared on {region.rows:,} examples of "
    searched += region.split
    if region.modules is None:
        print_line(labelled("float", f"no set of modules in float32 helps ({searched})."))
        return request
    print_line(
        labelled(
            "float",
            f"{counted(len(region.modules), 'module')} must stay in float32 ({searched}): "
            f"--keep_float '{','.join(region.patterns)}'",
        )
    )
    remove_artifact(request.output_dir)
    request = replace(request, keep_float=region.modules)
    export(request)
    return request


def verify_request(args: Namespace) -> VerifyRequest:
    """Return the verification of arguments that `add_verification` has parsed."""
    from ampft.certificate.verify import VerifyRequest

    values = vars(args)
    return VerifyRequest(
        verify=values["verify"],
        metric=values["metric"],
        margin=values["margin"] / 100,
        data_flags=data_flags(args),
        measure=not values["no_measure"],
    )


def print_certificate(certificate: Certificate) -> None:
    """Print a certificate."""
    from ampft.certificate.report import certificate_text
    from ampft.text.terminal import print_line

    print_line(certificate_text(certificate))


def exit_with(certificate: Certificate) -> None:
    """Exit with code 4 unless the artifact passed."""
    from ampft.certificate.findings import PASSED

    if certificate.verdict != PASSED:
        raise SystemExit(NOT_PASSED)


def add_verification(parser: ArgumentParser) -> None:
    """Add the flags that say how an artifact is verified."""
    parser.add_argument(
        "--verify",
        metavar="test|validation|FILE",
        help="examples with labels on which the artifact is compared with its model (default: the "
        "split that the run reports)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=MARGIN,
        metavar="POINTS",
        help="largest difference in the metric that does not matter, in points (default: "
        f"{MARGIN:g}, or what the certificate states)",
    )
    parser.add_argument(
        "--metric", metavar="NAME", help="metric to compare (default: the task's primary metric)"
    )
    parser.add_argument(
        "--no_measure", action="store_true", help="skip the measurement of times and memory"
    )
    for name in MOVED:
        parser.add_argument(
            f"--{name}",
            metavar="PATH",
            help="where these data of the run are now, if they were moved (default: as recorded)",
        )
