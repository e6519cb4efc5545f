"""How the page shows the inputs of a case, by kind of data."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from markupsafe import Markup

from ampft.text.tables import isolated

if TYPE_CHECKING:
    from ampft.runs.record import RunRecord

LONGEST_TEXT = 1200  # characters
LARGEST_PICTURE = 160  # pixels

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


def show_picture(inputs: Mapping[str, str]) -> Markup:
    """Return the picture of a file, or its reference if that cannot be read."""
    (reference,) = inputs.values()
    picture = _thumbnail(reference)
    if picture is None:
        return show_texts(inputs)
    return Markup('<p><img alt="" src="data:image/png;base64,{}"> <small>{}</small></p>').format(
        picture, isolated(reference)
    )


def _thumbnail(path: str) -> str | None:
    from PIL import Image

    from ampft.data.images import as_rgb

    try:
        with Image.open(path) as opened:
            image = as_rgb(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    image.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


# A kind of data without a row shows its columns as texts.
VIEWS: dict[str, View] = {"text": show_texts, "image": show_picture, "pixels": show_picture}


def view_of(record: RunRecord) -> View:
    """Return how the cases of a run are shown."""
    return VIEWS.get(record.data.kind, show_texts)
