"""The part of the command `ampft export` that exports; `certificate.command` verifies after it."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.flags import ArgumentParser
from ampft.errors import InputError
from ampft.export.formats import FORMATS, FP32, INT8_SCHEMES, PRECISIONS

if TYPE_CHECKING:
    from ampft.export.export import ExportRequest

# Flags that say where the data of a run are now, for a calibration and for the verification.
AUTO = "auto"  # of --keep_float
MOVED = ("train_file", "validation_file", "test_file", "dataset_name")


def export(request: ExportRequest) -> None:
    """Export a run, and print what was written.

    Args:
        request: Run, format, precision and folder.

    Raises:
        InputError: The folder does not hold a finished run, a package is missing, or the format
            cannot hold the model.
    """
    from ampft.export.export import export_run
    from ampft.text.escaping import inert_lines
    from ampft.text.numbers import byte_size
    from ampft.text.terminal import labelled

    manifest = export_run(request)
    size = byte_size(sum(part.bytes for part in manifest.files.values()))
    nodes = manifest.float_nodes
    lines = [
        labelled("wrote", f"{request.output_dir}: {manifest.model}, {size} in all"),
        labelled("next", f"ampft predict --model {request.output_dir} FILE"),
    ]
    if nodes:
        lines.insert(1, labelled("float", f"ONNX nodes {','.join(nodes)}"))
        lines.insert(2, labelled("TensorRT", *tensorrt_commands(nodes)))
    print(inert_lines("\n".join(lines)))


def tensorrt_commands(nodes: Sequence[str]) -> tuple[str, str]:
    """Return the commands that keep nodes in float32: for TensorRT up to 10, and from 11.

    The layers of TensorRT have the names of the nodes. TensorRT 11 has no constraints of precision,
    so that AutoCast of NVIDIA's Model Optimizer casts the graph instead, where names are patterns.

    Args:
        nodes: Names of nodes of an ONNX file.
    """
    layers = ",".join(f"{name}:fp32" for name in nodes)
    patterns = " ".join(f"'^{re.escape(name)}$'" for name in nodes)
    return (
        f"up to 10: trtexec --fp16 --precisionConstraints=obey --layerPrecisions={layers}",
        f"from 11: python -m modelopt.onnx.autocast --onnx_path ONNX --nodes_to_exclude {patterns}",
    )


def export_request(args: Namespace) -> ExportRequest:
    """Return the request of parsed arguments, which can have the flags `MOVED`.

    Raises:
        InputError: The run is not a folder.
    """
    from ampft.export.export import ExportRequest

    run = Path(args.run)
    if not run.is_dir():
        raise InputError(f"RUN {run}: not a folder. Pass the --output_dir of a run.")
    return ExportRequest(
        run=run,
        format=args.format,
        precision=args.precision,
        output_dir=Path(args.output_dir),
        data_flags=data_flags(args),
        int8=args.int8,
        keep_float=() if args.keep_float in (None, AUTO) else split(args.keep_float),
    )


def split(text: str) -> tuple[str, ...]:
    """Return the patterns of `--keep_float`."""
    from ampft.precision.float32_modules import split_patterns

    return split_patterns("--keep_float", text)


def data_flags(args: Namespace) -> list[str]:
    """Return the flags `MOVED` that were passed, as words of a command line."""
    values = vars(args)
    return [f"--{name}={values[name]}" for name in MOVED if values.get(name) is not None]


def export_parser() -> ArgumentParser:
    """Return the parser of the flags that say what is exported."""
    parser = ArgumentParser(
        prog="ampft export",
        description="Write the model of a run as an artifact for another runtime, with its "
        "tokenizer or processor and its labels.",
        epilog="ampft predict --model DIR predicts with an artifact in its own runtime.",
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
    return parser
