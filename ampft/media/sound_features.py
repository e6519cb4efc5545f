"""Sounds to the inputs of a model, one sound at a time, so that none depends on its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoFeatureExtractor, Wav2Vec2FeatureExtractor

from ampft.errors import InputError
from ampft.media.sounds import Samples, Sound, resample
from ampft.models.pretrained import MODEL_NAME_FLAG, check_model_name, load_config, loading_error

Floats = npt.NDArray[np.float32]

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
DEFAULT_RATE = 16_000
PROBED_SECONDS = (0.5, 0.9)  # of noise, whose features have the same shape if it is fixed
SECONDS_PER_FRAME = 0.01  # of the spectrograms of AST; see its feature extractor


@dataclass(frozen=True)
class SoundFeatureExtractor:
    """A feature extractor of transformers, which makes features of one sound at a time."""

    extractor: Any  # The feature extractor of transformers.
    name: str  # Name of the model's input, `input_values` or `input_features`.
    # Shape of the features of every sound; None if it depends on the length.
    shape: tuple[int, ...] | None
    gives_mask: bool  # Whether the model wants an attention mask for padded sounds.

    @classmethod
    def of(cls, extractor: Any) -> SoundFeatureExtractor:
        """Return what an extractor gives, from two sounds of noise."""
        noise = np.random.default_rng(0).normal(scale=0.1, size=extractor.sampling_rate)
        outputs = [
            extractor(
                noise[: int(seconds * extractor.sampling_rate)].astype(np.float32),
                sampling_rate=extractor.sampling_rate,
                return_tensors="np",
            )
            for seconds in PROBED_SECONDS
        ]
        name = next(key for key in outputs[0] if key.startswith("input_"))
        first, second = (np.asarray(output[name]).shape[1:] for output in outputs)
        return cls(
            extractor, name, first if first == second else None, "attention_mask" in outputs[0]
        )

    @property
    def rate(self) -> int:
        """Frames per second of the sounds that the model hears."""
        return int(self.extractor.sampling_rate)

    @property
    def longest(self) -> float | None:
        """Seconds of a sound that the extractor reads; None if it reads all."""
        if self.shape is None:
            return None
        samples = getattr(self.extractor, "n_samples", None)
        if samples is not None:
            return float(samples / self.rate)
        frames = getattr(self.extractor, "max_length", None)
        return None if frames is None else float(frames * SECONDS_PER_FRAME)

    def waveform(self, sound: Sound) -> Samples:
        """Return (frames,) samples of one channel at the rate of the model."""
        return resample(sound.mono(), sound.rate, self.rate)

    def features(self, samples: Samples) -> Floats:
        """Return the features of one sound, without padding to the length of another."""
        output = self.extractor(samples, sampling_rate=self.rate, return_tensors="np")
        return np.asarray(output[self.name][0], dtype=np.float32)

    def batch(self, features: Sequence[Floats]) -> dict[str, Tensor]:
        """Return the features of several sounds as tensors, padded at the end.

        Where lengths can differ, `attention_mask` (m, T) int64 is 0 for padding and 1 otherwise.
        """
        if self.shape is not None:
            return {self.name: torch.from_numpy(np.stack(features))}
        lengths = [len(each) for each in features]
        padded = np.full(
            (len(features), max(lengths), *features[0].shape[1:]),
            self.extractor.padding_value,
            dtype=np.float32,
        )
        mask = np.zeros(padded.shape[:2], dtype=np.int64)
        for row, each in enumerate(features):
            padded[row, : len(each)] = each
            mask[row, : len(each)] = 1
        return {self.name: torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}


def load_feature_extractor(
    path: str, *, trust_remote_code: bool, flag: str = MODEL_NAME_FLAG
) -> tuple[Any, tuple[str, ...]]:
    """Return the feature extractor of a model, and a note if it is not its own.

    Args:
        path: Folder or hub id.
        trust_remote_code: Whether code from the model's repository may run.
        flag: Flag that received the path, for the error message.

    Raises:
        InputError: It cannot be loaded, or is missing and the model does not hear waveforms.
    """
    check_model_name(path, flag=flag)
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).exists() for name in PROCESSOR_FILES):
        config = load_config(path, trust_remote_code=trust_remote_code, flag=flag)
        return _default_extractor(path, config, flag)
    try:
        extractor = AutoFeatureExtractor.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a damaged file can raise any exception
        raise loading_error(path, error, flag=flag) from error
    return extractor, ()


def _default_extractor(path: str, config: Any, flag: str) -> tuple[Any, tuple[str, ...]]:
    if not hasattr(config, "conv_stride"):  # of models that hear waveforms, as Wav2Vec2 does
        raise InputError(
            f"{flag} {path}: the folder has no preprocessor_config.json, which says how sounds "
            "become spectrograms. Save the feature extractor there too, such as "
            "ASTFeatureExtractor(max_length=256).save_pretrained(...)."
        )
    has_layer_norm = getattr(config, "feat_extract_norm", "group") == "layer"
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=has_layer_norm)
    return extractor, (
        f"{path} has no feature extractor: sounds are resampled to {DEFAULT_RATE:,} Hz and "
        "normalized to mean 0 and variance 1.",
    )


def varied_noise(features: SoundFeatureExtractor) -> dict[str, Tensor]:
    """Return a batch of noise of four lengths, 0.4 to 1 seconds."""
    random = np.random.default_rng(1)
    sizes = [int(share * features.rate) for share in (1.0, 0.8, 0.6, 0.4)]
    sounds = [random.normal(scale=0.1, size=size).astype(np.float32) for size in sizes]
    return features.batch([features.features(sound) for sound in sounds])
