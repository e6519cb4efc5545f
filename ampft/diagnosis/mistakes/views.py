"""How the page shows the inputs of a case, by kind of data."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from markupsafe import Markup

from ampft.errors import InputError
from ampft.text.tables import isolated

if TYPE_CHECKING:
    from PIL.Image import Image

    from ampft.data.dataset import ClassificationData
    from ampft.runs.record import RunRecord

LONGEST_TEXT = 1200  # characters
LARGEST_PICTURE = 160  # pixels

_SPLIT_AND_ROW = re.compile(r"(train|validation|test)/([0-9]+)")

View = Callable[[Mapping[str, str]], Markup]
"""Returns the inputs of a case, from its columns in predictions.parquet, as HTML."""


def show_texts(inputs: Mapping[str, str]) -> Markup:
    """Return texts, each with the name of its column if there are several."""
    parts = []
    for name, text in inputs.items():
        cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
        title = Markup("<small>{}</small> ").format(isolated(name)) if len(inputs) > 1 else ""
        parts.append(Markup("<blockquote>{}{}</blockquote>").format(title, isolated(cut)))
    return Markup("\n").join(parts)


@dataclass
class Pictures:
    """Shows pictures: those of files, and otherwise those of the data of the run, read again.

    Attributes:
        record: Record of the run.
    """

    record: RunRecord

    def __call__(self, inputs: Mapping[str, str]) -> Markup:
        """Return the picture of a case, or its reference if it cannot be read."""
        (reference,) = inputs.values()
        image = _opened(reference) or self._from_data(reference)
        if image is None:
            return show_texts(inputs)
        image.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return Markup(
            '<p><img alt="" src="data:image/png;base64,{}"> <small>{}</small></p>'
        ).format(base64.b64encode(buffer.getvalue()).decode("ascii"), isolated(reference))

    def _from_data(self, reference: str) -> Image | None:
        match = _SPLIT_AND_ROW.fullmatch(reference)
        if match is None or self._data is None:
            return None
        from ampft.data.images import as_rgb

        (column,) = self._data.input_columns
        return as_rgb(self._data.splits[match[1]][int(match[2])][column])

    @cached_property
    def _data(self) -> ClassificationData | None:
        """The data of the run; None if they are not available, or have changed since."""
        from ampft.data.load import load_data
        from ampft.runs.audit.rebuild import recorded_arguments

        try:
            data = load_data(recorded_arguments(self.record, ()).data_request())
        except InputError:
            return None
        return data if dict(data.fingerprints) == dict(self.record.data.fingerprints) else None


def _opened(path: str) -> Image | None:
    from PIL import Image

    from ampft.data.images import as_rgb

    try:
        with Image.open(path) as opened:
            return as_rgb(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def view_of(record: RunRecord) -> View:
    """Return how the cases of a run are shown: as pictures, or as texts."""
    return Pictures(record) if record.data.kind in ("image", "pixels") else show_texts
