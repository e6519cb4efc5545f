"""A head for the same labels in another order gives the same logits, in the new order."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertConfig,
    ConvNextConfig,
    DistilBertConfig,
    RobertaConfig,
    ViTConfig,
    XLNetConfig,
)

from ampft.models.pretrained import load_pretrained

OLD, NEW = ("pos", "neg", "mixed"), ("mixed", "neg", "pos")
TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY = {
    "bert": BertConfig(**TEXT, intermediate_size=32),
    "roberta": RobertaConfig(**TEXT, intermediate_size=32),
    "distilbert": DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=32),
    "xlnet": XLNetConfig(vocab_size=40, d_model=16, n_layer=1, n_head=2, d_inner=32),
    "vit": ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32,
    ),
    "convnext": ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], image_size=32),
}  # fmt: skip


def loaded(folder, kind, labels=NEW, hidden=None):
    """Return the model before and after loading for `labels`, its notes and an input."""
    config = TINY[kind]
    is_image = kind in ("vit", "convnext")
    auto = AutoModelForImageClassification if is_image else AutoModelForSequenceClassification
    torch.manual_seed(0)
    before = auto.from_config(
        type(config)(**{**config.to_dict(), "id2label": dict(enumerate(OLD))})
    )
    before.save_pretrained(folder)
    arguments = {"id2label": dict(enumerate(labels)), "num_labels": len(labels)}
    after, notes = load_pretrained(auto, str(folder), arguments, trust_remote_code=False)
    size = before.config.image_size if is_image else 0
    inputs = torch.rand(2, 3, size, size) if is_image else torch.randint(5, 40, (2, 6))
    return before.eval(), after.eval(), notes, inputs


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY)
def test_rows_follow_the_labels(tmp_path, kind):
    before, after, notes, inputs = loaded(tmp_path, kind)
    assert notes[0] == "head kept: its rows are put in the order of these labels"
    with torch.no_grad():
        old, new = before(inputs).logits, after(inputs).logits
    order = [OLD.index(name) for name in NEW]
    torch.testing.assert_close(new, old[:, order], rtol=0, atol=1e-6)
    assert not torch.allclose(new, old)
    assert tuple(after.config.id2label.values()) == NEW


@pytest.mark.slow
def test_other_labels_get_a_new_head(tmp_path):
    _, after, notes, _ = loaded(tmp_path, "bert", ("mixed", "neg", "positive"))
    assert notes[0].startswith("new head: the old one was trained for pos, neg, mixed")
    assert not after.classifier.bias.any()


@pytest.mark.slow
def test_a_layer_with_as_many_outputs_as_labels_is_no_output(tmp_path, monkeypatch):
    monkeypatch.setitem(TINY, "roberta", RobertaConfig(
        vocab_size=40, hidden_size=3, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    ))  # fmt: skip
    _, _, notes, _ = loaded(tmp_path, "roberta")
    assert notes[0].startswith("new head: the old one was trained for")
