"""`ampft estimate`: the arithmetic and the lines; `recipes/test_estimate.py` runs a trial."""

from __future__ import annotations

import pytest

from ampft import cli
from ampft.arguments import parse_classify_arguments
from ampft.comparison.execution import duration, planning
from ampft.comparison.execution.plan import CostEstimate, ModeCost, TrainingSize, TrialResult

ESTIMATE = CostEstimate(
    startup=10.0,
    modes={
        "fp32": ModeCost(step=0.5, evaluated_example=0.01),
        "bf16": ModeCost(step=0.25, evaluated_example=0.02),
    },
    executions={"fp32": "native", "bf16": "emulated"},
    device="CPU, 2 threads",
    size=TrainingSize(epochs=2, train_examples=90),
    effective_batch_size=10,
    validation_examples=50,
    final_examples=100,
    classes=3,
    model_bytes=2**20,
)


@pytest.fixture
def trials(monkeypatch):
    """Answers every trial with `ESTIMATE`; returns the modes that were asked for."""
    asked = []

    def run_trial(argv, modes, config_file):
        asked.append(modes)
        return TrialResult(
            ESTIMATE, tuple(modes), {}, {}, peak_memory=300 * 2**20, disk_bytes=2 * 2**20
        )

    monkeypatch.setattr(planning, "run_trial", run_trial)
    return asked


def estimated(*flags):
    return duration.estimate_duration(parse_classify_arguments(flags), flags)


def test_steps_start_and_evaluation_add_up(trials):
    found = estimated("--mixed_precision", "bf16")
    assert trials == [["bf16"]]
    assert (found.steps, found.steps_per_epoch) == (18, 9)
    assert found.evaluation_seconds == pytest.approx((2 * 50 + 100) * 0.02)
    assert found.seconds == pytest.approx(10 + 18 * 0.25 + found.evaluation_seconds)


def test_float32_is_timed_for_its_evaluation(trials):
    found = estimated("--mixed_precision", "bf16", "--evaluate_fp32")
    assert trials == [["fp32", "bf16"]]
    assert found.evaluation_seconds == pytest.approx((2 * 50 + 100) * 0.02 + 100 * 0.01)


def test_the_mode_of_the_launcher_counts(trials, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert estimated().mode == "bf16"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert estimated().mode == "fp32"


def test_what_the_trial_cannot_know_is_said(trials):
    flags = ("--max_time", "5s", "--early_stopping_patience", "2", "--baseline")
    notes = " ".join(estimated(*flags).notes)
    assert "--max_time 5s will end" in notes
    assert "--early_stopping_patience may end" in notes
    assert "Not included: --baseline." in notes
    assert estimated("--max_time", "2h").notes == ()


def test_the_lines(trials):
    text = duration.duration_text(estimated("--mixed_precision", "bf16"))
    assert "bf16 (emulated) on CPU, 2 threads" in text
    assert "18 steps = 2 epochs x 9; 90 training examples; effective batch 10" in text
    assert "about 18 s: 250 ms per step, 10 s to start, 4 s to evaluate" in text
    assert "300 MiB after the longest step" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--", "--train_file", "absent.csv"], "absent.csv"),
        (["--", "--learning_rat", "1"], "--learning_rate"),
        (["--jsn"], "--jsn"),
        (["--", "--output_dir", "x", "--resume_from_checkpoint", "latest"], "from its beginning"),
    ],
)
def test_bad_input_is_refused(flags, message, trials, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["estimate", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not trials
    assert not list(tmp_path.iterdir())
