"""A feature is added in one file and one line, and its run resumes bit for bit.

The example writes the cosine between the gradients of successive steps into the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import CLASSIFY, call_here
from torch import Tensor

from ampft.features.feature import Feature, SavedFeature, Write
from ampft.runs import run_state
from ampft.runs.prepared import Prepared


class SuccessiveGradients(Feature):
    """The cosine between each gradient and the one before; the loss scale cancels."""

    name = "successive_gradients"

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._before = {n: torch.zeros_like(p) for n, p in self._parameters.items()}
        self._cosine = 0.0

    @contextmanager
    def around_gradient(self, step: int) -> Iterator[None]:
        yield
        old = torch.cat([tensor.flatten() for tensor in self._before.values()])
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._before[name].copy_(parameter.grad)
        new = torch.cat([tensor.flatten() for tensor in self._before.values()])
        self._cosine = float(torch.cosine_similarity(old.double(), new.double(), dim=0))

    def after_step(self, record: object) -> Mapping[str, float]:
        return {"gradient_cosine": self._cosine}

    def tensors(self) -> Mapping[str, Tensor]:
        return self._before

    def restore(self, saved: SavedFeature) -> None:
        for name, tensor in saved.tensors.items():
            self._before[name].copy_(tensor)


class Forgetful(SuccessiveGradients):
    """Does not save the last gradient."""

    def tensors(self) -> Mapping[str, Tensor]:
        return {}


def resumed(files: Path, model: Path, folder: Path, kind: type[SuccessiveGradients]) -> Any:
    """Return evidence of a straight run with the feature, and of one resumed after 4 steps."""
    words = ("--checkpointing_steps", "2", "--max_train_steps", "7", "--learning_rate", "1e-3")
    make = run_state.make_features

    def made(prepared: Prepared, write: Write) -> tuple[Feature, ...]:
        return (*make(prepared, write), kind(prepared.loaded.model))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_state, "make_features", made)
        for name, stop, more in (("one", None, ()), ("two", 6, ()), ("two", None, LATEST)):
            with interrupted(stop):
                done = call_here(CLASSIFY, *two_epochs(files, model, folder / name, *words, *more))
            assert done.returncode == (130 if stop else 0), done.stderr
    assert json.loads((folder / "two/run.json").read_text())["resumes"][0]["step"] == 4
    return evidence(folder / "one"), evidence(folder / "two")


@pytest.mark.slow
def test_a_feature_is_added_in_one_line_and_resumes(files, tiny_model, tmp_path):
    one, two = resumed(files, tiny_model, tmp_path, SuccessiveGradients)
    assert one == two
    cosines = [row["gradient_cosine"] for row in one["history"]]
    assert cosines[0] == 0
    assert all(-1 <= cosine <= 1 and cosine != 0 for cosine in cosines[1:])


@pytest.mark.slow
def test_a_feature_that_forgets_its_state_is_noticed(files, tiny_model, tmp_path):
    one, two = resumed(files, tiny_model, tmp_path, Forgetful)
    differing = [row["step"] for row, other in zip(one["history"], two["history"], strict=True)
                 if row != other]  # fmt: skip
    assert differing == [5], "the first step after the checkpoint has no gradient before it"
