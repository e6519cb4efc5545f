"""The time that a run says before its first step, which changes nothing of the run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from running import rows

import ampft
from ampft.checks import expected_time
from ampft.checks.expected_time import _steady, print_expected_time

pytestmark = pytest.mark.add_ons


@pytest.fixture
def settings(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    return {
        "model_name_or_path": str(tiny_model),
        "max_train_steps": 4,
        "use_cpu": True,
        "serve_back": False,
        "baseline": False,
    }


def frame(count: int = 60) -> pd.DataFrame:
    return pd.DataFrame(rows(count, 0), columns=["text", "label"])


def steps_of(run):
    lines = (run.folder / "history.jsonl").read_text().splitlines()
    values = [json.loads(line) for line in lines]
    return [(each["loss"], each["grad_norm"], each["learning_rate"]) for each in values]


def weights_of(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_is_said_before_the_first_step_and_changes_no_bit(
    settings, precision, capsys, monkeypatch
):
    said = ampft.finetune(frame(), precision=precision, **settings)
    lines = capsys.readouterr().out.splitlines()
    (place,) = [i for i, line in enumerate(lines) if line.startswith("time  ")]
    names = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert names.index("steps") < names.index("time") < names.index("ran")
    assert lines[place].endswith("for 4 training steps and the evaluations")
    monkeypatch.setattr(expected_time, "print_expected_time", lambda prepared: None)
    silent = ampft.finetune(frame(), precision=precision, **settings)
    assert "time  " not in capsys.readouterr().out
    assert steps_of(said) == steps_of(silent)  # dropout draws the same numbers
    pairs = weights_of(said), weights_of(silent)
    assert all(torch.equal(value, pairs[1][name]) for name, value in pairs[0].items())


@pytest.mark.slow
def test_a_run_goes_on_if_nothing_could_be_timed(settings, capsys, monkeypatch):
    def failing(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(expected_time, "accumulate_gradient", failing)
    assert ampft.finetune(frame(), **settings).record.status == "finished"
    assert "time  " not in capsys.readouterr().out


def prepared(**changed):
    """Return what is read of a training of 100 steps, whose gradient takes 0.5 s."""
    args = SimpleNamespace(optim="adamw_torch", eval_steps=None, max_time=None)
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), num_processes=1, state=SimpleNamespace(dynamo_plugin=None)
    )
    batches = type("Batches", (), {"__len__": lambda _: 20, "effective_batch_size": 8})()
    splits = {"train": range(160), "validation": range(24), "test": range(120)}
    values = {
        "args": args,
        "accelerator": accelerator,
        "resume_point": None,
        "total_steps": 100,
        "step_batches": batches,
        "validated_epochs": 1,
        "selects_best": True,
        "final_split": "test",
        "loaded": SimpleNamespace(model=None),
        "task": SimpleNamespace(data=SimpleNamespace(splits=splits)),
    }
    return SimpleNamespace(**{**values, **changed})


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        # 100 * 0.6 s, and 120 + 5 * 24 rows of 0.5 / 8 / 3 s
        ({}, "about 65 s for 100 training steps and the evaluations"),
        ({"selects_best": False}, "about 62 s for 100 training steps and the evaluations"),
        ({"total_steps": 1}, "about 4 s for 1 training step and the evaluations"),
        (
            {
                "resume_point": SimpleNamespace(
                    checkpoint=SimpleNamespace(
                        manifest=SimpleNamespace(cursor=SimpleNamespace(step=90))
                    )
                )
            },
            "about 6 s for 10 training steps and the evaluations",
        ),
        ({"args": SimpleNamespace(optim="muon", eval_steps=None, max_time=None)}, None),
    ],
)
def test_steps_updates_and_evaluated_rows_are_counted(changed, text, monkeypatch, capsys):
    monkeypatch.setattr(expected_time, "configured_backend", lambda accelerator: None)
    monkeypatch.setattr(expected_time, "_gradient_seconds", lambda prepared: 0.5)
    monkeypatch.setattr(expected_time, "_update_seconds", lambda model: 0.1)
    print_expected_time(prepared(**changed))
    assert capsys.readouterr().out == ("" if text is None else f"time       {text}\n")


def test_a_slow_gradient_is_computed_once():
    calls = iter([1.5, 0.5])
    assert _steady(lambda: next(calls)) == 1.5
    assert next(calls) == 0.5
    calls = iter([0.9, 0.5])
    assert _steady(lambda: next(calls)) == 0.5
