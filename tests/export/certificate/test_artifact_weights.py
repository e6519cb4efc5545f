"""Weights of an artifact are compared with the run's, rounded as the export rounds them."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file

from ampft.export.certificate.stored_weights import weight_failures

RANDOM = np.random.default_rng(0)
HEAD = RANDOM.normal(size=(3, 8)).astype(np.float32)
QUERY = RANDOM.normal(size=(8, 8)).astype(np.float32)
QUERY[2, 3] = 1e-9  # below the smallest float16 number
KEY = QUERY + RANDOM.normal(scale=1e-3, size=(8, 8)).astype(np.float32)  # as of a copied layer
SCALE = np.float32(1 / np.sqrt(8))


def half(values):
    """What onnxruntime's conversion to float16 writes."""
    small = (np.abs(values) < 1e-7) & (values != 0)
    return np.where(small, np.copysign(1e-7, values), values).astype(np.float16)


def artifact(folder, weights, precision="fp32"):
    """Write a graph with initializers, and return what the check reads of an artifact."""
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], tensors)), folder / "m.onnx")
    return SimpleNamespace(
        folder=folder, manifest=SimpleNamespace(model="m.onnx", precision=precision)
    )


@pytest.fixture
def run(tmp_path):
    weights = {"head": HEAD, "query": QUERY, "key": KEY, "unused": HEAD[:2]}
    save_file(
        {name: torch.tensor(each) for name, each in weights.items()}, tmp_path / "model.safetensors"
    )
    return tmp_path


def changed(run, weights, precision="fp32"):
    found = list(weight_failures(artifact(run, weights, precision), run))
    return found[0].values["names"] if found else []


FAITHFUL = {"head": HEAD, "val_1": QUERY.T.copy(), "val_2": KEY.T.copy()}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_faithful_weights(run, precision):
    weights = FAITHFUL if precision == "fp32" else {n: half(v) for n, v in FAITHFUL.items()}
    assert changed(run, weights, precision) == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("name", "weight"), [("head", "head"), ("val_1", "query")])
def test_a_thousandth_is_seen(run, precision, name, weight):
    weights = {**FAITHFUL, name: FAITHFUL[name] * np.float32(1.001)}
    if precision == "fp16":
        weights = {name: half(value) for name, value in weights.items()}
    assert changed(run, weights, precision) == [weight]


@pytest.mark.parametrize("row", [0, 3, -1])
def test_a_changed_row_of_a_renamed_matrix_is_seen(run, row):
    other = QUERY.copy()
    other[row] *= -0.01
    other[row] += 0.99 * QUERY[row] + 0.01 * KEY[row]
    assert changed(run, {**FAITHFUL, "val_1": other.T.copy()}) == ["query"]


def test_a_factor_that_an_exporter_multiplies_in_is_no_fault(run):
    scaled = {**FAITHFUL, "val_1": QUERY.T * SCALE, "val_2": KEY.T * SCALE}
    assert changed(run, scaled) == []


def test_int8_and_folded_batch_norms_are_not_compared(run):
    assert changed(run, {"head": HEAD * 2}, "int8") == []
    kernel = torch.ones(2, 2, 1, 1)
    save_file({"conv": kernel, "norm.running_mean": torch.ones(2)}, run / "model.safetensors")
    assert changed(run, {"conv": kernel.numpy() * 1.01}) == []


def test_weights_of_pytorch_are_compared_after_rounding(run):
    opened = artifact(run, {}, "bf16")
    opened.manifest.model, folder = "model.safetensors", run / "exported"
    folder.mkdir()
    opened.folder = folder
    weights = {"head": HEAD, "key": KEY}
    weights = {name: torch.tensor(each).bfloat16() for name, each in weights.items()}
    weights["query"] = torch.tensor(QUERY)  # of a module that stays in float32
    save_file(weights, folder / "model.safetensors")
    assert list(weight_failures(opened, run)) == []
    save_file({**weights, "head": weights["head"] * 1.01}, folder / "model.safetensors")
    (found,) = weight_failures(opened, run)
    assert found.text == "1 weight in the artifact is not the run's, rounded to bf16: head"
