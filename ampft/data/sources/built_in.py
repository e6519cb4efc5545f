"""The data sets that need no download: digits of scikit-learn, and docstrings of Python.

The docstrings of the standard library are classified by the package that they belong to. They are
read with `ast` from the running interpreter's sources: nothing is imported or downloaded. The
texts differ a little between Python versions; a run record holds their fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from PIL import Image as PILImage
from sklearn.model_selection import train_test_split

from ampft.data.request import CONFIGURATIONS
from ampft.errors import InputError, did_you_mean

MAX_PIXEL = 16  # scikit-learn's pixels are 0 to 16


def load_digits(*, split_seed: int = 0) -> DatasetDict:
    """Return 1,797 images of digits, 8 x 8 grey values of 0 to 255, in three stratified splits.

    Args:
        split_seed: Seed of the split: 65 % `train`, 10 % `validation`, 25 % `test`.

    Returns:
        Splits with `image` (PIL, mode `L`) and `label` (ClassLabel `0` to `9`).
    """
    from sklearn.datasets import load_digits as read_digits  # 0.3 s, for no other data

    digits = read_digits()
    pixels = np.rint(digits.images * (255 / MAX_PIXEL)).astype(np.uint8)
    indices = np.arange(len(pixels))
    rest, test = train_test_split(
        indices, test_size=0.25, stratify=digits.target, random_state=split_seed
    )
    train, validation = train_test_split(
        rest, test_size=0.10 / 0.75, stratify=digits.target[rest], random_state=split_seed
    )
    features = Features({"image": Image(), "label": ClassLabel(names=[str(d) for d in range(10)])})
    chosen = {"train": train, "validation": validation, "test": test}
    return DatasetDict(
        {
            split: Dataset.from_dict(
                {
                    "image": [PILImage.fromarray(pixels[i]) for i in rows],
                    "label": digits.target[rows].tolist(),
                },
                features=features,
            )
            for split, rows in ((split, np.sort(rows)) for split, rows in chosen.items())
        }
    )


# The twelve largest packages of Python 3.11 to 3.14 that Debian has in libpython3-stdlib. It has
# tkinter and idlelib in separate packages; distutils and lib2to3 were removed in 3.12 and 3.13.
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
MIN_TEXTS = 90
TEST_FOLDERS = frozenset({"test", "tests"})
# Per cent of the range of the hash; test is large because some classes have only 100 texts.
SPLIT_ENDS = {"train": 65, "validation": 75, "test": 100}

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def load_stdlib(configuration: str | None = None, *, root: Path | None = None) -> DatasetDict:
    """Read the docstrings.

    Args:
        configuration: `summary`, the first paragraph of each (the default), or `full`, all of it.
        root: Folder of the standard library; None uses the running interpreter's.

    Returns:
        Splits `train`, `validation`, `test` with `text` (string) and `label` (ClassLabel). The
        texts are distinct, and those that two packages have are removed. The split of a text
        depends only on its SHA-256.

    Raises:
        InputError: The configuration is unknown, or sources of a class are missing.
    """
    chosen = configuration or CONFIGURATIONS[0]
    if chosen not in CONFIGURATIONS:
        raise InputError(
            f"--dataset_config_name: received {chosen!r}; stdlib has {', '.join(CONFIGURATIONS)}."
            + did_you_mean(chosen, CONFIGURATIONS)
        )
    folder = root or Path(sysconfig.get_paths()["stdlib"])
    labels = distinct_texts(folder, summary=chosen == "summary")
    counts = Counter(labels.values())
    short = [f"{name} {counts[name]}" for name in CLASSES if counts[name] < MIN_TEXTS]
    if short:
        raise InputError(
            f"--dataset_name stdlib: the standard library in {folder} has too few docstrings, fewer"
            f" than {MIN_TEXTS} for: {', '.join(short)}. Its source files are needed (.py, not only"
            " .pyc): on Debian and Ubuntu `apt install libpython3-stdlib`, on Windows the full"
            " installer instead of the embeddable package. Or pass your own data with --train_file."
        )
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(CLASSES))})
    rows: dict[str, dict[str, list[str]]] = {s: {"text": [], "label": []} for s in SPLIT_ENDS}
    for text, name in labels.items():
        columns = rows[split_by_hash(text)]
        columns["text"].append(text)
        columns["label"].append(name)
    return DatasetDict({s: Dataset.from_dict(c, features=features) for s, c in rows.items()})


def distinct_texts(folder: Path, *, summary: bool) -> dict[str, str]:
    """Return the class of each text, sorted by text, without texts that two classes have.

    Args:
        summary: Whether only the first paragraph is used.
    """
    labels: dict[str, str] = {}
    ambiguous: set[str] = set()
    for name in CLASSES:
        for text in chain.from_iterable(map(docstrings, source_files(folder, name))):
            used = first_paragraph(text) if summary else text
            if labels.setdefault(used, name) != name:
                ambiguous.add(used)
    return {text: labels[text] for text in sorted(labels) if text not in ambiguous}


def source_files(folder: Path, name: str) -> list[Path]:
    """Return the source files of a module or package, without its tests, sorted."""
    module = folder / f"{name}.py"
    if module.is_file():
        return [module]
    files = (folder / name).rglob("*.py")
    return sorted(p for p in files if not TEST_FOLDERS & set(p.relative_to(folder).parts))


def docstrings(source: Path) -> Iterator[str]:
    """Yield the non-empty docstrings of a file without indentation and outer white space."""
    with warnings.catch_warnings():
        # Invalid escapes in these sources do not matter here.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(source.read_bytes(), filename=str(source))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
            if text:
                yield text


def first_paragraph(text: str) -> str:
    """Return the text before the first blank line, on one line."""
    lines = takewhile(str.strip, text.splitlines())
    return " ".join(" ".join(lines).split())


def split_by_hash(text: str) -> str:
    """Return the split that a text belongs to, by its SHA-256."""
    position = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return next(split for split, end in SPLIT_ENDS.items() if position < end)
