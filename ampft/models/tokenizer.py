"""Loads tokenizers that can pad, and finds the longest input that they and the model accept."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors
from tokenizers.normalizers import Prepend, Sequence
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from ampft.decision import CONTRACT_NAME, TOKENIZER_NAME, Contract, Tokenization
from ampft.errors import InputError
from ampft.models.extension_points import PACKED_FAMILIES
from ampft.models.pretrained import (
    MODEL_NAME_FLAG,
    SAVED_MODEL_FLAG,
    check_model_name,
    loading_error,
)
from ampft.ownership import TemporaryFolder

# Families that call transformers' `create_position_ids_from_input_ids`: their positions start at
# padding_idx + 1, so that a table of n rows has n - padding_idx - 1 positions.
OFFSET_POSITIONS = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke",
    "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
WORD_BOUNDARY = "▁"  # the only word of a sentencepiece tokenizer whose files are missing
MASK, TYPES = "attention_mask", "token_type_ids"
PROBE = ("a", "b", "a")  # words, which a text has with spaces between them
RARE_CHARACTER = "\ua66e"  # multiocular O, of one manuscript


def load_tokenizer(
    path: str,
    *,
    flag: str = MODEL_NAME_FLAG,
    trust_remote_code: bool = False,
    reads_words: bool = False,
) -> Any:
    """Return the tokenizer of a model, with a padding token.

    Args:
        path: Folder or hub id.
        flag: Flag that received the path, for the error message.
        trust_remote_code: Whether code from the model's repository may run.
        reads_words: Whether it reads lists of words. It must then read each as after a space in a
            text, and it pads and truncates on the right. The tokenizer of a saved model is not
            changed: it reads words as in its training.

    Raises:
        InputError: The tokenizer cannot be loaded, has no vocabulary, cannot pad, or does not read
            words as in a text.
    """
    check_model_name(path, flag=flag)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        if reads_words and flag != SAVED_MODEL_FLAG:
            if _lacks_space(tokenizer):
                tokenizer = _with_space_before_words(path, trust_remote_code=trust_remote_code)
            _trim_places(tokenizer)
    except InputError:
        raise
    except Exception as error:  # a damaged tokenizer.json: KeyError, TypeError, bare Exception, ...
        if lacks_tokenizer(path):
            raise InputError(
                f"{flag} {path}: the folder has no tokenizer. Choose a model for texts, or if "
                "it is one, save its tokenizer there too: tokenizer.save_pretrained(...)."
            ) from error
        needed = [name for name in ("sentencepiece", "tiktoken") if name in str(error)]
        if needed and find_spec("sentencepiece") is None:  # transformers then tries tiktoken
            raise InputError(
                f"{flag} {path}: its tokenizer is not stored as tokenizer.json, and reading it "
                "needs the package sentencepiece. Run `pip install sentencepiece protobuf`, or use "
                "a model with a tokenizer.json."
            ) from error
        raise loading_error(path, error, flag=flag) from error
    # Without its files transformers 5 creates an empty tokenizer, for which every word is unknown.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) - {WORD_BOUNDARY}:
        raise InputError(
            f"{flag} {path}: its tokenizer has only special tokens. The tokenizer's files, such as "
            "tokenizer.json or vocab.txt, are missing or empty. Add them to the folder, for "
            "example with tokenizer.save_pretrained."
        )
    try:
        tokenizer(RARE_CHARACTER)
    except Exception as error:  # a bare Exception of the tokenizer's library
        raise InputError(
            f"{flag} {path}: its tokenizer cannot encode a character that is not in its vocabulary "
            f"({error}). Add its token for unknown characters, such as [UNK], to its vocabulary."
        ) from error
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(
                f"{flag} {path}: its tokenizer has neither a padding nor an end-of-text token. "
                "Choose a model whose tokenizer can pad."
            )
        tokenizer.pad_token = tokenizer.eos_token
    if reads_words:  # the places of words and windows are counted from the start of a row
        tokenizer.padding_side = tokenizer.truncation_side = "right"
    return tokenizer


def lacks_tokenizer(path: str) -> bool:
    """Return whether a path is a folder without a file of a tokenizer."""
    if not Path(path).is_dir():
        return False
    names = [each.name for each in Path(path).iterdir()]
    starts, ends = ("tokenizer", "vocab", "merges"), (".model", ".spm", ".vocab", ".bpe")
    return not any(name.startswith(starts) or name.endswith(ends) for name in names)


def is_plain(tokenizer: Any) -> bool:
    """Return whether its file tokenizer.json says everything that a tokenizer does with a text."""
    plain = PreTrainedTokenizerFast
    kind = type(tokenizer)
    return (
        isinstance(tokenizer, plain)
        and kind.__call__ is plain.__call__
        and kind._encode_plus is plain._encode_plus
        and set(tokenizer.model_input_names) <= {"input_ids", "token_type_ids", MASK}
    )


def tokenization_of(
    tokenizer: Any, max_length: int, *, stride: int | None = None, words: bool = False
) -> Tokenization:
    """Return how a tokenizer is used.

    Args:
        max_length: Largest number of tokens of a row.
        stride: Number of tokens that neighbouring windows share; None truncates.
        words: Whether it reads lists of words.
    """
    return Tokenization(
        max_length=max_length,
        stride=stride,
        words=words,
        inputs=tuple(tokenizer.model_input_names),
        truncation_side=tokenizer.truncation_side,
        splits_special_tokens=bool(getattr(tokenizer, "split_special_tokens", False)),
        unknown=tokenizer.unk_token if words else None,
    )


def saved_tokenization(tokenizer: Any, folder: Path) -> Tokenization | None:
    """Return how the tokenizer of a saved model is used; None if the folder does not say so.

    The tokenizer then computes what its file says, which transformers may build anew otherwise.

    Raises:
        InputError: A file is damaged.
    """
    contract = read_contract(folder)
    if contract is None or contract.tokenization is None:
        return None
    try:
        tokenizer._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
    except Exception as error:  # a bare Exception of the tokenizer's library
        raise loading_error(str(folder), error, flag=SAVED_MODEL_FLAG) from error
    return contract.tokenization


def read_contract(folder: Path) -> Contract | None:
    """Return the contract of a saved model; None if it has none.

    Raises:
        InputError: It is damaged.
    """
    try:
        return Contract.read(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: {CONTRACT_NAME} is damaged ({error}). Restore the folder from a copy, or "
            "repeat the run."
        ) from error


def set_padding_side(tokenizer: Any, config: Any) -> str | None:
    """Make a tokenizer pad where the model expects it, and mark the padding.

    Tokenizers of decoders often put padding before the text, for generating. Models that count
    positions from the start of a row would then depend on it, so that families that can run without
    padding get it after the text. XLNet, whose head reads the last column, stays as it is.

    A tokenizer whose `model_input_names` lack the mask would make the model attend to padding.
    Token types that the model does not read, or for which its table is too small, are left out: the
    model then reads all tokens as of the first type.

    Returns:
        A note if token types are left out, which matters for pairs of texts; None otherwise.
    """
    if config.model_type in (PACKED_FAMILIES.get() or ()):
        tokenizer.padding_side = "right"
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return None
    model_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    parameters = inspect.signature(model_class.forward).parameters
    takes_mask = MASK in parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    types = getattr(config, "type_vocab_size", None) or 0  # 0 in DeBERTa, which then reads none
    note = None
    if TYPES in tokenizer.model_input_names:
        given = _largest_type(tokenizer) + 1
        known = types if TYPES in parameters or takes_any else None
        if known is None or 0 < known < given:
            _set_inputs(tokenizer, [n for n in tokenizer.model_input_names if n != TYPES])
            read = "reads none" if known is None else f"has {known}"
            note = (
                f"token types are left out: the tokenizer gives {given}, and the model {read}, so "
                "it does not see by them which text of a pair is the second"
            )
    if takes_mask and MASK not in tokenizer.model_input_names:
        _set_inputs(tokenizer, [*tokenizer.model_input_names, MASK])
    return note


def set_padding(tokenizer: Any, side: str) -> None:
    """Set where a tokenizer pads, also for plain clients of the saved tokenizer."""
    if side != tokenizer.padding_side:
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = side


def _set_inputs(tokenizer: Any, names: list[str]) -> None:
    """Set what a tokenizer gives to the model, also for plain clients of the saved tokenizer."""
    tokenizer.model_input_names = names
    tokenizer.init_kwargs["model_input_names"] = names  # what `save_pretrained` writes


def _largest_type(tokenizer: Any) -> int:
    """Return the largest token type that a tokenizer gives the tokens of a pair of texts."""
    types = tokenizer(*PROBE[:2]).get(TYPES)
    return max(types) if types else 0


def _lacks_space(tokenizer: Any) -> bool:
    """Return whether a tokenizer reads words in a list otherwise than after spaces in a text."""
    return tokenizer.is_fast and _read_as_text(tokenizer) != _read_as_words(tokenizer)


def _read_as_text(tokenizer: Any) -> list[int]:
    return list(tokenizer(" ".join(PROBE), add_special_tokens=False)["input_ids"])


def _read_as_words(tokenizer: Any) -> list[int]:
    ids = tokenizer(list(PROBE), is_split_into_words=True, add_special_tokens=False)["input_ids"]
    return list(ids)


def _with_space_before_words(path: str, *, trust_remote_code: bool) -> Any:
    """Return a tokenizer that puts a space before each word, also after it is saved and loaded.

    A tokenizer that splits texts by a pattern of its own (Llama 3) needs the space before that. One
    that does not mark words by spaces is returned as it is.

    Args:
        path: Folder or hub id.
        trust_remote_code: Whether code from the model's repository may run.

    Raises:
        InputError: It is a tokenizer of bytes, and cannot be changed.
    """
    trusted = trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(
        path, trust_remote_code=trusted, add_prefix_space=True
    )
    backend = tokenizer.backend_tokenizer
    if _lacks_space(tokenizer):  # the option had no effect
        if isinstance(backend.pre_tokenizer, ByteLevel):
            backend.pre_tokenizer.add_prefix_space = True
        else:
            own = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = Sequence([Prepend(" "), *own])
    if not _lacks_space(tokenizer):
        with TemporaryFolder("tokenizer") as folder:
            tokenizer.save_pretrained(folder)
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)
        if _read_as_words(loaded) == _read_as_text(loaded) == _read_as_text(tokenizer):
            return tokenizer
    if "ByteLevel" in repr(backend.pre_tokenizer):
        raise InputError(
            f"{MODEL_NAME_FLAG}: its tokenizer ({type(tokenizer).__name__}) reads a word in a list"
            " without the space before it in a text, and add_prefix_space=True has no effect on it,"
            " so that other programs would get other results from the trained model. Choose a"
            " model with another tokenizer."
        )
    return AutoTokenizer.from_pretrained(path, trust_remote_code=trusted)


def _trim_places(tokenizer: Any) -> None:
    """Let the places of tokens begin after the space before a word, also after saving and loading.

    Otherwise a pipeline shows entities with that space. A tokenizer on which this has no effect
    stays as it is, and its tokens stay the same.
    """
    if not tokenizer.is_fast or not _places_have_spaces(tokenizer):
        return
    backend = tokenizer.backend_tokenizer
    unchanged, ids = backend.to_str(), list(tokenizer(" ".join(PROBE))["input_ids"])
    own = [] if backend.post_processor is None else [backend.post_processor]
    trimming = processors.ByteLevel(trim_offsets=True)
    backend.post_processor = processors.Sequence([trimming, *own])
    with TemporaryFolder("tokenizer") as folder:
        tokenizer.save_pretrained(folder)
        loaded = AutoTokenizer.from_pretrained(folder)
    for each in (tokenizer, loaded):
        if _places_have_spaces(each) or list(each(" ".join(PROBE))["input_ids"]) != ids:
            tokenizer._tokenizer = Tokenizer.from_str(unchanged)
            return


def _places_have_spaces(tokenizer: Any) -> bool:
    text = " ".join(PROBE)
    places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return any(text[start:end].startswith(" ") for start, end in places["offset_mapping"])


def max_input_length(requested: int, tokenizer: Any, config: Any) -> int:
    """Return the number of tokens at which texts are truncated.

    Args:
        requested: Requested number of tokens, which the tokenizer or the model may reduce.
        tokenizer: Tokenizer; a missing `model_max_length` reads as 1e30.
        config: Configuration of the model; families without a table of positions set no limit.
    """
    limits = [requested, int(tokenizer.model_max_length)]
    positions = getattr(config, "max_position_embeddings", None)
    # XLNet has -1. DeBERTa has no table if `position_biased_input` is false.
    if positions and positions > 0 and getattr(config, "position_biased_input", True):
        if config.model_type in OFFSET_POSITIONS:
            positions -= (1 if config.pad_token_id is None else config.pad_token_id) + 1
        limits.append(positions)
    return min(limits)
