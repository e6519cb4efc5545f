"""The Hugging Face hub: whether it can be reached, asked once; and where downloads are kept."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from ampft.flag import MODEL, flag

SECONDS_TO_CONNECT = 3.0
SECONDS_TO_ANSWER = 4.0  # includes the look-up of the host's name, which has no separate limit
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True)
class HubSettings:
    """Where models and data sets of the hub are kept."""

    cache_dir: str | None = flag(
        None,
        "folder for what --model_name_or_path and --dataset_name download; if none, that of "
        "HF_HOME",
        group=MODEL,
        metavar="DIR",
    )


@cache
def go_offline_if_unreachable(*, needs_hub: bool = False) -> str | None:
    """Return why the hub cannot be used, and what to do; None if it answers.

    If it does not answer, the libraries are set to use only their caches: they would otherwise try
    each file six times, which takes 23 seconds per file.

    Args:
        needs_hub: Whether no local folder can take its place.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        name = next((n for n in OFFLINE_VARIABLES if os.environ.get(n)), OFFLINE_VARIABLES[0])
        if needs_hub:
            return f"{name}=1 forbids to ask the hub. Unset the variable."
        return f"{name}=1 forbids downloads. Pass a local folder, or unset the variable."
    reason = connection_problem(constants.ENDPOINT)
    if reason is None:
        return None
    constants.HF_HUB_OFFLINE = True
    import datasets.config

    datasets.config.HF_HUB_OFFLINE = True
    host = urlsplit(constants.ENDPOINT).hostname
    folder = ", or pass a local folder; with HF_HUB_OFFLINE=1 the hub is not asked"
    return (
        f"the hub ({host}) cannot be reached: {reason}. Check the network"
        f"{'' if needs_hub else folder}."
    )


def connection_problem(endpoint: str) -> str | None:
    """Return why an HTTP server does not answer, or None if it does, with whatever status."""
    from huggingface_hub import get_session

    outcome: list[str | None] = []

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=SECONDS_TO_CONNECT)
            outcome.append(None)
        except Exception as error:  # the client, its proxies and TLS raise many kinds
            outcome.append(" ".join(str(error).split()).rstrip(".") or type(error).__name__)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_ANSWER)
    return outcome[0] if outcome else f"no answer within {SECONDS_TO_ANSWER:.0f} seconds"


def is_folder_or_hub_id(name: str) -> bool:
    """Return whether a name is an existing folder or has the form of a hub id."""
    return Path(name).is_dir() or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None
