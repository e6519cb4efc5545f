"""Changes one value of a JSON file: what reads it must name the file, or do no harm."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ampft.errors import InputError
from ampft.text.json_io import json_text, values_hash

DEEP = "@deep@"  # replaced in the text: the encoder of JSON cannot write it
CASES = 100  # changes of each file


def signed(values: dict[str, Any]) -> str:
    """Return a record or manifest with the hash of its values made anew, where that is possible."""
    values.pop("sha256", None)
    return json_text({**values, "sha256": values_hash(values)})


def sign(text: str) -> str:
    try:
        values = json.loads(text)
        return signed(values) if isinstance(values, dict) else text
    except (ValueError, RecursionError):
        return text


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value, the whole first; of long lists, a few entries."""
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) // 2, len(value) - 1} - {-1}):
            if value:
                yield from places(value[index], (*path, index))


def changed(values: Any, place: tuple[Any, ...], kind: str) -> str:
    """Return the JSON text with one value changed."""
    values = copy.deepcopy(values)
    if not place:
        return {"delete": "", "repeat": json_text(values) * 2, "deep": "[" * 20_000}.get(
            kind, json.dumps(REPLACED.get(kind, values))
        )
    *parents, last = place
    parent = values
    for key in parents:
        parent = parent[key]
    if kind == "delete":
        del parent[last]
    elif kind == "repeat" and isinstance(parent[last], list):
        parent[last] += parent[last][-1:]
    elif kind == "repeat":
        text = json.dumps(values)
        key = json.dumps(last) if isinstance(last, str) else None
        return text if key is None else text.replace(f"{key}:", f"{key}: 1, {key}:", 1)
    elif kind == "unknown key" and isinstance(parent[last], dict):
        parent[last]["unknown"] = 1
    elif kind == "swapped type":
        parent[last] = [parent[last]] if not isinstance(parent[last], list) else {"0": 1}
    else:
        parent[last] = REPLACED.get(kind, DEEP)
    return json.dumps(values).replace(json.dumps(DEEP), "[" * 20_000 + "]" * 20_000)


REPLACED: dict[str, Any] = {
    "null": None, "text": "unknown", "huge": 10**30, "huge float": 1e308, "negative": -7,
    "nan": float("nan"), "infinity": float("inf"), "empty list": [], "empty object": {},
    "true": True, "half a pair": "\ud800", "zero": 0, "fraction": 0.5,
}  # fmt: skip
KINDS = (*REPLACED, "delete", "repeat", "unknown key", "swapped type", "deep")


def harm(
    original: str,
    names: Sequence[str],
    write: Callable[[str], None],
    read: Callable[[], object],
    *,
    cases: int = CASES,
) -> tuple[int, list[str]]:
    """Return the number of refused changes, and the changes that were not refused as promised.

    Args:
        original: Contents of the file.
        names: Its name, and other files that it describes, one of which a message must have.
        write: Function that writes changed contents, with all hashes made anew.
        read: Function that reads the file and uses what it says.
        cases: Number of changes.
    """
    values = json.loads(original)
    every = [(place, kind) for place in places(values) for kind in KINDS]
    sample = random.Random(0).sample(every, min(cases, len(every)))
    refused, wrong = 0, []
    for place, kind in sample:
        text = changed(values, place, kind)
        write(text)
        try:
            read()
        except InputError as error:
            refused += 1
            if not any(each in str(error) for each in names) or len(str(error)) > 2000:
                wrong.append(f"{place} {kind}: {str(error)[:300]}")
        except Exception as error:
            wrong.append(f"{place} {kind}: {type(error).__name__}: {str(error)[:200]}")
    write(original)
    read()
    return refused, wrong
