"""Which planted mutants do the tests of every push kill?

Run: `python benchmarks mutants --out benchmarks/results/mutants.json --mutants 300 --seed 0`, with
the package `coverage` installed.

Draws mutants of the parts in `PARTS`: a changed comparison, number, `and` or `or`, sign, argument
or returned value, or a removed `not`, keyword or call. The draw is by a hash of the seed, the
function and the change, so that a change elsewhere leaves it as it is. Each mutant is planted in a
copy of the last commit. First the tests of `.ci/run` run once, generated cases too, and it is
recorded which lines each of them and each shared fixture executes: in the folder `--coverage`, a
file for each file of tests, so that an interruption costs one of them, and a changed file alone is
measured again. Of the tests that execute the mutated line, the quickest run until one fails, within
`--seconds`; `--again` tries the survivors for longer. A mutant is killed when a test fails, or
takes too long, that passes without it. Limits are of processor time, so this may be stopped and
continued, or wait for other work. Tests run in copies of a process that has imported torch, but
nothing of `ampft`. A second run continues the first, with the tests of its own commit, and keeps
what was written by hand: the entry `equivalent` of a mutant, with the reason why no test can see
it.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import difflib
import gc
import hashlib
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
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
CASE = "generated case "  # Followed by its number; `.ci/run` runs the first ones of seed 0.
CASES = 25
IDENTITY = ("file", "within", "old", "new", "nth")
TOO_LONG = "takes too long"
NOTHING = ["no result"]  # of a process that was ended
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
    within: str  # Qualified name of the function or class around it.
    nth: int  # Which of the equal changes in it.

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """What stays the same when other code changes."""
        return self.file, self.within, self.old, self.new, self.nth

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
        case ast.Return(value=ast.Constant(value=None | False)):
            return  # the same, or as false; `True` is tried by itself
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()
        case ast.Call():
            yield from _other_arguments(changed)


def _other_arguments(call: ast.Call) -> Iterator[ast.Call]:
    for index, keyword in enumerate(call.keywords):
        if keyword.arg == "strict":  # a guard that no right program meets
            continue
        fewer = copy.deepcopy(call)
        del fewer.keywords[index]
        yield fewer
    has_order = ast.unparse(call.func) not in ("max", "min")
    first, *others = map(ast.dump, call.args[:2]) if call.args else ("",)
    is_starred = any(isinstance(each, ast.Starred) for each in call.args[:2])
    if others and others != [first] and has_order and not is_starred:
        swapped = copy.deepcopy(call)
        swapped.args[:2] = swapped.args[1::-1]
        yield swapped


def places(node: ast.AST, within: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that run, with what they are in: no annotations, messages or texts."""
    yield node, within
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        within = f"{within}.{node.name}".lstrip(".")
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise):
                yield from places(child, within)


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    source = path.read_bytes()
    starts, made = [0], Counter[tuple[str, str, str]]()
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, within in places(ast.parse(source)):
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
            file, nth = str(path.relative_to(ROOT)), made[within, old, new]
            made[within, old, new] += 1
            yield Mutant(file, node.lineno, start, end, old, new, within, nth)


