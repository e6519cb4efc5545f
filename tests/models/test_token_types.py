"""Token types that a model lacks are left out, also for plain clients of what is saved."""

import datasets
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from ampft.data.dataset import ClassificationData
from ampft.kinds.input_settings import InputSettings
from ampft.kinds.text import prepare_inputs
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
    note = set_padding_side(tokenizer, config)
    said = "token types are left out: the tokenizer gives 2, and the model has 1, "
    assert (note is not None and note.startswith(said)) is left_out
    tokenizer.save_pretrained(tmp_path)
    inputs = AutoTokenizer.from_pretrained(tmp_path)(*PAIR, return_tensors="pt")
    assert ("token_type_ids" not in inputs) is left_out
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()


@pytest.mark.parametrize(("pairs", "types"), [(True, 1), (True, 2), (False, 1)])
def test_a_run_on_pairs_says_that_types_are_left_out(tiny_bert, tmp_path, pairs, types):
    config = BertConfig.from_pretrained(tiny_bert, type_vocab_size=types)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    rows = {"text": ["w1", "w2 w3", "w4", "w5"], "other": ["w6", "w7", "w8", "w9"]}
    inputs = ("text", "other") if pairs else ("text",)
    part = datasets.Dataset.from_dict(rows | {"label": [0, 1, 0, 1]})
    splits = datasets.DatasetDict(train=part, validation=part)
    data = ClassificationData(splits, inputs, "text", "tiny", {}, ())
    settings = InputSettings(model_name_or_path=str(tmp_path))
    said = [note for note in prepare_inputs(data, settings).notes if "token types" in note]
    assert bool(said) == (pairs and types == 1)
