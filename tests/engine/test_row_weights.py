"""Weights of rows in the loss: exact for any split of a step; a row twice for a weight of two."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, Training, flat_gradient, relative_error, text_problem
from tiny_text import LABELS, tiny_task, with_weights
from tiny_words import tiny_word_task
from torch.nn import functional

from ampft.data.dataset import ClassificationData
from ampft.kinds.logits import LABEL_WEIGHTS, model_inputs
from ampft.labels.multi_label import MultiLabel
from ampft.tasks.loss import summed_cross_entropy
from ampft.tasks.single_label import SingleLabel
from ampft.tasks.task import make_task

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

EXAMPLES, EFFECTIVE = 41, 30  # 30 and 11: a short last step batch
WEIGHTS = np.random.default_rng(7).exponential(2, EXAMPLES).astype(np.float32).astype(np.float64)
WEIGHTS[::5] = 0


def gradients(mode, task, k):
    torch.manual_seed(0)  # of a head that is drawn
    training = Training(
        mode, text_problem(task), EFFECTIVE // k, k, rate=lambda step: 0.0, loss_scale=4096.0
    )
    return list(training.steps())


def reference(task, ids):
    """Return the gradient of the weighted mean in float64 by torch alone, padded."""
    model = task.load_model().model.double()
    inputs = task.examples("train").collate(ids)
    logits = model(**model_inputs(inputs)).logits
    losses = functional.cross_entropy(logits, inputs["labels"], reduction="none")
    weights = torch.from_numpy(WEIGHTS[ids])
    ((losses * weights).sum() / weights.sum()).backward()
    return flat_gradient(model)


@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_the_gradient_is_that_of_the_weighted_mean(tiny_bert, mode, remove_padding):
    plain = tiny_task(tiny_bert, train=EXAMPLES, remove_padding=remove_padding)
    task = with_weights(plain, WEIGHTS)
    twin = with_weights(tiny_task(tiny_bert, train=EXAMPLES, remove_padding=False), WEIGHTS)
    for k in (1, 3, 5):
        for step in gradients(mode, task, k):
            expected = reference(twin, np.array(step.effective_ids))
            # The reference computes in float64, so that rounding in the model counts too.
            tolerance = {"fp32": 3e-6, "fp16": 5e-3}[mode]
            assert relative_error(step.gradient, expected) <= tolerance, k
    unweighted = gradients(mode, plain, 1)[0]
    expected = reference(twin, np.array(unweighted.effective_ids))
    assert relative_error(unweighted.gradient, expected) > 0.05  # negative control


@pytest.mark.parametrize("settings", [{}, {"focal_gamma": 2.0}, {"label_smoothing_factor": 0.1}])
def test_a_weight_of_two_is_the_row_twice(tiny_bert, settings):
    plain = tiny_task(tiny_bert, train=20, class_weights="1,2.5,0.5", **settings)
    repeats = np.arange(20) % 3  # also rows that do not count
    twice = plain.data.splits["train"].select(np.repeat(np.arange(20), repeats))
    splits = datasets.DatasetDict({**plain.data.splits, "train": twice})
    repeated = make_task(
        ClassificationData(splits, ("text",), "text", "tiny", {}, ()), plain.settings
    )
    (one,) = Training("fp32", text_problem(with_weights(plain, repeats.astype(float))), 20).steps()
    (other,) = Training("fp32", text_problem(repeated), len(twice)).steps()
    assert relative_error(one.gradient, other.gradient) <= GRADIENT_TOLERANCE["fp32"]


def test_words_have_the_weight_of_their_sentence(tiny_bert):
    task = with_weights(tiny_word_task(tiny_bert, train=EXAMPLES), WEIGHTS)
    examples = task.examples("train")
    counts = task.labels["train"].counts
    np.testing.assert_allclose(examples.weights, counts * WEIGHTS)
    ids = np.array([3, 1, 7])
    inputs = examples.collate(ids)
    np.testing.assert_array_equal(inputs[LABEL_WEIGHTS], np.repeat(WEIGHTS[ids], counts[ids]))
    one, *others = (gradients("fp32", task, k)[0].gradient for k in (1, 3))
    for other in others:
        assert relative_error(other, one) <= GRADIENT_TOLERANCE["fp32"]
    plain = gradients("fp32", tiny_word_task(tiny_bert, train=EXAMPLES), 1)[0].gradient
    assert relative_error(plain, one) > 0.05


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_weighted_losses_of_problems_are_sums_of_single_rows(gamma):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=generator)
    weights = torch.rand(6, generator=generator)
    single = SingleLabel(LABELS, np.array([1, 2, 0.5], np.float32), focal_gamma=gamma)
    several = MultiLabel(LABELS, np.array([1, 2, 0.5], np.float32), focal_gamma=gamma)
    codes = torch.tensor([0, 1, 2, 2, 1, 0])
    for problem, labels in ((single, codes), (several, functional.one_hot(codes).bool())):
        rows = [problem.loss(logits[i : i + 1], labels[i : i + 1]) * weights[i] for i in range(6)]
        torch.testing.assert_close(problem.loss(logits, labels, weights=weights), sum(rows))


def test_an_effective_batch_without_weight_changes_nothing(tiny_bert):
    weights = np.zeros(12)
    weights[0] = 1.0
    task = with_weights(tiny_task(tiny_bert, train=12), weights)
    steps = list(Training("fp32", text_problem(task), 4).steps())
    counts = [0 in step.effective_ids for step in steps]
    assert sorted(counts) == [False, False, True]
    for step, has_weight in zip(steps, counts, strict=True):
        assert bool(step.gradient.abs().sum() > 0) == has_weight
        assert torch.isfinite(step.gradient).all()


@pytest.mark.parametrize("examples", [1, 4])
def test_a_weight_of_each_label_multiplies_its_loss(examples):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(examples, 3, 6, generator=generator)
    labels = torch.arange(6).expand(examples, 6) % 3
    weights = torch.rand(examples, 6, generator=generator)
    losses = functional.cross_entropy(logits, labels, reduction="none")
    of_labels = summed_cross_entropy(logits, labels, weights=weights)
    torch.testing.assert_close(of_labels, (losses * weights).sum())
    of_examples = summed_cross_entropy(logits, labels, weights=weights[:, 0])
    torch.testing.assert_close(of_examples, (losses.sum(1) * weights[:, 0]).sum())
    with pytest.raises(ValueError, match="one weight per example, or per loss"):
        summed_cross_entropy(logits, labels, weights=weights[:, :1])
