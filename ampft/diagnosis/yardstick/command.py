"""The command `ampft yardstick`: its flags, and what it prints and writes."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.flags import ArgumentParser
from ampft.errors import InputError

DEFAULT_MODES = "fp32,bf16,fp16"
DEFAULT_BATCHES = 32
SUMMARY = "how large each precision's gradient error is beside the noise of the batches"


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write where that was asked for.

    Args:
        argv: The words after the command; what follows `--` are arguments of classify.py.

    Raises:
        InputError: As `measure_yardstick` does, and for flags that are wrong.
    """
    args, classify = _parsed(argv)
    if args.output is not None:
        _check_output(Path(args.output))
    from ampft.diagnosis.yardstick.measure import measure_yardstick
    from ampft.diagnosis.yardstick.show import format_yardstick
    from ampft.text.terminal import labelled, print_line

    modes = [name.strip() for name in args.modes.split(",")]
    yardstick = measure_yardstick(
        classify, modes, batches=args.batches, checkpoints=args.checkpoints
    )
    print_line(format_yardstick(yardstick))
    if args.output is not None:
        from ampft.files import atomic_path
        from ampft.text.json_io import json_text

        with atomic_path(Path(args.output)) as path:
            path.write_text(json_text(yardstick.as_dict()), encoding="utf-8")
        print_line(labelled("wrote", args.output))


def _parsed(argv: Sequence[str]) -> tuple[argparse.Namespace, ClassifyArguments]:
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    args = _parser().parse_args(words[:split])
    classify = parse_classify_arguments(words[split + 1 :])
    if classify.mixed_precision is not None:
        raise InputError(
            f"--mixed_precision {classify.mixed_precision} after --: here --modes names the "
            "precisions. Leave it away."
        )
    return args, dataclasses.replace(classify, output_dir=None)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft yardstick",
        usage="ampft yardstick [--modes a,b] [--batches N] [--checkpoints RUN ...]\n"
        "                       [--output FILE] [-- arguments of classify.py]",
        description="Say, without any training, how large each precision's gradient error is "
        "beside the noise of the batches themselves, over all weights and per block of the model.",
    )
    parser.add_argument(
        "--modes",
        default=DEFAULT_MODES,
        metavar="a,b",
        help=f"precisions to measure (default: {DEFAULT_MODES})",
    )
    parser.add_argument(
        "--batches",
        type=int,
        default=DEFAULT_BATCHES,
        metavar="N",
        help=f"step batches of the training split, 2 or more (default: {DEFAULT_BATCHES})",
    )
    parser.add_argument(
        "--checkpoints",
        nargs="+",
        default=[],
        metavar="RUN",
        help="output folders of runs, to measure at their weights too",
    )
    parser.add_argument("--output", metavar="FILE", help="JSON file to write (default: none)")
    return parser


def _check_output(output: Path) -> None:
    if output.is_dir():
        raise InputError(f"--output {output}: is a folder. Name a file.")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist. Make it first.")
