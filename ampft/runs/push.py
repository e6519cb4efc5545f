"""`--push_to_hub` and `ampft push`: the model of a run, its card and its report on the hub."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.features.feature import Feature
from ampft.hub import hub_problem
from ampft.runs.card import eval_results, model_card
from ampft.runs.finished import FinishedRun
from ampft.runs.manifest import check_files, model_files
from ampft.text.terminal import labelled, print_line

# Predictions contain texts, and run.json and the history of paths and hardware stay here.
REPORTS = ("report.json", "report.txt")
CARD_NAME = "README.md"


def check_account(flag: str, hub_model_id: str | None) -> str:
    """Check that a model can be pushed; return the name of the user.

    Args:
        flag: Flag that asks for the push, for messages.
        hub_model_id: Name of the repository; None for one of the user.

    Raises:
        InputError: The name is invalid, the token is missing or invalid, or the hub cannot be
            reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if hub_model_id is not None:
        try:
            validate_repo_id(hub_model_id)
        except HFValidationError as error:
            raise InputError(f"--hub_model_id: {' '.join(str(error).split())}") from None
    if get_token() is None:
        raise InputError(
            f"{flag}: no token of the hub was found. Run `hf auth login`, or set HF_TOKEN to a"
            " token that may write."
        )
    problem = hub_problem()
    if problem is not None:
        raise InputError(f"{flag}: {problem}")
    try:
        return str(HfApi().whoami()["name"])
    except HfHubHTTPError as error:
        raise InputError(
            f"{flag}: the hub does not accept the token ({_reason(error)}). Run `hf auth login`, or"
            " set HF_TOKEN to a token that may write."
        ) from None


def push_run(
    folder: str | Path,
    *,
    hub_model_id: str | None = None,
    private: bool = False,
    flag: str = "ampft push",
    comparison: str = "",
) -> str:
    """Push the model of a finished run, its card and its report to the hub.

    Predictions, run.json and the history stay where they are, because they contain texts of the
    data, paths and names of hardware.

    Args:
        folder: Output folder of the run.
        hub_model_id: Name of the repository; None for the name of the folder, under the user.
        private: Whether a new repository is private.
        flag: Flag or command that asks for the push, for messages.
        comparison: Section of the card on the comparison that the run is part of.

    Returns:
        The address of the model.

    Raises:
        InputError: The run has not finished, its files were changed, or the hub refuses them.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    run = FinishedRun(folder)
    user = check_account(flag, hub_model_id)
    name = hub_model_id or f"{user}/{run.folder.resolve().name}"
    files = run.record.files
    names = sorted({*model_files(run.folder, files), *REPORTS})
    check_files(run.folder, files, names)
    card = model_card(run.record, run.report, hub_model_id=name, comparison=comparison)
    operations: list[Any] = [CommitOperationAdd(CARD_NAME, card.encode())]
    operations += [CommitOperationAdd(name, run.folder / name) for name in names]
    evaluation = eval_results(run.record, run.report)
    if evaluation is not None:
        operations.append(CommitOperationAdd(evaluation[0], evaluation[1].encode()))
    api = HfApi()
    try:
        url = api.create_repo(name, private=private or None, exist_ok=True)
        api.create_commit(url.repo_id, operations, commit_message="Add the model, card and report")
    except (HfHubHTTPError, OSError, ValueError) as error:
        again = f"ampft push {shlex.quote(str(folder))} --hub_model_id {name}"
        raise InputError(
            f"{flag}: {name} was not pushed ({_reason(error)}). The run is complete in {folder};"
            f" to try again: {again}{' --private' * private}"
        ) from None
    return str(url)


def _reason(error: Exception) -> str:
    """Return the hub's own message, or the first line of the error."""
    return (getattr(error, "server_message", None) or str(error).splitlines()[0]).rstrip(".")


class Pushing(Feature):
    """Pushes the results of a run with `--push_to_hub`."""

    name = "push"

    def __init__(self, hub_model_id: str | None, *, private: bool) -> None:
        """Begin with nothing pushed.

        Args:
            hub_model_id: As for `push_run`.
            private: As for `push_run`.
        """
        self._hub_model_id, self._private = hub_model_id, private

    def published(self, folder: Path) -> None:
        """Push the results, and print the address of the model."""
        url = push_run(
            folder, hub_model_id=self._hub_model_id, private=self._private, flag="--push_to_hub"
        )
        print_line(labelled("pushed", url))
