"""The command line that completes or continues a run, from its record."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from ampft.arguments import ClassifyArguments
from ampft.arguments.flags import flag_values, later_wins
from ampft.data.request import IN_MEMORY
from ampft.precision.modes import BASELINE
from ampft.runs.record import RunRecord
from ampft.runs.redaction import is_redacted

# Programs whose runs `ampft train` can complete too.
_OWN_PROGRAMS = ("ampft", "ampft.exe", "ampft.finetune", "classify.py", "recipes/classify.py")
_MODULE = "__main__.py"  # of `python -m ampft`


def completing_command(record: RunRecord, settings: Mapping[str, str]) -> str | None:
    """Return a command line for a shell that does what a run lacks; None if only Python can.

    It works in the folder in which the run began, to which its relative paths refer.

    Args:
        settings: Settings to add by name, such as the output folder of the run.
    """
    if record.data.name == IN_MEMORY or not record.command:
        return None
    program, *words = record.command
    words = words[words[:1] == ["train"] :]
    given = [word for name, value in settings.items() for word in (f"--{name}", value)]
    added = [*_same_conditions(record, words), *given]
    line = shlex.join(later_wins(ClassifyArguments, words, added))
    return f"{_launched(program, record)} {line}"


def lacks_secrets(record: RunRecord) -> bool:
    """Return whether the recorded command lacks a secret that was given with it."""
    return any(map(is_redacted, record.command))


def _launched(program: str, record: RunRecord) -> str:
    """Return how a program starts, with as many processes as in the record."""
    processes, is_own = record.topology.num_processes, program in (*_OWN_PROGRAMS, _MODULE)
    script = "-m ampft train" if is_own else shlex.quote(program)
    if record.topology.sharded:
        return f"accelerate launch {script}"
    if processes > 1:
        return f"torchrun --nproc_per_node {processes} {script}"
    return "ampft train" if program in _OWN_PROGRAMS else f"python {script}"


def _same_conditions(record: RunRecord, words: Sequence[str]) -> Iterator[str]:
    """Yield flags for what the environment decided: the precision and the number of threads."""
    given = flag_values(ClassifyArguments, words)
    requested, topology = record.precision.requested, record.topology
    if "mixed_precision" not in given and requested != BASELINE:
        yield from ("--mixed_precision", requested)
    if "cpu_threads" not in given and topology.device == "cpu":
        yield from ("--cpu_threads", str(topology.cpu_threads))
