"""The files that a flag names: one, several separated by commas, or patterns such as part-*.csv."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ampft.errors import InputError, closest_name

SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini"})
PATTERN = re.compile(r"[*?[]")
BRAT = (
    'Annotations of brat are not read. Write lines such as {"text": "Ann sleeps", "label": [[0, 3, '
    '"PER"]]}, with the places of the .ann files, into a .jsonl file.'
)


def named_files(names: str | Path, flag: str) -> tuple[Path, ...]:
    """Return the files that a flag lists. Files that match a pattern are sorted by name.

    A name that exists is a file, whatever characters it has.

    Args:
        names: Value of the flag.

    Raises:
        InputError: A name is empty, a pattern fits no file, or a file is named twice.
    """
    text = str(names)
    if Path(text).exists():
        return (Path(text),)
    files: list[Path] = []
    for name in (part.strip() for part in text.split(",")):
        if not name:
            raise InputError(f"{flag} {text}: a file name is empty. Remove the extra comma.")
        if Path(name).exists() or not PATTERN.search(name):
            files.append(Path(name))
            continue
        pattern = Path(name)
        folder = Path(pattern.anchor)
        found = sorted(p for p in folder.glob(str(pattern.relative_to(folder))) if p.is_file())
        if not found:
            raise InputError(f"{flag}: no file fits {name}. Check the folder and the pattern.")
        files += found
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise InputError(f"{flag} {text}: {file} is named twice. Remove one of them.")
        seen.add(file.resolve())
    return tuple(files)


def check_file(path: Path, *, flag: str) -> None:
    """Check that a file exists.

    Args:
        flag: The flag that names it, for the message.

    Raises:
        InputError: It does not exist, or it is a folder.
    """
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(
            f"{flag}: {path} is a folder. Pass it with --dataset_name, or its files with a pattern,"
            f" such as {flag} '{path}/*.csv'."
        )
    nearby = path.parent.iterdir() if path.parent.is_dir() else ()
    # By their stems: all names that end in .csv are alike.
    stems = {p.stem: p.name for p in sorted(nearby) if is_visible(p)}
    meant = closest_name(path.stem, stems)
    hint = "" if meant is None else f" Did you mean {stems[meant]!r}?"
    raise InputError(f"{flag}: the file {path} does not exist.{hint}")


def data_stem(names: str) -> str:
    """Return a name for folders: the first file's name without its ending and wildcards.

    Args:
        names: Value of a flag that names files, or the name of a data set.
    """
    stem = Path(names if Path(names).exists() else names.split(",")[0]).stem
    return re.sub(r"[*?\[\]]+", "", stem).strip("-_. ") or "data"


def files_in(folder: Path, outer: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the visible files in a folder and the folders in it, by name; links are followed.

    Args:
        outer: Folders around it, to which no link leads back.
    """
    around = (*outer, folder.resolve())
    for path in sorted(filter(is_visible, folder.iterdir())):
        if path.is_file():
            yield path
        elif path.is_dir() and not any(each.is_relative_to(path.resolve()) for each in around):
            yield from files_in(path, around)


def is_visible(path: Path) -> bool:
    """Return whether a file or folder is neither hidden nor written by a file manager."""
    return not path.name.startswith((".", "__MACOSX")) and path.name.casefold() not in SYSTEM_FILES
