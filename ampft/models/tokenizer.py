"""Tokenizers: loaded whole and able to pad, and the longest input that they and the model take."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from ampft.errors import InputError
from ampft.models.pretrained import NAMED_MODEL, cannot_load

# Of families whose positions count from padding_idx + 1, so that a table of n has n - padding_idx
# - 1 of them: those that call transformers' `create_position_ids_from_input_ids`.
OFFSET_POSITIONS = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke",
    "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
WORD_BOUNDARY = "▁"  # alone in the vocabulary of a sentencepiece tokenizer without its files


def load_tokenizer(path: str, *, flag: str = NAMED_MODEL, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a model, with a padding token.

    Args:
        path: Folder or hub id.
        flag: The flag that named it, for the message.
        trust_remote_code: Whether code from the model's repository may run.

    Raises:
        InputError: It cannot be loaded, knows no words, or cannot pad.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a damaged tokenizer.json: KeyError, TypeError, bare Exception, ...
        raise cannot_load(path, error, flag=flag) from error
    # Without the files transformers 5 makes an empty tokenizer, to which every word is unknown.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) - {WORD_BOUNDARY}:
        raise InputError(
            f"{flag} {path}: its tokenizer has special tokens and no words; the tokenizer's files "
            "(tokenizer.json or vocab.txt, ...) are missing or empty. Put them into the folder: "
            "tokenizer.save_pretrained writes them."
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(
                f"{flag} {path}: its tokenizer has neither a padding nor an end-of-text token. "
                "Choose a model whose tokenizer can pad."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def longest_input(wanted: int, tokenizer: Any, config: Any) -> int:
    """Return the tokens to cut texts at: `wanted`, or fewer where tokenizer or model take fewer.

    Args:
        wanted: Tokens asked for.
        tokenizer: Its `model_max_length` may be missing, which reads as 1e30.
        config: The model's; families without a table of positions set no bound.
    """
    bounds = [wanted, int(tokenizer.model_max_length)]
    positions = getattr(config, "max_position_embeddings", None)
    # XLNet says -1; DeBERTa has relative positions, and with them no table, where this is false.
    if positions and positions > 0 and getattr(config, "position_biased_input", True):
        if config.model_type in OFFSET_POSITIONS:
            positions -= (1 if config.pad_token_id is None else config.pad_token_id) + 1
        bounds.append(positions)
    return min(bounds)
