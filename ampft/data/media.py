"""Columns of files, whose kinds the add-on `media` adds."""

from __future__ import annotations

from pathlib import PurePath

from ampft.data.extension_points import FILE_KINDS
from ampft.data.media_kind import MediaKind

MEDIA: dict[str, MediaKind] = {
    name: kind for kinds in FILE_KINDS.all() for name, kind in kinds.items()
}


def kind_of_file(name: str) -> str | None:
    """Return `image` or `sound` for the name of such a file, and None for another name."""
    suffix = PurePath(name).suffix.lower()
    return next((kind.name for kind in MEDIA.values() if suffix in kind.suffixes), None)
