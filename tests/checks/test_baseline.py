from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tiny_text import tiny_task

import ampft
from ampft.checks.baseline import (
    bag_of_words_baseline,
    bag_of_words_model,
    baselines,
    frozen_encoder_baseline,
)
from ampft.data.dataset import ClassificationData
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.evaluation.compared_methods import compared_methods
from ampft.evaluation.probe import fit_regression
from ampft.evaluation.sanity import constant_outcome
from ampft.evaluation.simple_methods import (
    BAG_OF_WORDS,
    FREQUENCIES,
    FROZEN,
    answer,
    better_probabilities,
    methods_table,
)
from ampft.features.decision_figures import FigurePart, FittedPart
from ampft.runs.extension_points import MethodLimit
from ampft.runs.run_text import problem_of, simple_methods_answer
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings

CPU = torch.device("cpu")


def task_of(rows, columns):
    names = ClassLabel(names=["x", "y", "never"])
    features = Features({**{name: Value("string") for name in columns}, "label": names})
    table = dict(zip((*columns, "label"), map(list, zip(*rows, strict=True)), strict=True))
    part = Dataset.from_dict(table, features=features)
    splits = DatasetDict({"train": part, "test": part})
    return make_task(ClassificationData(splits, columns, "text", "made", {}, ()), TaskSettings())


@pytest.mark.full
@pytest.mark.slow
def test_it_equals_a_scikit_learn_pipeline():
    data = load_data(DataRequest(max_train_samples=300, max_predict_samples=100))
    twin = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10.0, solver="newton-cg"),
    ).fit(data.splits["train"]["text"][:], data.splits["train"]["label"][:])
    test = data.splits["test"]
    task = make_task(data, TaskSettings())
    metrics = bag_of_words_baseline(task, "test").metrics()
    assert metrics["accuracy"] == twin.score(test["text"][:], test["label"][:])
    assert 0.3 < metrics["macro_f1"] < 0.9


def test_the_answer_names_the_best_method_with_a_paired_interval(tiny_bert):
    task = tiny_task(tiny_bert, train=40, validation=40)
    truth = np.asarray(task.labels["validation"])

    def outcome(right):
        chosen = np.where(np.arange(len(truth)) < right, truth, (truth + 1) % 3)
        return task.outcome("validation", {"probabilities": np.eye(3, dtype=np.float32)[chosen]})

    def found(ours, theirs):
        methods = {BAG_OF_WORDS: lambda: outcome(theirs), FREQUENCIES: lambda: outcome(5)}
        return compared_methods(task, outcome(ours), methods)

    better, _ = found(20, 32)
    per_case = np.r_[np.zeros(20), np.ones(12), np.zeros(8)]
    error = per_case.std(ddof=1) / np.sqrt(40)
    half = float(scipy.stats.t.ppf(0.975, 39)) * error
    assert better.difference.value == pytest.approx(0.3)
    assert better.difference.low == pytest.approx(0.3 - half)
    assert better.difference.high == pytest.approx(0.3 + half)
    assert answer(task.problem, found(20, 32)).startswith(f"{BAG_OF_WORDS} is better (+30.0, +15.")
    assert answer(task.problem, found(20, 32)).endswith(" in accuracy): use it, or add rows")
    assert answer(task.problem, found(20, 32), can_begin_nearer=True).endswith("it, or add rows")
    frozen = [replace(found(20, 32)[0], name=FROZEN)]
    assert answer(task.problem, frozen).endswith(" in accuracy): use it, or add rows")
    assert answer(task.problem, frozen, can_begin_nearer=True).endswith(
        "): use it, train from all of it (--head_init probe --probe_scale 1), or add rows"
    )
    cut = answer(task.problem, found(20, 32), truncated=0.5)
    assert cut.endswith("of 50 % of them. Use it, or let the model read more "
                        "(--long_text windows, or a larger --max_seq_length)")  # fmt: skip
    assert answer(task.problem, found(20, 32), truncated=0.05).endswith("use it, or add rows")
    assert answer(task.problem, frozen, truncated=0.5).endswith("use it, or add rows")
    assert answer(task.problem, found(20, 22)).startswith(
        f"40 independent rows do not show whether {BAG_OF_WORDS} is worse (+"
    )
    assert answer(task.problem, found(20, 22), rows=40).startswith("40 independent rows do not")
    assert answer(task.problem, found(20, 22), rows=120).startswith(
        f"120 rows in 40 independent groups do not show whether {BAG_OF_WORDS} is worse (+"
    )
    assert answer(task.problem, found(32, 20)).startswith(
        f"fine-tuning is worth it: {BAG_OF_WORDS}"
    )
    # Equal predictions prove no more than the rule of three does.
    equal, _ = found(30, 30)
    assert equal.difference.high == pytest.approx(1 - 0.05 ** (1 / 40))


