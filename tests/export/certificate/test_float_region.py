"""Planted fragile modules: the search finds exactly these, and the mixed artifact passes."""

from __future__ import annotations

import shutil

import pytest
import torch
from certified_texts import write_rows
from tiny_text import save_tiny_bert
from transformers import AutoModelForSequenceClassification

from ampft.cli import main
from ampft.export import ExportRequest, open_artifact
from ampft.export.artifact import CERTIFICATE_NAME
from ampft.export.certificate.certificate_page import read_certificate
from ampft.export.certificate.float_region import smallest_region
from ampft.export.certificate.verified_rows import VerifyRequest, check_verification
from ampft.runs.predict import load_run_classifier

pytestmark = pytest.mark.slow


@torch.no_grad()
def outlier(model) -> None:
    """One activation of 3,000 before a product: with one scale for a row, the others are zero."""
    layer = model.bert.encoder.layer[1]
    layer.intermediate.dense.bias[0] = 3000.0
    layer.output.dense.weight[:, 0] = 0.0


@torch.no_grad()
def large_sum(model) -> None:
    """4,096 is added before a norm, which subtracts it: bfloat16 has lost the rest by then."""
    model.bert.encoder.layer[0].output.dense.bias.fill_(4096.0)


# Plant, format, precision, and the modules that must stay in float32.
PLANTED = {
    "int8 in blocks": (outlier, "onnx", "int8", None, ("bert.encoder.layer.1.output.dense",)),
    "int8 of PyTorch": (outlier, "torch", "int8", None, ("bert.encoder.layer.1.output.dense",)),
    "bf16, nothing infinite": (large_sum, "torch", "bf16", None, ("bert.encoder.layer.0.output",)),
}
TESTS = 40  # artifacts that a search over 20 modules may compare


def fragile_run(folder, plant):
    model = AutoModelForSequenceClassification.from_pretrained(save_tiny_bert(folder / "plain"))
    scale = 2 if plant is large_sum else 4  # every layer matters, and rounding stays in tolerance
    with torch.no_grad():
        for weight in model.bert.encoder.parameters():
            weight.mul_(scale if weight.dim() > 1 else 1)
    plant(model)
    model.save_pretrained(folder / "bert")
    for path in (folder / "plain").glob("token*"):
        path.rename(folder / "bert" / path.name)
    words = ["--model_name_or_path", folder / "bert", "--freeze", "encoder"]
    for seed, (name, n) in enumerate({"train": 320, "validation": 300, "test": 400}.items()):
        words += [f"--{name}_file", write_rows(folder / f"{name}.jsonl", n, seed)]
    words += ["--output_dir", folder / "run", "--use_cpu", "--cpu_threads", 1]
    words += ["--num_train_epochs", 24, "--learning_rate", 1e-2, "--max_seq_length", 40]
    assert main(["train", *map(str, words)]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        plant: fragile_run(tmp_path_factory.mktemp(plant.__name__), plant)
        for plant in (outlier, large_sum)
    }


@pytest.mark.full
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_modules_are_found_exactly(name, runs, tmp_path):
    plant, form, precision, int8, expected = PLANTED[name]
    request = ExportRequest(
        run=runs[plant], format=form, precision=precision, int8=int8, output_dir=tmp_path / "new"
    )
    verification = VerifyRequest(measure=False)
    rows = check_verification(load_run_classifier(request.run), verification)
    found = smallest_region(request, verification, rows)
    assert found.modules == expected
    assert (found.rows, found.split) == (300, "validation")
    assert 3 < found.tests < TESTS


@pytest.mark.full
def test_the_command_repairs_an_artifact(runs, tmp_path, capsys):
    folder = tmp_path / "artifact"
    words = ["export", str(runs[large_sum]), "--format", "torch", "--precision", "bf16"]
    words += ["--output_dir", str(folder), "--no_measure", "--margin", "3"]
    with pytest.raises(SystemExit, match="4"):
        main([*words, "--keep_float", "classifier"])
    assert "failed: torch bf16" in capsys.readouterr().out
    shutil.rmtree(folder)
    assert main([*words, "--keep_float", "auto"]) == 0
    printed = capsys.readouterr().out
    assert "failed: torch bf16" in printed
    assert "1 module must stay in float32" in printed
    assert "--keep_float 'layer.0.output'" in printed
    assert printed.index("passed: torch bf16") > printed.index("failed: torch bf16")
    made = read_certificate(folder / CERTIFICATE_NAME)
    assert made.verdict == "passed"
    assert {"kept"} <= {note.kind for note in made.notes}
    assert open_artifact(folder).manifest.keep_float == ("bert.encoder.layer.0.output",)
