"""Runs that train adapters or a part of the model: files, predictions, resume and audit."""

from __future__ import annotations

import csv
import io
import json
import re

import pyarrow.parquet as pq
import pytest
import torch
from running import BIN, CLASSIFY, Finished, call_here, printed, succeeded, text_settings, write_csv
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

LORA = ("--lora_r", 4, "--lora_target_modules", "all-linear", "--mixed_precision", "bf16")


def run(files, model, folder, *flags) -> Finished:
    done = succeeded(call_here(CLASSIFY, *text_settings(files, model, folder), *flags))
    return Finished(folder, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def lora(files, tiny_model, tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "lora"
    return run(files, tiny_model, folder, *LORA, "--no-merge_lora", "--checkpointing_steps", 20)


@pytest.fixture(scope="module")
def merged(files, tiny_model, tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "merged"
    return run(files, tiny_model, folder, *LORA)


def test_it_learns_and_says_what_is_trained(lora, merged):
    for done in (lora, merged):
        assert done.report["accuracy"] > 0.5  # chance is a third
        model = printed(done.stdout, "model")
        assert re.search(r"trained: [\d,]+ of [\d,]+ weights \(\d+\.\d%\); LoRA of rank 4", model)
        assert "padding-free path" in model
        part = done.record["model"]
        assert 0 < part["trainable_parameters"] < part["parameters"]
        assert "projections bfloat16 x bfloat16" in printed(done.stdout, "ran")
        assert printed(done.stdout, "ran").endswith("weights, gradients, optimizer state float32")


def test_merging_after_the_training_does_not_change_its_operations(lora, merged):
    before, after = (done.record["timings"]["flops_per_token"] for done in (lora, merged))
    assert before == after


def test_the_adapters_are_saved_without_the_base(lora, tiny_model):
    assert not (lora.folder / "model.safetensors").exists()
    assert not (lora.folder / "config.json").exists()
    config = json.loads((lora.folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model)
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (4, 8, "SEQ_CLS")
    assert config["modules_to_save"] == ["classifier", "bert.pooler"]
    card = (lora.folder / "README.md").read_text()
    assert "PeftModel.from_pretrained" in card
    assert "library_name: peft" in card


def test_merging_saves_a_plain_model_that_a_pipeline_loads(merged):
    from transformers import pipeline

    names = load_file(merged.folder / "model.safetensors").keys()
    assert not any("lora" in name or "base_layer" in name for name in names)
    assert not (merged.folder / "adapter_config.json").exists()
    rows = pq.read_table(merged.folder / "predictions.parquet").to_pydict()
    classify = pipeline("text-classification", model=str(merged.folder), device="cpu")
    assert [found["label"] for found in classify(rows["text"])] == rows["prediction"]


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 6])
def test_a_run_with_adapters_is_a_model_for_plain_clients(classes, tiny_model, tmp_path):
    """Its folder for a pipeline and AutoModel, its subfolder for PEFT, with the run's names."""
    from peft import AutoPeftModelForSequenceClassification, PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    names = [f"class {number}" for number in range(classes)]
    table = [(f"apple iron {i} {i % classes}", names[i % classes]) for i in range(20 * classes)]
    train = write_csv(tmp_path / "train.csv", table, ("text", "label"))
    folder = tmp_path / "run"
    words = ("--train_file", train, "--model_name_or_path", tiny_model, "--output_dir", folder)
    lora = ("--lora_r", 4, "--learning_rate", 3e-2, "--max_train_steps", 8)
    succeeded(call_here(CLASSIFY, *words, *lora, "--use_cpu"))
    rows = pq.read_table(folder / "predictions.parquet").to_pydict()
    expected = torch.tensor(rows["probabilities"])
    texts, tokenizer = rows["text"], AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    labels = dict(enumerate(names))
    base = AutoModelForSequenceClassification.from_pretrained(tiny_model, id2label=labels)
    auto_peft = AutoPeftModelForSequenceClassification
    models = {
        "folder": AutoModelForSequenceClassification.from_pretrained(folder),
        "card": PeftModel.from_pretrained(base, str(folder / "adapter")),
        "auto": auto_peft.from_pretrained(str(folder / "adapter"), id2label=labels),
    }
    for name, model in models.items():
        with torch.no_grad():
            found = model.eval()(**inputs).logits.softmax(dim=-1)
        assert model.config.id2label == labels, name
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    assert [found["label"] for found in classify(texts, truncation=True)] == rows["prediction"]
    card = (folder / "README.md").read_text()
    assert 'PeftModel.from_pretrained(base, "path/to/this/folder/adapter")' in card


@pytest.mark.parametrize("kind", ["lora", "merged"])
def test_predict_gives_the_predictions_of_the_report(kind, request, tmp_path):
    done = request.getfixturevalue(kind)
    rows = pq.read_table(done.folder / "predictions.parquet").to_pydict()
    texts = write_csv(tmp_path / "new.csv", [(text,) for text in rows["text"]], ["text"])
    found = succeeded(
        call_here(BIN / "ampft", "predict", "--model", done.folder, texts,
                  "--mixed_precision", "bf16")
    )  # fmt: skip
    table = list(csv.DictReader(io.StringIO(found.stdout)))
    assert [row["prediction"] for row in table] == rows["prediction"]
    assert [float(row["confidence"]) for row in table] == pytest.approx(
        rows["confidence"], abs=0.02
    )


@pytest.mark.parametrize("kind", ["lora", "merged"])
def test_an_audit_confirms_the_run(kind, request):
    done = request.getfixturevalue(kind)
    audit = succeeded(call_here(BIN / "ampft", "audit", done.folder, "--use_cpu", "--steps", "all"))
    assert printed(audit.stdout, "model") == (
        "the repeated training ends in the saved weights, bit for bit"
    )
    assert "bit for bit" in printed(audit.stdout, "predicted")


def test_a_resumed_run_ends_with_the_same_adapters(lora, files, tiny_model, tmp_path):
    checkpoint = lora.folder / "checkpoints" / "step-20"
    resumed = run(
        files,
        tiny_model,
        tmp_path / "resumed",
        *LORA,
        "--no-merge_lora",
        "--resume_from_checkpoint",
        checkpoint,
    )
    ours, theirs = (
        load_file(f / "adapter_model.safetensors") for f in (resumed.folder, lora.folder)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    state = load_file(checkpoint / "optimizer.safetensors")
    assert not any("base_layer" in name or "embeddings" in name for name in state)


def test_linear_probing_leaves_the_encoder_as_it_was(files, tiny_model, tmp_path):
    done = run(files, tiny_model, tmp_path / "probe", "--train_layers", 0, "--num_train_epochs", 1)
    before, after = (load_file(f / "model.safetensors") for f in (tiny_model, done.folder))
    kept = [n for n in after if n.startswith("bert.") and ".pooler." not in n]
    assert kept
    assert all(torch.equal(after[name], before[name.removeprefix("bert.")]) for name in kept)
    assert "the rest is frozen" in printed(done.stdout, "model")
