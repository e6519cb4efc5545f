"""`ampft compare --inference`: trained models that predict in several precisions."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import BIN, CLASSIFY, call_here, rows, succeeded, text_settings
from torch import nn

import ampft
from ampft.comparison.analysis.loading import find_runs
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import read_comparison
from ampft.comparison.verdict_text import verdict_texts
from ampft.errors import InputError
from ampft.export.inference.compare_inference import (
    MAX_ROUNDS,
    SavedModel,
    compare_inference,
    parse_inference_modes,
    size_on_disk,
    time_in_turns,
)
from ampft.files import hashed_text
from ampft.precision.resolve import resolve
from ampft.runs.predictions import read_predictions

LINEAR_LAYERS = 14  # six in each of two layers, the pooler and the classifier
SEEDS = (42, 43, 44)
CPU = torch.device("cpu")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(files, tiny_model, tmp_path_factory) -> list[Path]:
    """Runs of the tiny model with three seeds."""
    root = tmp_path_factory.mktemp("inference")
    for seed in SEEDS:
        words = text_settings(files, tiny_model, root / str(seed))
        succeeded(call_here(CLASSIFY, *words, "--seed", seed, "--num_train_epochs", 2))
    return [root / str(seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def saved(runs) -> SavedModel:
    (run,) = find_runs(runs[:1])
    return SavedModel.load(run.folder, run.record)


def compare(*words):
    return call_here(BIN / "ampft", "compare", *words, ACCELERATE_USE_CPU="true")


@pytest.fixture(scope="module")
def of_one(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    words = ("--inference", "fp32,fp16,bf16-true,int8", runs[0], "--output_dir", folder)
    return succeeded(compare(*words)).stdout, read_comparison(folder)


def test_one_model_gets_verdicts_over_test_cases_only(of_one):
    printed, comparison = of_one
    assert comparison.kind == "inference"
    names = ["fp32", "placebo", "fp16", "bf16-true", "int8"]
    assert [arm.name for arm in comparison.arms] == names
    for arm in comparison.arms[1:]:
        assert arm.difference.seed_variance is None
        assert arm.difference.cases == comparison.examples
        assert arm.difference.failure_rate is None
        assert arm.difference.seeds_to_decide is None
    assert remark_texts(comparison.stamps)[0].startswith(
        "one trained model: intervals and verdicts hold for"
    )
    assert "1 model)" in printed
    assert "1 seed" not in printed
    assert "Precision of inference" in html_text(comparison)


def test_rows_with_weights_count_as_in_their_run(tiny_model, tmp_path):
    examples = [
        {"text": text, "label": label, "weight": float(number % 4)}
        for number, (text, label) in enumerate(rows(90, 0))
    ]
    run = ampft.finetune(
        examples[:60], validation=examples[60:], test=examples[60:], output_dir=tmp_path / "run",
        model_name_or_path=str(tiny_model), weight_column="weight", weighted_metrics=True,
        max_train_steps=3, cpu_threads=1, use_cpu=True,
    )  # fmt: skip
    baseline = compare_inference([run.folder], ("fp32", "bf16")).arms[0]
    recorded = {name: run.record.metrics[name] for name in baseline.metrics}
    found = {name: value.mean for name, value in baseline.metrics.items()}
    assert found == pytest.approx(recorded, abs=1e-5)


def test_runs_on_other_texts_with_the_same_labels_are_refused(tiny_model, tmp_path):
    folders = []
    for seed in (1, 2):
        examples = [(text.replace("the", "a" * seed), label) for text, label in rows(60, 0)]
        run = ampft.finetune(
            examples, test=examples, output_dir=tmp_path / str(seed), seed=seed, max_train_steps=1,
            model_name_or_path=str(tiny_model), cpu_threads=1, use_cpu=True,
        )  # fmt: skip
        folders.append(run.folder)
    with pytest.raises(InputError, match="have different texts or weights in the split test"):
        compare_inference(folders, ("fp32", "bf16"))


def test_int8_products_are_really_int8(of_one, saved, monkeypatch):
    comparison = of_one[1]
    executed = comparison.arm("int8").executed
    assert executed.startswith(f"linear layers int8 x int8 ({LINEAR_LAYERS} of {LINEAR_LAYERS} ")
    assert "float32 x float32 -> float32" in comparison.arm("fp32").executed
    # The negative control: a model that was not quantized does not pass for int8.
    predictor = replace(saved.predictor("fp32", CPU), mode="int8")
    inputs = saved.tokens([["apple iron"]], [0])
    with pytest.raises(InputError, match="no product was executed in int8"):
        predictor.executed(inputs)
    mixed = replace(predictor, mode="bf16", precision=saved.predictor("bf16", CPU).precision)
    monkeypatch.setattr(mixed, "context", torch.no_grad)  # no autocast
    with pytest.raises(InputError, match="mode bf16 was requested, but"):
        mixed.executed(inputs)


def test_int8_predictions_are_those_of_quantized_weights(of_one, saved, files):
    """Weights that are rounded to 8 bits by hand give nearly the logits of int8."""
    with (files / "test.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    inputs = saved.tokens([texts], range(len(texts)))
    logits = {}
    for mode in ("fp32", "int8"):
        predictor = saved.predictor(mode, CPU)
        with predictor.context():
            logits[mode] = predictor.logits(inputs)
    by_hand = saved.predictor("fp32", CPU)
    for module in by_hand.model.modules():
        if isinstance(module, nn.Linear):
            scale = module.weight.detach().abs().amax(dim=1, keepdim=True) / 127.5
            module.weight.data = (module.weight / scale).round().clamp(-128, 127) * scale
    with by_hand.context():
        logits["by hand"] = by_hand.logits(inputs)
    errors = {name: float((each - logits["int8"]).abs().mean()) for name, each in logits.items()}
    assert 0 < errors["by hand"] < 0.05
    assert errors["fp32"] > 0
    flips = of_one[1].arm("int8").flips.mean
    assert flips == int((logits["int8"].argmax(1) != logits["fp32"].argmax(1)).sum())


def test_emulated_fp16_predicts_like_ampft_predict_and_is_not_timed(of_one, saved, runs, files):
    comparison = of_one[1]
    fp16 = comparison.arm("fp16")
    assert (fp16.execution, fp16.inference.timings) == ("emulated", ())
    assert "fp16 is emulated, so its latency was not measured" in of_one[0]
    done = succeeded(
        call_here(BIN / "ampft", "predict", "--model", runs[0], "--mixed_precision", "fp16",
                  files / "test.csv", ACCELERATE_USE_CPU="true")
    )  # fmt: skip
    rows = list(csv.DictReader(done.stdout.splitlines()))
    predictor = saved.predictor("fp16", CPU)
    with predictor.context():
        logits = predictor.logits(saved.tokens([[row["text"] for row in rows]], range(len(rows))))
    confidence = logits.softmax(1).amax(1).tolist()
    assert confidence == pytest.approx([float(row["confidence"]) for row in rows], abs=2e-3)


def test_windows_of_long_texts_are_averaged_as_in_training(files, tiny_model, tmp_path):
    words = [*text_settings(files, tiny_model, tmp_path / "run"), "--num_train_epochs", 1]
    words += ["--long_text", "windows", "--max_seq_length", 6, "--stride", 1]
    succeeded(call_here(CLASSIFY, *words))
    (run,) = find_runs([tmp_path / "run"])
    saved = SavedModel.load(run.folder, run.record)
    with (files / "test.csv").open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    inputs = saved.tokens([texts], range(len(texts)))
    assert (inputs["label_windows"] > 1).any()
    predictor = saved.predictor("fp32", CPU)
    with predictor.context():
        probabilities = predictor.logits(inputs).softmax(dim=1).numpy()
    expected = read_predictions(run.folder / "predictions.parquet").probabilities
    assert np.allclose(probabilities, expected, atol=1e-5)


def test_latency_and_size_are_measured_for_native_modes(of_one, saved):
    comparison = of_one[1]
    native = [name for name in ("bf16-true",) if not resolve(name, CPU).is_emulated]
    for name in ("placebo", "int8", *native):
        timings = comparison.arm(name).inference.timings
        assert [timing.batch_size for timing in timings] == [1, 32]
        for timing in timings:
            low, high = timing.speed_up.interval95
            assert low <= timing.speed_up.ratio <= high
            assert timing.speed_up.pairs >= 7
            assert timing.speed_up.verdict is not None
    sizes = {arm.name: arm.inference.size for arm in comparison.arms}
    assert sizes["placebo"] == sizes["fp32"] == size_on_disk(saved.model)
    assert sizes["bf16-true"] < 0.75 * sizes["fp32"]  # a tiny file has mostly overhead


def test_models_of_several_seeds_are_a_sample_of_trainings(runs, tmp_path):
    words = ("--inference", "bf16", *runs, "--output_dir", tmp_path / "out", "--metric", "macro_f1")
    succeeded(compare(*words))
    comparison = read_comparison(tmp_path / "out")
    assert (comparison.seeds, comparison.metric) == (SEEDS, "macro_f1")
    bf16 = comparison.arm("bf16")
    assert bf16.difference.failure_rate == pytest.approx(1 - 0.05 ** (1 / 3))
    assert any("screening: 3 seeds" in stamp for stamp in remark_texts(comparison.stamps))
    # fp32 predicts as the runs themselves did, without padding.
    for value, folder in zip(comparison.baseline.metrics["accuracy"].per_seed, runs, strict=True):
        outcome = read_predictions(folder / "predictions.parquet")
        assert value == pytest.approx(float(outcome.correct.mean()))


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ("fp32", "give a precision to compare with fp32"),
        ("fp32,int4", "'int4' is not a precision. Did you mean 'int8'?"),
        ("int8,int8", "int8 appears twice"),
        ("fp32@1,fp32@1", "fp32@1 appears twice"),
        ("fp32@1", "give another precision or batch size"),
        ("fp32@0,bf16", "the batch size after fp32@ must be a whole number from 1 to 65,536"),
        ("int4@8,fp32", "'int4' is not a precision. Did you mean 'int8'?"),
        ("tf32", "--inference tf32: not available on this device (cpu)"),
    ],
)
def test_invalid_modes_are_refused(runs, tmp_path, modes, message):
    assert_refused(("--inference", modes, runs[0]), message, tmp_path)


def test_batch_sizes_are_arms(runs):
    modes = parse_inference_modes("bf16-true@32,fp32@1,fp32@5")
    assert modes == ("fp32@1", "bf16-true@32", "fp32@5")
    assert parse_inference_modes("int8@4") == ("fp32", "int8@4")
    comparison = compare_inference(runs[:1], ("fp32@1", "fp32@5"))
    assert [arm.name for arm in comparison.arms] == ["fp32@1", "placebo", "fp32@5"]
    assert {arm.mode for arm in comparison.arms} == {"fp32"}
    flips = comparison.arm("fp32@5").flips
    assert flips.mean == 0  # float32 rounds differently, but no prediction of this model is close
    assert comparison.baseline.inference.timings[0].speed_up is None
    assert "after @, the size that is named" in comparison.setup["batches"]


def test_other_runs_are_refused(runs, files, tiny_model, tmp_path):
    assert_refused(("--inference", "int8"), "--inference: RUN is missing", tmp_path)
    other = tmp_path / "bf16"
    words = [*text_settings(files, tiny_model, other), "--num_train_epochs", 1]
    succeeded(call_here(CLASSIFY, *words, "--mixed_precision", "bf16"))
    mixed = ("--inference", "int8", runs[0], other)
    assert_refused(mixed, "the runs were trained as fp32, bf16. Pass runs of one of them", tmp_path)
    copied = shutil.copytree(runs[0], tmp_path / "copy")
    assert_refused(("--inference", "int8", runs[0], copied), "have the same seed 42", tmp_path)


def assert_refused(words, message, tmp_path):
    folder = tmp_path / "out"
    done = compare(*words, "--output_dir", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not folder.exists()


def test_arms_are_timed_in_turns_and_relative_to_the_baseline():
    turns = []

    def taking(name, seconds):
        def predict(batch):
            turns.append((name, batch))
            return seconds * (1 + 0.01 * (len(turns) % 5))

        return predict

    arms = {"fp32": taking("fp32", 0.002), "int8": taking("int8", 0.001)}
    timings = time_in_turns(arms, {1: ["a", "b"]}, baseline="fp32")
    assert turns[:6] == [("fp32", "a"), ("int8", "a"), ("int8", "b"), ("fp32", "b"),
                         ("fp32", "a"), ("int8", "a")]  # fmt: skip
    assert len(turns) == 2 * (MAX_ROUNDS + 1)
    (one,), (other,) = timings["int8"], timings["fp32"]
    assert one.speed_up.ratio == pytest.approx(other.seconds / one.seconds, rel=0.02)
    assert 1.9 < one.speed_up.ratio < 2.1
    assert (one.speed_up.verdict, one.speed_up.pairs) == ("faster", MAX_ROUNDS)
    assert other.speed_up is None
    assert np.isfinite(one.seconds)


def test_a_model_that_learned_nothing_gets_no_verdict(runs, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(runs[0], copy)
    warning = "the model predicts 'x' for every example."
    values = json.loads((copy / "run.json").read_text())
    values |= {"warnings": {"one_prediction": warning}}
    (copy / "run.json").write_text(hashed_text({k: v for k, v in values.items() if k != "sha256"}))
    words = ("--inference", "fp32,fp16", copy, "--margin", 50)
    succeeded(compare(*words, "--output_dir", tmp_path / "nothing"))
    arm = read_comparison(tmp_path / "nothing").arm("fp16")
    assert arm.difference.verdict is None
    assert warning in verdict_texts(read_comparison(tmp_path / "nothing"))[0]
    words = ("--inference", "fp32,fp16", runs[0], "--margin", 50)
    succeeded(compare(*words, "--output_dir", tmp_path / "learned"))
    assert read_comparison(tmp_path / "learned").arm("fp16").outcome == "equivalent"
