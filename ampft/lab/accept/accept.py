"""`ampft accept`: which promises hold on this machine, by commands as users type them.

Every command is a process of its own, in which nothing of the device is set: it finds the device as
a user's does. Judged is only what it recorded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.files import hashed_text, refuse_link
from ampft.flag import flag
from ampft.lab.accept.obligations import ABSENT, GREEN, OPEN, RED, Done, Judgement, judge
from ampft.machine import hardware, versions
from ampft.ownership import TemporaryFolder
from ampft.processes import running, start_python, terminate

if TYPE_CHECKING:
    from ampft.text.page import Table

STEPS = 24  # enough for graphs to be captured, verified and replayed
RESULT_NAME, PAGE_NAME = "acceptance.json", "acceptance.html"
MODES = ("fp32", "tf32", "bf16", "fp16")
SECONDS_PER_COMMAND, SECONDS_BETWEEN_LOOKS = 300.0, 0.2
READERS = ("predict", "export")  # kinds that read what another command wrote
EXIT_UNDECIDED = 4


@dataclass(frozen=True)
class AcceptFlags:
    """The flags of `ampft accept`."""

    output_dir: str | None = flag(
        None, "new folder for the result, its page and what the commands wrote; if none, a "
        "temporary one",
    )  # fmt: skip
    use_cpu: bool = flag(False, "examine the CPU even if there is an accelerator")
    max_minutes: float = flag(
        10.0, "minutes after which no further command is started", metavar="MINUTES", above=0
    )
    compiled: bool = flag(False, "also train a compiled model, which takes minutes on some devices")
    parallel: int | None = flag(
        None, "commands at a time; if none, one for every four cores, and four at most", at_least=1
    )


@dataclass(frozen=True)
class Planned:
    """A command that is to be started."""

    done: Done  # What is known of it before.
    words: tuple[str, ...]  # Words after `python`.


@dataclass(frozen=True)
class Machine:
    """What decides which commands there are."""

    device: str  # Type of the device: "cpu", "cuda", "mps" or "xpu".
    names: tuple[str, ...]  # Names of the GPUs.
    cpu_only: bool  # Whether commands get --use_cpu.
    unavailable: Mapping[str, str]  # Why a mode is not here, by mode.


def accept(line: CommandLine[AcceptFlags]) -> None:
    """Start the commands, judge them, print the table and write it.

    Raises:
        InputError: The folder exists and is not empty.
        SystemExit: A promise does not hold (exit code 1), or was not examined for lack of time (4).
    """
    from ampft.text.page import terminal
    from ampft.text.terminal import labelled, print_line, quiet_libraries

    flags = line.flags
    with ExitStack() as stack:
        if flags.output_dir is None:
            folder = stack.enter_context(TemporaryFolder("accept"))
        else:
            folder = Path(flags.output_dir).absolute()
            refuse_link(folder, "--output_dir")
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InputError(
                    f"--output_dir {flags.output_dir}: it exists and is not an empty folder. "
                    "Choose another folder."
                )
            folder.mkdir(parents=True, exist_ok=True)
        from ampft.lab.accept.reference import make_files, train_reference  # imports transformers

        machine = this_machine(cpu=flags.use_cpu)
        print_line(labelled("device", ", ".join(machine.names) or machine.device))
        quiet_libraries()
        make_files(folder)
        reference = train_reference(folder, STEPS)
        deadline = time.monotonic() + 60 * flags.max_minutes
        commands = list(plan(machine, folder, compiled=flags.compiled))
        parallel = flags.parallel or max(1, min(4, (os.cpu_count() or 1) // 4))
        done: dict[str, Done] = {}
        # What reads the folder of another command comes after all that train.
        for stage in (False, True):
            chosen = [one for one in commands if (one.done.kind in READERS) == stage]
            for ended in run_all(chosen, folder, deadline, parallel):
                done[ended.name] = ended
                word = ended.absent or f"exit code {ended.exit_code}, {ended.seconds:.0f} s"
                word = "not started: the time is over" if ended.is_late else word
                print_line(labelled("ran", f"{ended.name}: {word}"))
        rows = judge(done, reference)
        if flags.output_dir is not None:
            write(folder, machine, rows)
    print_line(f"\n{terminal([table(rows)])}\n")
    counts = Counter(row.colour for row in rows)
    print_line(labelled("result", summary(rows)))
    if flags.output_dir is not None:
        print_line(labelled("wrote", str(Path(flags.output_dir) / PAGE_NAME)))
    if counts[RED] or counts[OPEN]:
        raise SystemExit(1 if counts[RED] else EXIT_UNDECIDED)


def this_machine(*, cpu: bool) -> Machine:
    """Return the device that commands will find, and which modes it does not have.

    Args:
        cpu: Whether commands get `--use_cpu`.
    """
    import torch

    from ampft.precision.accelerator import training_device
    from ampft.precision.resolve import resolve

    device = training_device(cpu=cpu).type
    unavailable = {}
    for mode in MODES:
        try:
            resolve(mode, device)
        except InputError as error:
            unavailable[mode] = str(error)
    number = torch.cuda.device_count() if device == "cuda" else 0
    names = tuple(torch.cuda.get_device_name(index) for index in range(number))
    return Machine(device, names, cpu, unavailable)


def plan(machine: Machine, folder: Path, *, compiled: bool) -> Iterator[Planned]:
    """Yield the commands, those first on which others rest.

    Args:
        machine: What decides which commands there are.
        compiled: Whether to train a compiled model too.
    """
    from ampft.lab.accept.reference import TEST, settings

    def command(name: str, kind: str, mode: str, *words: str, steps: int = STEPS) -> Planned:
        place = folder / name.replace(",", "").replace(" ", "-")
        known = Done(
            name, mode, kind, steps, place, None, 0.0, "", machine.unavailable.get(mode, "")
        )
        return Planned(known, words)

    def train(name: str, kind: str, mode: str, *extra: str, steps: int = STEPS) -> Planned:
        made = command(name, kind, mode, steps=steps)
        flags = ("--mixed_precision", mode, "--max_train_steps", str(steps), *extra)
        place = (
            "--output_dir",
            str(made.done.folder),
            *(["--use_cpu"] if machine.cpu_only else []),
        )
        return replace(made, words=("-m", "ampft", "train", *settings(folder), *flags, *place))

    def without(planned: Planned, reason: str) -> Planned:
        return replace(planned, done=replace(planned.done, absent=planned.done.absent or reason))

    low = "bf16" if "bf16" not in machine.unavailable else "fp32"
    for mode in MODES:
        yield train(f"{mode}, 1 step", "train", mode, steps=1)
        yield train(f"{mode}, {STEPS} steps", "train", mode)
    yield train(f"{low}, padded", "padded", low, "--padding")
    no_graphs = "" if machine.device == "cuda" else "CUDA graphs need a CUDA device"
    for mode in ("fp32", low):
        yield without(train(f"{mode}, graphs", "graphs", mode, "--cuda_graphs"), no_graphs)
    no_peft = "" if find_spec("peft") else "peft is not installed"
    yield without(train(f"{low}, LoRA", "adapters", low, "--lora_r", "4"), no_peft)
    yield from _launched(machine, train)
    trained = folder / f"fp32-{STEPS}-steps"
    use_cpu = ["--use_cpu"] if machine.cpu_only else []
    yield command(
        "predict", "predict", "fp32", "-m", "ampft", "predict", "--model", str(trained),
        str(folder / TEST), "--output_file",
        str(folder / "predict" / "predicted.parquet"),
    )  # fmt: skip
    export = command("export", "export", "fp32")
    words = ("-m", "ampft", "export", str(trained), "--format", "torch", "--no_measure")
    yield replace(export, words=(*words, "--output_dir", str(export.done.folder)))
    yield command(
        "resume", "resume", low, "-m", "ampft", "resume-check", "--interruptions", "1", "--",
        *settings(folder), "--mixed_precision", low, "--max_train_steps", str(STEPS),
        "--deterministic", *use_cpu,
    )  # fmt: skip
    if compiled:
        made = train(f"{low}, compiled", "train", low)
        launcher = ("-m", "accelerate.commands.launch", "--dynamo_backend", "inductor")
        yield replace(made, words=(*launcher, "-m", "ampft", *made.words[2:]))


def _launched(machine: Machine, train: Callable[..., Planned]) -> Iterator[Planned]:
    """Yield the training of two processes."""
    made = train("fp32, 2 processes", "processes", "fp32")
    # Half of the batch for each, so that a step is the same.
    words = list(made.words)
    at = words.index("--per_device_train_batch_size") + 1
    words[at] = str(int(words[at]) // 2)
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--no-python")
    reason = ""
    if machine.device == "cuda" and len(machine.names) < 2:
        reason = "one GPU: several processes need one each"
    elif sys.platform == "win32":
        reason = "torchrun needs Linux or macOS"
    executable = (*launcher, sys.executable, *words)
    yield replace(made, words=executable, done=replace(made.done, absent=reason))


def run_all(
    commands: Sequence[Planned], folder: Path, deadline: float, parallel: int
) -> Iterator[Done]:
    """Run commands, at most `parallel` at a time; yield how each ended, in their order."""
    stop = Event()
    with ThreadPoolExecutor(parallel) as pool:
        try:
            yield from pool.map(partial(run, folder=folder, deadline=deadline, stop=stop), commands)
        except BaseException:
            stop.set()
            raise


def run(planned: Planned, folder: Path, deadline: float, stop: Event) -> Done:
    """Run a command in the folder; return how it ended.

    Args:
        planned: The command.
        folder: Its current folder, in which its log is written.
        deadline: Value of `time.monotonic` at which nothing new is started.
        stop: Set when this process ends, with which the command ends.
    """
    known = planned.done
    if stop.is_set() or (not known.absent and time.monotonic() > deadline):
        return replace(known, is_late=True)
    if known.absent:
        return known
    if known.kind == "predict":
        known.folder.mkdir()
    log = folder / f"{known.folder.name}.log"
    started = time.monotonic()
    exit_code: int | None = None
    with (
        log.open("wb") as output,
        running(lambda: start_python(planned.words, output=output, follows=True)) as process,
    ):
        while exit_code is None:
            try:
                exit_code = process.wait(SECONDS_BETWEEN_LOOKS)
            except subprocess.TimeoutExpired:
                if stop.is_set() or time.monotonic() - started > SECONDS_PER_COMMAND:
                    terminate(process)
                    break
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1][:200] if lines else "it printed nothing"
    return replace(known, exit_code=exit_code, seconds=time.monotonic() - started, last_line=last)


def table(rows: list[Judgement]) -> Table:
    """Return the table of obligations."""
    from ampft.text.page import Name, Table

    return Table(
        header=("obligation", "command", "", "evidence"),
        rows=[(r.obligation, Name(r.command), r.colour, r.evidence) for r in rows],
        left=4,
        label="obligations",
    )


def summary(rows: list[Judgement]) -> str:
    """Return the answer in one sentence."""
    counts = Counter(row.colour for row in rows)
    answer = "undecided" if counts[OPEN] else "accepted"
    if counts[RED]:
        answer = "not accepted"
    late = f", {counts[OPEN]} were not examined for lack of time" if counts[OPEN] else ""
    return (
        f"{answer}: {counts[GREEN]} obligations hold, {counts[RED]} do not, {counts[ABSENT]} are "
        f"not here{late}"
    )


def write(folder: Path, machine: Machine, rows: list[Judgement]) -> None:
    """Write the result as JSON and as a page, with the machine and the versions."""
    from ampft.text.page import Page, Paragraph, Section, html_page

    found = {
        "summary": summary(rows),
        "device": machine.device,
        "hardware": hardware(machine.names),
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
    }
    (folder / RESULT_NAME).write_text(hashed_text(found), encoding="utf-8")
    about = ", ".join(machine.names) or str(found["hardware"]["cpu"])  # type: ignore[index]
    ordered = sorted(rows, key=lambda row: (RED, OPEN, GREEN, ABSENT).index(row.colour))
    page = Page(
        kind="acceptance",
        title=f"Acceptance of {about}",
        kicker="ampft accept",
        headline=summary(rows).capitalize(),
        lead=(Paragraph(f"{about}; {', '.join(f'{k} {v}' for k, v in versions().items())}"),),
        sections=(Section("obligations", "Obligations", (table(ordered),)),),
    )
    (folder / PAGE_NAME).write_text(html_page(page), encoding="utf-8")


ACCEPT = Command(
    AcceptFlags,
    accept,
    Help(
        "Say which promises hold on this machine: train, predict, export and resume as a user "
        "does, on a small model of its own, and judge what these commands recorded. No network "
        "and no data are needed.",
        usage="[--flag value ...]",
    ),
)
