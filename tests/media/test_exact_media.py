"""Micro-batches of images and of sounds have the gradient of the whole batch."""

import pytest
import torch
from exact_step import CPU, GRADIENT_TOLERANCE, Problem, Training, flat_gradient, relative_error
from tiny_media import SOUND_FAMILIES, media_task

from ampft.media.sounds import open_sound
from ampft.models import by_length
from ampft.precision.accelerator import numerics
from ampft.precision.resolve import resolve
from ampft.tasks.loss import summed_cross_entropy

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

EFFECTIVE = 8  # of 15 examples: the last step has 7, which 2 and 4 do not divide
FAMILIES = [*SOUND_FAMILIES, "vit", "convnext", "swin"]


def gradients(task, mode, k):
    problem = Problem(model_of(task), task.examples("train"), task.loss)
    # With a learning rate of 0 all steps see the same weights.
    training = Training(
        mode, problem, EFFECTIVE // k, micro_batches=k, rate=lambda step: 0.0, loss_scale=64.0
    )
    return [(step.effective_ids, step.gradient) for step in training.steps()]


def model_of(task):
    torch.manual_seed(1)  # of the head, which is new because the labels are
    return task.load_model().model


def one_by_one(task, ids):
    """Return the gradient of the mean loss, each example by itself, from the original files."""
    model = model_of(task)
    losses = []
    for row in ids:
        target = torch.from_numpy(task.labels["train"][[row]])
        if task.name == "sounds":
            features = task.inputs.splits["train"].features
            (value,) = task.inputs.splits["train"].files[row].values()
            samples = features.waveform(open_sound(value))
            inputs = features.extractor(samples, sampling_rate=16_000, return_tensors="pt")
        else:
            examples = task.inputs.splits["train"]
            inputs = examples.processor([examples.picture(row)], return_tensors="pt")
        losses.append(summed_cross_entropy(model(**inputs).logits, target))
    with numerics(resolve("fp32", CPU)):
        (sum(losses) / len(ids)).backward()
    return flat_gradient(model)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batches_have_the_gradient_of_single_files(tmp_path, family):
    task = media_task(tmp_path, family, per_class=5)
    for k in (1, 2, 4):
        for ids, gradient in gradients(task, "fp32", k):
            # 1e-5: products of other shapes have sums in another order, and files one at a time.
            assert relative_error(gradient, one_by_one(task, ids)) <= 1e-5, k


@pytest.mark.slow
@pytest.mark.parametrize("family", ["convnext", "wav2vec2 group norm"])
def test_micro_batches_have_the_same_gradient_in_fp16(tmp_path, family):
    task = media_task(tmp_path, family, per_class=5)
    (*_, (_, whole)), (*_, (_, parts)) = (gradients(task, "fp16", k) for k in (1, 4))
    assert relative_error(parts, whole) <= 5 * GRADIENT_TOLERANCE["fp16"]


@pytest.mark.slow
def test_padded_sounds_have_another_gradient(tmp_path, monkeypatch):
    # Negative control: a model whose results depend on padding, run with padding.
    task = media_task(tmp_path, "wav2vec2 group norm")
    assert "so sounds of the same length run together" in " ".join(task.load_model().notes)
    monkeypatch.setattr(by_length, "parts_together", lambda model, inputs: [])
    ids, padded = gradients(task, "fp32", 2)[0]
    assert relative_error(padded, one_by_one(task, ids)) > 0.01


@pytest.mark.slow
def test_batch_norm_depends_on_micro_batches(tmp_path):
    # As the plan warns; see `models.batch_norm`.
    task = media_task(tmp_path, "resnet", per_class=5)
    (*_, (_, whole)), (*_, (_, parts)) = (gradients(task, "fp32", k) for k in (1, 4))
    assert relative_error(parts, whole) > 0.01
