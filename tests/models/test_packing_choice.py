"""The text task packs a model only if its packed logits agree with its padded ones."""

from tiny_text import tiny_task

from ampft.tasks import text


def test_a_supported_model_is_verified_and_packed(tiny_bert):
    loaded = tiny_task(tiny_bert, train=12).load_model()
    assert loaded.padding_free
    assert "logits equal within" in loaded.notes[-1]


def test_padding_is_kept_if_logits_differ(tiny_bert, monkeypatch):
    monkeypatch.setattr(text, "verify_packing", lambda model, batch: 0.1)
    loaded = tiny_task(tiny_bert, train=12).load_model()
    assert not loaded.padding_free
    assert loaded.notes[-1] == "padded path: logits without padding differ by 1.0e-01"
    assert loaded.model.config._attn_implementation == "sdpa"


def test_padding_is_kept_if_packing_did_not_run(tiny_bert, monkeypatch):
    monkeypatch.setattr(text, "verify_packing", lambda model, batch: float("inf"))
    assert not tiny_task(tiny_bert, train=12).load_model().padding_free


def test_padding_on_request(tiny_bert):
    loaded = tiny_task(tiny_bert, train=12, remove_padding=False).load_model()
    assert not loaded.padding_free
    assert "requested by --padding" in loaded.notes[-1]
