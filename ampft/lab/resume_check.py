"""`ampft resume-check`: train straight and with interruptions, and compare bit for bit."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.files import describe_file, read_hashed, refuse_link
from ampft.flag import MAX_SEED, flag
from ampft.ownership import TemporaryFolder
from ampft.processes import kill, running, start_python
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME
from ampft.text.json_io import read_json_lines
from ampft.text.numbers import counted

POLL_SECONDS = 0.02
CHECKPOINTS_PER_RUN = 8
MAX_SHOWN = 200  # characters of a value
STRAIGHT, INTERRUPTED = "straight", "interrupted"
OWN_FLAGS = (
    *("output_dir", "overwrite_output_dir", "checkpointing_steps"),
    *("checkpoint_total_limit", "resume_from_checkpoint"),
)
# Compared by their bytes; the history and the record without times.
COMPARED_FILES = (
    *("model.safetensors", "adapter_model.safetensors", "raw_weights.safetensors", "config.json"),
    *("predictions.parquet", "predictions_fp32.parquet", "report.json"),
)
TIMES = {"seconds", "examples_per_second", "tokens_per_second", "waiting_share", "memory_mib"}
COMPARED_FIELDS = (
    *("status", "steps", "example_ids_sha256", "random_state_sha256", "validations", "best"),
    *("metrics", "metrics_fp32", "warnings", "label_names", "data", "model"),
)


@dataclass(frozen=True)
class ResumeCheckFlags:
    """The flags of `ampft resume-check`."""

    interruptions: int = flag(3, "number of times that the training is killed", at_least=1)
    seed: int = flag(0, "seed of the steps", at_least=0, at_most=MAX_SEED)
    output_dir: str | None = flag(
        None, "folder in which both trainings are kept; if none, a temporary one"
    )


def resume_check(line: CommandLine[ResumeCheckFlags]) -> None:
    """Train with and without interruptions, and print what differs.

    Raises:
        InputError: A flag is invalid, or a training fails or is too short.
        SystemExit: The results differ; the exit code is 1.
    """
    flags, command = line.flags, _command(line.after)
    with ExitStack() as stack:
        if flags.output_dir is None:
            folder = stack.enter_context(TemporaryFolder("resume-check"))
        else:
            folder = Path(flags.output_dir)
            refuse_link(folder, "--output_dir")
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InputError(
                    f"--output_dir {folder}: it exists and is not an empty folder. Choose another "
                    "folder."
                )
            folder.mkdir(parents=True, exist_ok=True)
        stops = train_with_interruptions(
            command, folder, interruptions=flags.interruptions, seed=flags.seed
        )
        found = list(differences(folder / STRAIGHT, folder / INTERRUPTED))
    from ampft.text.terminal import labelled, print_line

    killed = f"killed after step {', '.join(map(str, stops))}, and continued each time"
    equal = "equal bit for bit: weights, predictions, report, examples, history"
    print_line(labelled("result", f"{'not equal' if found else equal}; {killed}"))
    for text in found:
        print_line(labelled("differs", text))
    if found:
        raise SystemExit(1)


def train_with_interruptions(
    command: Sequence[str], folder: Path, *, interruptions: int, seed: int
) -> list[int]:
    """Train into two subfolders, the second time with interruptions.

    Args:
        command: Command of the training, without the flags in `OWN_FLAGS`.
        interruptions: Number of times that the second training is killed.

    Returns:
        Number of steps that the history had at each interruption.

    Raises:
        InputError: A training fails, or ends before it can be interrupted.
    """
    from ampft.text.terminal import print_line

    straight = _Training(command, folder / STRAIGHT)
    print_line("training once without interruption")
    straight.run(("--checkpointing_steps", "epoch"))
    total = straight.steps()
    interval = max(1, total // CHECKPOINTS_PER_RUN)
    count = min(interruptions, total - 1)
    positions = sorted(random.Random(seed).sample(range(1, total), count))
    training = _Training(command, folder / INTERRUPTED)
    flags = ("--checkpointing_steps", str(interval), "--resume_from_checkpoint", "latest")
    stops: list[int] = []
    for position in positions:
        print_line(f"training until step {position} of {total}, and killing it")
        # The history of the steps that are repeated is there until the training continues.
        if not training.run(flags, stop=max(position, training.steps() + 1)):
            break
        stops.append(training.steps())
    if not stops:
        raise InputError(
            f"the training ended before it could be interrupted, after {counted(total, 'step')}. "
            "Train for more steps: raise --num_train_epochs or --max_train_steps."
        )
    record = folder / INTERRUPTED / RECORD_NAME
    if not record.is_file() or read_hashed(record)[0]["status"] != "finished":
        print_line("training to the end")
        training.run(flags)
    return stops


@dataclass(frozen=True)
class _Training:
    command: Sequence[str]
    folder: Path

    def run(self, flags: Sequence[str], stop: int | None = None) -> bool:
        """Train; return whether it was killed, when its history had `stop` steps.

        Raises:
            InputError: The training failed.
        """
        log = self.folder.with_suffix(".log")
        words = [*self.command, *flags, "--output_dir", str(self.folder)]
        is_safe = words[0].startswith("-")
        with (
            log.open("ab") as output,
            running(
                lambda: start_python(words, output=output, is_safe=is_safe, follows=True)
            ) as process,
        ):
            while process.poll() is None:
                if stop is not None and self.steps() >= stop:
                    kill(process)
                    return True
                time.sleep(POLL_SECONDS)
        if process.returncode != 0:
            tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-10:])
            raise InputError(
                f"the training ended with exit code {process.returncode}. Its last lines were:\n"
                f"{tail}"
            )
        return False

    def steps(self) -> int:
        """Return the number of steps in the history."""
        try:
            return (self.folder / HISTORY_NAME).read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def differences(straight: Path, interrupted: Path) -> Iterator[str]:
    """Yield what differs between two runs that should be equal.

    Args:
        straight: Folder of the run that was not interrupted.
    """
    for name in COMPARED_FILES:
        one, other = straight / name, interrupted / name
        if one.is_file() != other.is_file():
            yield f"{name} exists only in {STRAIGHT if one.is_file() else INTERRUPTED}"
        elif one.is_file() and describe_file(one) != describe_file(other):
            yield f"{name} has other contents"
    yield from _history_differences(straight, interrupted)
    records = [read_hashed(folder / RECORD_NAME)[0] for folder in (straight, interrupted)]
    for name in COMPARED_FIELDS:
        yield from _field_differences(records[0].get(name), records[1].get(name), name)


def _field_differences(one: object, other: object, name: str) -> Iterator[str]:
    """Yield what differs in a field of the records, by the keys that lead to it."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _field_differences(one.get(key), other.get(key), f"{name}.{key}")
    elif one != other:
        yield f"{RECORD_NAME}: {name} is {_shown(other)} instead of {_shown(one)}"


