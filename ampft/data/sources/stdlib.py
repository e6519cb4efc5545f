"""Docstrings of Python's own standard library, classified by the package that they belong to.

Read with `ast` from the running interpreter's sources: nothing is imported or downloaded. The
texts differ a little between Python versions; a run record holds their fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from ampft.errors import InputError, nearest

# The twelve largest that Python 3.11 to 3.14 have and that Debian keeps in libpython3-stdlib:
# tkinter and idlelib are packages of their own there; distutils and lib2to3 went with 3.12 and 3.13
CLASSES = (
    "_pydecimal",
    "asyncio",
    "email",
    "http",
    "importlib",
    "logging",
    "mailbox",
    "multiprocessing",
    "tarfile",
    "turtle",
    "unittest",
    "xml",
)
CONFIGURATIONS = ("summary", "full")
FEWEST_TEXTS = 90
TEST_FOLDERS = frozenset({"test", "tests"})
# Per cent of the hash's range; test is large because a class of 100 texts has to be judged too
SPLIT_ENDS = {"train": 65, "validation": 75, "test": 100}

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def load_stdlib(configuration: str | None = None, *, root: Path | None = None) -> DatasetDict:
    """Read the docstrings.

    Args:
        configuration: `summary`, the first paragraph of each (the default), or `full`, all of it.
        root: The folder of the standard library; None takes the running interpreter's.

    Returns:
        Splits `train`, `validation`, `test` with `text` (string) and `label` (ClassLabel). No text
        stands twice, and none that two packages have is kept. A text's split follows from its
        SHA-256 alone.

    Raises:
        InputError: For an unknown configuration, or when the sources of a class are missing.
    """
    chosen = configuration or CONFIGURATIONS[0]
    if chosen not in CONFIGURATIONS:
        raise InputError(
            f"--dataset_config_name: got {chosen!r}; stdlib has {', '.join(CONFIGURATIONS)}."
            + nearest(chosen, CONFIGURATIONS)
        )
    folder = root or Path(sysconfig.get_paths()["stdlib"])
    labels = distinct_texts(folder, summary=chosen == "summary")
    check_classes(labels, folder)
    return split_by_hash(labels)


def distinct_texts(folder: Path, *, summary: bool) -> dict[str, str]:
    """Return text to class, in the order of the texts, without those that two classes have."""
    labels: dict[str, str] = {}
    ambiguous: set[str] = set()
    for name in CLASSES:
        for source in sources(folder, name):
            for docstring in docstrings(source):
                text = first_paragraph(docstring) if summary else docstring
                if labels.setdefault(text, name) != name:
                    ambiguous.add(text)
    return {text: labels[text] for text in sorted(labels) if text not in ambiguous}


def sources(folder: Path, name: str) -> list[Path]:
    """Return the source files of a module or package, without its tests, sorted."""
    module = folder / f"{name}.py"
    if module.is_file():
        return [module]
    inside = (folder / name).rglob("*.py")
    return sorted(p for p in inside if not TEST_FOLDERS & set(p.relative_to(folder).parts))


def docstrings(source: Path) -> Iterator[str]:
    """Yield the docstrings of a file, indentation and outer blank space removed, none empty."""
    with warnings.catch_warnings():
        # Invalid escapes in others' sources are not this program's business
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(source.read_bytes(), filename=str(source))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
            if text:
                yield text


def first_paragraph(text: str) -> str:
    """Return what stands before the first blank line, on one line."""
    lines = []
    for line in text.splitlines():
        if not line.strip():
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


def check_classes(labels: Mapping[str, str], folder: Path) -> None:
    """Raise InputError when a class has too few texts to be learned and judged."""
    counts = Counter(labels.values())
    short = [name for name in CLASSES if counts[name] < FEWEST_TEXTS]
    if short:
        found = ", ".join(f"{name} {counts[name]}" for name in short)
        raise InputError(
            f"--dataset_name stdlib: the standard library in {folder} has too few docstrings, fewer"
            f" than {FEWEST_TEXTS} for: {found}. Its source files are needed (.py, not only .pyc):"
            " on Debian and Ubuntu `apt install libpython3-stdlib`, on Windows the full installer"
            " rather than the embeddable package. Or name data of your own with --train_file."
        )


def split_of(text: str) -> str:
    """Return the split that a text belongs to, by its SHA-256."""
    position = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return next(split for split, end in SPLIT_ENDS.items() if position < end)


def split_by_hash(labels: Mapping[str, str]) -> DatasetDict:
    """Return the texts in splits, with their classes as `ClassLabel`."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(CLASSES))})
    rows: dict[str, dict[str, list[str]]] = {s: {"text": [], "label": []} for s in SPLIT_ENDS}
    for text, name in labels.items():
        columns = rows[split_of(text)]
        columns["text"].append(text)
        columns["label"].append(name)
    return DatasetDict({s: Dataset.from_dict(c, features=features) for s, c in rows.items()})
