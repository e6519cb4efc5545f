"""A run says how long it waited for its data, and when that bounds the speed."""

import pytest

from ampft.training.waiting import waiting_note


@pytest.mark.parametrize(
    ("share", "kind", "expected"),
    [
        (0.1, "text", None),
        (None, "image", None),
        (0.1, "image", "10.0 % of the step time was spent waiting for data"),
        (0.3, "text", "for data. Raise --dataloader_num_workers (now 2)."),
        (0.7, "sound", "for data: loading it bounds the speed, not the model. Raise"),
    ],
)
def test_waiting_is_said(share, kind, expected):
    note = waiting_note({"waiting_share": share}, kind, workers=2)
    assert note is None if expected is None else expected in note
