"""Loads tokenizers that can pad, and finds the longest input that they and the model accept."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from ampft.decision import CONTRACT_NAME, TOKENIZER_NAME, Contract, Tokenization
from ampft.errors import InputError
from ampft.models.packing.families import FAMILIES
from ampft.models.pretrained import (
    MODEL_NAME_FLAG,
    SAVED_MODEL_FLAG,
    check_model_name,
    loading_error,
)

# Families that call transformers' `create_position_ids_from_input_ids`: their positions start at
# padding_idx + 1, so that a table of n rows has n - padding_idx - 1 positions.
OFFSET_POSITIONS = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke",
    "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
WORD_BOUNDARY = "▁"  # the only word of a sentencepiece tokenizer whose files are missing
MASK = "attention_mask"
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
        reads_words: Whether it reads lists of words. A tokenizer of bytes (GPT-2's and RoBERTa's)
            must then put a space before each, and it pads and truncates on the right.

    Raises:
        InputError: The tokenizer cannot be loaded, has no vocabulary, or cannot pad.
    """
    check_model_name(path, flag=flag)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        if reads_words and _lacks_space(tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(
                path, trust_remote_code=trust_remote_code, add_prefix_space=True
            )
            # The generic class of transformers 5 ignores the argument.
            if _lacks_space(tokenizer):
                _put_space_before_words(tokenizer)
    except Exception as error:  # a damaged tokenizer.json: KeyError, TypeError, bare Exception, ...
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
        tokenizer: Tokenizer of transformers.
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
    contract = saved_contract(folder)
    if contract is None or contract.tokenization is None:
        return None
    try:
        tokenizer._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
    except Exception as error:  # a bare Exception of the tokenizer's library
        raise loading_error(str(folder), error, flag=SAVED_MODEL_FLAG) from error
    return contract.tokenization


def saved_contract(folder: Path) -> Contract | None:
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
            f"{SAVED_MODEL_FLAG} {folder}: {CONTRACT_NAME} is damaged ({error}). Restore the "
            "folder from a copy, or repeat the run."
        ) from error


def set_padding_for_model(tokenizer: Any, config: Any) -> None:
    """Make a tokenizer pad where the model expects it, and mark the padding.

    Tokenizers of decoders often put padding before the text, for generating. Models that count
    positions from the start of a row would then depend on it, so that families that can run without
    padding get it after the text. XLNet, whose head reads the last column, stays as it is.

    A tokenizer whose `model_input_names` lack the mask would make the model attend to padding.
    """
    if config.model_type in FAMILIES:
        tokenizer.padding_side = "right"
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return
    model_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    takes_mask = MASK in inspect.signature(model_class.forward).parameters
    if takes_mask and MASK not in tokenizer.model_input_names:
        tokenizer.model_input_names = [*tokenizer.model_input_names, MASK]


def _lacks_space(tokenizer: Any) -> bool:
    """Return whether a tokenizer of bytes puts no space before the first word."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or 'Prepend(prepend=" ")' in repr(backend.normalizer):
        return False
    return "ByteLevel(add_prefix_space=False" in repr(backend.pre_tokenizer)


def _put_space_before_words(tokenizer: Any) -> None:
    """Make a tokenizer of bytes put a space before each word of a list, and before a text.

    Where bytes are split by a rule before (Llama's and Qwen's), a prefix there would precede every
    piece of a word, so that the text itself gets it.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if state["pre_tokenizer"]["type"] == "ByteLevel":
        state["pre_tokenizer"]["add_prefix_space"] = True
    else:
        earlier = [] if state["normalizer"] is None else [state["normalizer"]]
        prefix = {"type": "Prepend", "prepend": " "}
        state["normalizer"] = {"type": "Sequence", "normalizers": [*earlier, prefix]}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))


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
