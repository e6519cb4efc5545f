"""The gradient of images with masks does not depend on micro-batches; with batch norm, it does."""

from __future__ import annotations

import pytest
import torch
from exact_step import (
    GRADIENT_TOLERANCE,
    Problem,
    Training,
    flat_gradient,
    plain_torch,
    relative_error,
)
from tiny_masks import IGNORED, pixel_task, tiny_erfnet, write_folders
from torch import nn

from ampft.models.adapters import restrict_training
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.training_mode import batch_norm_note
from ampft.models.weights import LoadedModel

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

EXAMPLES, EFFECTIVE = 13, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("camera") / "data", train=EXAMPLES)


def pixel_problem(task, *, batch_norm: bool = False) -> Problem:
    return Problem(tiny_erfnet(batch_norm=batch_norm), task.examples("train"), task.loss)


def logits_of(model: nn.Module, inputs) -> torch.Tensor:
    return model(inputs["pixel_values"]).logits


@pytest.mark.slow
def test_scaled_and_flipped_images_have_one_gradient_for_any_micro_batches(folder):
    task = pixel_task(folder, image_size="16,24", multi_scale=True, augment="flip")
    gradients = [
        [step.gradient for step in Training("fp32", problem, EFFECTIVE // k, k).steps()]
        for k in (1, 5)
        for problem in [pixel_problem(task)]
    ]
    plain = next(Training("fp32", pixel_problem(pixel_task(folder)), EFFECTIVE).steps()).gradient
    for one, other in zip(*gradients, strict=True):
        assert relative_error(other, one) <= GRADIENT_TOLERANCE["fp32"]
    assert relative_error(plain, gradients[0][0]) > 1e-2  # negative control


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"class_weights": "balanced", "label_smoothing_factor": 0.1}]
)
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_micro_batches_have_the_gradient_of_the_whole_batch(folder, mode, settings):
    task = pixel_task(folder, **settings)
    runs = {
        k: list(Training(mode, pixel_problem(task), EFFECTIVE // k, micro_batches=k).steps())
        for k in (1, 2, 5)
    }
    weights = task.problem.pixels.class_weights
    loss = nn.CrossEntropyLoss(
        weight=None if weights is None else torch.from_numpy(weights),
        label_smoothing=settings.get("label_smoothing_factor", 0.0),
        ignore_index=IGNORED,
    )
    ids = [step.effective_ids for step in runs[1]]
    assert [len(part) for part in ids] == [10, 3]
    expected = plain_torch(mode, pixel_problem(task), ids, loss, logits_of)
    for k, steps in runs.items():
        # In fp16, the rounding of the second step depends on the last bits of the weights.
        count = 1 if mode == "fp16" else 2
        for step, gradient in zip(steps[:count], expected[:count], strict=True):
            assert relative_error(step.gradient, gradient) <= GRADIENT_TOLERANCE[mode], k


@pytest.mark.slow
def test_the_mean_of_means_is_a_different_gradient(folder):
    # Negative control: micro-batches with fewer labelled pixels would weigh too much.
    problem = pixel_problem(pixel_task(folder))
    training = Training("fp32", problem, batch_size=2, micro_batches=5)
    step_batch = next(training.batches.epoch(0))
    for micro_batch in step_batch:
        pixels = (micro_batch.inputs["labels"] != IGNORED).sum()
        mean = problem.loss(training.model, micro_batch) / pixels / 5
        training.accelerator.backward(mean)
    naive = flat_gradient(training.model)
    training.prepared.zero_grad()
    assert relative_error(naive, next(training.steps()).gradient) > 1e-2


def test_with_batch_norm_the_gradient_depends_on_micro_batches_and_that_is_said(folder):
    task = pixel_task(folder)
    gradients = [
        next(Training("fp32", pixel_problem(task, batch_norm=True), EFFECTIVE // k, k).steps())
        for k in (1, 5)
    ]
    assert relative_error(gradients[0].gradient, gradients[1].gradient) > 1e-2
    model = tiny_erfnet(batch_norm=True)
    note = batch_norm_note(model, micro_batches=5, processes=2)
    assert note is not None
    assert "each of the 10 parts of a batch" in note
    assert batch_norm_note(model, micro_batches=1, processes=1) is None
    assert batch_norm_note(tiny_erfnet(), micro_batches=5, processes=2) is None
    # Frozen batch norms use their own statistics, not those of the batch.
    restrict_training(
        LoadedModel(model, "tiny", False, ()), TrainedPartSettings(freeze="encoder,decoder")
    )
    assert batch_norm_note(model, micro_batches=5, processes=2) is None
    assert model.classifier.training
