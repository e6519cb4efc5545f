"""The command `ampft ops`."""

from __future__ import annotations

from collections.abc import Sequence

from ampft.arguments import parse_classify_arguments
from ampft.arguments.flags import ArgumentParser, split_at_dashes
from ampft.errors import InputError
from ampft.precision.modes import canonical_mode

DEFAULT_MODE = "fp16"


def main(argv: Sequence[str]) -> None:
    """Probe autocast and print what it does.

    Args:
        argv: Arguments of the command, followed after `--` by arguments of classify.py.

    Raises:
        InputError: A flag is invalid, or the mode has no autocast on this device.
    """
    words, flags = split_at_dashes(argv)
    args = _parser().parse_args(words)
    if args.model_name_or_path is not None:
        flags += ["--model_name_or_path", args.model_name_or_path]
    classify = parse_classify_arguments(flags, program="ampft train") if flags else None
    if classify is not None and classify.mixed_precision is not None:
        raise InputError(
            f"--mixed_precision {classify.mixed_precision} after ` -- `: the flag belongs before "
            "` -- `. Move it."
        )
    from ampft.lab.operations.autocast_report import examine_autocast, format_operations
    from ampft.text.json_io import json_text
    from ampft.text.terminal import print_line

    report = examine_autocast(canonical_mode(args.mixed_precision), classify, cpu=args.use_cpu)
    print_line(json_text(report) if args.json else format_operations(report))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft ops",
        usage="ampft ops [--mixed_precision MODE] [--model_name_or_path MODEL] [--json]\n"
        "                 [--use_cpu] [-- arguments of classify.py]",
        description="Show what autocast does with every operation that it knows, found by probing "
        "this device and this build of torch, beside what PyTorch documents; with a model, also "
        "its operations that are on no list.",
    )
    parser.add_argument(
        "--mixed_precision",
        default=DEFAULT_MODE,
        metavar="MODE",
        help=f"precision with autocast, fp16 or bf16 (default: {DEFAULT_MODE})",
    )
    parser.add_argument(
        "--model_name_or_path", metavar="MODEL", help="model whose operations are examined"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--use_cpu", action="store_true", help="use the CPU even if there is an accelerator"
    )
    return parser
