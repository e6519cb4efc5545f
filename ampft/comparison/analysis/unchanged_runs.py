"""Whether the runs of a stored comparison are still what it compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ampft.comparison.analysis.loading import READ_FILES, RUNS_NAME
from ampft.comparison.findings import Comparison, RunOutcome
from ampft.errors import InputError, listed
from ampft.files import CHANGED, SAME, Recorded
from ampft.runs.manifest import RECORD_NAME, sealed_run
from ampft.runs.record import read_record
from ampft.text.numbers import counted
from ampft.text.terminal import labelled


def runs_check_line(folder: Path, comparison: Comparison) -> str:
    """Return the line that says whether the runs in a comparison's folder are unchanged.

    Only what the comparison read is checked: records, histories and predictions, not weights.

    Args:
        folder: Folder of the comparison.
        comparison: Comparison in this folder.
    """
    runs = [run for arm in comparison.arms for run in arm.runs]
    known = [run for run in runs if run.record_sha256 is not None]
    if len(known) < len(runs) or not (folder / RUNS_NAME).is_dir():
        where = "" if not known else ", which are not in its folder"
        return labelled(
            "unchecked",
            f"this is what was stored. The runs{where} were not read again; ampft compare with "
            "their folders reads them.",
        )
    faults = [f"{run.folder} ({fault})" for run in known for fault in _faults(folder, run)]
    if not faults:
        return labelled(
            "checked", f"{counted(len(known), 'run')}: records, histories and predictions unchanged"
        )
    return labelled(
        "warning",
        f"what follows was stored, and no longer fits the runs: {listed(faults)}. Restore them "
        "from a copy, or train them again.",
    )


def _faults(folder: Path, run: RunOutcome) -> Iterator[str]:
    """Yield what is wrong with the files of a run that were compared; nothing if all is right."""
    place = folder / RUNS_NAME / run.folder
    state = Recorded(place / RECORD_NAME, str(run.record_sha256)).state
    if state != SAME:
        yield f"{RECORD_NAME} is {state}" if state != CHANGED else f"{RECORD_NAME} was changed"
        return
    try:
        record = read_record(place)
    except InputError:
        yield f"{RECORD_NAME} cannot be read"
        return
    if record.files:
        for name, problem in sealed_run(place, record.files).faults(READ_FILES):
            yield f"{name} {problem}"
