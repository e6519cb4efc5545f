"""What later add-ons add to comparisons: launchers, tables of predictions, inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from ampft.comparison.execution.launch import Launcher
    from ampft.comparison.execution.plan import Plan
    from ampft.comparison.findings import Comparison
    from ampft.comparison.settings import CompareCommand


class Cluster(Protocol):
    """Starts the runs of a comparison on the nodes of a Ray cluster."""

    def ray_launchers(
        self, command: CompareCommand, plan: Plan, folder: Path
    ) -> tuple[Launcher, ...]:
        """Return a launcher for each run that trains at the same time."""
        ...

    def ray_launcher_of_trials(self, command: CompareCommand) -> Launcher:
        """Return a launcher for the trial of a command."""
        ...


@dataclass(frozen=True)
class Tables:
    """How rows that models predict are compared, without the records of their trainings."""

    compare: Callable[..., Comparison]  # `foreign_predictions.compare_tables`.
    compare_on: Callable[..., Comparison]  # `compare_on_file.compare_on`.
    # Returns for each example the smallest id of its group; None if no two share a group.
    groups_by_row: Callable[[Sequence[str], Sequence[str]], list[str] | None]


class Inference(Protocol):
    """Compares the precisions in which trained models predict."""

    def parse_inference_modes(self, text: str) -> tuple[str, ...]:
        """Return the precisions of a comma-separated list."""
        ...

    def compare_inference(
        self,
        folders: Sequence[Path],
        modes: Sequence[str],
        *,
        metric: str | None = None,
        margin: float = 0.01,
    ) -> Comparison:
        """Let the models of runs predict their test split in each precision, and compare."""
        ...


CLUSTER = ExtensionPoint[Cluster]("lab", "trains on a cluster")
TABLES = ExtensionPoint[Tables]("integrations", "compares tables of predictions")
INFERENCE = ExtensionPoint[Inference]("export", "compares precisions of inference")
