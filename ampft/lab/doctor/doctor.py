"""The command `ampft doctor`."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.files import is_writable_folder, nearest_existing
from ampft.flag import flag, positional
from ampft.lab.doctor.diagnosis import DEFAULT_TOLERATED, DIAGNOSIS_NAME, PAGE_NAME
from ampft.ownership import check_replaceable

if TYPE_CHECKING:
    from ampft.lab.doctor.case import ExaminedModel
    from ampft.lab.doctor.diagnosis import Diagnosis

DOES_NOT_HOLD = 4
"""Exit code of a mode that does not hold."""
REPORTED = "ampft_doctor_reported"  # key of the store that all processes share
SECONDS_BETWEEN_CHECKS = 0.2


@dataclass(frozen=True)
class DoctorFlags:
    """The flags of `ampft doctor`."""

    run: str | None = positional(
        None,
        "RUN",
        "output folder of a run, whose saved step is replayed in its precision",
        excludes={"mixed_precision": "a saved step is replayed in the mode of its run"},
    )
    mixed_precision: str | None = flag(
        None, "precision to examine: fp16, bf16, tf32 or fp32; if none, fp16", metavar="MODE"
    )
    batches: int = flag(4, "step batches of the training split to examine", at_least=1)
    tolerated: float = flag(
        DEFAULT_TOLERATED,
        "share of the gradient that may be too small for fp16, 0 to 1",
        metavar="SHARE",
        at_least=0,
        below=1,
    )
    no_cure: bool = flag(
        False, "do not search for a cure, which takes many passes and a short training"
    )
    trial_steps: int = flag(
        200,
        "optimizer steps of the training that verifies a cure",
        at_least=1,
        excludes={"no_cure": "no cure is searched for"},
    )
    output_dir: str | None = flag(
        None, "folder for doctor.json and doctor.html; if none, print only"
    )


def doctor(line: CommandLine[DoctorFlags]) -> None:
    """Examine a training, or the saved step of a run; print the diagnosis, and write it if asked.

    Raises:
        InputError: A flag is invalid, or the run, its data or its model cannot be read.
        SystemExit: The mode does not hold; the exit code is 4.
    """
    flags = line.flags
    folder = None if flags.output_dir is None else Path(flags.output_dir)
    if folder is not None and not is_writable_folder(nearest_existing(folder)):
        raise InputError(
            f"--output_dir {folder}: this is not a folder in which you can write. Pass another one."
        )
    if folder is not None:
        check_replaceable("--output_dir", folder, [DIAGNOSIS_NAME, PAGE_NAME])
    from ampft.lab.doctor.case import recipe_case, run_case

    if flags.run is not None:
        case = run_case(
            Path(flags.run), line.after, steps=flags.batches, trial_steps=flags.trial_steps
        )
    else:
        training = dataclasses.replace(line.training, output_dir=None)
        mode = flags.mixed_precision or "fp16"
        case = recipe_case(training, mode, steps=flags.batches, trial_steps=flags.trial_steps)
    from accelerate import PartialState

    diagnosis = _diagnosis(case, flags.tolerated, search=not flags.no_cure)
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
    from ampft.lab.doctor.diagnosis_text import diagnosis_text
    from ampft.text.terminal import labelled, print_line

    print_line(diagnosis_text(diagnosis))
    if folder is None:
        print_line("\nAdd --output_dir DIR to write doctor.json and doctor.html.")
        return
    from ampft.files import write_text
    from ampft.lab.doctor.diagnosis_page import page_text
    from ampft.text.json_io import json_text

    texts = {DIAGNOSIS_NAME: json_text(diagnosis), PAGE_NAME: page_text(diagnosis)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    print_line("\n" + labelled("wrote", f"{folder / PAGE_NAME} and {DIAGNOSIS_NAME} next to it"))


DOCTOR = Command(
    DoctorFlags,
    doctor,
    Help(
        "Find out, without training, whether a precision holds for a model and its data: the "
        "operation that breaks it, its cause, and a cure that was tried. With RUN, replay the step "
        "at which a run was not finite, or its first batches if it saved none.",
        "Exit codes: 0 if the mode holds, 4 if it does not, 2 for wrong use.",
        usage="-- settings of ampft train (with RUN, those that changed)",
    ),
    TrainingSettings({"mixed_precision": ""}),
)
