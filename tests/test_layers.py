"""The layers: no upward imports, and imports without side effects."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ampft.registry import ADD_ONS

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "ampft"

# From the bottom up. A module may import from its own layer and from those listed before it.
LAYERS = (
    ("errors",),
    ("registry",),
    ("decision",),
    (
        "text",
        "files",
        "flag",
        "ownership",
        "signals",
        "processes",
        "machine",
        "hub",
        "imports",
        "exit_codes",
    ),
    ("precision",),
    ("data",),
    ("models",),
    ("metrics",),
    ("kinds",),
    ("tasks",),
    ("engine",),
    ("evaluation",),
    ("arguments",),
    ("features",),
    ("runs",),
    ("cli", "commands", "__main__"),
    *((add_on,) for add_on in ADD_ONS),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}


def modules() -> list[Path]:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 50, "the package was moved, so that nothing would be checked"
    return paths


def part(path: Path) -> str:
    """The module or subpackage of ampft that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """The parts of ampft that a module imports, including in functions and for type checkers."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what they import"
            names.add(str(node.module))
            if node.module == "ampft":
                names |= {f"ampft.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("ampft.")}


def violations(path: str, importer: str, tree: ast.AST) -> list[str]:
    return [
        f"{path} imports ampft.{other}, which is in a higher layer"
        for other in sorted(imported(tree))
        if LEVEL.get(other, -1) > LEVEL[importer]
    ]


def checked() -> list[Path]:
    return [path for path in modules() if path != PACKAGE / "__init__.py"]


@pytest.mark.add_ons
def test_every_part_has_a_layer():
    parts = {part(path) for path in checked()}
    assert parts == set(LEVEL)


@pytest.mark.slow
def test_no_module_imports_from_a_higher_layer():
    upward: list[str] = []
    for path in checked():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        upward += violations(str(path.relative_to(REPOSITORY)), part(path), tree)
    assert upward == []


@pytest.mark.parametrize(
    "source",
    [
        "import ampft.engine.step",
        "from ampft.cli import main",
        "from ampft import runs",
        "def late():\n    from ampft.runs.record import RunRecord",
    ],
)
def test_an_import_from_a_higher_layer_is_detected(source):
    assert violations("example.py", "data", ast.parse(source))


def dependencies() -> dict[str, set[str]]:
    """The modules of ampft that each module imports, in functions and for type checkers too."""
    files = {module_name(path): path for path in checked()}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        tree, imports = ast.parse(path.read_text(encoding="utf-8")), set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imports |= (inner & files.keys()) or {str(node.module)}
            elif isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
        graph[name] = imports & files.keys() - {name}
    return graph


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of an import cycle, or an empty list."""
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.slow
def test_no_modules_import_each_other():
    graph = dependencies()
    assert sum(map(len, graph.values())) > 300
    assert cycle(graph) == []


@pytest.mark.slow
def test_an_import_cycle_is_detected():
    graph = dependencies()
    graph["ampft.errors"].add("ampft.runs.run")
    assert {"ampft.errors", "ampft.runs.run"} <= set(cycle(graph))


def test_the_layers_in_the_documentation_are_up_to_date():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = text.split("```")[1].strip().splitlines()
    documented = [re.split(r"\s{2,}", line)[0].split() for line in reversed(block)]
    assert [set(names) for names in documented] == [set(names) for names in LAYERS]


@pytest.mark.add_ons
def test_the_documentation_lists_every_add_on():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", text, re.MULTILINE)
    assert [name for name in rows if name in ADD_ONS] == list(ADD_ONS)


@pytest.mark.slow
def test_nothing_imports_recipes():
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "recipes"], path


@pytest.mark.slow
def test_only_the_metrics_of_evaluate_import_evaluate():
    importers = {
        path.stem
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name == "evaluate" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "evaluate")
    }
    assert importers == {"ampft_classification", "chosen_metrics"}


def test_no_two_files_of_tests_share_a_name():
    """Otherwise pytest cannot import both, which a run of only one of them does not show."""
    alone = [
        path.name
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if not (path.parent / "__init__.py").exists()
        and path.parent.name != "preloaded"  # collected in a process of their own
    ]
    assert [name for name, count in Counter(alone).items() if count > 1] == []


def test_file_names_say_what_is_in_them():
    paths = [*modules(), *(REPOSITORY / "recipes").rglob("*.py")]
    names = {part for path in paths for part in path.relative_to(REPOSITORY).with_suffix("").parts}
    assert not names & VAGUE


@pytest.mark.slow
def test_importing_every_module_has_no_side_effect():
    names = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        for path in modules()
        # A script that `evaluate` loads by its path.
        if path.parent.name != "ampft_classification"
    ]
    # Third-party packages are imported first, so that their side effects are not counted.
    script = f"""
import importlib, os, random, signal, sys, warnings
import accelerate, datasets, evaluate, numpy, pyarrow.parquet, sklearn.linear_model, torch
import transformers.models.auto.modeling_auto
for name in ("torchao.quantization", "bitsandbytes"):  # say which of their parts cannot be loaded
    try:
        importlib.import_module(name)
    except ImportError:
        pass
print("imported", file=sys.stderr, flush=True)

def state():
    signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    numbers = torch.get_rng_state().tolist(), numpy.random.get_state()[2], random.getstate()
    settings = torch.get_num_threads(), torch.get_default_dtype(), len(warnings.filters)
    return signals, numbers, settings, dict(os.environ), list(sys.argv)

before = state()
for name in {names!r}:
    importlib.import_module(name)
for old, new in zip(before, state(), strict=True):
    assert old == new, (old, new)
assert not accelerate.state.PartialState._shared_state, "joined a process group"
assert not torch.cuda.is_initialized(), "started a device"
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    own = done.stderr.rpartition("imported\n")[2]
    assert (done.returncode, done.stdout, own) == (0, "", ""), done.stderr


@pytest.mark.add_ons
def test_the_page_of_the_architecture_names_what_exists():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Where it is decided")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py): (\w+)`", table)
    assert len(named) > 20
    for path, name in named:
        body = ast.parse((PACKAGE / path).read_text(encoding="utf-8")).body
        assert name in {getattr(node, "name", None) for node in body}, f"{path}: {name}"


@pytest.mark.add_ons
def test_few_modules_share_a_name():
    """A name that occurs often says nothing, except of what each add-on or layer has one."""
    counts = Counter(path.name for path in modules())
    of_each = {"__init__.py", "tasks.py", "additions.py", "extension_points.py"}
    assert {name for name, count in counts.items() if count > 2} <= of_each


@pytest.mark.add_ons
def test_the_benchmarks_of_the_laboratory_are_listed_apart():
    listing = subprocess.run(
        [sys.executable, "benchmarks"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    core, _, laboratory = listing.partition("laboratory:\n")
    names = [{line.split()[0] for line in half.splitlines()[1:]} for half in (core, laboratory)]
    assert all(len(each) >= 5 for each in names)
    importers = {
        path.stem
        for path in (REPOSITORY / "benchmarks").glob("*.py")
        if re.search(r"\bampft\.lab\b", path.read_text(encoding="utf-8"))
    }
    assert importers & (names[0] | names[1]) <= names[1]


@pytest.mark.add_ons
def test_every_add_on_has_a_folder_of_tests():
    for add_on in ADD_ONS:
        assert list((REPOSITORY / "tests" / add_on).rglob("test_*.py")), add_on
