"""The commands that verify artifacts: `ampft export`, which ends with it, and `ampft audit`."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.arguments.flags import ArgumentParser
from ampft.errors import InputError
from ampft.lab.export.formats import FORMATS, FP32, INT8_SCHEMES, PRECISIONS

if TYPE_CHECKING:
    from ampft.lab.certificate.rows import VerifiedRows, VerifyRequest
    from ampft.lab.export.source import ExportRequest

NOT_PASSED = 4  # exit code
MARGIN = 1.0  # points
AUTO = "auto"  # of --keep_float
# Flags that say where the data of a run are now, for a calibration and for the verification.
MOVED = ("train_file", "validation_file", "test_file", "dataset_name")
# Failures that modules in float32 can repair.
OF_PRECISION = {"logits", "rounding", "batch", "difference", "other_model", "classes", "not_finite"}


def main(argv: Sequence[str]) -> None:
    """Export a run, verify the artifact, and write its certificate.

    Args:
        argv: Arguments of the command.

    Raises:
        InputError: A flag is invalid, the run or the rows to verify on cannot be read, a package is
            missing, or the format cannot hold the model.
        SystemExit: The artifact did not pass; the exit code is 4.
    """
    args = _parser().parse_args(argv)
    run = Path(args.run)
    if not run.is_dir():
        raise InputError(f"RUN {run}: not a folder. Pass the --output_dir of a run.")
    from ampft.lab.certificate.certificate import PASSED
    from ampft.lab.certificate.certificate_page import (
        PAGE_NAME,
        certificate_text,
        write_certificate,
    )
    from ampft.lab.certificate.rows import check_verification
    from ampft.lab.certificate.verify import certify
    from ampft.lab.export.export import check_request
    from ampft.lab.export.source import KEEP_FLOAT, ExportRequest
    from ampft.precision.float32_modules import split_patterns
    from ampft.runs.predict import run_classifier
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    verification = _verify_request(args)
    is_named = args.keep_float not in (None, AUTO)
    request = ExportRequest(
        run=run,
        format=args.format,
        precision=args.precision,
        output_dir=Path(args.output_dir),
        data_flags=verification.data_flags,
        int8=args.int8,
        keep_float=split_patterns(KEEP_FLOAT, args.keep_float) if is_named else (),
    )
    quiet_libraries()
    check_request(request)
    rows = check_verification(run_classifier(run).record, verification)
    _export(request)
    print_line(labelled("verify", f"{len(rows):,} examples of {rows.name}"))
    certificate = certify(request.output_dir, run, verification, rows)
    failures = {each.kind for each in certificate.failures}
    if args.keep_float == AUTO and certificate.verdict != PASSED and failures <= OF_PRECISION:
        print_line(certificate_text(certificate))
        _repair(request, verification, rows)
        certificate = certify(request.output_dir, run, verification, rows)
    write_certificate(request.output_dir, certificate)
    print_line(certificate_text(certificate))
    print_line(labelled("page", str(request.output_dir / PAGE_NAME)))
    if certificate.verdict != PASSED:
        raise SystemExit(NOT_PASSED)


def _export(request: ExportRequest) -> None:
    """Export a run, and print what was written."""
    from ampft.lab.export.export import export_run
    from ampft.text.numbers import byte_size
    from ampft.text.terminal import labelled, print_line

    manifest = export_run(request)
    size = byte_size(sum(part.bytes for part in manifest.files.values()))
    print_line(labelled("wrote", f"{request.output_dir}: {manifest.model}, {size} in all"))
    if manifest.float_nodes:
        print_line(labelled("float", f"ONNX nodes {','.join(manifest.float_nodes)}"))
        print_line(labelled("TensorRT", *_tensorrt_commands(manifest.float_nodes)))
    print_line(labelled("next", f"ampft predict --model {request.output_dir} FILE"))


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


def _repair(request: ExportRequest, verification: VerifyRequest, rows: VerifiedRows) -> None:
    """Replace an artifact that does not pass by one with the fewest modules in float32, if any."""
    from ampft.lab.certificate.float_region import smallest_region
    from ampft.lab.export.export import remove_artifact
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
    remove_artifact(request.output_dir)
    _export(replace(request, keep_float=region.modules))


def audit(argv: Sequence[str]) -> None:
    """Repeat the verification of an artifact, and compare it with its certificate.

    Args:
        argv: Arguments of `ampft audit`; the first is the folder of the artifact.

    Raises:
        InputError: The artifact, its run or the rows cannot be read.
        SystemExit: The artifact did not pass (exit code 4), or passed with other results than its
            certificate states (1).
    """
    parser = ArgumentParser(
        prog="ampft audit",
        description="Repeat the verification of an artifact that ampft export wrote: it and its "
        "model predict the same examples, here and now. Nothing is written into the folder.",
        epilog="Exit codes: 0 if the artifact passes and its results equal its certificate; 1 if "
        f"it passes and they differ; {NOT_PASSED} if it does not pass; 2 if it could not be "
        "verified.",
    )
    parser.add_argument("artifact", metavar="DIR", help="folder of the artifact")
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="output folder of the run that it came from"
    )
    _add_verification(parser)
    parser.set_defaults(margin=None)
    args = parser.parse_args(argv)
    folder = Path(args.artifact)
    from ampft.lab.certificate.certificate import PASSED
    from ampft.lab.certificate.certificate_page import (
        certificate_text,
        differences,
        read_certificate,
    )
    from ampft.lab.certificate.verify import certify
    from ampft.lab.export.artifact import CERTIFICATE_NAME
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
    found = certify(folder, Path(args.run), _verify_request(args))
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


def _verify_request(args: Namespace) -> VerifyRequest:
    """Return the verification of arguments that `_add_verification` has parsed."""
    from ampft.lab.certificate.rows import VerifyRequest

    moved = {name: getattr(args, name) for name in MOVED}
    return VerifyRequest(
        verify=args.verify,
        metric=args.metric,
        margin=args.margin / 100,
        data_flags=[f"--{name}={path}" for name, path in moved.items() if path is not None],
        measure=not args.no_measure,
    )


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft export",
        description="Write the model of a run as an artifact for another runtime, with its "
        "tokenizer or processor and its labels.",
        epilog="ampft predict --model DIR predicts with an artifact in its own runtime. Exit "
        f"codes: 0 if the artifact passed its verification, {NOT_PASSED} if it failed or the "
        "examples could not decide, 2 if nothing was exported.",
    )
    parser.add_argument("run", metavar="RUN", help="output folder of a finished run")
    parser.add_argument(
        "--format",
        required=True,
        choices=tuple(FORMATS),
        help="onnx for onnxruntime, openvino for OpenVINO, torch for PyTorch",
    )
    parser.add_argument(
        "--precision",
        default=FP32,
        choices=PRECISIONS,
        help="precision of the weights and the computation (default: fp32)",
    )
    parser.add_argument(
        "--int8",
        choices=INT8_SCHEMES,
        help="how activations become int8 in --format onnx: each row in blocks, with scales of "
        "the batch (dynamic), or with scales measured on the validation split (static; default: "
        f"{INT8_SCHEMES[0]})",
    )
    parser.add_argument(
        "--keep_float",
        metavar="auto|PATTERNS",
        help="modules that stay in float32, as globs over their paths, separated by commas; if an "
        "artifact fails, auto searches the fewest with which it passes (default: none)",
    )
    parser.add_argument(
        "--output_dir", required=True, metavar="DIR", help="folder to create for the artifact"
    )
    _add_verification(parser)
    return parser


def _add_verification(parser: ArgumentParser) -> None:
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
