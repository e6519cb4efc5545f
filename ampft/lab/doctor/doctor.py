"""The command `ampft doctor`."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments import parse_classify_arguments
from ampft.arguments.flags import ArgumentParser, split_at_dashes
from ampft.errors import InputError
from ampft.files import is_writable_folder, nearest_existing
from ampft.lab.doctor.diagnosis import DEFAULT_TOLERATED, DIAGNOSIS_NAME, PAGE_NAME
from ampft.ownership import check_replaceable

if TYPE_CHECKING:
    from ampft.lab.doctor.case import ExaminedModel
    from ampft.lab.doctor.diagnosis import Diagnosis

DEFAULT_MODE = "fp16"
DEFAULT_STEPS = 4
DEFAULT_TRIAL_STEPS = 200
DOES_NOT_HOLD = 4
"""Exit code of a mode that does not hold."""
REPORTED = "ampft_doctor_reported"  # key of the store that all processes share
SECONDS_BETWEEN_CHECKS = 0.2


def main(argv: Sequence[str]) -> None:
    """Examine a recipe, or the saved step of a run; print the diagnosis, and write it if requested.

    Args:
        argv: Arguments of the command, followed after `--` by flags of the recipe.

    Raises:
        InputError: A flag is invalid, or the run, its data or its model cannot be read.
        SystemExit: The mode does not hold; the exit code is 4.
    """
    words, flags = split_at_dashes(argv)
    args = _parser().parse_args(words)
    folder = None if args.output_dir is None else Path(args.output_dir)
    if folder is not None and not is_writable_folder(nearest_existing(folder)):
        raise InputError(
            f"--output_dir {folder}: this is not a folder in which you can write. Pass another one."
        )
    if folder is not None:
        check_replaceable("--output_dir", folder, [DIAGNOSIS_NAME, PAGE_NAME])
    case = _case(args, flags)
    from accelerate import PartialState

    diagnosis = _diagnosis(case, args.tolerated, search=not args.no_cure)
    if PartialState().is_main_process:
        _report(diagnosis, folder)
    wait_for_main_process()  # a launcher ends all processes when the first one fails
    if not diagnosis.holds:
        raise SystemExit(DOES_NOT_HOLD)


def wait_for_main_process() -> None:
    """Wait until all processes have called this; the main one may call it hours after the others.

    A barrier alone would fail after the timeout of the process group, which is at most 30 minutes.
    """
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        if state.is_main_process:
            store.set(REPORTED, "")
        while not store.check([REPORTED]):
            time.sleep(SECONDS_BETWEEN_CHECKS)
    state.wait_for_everyone()


def _case(args: argparse.Namespace, flags: Sequence[str]) -> ExaminedModel:
    if args.batches < 1:
        raise InputError(f"--batches {args.batches}: must be at least 1.")
    if not 0 <= args.tolerated < 1:
        raise InputError(f"--tolerated {args.tolerated:g}: must be at least 0 and below 1.")
    if args.trial_steps < 1:
        raise InputError(
            f"--trial_steps {args.trial_steps}: must be at least 1. To skip the search for a "
            "cure, pass --no_cure."
        )
    if args.run is not None:
        if args.mixed_precision is not None:
            raise InputError(
                f"--mixed_precision {args.mixed_precision} and RUN {args.run}: a saved step is "
                "replayed in the mode of its run. Remove the flag."
            )
        from ampft.lab.doctor.case import run_case

        return run_case(Path(args.run), flags, steps=args.batches, trial_steps=args.trial_steps)
    classify = parse_classify_arguments(flags, program="ampft train")
    if classify.mixed_precision is not None:
        raise InputError(
            f"--mixed_precision {classify.mixed_precision} after ` -- `: pass it before ` -- `, as "
            "in ampft doctor --mixed_precision fp16 -- --train_file FILE."
        )
    from ampft.lab.doctor.case import recipe_case

    classify = dataclasses.replace(classify, output_dir=None)
    mode = args.mixed_precision or DEFAULT_MODE
    return recipe_case(classify, mode, steps=args.batches, trial_steps=args.trial_steps)


def _diagnosis(case: ExaminedModel, tolerated: float, *, search: bool) -> Diagnosis:
    """Return the diagnosis; with a cure, verified by a training, if it is searched."""
    from accelerate import PartialState

    from ampft.lab.doctor.alignment import align
    from ampft.lab.doctor.cure import find_cure
    from ampft.lab.doctor.examine import diagnose

    diagnosis = diagnose(case, tolerated=tolerated)
    if not PartialState().is_main_process:
        return diagnosis
    if diagnosis.holds:
        return dataclasses.replace(diagnosis, alignment=align(case))
    if not search:
        return diagnosis
    diagnosis = find_cure(case, diagnosis)
    patterns = () if diagnosis.cure is None else diagnosis.cure.fp32_modules
    alignment = align(case, fp32_modules=patterns) if patterns else None
    return dataclasses.replace(diagnosis, alignment=alignment)


def _report(diagnosis: Diagnosis, folder: Path | None) -> None:
    from ampft.lab.doctor.show import diagnosis_text
    from ampft.text.terminal import labelled, print_line

    print_line(diagnosis_text(diagnosis))
    if folder is None:
        print_line("\nAdd --output_dir DIR to write doctor.json and doctor.html.")
        return
    from ampft.files import write_text
    from ampft.lab.doctor.page import page_text
    from ampft.text.json_io import json_text

    texts = {DIAGNOSIS_NAME: json_text(diagnosis), PAGE_NAME: page_text(diagnosis)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    print_line("\n" + labelled("wrote", f"{folder / PAGE_NAME} and {DIAGNOSIS_NAME} next to it"))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ampft doctor",
        usage="ampft doctor [--mixed_precision M] [--batches N] [--tolerated SHARE]\n"
        "                    [--trial_steps N] [--no_cure] [--output_dir DIR] -- recipe flags\n"
        "       ampft doctor RUN [--output_dir DIR] [--no_cure] [-- flags that changed]",
        description="Find out, without training, whether a precision holds for a model and its "
        "data: the operation that breaks it, its cause, and a cure that was tried. With RUN, "
        "replay the step at which a run was not finite, or its first batches if it saved none.",
        epilog="Exit codes: 0 if the mode holds, 4 if it does not, 2 for wrong use.",
    )
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="output folder of a run, whose saved step is replayed"
    )
    parser.add_argument(
        "--mixed_precision",
        metavar="MODE",
        help=f"precision to examine: fp16, bf16, tf32 or fp32 (default: {DEFAULT_MODE})",
    )
    parser.add_argument(
        "--batches",
        type=int,
        default=DEFAULT_STEPS,
        metavar="N",
        help=f"step batches of the training split to examine (default: {DEFAULT_STEPS})",
    )
    parser.add_argument(
        "--trial_steps",
        type=int,
        default=DEFAULT_TRIAL_STEPS,
        metavar="N",
        help="optimizer steps of the training that verifies a cure (default: "
        f"{DEFAULT_TRIAL_STEPS})",
    )
    parser.add_argument(
        "--tolerated",
        type=float,
        default=DEFAULT_TOLERATED,
        metavar="SHARE",
        help="share of the gradient that may be too small for fp16, 0 to 1 (default: "
        f"{DEFAULT_TOLERATED})",
    )
    parser.add_argument(
        "--output_dir",
        metavar="DIR",
        help="folder for doctor.json and doctor.html (default: print only)",
    )
    parser.add_argument(
        "--no_cure",
        action="store_true",
        help="do not search for a cure, which takes many passes and a short training",
    )
    return parser
