"""Temperature, threshold and abstention of whole runs: saved, reported, resumed, predicted."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from running import BIN, call_here, printed, rows, succeeded

import ampft
from ampft.decision import Contract, Decisions

pytestmark = pytest.mark.slow

SETTINGS = {
    "use_cpu": True, "max_train_steps": 24, "learning_rate": 4e-3, "warmup_ratio": 0.2,
    "per_device_train_batch_size": 16,
}  # fmt: skip
FITTED = {"calibrate": True, "tune_thresholds": "recall=0.9", "abstain": 0.3}


def two_classes(count: int, seed: int) -> pd.DataFrame:
    """Return texts on rivers and others, of which one in twenty has the wrong label."""
    generator = random.Random(seed)
    table = [
        (text, "river" if (name == "river") != (generator.random() < 0.05) else "other")
        for text, name in rows(count, seed)
    ]
    return pd.DataFrame(table, columns=["text", "label"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("decisions")


@pytest.fixture(scope="module")
def train(tiny_model, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        patch.chdir(folder)
        yield partial(ampft.finetune, model_name_or_path=str(tiny_model), **SETTINGS)


@pytest.fixture(scope="module")
def run(train, folder):
    for seed, (name, count) in enumerate({"train": 200, "validation": 160, "test": 120}.items()):
        two_classes(count, seed).to_csv(folder / f"{name}.csv", index=False)
    splits = {name: folder / f"{name}.csv" for name in ("train", "validation", "test")}
    return train(**splits, output_dir=folder / "run", checkpointing_steps=8, **FITTED)


def decisions_of(run) -> Decisions:
    return Contract.read(run.folder).rule.decisions


def test_everything_is_saved_and_reported(run):
    part = run.record.decisions
    decisions = decisions_of(run)
    assert part.temperature == decisions.temperature
    assert part.labels[0].threshold == decisions.positive_threshold
    assert part.abstention.least_confidence == decisions.abstention.least_confidence
    assert part.fitted_rows + part.abstention.proving_rows <= 160
    for name in ("report.txt", "README.md"):
        text = (run.folder / name).read_text(encoding="utf-8")
        assert "fitted on 80 validation examples" in text
        assert "at most 30.0 % of the answered rows are wrong" in text
        assert "Logits are divided by the temperature" in text
    assert "decisions, test, 120 examples" in repr(run)
    assert "at most" in run._repr_html_() or "temperature" in run._repr_html_()


def test_the_saved_model_predicts_as_the_run_did(run, folder):
    output, words = folder / "predicted.csv", ["--all_probabilities", folder / "test.csv"]
    done = succeeded(
        call_here(BIN / "ampft", "predict", "--model", run.folder, "--output_file", output, *words)
    )
    found, stored = pd.read_csv(output, keep_default_na=False), run.predictions
    assert list(found.answered) == list(stored.answered)
    assert found.answered.sum() > 0
    names = np.where(stored.answered, stored.prediction, "")
    assert list(found.prediction) == list(names)
    probabilities = np.stack(stored.probabilities.to_list())
    assert np.allclose(found[["probability_other", "probability_river"]], probabilities, atol=1e-5)
    part = run.record.decisions.abstention
    sentence = f"{part.answered} of 120 labelled rows are answered, and {part.wrong} of"
    assert sentence in done.stdout
    in_memory = run.predict(list(found.text))
    assert list(in_memory.prediction) == list(found.prediction)
    assert list(in_memory.answered) == list(found.answered)


def test_a_pipeline_shows_the_untouched_probabilities(run, folder):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run.folder), device="cpu")
    stored = run.predictions
    texts = list(stored.text[:5])
    for shown, ours in zip(classify(texts, top_k=None), stored.probabilities[:5], strict=True):
        untouched = {each["label"]: each["score"] for each in shown}
        odds = np.log(untouched["river"] / untouched["other"]) / run.record.decisions.temperature
        assert 1 / (1 + np.exp(-odds)) == pytest.approx(ours[1], abs=1e-4)


def test_an_audit_confirms_it(run):
    audit = succeeded(call_here(BIN / "ampft", "audit", run.folder, "--use_cpu"))
    assert "bit for bit" in printed(audit.stdout, "predicted")
    assert printed(audit.stdout, "verdict").startswith("confirmed")


def test_a_resumed_run_fits_the_same(run, train, folder):
    splits = {name: folder / f"{name}.csv" for name in ("train", "validation", "test")}
    again = train(
        **splits, output_dir=folder / "again", checkpointing_steps=8, **FITTED,
        resume_from_checkpoint=run.folder / "checkpoints/step-8",
    )  # fmt: skip
    assert decisions_of(again) == decisions_of(run)
    assert again.record.decisions == run.record.decisions


def test_pairs_in_many_classes_and_windows(train, folder):
    tables = {}
    for seed, name in enumerate(("train", "validation", "test")):
        texts = pd.DataFrame(rows(90, seed), columns=["a", "label"]).assign(b="old and new")
        texts.to_csv(folder / f"pairs-{name}.csv", index=False)
        tables[name] = folder / f"pairs-{name}.csv"
    pairs = train(**tables, text_column_names="a,b", calibrate=True, abstain=0.3)
    assert pairs.record.decisions.figures["log_loss"].fitted > 0
    assert list(pairs.predict([("iron tin", "old")])) == ["prediction", "confidence", "answered"]
    windows = train(
        **tables, text_column_names="a", long_text="windows", max_seq_length=8, stride=2,
        calibrate=True,
    )  # fmt: skip
    assert windows.record.decisions.temperature != 1


def test_too_few_rows_are_refused_before_the_training(train, folder):
    with pytest.raises(ampft.InputError, match=r"abstain 0\.01: .* needs 598 independent"):
        train(train=two_classes(60, 3), output_dir=folder / "refused", abstain=0.01)
    assert not (folder / "refused").exists()
