"""What add-ons add to the command line: commands, and parts of the commands of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from ampft.arguments.commands import Command
    from ampft.kinds.prediction import PredictRequest
    from ampft.runs.predict import SavedClassifier

    Classifier = Callable[[Path], SavedClassifier]

# Groups of commands in the help of `ampft`, in this order.
START, AROUND_A_TRAINING = "start here", "around a training"
WHY_A_PRECISION_FAILS = "laboratory: why a precision fails"
A_BETTER_MODEL = "laboratory: a better model"
PROOF = "laboratory: proof"
GROUPS = (START, AROUND_A_TRAINING, WHY_A_PRECISION_FAILS, A_BETTER_MODEL, PROOF)


@dataclass(frozen=True)
class CommandEntry:
    """A command as `ampft --help` lists it, and a function that imports it."""

    name: str
    group: str  # One of `GROUPS`.
    summary: str  # What it does, in one line.
    # Returns the command for its arguments, which may decide between several of the same name.
    load: Callable[[Sequence[str]], Command[Any, Any]]


@dataclass(frozen=True)
class FolderReport:
    """How `ampft report` reports a folder that holds no run, such as a comparison."""

    file: str  # Name of a file that only these folders have.
    text: Callable[[Path], str]
    # Writes the page of a folder to a file; None if there is none.
    write_page: Callable[[Path, Path], None] | None = None


class CardSection(Protocol):
    """Returns a section for the card of the model in a folder, in Markdown; empty for none."""

    def __call__(self, run: Path) -> str: ...


class FolderPrediction(Protocol):
    """Predicts many files, and writes a table for each to a folder."""

    def __call__(
        self, model: str, classifier: Classifier, request: PredictRequest, output_dir: Path,
        *, engine: str,
    ) -> None: ...  # fmt: skip


class Completion(Protocol):
    """Prints the completions that a shell asks for and ends the process, if it asks."""

    def __call__(
        self, names: Sequence[str], find_command: Callable[[str], Command[Any, Any]]
    ) -> None: ...


class EnvironmentFacts(Protocol):
    """Collects what this machine and its packages can do."""

    def collect_environment(self, measure: bool = True) -> dict[str, Any]:
        """Return facts; with `measure`, also the rates of matrix products, which take seconds."""
        ...

    def format_environment(self, environment: dict[str, Any]) -> str:
        """Return the facts as text."""
        ...


COMMANDS = ExtensionPoint[tuple[CommandEntry, ...]]("lab", "adds commands")
FOLDER_REPORTS = ExtensionPoint[tuple[FolderReport, ...]]("comparison", "reports comparisons")
CARD_SECTION = ExtensionPoint[CardSection]("comparison", "describes comparisons in a card")
ARTIFACTS = ExtensionPoint["Classifier"]("export", "reads artifacts")
FOLDER_PREDICTION = ExtensionPoint[FolderPrediction]("integrations", "predicts folders of files")
ENVIRONMENT_FACTS = ExtensionPoint[EnvironmentFacts]("integrations", "describes the environment")
COMPLETION = ExtensionPoint[Completion]("integrations", "completes commands in a shell")
