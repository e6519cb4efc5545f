"""Texts and text pairs: a tokenizer and a model that reads tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
import transformers
from torch import Tensor
from transformers import DataCollatorWithPadding

from ampft.data.dataset import ROWS_AT_A_TIME, TOKEN, ClassificationData
from ampft.data.row_labels import unit_indices
from ampft.data.step_batches import IntArray, ids_of_varied_length
from ampft.decision import Tokenization
from ampft.errors import InputError
from ampft.kinds import MANY_TRUNCATED
from ampft.kinds.extension_points import EMBEDDING_GRADIENT, PADDING_REMOVAL
from ampft.kinds.impossible_rows import refuse_impossible_rows
from ampft.kinds.input_settings import InputSettings
from ampft.kinds.inputs import TRUNCATED
from ampft.kinds.logits import model_inputs
from ampft.kinds.token_tables import check_end_tokens, embedding_size, refused_tokens, unknown_token
from ampft.kinds.unfit_tokens import MOST_ROWS, unfit_token_notes
from ampft.kinds.windows import (
    EXAMPLE,
    LENGTH,
    POSITIONS,
    WINDOW_COUNTS,
    add_example_indices,
    row_columns,
    tokens_in_windows,
    window_overlap,
    word_selection,
)
from ampft.models.by_length import MASK, fit_padding, guard_against_text_padding
from ampft.models.mean_pooling import MEAN, can_read_mean, is_trained_through_mean, read_mean
from ampft.models.minilm import default_model
from ampft.models.pretrained import (
    MODEL_NAME_FLAG,
    SAVED_MODEL_FLAG,
    enable_gradient_checkpointing,
    load_config,
    load_pretrained,
)
from ampft.models.tokenizer import (
    is_plain,
    load_tokenizer,
    max_input_length,
    saved_tokenization,
    set_padding_side,
    tokenization_of,
)
from ampft.models.weights import LoadedModel
from ampft.ownership import read_token

EncodeWindows = Callable[[dict[str, list[Any]]], dict[str, list[Any]]]


@dataclass(frozen=True)
class TextReader:
    """A tokenizer, and what it does with long texts."""

    collator: DataCollatorWithPadding  # Pads the tokens of texts to one length.
    tokenization: Tokenization  # How texts become tokens.

    def encode(self, columns: Sequence[Sequence[str]]) -> dict[str, list[Any]]:
        """Return the tokens of texts or pairs, or of windows with their text as `example`."""
        return self._encode(columns)[0]

    def _encode(self, columns: Sequence[Sequence[str]]) -> tuple[dict[str, list[Any]], list[bool]]:
        """Return the tokens, and whether each row was truncated, which a slow tokenizer hides."""
        tokenizer: Any = self.collator.tokenizer
        read = self.tokenization
        if not is_plain(tokenizer):
            return dict(tokenizer(*columns, truncation=True, max_length=read.max_length)), []
        texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        tokens = read.encode(tokenizer.backend_tokenizer, texts)
        if read.stride is None:
            return tokens.columns, tokens.truncated
        return row_columns(tokens), []

    def length(self, row: tuple[Any, ...]) -> int:
        """Return the number of characters."""
        return sum(map(len, row))

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        """Return `input_ids`, `attention_mask`, ... of texts, see `pad_and_collate`."""
        encoded, truncated = self._encode(columns)
        if EXAMPLE not in encoded:
            batch = pad_and_collate(self.collator, encoded)
            return {**batch, TRUNCATED: torch.tensor(truncated)} if any(truncated) else batch
        windows = np.bincount(encoded.pop(EXAMPLE), minlength=len(columns[0]))
        return pad_and_collate(self.collator, encoded, windows=windows)

    def refused(self, columns: Any, model: Any, error: Exception) -> InputError:
        """Return the message that a model cannot take these texts."""
        return refused_tokens(model, self.collator.tokenizer, lambda: self.collate(columns), error)


def pad_and_collate(
    collator: DataCollatorWithPadding,
    columns: dict[str, list[Any]],
    *,
    windows: IntArray | None = None,
    words: IntArray | None = None,
) -> dict[str, Tensor]:
    """Return `input_ids`, `attention_mask`, ... (m, T), padded at the end.

    With windows, the tensors also say how `windows.logits_per_text_or_word` obtains the logits per
    example or word.

    Args:
        collator: Pads a list of texts or windows to one length.
        columns: Their tokens, and the positions of the words that windows predict.
        windows: Number of windows of each example; None if each is one row.
        words: Number of words of each example whose labels are predicted.
    """
    positions = columns.pop(POSITIONS, None)
    features = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    batch = dict(collator(features))
    if positions is not None and words is not None:
        return {**batch, **word_selection(positions, words, batch)}
    return batch if windows is None else {**batch, WINDOW_COUNTS: torch.from_numpy(windows)}


SINGLE_LABEL = "single_label_classification"  # as transformers names it


@dataclass(frozen=True)
class TextExamples:
    """The tokens of one split."""

    # Tokens of each example, or of each window of each example, on disk if the data set is.
    rows: datasets.Dataset
    lengths: IntArray  # (n,) number of tokens that the model reads.
    collator: DataCollatorWithPadding  # Pads a list of examples to one length.
    # (n,) number of windows of each example; None if each is one row.
    windows: IntArray | None = None
    # (n,) number of words of each example whose labels are predicted; None if the example itself
    # has the label.
    words: IntArray | None = None
    truncated: int = 0  # Number of truncated examples.

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the tokens of the examples or their windows, see `pad_and_collate`."""
        rows = ids if self.windows is None else unit_indices(self.windows, ids)
        return pad_and_collate(
            self.collator,
            self.rows[rows.tolist()],
            windows=None if self.windows is None else self.windows[ids],
            words=None if self.words is None else self.words[ids],
        )


