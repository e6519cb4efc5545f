"""Imports without a search for garbage."""

from __future__ import annotations

import gc

import pytest

from ampft.imports import no_search_for_garbage


def test_garbage_is_searched_again_after_an_error():
    def fail() -> None:
        with no_search_for_garbage():
            assert not gc.isenabled()
            raise ImportError("torch")

    assert gc.isenabled()
    with pytest.raises(ImportError, match="torch"):
        fail()
    assert gc.isenabled()


def test_a_search_that_the_caller_turned_off_stays_off():
    gc.disable()
    try:
        with no_search_for_garbage():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
