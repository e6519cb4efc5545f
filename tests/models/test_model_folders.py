"""Model folders that are damaged, incomplete, or trained for another task."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_text import LABELS, tiny_task
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSemanticSegmentation,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
    ResNetConfig,
    pipeline,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from ampft.errors import InputError
from ampft.machine import resident_peak
from ampft.media.media_inputs import load_or_create
from ampft.models.pretrained import (
    WeightsSource,
    check_weights_finite,
    check_weights_fit_memory,
    load_config,
    load_pretrained,
    load_saved,
    loading_error,
)
from ampft.models.tokenizer import OFFSET_POSITIONS, load_tokenizer, max_input_length
from ampft.tasks.outcome import label_config_arguments
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
        auto_class, str(path), label_config_arguments(SingleLabel(LABELS)), trust_remote_code=False
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


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": 3}', '{"hidden_size": "x"}'])
def test_a_damaged_configuration(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"--model_name_or_path .*: cannot be loaded"):
        load(folder)


def change_config(folder: Path, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("num_attention_heads", -2, "at least 1"),
        ("num_hidden_layers", 0, "from 1 to 2000"),
        ("num_hidden_layers", 10**7, "from 1 to 2000"),
        ("hidden_size", -32, "at least 1"),
        ("text_config", {"n_layers": 10**7}, "from 1 to 2000"),
    ],
)
def test_a_size_out_of_range_is_named_before_anything_is_built(folder, name, value, allowed):
    change_config(folder, **{name: value})
    named = "n_layers" if name == "text_config" else name
    reason = rf".*states {named} -?\d+, which must be {allowed}\. Pass"
    with pytest.raises(InputError, match=f"--model_name_or_path {reason}"):
        load(folder)
    with pytest.raises(InputError, match=f"--model_name_or_path {reason}"):
        tiny_task(folder, train=4)
    with pytest.raises(InputError, match=f"--model {reason}"):
        load_saved(AutoModelForSequenceClassification, str(folder))


@pytest.mark.parametrize(
    "values",
    [
        {"vocab_size": 10**12},
        {"max_position_embeddings": 10**12},
        {"intermediate_size": 10**13},
        {"hidden_size": 2 * 10**6, "num_attention_heads": 1, "num_hidden_layers": 100},
    ],
)
def test_a_model_larger_than_memory_is_refused_before_it_is_built(folder, values):
    change_config(folder, **values)
    before = resident_peak()
    for loading, flag in (
        (load, "--model_name_or_path"),
        (lambda path: load_saved(AutoModelForSequenceClassification, str(path)), "--model"),
    ):
        with pytest.raises(InputError, match=rf"{flag} .* weights, which take [\d.]+ GiB in float"):
            loading(folder)
    assert resident_peak() - before < 2**27


def test_checking_the_memory_draws_no_random_numbers(folder):
    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_weights_fit_memory(AutoModelForSequenceClassification, config, str(folder))
    assert torch.equal(torch.get_rng_state(), before)


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


ENCODER = "bert.encoder.layer.1.output.dense.weight"


def change_weights(folder: Path, change) -> None:
    """Apply `change` to the tensors in the folder's file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def rename(tensors: dict) -> None:
    tensors["renamed\x1b[2J"] = tensors.pop(ENCODER)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (rename, "missing"),
        (lambda tensors: tensors.pop(ENCODER), "missing"),
        (lambda tensors: tensors.update({ENCODER: torch.zeros(3, 2)}), r"shape \[3, 2\] instead"),
    ],
)
def test_weights_of_the_encoder_that_do_not_match(folder, change, problem):
    change_weights(folder, change)
    with pytest.raises(InputError, match=rf"--model_name_or_path .*{ENCODER}: {problem}"):
        load(folder)
    with pytest.raises(InputError, match=rf"--model .*{ENCODER}: {problem}"):
        load_saved(AutoModelForSequenceClassification, str(folder))


def test_a_saved_model_has_no_weight_too_many_and_no_new_head(folder):
    load_saved(AutoModelForSequenceClassification, str(folder))
    change_weights(folder, lambda tensors: tensors.pop("classifier.bias"))
    with pytest.raises(InputError, match=r"--model .*\(classifier\.bias: missing\)"):
        load_saved(AutoModelForSequenceClassification, str(folder))
    added = {"classifier.bias": torch.zeros(3), "more\x1b[2J": torch.zeros(2)}
    change_weights(folder, lambda tensors: tensors.update(added))
    with pytest.raises(InputError, match=r"\(more\\x1b\[2J: unexpected\)"):
        load_saved(AutoModelForSequenceClassification, str(folder))


def test_a_new_head_is_named_in_one_line(folder):
    assert load(folder)[1] == ()
    BertForSequenceClassification.from_pretrained(folder).bert.save_pretrained(folder)
    assert load(folder)[1] == (
        "new head, which the file does not have: classifier.bias, classifier.weight",
    )


def test_a_model_trained_for_something_else_has_a_new_head_and_pooler(folder):
    config = AutoConfig.from_pretrained(folder)
    BertForMaskedLM(config).save_pretrained(folder)
    new, pooler, unused = load(folder)[1]
    assert new == "new head, which the file does not have: classifier.bias, classifier.weight"
    assert pooler == (
        "new pooler, which the file does not have: bert.pooler.dense.bias, bert.pooler.dense.weight"
    )
    assert unused.startswith("not used, though in the file: cls.predictions.bias, ")
    assert unused.endswith(" and 1 more")


