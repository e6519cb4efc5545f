"""Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u109f"  # Tibetan, Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Hiragana, Katakana
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Chinese
)
_CHARACTER = re.compile(f"[{_UNSPACED}]")
_SPACE = re.compile(f"(?<=[{_UNSPACED}]) +| +(?=[{_UNSPACED}])")
_UNIT = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
MOST_TEXTS = 10_000  # that are examined
LEAST_SHARE = 0.1  # of texts without spaces, for characters instead of words


def is_unspaced(text: str) -> bool:
    """Return whether most characters of a text belong to scripts without spaces between words."""
    if text.isascii():
        return False
    return 2 * len(_CHARACTER.findall(text)) > sum(map(str.isalnum, text))


def need_characters(texts: Iterable[str]) -> bool:
    """Return whether a tenth or more of the texts, or of the first 10,000, have no spaces."""
    found = [is_unspaced(text) for text in islice(texts, MOST_TEXTS)]
    return bool(found) and sum(found) >= LEAST_SHARE * len(found)


def without_script_spaces(text: str) -> str:
    """Return a text without the spaces next to scripts that need none."""
    return text if text.isascii() else _SPACE.sub("", text)


def words_or_characters(text: str) -> list[str]:
    """Return the words between spaces, and each character of scripts without spaces."""
    return text.split() if text.isascii() else _UNIT.findall(text)
