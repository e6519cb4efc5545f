"""Lets a tokenizer find the words of a text, so that plain clients read them too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.normalizers import Replace, Sequence
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ampft.ownership import TemporaryFolder
from ampft.text.units import TIE, TextUnits


def reading_units_of_texts(tokenizer: Any, units: TextUnits, texts: Iterable[str]) -> Any:
    """Return a tokenizer that finds the units in a text, so that plain clients read them too.

    Lists of units must be read as before, and the change must survive saving and loading. Some
    classes, such as BERT's, build their rules anew when they are loaded; a tokenizer without a
    family has what its file says.

    Args:
        units: Units that the model reads, in lists.
        texts: Some texts, by which the change is checked.

    Returns:
        The tokenizer that was passed, or one that replaces it; None if no change holds, and then
        the tokenizer stays as it is.
    """
    pattern, backend = units.tokenizer_pattern(), tokenizer.backend_tokenizer
    rows = [(text, [unit.text for unit in units.split(text)]) for text in texts]
    wanted = [_read(tokenizer, words) for _, words in rows]
    if pattern is None or [_read(tokenizer, text) for text, _ in rows] == wanted:
        return None if pattern is None else tokenizer
    unchanged = backend.to_str()
    own = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
    split = Split(Regex(pattern), "isolated")
    if backend.normalizer is not None and any("\u200d" in text for text, _ in rows):
        tie = Replace(Regex(r"\u200d(?=\p{So})"), TIE)  # BERT's removes the joiner of emoji
        backend.normalizer = Sequence([tie, backend.normalizer])
    backend.pre_tokenizer = pre_tokenizers.Sequence([WhitespaceSplit(), split, *own])
    for changed in (tokenizer, _without_family(tokenizer)):
        with TemporaryFolder("tokenizer") as folder:
            changed.save_pretrained(folder)
            loaded = AutoTokenizer.from_pretrained(folder)
        if all(
            [_read(each, row[kind]) for row in rows] == wanted
            for each in (changed, loaded)
            for kind in (0, 1)
        ):
            return changed
    tokenizer._tokenizer = Tokenizer.from_str(unchanged)
    return None


def _without_family(tokenizer: Any) -> Any:
    """Return a tokenizer with the same rules and settings whose class computes its file."""
    settings = ("model_max_length", "padding_side", "truncation_side", "model_input_names")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **{name: getattr(tokenizer, name) for name in settings},
        **tokenizer.special_tokens_map,
    )


def _read(tokenizer: Any, row: str | list[str]) -> dict[str, list[int]]:
    return dict(tokenizer(row, is_split_into_words=isinstance(row, list)))
