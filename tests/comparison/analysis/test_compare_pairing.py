"""How runs are grouped into arms and pairs, and which runs are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_folders import SEEDS, N, labels, predicted, write_run, write_runs

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.remarks import remark_texts
from ampft.comparison.verdict_text import verdict_texts
from ampft.errors import InputError
from ampft.text.json_io import json_text

FEW = SEEDS[:3]
WRONG = {"fp32": [range(5)] * 3, "bf16": [range(6)] * 3}


@pytest.mark.slow
def test_the_order_of_arms_does_not_depend_on_the_order_of_folders(tmp_path):
    runs = write_runs(
        tmp_path,
        {"fp16": [range(3, 8)] * 3, **WRONG, "placebo": [range(1, 6)] * 3, "tf32": [range(5)] * 3},
        seeds=FEW,
    )
    comparison = compare_folders(runs)
    assert [arm.name for arm in comparison.arms] == ["fp32", "placebo", "tf32", "bf16", "fp16"]
    assert [arm.is_placebo for arm in comparison.arms] == [False, True, False, False, False]
    assert comparison.arm("placebo").mode == "fp32"
    assert comparison.seeds == FEW
    text = json_text(comparison)
    order = np.random.default_rng(0).permutation(len(runs))
    assert json_text(compare_folders([runs[i] for i in order])) == text


@pytest.mark.slow
def test_a_folder_of_a_comparison_stands_for_its_runs(tmp_path):
    runs = write_runs(tmp_path / "cmp" / "runs", WRONG, seeds=FEW)
    (tmp_path / "cmp" / "runs" / "logs").mkdir()
    assert compare_folders([tmp_path / "cmp"]) == compare_folders(runs)
    assert compare_folders([tmp_path / "cmp", *runs]) == compare_folders(runs)


@pytest.mark.slow
def test_another_baseline(tmp_path):
    runs = write_runs(tmp_path, WRONG, seeds=FEW)
    comparison = compare_folders(runs, baseline="bf16")
    assert [arm.name for arm in comparison.arms] == ["bf16", "fp32"]
    difference = comparison.arm("fp32").difference
    assert difference is not None
    assert difference.estimate == pytest.approx(1 / N)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ([("fp32", 42), ("fp32", 43), ("bf16", 42)], "bf16 has no run with seed 43"),
        ([("fp32", 42), ("bf16", 43)], "fp32 has no run with seed 43, bf16 has no run with seed"),
        ([("bf16", 42), ("fp16", 42)], "--baseline fp32: there are only runs of bf16, fp16"),
        ([("fp32", 42), ("fp32", 43)], "all runs are in fp32"),
    ],
)
def test_runs_without_pairs_are_refused(tmp_path, arms, message):
    runs = [write_run(tmp_path, arm, seed, predicted()) for arm, seed in arms]
    with pytest.raises(InputError, match=message):
        compare_folders(runs)


def test_two_runs_of_one_mode_and_seed_are_refused(tmp_path):
    runs = write_runs(tmp_path, WRONG, seeds=FEW)
    duplicate = write_run(tmp_path, "bf16", 43, predicted(), name="other")
    with pytest.raises(InputError, match=r"bf16-seed43 and .*other are both runs of bf16 .*43"):
        compare_folders([*runs, duplicate])


def test_a_placebo_of_another_mode_is_refused(tmp_path):
    runs = write_runs(
        tmp_path, {"tf32": [range(5)], "bf16": [range(5)], "placebo": [range(5)]}, seeds=[42]
    )
    with pytest.raises(InputError, match=r"placebo-seed42: this placebo run is in fp32, but"):
        compare_folders(runs, baseline="tf32")


@pytest.mark.parametrize(
    ("metric", "margin", "message"),
    [
        ("accuracy", 0.0, "--margin 0: the margin must be above 0 and below 100"),
        ("accuracy", float("nan"), "--margin nan: the margin must be"),
    ],
)
def test_arguments_out_of_range(tmp_path, metric, margin, message):
    with pytest.raises(InputError, match=message):
        compare_folders([tmp_path], metric=metric, margin=margin)


@pytest.mark.slow
def test_a_metric_that_the_runs_lack_is_refused(tmp_path):
    runs = write_runs(tmp_path, {"fp32": [()] * 5, "bf16": [()] * 5})
    with pytest.raises(InputError, match=r"--metric acuracy: .* Did you mean 'accuracy'\?"):
        compare_folders(runs, metric="acuracy")


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"the folder does not exist\. Give the --output_dir of a run"
    ):
        compare_folders([tmp_path / "missing"])
    with pytest.raises(InputError, match="is not the folder of a run"):
        compare_folders([tmp_path])
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="does not contain any runs"):
        compare_folders([tmp_path])


@pytest.mark.slow
def test_a_diverged_seed_makes_the_mode_unstable_without_means(tmp_path):
    runs = write_runs(tmp_path, {**WRONG, "placebo": [range(5)] * 3}, seeds=FEW)
    for seed, status in zip(FEW, ("finished", "diverged", "diverged"), strict=True):
        predictions = predicted(range(9)) if status == "finished" else None
        runs.append(write_run(tmp_path, "fp16", seed, predictions, status=status, reason="NaN"))
    comparison = compare_folders(runs)
    arm = comparison.arm("fp16")
    assert (arm.status, arm.status_words) == ("unstable", "unstable, 2 of 3")
    assert [(run.status, run.reason) for run in arm.runs][1] == ("diverged", "NaN")
    assert arm.metrics == {}
    assert (arm.difference, arm.flips, arm.classes, arm.confusion) == (None, None, (), ())
    assert len(arm.curves) == 3
    # The other modes are not affected.
    others = [run for run in runs if "fp16" not in run.name]
    assert comparison.arm("bf16") == compare_folders(others).arm("bf16")


@pytest.mark.slow
@pytest.mark.parametrize("status", ["running", "interrupted", "contradicted"])
def test_a_mode_with_an_unfinished_run_has_failed(tmp_path, status):
    runs = write_runs(tmp_path, WRONG, seeds=FEW)
    runs += [write_run(tmp_path, "fp16", seed, status=status) for seed in FEW]
    arm = compare_folders(runs).arm("fp16")
    assert (arm.status, arm.status_words) == ("failed", "failed, 3 of 3")
    assert (arm.speed, arm.memory, arm.metrics) == (None, None, {})


def test_without_a_complete_baseline_there_is_no_difference(tmp_path):
    runs = [write_run(tmp_path, "fp32", seed, status="diverged") for seed in FEW]
    runs += [write_run(tmp_path, "bf16", seed, predicted()) for seed in FEW]
    comparison = compare_folders(runs)
    assert comparison.arm("bf16").difference is None
    assert comparison.arm("bf16").metrics["accuracy"].mean == 1
    assert comparison.margin_share_of_errors is None
    assert "no baseline: fp32 is unstable, 3 of 3" in remark_texts(comparison.stamps)


def test_unfinished_runs_are_refused(tmp_path):
    runs = [write_run(tmp_path, arm, 42, status="running") for arm in ("fp32", "bf16")]
    with pytest.raises(InputError, match=r"fp32 failed, 1 of 1, bf16 failed, 1 of 1"):
        compare_folders(runs)


def test_two_seeds_give_a_table_without_error_bars(tmp_path):
    runs = write_runs(tmp_path, {arm: each[:2] for arm, each in WRONG.items()}, seeds=SEEDS[:2])
    comparison = compare_folders(runs)
    arm = comparison.arm("bf16")
    assert arm.difference is None
    assert arm.flips is not None
    assert arm.metrics["accuracy"].sd is not None
    ways = "need at least 3, or one run per arm to compare these models only"
    assert f"only 2 seeds: error bars and verdicts {ways}" in remark_texts(comparison.stamps)
    (text,) = verdict_texts(comparison)
    assert "needs at least 3 seeds, or one run per mode to compare these models only" in text


def test_one_run_per_mode_gives_error_bars_over_examples(tmp_path):
    runs = write_runs(tmp_path, {arm: each[:1] for arm, each in WRONG.items()}, seeds=SEEDS[:1])
    comparison = compare_folders(runs)
    arm = comparison.arm("bf16")
    assert arm.difference is not None
    assert arm.difference.seed_variance is None
    assert arm.metrics["accuracy"].sd is None
    assert any(text.startswith("one model per arm") for text in remark_texts(comparison.stamps))
    assert len(verdict_texts(comparison)) == 1


def test_predictions_of_other_examples_are_refused(tmp_path):
    write_runs(tmp_path, WRONG, seeds=FEW)
    other = labels().copy()
    other[9] = 1
    folder = write_run(tmp_path / "b", "bf16", 42, predicted(), truth=other, name="bf16-seed42")
    runs = [Path(tmp_path, f"{arm}-seed{seed}") for arm in WRONG for seed in FEW]
    runs[runs.index(tmp_path / "bf16-seed42")] = folder
    with pytest.raises(
        InputError, match=r"different labels\. .* examples is 1, .* the first is example 9"
    ):
        compare_folders(runs)


def test_a_run_without_its_predictions_is_named(tmp_path):
    runs = write_runs(tmp_path, WRONG, seeds=FEW)
    (runs[-1] / "predictions.parquet").unlink()
    with pytest.raises(InputError, match=r"bf16-seed44.predictions.parquet: not the predictions"):
        compare_folders(runs)


def test_a_record_without_a_seed_is_refused(tmp_path):
    run = write_run(tmp_path, "fp32", 42, arguments={})
    with pytest.raises(InputError, match=r"the arguments in its run\.json have no seed"):
        compare_folders([run])
