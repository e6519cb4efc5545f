"""Which planted mutants do the tests of every push kill?

Run: `python benchmarks mutants --out benchmarks/results/mutants.json --mutants 300 --seed 0`, with
the package `coverage` installed.

Draws mutants of the parts in `PARTS`: a changed comparison, number, `and` or `or`, sign, argument
or returned value, or a removed `not`, keyword or call. Each is planted in a copy of the last
commit. First the tests of `.ci/run` run once, and it is recorded which lines each test and each
shared fixture executes (`--coverage`; delete the folder to measure again). Of the tests that
execute the mutated line, the quickest run until one fails, within `--seconds`; `--again` tries the
survivors with all of them, and with the generated cases. A mutant is killed when a test fails, or
takes too long, that passes without it. Tests run in copies of a process that has imported torch,
but nothing of `ampft`. A second run with the same commit and seed continues the first.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from provenance import command_line, provenance, write_results

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
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
# What tests import that takes long, apart from `ampft`.
IMPORTED = (
    *("torch.distributed.run", "accelerate.commands.launch", "datasets", "evaluate", "pandas"),
    *("pyarrow.parquet", "scipy.stats", "scipy.optimize", "sklearn.metrics", "seqeval.metrics"),
    *("sklearn.linear_model", "hypothesis", "PIL.Image", "soundfile", "openpyxl", "filelock"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.optimization", "transformers.trainer", "transformers.pipelines", "peft"),
    *("onnx", "onnxruntime", "torch.utils.flop_counter", "torch._dynamo", "selenium"),
)
CASES = "tests/oracle/test_oracle.py::test_drawn_cases_agree"
TICK = 0.1  # Seconds between two looks at a process.
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


def copied_commit(folder: Path) -> Path:
    """Return a folder with the files of the last commit."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def warm() -> None:
    """Import what tests import, but nothing of `ampft`, which is another one in each copy."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in list(sys.modules):
        if name.partition(".")[0] in ("ampft", "provenance"):
            del sys.modules[name]
    gc.collect()
    gc.freeze()


class Session:
    """A plugin of pytest: runs chosen tests in their order, and remembers what became of them.

    Args:
        chosen: Ids of the tests in their order; None for all.
        switch: Called with the name of what runs now, a test or a shared fixture.
    """

    def __init__(self, chosen: list[str] | None, switch: Callable[[str], None]) -> None:
        self.chosen, self.switch = chosen, switch
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self.running = [""]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests."""
        if self.chosen is not None:
            place = {name: index for index, name in enumerate(self.chosen)}
            items[:] = sorted(
                (item for item in items if item.nodeid in place), key=lambda i: place[i.nodeid]
            )

    def _enter(self, name: str) -> None:
        self.running.append(name)
        self.switch(name)

    def _leave(self) -> None:
        self.running.pop()
        self.switch(self.running[-1])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record what a test depends on."""
        shared = {
            _name_of(definitions[-1])
            for definitions in item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
            if definitions[-1].scope != "function"
        }
        self.tests[item.nodeid] = {"fixtures": sorted(shared), "seconds": 0.0}
        self._enter(item.nodeid)
        yield
        self._leave()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Record what a shared fixture executes under its own name."""
        if fixturedef.scope == "function":
            yield
            return
        self._enter(_name_of(fixturedef))
        yield
        self._leave()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a file that cannot be read."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the time, and what failed."""
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when != "teardown" and report.nodeid in self.tests:
            self.tests[report.nodeid]["seconds"] += report.duration


