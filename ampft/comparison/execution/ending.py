"""How a run of a comparison ended, from what it left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampft.errors import InputError
from ampft.runs.record import RunRecord, read_record
from ampft.text.escaping import inert

COMPLETE = ("finished", "diverged")
_ERROR = "error: "
_TAIL = 2**16  # bytes of a log, which hold its end


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: "finished", "diverged", or "failed" for anything else.
        record: Where there is one.
        complaint: The message of bad input; None where there is none.
    """

    status: str
    record: RunRecord | None = None
    complaint: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it has an answer: a run that diverged is one."""
        return self.status in COMPLETE

    def words(self, metric: str) -> str:
        """Return the outcome in a clause for people."""
        if self.status == "finished" and self.record is not None:
            return f"{metric} {self.record.metrics.get(metric, float('nan')):.4f}"
        reason = self.record.reason if self.record is not None else None
        reason = self.complaint or reason
        return f"{self.status} ({inert(reason)})" if reason else self.status


def outcome(folder: Path, log: Path | None = None) -> Outcome:
    """Return how the run in `folder` ended.

    Args:
        folder: Of the run; it need not exist.
        log: What it printed, where a message of bad input is looked for.
    """
    try:
        record = read_record(folder)
    except InputError:
        record = None
    if record is not None and record.status in COMPLETE:
        return Outcome(record.status, record)
    return Outcome("failed", record, None if log is None else _complaint(log))


def _complaint(log: Path) -> str | None:
    """Return the last message of bad input in a log; the launcher hides the exit code."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return found[-1] if found else None
