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

STREAMED = 0x7FFF0000  # bytes of samples that a program announces if it cannot know their number
MAX_HEADER = 128  # bytes; some programs count the header as samples

# Places and first bytes of files that need ffmpeg: MP4, M4A and MOV; WebM; AMR; WMA; AAC.
OF_FFMPEG = (
    *((4, b"ftyp"), (0, b"\x1aE\xdf\xa3"), (0, b"#!AMR"), (0, b"0&\xb2u")),
    *((0, b"\xff\xf1"), (0, b"\xff\xf9")),
)

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
            count = -1 if file.seekable() else announced  # GSM, of telephones, cannot be sought
            samples = file.read(count, dtype="float32", always_2d=True)
    except FileNotFoundError:
        raise InputError(f"{name}: the file does not exist.") from None
    except (soundfile.SoundFileError, OSError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).rpartition(": ")[2].rstrip(".")
        advice = ""
        if isinstance(content, bytes) and any(content[at:].startswith(m) for at, m in OF_FFMPEG):
            advice = " Convert it: ffmpeg -i IN OUT.wav."
        raise InputError(f"{name}: not a readable sound ({reason}).{advice}") from None
    if len(samples) == 0:
        raise InputError(f"{name}: the sound has no samples.")
    announced = max(announced, _announced_frames(content, len(samples)))
    if len(samples) < announced:
        raise InputError(
            f"{name}: the file ends after {len(samples)} of {announced} frames that its header"
            " announces. It is cut off: copy it again, or save what is left as a new file."
        )
    if not np.isfinite(samples).all():
        raise InputError(f"{name}: the sound has samples that are NaN or infinite.")
    low, high = samples.min(), samples.max()
    if max(-low, high) > MAX_SAMPLE:
        raise InputError(
            f"{name}: its samples are floating point from {low:g} to {high:g}; their full scale is "
            "-1 to 1. Divide samples that were 16-bit integers by 32768, or save them as such."
        )
    return Sound(samples, rate, encoding)


def _announced_frames(content: bytes, frames: int) -> int:
    """Return how many frames the header of a WAV or AIFF file announces; 0 if it does not say.

    libsndfile reads as many as there are, so that half a file is read without an error. A program
    that writes into a pipe does not know the number, and announces none or the largest one.

    Args:
        frames: Number of frames that it has.
    """
    form, order, wanted = content[:4], "little", b"data"
    if form == b"FORM":
        order, wanted = "big", b"SSND"
    elif form == b"RIFX":
        order = "big"
    elif form == b"riff":  # Wave64 of Sony: names of 16 bytes, and sizes that count them too
        return _announced_in_wave64(content, frames)
    elif form not in (b"RIFF", b"RF64"):
        return 0
    start, large = 12, 0
    while start + 8 <= len(content):
        name, size = content[start : start + 4], _number(content, start + 4, 4, order)
        start += 8
        if name == b"ds64":  # of RF64: sizes of the file and of the samples, with 64 bits
            large = _number(content, start + 8, 8, order)
        if name == wanted:
            present = len(content) - start
            size = large or size
            is_unknown = size == 0 or STREAMED <= size < 2**32
            if is_unknown or size - present <= MAX_HEADER or not present:
                return 0
            return round(frames * size / present)
        start += size + size % 2
    return 0


def _announced_in_wave64(content: bytes, frames: int) -> int:
    start = 40
    while start + 24 <= len(content):
        size, present = _number(content, start + 16, 8, "little") - 24, len(content) - start - 24
        if content[start : start + 4] == b"data":
            is_whole = size - present <= MAX_HEADER or not present
            return 0 if is_whole else round(frames * size / present)
        start += 24 + max(size, 0) + -size % 8
    return 0


def _number(content: bytes, start: int, length: int, order: Any) -> int:
    return int.from_bytes(content[start : start + length], order)


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

    return soxr.resample(samples, rate, target)
