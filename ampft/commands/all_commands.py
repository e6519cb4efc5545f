"""The commands of the core, and of the add-ons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ampft.commands.extension_points import AROUND_A_TRAINING, COMMANDS, GROUPS, START, CommandEntry

if TYPE_CHECKING:
    from ampft.arguments.commands import Command


def all_commands() -> dict[str, CommandEntry]:
    """Return all commands by name, in the order of the help."""
    added = [entry for entries in COMMANDS.all() for entry in entries]
    entries = sorted((*OF_THE_CORE, *added), key=lambda entry: GROUPS.index(entry.group))
    return {entry.name: entry for entry in entries}


def _env(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.installation import ENVIRONMENT

    return ENVIRONMENT


def _train(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.training import TRAIN

    return TRAIN


def _predict(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.predicting import PREDICT

    return PREDICT


def _report(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.run_folders import REPORT

    return REPORT


def _checkpoint(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.run_folders import CHECKPOINT

    return CHECKPOINT


def _push(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.run_folders import PUSH

    return PUSH


def _recipe(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.commands.installation import RECIPE

    return RECIPE


OF_THE_CORE = (
    CommandEntry(
        "env",
        START,
        "show hardware, versions, and how each precision would run on this machine",
        _env,
    ),
    CommandEntry("train", START, "fine-tune a classifier", _train),
    CommandEntry(
        "predict", START, "predict files, texts, images or sounds with a trained model", _predict
    ),
    CommandEntry("report", START, "print the report of a run or a comparison", _report),
    CommandEntry(
        "checkpoint", AROUND_A_TRAINING, "list or verify the checkpoints of a run", _checkpoint
    ),
    CommandEntry(
        "push", AROUND_A_TRAINING, "push a model and its card to the Hugging Face hub", _push
    ),
    CommandEntry(
        "recipe", AROUND_A_TRAINING, "print a training script to copy and change", _recipe
    ),
)
