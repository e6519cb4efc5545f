"""Special tokens that stand literally in texts: the same answers as row by row in transformers."""

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from ampft.fast.packing.choice import remove_padding
from ampft.kinds.logits import forward_logits
from ampft.kinds.text import TextReader
from ampft.models.by_length import guard_against_text_padding, largest_part, parts_together
from ampft.models.tokenizer import set_padding_side, tokenization_of

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
SIDES = ("layers", "attention_heads", "ffn_dim")
BART = {"d_model": 32, "max_position_embeddings": 64, "pad_token_id": 0}
for _side in ("encoder", "decoder"):
    BART |= dict(zip((f"{_side}_{name}" for name in SIDES), (2, 2, 64), strict=True))
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}
# The name of a configuration, its values, and whether the end token also pads.
MODELS = {
    "bert": ("BertConfig", SHAPE, False),
    "roberta": ("RobertaConfig", SHAPE | {"pad_token_id": 0, "type_vocab_size": 2}, False),
    "bart": ("BartConfig", BART, False),
    "bart, the end token pads": ("BartConfig", BART, True),
    "t5": ("T5Config", T5, False),
    "gpt2": ("GPT2Config", {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}, True),
    "llama": ("LlamaConfig", SHAPE | {"num_key_value_heads": 2}, True),
}
TEXTS = [
    "apple pear the old",
    "iron and [SEP] tin with a new zinc",
    "[MASK] [CLS] nile",
    "plum [PAD] plum is the rhine",
    "[SEP]",
    "the end [SEP] [SEP]",
    "loire [PAD]",
]


def model_and_reader(name, folder):
    """Return a classifier with random weights, and what reads its texts."""
    kind, values, pads_with_end = MODELS[name]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = "[SEP]"
    if pads_with_end:
        tokenizer.pad_token = "[SEP]"
    end = tokenizer.eos_token_id
    given = {**values, "eos_token_id": end, "bos_token_id": end, "decoder_start_token_id": end}
    if pads_with_end:
        given["pad_token_id"] = end
    config = getattr(transformers, kind)(vocab_size=len(tokenizer), num_labels=3, **given)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    if "token_type_ids" in tokenizer.model_input_names and kind != "BertConfig":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    set_padding_side(tokenizer, config)
    read = tokenization_of(tokenizer, 64)
    return model, TextReader(DataCollatorWithPadding(tokenizer), read), tokenizer


class Examples:
    """What `remove_padding` needs of training examples."""

    def __init__(self, inputs):
        self.inputs = inputs
        self.lengths = inputs["attention_mask"].sum(dim=1).numpy()

    def collate(self, ids):
        chosen = torch.as_tensor(np.asarray(ids))
        return {name: value[chosen] for name, value in self.inputs.items()}


@torch.no_grad()
def row_by_row(model, tokenizer):
    return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS])


@pytest.mark.slow
@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_answered_as_row_by_row(name, padding, tiny_bert):
    model, reader, tokenizer = model_and_reader(name, tiny_bert)
    alone = row_by_row(model, tokenizer)
    inputs = reader.collate([TEXTS])
    if padding or not remove_padding(model, Examples(inputs), token_buckets=None)[0]:
        guard_against_text_padding(model, inputs)
    with torch.no_grad():
        torch.testing.assert_close(forward_logits(model, inputs), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "t5"])
def test_the_gradient_is_the_sum_over_rows(name, tiny_bert):
    model, reader, tokenizer = model_and_reader(name, tiny_bert)
    forward_logits(model, reader.collate([TEXTS])).square().sum().backward()
    whole = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for text in TEXTS:
        model(**tokenizer(text, return_tensors="pt")).logits.square().sum().backward()
    for each, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(whole[each], parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_batch_without_literal_tokens_is_not_divided(tiny_bert):
    model, reader, _ = model_and_reader("bart", tiny_bert)
    inputs = reader.collate([["apple pear", "iron", "the old nile"]])
    assert parts_together(model, inputs) == []
    assert parts_together(model, reader.collate([TEXTS])) != []
    with pytest.raises(ValueError, match="same number of <eos> tokens"):  # the negative control
        model(**reader.collate([TEXTS]))
    assert len(largest_part(model, reader.collate([TEXTS]))["input_ids"]) == 4
