"""Idioms that a reader should not meet in the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ampft"
OF_CONDITIONS = ("is_", "has_", "are_")


def is_condition(node: ast.expr) -> bool:
    """Whether an expression is a truth value, by its form or by its name."""
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Call(func=ast.Name(id="bool")):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return name.lstrip("_").startswith(OF_CONDITIONS) or name in ("any", "all")
    return False


def multiplied_by_conditions(source: str) -> list[str]:
    """The texts and lists of a module that a condition multiplies."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if isinstance(node.left, ast.List | ast.JoinedStr)
        or (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str))
        if is_condition(node.right)
    ]


@pytest.mark.slow
def test_no_condition_multiplies_a_text_or_a_list():
    multiplied = {
        path.relative_to(PACKAGE).as_posix(): each
        for path in PACKAGE.rglob("*.py")
        if (each := multiplied_by_conditions(path.read_text(encoding="utf-8")))
    }
    assert multiplied == {}, "write `text if condition else ''`"


@pytest.mark.parametrize("source", ["'s' * (n != 1)", "[node] * has_nodes", "f'{x}' * bool(y)"])
def test_a_multiplied_text_is_found(source):
    assert multiplied_by_conditions(source)
    assert not multiplied_by_conditions("'-' * width")


def nested_conditionals(source: str) -> list[str]:
    """The conditional expressions of a module that have another one inside."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.IfExp)
        if any(isinstance(each, ast.IfExp) and each is not node for each in ast.walk(node))
    ]


@pytest.mark.slow
def test_no_conditional_expression_is_inside_another():
    nested = {
        path.relative_to(PACKAGE).as_posix(): each
        for path in PACKAGE.rglob("*.py")
        if (each := nested_conditionals(path.read_text(encoding="utf-8")))
    }
    assert nested == {}, "write `if` and `elif`"


def test_a_nested_conditional_expression_is_found():
    assert nested_conditionals("x = 1 if a else 2 if b else 3")
    assert nested_conditionals("x = f\"{'a' if b else 'c'}\" if d else ''")
    assert not nested_conditionals("x = (1 if a else 2) + (3 if b else 4)")


def shadowed_imports(source: str) -> set[str]:
    """The names that a module imports, and that a function of it gives to something else."""
    tree = ast.parse(source)
    names = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    stored = {
        node.id
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return names & stored


@pytest.mark.slow
def test_no_local_has_the_name_of_an_import():
    shadowed = {
        path.relative_to(PACKAGE).as_posix(): each
        for path in PACKAGE.rglob("*.py")
        if (each := shadowed_imports(path.read_text(encoding="utf-8")))
    }
    assert shadowed == {}


def test_a_shadowed_import_is_found():
    assert shadowed_imports("from a import b\ndef f():\n    b = 1") == {"b"}
    assert not shadowed_imports("from a import b\ndef f():\n    c = b")
