"""The content of a checkpoint, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ampft.files import FilePart, describe_file, sync, write_file
from ampft.ownership import OWNER_NAME
from ampft.training.checkpoints.manifest import (
    BEST_NAME,
    MODEL_NAME,
    OPTIMIZER_NAME,
    STATE_NAME,
    CheckpointManifest,
    CursorPart,
    write_manifest,
)
from ampft.training.checkpoints.tensors import write_tensors


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a checkpoint, copied from the training, or immutable while it is written.

    Attributes:
        cursor: Position in the training.
        reason: Why it is written.
        model: Weights and buffers by name.
        optimizer: Tensors of the optimizer by name.
        state: Everything else, as JSON values; numbers may be infinite or NaN.
        best: Hash and size of the best weights, whose file is in the folder already; None if no
            epoch was evaluated.
        settings: As in `CheckpointManifest`.
        topology: As in `CheckpointManifest`.
        environment: As in `CheckpointManifest`.
        history: File of the history, and its part that belongs to the checkpoint.
    """

    cursor: CursorPart
    reason: str
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    best: FilePart | None
    settings: Mapping[str, Any]
    topology: Mapping[str, Any]
    environment: Mapping[str, Any]
    history: tuple[Path, FilePart]

    @property
    def tensor_bytes(self) -> int:
        """Size of the tensors, which make up almost all of the checkpoint."""
        return sum(t.nbytes for t in (*self.model.values(), *self.optimizer.values()))


def write_content(folder: Path, content: Content) -> None:
    """Write the files of a checkpoint and, last, its manifest; wait until they are on the disk.

    Args:
        folder: Temporary folder, which holds nothing but the best weights.
        content: What to write.
    """
    files = {
        MODEL_NAME: write_tensors(folder / MODEL_NAME, content.model),
        OPTIMIZER_NAME: write_tensors(folder / OPTIMIZER_NAME, content.optimizer),
        STATE_NAME: write_file(folder / STATE_NAME, [json.dumps(content.state).encode()]),
    }
    if content.best is not None:
        files[BEST_NAME] = content.best
    if (folder / OWNER_NAME).exists():
        files[OWNER_NAME] = describe_file(folder / OWNER_NAME)
    history, history_part = content.history
    sync(history)
    manifest = CheckpointManifest(
        cursor=content.cursor,
        reason=content.reason,
        settings=content.settings,
        topology=content.topology,
        environment=content.environment,
        history=history_part,
        files=files,
    )
    write_manifest(folder, manifest)
    sync(folder)
