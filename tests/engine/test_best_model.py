"""The best step by a metric is stored on disk and restored, and training stops early."""

import math
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from file_faults import flip_bit
from torch import nn

from ampft.engine.checkpoints.writing import write_tensors
from ampft.errors import InputError
from ampft.features.early_stopping import EarlyStopping
from ampft.features.weights import BestModel
from ampft.files import describe_file
from ampft.ownership import PrivateFolder
from ampft.tasks.single_label import METRICS

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture(autouse=True)
def private_folder(tmp_path):
    folder = PrivateFolder(tmp_path)
    yield folder
    folder.close()


@pytest.fixture
def accelerator():
    return Accelerator(cpu=True)


def train(best, accelerator, values):
    """Train steps after which all weights are their number; return the model and all results."""
    model = accelerator.prepare(nn.Linear(2, 2))
    flags = []
    for step, value in enumerate(values):
        nn.init.constant_(model.weight, step)
        flags.append(best.update(value, step, accelerator, model))
    return model, flags


@pytest.mark.parametrize(
    ("metric", "values", "flags", "best_step"),
    [
        ("accuracy", [0.5, 0.7, 0.6, 0.7], [True, True, False, False], 1),
        ("accuracy", [0.5, 0.7, 0.6, 0.8], [True, True, False, True], 3),
        ("log_loss", [0.5, 0.7, 0.4, 0.6], [True, False, True, False], 2),
        ("matthews", [-0.2, -0.1, -0.3], [True, True, False], 1),
        ("log_loss", [0.5, math.nan, 0.4], [True, False, True], 2),
        ("accuracy", [0.5, math.nan, 0.4], [True, False, False], 0),
        ("accuracy", [math.nan, 0.4, math.nan], [False, True, False], 1),
        ("cohen_kappa", [None, 0.4, None], [False, True, False], 1),
    ],
)
def test_the_best_step_is_kept_and_restored(
    tmp_path, accelerator, metric, values, flags, best_step
):
    best = BestModel(tmp_path, METRICS[metric])
    model, actual_flags = train(best, accelerator, values)
    assert actual_flags == flags
    assert (best.step, best.value) == (best_step, values[best_step])
    best.restore(accelerator, model)
    assert torch.equal(model.weight, torch.full((2, 2), float(best_step)))
    assert best.path.exists(), "a stop during the final evaluation needs the file"


@pytest.mark.parametrize(("last", "stops"), [(0.69314 - 2e-10, True), (0.69314 - 1e-5, False)])
def test_a_gain_within_rounding_is_kept_but_not_what_patience_waits_for(
    tmp_path, accelerator, last, stops
):
    best = BestModel(tmp_path, METRICS["log_loss"], EarlyStopping(1))
    _, flags = train(best, accelerator, [0.69314, last])
    assert flags == [True, True]
    assert best.stopping.should_stop is stops


@pytest.mark.parametrize(
    ("patience", "stops"),
    [(None, [False] * 6), (1, [False, True, False, False, True, True]),
     (2, [False, False, False, False, False, True]), (3, [False] * 6)],
)  # fmt: skip
def test_patience_counts_validations_since_the_best(tmp_path, accelerator, patience, stops):
    best = BestModel(tmp_path, METRICS["accuracy"], EarlyStopping(patience))
    model, should_stop = nn.Linear(2, 2), []
    for step, value in enumerate([0.5, 0.4, 0.6, 0.7, 0.7, 0.1]):
        best.update(value, step, accelerator, model)
        should_stop.append(best.stopping.should_stop)
    assert should_stop == stops


def test_tied_weights_can_be_saved(tmp_path, accelerator):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    best = BestModel(tmp_path, METRICS["accuracy"])
    best.update(0.5, 0, accelerator, model)
    expected = model[0].weight.detach().clone()
    nn.init.zeros_(model[0].weight)
    best.restore(accelerator, model)
    assert torch.equal(model[1].weight, expected)


def test_the_weights_of_a_compiled_model_keep_their_names(tmp_path, accelerator):
    best = BestModel(tmp_path, METRICS["accuracy"])
    model = torch.compile(accelerator.prepare(nn.Linear(2, 2)), backend="eager")
    nn.init.constant_(model.weight, 1)
    best.update(0.5, 0, accelerator, model)
    nn.init.constant_(model.weight, 2)
    best.restore(accelerator, model)
    assert torch.equal(model.weight, torch.ones(2, 2))


def replace_by_another_run(path):
    write_tensors(path, {"weight": torch.ones(2, 2), "bias": torch.ones(2)})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [(flip_bit, "was changed"), (replace_by_another_run, "was changed"), (Path.unlink, "is mi")],
)
def test_a_changed_file_is_not_loaded(tmp_path, accelerator, damage, problem):
    best = BestModel(tmp_path, METRICS["accuracy"])
    model, _ = train(best, accelerator, [0.5, 0.4])
    damage(best.path)
    with pytest.raises(
        InputError, match=rf"best-\w+\.safetensors: the file of the best .* {problem}"
    ):
        best.restore(accelerator, model)
    assert torch.equal(model.weight, torch.ones(2, 2)), "the last weights remain"


@pytest.mark.parametrize(
    ("tensors", "difference"),
    [
        ({"weight": torch.ones(3, 2), "bias": torch.ones(2)}, r"weight as float32 \[3, 2\], and"),
        ({"weight": torch.ones(2, 2)}, r"bias as missing, and .* float32 \[2\]"),
        ({"weight": torch.ones(2, 2).half(), "bias": torch.ones(2)}, "weight as float16"),
        ({"weight": torch.ones(2, 2), "bias": torch.ones(2), "more": torch.ones(1)}, "has more"),
    ],
)
def test_tensors_that_do_not_fit_are_not_loaded(tmp_path, accelerator, tensors, difference):
    """A checkpoint whose hashes were made anew can hold them."""
    best = BestModel(tmp_path, METRICS["accuracy"])
    model, _ = train(best, accelerator, [0.5])
    write_tensors(best.path, tensors)
    best.file = describe_file(best.path)
    with pytest.raises(InputError, match=difference):
        best.restore(accelerator, model)
    assert not model.weight.any()
