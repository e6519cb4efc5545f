"""Loads image processors."""

from __future__ import annotations

from typing import Any

from transformers import AutoImageProcessor

from ampft.models.pretrained import check_model_name, loading_error


def load_image_processor(path: str, *, trust_remote_code: bool) -> Any:
    """Return the image processor of a model.

    Args:
        path: Folder or hub id.
        trust_remote_code: Whether code from the model's repository may run.

    Raises:
        InputError: It cannot be loaded.
    """
    check_model_name(path)
    try:
        return AutoImageProcessor.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a damaged file can raise any exception
        raise loading_error(path, error) from error