def drawn(number: int, seed: int) -> list[Mutant]:
    """Return mutants of all parts, in an order that depends on each of them and the seed."""
    files = [path for part in PARTS for path in _python_files(ROOT / part)]
    found = [each for path in files for each in mutants(path)]

    def place(mutant: Mutant) -> str:
        return hashlib.sha256(repr((seed, mutant.identity)).encode()).hexdigest()

    return sorted(found, key=place)[:number]


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


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder that this process alone removes, and none of its copies when they end."""
    name = tempfile.mkdtemp()
    try:
        yield name
    finally:
        shutil.rmtree(name, ignore_errors=True)


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
        chosen: Ids of the tests in their order; None for those that are not measured yet.
        recorder: Records what they execute, if given.
    """

    def __init__(self, chosen: list[str] | None, recorder: Recorder | None) -> None:
        self.chosen, self.recorder = chosen, recorder
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
        elif self.recorder is not None:
            # A file is measured as a whole; those of the parts are first, quick ones before others.
            slow = {_file_of(i.nodeid) for i in items if i.get_closest_marker("slow")}
            items[:] = sorted(
                (item for item in items if not self.recorder.has(_file_of(item.nodeid))),
                key=lambda item: (
                    not item.nodeid.startswith(tuple(PARTS.values())),
                    _file_of(item.nodeid) in slow,
                ),
            )

    def _enter(self, name: str) -> None:
        self.running.append(name)
        if self.recorder is not None:
            self.recorder.switch(name)

    def _leave(self) -> None:
        self.running.pop()
        if self.recorder is not None:
            self.recorder.switch(self.running[-1])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Record what a test depends on, and keep what is recorded after the last of a file."""
        shared = {
            _name_of(definitions[-1])
            for definitions in item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
            if definitions[-1].scope != "function"
        }
        file = _file_of(item.nodeid)
        if self.recorder is not None and not self.tests:
            self.recorder.enter(file)
        self.tests[item.nodeid] = {"fixtures": sorted(shared), "seconds": 0.0}
        self._enter(item.nodeid)
        yield
        self._leave()
        if self.recorder is not None and (nextitem is None or _file_of(nextitem.nodeid) != file):
            self.recorder.keep(file, self.tests, self.failed)
            self.tests, self.failed = {}, []

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


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _name_of(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


Lines = dict[str, dict[str, int]]
"""By test or shared fixture, for each mutated file: the number with a bit for each line it runs."""


class Recorder:
    """Records which lines of the mutated files each test, shared fixture and case executes.

    Args:
        folder: What is kept: a file for each file of tests, and what processes have executed since.
        tree: Copy of the checkout whose tests run.
    """

    def __init__(self, folder: Path, tree: Path) -> None:
        self.kept, self.processes = folder / "kept", folder / "processes"
        for path in (self.kept, self.processes):
            path.mkdir(parents=True, exist_ok=True)
        self.tree = tree
        self.included = [str(tree / part / "*") for part in PARTS if not part.endswith(".py")]
        self.included += [str(tree / part) for part in PARTS if part.endswith(".py")]
        self.coverage: Any = None

    def start(self, name: str = "") -> None:
        """Begin to record."""
        # Imported by name: it is not a requirement of the tests.
        self.coverage = importlib.import_module("coverage").Coverage(
            data_file=None, include=self.included, config_file=False
        )
        self.coverage.start()
        self.switch(name)

    def switch(self, name: str) -> None:
        """Record under another name from now on, in processes that start too."""
        os.environ["MUTANT_TEST"] = name
        self.coverage.switch_context(name)

    def enter(self, file: str) -> None:
        """Remember which file of tests runs."""
        (self.processes.parent / "running").write_text(file)

    def skip(self) -> str:
        """Leave out the file whose tests ended the process; return it."""
        file = (self.processes.parent / "running").read_text()
        self._keep(file, {}, [], Lines())
        return file

    def stop(self) -> Lines:
        """Return what was executed since the start."""
        self.coverage.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some files of tests execute no mutated line
            data, lines = self.coverage.get_data(), Lines()
        for path in data.measured_files():
            file = str(Path(path).relative_to(self.tree))
            for line, names in data.contexts_by_lineno(path).items():
                for name in filter(None, names):
                    of_name = lines.setdefault(name, {})
                    of_name[file] = of_name.get(file, 0) | 1 << line
        return lines

    def has(self, file: str) -> bool:
        """Return whether a file of tests is measured, as it is now."""
        path = self._place(file)
        return path.exists() and _read(path)["sha256"] == _sha256(self.tree / file)

    def _place(self, file: str) -> Path:
        return self.kept / f"{file.replace('/', '+')}.json"

    def keep(self, file: str, tests: dict[str, Any], failed: list[str]) -> None:
        """Keep what was executed since the file before, and go on."""
        lines = self.stop()
        for path in self.processes.glob("*.json"):
            merge(lines, _read(path))
            path.unlink()
        self._keep(file, tests, failed, lines)
        self.start()

    def _keep(self, file: str, tests: dict[str, Any], failed: list[str], lines: Lines) -> None:
        self._write(self._place(file), {
            "sha256": _sha256(self.tree / file), "commit": _commit(), "tests": tests,
            "failed": failed, "lines": lines,
        })  # fmt: skip

    def of_process(self, work: Callable[[], Any]) -> Any:
        """Return the result of work in a process of its own, and leave what it executed."""
        self.start(os.environ.get("MUTANT_TEST", ""))
        try:
            return work()
        finally:
            self._write(self.processes / f"{uuid.uuid4()}.json", self.stop())

    @staticmethod
    def _write(path: Path, content: Any) -> None:
        path.with_suffix(".new").write_text(json.dumps(content), encoding="utf-8")
        path.with_suffix(".new").rename(path)  # complete or not there


def merge(lines: Lines, others: Lines) -> None:
    """Add what was executed elsewhere."""
    for name, files in others.items():
        of_name = lines.setdefault(name, {})
        for file, bits in files.items():
            of_name[file] = of_name.get(file, 0) | bits


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _commit() -> str:
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout[:-1]


def _enter_tree(tree: Path) -> None:
    """Let this process import from a copy of the checkout."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(each for each in sys.path if Path(each) not in (ROOT, HERE))]
    sys.path.insert(1, str(tree / "tests"))


