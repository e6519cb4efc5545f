"""What a search keeps in `search.json`: its plan, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.files import read_hashed
from ampft.lab.referee.keep_or_drop import GainEstimate
from ampft.lab.search.rungs import Choice, SearchPlan
from ampft.text.json_io import from_json

SEARCH_NAME = "search.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """What a search found."""

    chosen: str  # Name of the chosen candidate.
    settings: Mapping[str, Any]  # Chosen settings, as keyword arguments; empty for the default.
    rows: int  # Cases on which the search chose.
    tried: int  # Candidates, without the default.
    choices: Sequence[Choice]  # What the rows of the search say about them, the lowest loss first.
    loss: str  # Name of the loss.
    metric: str  # Name of the metric of the judgement.
    is_share: bool  # Whether it is a share.
    # Answer of the referee: "keep", "drop" or "undecided"; None if nothing was judged.
    answer: str | None = None
    estimate: GainEstimate | None = None  # Its numbers, in the unit of the metric.
    judged_rows: int = 0  # Cases of the judgement.
    seconds: float = 0.0  # Time that was used.
    model: str = ""  # Folder of the model, relative to the folder of the search.


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """What `search.json` holds."""

    arguments: Mapping[str, Any]  # Parsed settings of the runs, with secrets redacted.
    settings: Mapping[str, Any]  # Settings of the search.
    metric: str
    plan: SearchPlan
    # Rungs that were trained when time ran out; None if it did not.
    stopped: int | None = None
    is_judged: bool = True  # Whether the time allows the judgement.
    answer: SearchAnswer | None = None
    schema: int = SCHEMA


def read_state(folder: Path) -> SearchState | None:
    """Return the state of a search; None if the folder holds none.

    Raises:
        InputError: Its file is damaged, or of another version.
    """
    try:
        values, _ = read_hashed(folder / SEARCH_NAME, SCHEMA, "Choose another --output_dir.")
        return from_json(SearchState, values, SEARCH_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / SEARCH_NAME}: this is not the state of a search ({error}). Choose another "
            "--output_dir."
        ) from error
