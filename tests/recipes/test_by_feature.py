"""The patterns of PyTorch's AMP examples, one file each, run in every kind of precision."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from representatives import full_except

from ampft.precision.resolve import resolve

REPOSITORY = Path(__file__).parents[2]
RECIPES = sorted((REPOSITORY / "recipes" / "by_feature").glob("*.py"))


def test_there_are_recipes():
    assert len(RECIPES) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("mode", full_except(["fp32", "bf16", "bf16-true", "fp16"], ["fp16"]))
@pytest.mark.parametrize("recipe", RECIPES, ids=[path.stem for path in RECIPES])
def test_it_learns_digits(recipe, mode, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(recipe), mode])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(recipe), run_name="__main__")
    shown = capsys.readouterr()
    accuracies = [float(found) for found in re.findall(r"0\.\d{4}", shown.out.splitlines()[-1])]
    assert accuracies
    assert min(accuracies) > 0.85
    execution = resolve(mode, torch.device("cpu")).execution  # bf16 too is emulated on some CPUs
    assert shown.out.endswith(f"{execution}\n")
    assert shown.err == ""