def test_a_missing_pooler_is_named_beside_a_head_for_other_labels(folder):
    change_weights(folder, lambda tensors: tensors.pop("bert.pooler.dense.bias"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}}
    (folder / "config.json").write_text(json.dumps(config))
    head, pooler = load(folder)[1]
    assert head == "new head: the old one was trained for x, y"
    assert pooler.endswith("which the file does not have: bert.pooler.dense.bias")
    change_weights(
        folder, lambda tensors: tensors.update({"bert.pooler.dense.bias": torch.ones(7)})
    )
    with pytest.raises(InputError, match=r"pooler\.dense\.bias: shape \[7\] instead of \[32\]"):
        load(folder)


@pytest.mark.slow
def test_every_missing_or_misshapen_weight_of_the_encoder_is_refused_by_name(folder):
    intact = load_file(folder / "model.safetensors")
    encoder = [name for name in intact if name.startswith("bert.") and "pooler" not in name]
    assert len(encoder) > 30
    for name in encoder:
        rest = {key: tensor for key, tensor in intact.items() if key != name}
        for tensors in (rest, {**rest, name: torch.zeros(7)}):
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            with pytest.raises(InputError, match=re.escape(name)):
                load(folder)


def test_a_missing_weight_of_a_backbone_is_refused(tmp_path):
    """Of a model without one encoder."""
    backbone = {
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "embedding_size": 8,
        "model_type": "resnet",
    }
    config = AutoConfig.for_model(
        "upernet", backbone_config={**backbone, "out_features": ["stage1", "stage2"]},
        hidden_size=8, pool_scales=[1], use_auxiliary_head=False, num_labels=3,
    )  # fmt: skip
    AutoModelForSemanticSegmentation.from_config(config).save_pretrained(tmp_path)
    load(tmp_path, AutoModelForSemanticSegmentation)
    names = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in names if name.startswith("backbone.") and name.endswith("weight"))
    change_weights(tmp_path, lambda tensors: tensors.pop(lost))
    with pytest.raises(InputError, match=re.escape(lost)):
        load(tmp_path, AutoModelForSemanticSegmentation)


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
     torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float64],
)  # fmt: skip
@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.weight", "classifier.bias"])
def test_quantized_weights_are_refused(folder, dtype, name):
    change_weights(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    if dtype.is_floating_point and dtype.itemsize > 1:  # the negative control
        assert load(folder)[1] == ()
        return
    for function in (load, lambda path: load_saved(AutoModelForSequenceClassification, str(path))):
        with pytest.raises(InputError, match=rf"its weight {re.escape(name)} has the dtype "):
            function(folder)


def test_integer_buffers_are_loaded(folder):
    positions = {"bert.embeddings.position_ids": torch.arange(64)[None]}
    change_weights(folder, lambda tensors: tensors.update(positions))
    assert load(folder)[1] == ()


@pytest.mark.parametrize("elsewhere", ["../other/model.safetensors", "{absolute}"])
def test_an_index_cannot_name_weights_outside_the_folder(folder, tiny_bert, elsewhere):
    shutil.copytree(tiny_bert, folder.parent / "other")
    (folder / "model.safetensors").unlink()
    shard = elsewhere.format(absolute=tiny_bert / "model.safetensors")
    names = load_file(tiny_bert / "model.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"index\.json lists .*not a file in this folder"):
        load(folder)
    with pytest.raises(InputError, match=r"index\.json lists .*not a file in this folder"):
        load_saved(AutoModelForSequenceClassification, str(folder))


@pytest.mark.parametrize("shard", ["../../../elsewhere.safetensors", "{absolute}"])
def test_an_index_in_the_cache_of_the_hub_cannot_name_weights_elsewhere(
    tiny_bert, tmp_path, monkeypatch, shard
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--someone--tiny", "0" * 40
    snapshot = shutil.copytree(tiny_bert, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    load("someone/tiny")
    (snapshot / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    names = load_file(tiny_bert / "model.safetensors")
    shard = shard.format(absolute=tmp_path / "elsewhere.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"someone/tiny: model\.safetensors\.index\.json lists "):
        load("someone/tiny")


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_damaged_index(folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match=r"index\.json: cannot be loaded"):
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


def test_a_model_without_gradient_checkpointing_is_refused():
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1])
    with pytest.raises(InputError, match="ResNetForImageClassification does not support it"):
        load_or_create(
            "AutoModelForImageClassification", None, {}, lambda: (config, "ResNet"),
            trust_remote_code=False, gradient_checkpointing=True,
        )  # fmt: skip


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_weight_that_is_not_finite_is_found(value):
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.bias[1] = value
    with pytest.raises(InputError, match="parameter bias contains NaN or infinite values"):
        check_weights_finite(model, WeightsSource("folder"))


@pytest.mark.parametrize("opposite", [1.0, -1.0])
def test_weights_whose_sum_overflows_are_finite(opposite):
    model = torch.nn.Linear(4, 4)
    largest = torch.finfo(torch.float32).max
    with torch.no_grad():
        model.weight.fill_(largest)
        model.weight[2:] = opposite * largest
    check_weights_finite(model, WeightsSource("folder"))
    with torch.no_grad():
        model.weight[0, 0], model.weight[3, 3] = float("inf"), -float("inf")
    with pytest.raises(InputError, match="parameter weight contains NaN"):
        check_weights_finite(model, WeightsSource("folder"))
