"""Names of other training scripts, and the advice that they get."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.errors import InputError
from ampft.integrations.other_scripts import REPLACEMENTS, TASK_NAMES


@pytest.mark.parametrize("other", sorted(TASK_NAMES))
def test_other_names_of_tasks(other):
    with pytest.raises(InputError, match=f"Did you mean '{TASK_NAMES[other]}'"):
        parse_classify_arguments(["--task", other])
    words = ["--task", TASK_NAMES[other], "--dataset_name", "x"]
    assert parse_classify_arguments(words).task == TASK_NAMES[other]


@pytest.mark.parametrize("other", sorted(REPLACEMENTS))
def test_flags_of_other_scripts(other):
    names = {f.name for f in fields(ClassifyArguments)}
    assert other not in names
    named = re.findall(r"--(\w+)", REPLACEMENTS[other])
    assert set(named) <= names | {
        "num_processes",
        "inference",
        "dynamo_backend",
        "time_budget",
        "modes",
        "seeds",
    }  # of the launcher, of compare and of search
    assert named or REPLACEMENTS[other].startswith("Remove the flag: ")
    message = f"unknown flag --{other}. {REPLACEMENTS[other]} See"
    with pytest.raises(InputError, match=re.escape(message)):
        parse_classify_arguments([f"--{other}", "1"])
