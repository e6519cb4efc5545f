"""The command `ampft yardstick`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ampft.arguments import parse_classify_arguments
from ampft.arguments.flags import ArgumentParser, split_at_dashes
from ampft.errors import InputError
from ampft.ownership import check_output_file

DEFAULT_MODES = "fp32,bf16,fp16"
DEFAULT_BATCHES = 32


def main(argv: Sequence[str]) -> None:
    """Measure the yardstick, print it, and write it if requested.

    Args:
        argv: Arguments of the command, followed after `--` by arguments of classify.py.

    Raises:
        InputError: A flag is invalid, or `measure_yardstick` fails.
    """
    words, flags = split_at_dashes(argv)
    args = _parser().parse_args(words)
    classify = parse_classify_arguments(flags, program="ampft train")
    if classify.mixed_precision is not None:
        raise InputError(
            f"--mixed_precision {classify.mixed_precision} after ` -- `: --modes names the "
            "precisions of the yardstick. Remove the flag."
        )
    if args.output is not None:
        check_output_file("--output", Path(args.output))
    from ampft.lab.yardstick.figures import format_yardstick
    from ampft.lab.yardstick.measure import measure_yardstick
    from ampft.text.terminal import labelled, print_line

    modes = [name.strip() for name in args.modes.split(",")]
    classify = dataclasses.replace(classify, output_dir=None)
    yardstick = measure_yardstick(
        classify, modes, batches=args.batches, checkpoints=args.checkpoints
    )
    print_line(format_yardstick(yardstick))
    if args.output is not None:
        from ampft.files import special_or_atomic_path
        from ampft.text.json_io import json_text

        with special_or_atomic_path(Path(args.output)) as path:
            path.write_text(json_text(yardstick), encoding="utf-8")
        print_line(labelled("wrote", args.output))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft yardstick",
        usage="ampft yardstick [--modes a,b] [--batches N] [--checkpoints RUN ...]\n"
        "                       [--output FILE] [-- arguments of classify.py]",
        description="Measure, without training, the gradient error of each precision relative to "
        "the noise between batches, over all weights and per block of the model.",
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
        help=f"number of training step batches, at least 2 (default: {DEFAULT_BATCHES})",
    )
    parser.add_argument(
        "--checkpoints",
        nargs="+",
        default=[],
        metavar="RUN",
        help="output folders of runs, whose weights are also measured",
    )
    parser.add_argument("--output", metavar="FILE", help="JSON file to write (default: none)")
    return parser
