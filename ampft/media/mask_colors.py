"""Whether masks are read by their numbers or by their colours, as the training masks show.

A grey mask stores numbers, and so does one with a palette. A file of class names with colours can
contradict them: 255 can be the colour white, and the colours of a palette can have another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from PIL import Image

from ampft.errors import InputError, quoted
from ampft.media.masks import GREY, PALETTE, MaskClasses, mask_colors, mask_kind, mask_values
from ampft.words.class_names import FLAG, Color

BINARY = frozenset({0, 255})
MAX_GREYS = 8  # at most so many values, far apart, are more likely greys than classes
LEAST_STEP = 16


@dataclass
class MaskSurvey:
    """What the training masks store."""

    greys: set[int] = field(default_factory=set)  # Values of grey masks.
    # Colours of each index of masks with a palette, and a mask that has it.
    palettes: dict[int, dict[Color, str]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def numbers(self) -> set[int]:
        return self.greys | self.palettes.keys()

    def add(self, mask: Image.Image, place: str, *, has_colors: bool) -> None:
        """Add a mask.

        Args:
            has_colors: Whether the colours of the classes are known.

        Raises:
            MaskError: It cannot be used.
        """
        values = mask_values(mask, by_color=frozenset(), has_colors=has_colors)
        if values.ndim == 3:
            return
        numbers, first = np.unique(values, return_index=True)
        if mask_kind(mask) != PALETTE:
            self.greys.update(numbers.tolist())
            return
        colors = mask_colors(mask).reshape(-1, 3)[first].tolist()
        for number, (red, green, blue) in zip(numbers.tolist(), colors, strict=True):
            self.palettes[number].setdefault((red, green, blue), place)

    def refuse_several_palettes(self) -> None:
        """Raise InputError when a number has different colours in different masks."""
        for number, colors in self.palettes.items():
            if len(colors) > 1:
                (one, here), (other, there), *_ = colors.items()
                raise InputError(
                    f"{there}: its palette gives the number {number} the colour {other}, and {here}"
                    f" gives it {one}, so the numbers are not classes. Pass the colours of the"
                    f" classes with {FLAG}, or save all masks with one palette."
                )


def with_reading(
    classes: MaskClasses, survey: MaskSurvey, *, ignored: int | None
) -> tuple[MaskClasses, list[str]]:
    """Return classes of a file with the way in which masks are read, and notes on it.

    Args:
        ignored: Value that the user set for pixels that do not count, or None.

    Raises:
        InputError: Numbers and colours contradict each other.
    """
    by_color, notes = set[str](), list[str]()
    if classes.colors is None:
        survey.refuse_several_palettes()
        if survey.numbers == BINARY and len(classes.names) == 2 and ignored is None:
            note = f"The value 255 is {quoted(classes.names[1])}."
            return replace(classes, values=(0, 255), ignore_index=None), [note]
    else:
        notes.append("Colour masks are converted by the colours of the classes.")
        if survey.greys and _greys_are_colors(classes, survey.greys, ignored):
            by_color.add(GREY)
            notes.append("Grey values are read as colours.")
        if survey.palettes and _palettes_are_colors(classes, survey):
            by_color.add(PALETTE)
            notes.append("Masks with a palette are read by its colours.")
        elif survey.palettes:
            notes.append("The palettes have other colours, so the numbers of pixels are read.")
    if classes.ignore_index in survey.numbers and not by_color:
        notes.append(f"The value {classes.ignore_index} is ignored (--ignore_index).")
    return replace(classes, by_color=frozenset(by_color)), notes


def _greys_are_colors(classes: MaskClasses, greys: set[int], ignored: int | None) -> bool:
    """Return whether the values of grey masks are colours (v, v, v) of classes."""
    of_color = _of_greys(classes)
    by_number = {value: index for index, value in enumerate(classes.values)}
    if ignored is not None or classes.ignore_index not in of_color:
        greys = greys - {classes.ignore_index}
    numbers = greys & by_number.keys() - of_color.keys()
    colors = greys & of_color.keys() - by_number.keys()
    both = sorted(greys & of_color.keys() & by_number.keys())
    differ = [value for value in both if of_color[value] != by_number[value]]
    if (numbers and colors) or (differ and not numbers and not colors):
        value = max(colors or differ)
        index = of_color[value]
        name = "pixels that do not count" if index is None else classes.names[index]
        raise InputError(
            f"{FLAG}: the value {value} of grey masks can be the number of a class and the colour"
            f" of {quoted(name)}, and the training masks do not show which. Remove the colours if"
            " masks hold numbers, or save masks by colours in RGB."
        )
    return bool(colors)


def _of_greys(classes: MaskClasses) -> dict[int, int | None]:
    """Return the class of each grey that is a colour of the file; None if it does not count."""
    colors: list[tuple[Color, int | None]] = [(c, i) for i, c in enumerate(classes.colors or ())]
    colors += [(color, None) for color in classes.ignored_colors]
    return {color[0]: index for color, index in colors if len(set(color)) == 1}


def _palettes_are_colors(classes: MaskClasses, survey: MaskSurvey) -> bool:
    """Return whether the palettes of masks have the colours of the classes."""
    assert classes.colors is not None, "the caller checks"
    known: dict[Color, int | None] = {color: i for i, color in enumerate(classes.colors)}
    known |= dict.fromkeys(classes.ignored_colors)
    used = [(n, color) for n, colors in survey.palettes.items() for color in colors]
    foreign = [(n, c) for n, c in used if c not in known and n != classes.ignore_index]
    if not foreign and any(color in known for _, color in used):
        return True
    by_number = {value: index for index, value in enumerate(classes.values)}
    agree = all(known[c] == by_number.get(n) for n, c in used if c in known)
    are_numbers = survey.palettes.keys() <= by_number.keys() | {classes.ignore_index}
    if agree and are_numbers:
        survey.refuse_several_palettes()
        return False
    number, color = foreign[0]
    raise InputError(
        f"{FLAG}: the palette of {survey.palettes[number][color]} gives the number {number} the"
        f" colour {color}, which no class has, and other numbers the colours of classes. Add the"
        " colour, or remove the colours if the numbers are the classes."
    )


def refuse_spread_greys(values: Iterable[int]) -> None:
    """Raise InputError for few values that are far apart, such as 0, 85, 170, 255, or 0 and 100.

    They are rather greys that a program chose for the eye than numbers of classes.
    """
    found = sorted(values)
    if 2 <= len(found) <= MAX_GREYS and all(b - a >= LEAST_STEP for a, b in pairwise(found)):
        shown = ", ".join(map(str, found))
        raise InputError(
            f"{FLAG}: the values of the training masks are {shown}. They seem to be greys, not"
            f" numbers of classes. Pass a file with a line per class, such as 'Road {found[1]}"
            f" {found[1]} {found[1]}'; if they are numbers, pass --ignore_index."
        )
