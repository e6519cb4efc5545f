"""Runs that store weights, gradients and optimizer state in bfloat16, as users start them."""

from __future__ import annotations

import csv
import json
import statistics

import pytest
from running import BIN, CLASSIFY, Finished, call_here, printed, succeeded, text_settings

pytestmark = pytest.mark.slow

# A confidence has six decimals; bfloat16 sums differ with the batch by one unit in 2^-8.
BF16_CONFIDENCE = 0.02


def start(files, tiny_model, folder, mode):
    """Run with the precision `no` in the environment, as accelerate launch sets it."""
    done = succeeded(
        call_here(
            CLASSIFY, "--mixed_precision", mode,
            *text_settings(files, tiny_model, folder), "--history_csv",
            ACCELERATE_MIXED_PRECISION="no",
        )
    )  # fmt: skip
    return Finished(folder, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def runs(files, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    modes = ("bf16-true", "bf16-true-kahan")
    return {mode: start(files, tiny_model, folder / mode, mode) for mode in modes}


def test_storage_dtypes_are_printed_and_recorded(runs):
    for mode, run in runs.items():
        assert printed(run.stdout, "precision").startswith(f"{mode}, ")
        assert printed(run.stdout, "model").split(" weights")[0].endswith("M bfloat16")
        assert printed(run.stdout, "ran").endswith("weights, gradients, optimizer state bfloat16")
        resolved = run.record["precision"]["resolved"]
        assert (resolved["mode"], resolved["storage_dtype"]) == (mode, "bfloat16")
        assert set(run.record["precision"]["executed"]["optimizer_state"]) == {"bfloat16"}
        assert "The saved weights are bfloat16" in (run.folder / "README.md").read_text()


@pytest.mark.full
def test_it_is_comparable_to_float32(runs, fp16_run):
    for run in runs.values():
        ours, theirs = run.record, fp16_run.record
        assert ours["example_ids_sha256"] == theirs["example_ids_sha256"]
        assert ours["model"]["initial_weights_sha256"] == theirs["model"]["initial_weights_sha256"]


@pytest.mark.full
def test_lost_updates_are_in_the_history_the_record_and_the_last_line(runs, fp16_run):
    shares = {}
    for mode, run in runs.items():
        measured = [row["lost_updates"] for row in run.history]
        known = [value for value in measured if value is not None]
        assert [index for index, value in enumerate(measured, 1) if value is not None] == [
            10, 20, 30,
        ]  # fmt: skip
        shares[mode] = run.record["precision"]["lost_updates"]
        assert shares[mode] == pytest.approx(statistics.median(known))
        words = f"{shares[mode]:.1%} of weight updates changed nothing"
        assert run.stdout.splitlines()[-1].endswith(words)
        shown = succeeded(call_here(BIN / "ampft", "report", run.folder)).stdout
        assert words in shown
    assert shares["bf16-true"] > 0.05 > shares["bf16-true-kahan"]
    # Negative control: float32 weights are not measured.
    assert {row["lost_updates"] for row in fp16_run.history} == {None}
    assert fp16_run.record["precision"]["lost_updates"] is None
    assert "changed nothing" not in fp16_run.stdout


def test_the_saved_model_is_bfloat16_and_predicts(runs, files, tmp_path):
    from safetensors.torch import load_file

    run = runs["bf16-true-kahan"]
    weights = load_file(run.folder / "model.safetensors")
    assert {str(tensor.dtype) for tensor in weights.values()} == {"torch.bfloat16"}
    assert json.loads((run.folder / "config.json").read_text())["dtype"] == "bfloat16"
    confidences = {}
    for mode in ("fp32", "bf16-true-kahan"):
        target = tmp_path / f"{mode}.csv"
        succeeded(
            call_here(
                BIN / "ampft", "predict", "--model", run.folder, "--mixed_precision", mode,
                "--output_file", target, files / "test.csv",
            )
        )  # fmt: skip
        with target.open(newline="") as file:
            confidences[mode] = [float(row["confidence"]) for row in csv.DictReader(file)]
    assert confidences["fp32"] == pytest.approx(confidences["bf16-true-kahan"], abs=BF16_CONFIDENCE)
    assert confidences["fp32"] != confidences["bf16-true-kahan"]


def test_a_launcher_that_requests_bf16_is_a_conflict(files, tiny_model, tmp_path):
    done = call_here(
        CLASSIFY, "--mixed_precision", "bf16-true",
        *text_settings(files, tiny_model, tmp_path / "run"), ACCELERATE_MIXED_PRECISION="bf16",
    )  # fmt: skip
    assert done.returncode == 2
    assert "--mixed_precision bf16-true disagrees with ACCELERATE_MIXED_PRECISION=bf16" in (
        done.stderr
    )
    assert not (tmp_path / "run").exists()
