"""Runs with each optimizer and with layer-wise rates: recorded, and resumed bit for bit."""

from __future__ import annotations

import json

import pytest
from representatives import full_except
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import CLASSIFY, call_here, text_settings

CHOICES = {
    "adafactor": ("--optim", "adafactor"),
    "muon": ("--optim", "muon", "--layer_decay", "0.8"),
    "layer_decay": ("--layer_decay", "0.5"),
    "8 bits": ("--optim", "adamw_bnb_8bit", "--weight_decay", "0.1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", full_except(["fp32", "fp16"], ["fp16"]))
@pytest.mark.parametrize("choice", full_except(CHOICES, ["muon", "8 bits"]))
def test_a_run_resumes_bit_for_bit(files, tiny_model, tmp_path, choice, mode):
    words = (*CHOICES[choice], "--mixed_precision", mode, "--max_train_steps", "7")
    words = (*words, "--checkpointing_steps", "2")
    for name, stop, more in (("one", None, ()), ("two", 6, ()), ("two", None, LATEST)):
        with interrupted(stop):
            settings = two_epochs(files, tiny_model, tmp_path / name, *words, *more)
            done = call_here(CLASSIFY, *settings)
        assert done.returncode == (130 if stop else 0), done.stderr
    record = json.loads((tmp_path / "two/run.json").read_text())
    assert record["resumes"][0]["step"] == 4
    assert evidence(tmp_path / "one") == evidence(tmp_path / "two")
    flags = dict(zip(CHOICES[choice][::2], CHOICES[choice][1::2], strict=True))
    named = flags.get("--optim", "adamw_torch").replace("bnb_", "")
    assert record["arguments"]["optim"] == named
    assert record["arguments"]["layer_decay"] == (
        float(flags["--layer_decay"]) if "--layer_decay" in flags else None
    )
    titles = {"adafactor": "Adafactor, learning", "muon": "Muon with AdamW, learning"}
    titles["8 bits"] = "8-bit AdamW, learning"
    assert titles.get(choice, "times 0.5 per layer below") in done.stdout


@pytest.mark.slow
def test_a_checkpoint_of_another_optimizer_is_refused(files, tiny_model, tmp_path):
    words = ("--max_train_steps", "4", "--checkpointing_steps", "2")
    with interrupted(3):
        call_here(CLASSIFY, *two_epochs(files, tiny_model, tmp_path / "run", *words))
    settings = two_epochs(files, tiny_model, tmp_path / "run", *words, *LATEST)
    done = call_here(CLASSIFY, *settings, "--optim", "adafactor")
    assert done.returncode == 2
    assert "--optim" in done.stderr


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--optim", "adafactor", "--adam_beta1", "0.8"), "--adam_beta1 0.8 has no effect"),
        (("--optim", "muon", "--mixed_precision", "bf16-true"), "--optim muon is not supported"),
        (("--optim", "sgd"), "--optim"),
        (("--optim", "paged_adamw_8bit"), "Use --optim adamw_8bit."),
        (("--optim", "adamw_8bit", "--mixed_precision", "bf16-true"), "is not supported"),
        (("--layer_decay", "0"), "--layer_decay"),
    ],
)
def test_refused_settings_end_with_code_2(files, tiny_model, tmp_path, words, message):
    done = call_here(CLASSIFY, *text_settings(files, tiny_model, tmp_path / "run"), *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
