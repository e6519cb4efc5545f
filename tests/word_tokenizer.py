"""A tokenizer for the words of the tiny files."""

from __future__ import annotations

from pathlib import Path

from running import FILLERS, WORDS


def save_tokenizer(folder: Path) -> int:
    """Save a word tokenizer with BERT's special tokens; return the size of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    words = [*special, *FILLERS, *(word for group in WORDS.values() for word in group)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=32,
    ).save_pretrained(folder)  # fmt: skip
    return len(words)


def tiny_config(vocabulary: int, **more: object):
    """Return the configuration of a BERT with two layers and no dropout."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, pad_token_id=0,
        initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **more,
    )  # fmt: skip
