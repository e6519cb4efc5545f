"""What a page shows of a case: texts, a sentence with marked spans, pictures or a sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from ampft.text.tables import isolated


@dataclass(frozen=True, kw_only=True)
class Span:
    """Neighbouring words with a type."""

    name: str  # Type.
    first: int  # Index of the first word.
    end: int  # Index after the last word.
    # Whether the label has it too; of a span of the label, whether all predictions do.
    is_shared: bool


@dataclass(frozen=True, kw_only=True)
class Tagging:
    """The spans of a sentence in order, as its label or a prediction has them."""

    title: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class ShownPicture:
    """A small picture: its title, its media type, such as "image/png", and its file in base64."""

    title: str
    media_type: str
    content: str


@dataclass(frozen=True, kw_only=True)
class ShownSound:
    """A short sound."""

    media_type: str  # Media type, such as "audio/flac".
    content: str  # File in base64.
    peaks: tuple[int, ...]  # Largest amplitude of each of equal parts of the sound, 0 to 100.
    description: str  # Length and rate.


@dataclass(frozen=True, kw_only=True)
class ShownCase:
    """A case as a page shows it; JSON can hold it."""

    # Texts by title; the only one has no title in the page.
    texts: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # Words of a sentence.
    taggings: tuple[Tagging, ...] = ()  # Spans of these words.
    pictures: tuple[ShownPicture, ...] = ()  # Pictures, side by side.
    legend: Mapping[str, str] = field(default_factory=dict)  # Colour, such as "#ff8000", by class.
    sound: ShownSound | None = None  # Sound.
    reference: str = ""  # Where the case comes from, below everything else.

    def html(self) -> Markup:
        """Return the case as HTML, in which every string is inert."""
        return Markup("\n").join(self._parts())

    def _parts(self) -> Iterator[Markup]:
        for name, text in self.texts.items():
            title = _small(name) if len(self.texts) > 1 else ""
            yield Markup("<blockquote>{}{}</blockquote>").format(title, isolated(text))
        for tagging in self.taggings:
            yield Markup('<p class="tagged">{}{}</p>').format(
                _small(tagging.title), _marked(self.words, tagging.spans)
            )
        if self.pictures:
            shown = Markup("").join(map(_picture, self.pictures))
            yield Markup('<div class="pictures">{}</div>').format(shown)
        if self.legend:
            entries = Markup(" ").join(_entry(*item) for item in self.legend.items())
            yield Markup('<p class="facts">{}</p>').format(entries)
        if self.sound is not None:
            yield _sound(self.sound)
        if self.reference:
            yield Markup('<p class="facts">{}</p>').format(isolated(self.reference))


def _small(title: str) -> Markup:
    return Markup("<small>{}</small> ").format(isolated(title))


def _marked(words: tuple[str, ...], spans: tuple[Span, ...]) -> Markup:
    parts: list[Markup] = []
    place = 0
    for span in spans:
        parts += map(isolated, words[place : span.first])
        inside = Markup(" ").join(map(isolated, words[span.first : span.end]))
        kind = "shared" if span.is_shared else "unshared"
        parts.append(
            Markup('<mark class="{}">{} <small>{}</small></mark>').format(
                kind, inside, isolated(span.name)
            )
        )
        place = span.end
    parts += map(isolated, words[place:])
    return Markup(" ").join(parts)


def _picture(picture: ShownPicture) -> Markup:
    source = f"data:{picture.media_type};base64,{picture.content}"
    title = Markup("<small>{}</small>").format(isolated(picture.title)) if picture.title else ""
    return Markup('<span><img alt="" src="{}">{}</span>').format(source, title)


def _entry(name: str, color: str) -> Markup:
    return Markup(
        '<svg class="patch" viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" '
        'fill="{}"/></svg> {}'
    ).format(color, isolated(name))


def _sound(sound: ShownSound) -> Markup:
    bars = " ".join(
        f"M{place} {-max(peak, 1)}V{max(peak, 1)}" for place, peak in enumerate(sound.peaks)
    )
    source = f"data:{sound.media_type};base64,{sound.content}"
    return Markup(
        '<svg class="wave" viewBox="-1 -100 {} 200" preserveAspectRatio="none" aria-hidden="true">'
        '<path d="{}"/></svg>\n<audio controls preload="metadata" src="{}"></audio>'
        '<p class="facts">{}</p>'
    ).format(len(sound.peaks) + 1, bars, source, isolated(sound.description))
