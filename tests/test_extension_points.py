"""Extension points: what add-ons add is returned, and what is absent is said."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import ampft
from ampft.errors import InputError
from ampft.registry import ExtensionPoint

PACKAGE = Path(ampft.__file__).parent


def test_what_was_added_is_returned_and_imported_late():
    loaded: list[str] = []
    point = ExtensionPoint[str]("lab", "names things")
    point.add(lambda: loaded.append("first") or "first")
    assert loaded == []
    assert (point.get(), point.require(), point.all()) == ("first", "first", ["first"])
    point.add(lambda: "second")
    assert point.all() == ["first", "second"]
    with pytest.raises(AssertionError, match="several add-ons"):
        point.get()


def test_an_absent_add_on_is_named():
    point = ExtensionPoint[str]("lab", "names things")
    assert (point.get(), point.all()) == (None, [])
    with pytest.raises(InputError, match=r"^`ampft/lab` is absent, which names things\.$"):
        point.require()


@pytest.mark.parametrize(
    "module",
    [
        ".".join(path.with_suffix("").relative_to(PACKAGE.parent).parts)
        for path in PACKAGE.rglob("extension_points.py")
    ],
)
def test_every_extension_point_names_the_add_on_that_adds_to_it(module):
    points = [
        each for each in vars(import_module(module)).values() if isinstance(each, ExtensionPoint)
    ]
    for point in points:
        adding = {load.__module__.split(".")[1] for load in point._loaders}
        empty = ExtensionPoint[object](point._add_on, point._purpose)
        with pytest.raises(InputError, match="is absent") as error:
            empty.require()
        name = str(error.value).split("`")[1].removeprefix("ampft/")
        assert (PACKAGE / name / "additions.py").is_file(), name
        assert not adding or name in adding
