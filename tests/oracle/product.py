"""The product, through its public doors: commands, and the files that they write."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

SECONDS = 600  # that a case may take, on a machine that does other work too


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


def command(*words: object) -> Done:
    """Run `ampft` in this process."""
    from ampft.cli import main

    forget_processes()
    out, err = io.StringIO(), io.StringIO()
    argv = [str(word) for word in words]
    with (
        patch.object(sys, "argv", ["ampft", *argv]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except Exception:
            traceback.print_exc()
            code = 1
    return Done(code, out.getvalue(), err.getvalue())


def forget_processes() -> None:
    """Forget how many processes an earlier run of this process had."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as words of a command line."""
    words = []
    for name, value in settings.items():
        if value is False:
            words.append(f"--no-{name}")
        else:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def start_with(count: int, folder: Path) -> dict[str, str]:
    """Return the environment that a launcher of several processes sets, without their ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": folder.name,
    }  # fmt: skip


def train(
    words: Sequence[object], folder: Path, processes: int = 1, stop_after: int | None = None
) -> Done:
    """Run `ampft train`, in several processes if asked, and stopped by a signal after a step."""
    if processes == 1 and stop_after is None:
        return command("train", *words)
    shared = start_with(processes, folder) if processes > 1 else {}

    def one(rank: int) -> Done:
        os.environ.update(shared)
        if shared:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        if stop_after is not None and rank == 0:
            stop_at(stop_after)
        return command("train", *words)

    ended = [forked(lambda rank=rank: one(rank)) for rank in range(processes)]
    results = [wait() for wait in ended]
    worst = max(results, key=lambda done: done.code != 0)
    return Done(worst.code, results[0].out, "".join(done.err for done in results))


def stop_at(step: int) -> None:
    """Send this process SIGTERM when the run has recorded a step, as a preemption would."""
    import ampft

    recorded, counted = ampft.Run.record, [0]

    def record(run: Any, outcome: Any) -> Any:
        result = recorded(run, outcome)
        counted[0] += 1
        if counted[0] == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    ampft.Run.record = record  # type: ignore[method-assign]


def forked(work: Callable[[], Any], seconds: float = SECONDS) -> Callable[[], Any]:
    """Start work in a copy of this process; return a function that waits for its result.

    So a case leaves nothing behind in this process, and one that hangs or crashes is a result.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(int(seconds))
        try:
            result: Any = work()
        except BaseException as error:
            result = Crash("".join(traceback.format_exception(error)))
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)

    def wait() -> Any:
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(child, 0)
        return pickle.loads(content) if content else Crash(f"ended by status {status}")

    return wait


@dataclass(frozen=True)
class Crash:
    """Work that ended without a result."""

    text: str

    code = -1
    out = ""

    @property
    def err(self) -> str:
        return self.text


class LoopFolder:
    """The files of a finished loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record: dict[str, Any] = json.loads((folder / "run.json").read_text())
        lines = (folder / "history.jsonl").read_text().splitlines()
        self.history: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def weights(self) -> dict[str, Any]:
        """Return the saved tensors by name."""
        from safetensors.torch import load_file

        whole, adapters = (
            self.folder / f"{name}.safetensors" for name in ("model", "adapter_model")
        )
        return load_file(whole if whole.exists() else adapters)


class RunFolder(LoopFolder):
    """The files of a finished run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        self.decision: dict[str, Any] = json.loads((folder / "decision.json").read_text())

    @property
    def predictions(self) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        return pq.read_table(self.folder / "predictions.parquet").to_pylist()
