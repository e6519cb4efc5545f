"""The recipe with a model whose activations overflow in fp16: the run stops and is recorded."""

import itertools
import json

import pytest
import torch
from running import CLASSIFY, call_here
from tiny_text import save_tiny_bert, tiny_texts
from transformers import AutoModelForSequenceClassification

import ampft
from ampft.arguments import parse_classify_arguments
from ampft.own.replay import replay_step
from ampft.precision.accelerator import numerics
from ampft.runs.prepare import prepare

# The sum of 64 features of this size, times weights around 0.2, exceeds 65504.
LARGE = 60_000.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_accelerate")]


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("overflowing"), weight=LARGE)


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    rows = tiny_texts(60)
    lines = [f"{text},{'abc'[label]}" for text, label in zip(*rows.values(), strict=True)]
    path = tmp_path_factory.mktemp("texts") / "train.csv"
    path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    return path


def words(model, train_file, folder):
    return [
        "--model_name_or_path", str(model), "--train_file", str(train_file),
        "--output_dir", str(folder), "--per_device_train_batch_size", "2",
    ]  # fmt: skip


def run(model, train_file, folder, *flags):
    mode = ("--mixed_precision", "fp16")
    return call_here(CLASSIFY, *words(model, train_file, folder), *mode, *flags)


@pytest.mark.parametrize(
    ("flags", "reason", "skipped"),
    [
        ([], "fp16 overflows at every loss scale", 17),
        # Too few steps for the scale to reach its minimum.
        (["--max_train_steps", "3"], "have a probability that is not finite", 3),
    ],
)
def test_an_overflowing_model_ends_the_run_as_diverged(
    overflowing, train_file, tmp_path, flags, reason, skipped
):
    folder = tmp_path / "run"
    done = run(overflowing, train_file, folder, *flags)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert reason in done.stderr
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "diverged"
    assert reason in record["reason"]
    assert "--mixed_precision bf16" in record["reason"]
    assert record["steps"]["skipped"] == skipped
    assert record["steps"]["applied"] == 0
    assert not record["metrics"]
    history = (folder / "history.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in history.splitlines()]
    assert [row["skipped"] for row in rows] == [True] * skipped
    assert rows[-1]["loss_scale"] == 2.0 ** (16 - skipped)
    assert [row["step"] for row in rows] == list(range(1, skipped + 1))
    assert rows[-1]["grad_norm"] in {"inf", "nan"}
    assert not list(folder.glob("*.safetensors"))
    # The loss scale fell ten times without rising.
    assert [row["step"] for row in rows if row["alarm"]] == ([10] if skipped > 10 else [])
    assert ("alarm      the loss scale fell 10 times" in done.stdout) == (skipped > 10)
    assert ("falling_loss_scale" in record["warnings"]) == (skipped > 10)


def test_the_same_model_is_finite_in_float32(overflowing):
    # Negative control: the precision causes the overflow, not the model.
    model = AutoModelForSequenceClassification.from_pretrained(overflowing, dtype=torch.float32)
    with torch.no_grad():
        assert model(torch.arange(5, 15)[None]).logits.isfinite().all()


def test_the_step_that_stops_a_run_is_in_its_history(train_file, tmp_path):
    folder = tmp_path / "run"
    model = save_tiny_bert(tmp_path / "model")
    done = run(model, train_file, folder, "--mixed_precision", "fp32", "--learning_rate", "1e30")
    assert done.returncode == 3, done.stderr
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    history = (folder / "history.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in history.splitlines()]
    assert f"the gradient is not finite (loss {rows[-1]['loss']}, norm nan)" in record["reason"]
    assert rows[-1]["grad_norm"] == "nan"
    assert [row["skipped"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert record["steps"]["applied"] == len(rows) - 1
    assert len(rows) < 27, "the run did not stop early"
    saved = folder / "nonfinite" / f"step-{len(rows)}"
    assert f"{saved.relative_to(folder)}/step.json" in record["files"]
    assert f"saved      {saved}" in done.stdout
    assert " ".join(done.stdout.split()).endswith(f"diagnose ampft doctor {folder}")
    prepared = prepare(parse_classify_arguments(words(model, train_file, tmp_path / "again")))
    with numerics(prepared.precision):
        replay = replay_step(saved, prepared.accelerator, prepared.model, prepared.task.loss)
    assert replay.is_exact
    assert replay.saved.step == len(rows)
    assert any(not loss.isfinite().all() for loss in replay.losses)


def test_skipping_is_bounded(train_file, tmp_path):
    folder = tmp_path / "run"
    model = save_tiny_bert(tmp_path / "model")
    flags = ("--mixed_precision", "fp32", "--learning_rate", "1e30", "--on_nonfinite", "skip")
    done = run(model, train_file, folder, *flags)
    assert done.returncode == 3, done.stderr
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "diverged"
    # Ten steps are skipped, and the next one ends the run.
    assert record["steps"]["skipped"] == 11
    last = record["steps"]["applied"] + 11
    assert "10 of at most 10 such steps" in " ".join(done.stdout.split())
    assert {path.name for path in (folder / "nonfinite").iterdir()} == {
        *(f"step-{last - n}" for n in (10, 9, 8)),
        f"step-{last}",
    }


def test_a_run_that_skipped_a_step_finishes_with_a_warning(train_file, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    model = save_tiny_bert(tmp_path / "model")
    apply_step, calls = ampft.apply_step, itertools.count()

    def poisoned(accelerator, model, *rest, **options):
        if next(calls) == 2:
            next(model.parameters()).grad.view(-1)[0] = torch.nan
        return apply_step(accelerator, model, *rest, **options)

    monkeypatch.setattr(ampft, "apply_step", poisoned)
    flags = ("--mixed_precision", "fp32", "--on_nonfinite", "skip", "--max_train_steps", "5")
    done = run(model, train_file, folder, *flags)
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert (record["steps"]["applied"], record["steps"]["skipped"]) == (4, 1)
    # A comparison gives no verdict on a mode with such a run.
    assert "not finite in 1 step" in record["warnings"]["skipped_nonfinite"]
    assert "nonfinite/step-3/model.safetensors" in record["files"]
