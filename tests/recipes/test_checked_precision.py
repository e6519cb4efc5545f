"""`--check_precision`: its verdict, and that the training after it is the same."""

from __future__ import annotations

import pytest
import torch
from running import CLASSIFY, call_here, printed, succeeded, text_settings
from tiny_text import save_tiny_bert
from transformers import BertForSequenceClassification

from ampft.checks.harm import GradientChange
from ampft.runs import prepared_checks
from ampft.runs.prepared_checks import PrecisionCheck, _worst_module

CHECK = "--check_precision"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_it_says_how_exact_the_gradient_is_and_changes_nothing(mode, files, tiny_model, tmp_path):
    folders = []
    for flags in ((), (CHECK,)):
        folders.append(tmp_path / f"run{len(flags)}")
        words = text_settings(files, tiny_model, folders[-1])
        done = succeeded(call_here(
            CLASSIFY, *words, "--mixed_precision", mode, "--max_train_steps", 4, *flags
        ))  # fmt: skip
    text = printed(done.stdout, "precision")
    assert f"{mode} holds on 8 examples: the gradient differs from float32 by" in text
    assert "warning" not in text
    for name in ("model.safetensors", "predictions.parquet"):
        one, other = ((folder / name).read_bytes() for folder in folders)
        assert one == other, name


@pytest.mark.slow
def test_a_model_that_overflows_is_refused_before_anything_is_written(monkeypatch, files, tmp_path):
    devices = []  # whose peak memory is that of the training only
    monkeypatch.setattr(prepared_checks, "reset_peak_memory", devices.append)
    model = save_tiny_bert(tmp_path / "model", weight=1e5)
    words = text_settings(files, model, tmp_path / "run")
    done = call_here(CLASSIFY, *words, "--mixed_precision", "fp16", CHECK)
    assert done.returncode == 2
    assert "fp16 does not hold: loss or gradient is not finite at any loss scale" in done.stderr
    assert "Use --mixed_precision bf16 or fp32" in done.stderr
    assert not (tmp_path / "run").exists()
    assert devices == [torch.device("cpu")]


def test_fp32_has_nothing_to_compare(files, tiny_model, tmp_path):
    words = text_settings(files, tiny_model, tmp_path / "run")
    done = call_here(CLASSIFY, *words, CHECK)
    assert done.returncode == 2
    assert "--check_precision with fp32: there is nothing to compare" in done.stderr


def test_the_error_is_relative_and_names_the_worst_module():
    exact = {"a.weight": torch.tensor([3.0, 4.0]), "b.weight": torch.tensor([0.0, 12.0])}
    gradient = {"a.weight": torch.tensor([3.0, 5.0]), "b.weight": torch.tensor([0.0, 12.0])}
    change = GradientChange.of(gradient.values(), exact.values())
    assert change.error == pytest.approx(1 / 13)
    assert _worst_module(change, list(exact)) == ("a", pytest.approx(1 / 5))


def test_a_large_error_a_skipped_start_and_lost_entries_are_said():
    check = PrecisionCheck("bf16", 8, 1.0, 1.1, 0.3, ("head", 0.4), 0.05, 1024.0, 65536.0, 0.15)
    text = " ".join(check.notes)
    assert "warning: an error of at most 15% is usual" in text
    assert "the first steps will be skipped" in text
    assert "5.0% of the gradient becomes 0 in bf16" in text
    good = PrecisionCheck("bf16", 8, 1.0, 1.0, 0.01, ("head", 0.02), 0.0, None, None, 0.15)
    assert len(good.notes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("runs_in_float32", [True, False])
def test_float32_is_advised_where_the_model_runs_in_it(
    runs_in_float32, monkeypatch, files, tiny_model, tmp_path
):
    original, calls = BertForSequenceClassification.forward, []

    def forward(self, *args, **inputs):
        if torch.is_autocast_enabled("cpu"):
            calls.append("bf16")
            raise RuntimeError("no kernel for this dtype")
        if calls and not runs_in_float32:  # not while it is loaded
            raise RuntimeError("no kernel for any dtype")
        return original(self, *args, **inputs)

    monkeypatch.setattr(BertForSequenceClassification, "forward", forward)
    words = text_settings(files, tiny_model, tmp_path / "run")
    done = call_here(CLASSIFY, *words, "--mixed_precision", "bf16", "--padding")
    assert done.returncode == 2
    advice = " It runs in float32: use --mixed_precision fp32." if runs_in_float32 else ""
    message = f"cannot run in bf16 (no kernel for this dtype).{advice}"
    assert done.stderr.rstrip().endswith(message)
    assert not (tmp_path / "run").exists()
