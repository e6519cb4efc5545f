"""The whole step of every task and of its options on a CUDA device that computes nothing."""

from dataclasses import replace
from unittest.mock import patch

import datasets
import pytest
import torch
from fake_cuda import CUDA, Copies, fake_mode, layout_of_host_mask, on_host, precision_of, to_cuda
from global_state import fresh_global_state
from representatives import full_except
from tiny_masks import pixel_task, save_tiny_segformer, write_folders
from tiny_media import media_task
from tiny_text import LABELS, save_tiny_bert, tiny_task, tiny_texts
from tiny_words import tiny_word_task
from torch._subclasses.fake_tensor import FakeTensor

from ampft.checks.value_ranges import _Ranges
from ampft.data.dataset import ClassificationData
from ampft.data.step_batches import StepBatches
from ampft.engine import step
from ampft.engine.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.fast.packing import install
from ampft.features.weights import AveragedWeights
from ampft.models import by_length
from ampft.precision.accelerator import make_accelerator
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings


def texts(folder, **settings):
    return tiny_task(save_tiny_bert(folder), train=8, **settings)


def words(folder, **settings):
    return tiny_word_task(save_tiny_bert(folder), train=8, max_seq_length=16, **settings)


def several_labels(folder, **settings):
    columns = tiny_texts(8)
    columns["label"] = [sorted({label, row % 3}) for row, label in enumerate(columns["label"])]
    names = datasets.List(datasets.ClassLabel(names=list(LABELS)))
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns, features=features)})
    data = ClassificationData(splits, ("text",), "text", "tiny", {}, ())
    path = str(save_tiny_bert(folder))
    return make_task(data, TaskSettings(task="multi-label", model_name_or_path=path, **settings))


def pixels(folder, **settings):
    return pixel_task(write_folders(folder / "data", train=8, val=1), **settings)


def segformer(folder):
    model = save_tiny_segformer(folder / "model")
    return pixels(folder, model_name_or_path=str(model), focal_gamma=2.0)


def part(**choice):
    return choice


WINDOWS = {"long_text": "windows", "max_seq_length": 12}
CHECKPOINTED = {"gradient_checkpointing": True, "fp32_modules": "output.dense"}
CASES = {
    "texts, focal": lambda folder: texts(folder, focal_gamma=2.0, class_weights="balanced"),
    "windows": lambda folder: texts(folder, **WINDOWS),
    "words": lambda folder: words(folder, class_weights="balanced"),
    "several labels": lambda folder: several_labels(folder, class_weights="balanced"),
    "LoRA": lambda folder: texts(folder, **part(lora_r=2)),
    "top layer": lambda folder: texts(folder, **part(train_layers=1)),
    "frozen": lambda folder: texts(folder, **part(freeze="embeddings,*.attention")),
    "float32 attention": lambda folder: texts(folder, fp32_modules="attention"),
    "float32, checkpointed": lambda folder: texts(folder, **CHECKPOINTED),
    "images": lambda folder: media_task(folder, "vit", augment="flip"),
    "images, channels last": lambda folder: media_task(folder, "convnext", channels_last=True),
    "spectrograms": lambda folder: media_task(folder, "ast", augment="shift,volume"),
    "sounds by length": lambda folder: media_task(folder, "wav2vec2 group norm"),
    "sounds, padded": lambda folder: media_task(folder, "wav2vec2 layer norm"),
    "whisper": lambda folder: media_task(folder, "whisper"),
    "ERFNet": lambda folder: pixels(
        folder, class_weights="balanced", multi_scale=True, augment="flip"
    ),
    "SegFormer": segformer,
}
KEPT = (
    "texts, focal",
    "words",
    "LoRA",
    "float32, checkpointed",
    "images",
    "spectrograms",
    "ERFNet",
)
# The others differ from these in nothing that depends on the scaler.
IN_BF16_TOO = {"texts, focal", "words", "several labels", "LoRA", "images", "spectrograms"}
IN_BF16_TOO |= {"float32, checkpointed", "SegFormer"}


@pytest.fixture
def read(monkeypatch):
    """Return how many scalars each step has read; the fake device has none, so 1 is read."""
    counts = []

    def read(*scalars):
        assert {scalar.device for scalar in scalars} == {CUDA}
        counts.append(len(scalars))
        return [1.0 for _ in scalars]

    monkeypatch.setattr(step, "_read", read)
    return counts


@pytest.fixture(autouse=True)
def _host(monkeypatch):
    """Let the host compute what depends on values."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda tensor: 0, raising=False)
    monkeypatch.setattr(install, "pack_layout", layout_of_host_mask)
    monkeypatch.setattr(by_length, "parts_together", on_host(by_length.parts_together))


def first_step_batch(task, accelerator):
    """Return the first step batch: two micro-batches of two examples."""
    batches = StepBatches.for_process(accelerator, task.examples("train"), batch_size=2)
    assert batches.pinned
    (step_batch,) = replace(batches, pinned=False).epoch(0, stop=1)
    return step_batch


def fake_accelerator(precision):
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.accelerator, "is_available", lambda: True),
        patch.object(torch.accelerator, "current_device_index", lambda: 0),
    ):
        accelerator = make_accelerator(precision, gradient_accumulation_steps=2)
    assert accelerator.device == CUDA  # with its index, as its tensors
    assert (accelerator.scaler is not None) == precision.uses_scaler
    accelerator.device_placement = False  # the model is there already
    return accelerator


def take_step(task, mode):
    """Train one step and predict, and return the copies that the host waited for."""
    precision = precision_of(mode)
    accelerator = fake_accelerator(precision)
    step_batch = first_step_batch(task, accelerator)
    model = task.load_model().model.train()
    recorder, copies = ProductRecorder(precision), Copies()
    with fake_mode():
        average = AveragedWeights(to_cuda(model), 0.99)
        optimizer = make_optimizer(model, OptimizerSettings(learning_rate=1e-3), precision)
        schedule = make_schedule(optimizer, 10, ScheduleSettings())
        model, optimizer = accelerator.prepare(model, optimizer)
        ranges = _Ranges(model, precision.compute_dtype)
        with recorder, copies:
            with ranges.hooked(), step.shared_autocast_cache(accelerator, model, step_batch):
                losses = step.accumulate_gradient(accelerator, model, task.loss, step_batch)
            figures = ranges.table()
            outcome = step.apply_step(
                accelerator, model, optimizer, schedule, losses=losses, max_grad_norm=1.0
            )
            average.update()
            with torch.no_grad():
                logits = task.logits(model.eval(), step_batch.micro_batches[0].inputs)
        executed = recorder.census(model, optimizer.optimizer)
    assert precision_contradiction(precision, executed) is None
    assert executed.rows
    assert not outcome.skipped
    for value in (*losses, logits):
        assert (value.dtype, value.device) == (torch.float32, CUDA)
    assert figures.device == CUDA
    assert copies.to_host == []
    return copies.waits


@pytest.mark.usefixtures("capability", "no_probe")
@pytest.mark.parametrize("case", full_except(CASES, KEPT))
def test_a_whole_step(tmp_path, read, case):
    task = CASES[case](tmp_path)
    for mode in ("fp16", "bf16") if case in IN_BF16_TOO else ("fp16",):
        with fresh_global_state():
            assert take_step(task, mode) == []
        assert read.pop() == (4 if mode == "fp16" else 2)
    assert read == []
