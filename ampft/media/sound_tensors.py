"""Sounds: a feature extractor and a model that hears waveforms or spectrograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch import Tensor
from transformers import ASTConfig, ASTFeatureExtractor

from ampft.data.dataset import ClassificationData
from ampft.data.media_kind import FRAMES_COLUMN, RATE_COLUMN
from ampft.data.step_batches import FloatArray, IntArray
from ampft.errors import InputError
from ampft.kinds.input_settings import InputSettings
from ampft.media.checked_files import ExampleCache, caches_if_they_fit
from ampft.media.images import Augmentation, parse_augmentation
from ampft.media.media_columns import media_reference, undecoded_column
from ampft.media.media_inputs import MediaInputs, error_in_one_line, refused_inputs
from ampft.media.sound_features import (
    DEFAULT_RATE,
    SECONDS_PER_FRAME,
    Floats,
    SoundFeatureExtractor,
    load_feature_extractor,
    varied_noise,
)
from ampft.media.sounds import Samples, open_sound
from ampft.media.spec_augment import disable_unsafe_regularization
from ampft.models.by_length import (
    MASK_FIELD,
    TOLERANCE,
    masks_padding,
    padded_inputs,
    padding_difference,
    run_by_length,
)
from ampft.models.pretrained import SAVED_MODEL_FLAG

SMALL_AST = "small AST, random weights"
MEL_BINS, PATCH = 64, 8
MAX_DEFAULT_FRAMES = 1024


@dataclass(frozen=True)
class SoundReader:
    """A feature extractor."""

    features: SoundFeatureExtractor  # What it makes of sounds.

    def length(self, row: tuple[Any, ...]) -> int:
        """Return 1: the length of a sound is not known before it is decoded."""
        return len(row)

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        """Return the features of sounds, see `SoundFeatureExtractor.batch`."""
        (sounds,) = columns
        waveforms = [self.features.waveform(open_sound(sound)) for sound in sounds]
        return self.features.batch([self.features.features(samples) for samples in waveforms])

    def refused(self, columns: Sequence[Sequence[Any]], model: Any, error: Exception) -> InputError:
        """Return the message for a batch of sounds that the model cannot run on."""
        (sounds,) = columns
        opened = [open_sound(sound) for sound in sounds]
        seconds = [len(sound.samples) / sound.rate for sound in opened]
        shortest = int(np.argmin(seconds))
        sound = sounds[shortest]
        name = sound.get("path") if isinstance(sound, dict) else sound
        place = name if isinstance(name, str | Path) else "a sound in memory"
        return InputError(
            f"{place}: {type(model).__name__} cannot run on this sound of "
            f"{seconds[shortest]:.3f} s ({error_in_one_line(error)})."
        )


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> SoundReader:
    """Return the conversion of sounds for a saved model, see `inputs.KindModule`."""
    del arguments, config
    extractor, _ = load_feature_extractor(
        str(folder), trust_remote_code=False, flag=SAVED_MODEL_FLAG
    )
    return SoundReader(SoundFeatureExtractor.of(extractor))


@dataclass(frozen=True)
class SoundExamples:
    """The sounds of one split, decoded on request."""

    files: datasets.Dataset  # Data set with only the column of sounds, as files.
    lengths: IntArray  # (n,) frames at the rate of the model; ones if all sounds cost the same.
    features: SoundFeatureExtractor  # What the feature extractor gives.
    # Features or waveform of each sound; None decodes it each time.
    cache: ExampleCache | None = None
    caches_waveforms: bool = True  # Whether the cache holds waveforms, not features.
    augmentation: Augmentation | None = None  # Random changes of waveforms.
    # Epoch of the training, in which sounds are augmented; None for evaluation.
    epoch: int | None = None

    def for_step(self, epoch: int, step: int) -> SoundExamples:
        """Return the sounds as every step of an epoch hears them."""
        del step
        return replace(self, epoch=epoch)

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return `input_values` or `input_features` (m, ...) of the examples, and a mask."""
        return self.features.batch([self._features(row) for row in ids.tolist()])

    def _features(self, row: int) -> Floats:
        if self.cache is None or self.caches_waveforms:
            return self.features.features(self._heard(row))
        flat = self.cache.get(row, lambda: self.features.features(self._waveform(row)))
        assert self.features.shape is not None
        return flat.reshape(self.features.shape)

    def _heard(self, row: int) -> Samples:
        """Return the waveform of a sound, augmented in training."""
        if self.cache is None:
            samples = self._waveform(row)
        else:
            samples = self.cache.get(row, lambda: self._waveform(row))
        if self.augmentation is None or self.epoch is None:
            return samples
        return self.augmentation(samples, epoch=self.epoch, example=row)

    def _waveform(self, row: int) -> Samples:
        (value,) = self.files[row].values()
        return self.features.waveform(open_sound(value))


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> MediaInputs:
    """Prepare the sounds of `data` for the model that `settings` names.

    Raises:
        InputError: The feature extractor cannot be loaded, or `--augment` is wrong.
    """
    (column,) = data.input_columns
    augmentation = parse_augmentation(settings.augment, "sound", settings.seed)
    rates = {name: _numbers(part, RATE_COLUMN) for name, part in data.splits.items()}
    counts = {name: _numbers(part, FRAMES_COLUMN) for name, part in data.splits.items()}
    extractor, notes = _extractor(counts["train"] / rates["train"], settings)
    features = SoundFeatureExtractor.of(extractor)
    if settings.max_length_seconds is not None:
        longest = max(1, round(settings.max_length_seconds * features.rate))
        augmentation = replace(
            augmentation or Augmentation("sound", (), settings.seed), longest=longest
        )
    frames = {
        name: np.ceil(counts[name] * (features.rate / rates[name])).astype(np.int64)
        for name in counts
    }
    waveforms = {n: features.shape is None or (n == "train" and augmentation) for n in frames}
    fixed = 0 if features.shape is None else int(np.prod(features.shape))
    caches, cache_note = caches_if_they_fit(
        # libsoxr can give a frame more than the exact number.
        {n: frames[n] + 1 if waveforms[n] else np.full(len(frames[n]), fixed) for n in frames},
        np.float32,
        "Sounds at the rate of the model" if waveforms["train"] else "Features of the sounds",
    )
    if features.shape is None:
        lengths = dict(frames)
        if augmentation and augmentation.longest:
            lengths["train"] = np.minimum(frames["train"], augmentation.longest)
    else:
        lengths = {name: np.ones_like(each) for name, each in frames.items()}
    examples = {
        name: SoundExamples(
            undecoded_column(part, column, "sound"),
            lengths[name],
            features,
            cache=caches.get(name),
            caches_waveforms=bool(waveforms[name]),
            augmentation=augmentation if name == "train" else None,
        )
        for name, part in data.splits.items()
    }
    notes = (*notes, *_notes(features, np.concatenate([*rates.values()]), frames))
    notes = (*notes, *([cache_note] if cache_note else []))

    def default(label_arguments: Mapping[str, Any]) -> tuple[ASTConfig, str]:
        config = _small_ast(extractor.max_length, label_arguments)
        return config, f"{SMALL_AST}, for {features.longest:.2f} s"

    def adapted(model: Any) -> tuple[str, ...]:
        for split, part in examples.items():
            _try_shortest(model, part, frames[split], split)
        shortest = min(int(counts.min()) for counts in frames.values())
        batches = guard_against_sound_padding(model, features)
        return (*disable_unsafe_regularization(model, shortest), *batches)

    path = settings.model_path
    return MediaInputs(notes, path, extractor, examples, default, adapted)


