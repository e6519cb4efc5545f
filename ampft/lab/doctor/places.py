"""Finds the examples and tokens of the entries of a tensor, and the line that computes it."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import accelerate
import torch
from torch import Tensor, nn

from ampft.fast.packing.install import ROUNDED_TO, layout_on_host
from ampft.fast.packing.layout import PackedLayout


@dataclass(frozen=True)
class BatchPositions:
    """The examples and tokens of a batch to which some entries of a tensor belong."""

    rows: frozenset[int]  # Positions of the examples in the batch.
    # Positions as (example in the batch, token); empty if the tensor has none.
    tokens: tuple[tuple[int, int], ...] = ()
    is_padding: bool = False  # Whether all of them are padding.


@dataclass(frozen=True)
class BatchShape:
    """How a batch is laid out."""

    ids: tuple[int, ...]  # Example ids.
    width: int | None = None  # Number of tokens per example, padding included; None without tokens.
    mask: Tensor | None = None  # (B, T) bool, True for real tokens; None without padding.
    # Layout of the tokens in one row, if the model runs without padding.
    layout: PackedLayout | None = None
    # Sizes of the dimensions of weights; a result of such a size may hold features, not tokens.
    sizes: frozenset[int] = frozenset()

    @classmethod
    def of(cls, model: nn.Module, batch: Any, first_id: int) -> BatchShape:
        """Return the shape of a batch.

        Args:
            model: Model, which may run without padding.
            batch: A batch of an `ExaminedModel`.
            first_id: Id of the first example, if the batch does not have an attribute `ids`.
        """
        inputs = named_tensors(batch)
        size = next((len(t) for t in inputs.values() if t.dim()), 1)
        given = getattr(batch, "ids", None)
        ids = range(first_id, first_id + size) if given is None else given
        tokens = inputs.get("input_ids", inputs.get("attention_mask"))
        mask = inputs.get("attention_mask")
        has_mask = mask is not None and mask.dim() == 2
        return cls(
            ids=tuple(int(each) for each in ids),
            width=tokens.shape[1] if tokens is not None and tokens.dim() == 2 else None,
            mask=(mask != 0).cpu() if mask is not None and has_mask else None,
            layout=layout_on_host(model, inputs) if has_mask else None,
            sizes=frozenset(size for p in model.parameters() for size in p.shape),
        )

    def places(self, bad: Tensor) -> BatchPositions | None:
        """Return where the True entries are; None if the shape says nothing about examples.

        Args:
            bad: Tensor of booleans in the shape of a result.
        """
        cells = self._token_cells(bad)
        if cells is not None:
            tokens = [divmod(int(cell), self.width or 1) for cell in cells.flatten().nonzero()]
            rows = frozenset(row for row, _ in tokens)
            padding = self.mask is not None and not any(
                bool(self.mask[row, column]) for row, column in tokens
            )
            return BatchPositions(rows, tuple(tokens), padding)
        size = len(self.ids)
        if bad.dim() == 0 or size == 0 or bad.shape[0] == 0:
            return None
        if bad.shape[0] == 1 and bad.dim() > 1 and bad.shape[1] == size:  # first tokens, packed
            bad = bad[0]
        if bad.shape[0] != size:
            return None
        rows_of = bad.reshape(size, -1).any(1).nonzero().flatten()
        return BatchPositions(frozenset(rows_of.tolist()))

    def _token_cells(self, bad: Tensor) -> Tensor | None:
        """Return (B, T) booleans; None if the tensor is not one of tokens."""
        size, width = len(self.ids), self.width
        if width is None:
            return None
        shape = tuple(bad.shape)
        if self.layout is not None:
            row = self._row(bad, self.layout)
            if row is not None and (row.dim() > 1 or len(row) != size):
                cells = torch.zeros(size * width, dtype=torch.bool)
                cells[self.layout.host_tokens] = row.reshape(len(row), -1).any(1).cpu()
                return cells.view(size, width)
        is_ambiguous = len(shape) == 2 and width in self.sizes  # features, perhaps, and not tokens
        if shape[:2] == (size, width) and not is_ambiguous:
            return bad.reshape(size, width, -1).any(2).cpu()
        if len(shape) == 4 and shape[0] == size and shape[2] == width:  # heads
            return bad.any(3).any(1).cpu()
        if len(shape) == 3 and shape[1] == width and shape[0] % size == 0:  # heads, flattened
            return bad.any(2).view(size, -1, width).any(1).cpu()
        if len(shape) == 2 and shape[0] == size * width and width > 1:
            return bad.any(1).view(size, width).cpu()
        return None

    def _row(self, bad: Tensor, layout: PackedLayout) -> Tensor | None:
        """Return the tokens of a row without padding, or of a rounded one; None for neither."""
        if bad.dim() == 0:
            return None
        is_row = bad.dim() > 2 and bad.shape[0] == 1  # otherwise a matrix of tokens or features
        row = bad[0] if bad.dim() > 1 and bad.shape[0] == 1 else bad
        if len(row) == layout.total:
            return row
        rounded = layout.total if layout.is_filled else layout.rounded(ROUNDED_TO).total
        is_rounded = len(row) == rounded and (is_row or rounded not in self.sizes)
        return row[: layout.total] if is_rounded and row.dim() > 1 else None


UNKNOWN_SHAPE = BatchShape(())
"""Says nothing about examples."""


def named_tensors(batch: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch by name, or by position where they have none."""
    inputs = getattr(batch, "inputs", batch)
    if isinstance(inputs, Tensor):
        return {"input": inputs}
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items() if isinstance(value, Tensor)}
    if isinstance(inputs, Sequence):
        return {f"input {i}": value for i, value in enumerate(inputs) if isinstance(value, Tensor)}
    return {}


_PACKAGE = Path(__file__).parents[2]
_LIBRARIES = tuple(Path(str(library.__file__)).parent for library in (torch, accelerate))
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_SITE_PACKAGES = sysconfig.get_path("purelib")


@dataclass(frozen=True)
class SourceLine:
    """A line of source."""

    file: str  # Path of the file.
    line: int  # Number of the line, from 1.

    @property
    def text(self) -> str:
        """File, number and text of the line, such as `models/t5/modeling.py:12: x = self.wo(x)`."""
        path = Path(self.file)
        roots = [each for each in (_SITE_PACKAGES, Path.cwd()) if path.is_relative_to(each)]
        shown = path.relative_to(roots[0]).as_posix() if roots else path.name
        return f"{shown}:{self.line}: {linecache.getline(self.file, self.line).strip()}"


def calling_frame() -> SourceLine | None:
    """Return the innermost frame of the model's own code, or of the loss."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_of_model(frame.f_code.co_filename):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


@cache
def _is_of_model(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(_PACKAGE):
        return path.relative_to(_PACKAGE).parts[0] == "tasks"  # it has the losses
    if file.startswith("<") or any(path.is_relative_to(library) for library in _LIBRARIES):
        return False
    # Packages are installed below the folder of the standard library.
    return path.is_relative_to(_SITE_PACKAGES) or not path.is_relative_to(_STANDARD_LIBRARY)
