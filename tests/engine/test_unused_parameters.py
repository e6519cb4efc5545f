"""Parameters on which the loss does not depend are found, and the trial leaves nothing behind."""

import numpy as np
import pytest
import torch
from exact_step import Problem, tensor_problem, text_problem
from tiny_media import media_task
from torch import nn

from ampft.data.step_batches import MicroBatch
from ampft.engine.trained_parameters import unused_parameters


def unused(problem: Problem, size: int = 2) -> tuple[str, ...]:
    ids = np.arange(size)
    micro_batch = MicroBatch(ids, problem.examples.collate(ids), counted=True, is_last=True)
    return unused_parameters(problem.model, problem.loss, micro_batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "expected"), [("dinov2", ("dinov2.embeddings.mask_token",)), ("vit", ())]
)
def test_the_embedding_of_masks_is_found(tmp_path, family, expected):
    assert unused(text_problem(media_task(tmp_path, family))) == expected


@pytest.mark.slow
def test_layers_that_are_recomputed_count_as_used(tmp_path):
    problem = text_problem(media_task(tmp_path, "vit", gradient_checkpointing=True))
    assert unused(problem) == ()


@pytest.mark.slow
def test_frozen_parameters_do_not_count():
    problem = tensor_problem()
    problem.model[0].requires_grad_(False)
    assert unused(problem) == ()


@pytest.mark.slow
def test_the_trial_leaves_nothing_behind():
    problem = tensor_problem()
    problem.model.insert(1, nn.BatchNorm1d(16))
    problem.model.append(nn.Dropout(0.5))
    problem.model.eval()
    torch.manual_seed(4)
    random, numpy_random = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    buffers = [buffer.clone() for buffer in problem.model.buffers()]
    assert unused(problem) == ()
    assert torch.equal(torch.get_rng_state(), random)
    assert np.array_equal(np.random.get_state()[1], numpy_random)  # noqa: NPY002
    assert all(map(torch.equal, problem.model.buffers(), buffers))
    assert all(parameter.grad is None for parameter in problem.model.parameters())
    assert not any(module.training for module in problem.model.modules())
