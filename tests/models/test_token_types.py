"""Token types that a model lacks are left out, also for plain clients of what is saved."""

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from ampft.models.tokenizer import set_padding_side

PAIR = ("w1 w2", "w3")


@pytest.mark.parametrize(("types", "left_out"), [(1, True), (2, False)])
def test_a_plain_client_of_the_saved_tokenizer_reads_pairs(tiny_bert, tmp_path, types, left_out):
    config = BertConfig.from_pretrained(tiny_bert, type_vocab_size=types)
    model = BertForSequenceClassification(config).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    if left_out:  # the negative control
        with pytest.raises(IndexError), torch.no_grad():
            model(**tokenizer(*PAIR, return_tensors="pt"))
    set_padding_side(tokenizer, config)
    tokenizer.save_pretrained(tmp_path)
    inputs = AutoTokenizer.from_pretrained(tmp_path)(*PAIR, return_tensors="pt")
    assert ("token_type_ids" not in inputs) is left_out
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()
