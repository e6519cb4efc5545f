"""What this add-on adds to the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampft.commands.extension_points import (
    COMPLETION,
    ENVIRONMENT_FACTS,
    FOLDER_PREDICTION,
    Completion,
    EnvironmentFacts,
    FolderPrediction,
)
from ampft.comparison.extension_points import TABLES, Tables

if TYPE_CHECKING:
    pass


@FOLDER_PREDICTION.add
def folder_prediction() -> FolderPrediction:
    """Return the function that predicts folders of files."""
    from ampft.doors.predict_shards import predict_files

    return predict_files


@COMPLETION.add
def completion() -> Completion:
    """Return the function that completes commands in a shell."""
    from ampft.doors.completion import print_completions

    return print_completions


@TABLES.add
def tables() -> Tables:
    """Return the comparison of tables of predictions."""
    from ampft.doors import foreign_predictions

    return foreign_predictions


@ENVIRONMENT_FACTS.add
def environment_facts() -> EnvironmentFacts:
    """Return what describes the environment."""
    from ampft.doors import environment

    return environment
