"""The whole step of every task and of its options on a CUDA device that computes nothing."""

from dataclasses import replace

import datasets
import pytest
import torch
import transformers as t
from fake_cuda import (
    CUDA,
    Copies,
    fake_mode,
    layout_of_host_mask,
    on_host,
    precision_of,
    to_cuda,
)
from global_state import fresh_global_state
from tiny_encoders import SHAPE
from tiny_masks import pixel_task, save_tiny_segformer, write_folders
from tiny_media import SOUND_FAMILIES, WAV2VEC2, media_task
from tiny_text import LABELS, save_tiny_bert, tiny_task, tiny_texts
from tiny_words import tiny_word_task
from torch._subclasses.fake_tensor import FakeTensor

from ampft.data.dataset import ClassificationData
from ampft.data.steps import StepBatches
from ampft.models import by_length
from ampft.models.adapters import LoraSettings
from ampft.models.packing import install
from ampft.models.trained_part import TrainedPart
from ampft.precision.accelerator import make_accelerator
from ampft.precision.executed import ProductRecorder, contradiction
from ampft.tasks.task import TaskSettings, make_task
from ampft.training import step
from ampft.training.averaged_weights import AveragedWeights
from ampft.training.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.training.range_watch import _Ranges

SPEC_AUGMENT = {"mask_time_prob": 0.3, "mask_time_length": 2}
SOUND_FAMILIES["wav2vec2 masked"] = (
    lambda: t.Wav2Vec2Config(**{**WAV2VEC2, **SPEC_AUGMENT}),
    lambda: t.Wav2Vec2FeatureExtractor(),
)


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


def convbert(folder):
    """A task whose texts of the same length run together."""
    save_tiny_bert(folder)
    torch.manual_seed(0)
    config = t.ConvBertConfig(embedding_size=32, **SHAPE)
    t.ConvBertForSequenceClassification(config).save_pretrained(folder)
    return tiny_task(folder, train=8, max_seq_length=40)


def pixels(folder, **settings):
    return pixel_task(write_folders(folder / "data", train=8, val=1), **settings)


def segformer(folder):
    model = save_tiny_segformer(folder / "model")
    return pixels(folder, model_name_or_path=str(model), focal_gamma=2.0)


def part(**choice):
    return {"trained_part": TrainedPart(**choice)}


# transformers draws the masks of SpecAugment on the host, in every forward pass.
WAITING = {"sounds, masked"}
WINDOWS = {"long_text": "windows", "max_seq_length": 12}
CHECKPOINTED = {"gradient_checkpointing": True, "fp32_modules": ("output.dense",)}
CASES = {
    "texts, focal": lambda folder: texts(folder, focal_gamma=2.0, class_weights="balanced"),
    "texts, smoothed": lambda folder: texts(folder, label_smoothing=0.1, remove_padding=False),
    "windows": lambda folder: texts(folder, **WINDOWS),
    "texts by length": convbert,
    "words": lambda folder: words(folder, class_weights="balanced"),
    "words, focal": lambda folder: words(folder, focal_gamma=1.0, remove_padding=False),
    "several labels": lambda folder: several_labels(folder, class_weights="balanced"),
    "several labels, focal": lambda folder: several_labels(folder, focal_gamma=2.0),
    "LoRA": lambda folder: texts(folder, **part(lora=LoraSettings(2))),
    "top layer": lambda folder: texts(folder, **part(train_layers=1)),
    "frozen": lambda folder: texts(folder, **part(freeze="embeddings,*.attention")),
    "float32 attention": lambda folder: texts(folder, fp32_modules=("attention",)),
    "float32, checkpointed": lambda folder: texts(folder, **CHECKPOINTED),
    "images": lambda folder: media_task(folder, "vit", augment="flip"),
    "images, channels last": lambda folder: media_task(folder, "convnext", channels_last=True),
    "images, batch norm": lambda folder: media_task(folder, "resnet", channels_last=True),
    "spectrograms": lambda folder: media_task(folder, "ast", augment="shift,volume"),
    "sounds by length": lambda folder: media_task(folder, "wav2vec2 group norm"),
    "sounds, masked": lambda folder: media_task(folder, "wav2vec2 masked"),
    "sounds, padded": lambda folder: media_task(folder, "wav2vec2 layer norm"),
    "whisper": lambda folder: media_task(folder, "whisper"),
    "ERFNet": lambda folder: pixels(
        folder, class_weights="balanced", multi_scale=True, augment="flip"
    ),
    "SegFormer": segformer,
}


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
    """Let Accelerate choose the fake device, and the host compute what depends on values."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", str(CUDA))
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda tensor: 0, raising=False)
    monkeypatch.setattr(install, "pack_layout", layout_of_host_mask)
    monkeypatch.setattr(by_length, "parts_by_length", on_host(by_length.parts_by_length))
    with fresh_global_state():
        yield


def first_step_batch(task, accelerator):
    """Return the first step batch: two micro-batches of two examples."""
    batches = StepBatches.for_process(accelerator, task.examples("train"), batch_size=2)
    assert batches.pinned
    (step_batch,) = replace(batches, pinned=False).epoch(0, stop=1)
    return step_batch


@pytest.mark.usefixtures("capability", "no_probe")
@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_a_whole_step(tmp_path, read, case, mode):
    task, precision = CASES[case](tmp_path), precision_of(mode)
    accelerator = make_accelerator(precision, gradient_accumulation_steps=2)
    assert accelerator.device == CUDA
    assert (accelerator.scaler is not None) == (mode == "fp16")
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
                torch.clear_autocast_cache()
            figures = ranges.table()
            outcome = step.apply_step(
                accelerator, model, optimizer, schedule, losses=losses, max_grad_norm=1.0
            )
            average.update()
        executed = recorder.census(model, optimizer.optimizer)
    assert contradiction(precision, executed) is None
    assert executed.rows
    assert all(loss.dtype == torch.float32 and loss.device == CUDA for loss in losses)
    assert figures.device == CUDA
    assert read == [4 if mode == "fp16" else 2]
    assert not outcome.skipped
    assert copies.to_host == []
    assert copies.waits == [] or case in WAITING


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("case", CASES)
def test_predictions(tmp_path, case):
    task, precision = CASES[case](tmp_path), precision_of("bf16")
    accelerator = make_accelerator(precision)
    inputs = first_step_batch(task, accelerator).micro_batches[0].inputs
    model = task.load_model().model
    with fake_mode(), torch.no_grad():
        model = accelerator.prepare(to_cuda(model)).eval()
        with Copies() as copies:
            logits = task.logits(model, inputs)
    assert logits.dtype == torch.float32
    assert logits.device == CUDA
    assert copies.waits == []
