"""Sounds: opened, with one message for a damaged file, and converted to one channel at one rate."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError

SOUND_SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff")

# Float samples have a full scale of 1; recordings that are too loud, and lossy codecs, exceed it by
# some decibels. Integers that were stored as floats exceed it by much more.
MAX_SAMPLE = 8.0

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sound:
    """A decoded sound."""

    # (frames, channels) float32; full scale is 1, which float encodings can exceed.
    samples: Samples
    rate: int  # Frames per second.
    encoding: str  # Encoding of a sample in the file, such as `PCM_16`.

    def mono(self) -> Samples:
        """Return (frames,) float32: the mean of the channels."""
        if self.samples.shape[1] == 1:
            return self.samples[:, 0]
        return self.samples.mean(axis=1, dtype=np.float32)


def open_sound(value: Any) -> Sound:
    """Return a decoded sound.

    Args:
        value: A path, the bytes of a file, a dictionary with `bytes` or `path` as in a column of
            `datasets.Audio`, or a sound, which is returned as it is.

    Raises:
        InputError: It cannot be read, ends too early, has no samples, or has samples that are not
            finite or beyond `MAX_SAMPLE`; the message names the file.
    """
    if isinstance(value, Sound):
        return value
    soundfile = sound_library()
    path: Any = value.get("path") if isinstance(value, Mapping) else value
    content = value.get("bytes") if isinstance(value, Mapping) else value
    name = path if isinstance(path, str | Path) else "a sound in memory"
    try:
        if not isinstance(content, bytes):
            content = Path(path).read_bytes()
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            announced, rate, encoding = file.frames, file.samplerate, file.subtype
            samples = file.read(dtype="float32", always_2d=True)
    except FileNotFoundError:
        raise InputError(f"{name}: the file does not exist.") from None
    except (soundfile.SoundFileError, OSError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rpartition(": ")[2].rstrip(".")
        raise InputError(f"{name}: not a readable sound ({reason}).") from None
    if len(samples) == 0:
        raise InputError(f"{name}: the sound has no samples.")
    if len(samples) < announced:
        raise InputError(f"{name}: the file ends after {len(samples)} of {announced} frames.")
    if not np.isfinite(samples).all():
        raise InputError(f"{name}: the sound has samples that are NaN or infinite.")
    low, high = samples.min(), samples.max()
    if max(-low, high) > MAX_SAMPLE:
        raise InputError(
            f"{name}: its samples are floating point from {low:g} to {high:g}; their full scale is "
            "-1 to 1. Divide samples that were 16-bit integers by 32768, or save them as such."
        )
    return Sound(samples, rate, encoding)


def sound_library() -> ModuleType:
    """Return the module `soundfile`.

    Raises:
        InputError: It is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise InputError(
            f"sounds need the packages soundfile and soxr ({error}). Run: pip install "
            "'ampft[sounds]'"
        ) from error
    return soundfile


def resample(samples: Samples, rate: int, target: int) -> Samples:
    """Return (frames,) samples at another rate, by band-limited interpolation of libsoxr.

    Args:
        samples: (frames,) float32.
        rate: Frames per second of `samples`.
        target: Frames per second of the result.
    """
    if rate == target:
        return samples
    sound_library()  # says how to install both packages
    import soxr

    resampled: Samples = soxr.resample(samples, rate, target)
    return resampled
