"""The task that the types of the columns of a data set show, if the user named none."""

from __future__ import annotations

from datasets import ClassLabel, Features, Image, Value

from ampft.data.columns import LABELS
from ampft.data.extension_points import MASKS
from ampft.data.request import DataRequest

PIXELS, SEVERAL = "pixels", "multi-label"  # tasks of masks, and of several labels


def declared_task(features: Features, request: DataRequest) -> str | None:
    """Return the task that the types of columns show: masks, or lists of labels."""
    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    named = {request.image_column_name, request.label_column_name} - {None}
    masks = MASKS.get()
    columns = [] if masks is None else [n for n in images if n.lower() in masks.column_names]
    if len(images) == 2 and len(columns) == 1 and named <= {*images}:
        return PIXELS
    labels = request.label_column_name
    if labels is None:
        labels = next((name for name in LABELS if name in features), None)
    if labels not in features or request.several_labels:
        return None
    names = getattr(features[labels], "feature", None)
    is_text = isinstance(names, Value) and names.dtype in ("string", "large_string")
    return SEVERAL if isinstance(names, ClassLabel) or is_text else None