def test_better_probabilities_of_a_method_are_said_with_what_to_do(tiny_bert, make_record):
    """A model that is right but not sure: it has the accuracy, and the method the log loss."""
    task = tiny_task(tiny_bert, train=40, validation=400)
    truth = np.asarray(task.labels["validation"])
    right = np.eye(3, dtype=np.float32)[truth]

    def outcome(sureness, rows):
        probabilities = np.where(right == 1, sureness, (1 - sureness) / 2).astype(np.float32)
        probabilities[rows:] = 1 / 3
        return task.outcome("validation", {"probabilities": probabilities})

    def found(ours, theirs):
        return compared_methods(task, outcome(ours, 400), {FROZEN: lambda: outcome(theirs, 380)})

    (method,) = better = found(0.4, 0.95)
    losses = np.r_[np.full(380, np.log(0.4 / 0.95)), np.full(20, np.log(0.4 * 3))]
    assert method.loss_difference.value == pytest.approx(losses.mean(), abs=1e-5)
    assert method.loss_difference.low < losses.mean() < method.loss_difference.high < 0
    assert better_probabilities(better).startswith(
        f"the probabilities of {FROZEN} are better (−0.8"
    )
    assert better_probabilities(found(0.95, 0.4)) is None
    record = make_record(simple_methods=better)
    assert "in log loss): train with --calibrate before" in simple_methods_answer(record)
    assert answer(task.problem, better) in simple_methods_answer(record)
    loss = FigurePart(
        title="log loss (nats)", untouched=0.9, untouched_interval=(0.8, 1.0), fitted=0.1,
        fitted_interval=(0.0, 0.2), difference_interval=(-0.9, -0.7),
    )  # fmt: skip
    part = FittedPart(split="test", examples=400, fitted_rows=40, figures={"log_loss": loss})
    calibrated = make_record(simple_methods=better, decisions=part)
    assert simple_methods_answer(calibrated) == answer(task.problem, better)
    weighted = make_record(simple_methods=better, arguments={"class_weights": "balanced"})
    assert simple_methods_answer(weighted) == answer(task.problem, better)


def test_a_method_that_takes_too_long_or_fails_has_a_reason(tiny_bert):
    task = tiny_task(tiny_bert, train=40, validation=40)
    constant = constant_outcome(task, "validation")

    def broken():
        raise RuntimeError("out of memory")

    methods = baselines(task, constant, CPU, 0, MethodLimit(0.0)) | {"broken": broken}
    frozen, words, other = compared_methods(task, constant, methods)
    for each in (frozen, words):
        assert not each.metrics
        assert "more than a tenth of the training. --baseline computes it" in each.reason
        assert "--max_time" not in each.reason
    left = MethodLimit(0.0, is_left_of_max_time=True)
    for each in compared_methods(task, constant, baselines(task, constant, CPU, 0, left)):
        assert "more than the 0.0 s that are left of --max_time." in each.reason
        assert "a tenth" not in each.reason
    assert other.reason == "out of memory"
    table = methods_table(task.problem, constant.metrics(), 1.0, (other,))
    assert table.note == "No result of broken: out of memory."
    assert answer(task.problem, (frozen, words, other)) is None


@pytest.mark.slow
def test_the_frozen_encoder_equals_its_twin(tiny_bert):
    """A twin by hand: mean of the states of the real tokens, one text at a time, unit length."""
    task = tiny_task(tiny_bert, train=12)
    model = task.load_model().model.eval()

    def embed(split):
        rows, examples = [], task.examples(split)
        for index in range(len(examples.lengths)):
            batch = examples.collate(np.array([index]))
            # Arguments by position take the padded path.
            states = model.bert(batch["input_ids"], batch["attention_mask"])[0][0]
            rows.append(torch.nn.functional.normalize(states.mean(0), dim=0))
        return torch.stack(rows).detach().numpy()

    regression = LogisticRegression(C=10.0, solver="newton-cg")
    regression.fit(embed("train"), np.asarray(task.labels["train"]))
    expected = regression.predict_proba(embed("validation"))
    outcome = frozen_encoder_baseline(task, "validation", CPU, 0, lambda seconds: None)
    np.testing.assert_allclose(outcome.probabilities, expected, atol=1e-5)
    assert task.load_model().model.training == model.training


@pytest.mark.slow
def test_both_texts_of_a_pair_are_used():
    rows = [("same", "good", 0), ("same", "bad", 1)] * 5
    pairs = bag_of_words_baseline(task_of(rows, ("a", "b")), "test").metrics()
    first = bag_of_words_baseline(task_of([(a, y) for a, _, y in rows], ("a",)), "test").metrics()
    assert (pairs["accuracy"], first["accuracy"]) == (1.0, 0.5)