@dataclass(frozen=True)
class TextInputs:
    """Tokenized texts; build them with `prepare_inputs`."""

    data: ClassificationData
    notes: tuple[str, ...]
    model_path: str
    model_name: str
    tokenizer: Any = field(repr=False)
    splits: Mapping[str, TextExamples] = field(repr=False)
    reads: Tokenization
    # Notes on models that were compared without padding, so that a second copy with the same
    # weights, such as the frozen encoder after a training, is not compared again.
    _compared: dict[tuple[Any, ...], str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def tokenization(self) -> Tokenization | None:
        """How texts become tokens; None if only transformers has the tokenizer."""
        return self.reads if is_plain(self.tokenizer) else None

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: InputSettings
    ) -> LoadedModel:
        """Return the model in float32 with a head for these labels."""
        model, notes = load_pretrained(
            getattr(transformers, model_class),
            self.model_path,
            label_arguments,
            trust_remote_code=settings.trust_remote_code,
            as_it_is=settings.evaluate_only is not None,
        )
        is_default = False
        if model_class == "AutoModelForSequenceClassification":
            # Adapters are saved without the layer that it adds.
            is_free = settings.pooling is None and getattr(settings, "lora_r", None) is None
            is_default = is_free and self._reads_mean_by_default(model, label_arguments)
            if is_default or settings.pooling == MEAN:
                notes = (*notes, read_mean(model))
        elif settings.pooling is not None:
            raise InputError(
                f"--pooling {settings.pooling} is for labels of whole texts. Remove the flag."
            )
        self._check_vocabulary(model)
        check_end_tokens(model, self.tokenizer, self.splits, self.data, settings)
        lacks_token = getattr(model.config, "pad_token_id", None) is None  # as code of others may
        if lacks_token or MASK not in self.tokenizer.model_input_names:
            model.config.pad_token_id = self.tokenizer.pad_token_id
        refuse_impossible_rows(model, self.tokenizer, self.splits, self.data, settings)
        if settings.gradient_checkpointing:
            enable_gradient_checkpointing(model)
        reuse_memory = EMBEDDING_GRADIENT.get()
        if reuse_memory is not None:
            reuse_memory(model)
        key = (model_class, settings.pooling, settings.token_buckets)
        padding_free, reason = self._remove_padding(model, settings, self._compared.get(key))
        if padding_free:
            self._compared[key] = reason
        if not padding_free and settings.evaluate_only is None and (fitted := self._fit(model)):
            notes = (*notes, *fitted)
            padding_free, reason = self._remove_padding(model, settings)
        if not padding_free:
            noun = "sentences" if self.data.kind == TOKEN else "texts"
            notes = (*notes, *guard_against_text_padding(model, self._batch(), noun=noun))
        return LoadedModel(
            model, self.model_name, padding_free, (*notes, reason), begins_at_probe=is_default
        )

    def _batch(self) -> Mapping[str, Tensor]:
        """Return the arguments of the model for training texts of different lengths."""
        examples = self.splits["train"]
        return model_inputs(examples.collate(ids_of_varied_length(examples.lengths)))

    def _fit(self, model: Any) -> tuple[str, ...]:
        """Fit padding token and side to the model; words need it on the right."""
        sides = ("right",) if self.data.kind == TOKEN else ("right", "left")
        return fit_padding(model, self.tokenizer, self._batch, sides=sides)

    def _reads_mean_by_default(self, model: Any, label_arguments: Mapping[str, Any]) -> bool:
        """Return whether a model is a sentence encoder without a head, and a text has one label."""
        heads = getattr(model.config, "architectures", None) or ()
        return (
            label_arguments.get("problem_type") == SINGLE_LABEL
            and len(self.data.input_columns) == 1
            and not any(name.endswith("Classification") for name in heads)
            and can_read_mean(model)
            and is_trained_through_mean(self.model_path)
        )

    def _check_vocabulary(self, model: Any) -> None:
        """Raise InputError if the texts have a token that the table of embeddings lacks."""
        if embedding_size(model) is None:
            return
        of_splits = [largest_token_id(examples.rows) for examples in self.splits.values()]
        largest = max(*of_splits, self.tokenizer.pad_token_id)
        if (problem := unknown_token(model, self.tokenizer, largest)) is not None:
            raise InputError(
                f"{MODEL_NAME_FLAG} {self.model_path}: {problem}. Use the tokenizer of the model, "
                "or call model.resize_token_embeddings(len(tokenizer)) and save the model again."
            )

    def _remove_padding(
        self, model: Any, settings: InputSettings, compared: str | None = None
    ) -> tuple[bool, str]:
        if settings.padding:
            return False, "padded path: requested by --padding; micro-batches sorted by length"
        removal = PADDING_REMOVAL.get()
        if removal is None:
            return False, "padded path; micro-batches sorted by length"
        examples, buckets = self.splits["train"], settings.token_buckets
        return removal.remove_padding(model, examples, token_buckets=buckets, compared=compared)

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return the texts of the examples `rows`, one column per input column.

        Words have a space between them.
        """
        columns = self.data.splits[split].select_columns(list(self.data.input_columns))[rows]
        if self.data.kind == TOKEN:
            return {
                "text": [" ".join(words) for (values,) in [columns.values()] for words in values]
            }
        return cast("Mapping[str, Sequence[str]]", columns)

    def save_processor(self, folder: Path) -> None:
        """Save the tokenizer, which truncates as in training when it is asked to truncate."""
        self.tokenizer.model_max_length = self.reads.max_length
        self.tokenizer.save_pretrained(folder)


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> TextInputs:
    """Tokenize `data` for the model that `settings` names.

    Raises:
        InputError: The tokenizer or the configuration cannot be loaded, or the tokenizer has no
            vocabulary or no padding token.
    """
    model_path, model_name = default_model(settings.model_path)
    config = load_config(model_path, trust_remote_code=settings.trust_remote_code)
    tokenizer = load_tokenizer(
        settings.processor_path or model_path,
        flag=settings.processor_flag,
        trust_remote_code=settings.trust_remote_code,
    )
    note = set_padding_side(tokenizer, config)
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=settings.pad_to_multiple_of)
    reader = text_reader(collator, config, settings, data.input_columns)
    column = data.input_columns[0]
    read = reader.tokenization
    if data.feature_columns and (read.stride is not None or read.truncation_side == "left"):
        where = "only the first window has" if read.stride is not None else "the tokenizer cuts off"
        raise InputError(
            f"--feature_columns puts columns before each text, where {where} them. Remove "
            "--long_text windows, or use a tokenizer that cuts off the end."
        )

    def encode_windows(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return reader.encode([batch[column]])

    tokens: dict[str, TextExamples] = {}
    notes = [note] if note is not None and len(data.input_columns) > 1 else []
    advice: list[str] = []
    max_length, stride = reader.tokenization.max_length, reader.tokenization.stride
    for name, split in data.splits.items():
        if stride is not None:
            tokens[name] = windowed_examples(split, encode_windows, collator, name)
            notes += window_notes(name, tokens[name], max_length, stride)
            continue
        rows, lengths, whole = _tokenize(name, split, data.input_columns, reader)
        if truncated := int((whole > lengths).sum()):
            share = f"{truncated} of {len(lengths)} texts ({truncated / len(lengths):.1%})"
            notes.append(f"{name}: {share} truncated to {max_length} tokens")
        if name == "train":
            texts = [split[:MOST_ROWS][column] for column in data.input_columns]
            read_tokens = rows[:MOST_ROWS]["input_ids"]
            advice += unfit_token_notes(texts, read_tokens, whole, tokenizer)
        if name == "train" and truncated >= MANY_TRUNCATED * len(lengths):
            longer = max_input_length(int(whole.max()), tokenizer, config)
            can_split = _can_split(data, tokenizer)
            advice += [_advice_on_long_texts(whole, max_length, longer, tokenizer, can_split)]
        tokens[name] = TextExamples(rows, lengths, collator, truncated=truncated)
    notes += advice
    if stride is not None:
        notes.append("the logits of a text are the mean over its windows")
    return TextInputs(
        data, tuple(notes), model_path, model_name, tokenizer, tokens, reader.tokenization
    )


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> TextReader:
    """Return the conversion of texts for a saved model, see `inputs.KindModule`."""
    tokenizer = load_tokenizer(str(folder), flag=SAVED_MODEL_FLAG)
    set_padding_side(tokenizer, config)
    stored = saved_tokenization(tokenizer, folder)
    if stored is not None:
        return TextReader(DataCollatorWithPadding(tokenizer), stored)
    settings = InputSettings(
        max_seq_length=int(arguments["max_seq_length"]),
        long_text=arguments.get("long_text", "truncate"),
        stride=arguments.get("stride"),
    )
    return text_reader(DataCollatorWithPadding(tokenizer), config, settings)


def text_reader(
    collator: DataCollatorWithPadding,
    config: Any,
    settings: InputSettings,
    columns: Sequence[str] = (),
) -> TextReader:
    """Return the conversion of texts.

    Args:
        settings: Largest number of tokens, also of a window, and what happens to longer texts.
        columns: Columns of the texts, if they must be checked.

    Raises:
        InputError: Pairs of texts cannot be split, or the stride does not fit.
    """
    max_length = max_input_length(settings.max_seq_length, collator.tokenizer, config)
    if settings.long_text == "windows":
        if len(columns) > 1:
            raise InputError(
                f"--long_text windows: the data have pairs of texts ({', '.join(columns)}), and "
                "only single texts can be split. Remove the flag."
            )
        shared = window_overlap(settings.stride, max_length, collator.tokenizer)
        read = tokenization_of(collator.tokenizer, max_length, stride=shared)
        return TextReader(collator, read)
    if settings.stride is not None:
        raise InputError(
            f"--stride {settings.stride} has no effect on texts that are truncated. Add"
            " --long_text windows, or remove the flag."
        )
    return TextReader(collator, tokenization_of(collator.tokenizer, max_length))


def windowed_examples(
    split: datasets.Dataset,
    encode: EncodeWindows,
    collator: DataCollatorWithPadding,
    name: str,
    *,
    words: IntArray | None = None,
) -> TextExamples:
    """Return the examples of a split as the windows of their tokens.

    Args:
        encode: Function that returns the columns of the windows of a batch of examples from their
            columns.
        collator: Pads a list of windows to one length.
        name: Name of the split, for the progress bar.
        words: (n,) number of words of each example, if words have labels. Words without a token are
            counted on the way, so the windows are not cached.
    """
    rows = split.map(
        lambda batch, indices: add_example_indices(encode(batch), indices),
        batched=True,
        with_indices=True,
        remove_columns=split.column_names,
        desc=f"tokenizing {name}",
        load_from_cache_file=None if words is None else False,
        new_fingerprint=_fingerprint(split),
    )
    numbers = rows.select_columns([EXAMPLE, LENGTH]).with_format("numpy")
    owners, lengths = (np.asarray(numbers[name][:], dtype=np.int64) for name in (EXAMPLE, LENGTH))
    total = np.bincount(owners, weights=lengths, minlength=len(split)).astype(np.int64)
    windows = np.bincount(owners, minlength=len(split)).astype(np.int64)
    return TextExamples(rows.remove_columns([EXAMPLE, LENGTH]), total, collator, windows, words)


def largest_token_id(rows: datasets.Dataset) -> int:
    """Return the largest token id in the rows; 0 if they hold no tokens."""
    arrow = rows.select_columns(["input_ids"]).with_format("arrow")
    parts = (batch["input_ids"] for batch in arrow.iter(batch_size=ROWS_AT_A_TIME))
    return max(pc.max(pc.list_flatten(part)).as_py() or 0 for part in parts)


def window_notes(
    split: str, examples: TextExamples, max_length: int, stride: int, *, noun: str = "texts"
) -> tuple[str, ...]:
    """Return a note on the texts of a split, or on what `noun` says, that have several windows."""
    assert examples.windows is not None, "the examples have windows"
    several = int((examples.windows > 1).sum())
    if not several:
        return ()
    return (
        f"{split}: {several} of {len(examples.windows)} {noun} are longer than {max_length} tokens"
        f" and split into {int(examples.windows[examples.windows > 1].sum())} windows;"
        f" neighbouring windows share {stride} tokens",
    )


def _can_split(data: ClassificationData, tokenizer: Any) -> bool:
    """Return whether `--long_text windows` is allowed."""
    return is_plain(tokenizer) and len(data.input_columns) == 1 and not data.feature_columns


def _advice_on_long_texts(
    whole: IntArray, max_length: int, longer: int, tokenizer: Any, can_split: bool
) -> str:
    """Return how texts that are truncated can be read, and with how many times the tokens.

    Args:
        whole: (n,) tokens of the texts before they were truncated.
        max_length: Tokens at which they were truncated.
        longer: Most tokens that the model and the longest text allow.
        can_split: Whether windows are allowed.
    """
    now = np.minimum(whole, max_length).sum()
    ways = []
    if can_split:
        cost = tokens_in_windows(whole, max_length, tokenizer).sum() / now
        ways.append(f"--long_text windows reads all of them, with {cost:.1f} times the tokens")
    if longer > max_length:
        cost, cut = np.minimum(whole, longer).sum() / now, float(np.mean(whole > longer))
        still = f"still truncates {cut:.0%}" if cut else "reads all of them"
        ways.append(f"--max_seq_length {longer} {still}, with {cost:.1f} times the tokens")
    ways = ways or ["a model that reads longer texts is needed to read them"]
    return f"The model does not read all of long texts: {'; '.join(ways)}"


def _tokenize(
    name: str, split: datasets.Dataset, columns: tuple[str, ...], reader: TextReader
) -> tuple[datasets.Dataset, IntArray, IntArray]:
    """Return the tokens, their number per example, and their number before truncation."""

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        encoded = reader.encode([batch[column] for column in columns])
        encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
        encoded["whole"] = _whole_lengths(
            encoded["length"], batch, columns, reader.collator.tokenizer
        )
        return encoded

    rows = split.map(
        encode,
        batched=True,
        remove_columns=split.column_names,
        desc=f"tokenizing {name}",
        new_fingerprint=_fingerprint(split),
    )
    numbers = rows.select_columns(["length", "whole"]).with_format("numpy")
    lengths, whole = (np.asarray(numbers[of][:], dtype=np.int64) for of in ("length", "whole"))
    return rows.remove_columns(["length", "whole"]), lengths, whole


def _fingerprint(split: datasets.Dataset) -> str | None:
    """Return a random name for what is made of rows that only this process has; None for others.

    The name that the library computes finds results of an earlier process in its cache. It hashes
    the tokenizer and much of this module, which takes half a second.
    """
    folders = {Path(part["filename"]).parent for part in split.cache_files}
    is_own = all(read_token(folder) is not None for folder in folders)
    return secrets.token_hex(8) if is_own else None


def _whole_lengths(
    lengths: list[int], batch: dict[str, list[str]], columns: tuple[str, ...], tokenizer: Any
) -> list[int]:
    """Return for each example of a batch its number of tokens before truncation."""
    longest = max(lengths)
    candidates = [index for index, length in enumerate(lengths) if length == longest]
    untruncated = tokenizer(
        *([batch[column][index] for index in candidates] for column in columns),
        truncation=False,
        verbose=False,
    )
    whole = list(lengths)
    for index, ids in zip(candidates, untruncated["input_ids"], strict=True):
        whole[index] = len(ids)
    return whole
