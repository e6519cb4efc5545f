"""JSON text reads back equal, without NaN and without control characters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ampft.text.json_io import json_text

ROUND_TRIP = [
    "plain",
    "日本語",
    "a\x7fb\x85c",
    "\u202eabc\u200f",
    "\u2028",
    "\U000e0001",
    'a"\\\n',
    "\ud800",
]


@pytest.mark.parametrize("text", ROUND_TRIP, ids=ascii)
def test_text_reads_back_and_is_inert(text: str):
    written = json_text({text: text})
    assert json.loads(written) == {text: text}
    assert written.isprintable() or written.replace("\n", "").isprintable()
    written.encode("utf-8")


def test_values_become_json():
    values = {
        "path": Path("a/b"),
        "scalar": np.float32(0.5),
        "bad": [float("inf"), float("nan"), np.float64("nan")],
        "set": {3, 1},
        1: True,
    }
    assert json.loads(json_text(values)) == {
        "path": "a/b",
        "scalar": 0.5,
        "bad": [None, None, None],
        "set": [1, 3],
        "1": True,
    }


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="object is not a JSON value"):
        json_text({"device": object()})
