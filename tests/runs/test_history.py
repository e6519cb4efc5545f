"""The rows of a history, by hand."""

import pytest

from ampft.runs.history import HistoryRow


def test_rates_are_per_second():
    row = HistoryRow(
        step=1, epoch=0, loss=0.5, learning_rate=0.1, grad_norm=1.0, loss_scale=None, skipped=False,
        lost_updates=None, examples=12, tokens=100, micro_batches=1, seconds=0.25,
        waiting_share=0.1,
    )  # fmt: skip
    values = row.values()
    assert values["examples_per_second"] == pytest.approx(48)
    assert values["tokens_per_second"] == pytest.approx(400)
    assert values["waiting_share"] == 0.1
