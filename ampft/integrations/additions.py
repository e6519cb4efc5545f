"""What this add-on adds to the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampft.arguments.extension_points import (
    FLAGS_OF_TRANSFORMERS,
    NAMES_OF_OTHERS,
    OtherFlags,
    OtherNames,
)
from ampft.commands.extension_points import (
    COMPLETION,
    ENVIRONMENT_FACTS,
    FOLDER_PREDICTION,
    Completion,
    EnvironmentFacts,
    FolderPrediction,
)
from ampft.comparison.extension_points import TABLES, Tables
from ampft.data.extension_points import JSON_OBJECTS, JsonObjects
from ampft.runs.extension_points import SERVE_BACK, ServeBack

if TYPE_CHECKING:
    pass


@FOLDER_PREDICTION.add
def folder_prediction() -> FolderPrediction:
    """Return the function that predicts folders of files."""
    from ampft.integrations.predict_shards import predict_files

    return predict_files


@COMPLETION.add
def completion() -> Completion:
    """Return the function that completes commands in a shell."""
    from ampft.integrations.completion import print_completions

    return print_completions


@TABLES.add
def tables() -> Tables:
    """Return the comparison of tables of predictions."""
    from ampft.integrations.compare_on_file import compare_on
    from ampft.integrations.foreign_predictions import compare_tables, groups_by_row

    return Tables(compare_tables, compare_on, groups_by_row)


@ENVIRONMENT_FACTS.add
def environment_facts() -> EnvironmentFacts:
    """Return what describes the environment."""
    from ampft.integrations import environment

    return environment


@NAMES_OF_OTHERS.add
def names_of_others() -> OtherNames:
    """Return the names of other programs."""
    from ampft.integrations import other_scripts

    return other_scripts.NAMES_OF_OTHERS


@FLAGS_OF_TRANSFORMERS.add
def flags_of_transformers() -> OtherFlags:
    """Return what converts flags of transformers' scripts."""
    from ampft.integrations import transformers_flags

    return transformers_flags


@JSON_OBJECTS.add
def json_objects() -> JsonObjects:
    """Return what reads JSON files of one object or several."""
    from ampft.integrations import json_objects

    return json_objects


@SERVE_BACK.add
def serve_back() -> ServeBack:
    """Return the function that asks plain clients."""
    from ampft.integrations.serving_back import serve_back

    return serve_back
