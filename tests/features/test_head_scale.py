"""The factor of a head that began at a probe, against brute force and a plain pipeline."""

from __future__ import annotations

import math
import signal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from preempted_run import interrupted_at
from scipy.special import log_softmax
from tiny_text import save_sentence_encoder, tiny_texts
from transformers import AutoModelForSequenceClassification, pipeline

import ampft
from ampft.errors import Preempted
from ampft.features.head_scale import FACTORS, SPREAD, best_factor
from ampft.runs.run_text import heading


def losses(logits, labels, factor):
    return -log_softmax(factor * logits, axis=1)[np.arange(len(labels)), labels]


@pytest.mark.parametrize("size", [0.1, 0.4, 1.0, 3.0, 9.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_factor_has_the_lowest_penalised_loss(size, classes):
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(200, classes))
    shares = np.exp(log_softmax(logits, axis=1))
    labels = np.array([draw.choice(classes, p=row) for row in shares])
    found = best_factor(log_softmax(size * logits, axis=1), labels, np.ones(200))
    cost = {
        factor: losses(size * logits, labels, factor).sum() + math.log(factor) ** 2 / 2 / SPREAD**2
        for factor in FACTORS
    }
    assert found == min(cost, key=cost.get)
    assert abs(math.log2(found * size)) <= 1, "the true size is 1"


def test_rows_that_are_all_right_do_not_ask_for_certainty():
    logits, labels = np.array([[3.0, 0.0], [0.0, 3.0]] * 10), np.array([0, 1] * 10)
    assert best_factor(logits, labels, np.ones(20)) == 1
    assert best_factor(logits, labels, np.full(20, 100.0)) == 4


def test_few_rows_and_rows_that_depend_on_each_other_choose_nothing():
    logits, labels = np.array([[0.4, 0.0], [0.0, 0.4]] * 30), np.array([0, 1] * 30)
    assert best_factor(logits, labels, np.ones(60)) > 1
    assert best_factor(logits, labels, np.full(60, 20 / 60)) > 1
    assert best_factor(logits, labels, np.full(60, 19 / 60)) == 1
    assert best_factor(logits[:19], labels[:19], np.ones(19)) == 1


@pytest.fixture(scope="module")
def encoder(tiny_bert, tmp_path_factory):
    return save_sentence_encoder(tiny_bert, tmp_path_factory.mktemp("models") / "encoder")


@pytest.fixture(scope="module")
def rows():
    texts, labels = tiny_texts(200).values()
    return [
        {"text": text, "label": "abc"[label]} for text, label in zip(texts, labels, strict=True)
    ]


def train(encoder, rows, folder, **settings):
    shared = {"max_seq_length": 40, "num_train_epochs": 1, "use_cpu": True, "serve_back": False}
    return ampft.finetune(
        rows[:120], validation=rows[120:160], test=rows[160:], output_dir=str(folder),
        model_name_or_path=str(encoder), **(shared | settings),
    )  # fmt: skip


@pytest.mark.slow
def test_a_pipeline_serves_the_scaled_head_and_the_same_answers(encoder, rows, tmp_path, capsys):
    scaled = train(encoder, rows, tmp_path / "scaled")
    part = scaled.record.head_scale
    assert part.factor in set(FACTORS) - {1.0}
    assert part.log_loss < part.log_loss_before
    assert part.log_loss_before == pytest.approx(scaled.record.validations[-1].metrics["log_loss"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"scaled the logits by {part.factor:g}: no prediction changes" in shown
    card = (scaled.folder / "README.md").read_text(encoding="utf-8")
    assert f"changed to scale the logits by {part.factor:g}: no prediction changes" in card
    assert f"scaled     the logits by {part.factor:g}: no prediction" in heading(scaled.record)
    with patch("ampft.features.head_scale.FACTORS", (1.0,)):
        plain = train(encoder, rows, tmp_path / "plain")
    assert plain.record.head_scale is None
    assert list(plain.predictions["prediction"]) == list(scaled.predictions["prediction"])
    one, other = (
        AutoModelForSequenceClassification.from_pretrained(run.folder).state_dict()
        for run in (plain, scaled)
    )
    for name, tensor in one.items():
        is_head = name.startswith("classifier.")
        assert torch.equal(other[name], tensor * (part.factor if is_head else 1.0)), name
    served = pipeline("text-classification", str(scaled.folder), top_k=None)
    answers = served([row["text"] for row in rows[160:]], max_length=40, truncation=True)
    loss = -np.mean(
        [
            math.log(next(each["score"] for each in found if each["label"] == row["label"]))
            for found, row in zip(answers, rows[160:], strict=True)
        ]
    )
    assert loss == pytest.approx(scaled.record.metrics["log_loss"], abs=1e-5)


@pytest.mark.slow
def test_validation_rows_with_equal_texts_count_as_one(encoder, rows, tmp_path):
    repeated = 4 * rows[120:130]
    run = train(encoder, rows[:120] + repeated + rows[160:], tmp_path / "run")
    assert run.record.data.examples["validation"] == 40
    assert run.record.head_scale is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"calibrate": True}, {"head_init": "probe"}])
def test_whoever_chooses_the_head_or_calibrates_gets_it_as_trained(
    encoder, rows, tmp_path, settings
):
    assert train(encoder, rows, tmp_path / "run", **settings).record.head_scale is None


@pytest.mark.slow
def test_a_head_of_several_columns_ends_as_it_was_trained(encoder, rows, tmp_path):
    columns = [{**row, "topic": "xyz"[place % 3]} for place, row in enumerate(rows)]
    names = {"text_column_names": "text", "label_column_name": "label,topic"}
    run = train(encoder, columns, tmp_path / "run", task="columns", **names)
    assert run.record.head_scale is None
    assert run.record.metrics["micro_f1"] > 0


@pytest.mark.slow
def test_a_run_that_is_stopped_after_the_scaling_ends_with_the_same_bits(encoder, rows, tmp_path):
    straight, again = train(encoder, rows, tmp_path / "straight"), tmp_path / "again"
    with interrupted_at("final evaluation", signal.SIGTERM), pytest.raises(Preempted):
        train(encoder, rows, again)
    resumed = train(encoder, rows, again, resume_from_checkpoint="latest")
    assert resumed.record.head_scale == straight.record.head_scale is not None
    assert (resumed.folder / "model.safetensors").read_bytes() == (
        straight.folder / "model.safetensors"
    ).read_bytes()
