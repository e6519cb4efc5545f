"""The command `ampft audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampft.arguments.flags import ArgumentParser
from ampft.errors import InputError
from ampft.files import describe_file
from ampft.ownership import check_output_file
from ampft.runs.manifest import RECORD_NAME

DEFAULT_STEPS = 20
MOVED = ("train_file", "validation_file", "test_file", "dataset_name", "model_name_or_path")
ALL = "all"


def main(argv: Sequence[str]) -> None:
    """Audit a run, print the result, and write it if requested.

    Args:
        argv: Arguments of the command.

    Raises:
        InputError: A flag is invalid, the folder does not hold a finished run, or data, model or
            precision are not available here.
        SystemExit: The run is not confirmed; the exit code is 1.
    """
    args = _parser().parse_args(argv)
    folder, steps = Path(args.run), None
    if args.steps != ALL:
        if not args.steps.isdecimal() or int(args.steps) < 1:
            raise InputError(f"--steps: received {args.steps!r}; it must be at least 1, or {ALL}.")
        steps = int(args.steps)
    for flag in ("json", "badge"):
        if (name := getattr(args, flag)) is not None:
            _check_output(f"--{flag}", Path(name), folder)
    from accelerate import PartialState

    from ampft.lab.audit.audit import audit_run
    from ampft.lab.audit.audit_result import audit_text, badge_markdown, badge_svg
    from ampft.text.json_io import json_text, json_values
    from ampft.text.terminal import labelled, print_line

    flags = [f"--{name}={v}" for name in MOVED if (v := getattr(args, name)) is not None]
    flags += ["--trust_remote_code"] * args.trust_remote_code
    audit = audit_run(folder, flags, steps=steps, cpu=args.use_cpu)
    if PartialState().is_main_process:
        print_line(audit_text(audit))
        if args.json is not None:
            values = json_values(audit)
            assert isinstance(values, dict)
            _write(Path(args.json), json_text({"verdict": audit.verdict, **values}))
            print_line(labelled("wrote", args.json))
        if args.badge is not None:
            record = describe_file(folder / RECORD_NAME).sha256
            _write(Path(args.badge), badge_svg(audit, record))
            print_line(labelled("wrote", f"{args.badge}; for the model card:"))
            print_line(badge_markdown(audit, Path(args.badge).name))
    if audit.different:
        raise SystemExit(1)


def _check_output(flag: str, path: Path, run: Path) -> None:
    check_output_file(flag, path)
    if path.resolve().is_relative_to(run.resolve()):
        raise InputError(
            f"{flag} {path}: an audit writes nothing into the folder of the run, whose files have "
            "hashes in its record. Pass a file elsewhere."
        )


def _write(path: Path, text: str) -> None:
    from ampft.files import special_or_atomic_path

    with special_or_atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft audit",
        description="Check a run from its folder and its data: rebuild it, repeat its first steps, "
        "predict with its model, compute its metrics again, and compare all of this with what it "
        "recorded. Nothing is written into the folder.",
        epilog="Exit codes: 0 if the run is confirmed, also within tolerance; 1 if it is not "
        "confirmed; 2 if it could not be audited. Digits must be equal on the CPU, versions, "
        "threads and processes of the run; the tolerances for other machines are in docs/audit.md.",
    )
    parser.add_argument("run", metavar="RUN", help="output folder of a finished run")
    parser.add_argument(
        "--steps",
        default=str(DEFAULT_STEPS),
        metavar="N",
        help=f"optimizer steps to repeat, or {ALL} (default: {DEFAULT_STEPS})",
    )
    for name in MOVED:
        parser.add_argument(
            f"--{name}",
            metavar="PATH",
            help="where it is now, if it was moved (default: as recorded)",
        )
    parser.add_argument("--use_cpu", action="store_true", help="audit a run of a GPU on the CPU")
    parser.add_argument(
        "--trust_remote_code",
        action="store_true",
        help="run code from the model's repository (default: never, whatever the record says)",
    )
    parser.add_argument("--json", metavar="FILE", help="JSON file to write (default: none)")
    parser.add_argument(
        "--badge",
        metavar="FILE",
        help="SVG file to write, with a line for the model card (default: none)",
    )
    return parser