def run_tests(
    tree: Path, words: list[str], chosen: list[str] | None, recorder: Recorder | None = None
) -> list[str]:
    """Run tests of a copy of the checkout in this process; return which ones fail."""
    _enter_tree(tree)
    _fork_servers(recorder)
    if recorder is not None:
        recorder.start()
    session = Session(chosen, recorder)
    options = ["--push", "-n", "0", "-q", "-p", "no:cacheprovider", "--tb=short"]
    options += ["-W", "ignore:Module already imported"]  # hypothesis, by this process
    code = pytest.main([*options, f"--basetemp={tree.parent / 'base'}", *words], plugins=[session])
    if code not in (0, 1, 5) and not session.failed:
        session.failed.append(f"pytest ended with {int(code)}")
    return session.failed


def run_cases(tree: Path, numbers: list[int], recorder: Recorder | None = None) -> list[str]:
    """Run generated cases from a copy of the checkout; return the first that fails.

    A recorder keeps what each of them executes, and all of them run.
    """
    _enter_tree(tree)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would be missing in a copy
    for name in ("ampft.cli", "ampft.runs.run", "ampft.runs.prepare"):
        importlib.import_module(name)
    one: Any
    plan: Any
    product: Any
    one, plan, product = (
        importlib.import_module(f"oracle.{name}") for name in ("one", "plan", "product")
    )
    if recorder is not None:
        forked = product.forked
        product.forked = lambda work: forked(lambda: recorder.of_process(work))
    tests, failed = {}, []
    for number, case in enumerate(itertools.islice(plan.cases(0), CASES)):
        if number in numbers:
            name = f"{CASE}{number}"
            os.environ["MUTANT_TEST"] = name
            result = one.run_case(case, tree.parent / "case")
            tests[name] = {"fixtures": [], "seconds": result.seconds}
            failed += [name] if result.found else []
            if failed and recorder is None:
                break
    if recorder is not None:
        recorder.start()
        recorder.keep("tests/oracle/plan.py", tests, failed)
    return failed


def _fork_servers(recorder: Recorder | None) -> None:
    """Let the server of warm processes be a copy of this process, as it is now, when needed."""
    warm_processes: Any = importlib.import_module("warm_processes")
    reading, writing = os.pipe()
    owner = os.getpid()
    if os.fork() == 0:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            address = pipe.readline().strip()
        if address:
            if recorder is not None:
                run = warm_processes._exit_code
                warm_processes._exit_code = lambda words: recorder.of_process(lambda: run(words))
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


