"""The settings in a run's record as a command line: for an audit, and to repeat the command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.flags import flag_values, later_wins
from ampft.data.load import IN_MEMORY
from ampft.errors import InputError
from ampft.precision.modes import BASELINE
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.record import RunRecord
from ampft.runs.redaction import is_redacted

# Settings of the outputs, of the speed and of the end of a run. None changes a number, and an audit
# writes nothing. `trust_remote_code` is the auditor's decision.
NEUTRAL: Mapping[str, Any] = {
    "output_dir": None,
    "overwrite_output_dir": False,
    "with_tracking": False,
    "report_to": ClassifyArguments.report_to,
    "auto_micro_batch": False,
    "dataloader_num_workers": 0,
    "checkpointing_steps": None,
    "checkpoint_total_limit": None,
    "async_checkpoints": False,
    "resume_from_checkpoint": None,
    "allow_topology_change": False,
    "trust_remote_code": False,
    "push_to_hub": False,
    "hub_model_id": None,
    "hub_private_repo": False,
    "serve_back": False,
}


def recorded_arguments(record: RunRecord, flags: Sequence[str]) -> ClassifyArguments:
    """Return the settings in a record, checked as on a command line.

    Raises:
        InputError: A setting is unknown or has an invalid value.
    """
    recorded = {**record.arguments, **NEUTRAL, "mixed_precision": record.precision.requested}
    if record.task.startswith("text") and "pooling" not in record.arguments:
        recorded |= {"pooling": "first", "head_init": "random"}
    if "max_drawn_samples" not in record.arguments:
        recorded["max_drawn_samples"] = 0
    if record.data.name == IN_MEMORY:
        if not flags:
            raise InputError(
                "RUN: it was trained on data in memory, which an audit cannot read. Write them to "
                "files, and pass these: --train_file FILE, --validation_file and --test_file."
            )
        recorded["dataset_name"] = None
    words = []
    for name, value in recorded.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words.append(f"--{name}={value}")
    try:
        return parse_classify_arguments(later_wins(ClassifyArguments, words, flags))
    except InputError as error:
        raise InputError(
            f"the settings in {RECORD_NAME}, with the flags of this command, cannot be used "
            f"({error}) Check the flags, or use the version of ampft that the record names."
        ) from error


# Programs in place of which `ampft train` can complete a run.
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
