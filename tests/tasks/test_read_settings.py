"""A task lists the settings that it reads, and refuses those of other tasks."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.classify import OptimizerArguments, TaskArguments
from ampft.errors import InputError
from ampft.tasks.loss_settings import LossSettings, ValidationFitSettings
from ampft.tasks.table import TASKS

OTHERS = {f.name for f in dataclasses.fields(ValidationFitSettings)}  # see `check_decision_flags`
OF_LOSSES = {f.name for f in dataclasses.fields(LossSettings)} - OTHERS
VALUES = {
    "class_weights": "balanced", "label_smoothing_factor": "0.1", "focal_gamma": "2",
    "huber_delta": "1", "threshold": "0.3", "label_separator": ";", "label_order": "a,b",
    "inspect_data": None, "metric": "accuracy",
}  # fmt: skip
# Names and training labels of tasks, in each of which all settings of the loss have an effect.
THREE, CODES = ("a", "b", "c"), np.array([0, 1, 2, 0])
LABELLED = {
    "text": (THREE, CODES),
    "ordinal": (THREE, CODES),
    "multi-label": (THREE, np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [1, 0, 0]], bool)),
    "columns": (
        ("x=a", "x=b", "y=a", "y=b"),
        np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 1, 0]], bool),
    ),
    "regression": (("y",), np.array([0.0, 1.0, 2.0, 50.0])),
}
OF_SOME_TASKS = sorted({name for row in TASKS.values() for name in row.flags})


def sources(problem: type) -> Iterator[str]:
    """The sources of `from_settings` of a class, and of those that it calls."""
    for kind in problem.__mro__:
        if "from_settings" in vars(kind) and inspect.isclass(kind):
            source = inspect.getsource(kind.from_settings)
            yield source
            for name in re.findall(r"(\w+)\.from_settings\(", source):
                yield from sources(getattr(sys.modules[kind.__module__], name))
            if "super()" not in source:
                return


@pytest.mark.parametrize("task", TASKS)
def test_a_task_lists_the_settings_of_losses_that_it_reads(task):
    """A setting that is read and not listed would be refused; listed and not read, ignored."""
    problem = TASKS[task].problem_type()
    read = {n for text in sources(problem) for n in re.findall(r"\bsettings\.(\w+)", text)}
    by_class = {"columns": {"class_weights", "threshold"}, "ordinal": TASKS["text"].flags}.get(
        task, set()
    )
    assert read & OF_LOSSES - by_class == TASKS[task].flags & OF_LOSSES - by_class


def test_each_setting_of_a_loss_is_listed_by_a_task():
    forgotten = OF_LOSSES - set(OF_SOME_TASKS)
    assert not forgotten, f"no task lists {forgotten} in its flags, see `TaskRow.flags`"


def given(name: str) -> list[str]:
    assert name in VALUES, f"VALUES has no value of --{name}; add one"
    return [f"--{name}"] if VALUES[name] is None else [f"--{name}", VALUES[name]]


@pytest.mark.add_ons
@pytest.mark.parametrize("name", OF_SOME_TASKS)
def test_a_setting_that_the_task_does_not_read_is_refused(name):
    readers = [task for task, row in TASKS.items() if name in row.flags]
    for task in set(TASKS) - set(readers):
        message = rf"^--{name} has no effect on --task {task}\. Remove it, or use --task \w"
        with pytest.raises(InputError, match=message):
            parse_classify_arguments(["--train_file", "a.csv", "--task", task, *given(name)])
    words = ["--train_file", "a.csv", *given(name)]
    for task in readers:
        parsed = parse_classify_arguments([*words, "--task", task])
        assert getattr(parsed, name) != getattr(ClassifyArguments, name)
    if not {"text", "tokens"} & set(readers):
        with pytest.raises(InputError, match=rf"^--{name} needs --task {readers[0]}"):
            parse_classify_arguments(words)
    else:
        parse_classify_arguments(words)


@pytest.mark.add_ons
@pytest.mark.parametrize("task", LABELLED)
def test_each_setting_of_a_loss_changes_it(task):
    """A setting that `from_settings` reads may still be missing in `loss`."""
    names, labels = LABELLED[task]

    def loss(*words: str) -> float:
        settings = parse_classify_arguments(["--train_file", "a.csv", "--task", task, *words])
        problem = TASKS[task].problem_type().from_settings(names, labels, settings)
        logits = torch.linspace(-2, 1, len(labels) * len(names)).reshape(len(labels), -1)
        return float(problem.loss(logits, torch.from_numpy(labels)))

    of_loss = TASKS[task].flags & (OF_LOSSES - {"threshold"})
    ignored = [name for name in sorted(of_loss) if loss(*given(name)) == loss()]
    assert not ignored, f"`loss` of the problem of --task {task} ignores {', '.join(ignored)}"


def test_loading_data_and_task_reads_nothing_of_the_training():
    """What reads data and makes a task gets no learning rate, so that nobody has to follow it."""
    given = ClassifyArguments(task="regression", train_file="a.csv", seed=7, learning_rate=1e-3)
    read = given.of_task()
    names = {each.name for each in dataclasses.fields(TaskArguments)}
    assert names.isdisjoint(each.name for each in dataclasses.fields(OptimizerArguments))
    assert all(getattr(read, name) == getattr(given, name) for name in names)
    assert (read.number_labels, read.data_kind) == (True, "text")
