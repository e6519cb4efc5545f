"""The settings in a run's record, as they were given on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ampft.arguments import ClassifyArguments
from ampft.arguments.flags import flag_values, later_wins
from ampft.arguments.parsing import parse_own_arguments
from ampft.data.request import IN_MEMORY
from ampft.errors import InputError
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


OF_DATA = ("train_file", "validation_file", "test_file", "dataset_name")


def recorded_arguments(
    record: RunRecord, flags: Sequence[str], paths: Sequence[str] = OF_DATA
) -> ClassifyArguments:
    """Return the settings in a record, checked as on a command line.

    Args:
        flags: Flags that replace recorded settings.
        paths: Settings with paths that are read.

    Raises:
        InputError: A setting is unknown or has an invalid value, or a path held a token, which is
            not recorded.
    """
    given = flag_values(ClassifyArguments, flags)
    for name in paths:
        value = record.arguments.get(name)
        if isinstance(value, str) and is_redacted(value) and name not in given:
            raise InputError(
                f"--{name}: {value} was recorded without the token or password in it. Give the path"
                f" again: --{name} PATH."
            )
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
        return parse_own_arguments(later_wins(ClassifyArguments, words, flags))
    except InputError as error:
        raise InputError(
            f"the settings in {RECORD_NAME}, with the flags of this command, cannot be used "
            f"({error}) Check the flags, or use the version of ampft that the record names."
        ) from error
