"""Nobody asks "which kind of data?" or "which kind of label?" outside the homes of both."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampft.tasks.table import TASKS

PACKAGE = Path(__file__).parents[1] / "ampft"
HOMES = ("data", "kinds", "tasks", "labels", "words", "media", "own", "integrations")
NAMES = {*TASKS, *(row.kind.name for row in TASKS.values())}
ASKED = {"kind", "data_kind", "task"}
# Modules that know no single kind: tables, protocols, rows of any kind.
GENERAL = {
    "ampft.media.masks",
    *("ampft.kinds", "ampft.kinds.inputs", "ampft.kinds.prediction", "ampft.kinds.rows"),
    *(
        "ampft.kinds.logits",
        "ampft.integrations.pipeline_answers",
        "ampft.kinds.input_settings",
        "ampft.kinds.views",
    ),
    *(
        "ampft.tasks",
        "ampft.tasks.table",
        "ampft.tasks.outcome",
        "ampft.tasks.task",
        "ampft.tasks.report",
    ),
}


def questions(tree: ast.AST) -> Iterator[str]:
    """Yield the places of a module that ask for a kind of data or for the type of an outcome."""
    concrete = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module not in GENERAL:
            package = ".".join(str(node.module).split(".")[:2])
            if package.removeprefix("ampft.") in ("kinds", "tasks", "labels", "words", "media"):
                concrete |= {alias.asname or alias.name for alias in node.names}
            if package == "ampft.kinds":
                yield f"line {node.lineno}: imports {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _names_a_kind(node):
            yield f"line {node.lineno}: compares with the name of a kind"
        elif isinstance(node, ast.Dict) and _has_an_entry_per_kind(node):
            yield f"line {node.lineno}: has an entry per kind"
        elif isinstance(node, ast.Call) and _last_name(node.func) == "isinstance":
            types = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            if types & concrete:
                yield f"line {node.lineno}: asks for a type"


def _names_a_kind(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    asked = {_last_name(side) for side in sides} & ASKED
    return bool(asked and NAMES & {text for side in sides for text in _strings(side)})


def _has_an_entry_per_kind(node: ast.Dict) -> bool:
    keys = {text for key in node.keys if key is not None for text in _strings(key)}
    return len(keys) > 1 and keys <= NAMES


def _last_name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _strings(node: ast.AST) -> set[str]:
    found = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {value for value in found if isinstance(value, str)}


@pytest.mark.slow
def test_nobody_asks_for_a_kind():
    paths = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in HOMES]
    assert len(paths) > 200
    found = [
        f"{path.relative_to(PACKAGE)}, {question}"
        for path in paths
        for question in questions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.add_ons
@pytest.mark.parametrize(
    "source",
    [
        "if record.data.kind == 'text': pass",
        "found = args.task in ('images', 'sounds')",
        "if 'pixels' != data_kind: pass",
        "NOUNS = {'text': 'texts', 'token': 'sentences'}",
        "from ampft.kinds.text import TextReader",
        "from ampft.tasks.single_label import Predictions\nisinstance(outcome, Predictions)",
        "from ampft.labels.multi_label import MultiLabel as M\nisinstance(x, (int, M))",
    ],
)
def test_a_question_is_found(source):
    assert list(questions(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "if comparison.kind == TRAINING: pass",
        "table = {'text': text, 'label': label}",
        "from ampft.tasks.outcome import TunableOutcome\nisinstance(outcome, TunableOutcome)",
        "if task_row(record).kind.has_words: pass",
    ],
)
def test_other_questions_are_not(source):
    assert not list(questions(ast.parse(source)))
