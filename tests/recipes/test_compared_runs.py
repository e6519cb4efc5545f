"""What a run records for a comparison: placebo, predictions in fp32, curves, speed, memory."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys

import numpy as np
import pytest
from running import CLASSIFY, Finished, call, call_here, succeeded, text_settings

from ampft.runs.predictions import read_predictions
from ampft.runs.run_text import format_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def short_run(files, tiny_model, tmp_path_factory):
    """Return a function that runs two epochs in a mode, with further flags.

    A run whose peak of memory is tested runs `alone`, in a process of its own.
    """

    def start(mode, *more, alone=False) -> Finished:
        folder = tmp_path_factory.mktemp("compared") / mode
        words = [*text_settings(files, tiny_model, folder), "--num_train_epochs", 2, *more]
        words = [CLASSIFY, "--mixed_precision", mode, *words]
        done = succeeded(call(sys.executable, *words) if alone else call_here(*words))
        return Finished(folder, done.stdout, done.stderr)

    return start


@pytest.fixture(scope="module")
def plain(short_run) -> Finished:
    return short_run("fp32", "--evaluate_fp32", alone=True)


@pytest.fixture(scope="module")
def placebo(short_run) -> Finished:
    return short_run("fp32", "--perturb_initial_weights")


@pytest.fixture(scope="module")
def in_fp16(short_run) -> Finished:
    return short_run("fp16", "--evaluate_fp32", alone=True)


def weights(run: Finished) -> str:
    return hashlib.sha256((run.folder / "model.safetensors").read_bytes()).hexdigest()


def test_a_placebo_has_the_same_initial_hash_and_other_final_weights(plain, placebo, short_run):
    one, other = plain.record, placebo.record
    assert one["model"]["initial_weights_sha256"] == other["model"]["initial_weights_sha256"]
    assert one["example_ids_sha256"] == other["example_ids_sha256"]
    assert (one["model"]["perturbed"], other["model"]["perturbed"]) == (False, True)
    assert weights(plain) != weights(placebo)
    # Negative control: without the perturbation, two runs are identical.
    assert weights(short_run("fp32")) == weights(plain)


def test_every_precision_uses_the_same_dropout_masks(plain, files, tiny_model, tmp_path):
    assert plain.record["random_state_sha256"] is None  # it has no dropout
    with_dropout = tmp_path / "model"
    shutil.copytree(tiny_model, with_dropout)
    config = json.loads((with_dropout / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    (with_dropout / "config.json").write_text(json.dumps(config))
    states = []
    for mode, seed in (("fp32", 1), ("fp16", 1), ("fp32", 2)):
        folder = tmp_path / f"{mode}-{seed}"
        words = [*text_settings(files, with_dropout, folder), "--max_train_steps", 1]
        succeeded(call_here(CLASSIFY, "--mixed_precision", mode, *words, "--seed", seed))
        states.append(json.loads((folder / "run.json").read_text())["random_state_sha256"])
    assert None not in states
    assert states[0] == states[1]
    assert states[0] != states[2]


def test_a_run_in_another_precision_also_predicts_in_fp32(in_fp16):
    own = read_predictions(in_fp16.folder / "predictions.parquet")
    in_fp32 = read_predictions(in_fp16.folder / "predictions_fp32.parquet")
    assert np.array_equal(own.example_ids, in_fp32.example_ids)
    assert not np.array_equal(own.probabilities, in_fp32.probabilities)
    np.testing.assert_allclose(own.probabilities, in_fp32.probabilities, atol=0.02)
    record = in_fp16.record
    assert record["metrics_fp32"].keys() == record["metrics"].keys()
    assert record["metrics_fp32"]["log_loss"] != record["metrics"]["log_loss"]
    assert "predictions_fp32.parquet" in record["files"]


def test_a_run_in_fp32_predicts_once(plain, placebo):
    assert plain.record["metrics_fp32"] == plain.record["metrics"]
    assert not (plain.folder / "predictions_fp32.parquet").exists()
    assert placebo.record["metrics_fp32"] is None


def test_every_validation_is_recorded(plain):
    first, second = plain.record["validations"]
    assert (first["epoch"], first["step"]) == (1, 9)
    assert (second["epoch"], second["step"]) == (2, 18)
    assert 0 <= first["metrics"]["macro_f1"] <= first["metrics"]["accuracy"] + 0.5
    assert second["metrics"]["log_loss"] < first["metrics"]["log_loss"]
    assert f"validation accuracy {second['metrics']['accuracy']:.3f}" in plain.stdout
    best = plain.record["best"]
    assert (
        plain.record["validations"][best["epoch"] - 1]["metrics"][best["metric"]] == best["value"]
    )


def test_the_speed_is_related_to_the_matrix_product_rate(plain, in_fp16):
    timings = plain.record["timings"]
    # Two layers of width 32 with 64 in between.
    assert timings["flops_per_token"] == 6 * 2 * (4 * 32**2 + 2 * 32 * 64)
    rates = [row["tokens_per_second"] for row in plain.history[5:]]
    assert timings["tokens_per_second"] == pytest.approx(np.median(rates))
    done = timings["tokens_per_second"] * timings["flops_per_token"]
    assert timings["utilisation"] == pytest.approx(done / timings["matrix_rate_gflops"] / 1e9)
    assert 0 < timings["utilisation"] < 1
    assert in_fp16.record["timings"]["matrix_rate_gflops"] is None
    assert in_fp16.record["timings"]["utilisation"] is None


@pytest.mark.parametrize("mode", ["plain", "in_fp16"])
def test_the_peak_is_split(mode, request):
    record = request.getfixturevalue(mode).record
    memory = record["memory"]
    bytes_of_weights = 4 * record["model"]["parameters"]
    assert memory["weights"] == memory["gradients"] == bytes_of_weights
    # Two moments, and a step counter of four bytes for each parameter.
    assert 0 < memory["optimizer_state"] - 2 * bytes_of_weights < 4 * 100
    parts = ("weights", "gradients", "optimizer_state", "activations", "rest", "baseline")
    assert sum(memory[name] for name in parts) == memory["peak"]
    assert memory["activations"] > 0
    assert "\nmemory     " in format_run(request.getfixturevalue(mode).folder)
