import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from tiny_text import save_tiny_bert, tiny_task
from torch.nn import functional
from transformers import GPT2Config, GPT2Model

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.evaluation import probe
from ampft.evaluation.probe import (
    FOLDS,
    START,
    STRENGTHS,
    Rows,
    fit_regression,
    probe_decoded,
    start_share,
    with_probed_head,
)
from ampft.models.weights import weights_hash
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings

CPU = torch.device("cpu")


def test_the_regression_equals_scikit_learns():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    features = rng.normal(size=(90, 5)) + np.eye(3, 5)[labels]
    weight, bias, strength, unseen_loss = fit_regression(
        Rows(torch.tensor(features), torch.tensor(labels)), 3
    )
    assert strength in STRENGTHS
    scale = np.sqrt((features**2).sum(1).mean())
    twin = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(features / scale, labels)
    expected = twin.predict_log_proba(features / scale)
    logits = torch.tensor(features) @ weight.T + bias
    np.testing.assert_allclose(logits.log_softmax(1).numpy(), expected, atol=2e-3)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    unseen = cross_val_predict(
        LogisticRegression(C=strength, tol=1e-8, max_iter=1000),
        features / scale, labels, cv=folds, method="predict_log_proba",
    )  # fmt: skip
    assert unseen_loss == pytest.approx(-unseen[np.arange(90), labels].sum(), rel=2e-3)


def test_a_head_begins_as_sure_of_its_rows_as_its_regression_is_right_about_others():
    rng = np.random.default_rng(0)
    labels = torch.arange(240) % 30
    for noise, is_good in ((0.2, True), (1.2, False)):
        features = torch.tensor(noise * rng.normal(size=(240, 40)) + np.eye(30, 40)[labels])
        rows = Rows(features, labels)
        regression = fit_regression(rows, 30)
        share = start_share(rows, regression)
        losses = [
            float(functional.cross_entropy(each * logits, labels, reduction="sum"))
            for logits in [features @ regression.weight.T + regression.bias]
            for each in (share, share - 0.01)
        ]
        assert losses[0] <= regression.unseen_loss
        if is_good:
            assert START < share < 1, "folds predict each other well"
            assert losses[1] > regression.unseen_loss, "it is the least such share"
        else:
            assert share == START, "what was learned of the rows is not true of others"
        many = rows._replace(features=features.repeat(3, 1), labels=labels.repeat(3))
        assert start_share(many, regression) == START, "not measured for many rows of a class"
    few = labels < 10
    some = Rows(features[few], labels[few])
    assert start_share(some, fit_regression(some, 10)) == START, "not measured for few classes"
    unfolded = Rows(features[:30], labels[:30])
    assert start_share(unfolded, fit_regression(unfolded, 30)) == START, "there are no folds"


def test_a_small_regression_has_one_thread_and_the_former_number_afterwards(monkeypatch):
    former, seen = torch.get_num_threads(), set()
    features, labels = torch.randn(12, 4).double(), torch.arange(12) % 2

    def loss(*arguments):
        seen.add(torch.get_num_threads())
        return original(*arguments)

    original = probe._loss
    monkeypatch.setattr(probe, "_loss", loss)
    try:
        torch.set_num_threads(2)
        fit_regression(Rows(features, labels), 2)
        assert (seen, torch.get_num_threads()) == ({1}, 2)
        monkeypatch.setattr(probe, "ONE_THREAD", 0)
        seen.clear()
        fit_regression(Rows(features, labels), 2)
        assert (seen, torch.get_num_threads()) == ({2}, 2)
    finally:
        torch.set_num_threads(former)


def test_a_label_that_no_row_has_stays_finite_and_improbable():
    features = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.zeros(20, 3)
    labels[:10, 1] = 1
    weight, bias, *_ = fit_regression(Rows(features, labels), 3)
    assert torch.isfinite(weight).all()
    assert (features @ weight.T + bias)[:, 0].max() < -3


def test_the_head_is_the_regression_on_what_it_reads(tiny_bert):
    """A twin by hand: the features are collected with a hook on the classifier."""
    task = tiny_task(tiny_bert, train=40, validation=20)
    torch.manual_seed(0)
    loaded = task.load_model()
    state = torch.get_rng_state()
    features = []
    handle = loaded.model.classifier.register_forward_pre_hook(
        lambda module, args: features.append(args[0].detach().double())
    )
    examples = task.examples("train")
    loaded.model.eval()
    with torch.no_grad():
        for index in range(40):
            task.logits(loaded.model, examples.collate(np.array([index])))
    handle.remove()
    loaded.model.train()
    probed = with_probed_head(task, loaded, CPU)
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn, so dropout is the same"
    assert probed.model.training
    assert "begins as logistic regression on 40 feature vectors" in probed.notes[-1]
    order = np.random.default_rng(0).permutation(40)
    weight, bias, *_ = fit_regression(
        Rows(torch.cat(features)[order], torch.from_numpy(np.asarray(task.labels["train"])[order])),
        3,
    )
    assert torch.allclose(probed.model.classifier.weight.double(), weight, atol=2e-3)
    assert torch.allclose(probed.model.classifier.bias.double(), bias, atol=2e-3)
    torch.manual_seed(0)
    quarter = with_probed_head(task, task.load_model(), CPU, size=0.25)
    assert "its logits are multiplied by 0.25" in quarter.notes[-1]
    assert torch.allclose(4 * quarter.model.classifier.weight, probed.model.classifier.weight)
    assert torch.allclose(4 * quarter.model.classifier.bias, probed.model.classifier.bias)
    torch.manual_seed(0)
    again = with_probed_head(task, task.load_model(), CPU)
    assert weights_hash(again.model) == weights_hash(probed.model), "same seed, same weights"


