"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ampft.data.extension_points import FILE_KINDS, MASKS, Masks
from ampft.tasks.extension_points import TASK_ROWS

if TYPE_CHECKING:
    from ampft.data.media_kind import MediaKind
    from ampft.tasks import TaskRow


@TASK_ROWS.add
def tasks() -> Mapping[str, TaskRow]:
    """Return the tasks of images, sounds and masks."""
    from ampft.media.tasks import TASKS

    return TASKS


@FILE_KINDS.add
def kinds_of_files() -> Mapping[str, MediaKind]:
    """Return images and sounds as kinds of files."""
    from ampft.media.table import MEDIA

    return MEDIA


@MASKS.add
def masks() -> Masks:
    """Return what recognizes and reads images with masks."""
    from ampft.media.mask_data import MASK_NAMES, load_masks
    from ampft.media.mask_folders import find_mask_folders

    return Masks(MASK_NAMES, find_mask_folders, load_masks)
