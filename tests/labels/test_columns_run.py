"""Several columns of labels: one model, a softmax and an answer for each column."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from exact_step import Training, flat_gradient, relative_error, text_problem
from running import (
    BIN,
    CLASSIFY,
    Finished,
    call_here,
    succeeded,
    text_settings,
    trained_in_two_modes,
)
from tiny_text import COLUMN_LABELS, tiny_column_task, with_weights
from torch.nn import functional

from ampft import decision
from ampft.decision import Contract, Rule
from ampft.errors import InputError
from ampft.kinds.logits import model_inputs
from ampft.labels.label_columns import ColumnLabels
from ampft.tasks.loss_settings import LossSettings

pytestmark = pytest.mark.slow

NAMES = ("mood=bad", "mood=good", "topic=x", "topic=y", "topic=z")
FLAGS = ("--task", "columns", "--label_column_name", "mood,topic")


def labelled(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Return texts with a word that says the mood and one that says the topic."""
    random = np.random.default_rng(seed)
    table = []
    for index in range(count):
        mood, topic = index % 2, index % 3
        words = [mood, 2 + topic, *random.integers(5, 40, 4)]
        text = " ".join(f"w{word}" for word in random.permutation(words))
        mood = int(random.integers(2)) if index % 7 == 0 else mood  # wrong labels
        table.append((text, ("bad", "good")[mood], "xyz"[topic]))
    return table


@pytest.fixture(scope="module")
def runs(tiny_bert, tmp_path_factory) -> list[Finished]:
    return trained_in_two_modes(
        tiny_bert, tmp_path_factory, labelled, ("text", "mood", "topic"), *FLAGS
    )


@pytest.fixture(scope="module")
def run(runs) -> Finished:
    return runs[0]


def test_each_column_has_one_answer(runs):
    for run in runs:
        table = run.predictions
        assert run.record["label_names"] == list(NAMES)
        labels, choices = (list(zip(*table[n], strict=True)) for n in ("label", "prediction"))
        accuracies = [sk.accuracy_score(*pair) for pair in zip(labels, choices, strict=True)]
        assert run.report["micro_f1"] == pytest.approx(np.mean(accuracies))
        assert 0.8 < min(accuracies) < 1
        both = np.mean([a == b for a, b in zip(table["label"], table["prediction"], strict=True)])
        assert run.report["subset_accuracy"] == pytest.approx(both)
        shares = np.array(table["probabilities"])
        np.testing.assert_allclose(shares[:, :2].sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(shares[:, 2:].sum(1), 1, atol=1e-6)
        rule = "Of each column, the most probable label is predicted."
        assert rule in " ".join(run.stdout.split())
        served = run.record["served_back"]
        assert [each["asked"] == each["equal"] > 0 for each in served["clients"]] == [True, True]
        assert "the first of each column is its answer" in " ".join(served["notes"])
        methods = {each["name"]: each for each in run.record["simple_methods"]}
        assert methods["TF-IDF + regression"]["metrics"]["micro_f1"] > 0.8


def test_a_pipeline_lists_the_answer_of_each_column_first(run):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run.folder), device="cpu", top_k=None)
    table = run.predictions
    for row in range(10):
        (found,) = classify([table["text"][row]])
        names = [each["label"] for each in found]
        first = [next(n for n in names if n.startswith(c)) for c in ("mood=", "topic=")]
        assert first == table["prediction"][row]


def test_predict_scores_and_the_contract_answers(run, tmp_path):
    file, target = run.record["arguments"]["test_file"], tmp_path / "out.csv"
    command = (BIN / "ampft", "predict", "--model", run.folder, file, "--output_file", target)
    done = succeeded(call_here(*command))
    found = list(csv.DictReader(target.read_text().splitlines()))
    assert [row["prediction"].split(",") for row in found] == run.predictions["prediction"]
    assert f"{run.report['micro_f1']:.3f}" in done.stdout
    values = json.loads((run.folder / "decision.json").read_text())
    assert values["rule"]["exclusive"] is True
    assert Contract.read(run.folder).rule.label_names == NAMES


def test_a_comparison_has_an_interval(runs, tmp_path):
    target = tmp_path / "compared"
    folders = [run.folder for run in runs]
    succeeded(call_here(BIN / "ampft", "compare", *folders, "--output_dir", target))
    assert json.loads((target / "comparison.json").read_text())["metric"] == "micro_f1"


@pytest.mark.full
def test_errors_audit_and_artifact(run, tmp_path):
    assert "micro F1" in succeeded(call_here(BIN / "ampft", "errors", run.folder)).stdout
    words = ("--format", "onnx", "--output_dir", tmp_path / "artifact", "--no_measure")
    assert "passed" in succeeded(call_here(BIN / "ampft", "export", run.folder, *words)).stdout
    assert "confirmed" in succeeded(call_here(BIN / "ampft", "audit", run.folder)).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--tune_thresholds",), "--tune_thresholds: the flag is for tasks in which each example"),
     (("--threshold", "0.3"), "--threshold has no effect on --task columns"),
     (("--label_column_name", "mood"), "'mood=bad' belongs to the only column")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(run, tiny_bert, tmp_path, words, message):
    settings = text_settings(tmp_path, tiny_bert, tmp_path / "new")
    for name in ("train", "validation", "test"):
        file = str(run.record["arguments"][f"{name}_file"])
        settings[settings.index(f"--{name}_file") + 1] = file
    done = call_here(CLASSIFY, *settings, *FLAGS, *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "new").exists()


