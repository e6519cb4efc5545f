"""Extension points: what add-ons add is returned, and what is absent is said."""

from __future__ import annotations

import pytest

from ampft.errors import InputError
from ampft.registry import ExtensionPoint


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
