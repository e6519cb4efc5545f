"""Tiny runs on the CPU, trained once per process and shared by the tests of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from exported import artifact_of, train_texts


@pytest.fixture(scope="session")
def text_run(tmp_path_factory) -> Path:
    return train_texts(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def onnx_text(text_run, tmp_path_factory) -> Path:
    """A faithful fp32 artifact of `text_run`."""
    return artifact_of(text_run, tmp_path_factory.mktemp("onnx"), "onnx", "fp32")
