"""The command `ampft ops`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.flags import ArgumentParser, split_at_dashes
from ampft.errors import InputError
from ampft.precision.modes import canonical_mode

if TYPE_CHECKING:
    from ampft.diagnosis.operations.report import OperationsReport
    from ampft.precision.resolve import Precision

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
    classify = parse_classify_arguments(flags) if flags else None
    if classify is not None and classify.mixed_precision is not None:
        raise InputError(
            f"--mixed_precision {classify.mixed_precision} after ` -- `: the flag belongs before "
            "` -- `. Move it."
        )
    from ampft.diagnosis.operations.report import format_operations
    from ampft.text.json_io import json_text
    from ampft.text.terminal import print_line

    report = examine(canonical_mode(args.mixed_precision), classify, cpu=args.use_cpu)
    print_line(json_text(report) if args.json else format_operations(report))


def examine(mode: str, classify: ClassifyArguments | None, *, cpu: bool) -> OperationsReport:
    """Return what autocast does in a mode on this device.

    Args:
        mode: One of `ampft.MODES`.
        classify: Settings of a run whose model is examined; None examines none.
        cpu: Whether to use the CPU even if there is an accelerator.

    Raises:
        InputError: The mode has no autocast on this device, or the model cannot be loaded.
    """
    import torch

    from ampft.diagnosis.operations.documented import documented_policies
    from ampft.diagnosis.operations.probe import REFUSED, autocast_operations
    from ampft.diagnosis.operations.report import OperationsReport
    from ampft.precision.accelerator import numerics, training_device
    from ampft.precision.resolve import resolve

    precision = resolve(mode, training_device(cpu=cpu))
    with numerics(precision):
        operations = autocast_operations(precision)
    table = "cuda" if precision.emulates_binary16 else precision.device_type
    documented = documented_policies(table)
    found = {(each.base_name, each.policy) for each in operations}
    other = {name for name, p in found if p != REFUSED and documented.get(name) != p}
    report = OperationsReport(
        mode=mode,
        execution=precision.execution,
        device=precision.device_type,
        table=table,
        torch=torch.__version__,
        operations=operations,
        undocumented=tuple(sorted(other)),
        not_found=tuple(sorted(n for n, p in documented.items() if (n, p) not in found)),
    )
    return report if classify is None else _with_model(report, precision, classify)


def _with_model(
    report: OperationsReport, precision: Precision, classify: ClassifyArguments
) -> OperationsReport:
    """Return the report with the operations of a model that are on no list."""
    from ampft.diagnosis.operations.unlisted import unlisted_operations
    from ampft.precision.accelerator import numerics, separate_accelerators
    from ampft.runs.prepare import load_task, prepare_mode, start_clock

    started = start_clock()
    classify = replace(classify, output_dir=None)
    task = load_task(classify)
    with separate_accelerators(), numerics(precision):
        prepared = prepare_mode(classify, precision, task, started=started)
        step_batch = next(iter(prepared.step_batches.epoch(0)))
        micro_batch = step_batch.micro_batches[0]
        prepared.model.train()
        unlisted = unlisted_operations(
            lambda: task.loss(prepared.model, micro_batch),
            {operation.base_name for operation in report.operations},
        )
    return replace(report, model=prepared.loaded.name, unlisted=unlisted)


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