def in_a_copy(folder: Path, work: Callable[[], Any], seconds: float) -> Any:
    """Return the result of work in a copy of this process; None if it takes too long.

    It takes too long when it has used that many seconds of processors, or waits for five times as
    long. Time that this program is stopped does not count.
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
    waits = 0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(TICK)
        waits += 1
        used = _processor_seconds(child) if waits % 20 == 0 else 0.0
        if max(used, waits * TICK / 5) > seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it left behind
    return json.loads(result.read_text()) if result.exists() else NOTHING


def _processor_seconds(process: int) -> float:
    """Return what a process and those that it started have used."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        family = [psutil.Process(process)]
        for each in [*family, *family[0].children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += sum(each.cpu_times()[:4])
    return total


class Covered:
    """Which tests execute which lines, how long they take, and which fail anyway."""

    def __init__(self, folder: Path) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        self.lines: list[tuple[str, Lines]] = []  # Each with the commit of the numbers of lines.
        for path in sorted((folder / "kept").glob("*.json")):
            kept = _read(path)
            self.tests |= kept["tests"]
            self.failed |= set(kept["failed"])
            self.lines.append((kept["commit"], kept["lines"]))
        self.users: dict[str, list[str]] = {}
        for name, test in self.tests.items():
            for fixture in test["fixtures"]:
                self.users.setdefault(fixture, []).append(name)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a mutant: quick ones of its part first, of many files."""
        names: set[str] = set()
        for first, last in _places_around(mutant):
            for commit, lines in self.lines:
                then = lines_then(commit, mutant.file)
                wanted = sum(1 << then[line] for line in range(first, last + 1) if line in then)
                for name, files in lines.items():
                    if files.get(mutant.file, 0) & wanted:
                        names.update(self.users.get(name, [name]))
            names &= self.tests.keys() - self.failed
            if names:
                break
        part = next(tests for part, tests in PARTS.items() if mutant.file.startswith(part))
        counts: dict[str, int] = {}
        places = {}
        for name in sorted(names, key=lambda name: (self.tests[name]["seconds"], name)):
            file = _file_of(name)
            counts[file] = counts.get(file, 0) + 1
            distance = 1 if name.startswith(part) else 3
            places[name] = (self.tests[name]["seconds"] + 0.05) * distance * counts[file]
        return sorted(names, key=lambda name: (places[name], name))


@cache
def lines_then(commit: str, file: str) -> dict[int, int]:
    """Return which number the lines of a file had in a commit."""
    words = ["git", "show", f"{commit}:{file}"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    now = (ROOT / file).read_text(encoding="utf-8").splitlines()
    matcher = difflib.SequenceMatcher(None, shown.splitlines(), now, autojunk=False)
    blocks = matcher.get_matching_blocks()
    return {b + i + 1: a + i + 1 for a, b, size in blocks for i in range(size)}


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
        below = [each for each in ast.walk(inner) if isinstance(each, ast.stmt) and each != inner]
        end = min((each.lineno - 1 for each in below), default=inner.end_lineno or inner.lineno)
        yield inner.lineno, max(end, inner.lineno)  # without a block, which may not be entered
        inner = max(functions, key=lambda node: node.lineno)
        yield inner.body[0].lineno, inner.end_lineno or inner.lineno
    yield 1, source.count("\n") + 1


def measure(folder: Path, files: list[str]) -> None:
    """Run what is not measured yet of the tests of a push, and keep what each of them executes."""
    with temporary_folder() as name:
        tree = copied_commit(Path(name, "tree"))
        recorder = Recorder(folder, tree)
        if not recorder.has("tests/oracle/plan.py"):
            in_a_copy(folder, lambda: run_cases(tree, [*range(CASES)], recorder), 3600)
        work = partial(run_tests, tree, files, None, recorder)
        while in_a_copy(folder, work, 4 * 3600) == NOTHING:
            file = recorder.skip()
            print(f"{file} ended the process: its tests are not counted", flush=True)
            shutil.copy(folder / "log", folder / f"{file.replace('/', '+')}.log")


def first_failure(tree: Path, names: list[str], seconds: float) -> str | None:
    """Return the first test or case that fails in a copy of the checkout; None if all pass."""
    tests = [name for name in names if not name.startswith(CASE)]
    files = sorted({_file_of(name) for name in tests})
    cases = [int(name.removeprefix(CASE)) for name in names if name.startswith(CASE)]
    for wanted, work in (
        (tests, lambda: run_tests(tree, ["-x", *files], tests)),
        (cases, lambda: run_cases(tree, cases)),
    ):
        failed = in_a_copy(tree.parent, work, 60 + 4 * seconds) if wanted else []
        if failed is None:
            return TOO_LONG
        if failed:
            return str(failed[0])
    return None


class Judge:
    """Plants mutants in a copy of the checkout and runs the tests that execute them."""

    def __init__(self, folder: Path, covered: Covered) -> None:
        folder.mkdir(exist_ok=True)
        self.tree, self.covered = copied_commit(folder / "tree"), covered
        self.passes: dict[str, bool] = {}

    def outcome(self, mutant: Mutant, seconds: float) -> dict[str, Any]:
        """Plant a mutant, and return whether a test that passes without it kills it."""
        start = time.perf_counter()
        every = self.covered.tests_of(mutant)
        tests: list[str] = []
        total = 0.0
        for name in every:
            if tests and total + self.covered.tests[name]["seconds"] > seconds:
                continue
            total += self.covered.tests[name]["seconds"]
            tests.append(name)
        path = self.tree / mutant.file
        source = path.read_bytes()
        assert source == (ROOT / mutant.file).read_bytes(), (
            "commit first: the last commit is judged"
        )
        path.write_bytes(mutant.planted(source))
        self._forget(path)
        try:
            killed_by = first_failure(self.tree, tests, min(total, seconds)) if tests else None
        finally:
            path.write_bytes(source)
            self._forget(path)
        fails = killed_by in self.covered.tests and not self._passes(str(killed_by))
        if killed_by == TOO_LONG:  # the tests, or the machine
            fails = first_failure(self.tree, tests, min(total, seconds)) == TOO_LONG
        took = round(time.perf_counter() - start, 1)
        counts = {"executed by": len(every), "tried": len(tests), "seconds": took}
        return {**asdict(mutant), **counts, "fails without it": fails, "killed by": killed_by}

    def _passes(self, test: str) -> bool:
        """Return whether a test passes without a mutant."""
        if test not in self.passes:
            self.passes[test] = first_failure(self.tree, [test], 300) is None
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
    parser.add_argument("--again", type=float, help="try survivors for this many seconds")
    parser.add_argument("--coverage", type=Path, required=True, help="folder of what tests execute")
    parser.add_argument("--measured", action="store_true", help="measure no more of it")
    parser.add_argument("--files", nargs="*", default=[], help="measure only these files of tests")
    given = parser.parse_args()
    source = provenance()
    mutants_ = drawn(given.mutants, given.seed)
    lines: dict[Mutant, dict[str, Any]] = {}
    if given.out.exists():
        content = json.loads(given.out.read_text(encoding="utf-8"))
        before = {tuple(each.get(n) for n in IDENTITY): each for each in content["mutants"]}
        lines = {m: before[m.identity] | asdict(m) for m in mutants_ if m.identity in before}
    warm()
    folder = given.coverage.resolve()
    if not given.measured:
        measure(folder, given.files)
    with temporary_folder() as name:
        judge = Judge(Path(name, "judge"), Covered(folder))
        for mutant in mutants_:
            line = lines.get(mutant, {})
            if line and (line["killed by"] or "equivalent" in line or not given.again):
                continue
            lines[mutant] = line | judge.outcome(mutant, given.again or given.seconds)
            print(json.dumps(lines[mutant]), flush=True)
            written = [lines[each] for each in mutants_ if each in lines]
            result = {"provenance": source, "seed": given.seed, "counts": counts(written)}
            write_results(given.out, {**result, "mutants": written})


def counts(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many mutants were planted, how many can be killed, and which share was."""
    equivalent = sum("equivalent" in line for line in lines)
    judged = [x for x in lines if not x["fails without it"] and "equivalent" not in x]
    killed = sum(line["killed by"] is not None for line in judged)
    return {
        "planted": len(lines), "equivalent": equivalent, "judged": len(judged), "killed": killed,
        "share": round(killed / max(1, len(judged)), 3),
    }  # fmt: skip


if __name__ == "__main__":
    main()