def test_the_loss_is_the_sum_of_torchs_cross_entropies():
    torch.manual_seed(0)
    logits = torch.randn(30, 5, dtype=torch.float64, requires_grad=True)
    moods, topics, weights = torch.arange(30) % 2, torch.arange(30) % 3, torch.rand(30)
    targets = torch.cat([functional.one_hot(moods, 2), functional.one_hot(topics, 3)], 1).bool()
    for smoothing in (0.0, 0.1):
        settings = LossSettings(label_smoothing_factor=smoothing)
        problem = ColumnLabels.from_settings(NAMES, targets.numpy(), settings)
        expected = sum(
            functional.cross_entropy(part, codes, reduction="none", label_smoothing=smoothing)
            for part, codes in ((logits[:, :2], moods), (logits[:, 2:], topics))
        )
        found = problem.loss(logits, targets, weights=weights)
        torch.testing.assert_close(found, (expected * weights).sum())
        pair = [torch.autograd.grad(e, logits)[0] for e in (found, (expected * weights).sum())]
        torch.testing.assert_close(*pair)
    assert problem.weights(targets.numpy()).tolist() == [2.0] * 30
    with pytest.raises(InputError, match="'topic=x' is the only label of its column"):
        ColumnLabels.from_settings(NAMES[:3], targets.numpy()[:, :3], LossSettings())


def twin_gradient(task, ids, weights):
    """Return the gradient of the weighted mean over rows and columns, in float64 torch."""
    inputs, model = task.examples("train").collate(ids), task.load_model().model.double()
    logits, targets = model(**model_inputs(inputs)).logits, inputs["labels"]
    losses = [
        functional.cross_entropy(part, has.float().argmax(1), reduction="none")
        for part, has in zip(logits.split([2, 3], 1), targets.split([2, 3], 1), strict=True)
    ]
    factors = torch.from_numpy(weights[ids])
    (((losses[0] + losses[1]) * factors).sum() / (2 * factors.sum())).backward()
    return flat_gradient(model)


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
@pytest.mark.parametrize("are_weighted", [False, True], ids=["unweighted", "weighted"])
def test_the_gradient_is_exact_under_every_split(tiny_bert, mode, remove_padding, are_weighted):
    weights = np.random.default_rng(7).exponential(2, 41) if are_weighted else np.ones(41)
    task, twin = (
        tiny_column_task(tiny_bert, train=41, remove_padding=each)
        for each in (remove_padding, False)
    )
    assert task.label_names == COLUMN_LABELS
    if are_weighted:
        task = with_weights(task, weights)
    for k in (1, 2, 4, 5):  # steps of 40 and 1 examples
        torch.manual_seed(0)
        run = Training(
            mode, text_problem(task), 40 // k, k, rate=lambda step: 0.0, loss_scale=4096.0
        )
        for step in run.steps():
            torch.manual_seed(0)
            expected = twin_gradient(twin, np.array(step.effective_ids), weights)
            error = relative_error(step.gradient, expected)
            assert error <= {"fp32": 3e-6, "fp16": 5e-3}[mode], k


@pytest.mark.usefixtures("fresh_accelerate")
def test_the_loss_of_one_column_has_another_gradient(tiny_bert):
    # Negative control: a head that learned only one of the columns.
    task = tiny_column_task(tiny_bert, train=41, remove_padding=False)
    ids = np.arange(41)
    inputs, model = task.examples("train").collate(ids), task.load_model().model.double()
    logits, targets = model(**model_inputs(inputs)).logits, inputs["labels"]
    functional.cross_entropy(logits[:, :2], targets[:, :2].float().argmax(1)).backward()
    whole = twin_gradient(task, ids, np.ones(41))
    assert relative_error(flat_gradient(model), whole) > 0.5


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_browsers_decide_alike():
    rule = Rule(NAMES, several=True, exclusive=True)
    logits = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    shares = rule.probabilities(logits)
    values = Contract("columns", ("text",), rule).values()["rule"]
    module = Path(decision.__file__).with_suffix(".js")
    script = f"""import("{module}").then(m => console.log(JSON.stringify({logits.tolist()}.map(
      row => {{ const p = m.probabilities({json.dumps(values)}, row);
                return [p, m.answer({json.dumps(values)}, p)]; }}))))"""
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    np.testing.assert_allclose([p for p, _ in found], shares, atol=1e-7)
    assert [a["prediction"] for _, a in found] == rule.answers(shares).labels
