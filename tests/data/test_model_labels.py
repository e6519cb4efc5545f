"""The labels of data under the names of a model that is only evaluated, by hand."""

from __future__ import annotations

import pytest

from ampft.data.model_labels import ModelLabels


@pytest.mark.parametrize(
    ("model", "own", "declared", "expected"),
    [
        (("LABEL_0", "LABEL_1"), ("pos", "neg"), ("neg", "pos"), ("LABEL_1", "LABEL_0")),
        # The model's labels have a meaning, and their order says nothing about others.
        (("bad", "good"), ("pos", "neg"), ("neg", "pos"), None),
        (("LABEL_0", "LABEL_1", "LABEL_2"), ("pos", "neg"), ("neg", "pos"), None),
        (("bad", "good"), ("Good", "bad"), ("bad", "Good"), ("good", "bad")),
        (("bad", "good"), ("1", "0"), None, ("good", "bad")),
        (("LABEL_0", "LABEL_1"), ("pos", "neg"), None, ("LABEL_1", "LABEL_0")),
    ],
)
def test_a_declared_order_gives_only_unnamed_labels_a_meaning(model, own, declared, expected):
    found, _ = ModelLabels(model, "m")._found(own, declared)
    assert found == (None if expected is None else dict(zip(own, expected, strict=True)))
