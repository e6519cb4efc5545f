"""Which planted mutants do the tests of every push kill?

Run: `python benchmarks mutants --out benchmarks/results/mutants.json --mutants 300 --seed 0`.

Draws mutants of the parts in `PARTS`: a changed comparison, number, `and` or `or`, sign, argument
or returned value, or a removed `not`, keyword or call. Each is planted in a copy of the last
commit. Of the tests of `.ci/run`, those run that are in a file that imports the mutated module, or
in the folder of its part, so a test elsewhere may still kill a survivor. A mutant is killed when a
test fails, or takes too long, that passes without it. A second run with the same commit and seed
continues the first.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from provenance import command_line, provenance, write_results

ROOT = Path(__file__).resolve().parent.parent
# What is mutated, and the folder or file of its tests.
PARTS = {
    "ampft/data": "tests/data",
    "ampft/engine": "tests/engine",
    "ampft/metrics": "tests/metrics",
    "ampft/comparison/statistics": "tests/comparison/statistics",
    "ampft/decision.py": "tests/test_decision.py",
    "ampft/runs": "tests/runs",
    "ampft/labels": "tests/labels",
    "ampft/words": "tests/words",
    "ampft/features": "tests/features",
    "ampft/export/certificate": "tests/export/certificate",
}
SECONDS = 900  # for the tests of one mutant
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place of a file."""

    file: str  # Path from the root of the checkout.
    line: int
    start: int  # First byte that is replaced.
    end: int  # The byte after the last one.
    old: str
    new: str

    def planted(self, source: bytes) -> bytes:
        """Return the source with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of a node."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            changed.ops = [COMPARISONS[type(operator)]()]
            yield changed
        case ast.BoolOp():
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield changed.operand
        case ast.BinOp(op=operator) if type(operator) in SIGNS:
            changed.op = SIGNS[type(operator)]()
            yield changed
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()
        case ast.Call():
            yield from _other_arguments(changed)


def _other_arguments(call: ast.Call) -> Iterator[ast.Call]:
    for index in range(len(call.keywords)):
        fewer = copy.deepcopy(call)
        del fewer.keywords[index]
        yield fewer
    if len(call.args) > 1 and not any(isinstance(each, ast.Starred) for each in call.args[:2]):
        swapped = copy.deepcopy(call)
        swapped.args[:2] = swapped.args[1::-1]
        yield swapped


def places(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run: no annotations, decorators, messages or texts."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise):
                yield from places(child)


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in places(ast.parse(source)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for changed in replacements(node):
            new = ast.unparse(ast.fix_missing_locations(changed))
            new = f"({new})" if isinstance(node, ast.expr) else new
            old = source[start:end].decode()
            yield Mutant(str(path.relative_to(ROOT)), node.lineno, start, end, old, new)


def drawn(number: int, seed: int) -> list[Mutant]:
    """Return mutants of all parts, in an order that depends on the seed alone."""
    files = [path for part in PARTS for path in sorted(_python_files(ROOT / part))]
    found = [each for path in files for each in mutants(path)]
    random.Random(seed).shuffle(found)
    return found[:number]


def _python_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("*.py"))


def tests_of(file: str) -> list[str]:
    """Return the test files of a mutated file: those that import it first, then its part's."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = module.rpartition(".")
    imports = re.compile(
        rf"\b{re.escape(module)}\b|from {re.escape(parent)} import .*\b{re.escape(name)}\b"
    )
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    direct = [path for path in files if imports.search(path.read_text(encoding="utf-8"))]
    part = next(tests for part, tests in PARTS.items() if file.startswith(part))
    others = sorted(path for path in _python_files(ROOT / part) if path.name.startswith("test_"))
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys([*direct, *others])]


def first_failure(tree: Path, tests: list[str]) -> str | None:
    """Return the first test that fails in a copy of the checkout; None if all pass."""
    command = [sys.executable, "-m", "pytest", "--push", "-n", "0", "-x", "-q", "-p"]
    command += ["no:cacheprovider", "--tb=no", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "takes too long"
    if done.returncode in (0, 5):  # 5: no test was selected
        return None
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return named[1] if named else (done.stdout + done.stderr).strip().splitlines()[-1]


def outcome(tree: Path, mutant: Mutant) -> dict[str, object]:
    """Plant a mutant, and return whether a test that passes without it kills it."""
    path, tests = tree / mutant.file, tests_of(mutant.file)
    source = path.read_bytes()
    path.write_bytes(mutant.planted(source))
    try:
        killed_by = first_failure(tree, tests)
    finally:
        path.write_bytes(source)
    again = tests
    if killed_by is not None and "::" in killed_by:
        again = [killed_by]
    fails_anyway = killed_by is not None and first_failure(tree, again) is not None
    return {"fails without it": fails_anyway, "killed by": killed_by, **asdict(mutant)}


def copied_commit(folder: Path) -> Path:
    """Return a folder with the files of the last commit."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def main() -> None:
    """Plant mutants, and write which ones survive after each."""
    parser = command_line(__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed that draws them")
    given = parser.parse_args()
    source = provenance()
    lines: list[dict[str, object]] = []
    if given.out.exists():
        before = json.loads(given.out.read_text(encoding="utf-8"))
        if (before["seed"], before["provenance"]["commit"]) == (given.seed, source["commit"]):
            lines = before["mutants"]
    with tempfile.TemporaryDirectory() as name:
        tree = copied_commit(Path(name))
        for mutant in drawn(given.mutants, given.seed)[len(lines) :]:
            lines.append(outcome(tree, mutant))
            print(json.dumps(lines[-1]), flush=True)
            judged = [line for line in lines if not line["fails without it"]]
            killed = sum(line["killed by"] is not None for line in judged)
            counts = {"planted": len(lines), "judged": len(judged), "killed": killed}
            result = {"provenance": source, "seed": given.seed, "counts": counts}
            write_results(given.out, {**result, "mutants": lines})


if __name__ == "__main__":
    main()
