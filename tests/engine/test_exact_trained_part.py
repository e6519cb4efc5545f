"""The gradient of a part of the model, or of adapters, is exact in any number of micro-batches."""

from __future__ import annotations

import pytest
import torch
from exact_step import (
    GRADIENT_TOLERANCE,
    Training,
    bert_logits,
    plain_torch,
    relative_error,
    text_problem,
)
from tiny_text import tiny_task
from torch import nn

from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.features.resources import flops_per_token

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

EXAMPLES, EFFECTIVE = 41, 30
PARTS = {
    "embeddings": {"freeze": "embeddings"},
    "top": {"train_layers": 1},
    "lora": {"lora_r": 2, "lora_target_modules": "all-linear"},
}


@pytest.fixture(params=PARTS)
def part(request):
    return PARTS[request.param]


def problem_of(task):
    """Return the problem, with adapters that have an effect."""
    torch.manual_seed(3)
    problem = text_problem(task)
    with torch.no_grad():
        for name, parameter in problem.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.1)
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_micro_batches_without_padding_have_the_gradient_of_the_padded_batch(tiny_bert, mode, part):
    task = tiny_task(tiny_bert, train=EXAMPLES, **part)
    padded = tiny_task(tiny_bert, train=EXAMPLES, **part, remove_padding=False)
    runs = {
        k: list(Training(mode, problem_of(task), EFFECTIVE // k, k, loss_scale=2.0**10).steps())
        for k in (1, 3)
    }
    ids = [step.effective_ids for step in runs[1]]
    twin = problem_of(padded)
    assert task.load_model().padding_free
    expected = plain_torch(mode, twin, ids, nn.CrossEntropyLoss(), bert_logits)
    compared = 0
    for steps in runs.values():
        for step, gradient in zip(steps, expected, strict=True):
            if gradient.isfinite().all():  # the twin may overflow at its larger loss scale
                assert relative_error(step.gradient, gradient) <= GRADIENT_TOLERANCE[mode]
                assert step.outcome.grad_norm == pytest.approx(float(gradient.norm()), rel=2e-3)
                compared += 1
    assert compared >= 2


def test_what_is_frozen_has_no_gradient_and_no_optimizer_state(tiny_bert, part):
    def adamw(model):
        return make_optimizer(model, OptimizerSettings(learning_rate=0.01))

    training = Training(
        "fp32",
        problem_of(tiny_task(tiny_bert, train=EXAMPLES, **part)),
        EFFECTIVE,
        optimizer=adamw,
        max_grad_norm=0.1,
    )
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    assert len(list(training.steps())) == 2
    state = training.prepared.optimizer.state
    frozen = 0
    for name, parameter in training.model.named_parameters():
        has_changed = not torch.equal(parameter, before[name])
        assert (parameter in state) == has_changed == parameter.requires_grad, name
        assert parameter.grad is None
        frozen += not parameter.requires_grad
    assert frozen


@pytest.mark.slow
def test_operations_of_a_step_leave_out_what_is_not_computed(tiny_bert):
    def operations(part):
        return flops_per_token(tiny_task(tiny_bert, train=4, **part).load_model().model)

    layer = 4 * 32**2 + 2 * 32 * 64
    assert operations({}) == operations(PARTS["embeddings"]) == 6 * 2 * layer
    assert operations({"train_layers": 1}) == (2 + 6) * layer
    assert operations({"train_layers": 0}) == 2 * 2 * layer
    adapters = operations({"lora_r": 1})
    assert 3 * 2 * layer < adapters < 4.2 * 2 * layer
