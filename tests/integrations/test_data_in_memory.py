"""Data frames become the same columns as files with the same rows."""

from __future__ import annotations

import pandas as pd
import pytest

from ampft.integrations.data_in_memory import splits_in_memory


@pytest.mark.parametrize("lacking", ["train", "validation"])
def test_a_missing_value_does_not_rename_the_other_labels(lacking):
    values: dict[str, list[int | None]] = {"train": [9, 10, 9], "validation": [10, 9, 10]}
    values[lacking][1] = None
    frames = {s: pd.DataFrame({"text": ["a", "b", "c"], "label": v}) for s, v in values.items()}
    assert frames[lacking]["label"].dtype == float
    data = splits_in_memory(frames)
    for split, expected in values.items():
        read = data[split]["label"][:]
        assert read == expected
        assert not any(isinstance(value, float) for value in read)


def test_fractions_and_floats_without_gaps_stay_as_they_are():
    frame = pd.DataFrame({"a": [1.5, None], "b": [1.0, 2.0], "c": [None, float("inf")]})
    data = splits_in_memory({"train": frame})["train"]
    assert [data[name][:] for name in "ab"] == [[1.5, None], [1.0, 2.0]]
    assert {type(value) for value in data["b"][:]} == {float}
    assert data["c"][1] == float("inf")
