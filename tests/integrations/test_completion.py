"""The shell completes commands, flags and values of `ampft`."""

from __future__ import annotations

import subprocess

import pytest
from running import BIN, clean_environment


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ampft pr", {"predict"}),
        ("ampft train --train_f", {"--train_file"}),
        ("ampft train --mixed_precision bf16-true-s", {"bf16-true-stochastic"}),
        ("ampft predict --all", {"--all_probabilities"}),
    ],
)
def test_words_are_completed(tmp_path, line, expected):
    answer = tmp_path / "answer"
    environment = clean_environment(
        _ARGCOMPLETE="1", COMP_LINE=line, COMP_POINT=str(len(line)), _ARGCOMPLETE_IFS="\n",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer), PYTHONWARNINGS="",
    )  # fmt: skip
    subprocess.run([BIN / "ampft"], env=environment, check=True, timeout=60, capture_output=True)
    assert {word.strip() for word in answer.read_text().split("\n")} == expected
