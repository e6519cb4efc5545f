"""Results of arms with known predictions: differences, flips, classes, speed, memory, curves."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from run_folders import MIB, NAMES, SEEDS, N, labels, predicted, record_of, write_run, write_runs

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.analysis.run_figures import MAX_POINTS, execution_kind
from ampft.comparison.remarks import remark_text
from ampft.comparison.statistics.interval import estimate_difference, jackknife_differences
from ampft.comparison.statistics.speed_up import speed_up
from ampft.comparison.statistics.verdict import mcnemar_mid_p
from ampft.comparison.verdict_text import verdict_texts
from ampft.metrics.scores import scalar_scores
from ampft.metrics.sums import ACCURACY, single_label_sums

FEW = SEEDS[:3]
# Wrong examples per seed: bf16 corrects some errors of fp32 and makes others.
FP32 = [range(10), range(10), range(10)]
BF16 = [range(4, 12), range(2, 10), [*range(10), 50, 51, 52]]


def compared(tmp_path, wrong, *, seeds=FEW, **changes):
    return compare_folders(write_runs(tmp_path, wrong, seeds=seeds, **changes))


@pytest.mark.slow
def test_metrics_and_differences(tmp_path):
    comparison = compared(tmp_path, {"fp32": FP32, "bf16": BF16})
    arm = comparison.arm("bf16")
    assert arm.metrics["accuracy"].per_seed == pytest.approx((0.96, 0.96, 0.935))
    assert arm.metrics["accuracy"].sd == pytest.approx(np.std([0.96, 0.96, 0.935], ddof=1))
    assert arm.metrics["log_loss"].per_seed[2] == pytest.approx(
        -0.935 * math.log(0.8) - 0.065 * math.log(0.1), rel=1e-5
    )
    report = scalar_scores(labels(), predicted(BF16[0]), 3)
    for name in ("accuracy", "macro_f1", "balanced_accuracy", "matthews"):
        assert arm.metrics[name].per_seed[0] == pytest.approx(report[name], abs=1e-12)
    assert comparison.margin_share_of_errors == pytest.approx(0.01 / 0.05)
    expected = estimate_difference(
        jackknife_differences(
            [single_label_sums(labels(), predicted(wrong), 3) for wrong in BF16],
            [single_label_sums(labels(), predicted(wrong), 3) for wrong in FP32],
            ACCURACY,
        )
    )
    difference = arm.difference
    assert difference is not None
    assert difference.estimate == pytest.approx((2 + 2 - 3) / 3 / N)
    assert difference.interval95 == expected.interval(0.95)
    assert difference.interval90 == expected.interval(0.9)
    assert difference.p_difference == difference.p_difference_holm == expected.p_difference()
    assert difference.verdict == "undecided"


@pytest.mark.slow
def test_the_placebo_gets_no_verdict(tmp_path):
    wrong = {"fp32": [range(10)] * 3, "bf16": [range(30)] * 3, "fp16": [range(9)] * 3}
    without_placebo = compared(tmp_path / "a", wrong)
    with_placebo = compared(tmp_path / "b", {**wrong, "placebo": [range(60)] * 3})
    placebo = with_placebo.arm("placebo").difference
    assert placebo is not None
    assert placebo.interval95[1] < 0
    assert (placebo.p_difference, placebo.p_difference_holm, placebo.verdict) == (None, None, None)
    for name in ("bf16", "fp16"):  # the placebo is not part of the Holm family
        assert with_placebo.arm(name).difference == without_placebo.arm(name).difference
    assert len(verdict_texts(with_placebo)) == 2


@pytest.mark.slow
def test_macro_f1_as_the_primary_metric(tmp_path):
    runs = write_runs(tmp_path, {"fp32": FP32, "bf16": BF16}, seeds=FEW)
    comparison = compare_folders(runs, metric="macro_f1")
    means = [arm.metrics["macro_f1"].mean for arm in comparison.arms]
    difference = comparison.arm("bf16").difference
    assert difference is not None
    assert difference.estimate == pytest.approx(means[1] - means[0])
    assert comparison.arms[0].curves[0].validation_metric == (0.4, 0.7)


@pytest.mark.slow
def test_planted_flips_are_counted(tmp_path):
    flips = compared(tmp_path, {"fp32": FP32, "bf16": BF16}).arm("bf16").flips
    assert flips is not None
    # Seed 42: 0-3 gained, 10 and 11 lost. Seed 43: 0 and 1 gained. Seed 44: 50-52 lost.
    assert flips.per_seed == (6, 2, 3)
    assert flips.mean == pytest.approx(11 / 3)
    assert (flips.gained, flips.lost) == (2, pytest.approx(5 / 3))
    assert flips.mcnemar_mid_p == (mcnemar_mid_p(4, 2), mcnemar_mid_p(2, 0), mcnemar_mid_p(0, 3))
    examples = flips.examples
    assert [(each.example_id, each.seeds) for each in examples] == [
        *((0, 2), (1, 2), (2, 1), (3, 1)),
        *((10, 1), (11, 1), (50, 1), (51, 1), (52, 1)),
    ]
    assert examples[0].text == "text 0"
    assert (examples[0].label, examples[0].baseline, examples[0].arm) == ("no", "yes", "no")
    assert examples[-1].baseline == examples[-1].label
    assert examples[0].arm_confidence == pytest.approx(0.8)


@pytest.mark.slow
def test_long_texts_are_truncated_and_examples_are_limited(tmp_path):
    none, many = [[]] * 3, [range(5, 100)] * 3
    flips = compared(tmp_path, {"fp32": none, "bf16": many}).arm("bf16").flips
    assert flips is not None
    assert flips.per_seed == (95, 95, 95)
    assert [each.example_id for each in flips.examples] == list(range(5, 17))
    # Of the second and third row group of the file too.
    assert [each.text for each in flips.examples][:2] == ["text 5", "text 6"]
    assert len(flips.examples[2].text) == 200
    assert flips.examples[2].text.endswith("…")


@pytest.mark.slow
def test_texts_come_from_the_right_row_group(tmp_path):
    flips = compared(tmp_path, {"fp32": [[]] * 3, "bf16": [[63, 64, 199]] * 3}).arm("bf16").flips
    assert flips is not None
    assert [each.text for each in flips.examples] == ["text 63", "text 64", "text 199"]


@pytest.mark.slow
def test_classes_confusion_and_calibration(tmp_path):
    comparison = compared(tmp_path, {"fp32": [range(0, 9)] * 3, "bf16": [range(0, 3)] * 3})
    arm = comparison.arm("bf16")
    assert [row.name for row in arm.classes] == list(NAMES)
    assert [row.support for row in arm.classes] == [67, 67, 66]
    assert arm.classes[0].recall == pytest.approx(66 / 67)
    assert arm.classes[0].f1_difference == pytest.approx(
        arm.classes[0].f1 - comparison.baseline.classes[0].f1
    )
    assert comparison.baseline.classes[0].f1_difference is None
    assert arm.confusion == ((198, 3, 0), (0, 198, 3), (3, 0, 195))
    filled = [each for each in arm.calibration if each.count]
    assert len(arm.calibration) == 10
    assert [(each.low, each.high, each.count) for each in filled] == [(0.8, 0.9, 600)]
    assert filled[0].accuracy == pytest.approx(197 / 200)
    assert filled[0].confidence == pytest.approx(0.8)


@pytest.mark.slow
def test_models_in_their_own_precision_and_in_fp32(tmp_path):
    runs = write_runs(tmp_path, {"fp32": FP32}, seeds=FEW)
    for seed in FEW:
        in_bf16, in_fp32 = predicted(range(20)), predicted(range(12))
        runs.append(write_run(tmp_path, "bf16", seed, in_bf16, in_fp32=in_fp32))
    arm = compare_folders(runs).arm("bf16")
    assert arm.metrics["accuracy"].mean == pytest.approx(0.9)
    assert arm.metrics_fp32["accuracy"].mean == pytest.approx(0.94)
    assert arm.difference_fp32 is not None
    assert arm.difference_fp32.estimate == pytest.approx(-2 / N)
    assert (arm.difference_fp32.p_difference, arm.difference_fp32.verdict) == (None, None)
    # If one run lacks it, the arm has none.
    (runs[-1] / "predictions_fp32.parquet").unlink()
    arm = compare_folders(runs).arm("bf16")
    assert (arm.metrics_fp32, arm.difference_fp32) == ({}, None)


@pytest.mark.slow
def test_speed_is_compared_seed_by_seed(tmp_path):
    wrong = {mode: [[]] * 3 for mode in ("fp32", "tf32", "bf16", "fp16")}
    comparison = compared(tmp_path, wrong)
    speed = comparison.arm("bf16").speed
    assert speed is not None
    ratios = [(0.1 + seed / 1e5) / (0.05 + seed / 1e5) for seed in FEW]
    assert speed.speed_up == speed_up(ratios, in_turns=False)  # no plan interleaved the runs
    assert speed.speed_up.verdict is None
    assert speed.speed_up_over_tf32.ratio == pytest.approx(ratios[1], rel=1e-6)
    assert speed.reason is None
    emulated = comparison.arm("fp16").speed
    assert emulated is not None
    assert (emulated.speed_up, emulated.speed_up_over_tf32, emulated.reason) == (None, None, None)
    base = comparison.baseline.speed
    assert base is not None
    assert (base.speed_up, base.total_seconds) == (None, 10.0)


@pytest.mark.parametrize(
    ("slow", "base", "words"),
    [
        ({"waiting_share": 0.4}, {}, "waits for data in 40 % of its step time"),
        ({}, {"doubled_batch_ratio": 1.05}, "launch-bound: in fp32, twice the batch takes 1.05"),
        ({}, {"utilisation": 0.2}, "matrix products are too small: .* 20 % of fp32's step"),
        (
            {"matrix_rate_gflops": 200.0},
            {},
            r"are 1\.1x faster in bf16, which allows a speed-up of 1\.06x",
        ),
        ({}, {}, r"are 2\.2x faster in bf16, .* casts and memory traffic"),
        ({"matrix_rate_gflops": "nan"}, {}, "unknown, because"),
        ({}, {"utilisation": None}, "unknown, because"),
    ],
)
def test_a_mode_that_is_hardly_faster_has_a_reason(tmp_path, slow, base, words):
    runs = []
    for arm, changes in (("fp32", base), ("bf16", slow)):
        for seed in FEW[:1]:
            timings = {**record_of(arm, seed).timings, "step_seconds_median": 0.1, **changes}
            runs.append(write_run(tmp_path, arm, seed, predicted(), timings=timings))
    speed = compare_folders(runs).arm("bf16").speed
    assert speed is not None
    assert speed.speed_up.ratio == 1
    assert speed.reason is not None
    assert re.search(words, remark_text(speed.reason)), speed.reason


def test_memory_and_its_parts(tmp_path):
    memory = replace(
        record_of("bf16", 42).memory, weights=10, gradients=11, optimizer_state=12,
        activations=13, rest=14,
    )  # fmt: skip
    runs = write_runs(tmp_path, {"fp32": [[]] * 3}, seeds=FEW)
    runs += [write_run(tmp_path, "bf16", seed, predicted(), memory=memory) for seed in FEW]
    comparison = compare_folders(runs)
    measured = comparison.arm("bf16").memory
    assert measured is not None
    assert (measured.peak, measured.ratio) == (900 * MIB, 0.9)
    parts = (
        measured.weights,
        measured.gradients,
        measured.optimizer_state,
        measured.activations,
        measured.rest,
    )
    assert parts == (10, 11, 12, 13, 14)
    base = comparison.baseline.memory
    assert base is not None
    assert (base.ratio, base.weights) == (None, None)


def test_curves_are_thinned_out_without_hiding_anything(tmp_path):
    steps = 1000
    losses = [float(step) for step in range(1, steps + 1)]
    rows = [{"loss_scale": 2.0 ** (step // 500)} for step in range(1, steps + 1)]
    rows[6] |= {"skipped": True}
    losses_with_nan = [*losses[:-1], "nan"]
    runs = [write_run(tmp_path, "fp32", 42, predicted())]
    runs.append(write_run(tmp_path, "fp16", 42, predicted(), losses=losses_with_nan, rows=rows))
    comparison = compare_folders(runs)
    (curve,) = comparison.arm("fp16").curves
    assert len(curve.steps) == len(curve.loss) == MAX_POINTS
    assert (curve.steps[0], curve.steps[-1]) == (5, 1000)
    assert curve.loss[:2] == (3.0, 8.0)  # means of 1 to 5 and 6 to 10
    assert curve.loss[-1] is None
    assert curve.loss_scale is not None
    assert (curve.loss_scale[0], curve.loss_scale[-1]) == (1.0, 4.0)
    assert curve.skipped == (7,)
    assert (curve.validation_steps, curve.validation_metric) == ((20, 40), (0.5, 0.75))
    (without,) = comparison.baseline.curves
    assert (without.steps, without.loss, without.loss_scale) == ((), (), None)


@pytest.mark.parametrize(
    ("of_runs", "of_the_arm"),
    [
        (("native", "native"), "native"),
        (("native", "unproven"), "unproven"),
        (("unproven", "emulated"), "emulated"),
    ],
)
def test_an_arm_is_as_its_least_certain_run(of_runs, of_the_arm):
    plain = record_of("bf16", 1).precision
    precisions = [replace(plain, resolved={"execution": word}) for word in of_runs]
    runs = [SimpleNamespace(record=SimpleNamespace(precision=each)) for each in precisions]
    assert execution_kind(SimpleNamespace(runs=runs)) == of_the_arm


@pytest.mark.slow
def test_steps_setup_and_environment(tmp_path):
    comparison = compared(tmp_path, {"fp32": [[]] * 3, "fp16": [[]] * 3})
    arm = comparison.arm("fp16")
    assert (arm.skipped_steps, arm.total_steps) == ((2, 2, 2), (60, 60, 60))
    assert (arm.execution, arm.executed) == ("emulated", "every product fp16")
    assert comparison.title == "tiny on reviews.csv"
    assert comparison.setup["data"] == "reviews.csv: train 1,000, test 200; 3 classes"
    assert comparison.setup["learning rate"] == "5e-05"
    assert comparison.environment["CPU"] == "a CPU"
    assert comparison.environment["torch"] == "2.13.0"
    assert (comparison.split, comparison.examples, comparison.label_names) == ("test", N, NAMES)
