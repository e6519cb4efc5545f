"""The clipped update in emulated fp16, against GradScaler, unscale_ and clip_grad_norm_."""

import pytest
import torch
from exact_step import Training, tensor_problem

from ampft.emulation import Emulation
from ampft.engine.optimizer import OptimizerSettings, make_optimizer

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

LIMIT = 0.05


def adamw(model):
    return make_optimizer(model, OptimizerSettings(learning_rate=0.01, weight_decay=0.1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain_training(optimizer, ids_per_step, *, unscale=True):
    """Train the same model with plain torch on the given micro-batches; return it and its norms."""
    problem, norms = tensor_problem(n=12), []
    updates, scaler = optimizer(problem.model), torch.amp.GradScaler("cpu")
    with Emulation(torch.float16):
        for micro_batches in ids_per_step:
            count = sum(len(ids) for ids in micro_batches)
            for ids in micro_batches:
                inputs = problem.examples.collate(ids)
                with torch.autocast("cpu", dtype=torch.float16):
                    logits = problem.model(inputs["x"])
                loss = torch.nn.functional.cross_entropy(
                    logits.float(), inputs["labels"], reduction="sum"
                )
                scaler.scale(loss / count).backward()
            if unscale:
                scaler.unscale_(updates)
            parameters = problem.model.parameters()
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, LIMIT)))
            scaler.step(updates)
            scaler.update()
            updates.zero_grad()
    return problem.model, norms


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_the_clipped_update_equals_plain_torchs_bit_for_bit(optimizer, micro_batches):
    problem = tensor_problem(n=12)
    options = {"optimizer": optimizer, "max_grad_norm": LIMIT}
    training = Training("fp16", problem, 6 // micro_batches, micro_batches, **options)
    ids = [[micro.ids for micro in step_batch] for step_batch in training.batches.epoch(0)]
    norms = [step.outcome.grad_norm for step in training.steps()]
    twin, twin_norms = plain_training(optimizer, ids)
    assert norms == twin_norms
    assert min(norms) > LIMIT
    for ours, plain in zip(problem.model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, plain)


def test_clipping_scaled_gradients_is_a_different_update():
    # Negative control: without unscale_ the norm is that of the scaled gradient.
    problem = tensor_problem(n=12)
    training = Training("fp16", problem, 6, optimizer=sgd, max_grad_norm=LIMIT)
    ids = [[micro.ids for micro in step_batch] for step_batch in training.batches.epoch(0)]
    norms = [step.outcome.grad_norm for step in training.steps()]
    twin, wrong_norms = plain_training(sgd, ids, unscale=False)
    assert wrong_norms[0] > 60_000 * norms[0]
    assert not torch.equal(problem.model[0].weight, twin[0].weight)
