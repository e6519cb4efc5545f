"""What later add-ons add to the integrations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from ampft.kinds.prediction import PredictRequest
    from ampft.runs.predict import SavedClassifier


@dataclass(frozen=True)
class Shard:
    """An input file and its output."""

    name: str  # Path of the output in its folder.
    source: str  # Path of the input.
    sha256: str  # Hash of the input, and of the files that it names.


@dataclass(frozen=True)
class ShardJob:
    """How every shard is predicted."""

    model: str  # Folder of the model.
    # Function that reads the folder, at the top level of a module.
    classifier: Callable[[Path], SavedClassifier]
    request: PredictRequest  # The user's choices; its files are the inputs.
    # SHA-256 of each file of the model, by name, as this command read it at its start; None before.
    files: Mapping[str, str] | None = None


class ShardPrediction(Protocol):
    """Predicts shards, writes each to the path that `target` returns, and yields its rows."""

    def __call__(
        self, job: ShardJob, shards: Sequence[Shard], target: Callable[[Shard], Path]
    ) -> Iterator[tuple[Shard, int]]:
        """Yield each shard with its number of rows."""
        ...


CLUSTER_PREDICTION = ExtensionPoint[ShardPrediction]("lab", "predicts on a cluster")
