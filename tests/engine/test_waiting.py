"""A run says how long it waited for its data, and when that bounds the speed."""

import pytest

from ampft.engine.launch_bound import data_waiting_note


@pytest.mark.parametrize(
    ("share", "has_files", "expected"),
    [
        (0.1, False, None),
        (None, True, None),
        (0.1, True, "10.0 % of the step time was spent waiting for data"),
        (0.3, False, "for data. Raise --dataloader_num_workers (now 2)."),
        (0.7, True, "for data: loading it bounds the speed, not the model. Raise"),
    ],
)
def test_waiting_is_said(share, has_files, expected):
    note = data_waiting_note({"waiting_share": share}, workers=2, has_files=has_files)
    assert note is None if expected is None else expected in note
