"""Writes checkpoints: tensors as safetensors, the rest of a content, in the background.

The library of safetensors writes a file in one call, from a copy of all tensors. Here a checkpoint
needs no second copy, its hash is known without reading it again, and a test can fail every write.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampft.engine.checkpoints.store import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    STATE_NAME,
    CheckpointManifest,
    write_manifest,
)
from ampft.files import FileDigest, describe_file, sync, write_file
from ampft.ownership import OWNER_NAME

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_CHUNK_BYTES = 2**24


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileDigest:
    """Write tensors to a new safetensors file; return its hash and size.

    Args:
        tensors: Tensors by name, on any device. Tensors that share memory are written separately.
    """
    # The widest elements first: each tensor then begins at a multiple of its element size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    return write_file(path, _chunks(ordered))


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): tensor for n, tensor in tensors.items() if n.startswith(prefix)}


def copied_to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU that do not change while the training continues."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _chunks(ordered: list[tuple[str, Tensor]]) -> Iterator[bytes | memoryview]:
    header, end = {}, 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype, shape = DTYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the data begin at a multiple of 8 bytes
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().data
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a checkpoint, copied from the training, or immutable while it is written."""

    # Its manifest. Of the files, it has only the best weights, which are in the folder already if
    # an epoch was evaluated.
    manifest: CheckpointManifest
    model: Mapping[str, Tensor]  # Weights and buffers by name.
    optimizer: Mapping[str, Tensor]  # Tensors of the optimizer by name.
    state: Mapping[str, Any]  # Everything else, as JSON values; numbers may be infinite or NaN.
    # File of the history, whose part that belongs to the checkpoint the manifest has.
    history: Path

    @property
    def tensor_bytes(self) -> int:
        """Size of the tensors, which make up almost all of the checkpoint."""
        return sum(t.nbytes for t in (*self.model.values(), *self.optimizer.values()))


def write_content(folder: Path, content: Content) -> None:
    """Write the files of a checkpoint and, last, its manifest; wait until they are on the disk.

    Args:
        folder: Temporary folder, which holds nothing but the best weights.
    """
    files = {
        MODEL_NAME: write_tensors(folder / MODEL_NAME, content.model),
        OPTIMIZER_NAME: write_tensors(folder / OPTIMIZER_NAME, content.optimizer),
        STATE_NAME: write_file(folder / STATE_NAME, [json.dumps(content.state).encode()]),
        **content.manifest.files,
    }
    if (folder / OWNER_NAME).exists():
        files[OWNER_NAME] = describe_file(folder / OWNER_NAME)
    sync(content.history)
    write_manifest(folder, replace(content.manifest, files=files))
    sync(folder)


class BackgroundWriter:
    """A thread that writes; its errors surface when the training asks for them."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._current: Future[object] | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Wait for the job before, raise its error, and start another."""
        self.wait()
        self._current = self._executor.submit(job)

    def check(self) -> None:
        """Raise the error of the current job if it has failed; do not wait for it."""
        if self._current is not None and self._current.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the current job, and raise its error."""
        current, self._current = self._current, None
        if current is not None:
            current.result()

    def close(self) -> None:
        """Wait for the current job, whose error is suppressed because another one is reported."""
        with contextlib.suppress(Exception):
            self.wait()
        self._executor.shutdown()