@pytest.mark.slow
def test_a_class_without_rows_counts_as_zero():
    metrics = bag_of_words_baseline(
        task_of([("good", 0), ("bad", 1)] * 5, ("a",)), "test"
    ).metrics()
    assert metrics["macro_f1"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_texts_without_words_are_refused():
    with pytest.raises(InputError, match=r"--baseline: made: empty vocabulary"):
        bag_of_words_baseline(task_of([("!", 0), ("?", 1)], ("a",)), "test")


@pytest.mark.parametrize("several", [False, True])
def test_a_text_without_weight_is_not_fitted(several):
    texts = ["red apple", "green pear", "red cherry", "green lime", "red apple"] * 4
    labels = np.array([0, 1, 0, 1, 1] * 4)
    weights = np.array([1.0, 2.0, 1.0, 1.0, 0.0] * 4)
    targets = np.eye(3, dtype=bool)[labels] if several else labels
    kept = weights > 0
    one = bag_of_words_model(texts, targets, 3, "--baseline", weights=weights)(texts)
    repeated = np.repeat(np.arange(20), weights.astype(int))
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts)
    twin = LogisticRegression(C=10.0, solver="newton-cg")
    twin.fit(vectorizer.transform([texts[i] for i in repeated]), labels[repeated])
    expected = twin.predict_proba(vectorizer.transform(texts))
    if several:
        assert (one[kept].argmax(1) == labels[kept]).all()
    else:
        np.testing.assert_allclose(one[:, :2], expected, atol=1e-4)
    plain = bag_of_words_model(texts, targets, 3, "--baseline")(texts)
    assert abs(plain - one).max() > 0.05


@pytest.mark.slow
def test_a_head_that_began_at_the_regression_is_not_fitted_again(tiny_bert, monkeypatch, tmp_path):
    """Words: their frozen features are what the head reads, so the second fit would be the same."""
    fitted = []

    def counted_fit(*args, **given):
        fitted.append(1)
        return fit_regression(*args, **given)

    monkeypatch.setattr("ampft.evaluation.probe.fit_regression", counted_fit)
    words = {"the": "O", "rhine": "RIVER", "tin": "METAL", "nile": "RIVER"}
    names = np.random.default_rng(0).choice(list(words), (40, 5)).tolist()
    rows = pd.DataFrame({"tokens": names, "tags": [[words[name] for name in row] for row in names]})

    def frozen(head, folder):
        run = ampft.finetune(
            rows, test=rows[:20], output_dir=tmp_path / folder, model_name_or_path=str(tiny_bert),
            head_init=head, num_train_epochs=1, baseline=True, cpu_threads=1, serve_back=False,
        )  # fmt: skip
        return next(each for each in run.record.simple_methods if each.name == FROZEN)

    begun = frozen("probe", "probe")
    assert len(fitted) == 1
    again = frozen("random", "random")
    assert len(fitted) == 2, "a head that began otherwise is compared with a new regression"
    assert begun.metrics == again.metrics
    assert begun.metrics["micro_f1"] > 0


def test_costs_judge_where_thresholds_were_tuned_for_them(tiny_bert, tmp_path):
    """The answer spoke of accuracy, by which never finding the rare class looked best."""
    words = np.random.default_rng(0).choice(["tin", "nile", "rhine"], (240, 4))
    rare = (words == "tin").sum(axis=1) >= 3
    rows = pd.DataFrame(
        {"text": [" ".join(row) for row in words], "label": np.where(rare, "x", "y")}
    )
    run = ampft.finetune(
        rows[:120], validation=rows[120:180], test=rows[180:], output_dir=tmp_path / "run",
        model_name_or_path=str(tiny_bert), num_train_epochs=1, baseline=True, cpu_threads=1,
        tune_thresholds="cost=20:1", serve_back=False,
    )  # fmt: skip
    found = {each.name: each for each in run.record.simple_methods}
    # Always "x" is cheaper on validation than always "y", which the frequencies would predict.
    assert (~rare[120:180]).sum() < 20 * rare[120:180].sum()
    assert found[FREQUENCIES].cost == pytest.approx((~rare[180:]).mean())
    own = {
        round(each.cost - each.cost_difference.value, 9)
        for each in found.values()
        if each.cost_difference is not None
    }
    assert own == {round(run.record.decisions.figures["cost"].fitted, 9)}
    text = answer(problem_of(run.record), run.record.simple_methods)
    assert "in cost per row" in text or "beats" in text
    assert "accuracy" not in text
