"""A run from a configuration file, stopped early, with one split for selection and report."""

from __future__ import annotations

import re

import pytest
from running import own_lines

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_the_command_line_wins_over_the_file(fp32_run):
    arguments = fp32_run.record["arguments"]
    assert arguments["learning_rate"] == 8e-3
    assert arguments["padding"] is False
    assert "padding-free path" in fp32_run.stdout


def test_the_file_wins_over_the_defaults(fp32_run):
    arguments = fp32_run.record["arguments"]
    assert arguments["num_train_epochs"] == 12
    assert arguments["metric_for_best_model"] == "macro_f1"
    assert arguments["use_cpu"] is True
    # Settings in neither have their default.
    assert arguments["per_device_train_batch_size"] == 8


def test_without_a_requested_precision_fp32_runs(fp32_run):
    precision = fp32_run.record["precision"]
    assert precision["resolved"]["mode"] == "fp32"
    assert precision["resolved"]["execution"] == "native"
    for row in precision["executed"]["rows"]:
        assert set(row["inputs"]) == {"float32"}


def epochs(run) -> list[tuple[int, float, bool]]:
    found = re.findall(
        r"^epoch (\d+) +validation .* macro F1 ([\d.]+), .*?(\(best\))?$", run.stdout, re.MULTILINE
    )
    return [(int(epoch), float(value), bool(best)) for epoch, value, best in found]


def test_training_stops_at_the_first_epoch_that_is_not_better(fp32_run):
    seen = epochs(fp32_run)
    values = [value for _, value, _ in seen]
    assert values[:-1] == sorted(set(values[:-1])), "each is better than the one before"
    assert values[-1] <= values[-2]
    assert 2 <= len(seen) < 12
    steps = len(fp32_run.history)
    assert steps == 18 * len(seen)
    assert fp32_run.record["steps"]["applied"] == steps
    assert fp32_run.record["steps"]["total"] == 12 * 18


def test_the_best_epoch_is_reported_and_saved(fp32_run):
    epoch, value, _ = [each for each in epochs(fp32_run) if each[2]][-1]
    best = fp32_run.record["best"]
    assert best["metric"] == "macro_f1"
    assert best["epoch"] == epoch
    assert best["value"] == pytest.approx(value, abs=5e-4)
    # The report is that of the best epoch, not of the last.
    assert fp32_run.report["macro_avg"]["f1"] == pytest.approx(best["value"], abs=1e-9)


def test_a_split_used_for_both_is_reported(fp32_run):
    heading = (
        "\nclassification report, validation, 30 examples; the epoch was also chosen on this split"
    )
    assert heading in fp32_run.stdout
    assert "No test split: the validation split chooses the best model" in fp32_run.stdout
    assert fp32_run.record["metrics"]["split"] == "validation"
    assert fp32_run.record["metrics"]["selected"] is True
    assert "No test split" in " ".join(fp32_run.record["data"]["notes"])


def test_nothing_on_stderr(fp32_run):
    assert own_lines(fp32_run.stderr) == []
