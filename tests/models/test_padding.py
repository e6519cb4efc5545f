"""Families whose results depend on padding, and families whose results do not."""

import pytest
import torch
from tiny_encoders import SHAPE, right_padded, tiny
from tiny_text import tiny_task
from transformers import (
    ConvBertConfig,
    ConvBertForSequenceClassification,
    ConvBertForTokenClassification,
    DebertaConfig,
    DebertaForSequenceClassification,
    FNetConfig,
    FNetForSequenceClassification,
    MobileBertConfig,
    MobileBertForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    NystromformerConfig,
    NystromformerForSequenceClassification,
)

from ampft.errors import InputError
from ampft.kinds.logits import forward_logits
from ampft.models import by_length
from ampft.models.by_length import guard_against_text_padding, padding_difference, parts_together

TOLERANCE = 1e-5
LENGTHS = [4, 9, 13, 20]


def fnet():
    shape = {key: value for key, value in SHAPE.items() if key != "num_attention_heads"}
    return FNetForSequenceClassification(FNetConfig(pad_token_id=0, **shape))


def mobilebert():
    config = MobileBertConfig(embedding_size=32, intra_bottleneck_size=32, **SHAPE)
    model = MobileBertForSequenceClassification(config)
    with torch.no_grad():  # it joins the embeddings of neighbours; that of padding was trained
        model.mobilebert.embeddings.word_embeddings.weight[0].normal_()
    return model


def difference(model, batch):
    return padding_difference(model, batch, batch)


def without_mask(model):
    batch = right_padded(model, LENGTHS)
    del batch["attention_mask"]  # FNet takes none, and its tokenizer makes none
    return batch


def test_masked_attention_does_not_depend_on_padding():
    torch.manual_seed(0)
    for model in (
        tiny("bert"),
        tiny("roberta"),
        MPNetForSequenceClassification(MPNetConfig(**SHAPE)),
        DebertaForSequenceClassification(DebertaConfig(relative_attention=True, **SHAPE)),
    ):
        batch = right_padded(model, LENGTHS)
        assert difference(model, batch) < TOLERANCE
        assert guard_against_text_padding(model, batch) == ()
        assert parts_together(model, batch) == []


def test_fourier_transforms_depend_on_padding():
    torch.manual_seed(0)
    model = fnet()
    assert difference(model, without_mask(model)) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "make",
    [
        fnet,
        lambda: ConvBertForSequenceClassification(ConvBertConfig(embedding_size=32, **SHAPE)),
        lambda: ConvBertForTokenClassification(ConvBertConfig(embedding_size=32, **SHAPE)),
        mobilebert,
    ],
    ids=["FNet", "ConvBERT", "ConvBERT, tokens", "MobileBERT"],
)
def test_texts_of_the_same_length_run_together(make):
    torch.manual_seed(0)
    model = make().eval()
    batch = right_padded(model, [9, 4, 13, 9])
    if isinstance(model, FNetForSequenceClassification):
        del batch["attention_mask"]
    with torch.no_grad():
        padded = forward_logits(model, batch)
        (note,) = guard_against_text_padding(model, batch)
        assert "so texts of the same length run together" in note
        together = forward_logits(model, batch)
        for row, length in enumerate([9, 4, 13, 9]):
            inputs = {name: value[row : row + 1, :length] for name, value in batch.items()}
            alone = model(**inputs).logits[0]
            mine = together[row] if alone.dim() == 1 else together[row, :length]
            torch.testing.assert_close(mine, alone, rtol=0, atol=1e-6)
    # Negative control: what a padded batch gives.
    assert (padded - together).abs().max() > 1e-4 * padded.abs().max()


def test_the_gradient_by_length_is_that_of_single_texts():
    torch.manual_seed(0)
    model = fnet().eval()
    batch = without_mask(model)
    guard_against_text_padding(model, batch)

    def gradient(logits):
        return torch.autograd.grad(logits.logsumexp(1).sum(), model.classifier.weight)[0]

    alone = [
        model(**{name: value[row : row + 1, :length] for name, value in batch.items()}).logits
        for row, length in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(
        gradient(forward_logits(model, batch)), gradient(torch.cat(alone)), rtol=1e-6, atol=1e-7
    )


def test_a_saved_model_runs_by_length(tmp_path):
    torch.manual_seed(0)
    model = fnet()
    guard_against_text_padding(model, without_mask(model))
    model.save_pretrained(tmp_path)
    loaded = FNetForSequenceClassification.from_pretrained(tmp_path)
    assert len(parts_together(loaded, without_mask(loaded))) == len(LENGTHS)


def test_several_processes_do_not_run_buffers_by_length(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = fnet()
    (note,) = guard_against_text_padding(model, without_mask(model))
    assert "depend on how texts are batched; with several processes" in note
    assert parts_together(model, without_mask(model)) == []


def test_a_saved_model_runs_padded_where_it_cannot_run_by_length(monkeypatch):
    torch.manual_seed(0)
    model = fnet()
    batch = without_mask(model)
    guard_against_text_padding(model, batch)
    assert parts_together(model, batch)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    (note,) = guard_against_text_padding(model, batch)
    assert "FSDP2 allows no batches of one length" in note
    assert parts_together(model, batch) == []


def test_a_model_that_needs_certain_lengths_is_refused():
    torch.manual_seed(0)
    config = NystromformerConfig(num_landmarks=8, segment_means_seq_len=16, **SHAPE)
    model = NystromformerForSequenceClassification(config)
    with pytest.raises(InputError, match=r"fails on a batch of 2 training texts in float32: "):
        guard_against_text_padding(model, right_padded(model, [9, 13]))


def test_the_user_is_told(tiny_bert, monkeypatch):
    monkeypatch.setattr(by_length, "padding_difference", lambda model, inputs, padded: 0.28)
    loaded = tiny_task(tiny_bert, train=12, remove_padding=False).load_model()
    (told,) = [note for note in loaded.notes if "depend on padding" in note]
    assert "28.0%" in told
