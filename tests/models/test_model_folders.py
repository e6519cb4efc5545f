"""Model folders that are damaged, incomplete, or trained for another task."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from tiny_text import LABELS, tiny_task
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    pipeline,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from ampft.errors import InputError
from ampft.models.pretrained import load_config, load_pretrained, loading_error
from ampft.models.tokenizer import OFFSET_POSITIONS, load_tokenizer, max_input_length
from ampft.tasks.single_label import SingleLabel

SMALL = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 20,
}  # fmt: skip


@pytest.fixture
def folder(tiny_bert, tmp_path) -> Path:
    """A copy of the tiny BERT, to be damaged."""
    return shutil.copytree(tiny_bert, tmp_path / "model")


def load(path: Path, auto_class=AutoModelForSequenceClassification):
    return load_pretrained(
        auto_class, str(path), SingleLabel(LABELS).model_arguments(), trust_remote_code=False
    )


# Tokenizers


def test_a_folder_without_tokenizer_files(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"--model_name_or_path .*only special tokens"):
        tiny_task(folder, train=4)


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {}}', "[]"])
def test_a_damaged_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"--model_name_or_path .*: (cannot be loaded|its token)"):
        tiny_task(folder, train=4)


def test_texts_are_truncated_at_the_positions_of_the_model(folder):
    config = AutoConfig.from_pretrained(folder, max_position_embeddings=16)
    BertForSequenceClassification(config).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    task = tiny_task(folder, train=20)
    assert task.inputs.tokenizer.model_max_length > 1e20
    assert task.examples("train").lengths.max() == 16
    task.load_model()


class UnlimitedTokenizer:
    model_max_length = int(1e30)


def small_model(family: str):
    """A tiny model of a family, with a table of 20 positions."""
    config = AutoConfig.for_model(family, **SMALL)
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert", "mpnet", "bert"])
def test_the_longest_input_fits_and_one_more_does_not(family):
    model = small_model(family)
    longest = max_input_length(1000, UnlimitedTokenizer(), model.config)
    assert longest == (18 if family in OFFSET_POSITIONS else 20)
    ids = torch.full((1, longest + 1), 7)
    model(input_ids=ids[:, 1:])
    with pytest.raises((IndexError, RuntimeError), match=r"index out of range|size"):
        model(input_ids=ids)


def test_families_with_an_offset_are_families_of_transformers():
    assert OFFSET_POSITIONS
    assert set(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES) >= OFFSET_POSITIONS


@pytest.mark.parametrize("family", ["xlnet", "t5"])
def test_families_without_positions_set_no_limit(family):
    assert max_input_length(1000, UnlimitedTokenizer(), AutoConfig.for_model(family)) == 1000


# Names


@pytest.mark.parametrize("name", ["./gone", "gone/a/b", "/gone/model", "~/gone"])
def test_a_folder_that_does_not_exist(name):
    message = f"--model_name_or_path {name}: no such folder, and not the id of a model on the hub"
    with pytest.raises(InputError, match=re.escape(message)):
        load_config(name, trust_remote_code=False)
    with pytest.raises(InputError, match=re.escape(message)):
        load_tokenizer(name)


# Weights


def test_damaged_weights_of_the_older_format(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(InputError, match=r"--model_name_or_path .*: cannot be loaded"):
        load(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": 3}', '{"hidden_size": "x"}'])
def test_a_damaged_configuration(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"--model_name_or_path .*: cannot be loaded"):
        load(folder)


def test_a_model_of_another_kind(folder):
    with pytest.raises(InputError, match=r"--model_name_or_path .*: cannot be loaded"):
        load(folder, AutoModelForImageClassification)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(), "OSError"),
        (ValueError(" \n "), "ValueError"),
        (KeyError("model"), "KeyError: 'model'"),
        (ValueError("no head.\nmore"), "no head"),
    ],
)
def test_the_reason_is_one_line_and_never_empty(error, reason):
    assert f"--model_name_or_path m: cannot be loaded ({reason}). " in str(
        loading_error("m", error)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(folder, value):
    model = BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = value
    model.save_pretrained(folder)
    named = r"bert\.encoder\.layer\.1\.output\.dense\.weight"
    with pytest.raises(InputError, match=rf"--model_name.* its parameter {named} contains"):
        load(folder)


# Labels


@pytest.mark.parametrize("old_type", ["regression", "multi_label_classification"])
def test_an_old_problem_type_is_not_kept(folder, old_type):
    model = BertForSequenceClassification.from_pretrained(folder)
    model.config.problem_type = old_type
    model.save_pretrained(folder)
    model, _ = load(folder)
    model.save_pretrained(folder)
    scores = pipeline("text-classification", model=str(folder), device="cpu")("w1 w2", top_k=None)
    assert sum(row["score"] for row in scores) == pytest.approx(1)
    model.config.problem_type = old_type
    model.save_pretrained(folder)
    scores = pipeline("text-classification", model=str(folder), device="cpu")("w1 w2", top_k=None)
    assert sum(row["score"] for row in scores) != pytest.approx(1)  # negative control
