"""Tensors of a checkpoint are checked by name, shape and dtype before they are loaded."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from ampft.engine.checkpoints.store import DamagedCheckpoint
from ampft.runs.checkpoint_content import _check_header, _form, _header

TENSORS = {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head.bias": torch.zeros(3)}, r"head.weight is missing, and in this run F32 \[3, 4\]"),
        ({**TENSORS, "more": torch.zeros(1)}, r"more is F32 \[1\], and in this run missing"),
        ({**TENSORS, "head.bias": torch.zeros(4)}, r"bias is F32 \[4\], and in this run F32 \[3\]"),
        ({**TENSORS, "head.bias": torch.zeros(3).half()}, r"head.bias is F16 \[3\]"),
    ],
)
def test_what_differs_is_named(tmp_path, changed, message):
    expected = {name: _form(tensor) for name, tensor in TENSORS.items()}
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    _check_header(path, _header(path), expected)
    save_file(changed, path)
    with pytest.raises(DamagedCheckpoint, match=message):
        _check_header(path, _header(path), expected)