def _shown(value: object) -> str:
    return shorten(repr(value), MAX_SHOWN, placeholder=" ...")


def _history_differences(straight: Path, interrupted: Path) -> Iterator[str]:
    one, other = (
        list(read_json_lines((folder / HISTORY_NAME).read_bytes(), HISTORY_NAME))
        for folder in (straight, interrupted)
    )
    if len(one) != len(other):
        yield f"{HISTORY_NAME} has {len(other)} steps instead of {len(one)}"
    for row, same in zip(one, other, strict=False):
        names = [k for k in {**row, **same} if k not in TIMES and row.get(k) != same.get(k)]
        if names:
            first = names[0]
            yield (
                f"{HISTORY_NAME}: from step {row.get('step')}, first {first}: {same.get(first)} "
                f"instead of {row.get(first)}"
            )
            return


def _command(words: Sequence[str]) -> list[str]:
    """Return the command of a training: a script, or `ampft train`."""
    own = [word for word in words if word.partition("=")[0].removeprefix("--") in OWN_FLAGS]
    if own:  # of a script; those of a training were checked
        raise InputError(f"{own[0]} after ` -- `: ampft resume-check sets it. Remove the flag.")
    if not words:
        raise InputError(
            "the training is missing. Give it after ` -- `: ampft resume-check -- "
            "recipes/classify.py --max_train_steps 40, or only the flags of ampft train."
        )
    if words[0].startswith("-"):
        return ["-m", "ampft", "train", *words]
    if not Path(words[0]).is_file():
        raise InputError(f"{words[0]}: this file does not exist. Pass a script after ` -- `.")
    return list(words)


RESUME_CHECK = Command(
    ResumeCheckFlags,
    resume_check,
    Help(
        "Prove that a training continues exactly: train it without interruption, and again, killed "
        "several times at random steps, and compare weights, history, examples and predictions bit "
        "for bit.",
        "Exit codes: 0 if all is equal, 1 if anything differs, 2 for wrong use.",
        usage="-- [SCRIPT] settings of the training",
    ),
    TrainingSettings(
        dict.fromkeys(OWN_FLAGS, "ampft resume-check sets it. Remove the flag")
        | {"output_dir": ""},
        is_script=True,
    ),
)