def _try_shortest(model: Any, examples: SoundExamples, frames: IntArray, split: str) -> None:
    """Run a model on the shortest sound of a split: it can be too short."""
    row, features = int(np.argmin(frames)), examples.features
    place = media_reference(examples.files, split, row)
    what = f"this sound of {frames[row] / features.rate:.3f} s, the shortest of the split {split}"
    remedy = "Remove sounds that are too short."
    with refused_inputs(model, place, what, remedy):
        batch = examples.collate(np.array([row]))
        model(**{features.name: batch[features.name]})


def _numbers(part: datasets.Dataset, column: str) -> IntArray:
    return np.asarray(part.select_columns([column]).with_format("numpy")[column][:], np.int64)


def _notes(
    features: SoundFeatureExtractor, rates: IntArray, frames: Mapping[str, IntArray]
) -> tuple[str, ...]:
    """Return notes on sounds that are resampled, and on those that are too long."""
    notes = []
    for rate, count in zip(*np.unique(rates, return_counts=True), strict=True):
        if rate != features.rate:
            notes.append(
                f"{count} of {len(rates)} sounds are resampled from {rate:,} to "
                f"{features.rate:,} Hz."
            )
    if features.longest is not None:
        lengths = np.concatenate([*frames.values()]) / features.rate
        cut = int((lengths > features.longest).sum())
        if cut:
            notes.append(
                f"{cut} of {len(lengths)} sounds are longer than the {features.longest:.2f} s that "
                "the feature extractor reads: the rest of them is not used."
            )
    return tuple(notes)


def _extractor(seconds: FloatArray, settings: InputSettings) -> tuple[Any, tuple[str, ...]]:
    """Return the feature extractor of the model, or one for the small AST."""
    path = settings.model_path
    if path is not None:
        return load_feature_extractor(
            str(settings.processor_path),
            trust_remote_code=settings.trust_remote_code,
            flag=settings.processor_flag,
        )
    patches = int(np.ceil(seconds.max() / SECONDS_PER_FRAME / PATCH))
    frames = min(max(patches, 2) * PATCH, MAX_DEFAULT_FRAMES)
    extractor = ASTFeatureExtractor(
        sampling_rate=DEFAULT_RATE, num_mel_bins=MEL_BINS, max_length=frames
    )
    return extractor, ()


def _small_ast(frames: int, label_arguments: Mapping[str, Any]) -> ASTConfig:
    """Return an AST with 0.2 million weights, whose patches do not overlap."""
    return ASTConfig(
        max_length=frames,
        num_mel_bins=MEL_BINS,
        patch_size=PATCH,
        frequency_stride=PATCH,
        time_stride=PATCH,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,  # as for the small ViT: 0.02 is for a width of 768
        **label_arguments,
    )


def guard_against_sound_padding(model: Any, features: SoundFeatureExtractor) -> tuple[str, ...]:
    """Make a model run sounds of equal length together if its results depend on padding.

    Args:
        model: Classifier of sounds, in float32 on the CPU.

    Returns:
        A note about padding; empty if the extractor returns a constant shape.

    Raises:
        InputError: The model cannot run on sounds of 0.4 to 1 seconds.
    """
    if features.shape is not None:
        return ()
    if features.gives_mask != masks_padding(model):
        setattr(model.config, MASK_FIELD, features.gives_mask)
    inputs = varied_noise(features)
    padded = padded_inputs(model, inputs)
    try:
        difference = padding_difference(model, inputs, padded)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"model: {type(model).__name__} cannot run on sounds of 0.4 to 1 seconds ({reason})."
        ) from error
    if features.gives_mask and difference <= TOLERANCE:
        return (f"padding is masked: its logits do not depend on it (within {difference:.0e})",)
    return (run_by_length(model, difference, "sounds"),)
