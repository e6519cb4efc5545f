"""k micro-batches have the gradient of one, for all lengths, weights, paths and precisions."""

import math

import pytest
import torch
from exact_step import (
    GRADIENT_TOLERANCE,
    Training,
    bert_logits,
    flat_gradient,
    flat_weights,
    plain_torch,
    relative_error,
    text_problem,
)
from tiny_text import tiny_task
from torch import nn

from ampft.engine.step import accumulate_gradient, backward, synchronized_last
from ampft.precision.accelerator import numerics

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

EXAMPLES, EFFECTIVE = 41, 30  # 30 and 11: a short last step batch that five does not divide


def trained(mode, task, k):
    training = Training(mode, text_problem(task), batch_size=EFFECTIVE // k, micro_batches=k)
    return list(training.steps())


@pytest.mark.add_ons
@pytest.mark.parametrize(
    "settings", [{}, {"class_weights": "balanced", "label_smoothing_factor": 0.1}]
)
@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_micro_batches_have_the_gradient_of_the_whole_batch(
    tiny_bert, mode, remove_padding, settings
):
    task = tiny_task(tiny_bert, train=EXAMPLES, remove_padding=remove_padding, **settings)
    twin_task = tiny_task(tiny_bert, train=EXAMPLES, remove_padding=False)
    assert task.load_model().padding_free == remove_padding
    runs = {k: trained(mode, task, k) for k in (1, 2, 3, 5)}
    weights = task.problem.class_weights
    loss_function = nn.CrossEntropyLoss(
        weight=None if weights is None else torch.from_numpy(weights),
        label_smoothing=settings.get("label_smoothing_factor", 0.0),
    )
    ids = [step.effective_ids for step in runs[1]]
    assert [len(part) for part in ids] == [30, 11]
    expected = plain_torch(mode, text_problem(twin_task), ids, loss_function, bert_logits)
    for k, steps in runs.items():
        assert [step.effective_ids for step in steps] == ids
        for step, gradient in zip(steps, expected, strict=True):
            assert relative_error(step.gradient, gradient) <= GRADIENT_TOLERANCE[mode], k


def test_the_mean_of_means_is_a_different_gradient(tiny_bert):
    # Negative control: this is what transformers' heads compute for micro-batches of unequal sizes.
    task = tiny_task(tiny_bert, train=EXAMPLES, remove_padding=False)
    problem = text_problem(task)
    training = Training("fp32", problem, batch_size=10, micro_batches=3)
    step_batch = next(training.batches.epoch(0))
    sizes = [len(micro.ids) for micro in step_batch]
    assert len(set(sizes)) > 1
    for micro_batch in step_batch:
        mean = problem.loss(training.model, micro_batch) / len(micro_batch.ids)
        training.accelerator.backward(mean)
    naive = flat_gradient(training.model)
    training.prepared.zero_grad()
    exact = next(training.steps()).gradient
    assert relative_error(naive, exact) > 1e-2


@pytest.mark.add_ons
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_every_backward_pass_is_weighted_by_its_examples(tiny_bert, mode):
    """No backward pass has a larger weight than another, in particular not the last one."""
    task = tiny_task(tiny_bert, train=EXAMPLES, remove_padding=False)
    problem = text_problem(task)
    training = Training(mode, problem, batch_size=6, micro_batches=5)
    step_batch = next(training.batches.epoch(0))
    total, contributions = torch.zeros_like(flat_weights(training.model)), []
    with numerics(training.precision):
        for micro_batch in step_batch:
            with synchronized_last(training.accelerator, training.model, micro_batch):
                loss = problem.loss(training.model, micro_batch) / step_batch.effective_weight
                backward(training.accelerator, loss)
            so_far = flat_gradient(training.model)
            contributions.append(so_far - total)
            total = so_far
    scale = 1.0 if training.accelerator.scaler is None else training.accelerator.scaler.get_scale()
    # A difference of running sums in float32 is less accurate than a single gradient.
    tolerance = max(1e-5, GRADIENT_TOLERANCE[mode])
    for micro_batch, contribution in zip(step_batch, contributions, strict=True):
        ids = [micro_batch.ids.tolist()]
        (share,) = plain_torch(mode, text_problem(task), ids, share_of_the_mean, bert_logits)
        assert relative_error(contribution / scale, share) <= tolerance
        # The factor of the share must be one for every micro-batch, including the last.
        weight = float(contribution @ share / (share @ share)) / scale
        assert math.isclose(weight, 1.0, rel_tol=tolerance)


def test_a_gradient_without_an_update_is_the_same(tiny_bert):
    """As the doctor, the audit and the first step compute it."""
    task = tiny_task(tiny_bert, train=EXAMPLES, class_weights="balanced")
    expected = trained("fp32", task, 3)[0]
    problem = text_problem(task)
    training = Training("fp32", problem, batch_size=EFFECTIVE // 3, micro_batches=3)
    step_batch = next(training.batches.epoch(0))
    losses = accumulate_gradient(training.accelerator, training.model, problem.loss, step_batch)
    error = relative_error(flat_gradient(training.model), expected.gradient)
    assert error <= GRADIENT_TOLERANCE["fp32"]
    assert math.isclose(sum(losses), expected.outcome.loss, rel_tol=1e-6)


def share_of_the_mean(logits, labels):
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / EFFECTIVE


def test_the_outcome_has_the_mean_loss_of_the_effective_batch(tiny_bert):
    settings = {"class_weights": "1,2,4", "label_smoothing_factor": 0.1}
    task = tiny_task(tiny_bert, train=EXAMPLES, **settings)
    step = trained("fp32", task, 3)[0]
    inputs = task.examples("train").collate(torch.tensor(step.effective_ids).numpy())
    function = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]), label_smoothing=0.1)
    expected = function(bert_logits(task.load_model().model, inputs), inputs["labels"])
    assert math.isclose(step.outcome.loss, expected.item(), rel_tol=1e-6)
    assert math.isclose(step.outcome.grad_norm, float(step.gradient.norm()), rel_tol=1e-6)


def test_the_environment_may_change_the_micro_batches(tiny_bert, monkeypatch):
    task = tiny_task(tiny_bert, train=30)
    expected = trained("fp32", task, 3)[0].gradient
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    training = Training("fp32", text_problem(task), batch_size=10, micro_batches=1)
    assert relative_error(next(training.steps()).gradient, expected) == 0.0
