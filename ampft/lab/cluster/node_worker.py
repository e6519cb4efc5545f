"""What a node does for a comparison: launch a program, and send what it writes while it runs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ampft.comparison.execution.launch import (
    FIRST_LINE,
    LocalLauncher,
    Program,
    ResourceSlot,
    SideBySide,
)
from ampft.engine.checkpoints.store import HISTORY_NAME, CheckpointStore
from ampft.files import hashed_text, read_hashed
from ampft.lab.cluster.orphans import MARK, start_guard_process
from ampft.lab.cluster.parcels import Receiver, pack_folder
from ampft.ownership import temporary_folder
from ampft.runs.manifest import RECORD_NAME

# What a message is about.
STARTED, LOG, HISTORY, PART, CHECKPOINT, RESULT, ALIVE = range(7)
SIGN_SECONDS = 5.0  # between signs of life of a worker
SILENT_SECONDS = 120.0  # without a sign until a worker is given up: it is stopped, or hangs


@dataclass(frozen=True)
class ProgramRequest:
    """A program to run on a node."""

    program: Program  # The program, with paths of the machine that asks.
    working_directory: str  # Working directory of that machine.
    config_file: str | None  # Configuration file of Accelerate.
    threads: int  # CPU threads of its processes.
    gpus: int  # GPUs of the program.
    # Variables of that machine that change numbers.
    environment: Mapping[str, str] = field(default_factory=dict)
    sha256: str | None = None  # Hash of what lies in the program's folder; None for nothing.
    parts: tuple[Any, ...] = ()  # The parts of it, as objects of the cluster.


@dataclass(frozen=True)
class ProgramMessage:
    """What a node reports about a program that it runs."""

    kind: int  # One of the constants of this module.
    content: bytes = b""  # Bytes of a log, of a history, or of the next part of the folder.
    text: str = ""  # The name of the node that started; the SHA-256 of the parts so far.


def run_program(request: ProgramRequest) -> Iterator[ProgramMessage]:
    """Run a program in a new folder of this node, and yield its news.

    No process of it outlives this generator, even if it is closed, interrupted or killed.
    """
    import ray

    os.chdir(request.working_directory)
    place = _scratch() / secrets.token_hex(8)
    folder = place / request.program.folder.name
    (place / "parcel").mkdir(parents=True)
    try:
        if request.sha256 is not None:
            receiver = Receiver(place / "parcel" / "received")
            for part in request.parts:
                receiver.add(ray.get(part))
            receiver.unpack(request.sha256, folder)
        yield ProgramMessage(STARTED, text=ray.get_runtime_context().get_node_id())
        yield from _supervised(request, folder, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _supervised(request: ProgramRequest, folder: Path, place: Path) -> Iterator[ProgramMessage]:
    theirs = str(request.program.folder)
    argv = tuple(_moved(word, theirs, str(folder)) for word in request.program.argv)
    program = replace(request.program, argv=argv, log=place / "log", folder=folder)
    news = _News(program, theirs)
    with SideBySide[None]([_launcher(request)]) as side:
        side.start(None, program)
        signed = time.monotonic()
        while side.running:
            side.ended()
            if time.monotonic() - signed > SIGN_SECONDS:
                signed = time.monotonic()
                yield ProgramMessage(ALIVE)
            yield from news.texts()
            if (checkpoint := news.new_checkpoint()) is not None:
                yield from _sent(folder, place, CHECKPOINT)
                news.sent_checkpoint = checkpoint
    yield from news.texts(at_end=True)
    _name_place(folder / RECORD_NAME, str(folder), theirs)
    yield from _sent(folder, place, RESULT)


def _sent(folder: Path, place: Path, kind: int) -> Iterator[ProgramMessage]:
    folder.mkdir(exist_ok=True)
    sha256, parts = pack_folder(folder, place / "parcel" / "sent")
    for part in parts:
        yield ProgramMessage(PART, part)
    yield ProgramMessage(kind, text=sha256)


def _name_place(record: Path, here: str, there: str) -> None:
    """Let a run record state the folder of the run where it was asked for."""
    with contextlib.suppress(OSError, ValueError):  # a killed run has none
        values, _ = read_hashed(record)
        values = json.loads(
            json.dumps(values).replace(json.dumps(here)[1:-1], json.dumps(there)[1:-1])
        )
        record.write_text(hashed_text(values), "utf-8")


def _moved(word: str, old: str, new: str) -> str:
    is_inside = word == old or word.startswith(old + os.sep)
    return new + word.removeprefix(old) if is_inside else word


class _News:
    """What a program has written since the last time."""

    def __init__(self, program: Program, theirs: str) -> None:
        self._files = {LOG: program.log, HISTORY: program.folder / HISTORY_NAME}
        self._read = {LOG: 0, HISTORY: _size(program.folder / HISTORY_NAME)}
        self._paths = str(program.folder).encode(), theirs.encode()
        self._store = CheckpointStore(program.folder)
        self.sent_checkpoint = self._newest()

    def texts(self, *, at_end: bool = False) -> Iterator[ProgramMessage]:
        """Yield the new lines of the log and of the history."""
        for kind, path in self._files.items():
            if _size(path) < self._read[kind]:  # the run began anew
                self._read[kind] = 0
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self._read[kind])
                new = file.read()
                new = new if at_end else new[: new.rfind(b"\n") + 1]
                self._read[kind] += len(new)
                new = new.removeprefix(FIRST_LINE)  # the log of the machine that asked has it
                if new:
                    yield ProgramMessage(kind, new.replace(*self._paths))

    def new_checkpoint(self) -> Path | None:
        """Return the newest checkpoint if it was not sent yet."""
        newest = self._newest()
        return None if newest == self.sent_checkpoint else newest

    def _newest(self) -> Path | None:
        complete = self._store.complete()
        return complete[-1] if complete else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@functools.cache
def _scratch() -> Path:
    return temporary_folder("node")


@functools.cache
def _mark() -> str:
    """Return the mark of this worker's processes, which end with this worker."""
    mark = secrets.token_hex(16)
    _guards.append(start_guard_process(mark))
    return mark


_guards: list[object] = []  # their pipes stay open as long as this process lives
_launchers: dict[tuple[object, ...], LocalLauncher] = {}


def _launcher(request: ProgramRequest) -> LocalLauncher:
    """Return this worker's launcher, which keeps its process with the imports between programs."""
    environment = {
        **request.environment,
        "OMP_NUM_THREADS": str(request.threads),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        MARK: _mark(),
    }
    if not request.gpus:
        del environment["CUDA_VISIBLE_DEVICES"]
    # Several processes of a run meet at a port that is free.
    flags = ("--main_process_port", "0") if request.gpus > 1 else ()
    key = (request.config_file, request.working_directory, *sorted(environment.items()))
    if key not in _launchers:
        for old in _launchers.values():
            old.close()
        _launchers.clear()
        slot = ResourceSlot(environment=environment, launcher_flags=flags)
        _launchers[key] = LocalLauncher(slot, request.config_file)
    return _launchers[key]