def _name_of(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def run_tests(tree: Path, words: list[str], chosen: list[str] | None, measured: Path | None) -> Any:
    """Run tests of a copy of the checkout in this process; return what became of them."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(each for each in sys.path if Path(each) not in (ROOT, HERE))]
    sys.path.insert(1, str(tree / "tests"))
    _fork_servers(measured, tree)
    coverage: Any = None
    if measured is not None:
        coverage = importlib.import_module("coverage").Coverage(
            data_file=measured / "data", data_suffix=True, include=[f"{tree}/ampft/*"],
            config_file=False,
        )  # fmt: skip
        coverage.start()

    def switch(name: str) -> None:
        os.environ["MUTANT_CONTEXT"] = name
        if coverage is not None:
            coverage.switch_context(name)

    session = Session(chosen, switch)
    options = ["--push", "-n", "0", "-q", "-p", "no:cacheprovider", "--tb=short"]
    options += ["-W", "ignore:Module already imported"]  # hypothesis, by this process
    code = pytest.main([*options, f"--basetemp={tree.parent / 'base'}", *words], plugins=[session])
    if coverage is not None:
        coverage.stop()
        coverage.save()
    if code not in (0, 1, 5) and not session.failed:
        session.failed.append(f"pytest ended with {int(code)}")
    return {"tests": session.tests, "failed": session.failed}


def _fork_servers(measured: Path | None, tree: Path) -> None:
    """Let the server of warm processes be a copy of this process, as it is now, when needed."""
    warm_processes: Any = importlib.import_module("warm_processes")
    reading, writing = os.pipe()
    owner = os.getpid()
    if os.fork() == 0:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            address = pipe.readline().strip()
        if address:
            if measured is not None:
                _cover_processes(warm_processes, measured, tree)
            warm_processes.serve(address, owner)
        os._exit(0)
    os.close(reading)

    class Server:
        def poll(self) -> None:
            return None

    def start(address: str, _: int) -> Server:
        os.write(writing, f"{address}\n".encode())
        return Server()

    warm_processes.start_server = start


def _cover_processes(warm_processes: Any, measured: Path, tree: Path) -> None:
    """Record what the processes of a server execute, under the name of the test."""
    run = warm_processes._exit_code

    def covered(words: list[str]) -> int:
        coverage = importlib.import_module("coverage").Coverage(
            data_file=measured / "data", data_suffix=True, include=[f"{tree}/ampft/*"],
            config_file=False, context=os.environ.get("MUTANT_CONTEXT", ""),
        )  # fmt: skip
        coverage.start()
        try:
            return int(run(words))
        finally:
            coverage.stop()
            coverage.save()

    warm_processes._exit_code = covered


def in_a_copy(folder: Path, work: Callable[[], Any], seconds: float) -> Any:
    """Return the result of work in a copy of this process; None if it takes too long.

    Time that this program is stopped does not count.
    """
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            made = work()
            result.write_text(json.dumps(made))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    waited = 0.0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(TICK)
        waited += TICK
        if waited > seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it left behind
    return json.loads(result.read_text()) if result.exists() else {"failed": ["no result"]}


class Covered:
    """Which tests execute which lines, how long they take, and which fail anyway."""

    def __init__(self, folder: Path) -> None:
        read = json.loads((folder / "tests.json").read_text(encoding="utf-8"))
        self.tree, self.tests = read["tree"], read["tests"]
        self.failed = set(read["failed"])
        # Imported by name: it is not a requirement of the tests.
        self.data = importlib.import_module("coverage").CoverageData(str(folder / "data"))
        self.data.read()
        self.users: dict[str, list[str]] = {}
        for name, test in self.tests.items():
            for fixture in test["fixtures"]:
                self.users.setdefault(fixture, []).append(name)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a mutant, those of its part first, then the quickest."""
        by_line = self.data.contexts_by_lineno(f"{self.tree}/{mutant.file}")
        names: set[str] = set()
        for first, last in _places_around(mutant):
            for line in range(first, last + 1):
                for context in by_line.get(line, ()):
                    names.update(self.users.get(context, [context]))
            names &= self.tests.keys() - self.failed
            if names:
                break
        part = next(tests for part, tests in PARTS.items() if mutant.file.startswith(part))
        return sorted(
            names, key=lambda n: (self.tests[n]["seconds"] * (1 if n.startswith(part) else 3), n)
        )


def _places_around(mutant: Mutant) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of the mutant, its statement, its function and its file."""
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    last = mutant.line + mutant.old.count("\n")
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt)
        and node.lineno <= mutant.line
        and last <= (node.end_lineno or 0)
    ]
    functions = [n for n in around if isinstance(n, ast.FunctionDef) and n.body[0].lineno <= last]
    if functions:  # what is outside of functions runs once, for whoever imports it first
        yield mutant.line, last
        inner = max(around, key=lambda node: node.lineno)
        yield inner.lineno, inner.end_lineno or inner.lineno
        inner = max(functions, key=lambda node: node.lineno)
        yield inner.body[0].lineno, inner.end_lineno or inner.lineno
    yield 1, source.count("\n") + 1


def measure(folder: Path) -> None:
    """Run all tests of a push once, and record what each of them executes."""
    folder.mkdir(parents=True)
    tree = copied_commit(folder / "tree")
    made = in_a_copy(folder, lambda: run_tests(tree, [], None, folder), 4 * 3600)
    coverage = importlib.import_module("coverage").Coverage(
        data_file=folder / "data", config_file=False
    )
    coverage.combine([str(folder)])
    coverage.save()
    (folder / "tests.json").write_text(json.dumps({"tree": str(tree), **made}), encoding="utf-8")


def first_failure(tree: Path, tests: list[str], words: list[str], seconds: float) -> str | None:
    """Return the first test that fails in a copy of the checkout; None if all pass."""
    made = in_a_copy(
        tree.parent, lambda: run_tests(tree, ["-x", *words], tests, None), 60 + 4 * seconds
    )
    if made is None:
        return "takes too long"
    return made["failed"][0] if made["failed"] else None


class Judge:
    """Plants mutants in a copy of the checkout and runs the tests that execute them."""

    def __init__(self, folder: Path, covered: Covered) -> None:
        folder.mkdir(exist_ok=True)
        self.tree, self.covered = copied_commit(folder / "tree"), covered
        self.passes: dict[str, bool] = {}

    def outcome(self, mutant: Mutant, seconds: float, *, cases: bool = False) -> dict[str, Any]:
        """Plant a mutant, and return whether a test that passes without it kills it."""
        every = self.covered.tests_of(mutant)
        tests: list[str] = []
        total = 0.0
        for name in every:
            total += self.covered.tests[name]["seconds"]
            if tests and total > seconds:
                break
            tests.append(name)
        path = self.tree / mutant.file
        source = path.read_bytes()
        path.write_bytes(mutant.planted(source))
        self._forget(path)
        try:
            killed_by = None
            if tests:
                files = sorted({name.partition("::")[0] for name in tests})
                killed_by = first_failure(self.tree, tests, files, min(total, seconds))
            if killed_by is None and cases:
                chosen = ["tests/oracle/test_oracle.py", "-k", "drawn", "--cases", "25"]
                killed_by = first_failure(self.tree, [CASES], [*chosen, "--push"], 300)
        finally:
            path.write_bytes(source)
            self._forget(path)
        fails = killed_by is not None and "::" in killed_by and not self._passes(killed_by)
        counts = {"executed by": len(every), "tried": len(tests), "cases": cases}
        return {**asdict(mutant), **counts, "fails without it": fails, "killed by": killed_by}

    def _passes(self, test: str) -> bool:
        """Return whether a test passes without a mutant."""
        if test == CASES:
            return True
        if test not in self.passes:
            file = test.partition("::")[0]
            self.passes[test] = first_failure(self.tree, [test], [file], 300) is None
        return self.passes[test]

    @staticmethod
    def _forget(path: Path) -> None:
        """Remove the bytecode of a file, which only tells changes in another second."""
        for each in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            each.unlink()


def main() -> None:
    """Plant mutants, and write which ones survive after each."""
    parser = command_line(__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed that draws them")
    parser.add_argument("--seconds", type=float, default=30, help="for the tests of one mutant")
    parser.add_argument("--again", action="store_true", help="try survivors with all tests")
    parser.add_argument("--part", default="1/1", help="K/N: only mutants K, K + N, ...")
    parser.add_argument("--coverage", type=Path, help="folder of what each test executes")
    given = parser.parse_args()
    source = provenance()
    number, parts = map(int, given.part.split("/"))
    mutants_ = drawn(given.mutants, given.seed)[number - 1 :: parts]
    lines: list[dict[str, Any]] = []
    if given.out.exists():
        before = json.loads(given.out.read_text(encoding="utf-8"))
        if (before["seed"], before["provenance"]["commit"]) == (given.seed, source["commit"]):
            lines = before["mutants"]
    warm()
    with tempfile.TemporaryDirectory() as name:
        measured = given.coverage or Path(name, "coverage")
        if not measured.exists():
            measure(measured)
        judge = Judge(Path(name, "judge"), Covered(measured))
        for index, mutant in enumerate(mutants_):
            if index == len(lines):
                lines.append(judge.outcome(mutant, given.seconds))
            elif given.again and lines[index]["killed by"] is None and not lines[index]["cases"]:
                lines[index] = judge.outcome(mutant, 20 * given.seconds, cases=True)
            else:
                continue
            print(json.dumps(lines[index]), flush=True)
            judged = [line for line in lines if not line["fails without it"]]
            killed = sum(line["killed by"] is not None for line in judged)
            counts = {"planted": len(lines), "judged": len(judged), "killed": killed}
            result = {"provenance": source, "seed": given.seed, "counts": counts}
            write_results(given.out, {**result, "mutants": lines})


if __name__ == "__main__":
    main()
