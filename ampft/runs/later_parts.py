"""What a run does after its training, part by part: a failure of one costs neither it nor others.

When the training has ended, its whole state is written as a checkpoint, and the weights and the
tokenizer into the folder, with a record whose status is "trained". Only then come the parts, such
as the evaluation. A repeat of the command continues from that checkpoint and trains nothing again.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ampft.engine.checkpoints.store import CheckpointStore, DamagedCheckpoint, read_manifest
from ampft.errors import InputError, PartsFailed, TrainingStopped, without_error_numbers
from ampft.runs.manifest import earlier_record
from ampft.signals import StopRequested

END_OF_TRAINING = "the training ended"  # reason of its checkpoint
TRAINED = "trained"  # status of a run whose parts are not all done
_ENDED = ("finished", "diverged", "contradicted")  # with a result, or without a use for one

EVALUATION, SIMPLE_METHODS, PREDICTIONS = "evaluation", "simple methods", "predictions"
SERVING_BACK, REPORT, CARD = "serving back", "report", "model card"
PICTURES, SPEED, TRACKERS, RECORD = "pictures", "speed", "trackers", "record"
PARTS = (
    *(EVALUATION, TRACKERS, PICTURES, SPEED, SIMPLE_METHODS),
    *(PREDICTIONS, SERVING_BACK, REPORT, CARD, RECORD),
)
DONE, PENDING, NOT_WANTED = "done", "pending", "not wanted"
_FAILED = "failed: "
OF_OTHER = "process "  # as a reason of `report_first_failure` begins


@dataclass
class LaterParts:
    """The parts of a run after its training, and how each of them ended."""

    # `DONE`, `PENDING`, `NOT_WANTED`, or "failed: " and the reason, by name.
    status: dict[str, str] = field(default_factory=lambda: dict.fromkeys(PARTS, PENDING))
    _current: str = EVALUATION

    @property
    def failed(self) -> dict[str, str]:
        """Reasons of the parts that failed, by name."""
        return {
            name: status.removeprefix(_FAILED)
            for name, status in self.status.items()
            if status.startswith(_FAILED)
        }

    @contextmanager
    def part(self, name: str, *, ends: bool = False) -> Iterator[None]:
        """Run a part in this context; an exception becomes its status, unless a signal stops it.

        Args:
            ends: Whether nothing can follow it, so that the exception is raised too.
        """
        self._current = name
        try:
            yield
        except StopRequested:
            raise
        except Exception as error:
            self.status[name] = f"{_FAILED}{reason_of(error)}"
            if ends:
                raise
        else:
            if name not in self.failed:
                self.status[name] = DONE

    def skip(self, name: str) -> None:
        """Note that a part is not wanted."""
        self.status[name] = NOT_WANTED

    def add_failures(self, of_processes: Sequence[Mapping[str, str]]) -> None:
        """Note the parts that failed in other processes.

        Args:
            of_processes: `failed` of each process.
        """
        for process, failed in enumerate(of_processes):
            for name, reason in failed.items():
                if name not in self.failed:
                    self.status[name] = f"{_FAILED}{OF_OTHER}{process}: {reason}"

    def fail_current(self, reason: str) -> None:
        """Note why the run ended in the part that began last.

        Args:
            reason: Reason of the first process to fail. If it is another one, what this process
                noted itself only follows from it.
        """
        if self._current not in self.failed or reason.startswith(OF_OTHER):
            self.status[self._current] = f"{_FAILED}{reason}"

    def error(self, folder: Path) -> PartsFailed:
        """Return the error that says what failed, what is safe, and what to do."""
        remedy = REPEAT
        if trained_checkpoint(folder) is None:
            remedy = "The state of the training could not be saved: train again in another folder."
        return PartsFailed(f"{parts_text(folder, self.status)} {remedy}")


REPEAT = (
    "Repeat the same command: it does what is missing, with the same weights, without training "
    "again."
)


def parts_text(folder: Path, status: Mapping[str, str]) -> str:
    """Return the sentences that say what is safe, which parts failed, and which were not done."""
    pending = [name for name, each in status.items() if each == PENDING]
    failed = [f"{name} ({why})" for name, why in LaterParts(dict(status)).failed.items()]
    sentences = [f"{folder}: the training has ended and its model is saved"]
    sentences += [f"failed afterwards: {'; '.join(failed)}"] if failed else []
    sentences += [f"not done: {', '.join(pending)}"] if pending else []
    return "; ".join(sentences) + "."


def reason_of(error: BaseException) -> str:
    """Return what went wrong in one line, with the place in the code unless the user caused it."""
    text = without_error_numbers(" ".join(str(error).split())) or "no reason given"
    if isinstance(error, InputError | OSError | TrainingStopped):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def trained_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of a run whose training has ended but whose parts are not all done.

    Args:
        folder: Output folder, which need not exist.
    """
    record = earlier_record(folder) if folder.is_dir() else None
    if record is None or record["status"] in _ENDED:
        return None
    found = CheckpointStore(folder).complete()
    try:
        is_last = bool(found) and read_manifest(found[-1]).reason == END_OF_TRAINING
    except DamagedCheckpoint:
        return None
    return found[-1] if is_last else None
