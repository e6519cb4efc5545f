"""The commands that verify artifacts: `ampft export`, which ends with it, and `ampft audit`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.export.formats import FORMATS, FP32, INT8_SCHEMES, PRECISIONS
from ampft.flag import REQUIRED, flag, positional

if TYPE_CHECKING:
    from ampft.export.certificate.verified_rows import VerifiedRows, VerifyRequest
    from ampft.export.source import ExportRequest

NOT_PASSED = 4  # exit code
MARGIN = 1.0  # points
AUTO = "auto"  # of --keep_float
MOVED, VERIFICATION = "data that were moved", "verification"
_MOVED = "where it is now; if none, where it was"
# Failures that modules in float32 can repair.
OF_PRECISION = {"logits", "rounding", "batch", "difference", "other_model", "classes", "not_finite"}


@dataclass(frozen=True, kw_only=True)
class MovedDataFlags:
    """Where the data of a run are now, for a calibration and for the verification."""

    train_file: str | None = flag(None, _MOVED, group=MOVED, joined=True)
    validation_file: str | None = flag(None, _MOVED, group=MOVED, joined=True)
    test_file: str | None = flag(None, _MOVED, group=MOVED, joined=True)
    dataset_name: str | None = flag(None, _MOVED, group=MOVED, metavar="PATH")


@dataclass(frozen=True, kw_only=True)
class VerificationFlags(MovedDataFlags):
    """How an artifact is verified."""

    verify: str | None = flag(
        None,
        "examples with labels on which the artifact is compared with its model; if none, the split "
        "that the run reports",
        group=VERIFICATION,
        metavar="test|validation|FILE",
    )
    margin: float | None = flag(
        None,
        "largest difference in the metric that does not matter, in points; if none, what the "
        f"certificate states, or {MARGIN:g}",
        group=VERIFICATION,
        metavar="POINTS",
        above=0,
        below=100,
    )
    metric: str | None = flag(
        None,
        "metric to compare; if none, the task's primary metric",
        group=VERIFICATION,
        metavar="NAME",
    )
    max_verify_samples: int | None = flag(
        None,
        "number of examples, drawn at random, on which the artifact is compared; if none, all",
        group=VERIFICATION,
        at_least=2,
    )
    no_measure: bool = flag(False, "skip the measurement of times and memory", group=VERIFICATION)


@dataclass(frozen=True, kw_only=True)
class ExportFlags(VerificationFlags):
    """The flags of `ampft export`."""

    run: str = positional(REQUIRED, "RUN", "output folder of a finished run")
    format: str = flag(
        REQUIRED, "onnx for onnxruntime, openvino for OpenVINO, torch for PyTorch", choices=FORMATS
    )
    output_dir: str = flag(REQUIRED, "folder to create for the artifact")
    precision: str = flag(FP32, "precision of the weights and the computation", choices=PRECISIONS)
    int8: str | None = flag(
        None,
        "how activations become int8 in --format onnx: each row in blocks, with scales of the "
        "batch (dynamic), or with scales measured on the validation split (static); if none, "
        f"{INT8_SCHEMES[0]}",
        choices=INT8_SCHEMES,
    )
    keep_float: str | None = flag(
        None,
        "modules that stay in float32, as globs over their paths, separated by commas; if an "
        "artifact fails, auto searches the fewest with which it passes",
        metavar="auto|PATTERNS",
        joined=True,
    )


@dataclass(frozen=True, kw_only=True)
class ArtifactAuditFlags(VerificationFlags):
    """The flags of `ampft audit` for an artifact."""

    artifact: str = positional(REQUIRED, "DIR", "folder of the artifact")
    run: str = flag(REQUIRED, "output folder of the run that it came from", metavar="RUN")


def export(line: CommandLine[ExportFlags]) -> None:
    """Export a run, verify the artifact, and write its certificate.

    Raises:
        InputError: A flag is invalid, the run or the rows to verify on cannot be read, a package is
            missing, or the format cannot hold the model.
        SystemExit: The artifact did not pass; the exit code is 4.
    """
    flags, run = line.flags, Path(line.flags.run)
    if not run.is_dir():
        raise InputError(f"RUN {run}: not a folder. Pass the --output_dir of a run.")
    from ampft.export.artifact import PAGE_NAME
    from ampft.export.certificate.certificate import PASSED
    from ampft.export.certificate.certificate_page import certificate_text, write_certificate
    from ampft.export.certificate.verified_rows import check_verification
    from ampft.export.certificate.verify import certify
    from ampft.export.export import check_request, staged_folder
    from ampft.export.source import KEEP_FLOAT, ExportRequest
    from ampft.precision.float32_modules import split_patterns
    from ampft.runs.predict import load_run_classifier
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    verification = _verify_request(flags, MARGIN if flags.margin is None else flags.margin)
    patterns = flags.keep_float if flags.keep_float != AUTO else None
    request = ExportRequest(
        run=run,
        format=flags.format,
        precision=flags.precision,
        output_dir=Path(flags.output_dir),
        data_flags=verification.data_flags,
        int8=flags.int8,
        keep_float=split_patterns(KEEP_FLOAT, patterns) if patterns else (),
    )
    quiet_libraries()
    check_request(request)
    rows = check_verification(load_run_classifier(run), verification)
    with staged_folder(request.output_dir) as folder:  # nothing is visible without its certificate
        _export(request, folder)
        print_line(labelled("verify", rows.title))
        certificate = certify(folder, run, verification, rows)
        failures = {each.kind for each in certificate.failures}
        if flags.keep_float == AUTO and certificate.verdict != PASSED and failures <= OF_PRECISION:
            print_line(certificate_text(certificate))
            _repair(request, verification, rows, folder)
            certificate = certify(folder, run, verification, rows)
        write_certificate(folder, certificate)
    print_line(certificate_text(certificate))
    print_line(labelled("page", str(request.output_dir / PAGE_NAME)))
    print_line(labelled("next", f"ampft predict --model {request.output_dir} FILE"))
    if certificate.verdict != PASSED:
        raise SystemExit(NOT_PASSED)


def _export(request: ExportRequest, folder: Path) -> None:
    """Export a run into an empty folder, which becomes the output folder, and print what it has."""
    from ampft.export.export import export_into
    from ampft.text.numbers import byte_size
    from ampft.text.terminal import labelled, print_line

    manifest = export_into(request, folder)
    size = byte_size(sum(part.bytes for part in manifest.files.values()))
    print_line(labelled("wrote", f"{request.output_dir}: {manifest.model}, {size} in all"))
    if manifest.float_nodes:
        print_line(labelled("float", f"ONNX nodes {','.join(manifest.float_nodes)}"))
        print_line(labelled("TensorRT", *_tensorrt_commands(manifest.float_nodes)))


def _tensorrt_commands(nodes: Sequence[str]) -> tuple[str, str]:
    """Return the commands that keep nodes in float32: for TensorRT up to 10, and from 11.

    The layers of TensorRT have the names of the nodes. TensorRT 11 has no constraints of precision,
    so that AutoCast of NVIDIA's Model Optimizer casts the graph instead, where names are patterns.
    """
    layers = ",".join(f"{name}:fp32" for name in nodes)
    patterns = " ".join(f"'^{re.escape(name)}$'" for name in nodes)
    return (
        f"up to 10: trtexec --fp16 --precisionConstraints=obey --layerPrecisions={layers}",
        f"from 11: python -m modelopt.onnx.autocast --onnx_path ONNX --nodes_to_exclude {patterns}",
    )


def _repair(
    request: ExportRequest, verification: VerifyRequest, rows: VerifiedRows, folder: Path
) -> None:
    """Replace an artifact that does not pass by one with the fewest modules in float32, if any."""
    from ampft.export.certificate.float_region import smallest_region
    from ampft.ownership import remove_tree
    from ampft.text.numbers import counted
    from ampft.text.terminal import labelled, print_line

    region = smallest_region(request, verification, rows)
    searched = f"{counted(region.tests, 'artifact')} compared on {region.rows:,} examples of "
    searched += region.split
    if region.modules is None:
        print_line(labelled("float", f"no set of modules in float32 helps ({searched})."))
        return
    print_line(
        labelled(
            "float",
            f"{counted(len(region.modules), 'module')} must stay in float32 ({searched}): "
            f"--keep_float '{','.join(region.patterns)}'",
        )
    )
    for path in list(folder.iterdir()):
        remove_tree(path)
    _export(replace(request, keep_float=region.modules), folder)


def print_artifact_audit(line: CommandLine[ArtifactAuditFlags]) -> None:
    """Repeat the verification of an artifact, and compare it with its certificate.

    Raises:
        InputError: The artifact, its run or the rows cannot be read.
        SystemExit: The artifact did not pass (exit code 4), or passed with other results than its
            certificate states (1).
    """
    flags, folder = line.flags, Path(line.flags.artifact)
    from ampft.export.artifact import CERTIFICATE_NAME, checked_manifest
    from ampft.export.certificate.certificate import PASSED
    from ampft.export.certificate.certificate_page import (
        certificate_text,
        differences,
        read_certificate,
    )
    from ampft.export.certificate.verify import certify
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    quiet_libraries()
    has_certificate = CERTIFICATE_NAME in checked_manifest(folder).files
    stored = read_certificate(folder / CERTIFICATE_NAME) if has_certificate else None
    margin = MARGIN if flags.margin is None else flags.margin
    if stored is not None:  # the same verification, unless a flag asks for another
        compared = stored.comparison
        margin = 100 * compared.margin if flags.margin is None else flags.margin
        metric, rows = flags.metric or compared.metric, flags.verify or stored.verify
        most = flags.max_verify_samples or stored.max_samples
        flags = replace(flags, metric=metric, verify=rows, max_verify_samples=most)
    found = certify(folder, Path(flags.run), _verify_request(flags, margin))
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


def _verify_request(flags: VerificationFlags, margin: float) -> VerifyRequest:
    """Return the verification that the flags ask for, at a margin in points."""
    from ampft.export.certificate.verified_rows import VerifyRequest

    moved = {f.name: getattr(flags, f.name) for f in fields(MovedDataFlags)}
    return VerifyRequest(
        verify=flags.verify,
        metric=flags.metric,
        margin=margin / 100,
        data_flags=[f"--{name}={path}" for name, path in moved.items() if path is not None],
        measure=not flags.no_measure,
        max_samples=flags.max_verify_samples,
    )


EXPORT = Command(
    ExportFlags,
    export,
    Help(
        "Write the model of a run as an artifact for another runtime, with its tokenizer or "
        "processor and its labels, and verify it.",
        "ampft predict --model DIR predicts with an artifact in its own runtime. Exit codes: 0 if "
        f"the artifact passed its verification, {NOT_PASSED} if it failed or the examples could "
        "not decide, 2 if nothing was exported.",
    ),
)
AUDIT_ARTIFACT = Command(
    ArtifactAuditFlags,
    print_artifact_audit,
    Help(
        "Repeat the verification of an artifact that ampft export wrote: it and its model predict "
        "the same examples, here and now. Nothing is written into the folder.",
        "Exit codes: 0 if the artifact passes and its results equal its certificate; 1 if it "
        f"passes and they differ; {NOT_PASSED} if it does not pass; 2 if it could not be verified.",
    ),
)