def test_a_regression_without_a_bias_equals_scikit_learns():
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 90, p=[0.7, 0.2, 0.1])
    features = 2 + rng.normal(size=(90, 5))
    scale = np.sqrt((features**2).sum(1).mean())
    weight, bias, strength, _ = fit_regression(
        Rows(torch.tensor(features), torch.tensor(labels), has_bias=False), 3
    )
    assert not bias.any()
    twin = LogisticRegression(C=strength, tol=1e-8, max_iter=1000, fit_intercept=False)
    expected = twin.fit(features / scale, labels).predict_log_proba(features / scale)
    logits = torch.tensor(features) @ weight.T
    np.testing.assert_allclose(logits.log_softmax(1).numpy(), expected, atol=2e-3)
    numbers, weights = 100 + features[:, 0] + rng.normal(size=90), rng.exponential(2, 90)
    weight, bias, strength, _ = fit_regression(
        Rows(torch.tensor(features), torch.tensor(numbers), torch.tensor(weights), has_bias=False),
        1,
    )
    assert not bias.any()
    ridge = Ridge(alpha=1 / strength, fit_intercept=False)
    ridge.fit(features / scale, numbers, sample_weight=weights)
    np.testing.assert_allclose(weight[0].numpy() * scale, ridge.coef_, rtol=1e-6)


def test_the_head_of_a_decoder_has_no_bias_and_neither_has_its_regression(tmp_path):
    torch.manual_seed(0)
    save_tiny_bert(tmp_path)  # its tokenizer stays
    config = GPT2Config(
        vocab_size=45, n_embd=32, n_layer=1, n_head=2, n_positions=64, pad_token_id=0
    )
    GPT2Model(config).save_pretrained(tmp_path)
    task = tiny_task(tmp_path, train=40)
    torch.manual_seed(0)
    model = with_probed_head(task, task.load_model(), CPU).model.eval()
    assert model.score.bias is None
    features: list[torch.Tensor] = []
    handle = model.score.register_forward_pre_hook(lambda _, args: features.append(args[0][0, -1]))
    with torch.no_grad():
        rows = [task.examples("train").collate(np.array([index])) for index in range(40)]
        logits = torch.cat([task.logits(model, row) for row in rows])
    handle.remove()
    read, labels = torch.stack(features).double(), np.asarray(task.labels["train"])
    scale = read.square().sum(1).mean().sqrt()
    distances = []
    for strength in STRENGTHS:
        twin = LogisticRegression(C=strength, tol=1e-8, max_iter=5000, fit_intercept=False)
        expected = twin.fit(read / scale, labels).predict_log_proba(read / scale)
        distances.append(np.abs(logits.log_softmax(1).numpy() - expected).max())
    assert min(distances) < 5e-3


def test_it_learns_before_training(tiny_bert):
    task = tiny_task(tiny_bert, train=60, validation=60)
    model = with_probed_head(task, task.load_model(), CPU).model.eval()
    truth = np.asarray(task.labels["validation"])
    probabilities = probe_decoded(task, model, "validation")["probabilities"]
    assert (probabilities.argmax(1) == truth).mean() > 0.5


@pytest.mark.slow
def test_images_have_a_probe_too():
    data = load_data(DataRequest(dataset_name="digits", max_train_samples=200))
    task = make_task(data, TaskSettings())
    torch.manual_seed(0)
    model = with_probed_head(task, task.load_model(), CPU).model.eval()
    outcome = task.outcome("test", probe_decoded(task, model, "test"))
    assert outcome.metrics()["accuracy"] > 0.5


def test_a_head_without_a_linear_layer_is_refused(tiny_bert):
    task = tiny_task(tiny_bert, train=12)
    loaded = task.load_model()
    loaded.model.classifier.requires_grad_(False)
    with pytest.raises(InputError, match=r"--head_init probe: .* has no linear layers that are tr"):
        with_probed_head(task, loaded, CPU)


def test_weights_of_rows_are_scikit_learns_sample_weight():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 90)
    features = rng.normal(size=(90, 5)) + np.eye(3, 5)[labels]
    weights = rng.exponential(2, 90)
    weight, bias, strength, _ = fit_regression(
        Rows(torch.tensor(features), torch.tensor(labels), torch.tensor(weights)), 3
    )
    scale = np.sqrt((features**2).sum(1).mean())
    twin = LogisticRegression(C=strength, tol=1e-8, max_iter=1000)
    twin.fit(features / scale, labels, sample_weight=weights)
    logits = torch.tensor(features) @ weight.T + bias
    expected = twin.predict_log_proba(features / scale)
    np.testing.assert_allclose(logits.log_softmax(1).numpy(), expected, atol=2e-3)
