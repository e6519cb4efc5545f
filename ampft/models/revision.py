"""A pinned revision of a model on the hub: a branch, a tag or a commit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ampft.errors import InputError
from ampft.hub import hub_problem

# Weights in other formats than safetensors, which are never opened.
_NOT_NEEDED = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.gguf", "*.ckpt")


@cache
def pinned_folder(name: str, revision: str | None, cache_dir: str | None) -> Path:
    """Return the folder in the hub's cache that holds a revision of a model, downloaded if needed.

    Its name is the commit, so that a branch that moves later is another folder.

    Args:
        name: Hub id of the model.
        revision: Branch, tag or commit; None for the main branch.
        cache_dir: Folder of the cache; None for the usual one.

    Raises:
        InputError: The model is a folder, or the revision cannot be had.
    """
    from huggingface_hub import snapshot_download

    if Path(name).exists():
        raise InputError(
            f"--model_revision {revision}: {name} is a folder, which has no revisions. Remove the "
            "flag."
        )
    problem = hub_problem()
    try:
        folder = snapshot_download(
            name, revision=revision, cache_dir=cache_dir, ignore_patterns=list(_NOT_NEEDED)
        )
    except Exception as error:  # the client raises many kinds
        reason = problem or " ".join(str(error).split())
        what = f"--cache_dir {cache_dir}: {name}"
        if revision is not None:
            what = f"--model_revision {revision}: this revision of {name}"
        raise InputError(
            f"{what} is not in the cache, and cannot be downloaded: {reason}"
        ) from error
    return Path(folder)
