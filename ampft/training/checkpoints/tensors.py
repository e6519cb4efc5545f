"""Tensors by name: written as safetensors, chunk by chunk, with the hash of what was written.

The library writes a file in one call, from a copy of all tensors. Here a checkpoint needs no second
copy, its hash is known without reading it again, and a test can fail every write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ampft.files import FilePart, write_file

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_CHUNK_BYTES = 2**24


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FilePart:
    """Write tensors to a new safetensors file; return its hash and size.

    Args:
        path: Path of the file.
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
