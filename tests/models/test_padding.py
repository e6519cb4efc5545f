"""Families whose results depend on padding, and families whose results do not."""

import pytest
import torch
from tiny_encoders import SHAPE, right_padded, tiny
from tiny_text import tiny_task
from transformers import (
    DebertaConfig,
    DebertaForSequenceClassification,
    FNetConfig,
    FNetForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    NystromformerConfig,
    NystromformerForSequenceClassification,
)

from ampft.errors import InputError
from ampft.models.padding import padding_difference
from ampft.tasks import text

TOLERANCE = 1e-5
LENGTHS = [4, 9, 13, 20]


def fnet():
    shape = {key: value for key, value in SHAPE.items() if key != "num_attention_heads"}
    return FNetForSequenceClassification(FNetConfig(pad_token_id=0, **shape))


def test_masked_attention_does_not_depend_on_padding():
    torch.manual_seed(0)
    for model in (
        tiny("bert"),
        tiny("roberta"),
        MPNetForSequenceClassification(MPNetConfig(**SHAPE)),
        DebertaForSequenceClassification(DebertaConfig(relative_attention=True, **SHAPE)),
    ):
        assert padding_difference(model, right_padded(model, LENGTHS)) < TOLERANCE


def test_fourier_transforms_depend_on_padding():
    torch.manual_seed(0)
    model = fnet()
    batch = right_padded(model, LENGTHS)
    del batch["attention_mask"]  # FNet takes none, and its tokenizer makes none
    assert padding_difference(model, batch) > 100 * TOLERANCE


def test_a_model_that_needs_certain_lengths_is_refused():
    torch.manual_seed(0)
    config = NystromformerConfig(num_landmarks=8, segment_means_seq_len=16, **SHAPE)
    model = NystromformerForSequenceClassification(config)
    with pytest.raises(InputError, match="cannot process texts of these lengths"):
        padding_difference(model, right_padded(model, [9, 13]))


@pytest.mark.parametrize(("difference", "notes"), [(0.28, 1), (1e-6, 0)])
def test_the_user_is_told(tiny_bert, monkeypatch, difference, notes):
    monkeypatch.setattr(text, "padding_difference", lambda model, batch: difference)
    loaded = tiny_task(tiny_bert, train=12, remove_padding=False).load_model()
    told = [note for note in loaded.notes if "depend on padding" in note]
    assert len(told) == notes
    assert notes == 0 or "28.0%" in told[0]
