"""`ampft audit`: of a run, an artifact or a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.flags import fields_and_hints, given_flags
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.export.certificate.export_command import (
    AUDIT_ARTIFACT,
    MOVED,
    ArtifactAuditFlags,
    MovedDataFlags,
)
from ampft.files import describe_file
from ampft.flag import REQUIRED, flag, positional
from ampft.ownership import check_output_file
from ampft.runs.manifest import RECORD_NAME

ALL = "all"


def check_steps(name: str, text: str) -> int | None:
    """Return the number of steps to repeat; None for all.

    Args:
        name: Name of the flag, for the message.

    Raises:
        InputError: It is neither a number nor all.
    """
    if text == ALL:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--{name}: received {text!r}; it must be at least 1, or {ALL}.")
    return int(text)


@dataclass(frozen=True, kw_only=True)
class RunAuditFlags(MovedDataFlags):
    """The flags of `ampft audit` for a run."""

    run: str = positional(REQUIRED, "RUN", "output folder of a finished run")
    steps: str = flag("20", f"optimizer steps to repeat, or {ALL}", metavar="N", check=check_steps)
    model_name_or_path: str | None = flag(
        None, "where the model is now; if none, where it was", group=MOVED
    )
    use_cpu: bool = flag(False, "audit a run of a GPU on the CPU")
    trust_remote_code: bool = flag(
        False, "run code from the model's repository; if not, never, whatever the record says"
    )
    json: str | None = flag(None, "JSON file to write", metavar="FILE")
    badge: str | None = flag(
        None, "SVG file to write, with a line for the model card", metavar="FILE"
    )


def print_run_audit(line: CommandLine[RunAuditFlags]) -> None:
    """Audit a run, print the result, and write it if requested.

    Raises:
        InputError: A flag is invalid, the folder does not hold a finished run, or data, model or
            precision are not available here.
        SystemExit: The run is not confirmed, or only in part; the exit code is 1.
    """
    args, folder = line.flags, Path(line.flags.run)
    for name in ("json", "badge"):
        if (file := getattr(args, name)) is not None:
            check_output_file(f"--{name}", Path(file))
            if Path(file).resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"--{name} {Path(file)}: an audit writes nothing into the folder of the run, "
                    "whose files have hashes in its record. Pass a file elsewhere."
                )
    from accelerate import PartialState

    from ampft.lab.audit.audit import audit_run
    from ampft.lab.audit.audit_result import PARTLY_CONFIRMED, audit_text, badge_markdown, badge_svg
    from ampft.runs.redaction import redacted_value
    from ampft.text.json_io import json_text, json_values
    from ampft.text.terminal import labelled, print_line

    moved = {f.name: getattr(args, f.name) for f in fields(MovedDataFlags)}
    moved["model_name_or_path"] = args.model_name_or_path
    flags = [f"--{name}={value}" for name, value in moved.items() if value is not None]
    flags += ["--trust_remote_code"] if args.trust_remote_code else []
    audited = audit_run(folder, flags, steps=check_steps("steps", args.steps), cpu=args.use_cpu)
    if PartialState().is_main_process:
        print_line(audit_text(audited))
        if args.json is not None:
            values = redacted_value(json_values(audited))
            assert isinstance(values, dict)
            _write(Path(args.json), json_text({"verdict": audited.verdict, **values}))
            print_line(labelled("wrote", args.json))
        if args.badge is not None:
            record = describe_file(folder / RECORD_NAME).sha256
            _write(Path(args.badge), badge_svg(audited, record))
            print_line(labelled("wrote", f"{args.badge}; for the model card:"))
            print_line(badge_markdown(audited, Path(args.badge).name))
    if audited.different or audited.verdict == PARTLY_CONFIRMED:
        raise SystemExit(1)


def _write(path: Path, text: str) -> None:
    from ampft.files import special_or_atomic_path

    with special_or_atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def audit_command(argv: Sequence[str]) -> Command[Any, None]:
    """Return the command that audits what the arguments name: a ledger, an artifact or a run.

    Raises:
        InputError: They name something else.
    """
    if any((Path(word) / "entry-000001.json").is_file() for word in argv):
        from ampft.lab.referee.ledger_audit import AUDIT_LEDGER

        return AUDIT_LEDGER
    if any((Path(word) / "artifact.json").is_file() for word in argv):
        return AUDIT_ARTIFACT
    flags = given_flags(argv, *fields_and_hints(RunAuditFlags, ArtifactAuditFlags))
    named = [each.values[0] for each in flags if not each.name and each.values]
    if (
        named
        and not any((Path(word) / RECORD_NAME).is_file() for word in named)
        and not {"-h", "--help"}.intersection(argv)
    ):
        raise InputError(
            f"audit {named[0]}: contains no run ({RECORD_NAME}), ledger (entry-000001.json) or "
            "artifact (artifact.json). Pass the folder of one."
        )
    return AUDIT_RUN


AUDIT_RUN = Command(
    RunAuditFlags,
    print_run_audit,
    Help(
        "Check a run from its folder and its data: rebuild it, repeat its first steps, predict "
        "with its model, compute its metrics again, and compare all of this with what it recorded. "
        "Nothing is written into the folder. With the folder of an artifact and --run RUN, repeat "
        "its verification; with a ledger, check its entries: --help beside one lists its flags.",
        "Exit codes: 0 if the run is confirmed, also within tolerance; 1 if it is not, or only "
        "partly, confirmed; 2 if it could not be audited. Digits must be equal on the CPU, "
        "versions, threads and processes of the run; docs/audit.md has the tolerances for others.",
    ),
)
