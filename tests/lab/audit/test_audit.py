"""`ampft audit` confirms a run, and finds every forgery of its record, files and data."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from global_state import fresh_global_state
from resumed_runs import interrupted
from running import CLASSIFY, call, call_here, rows, succeeded, write_csv
from safetensors.torch import load_file, save_file
from transformers import BertModel
from word_tokenizer import save_tokenizer, tiny_config

from ampft.cli import main
from ampft.features import chosen_metrics
from ampft.features.validations import BestPart, ValidationPart
from ampft.lab.audit.audit import free_weights, own_loop_checks
from ampft.lab.audit.run_files import _best_problems, check_chosen_metrics, state_the_same
from ampft.labels.regression import Regression
from ampft.runs.manifest import RECORD_NAME, describe_files
from ampft.runs.predictions import read_predictions, write_predictions
from ampft.runs.publishing import model_card
from ampft.runs.record import read_record
from ampft.runs.run_text import read_report, report_with_heading
from ampft.tasks.single_label import Predictions
from ampft.text.json_io import json_text, json_values, values_hash

STEPS = 3  # of 8: 2 epochs of 4 steps


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with data, a model with dropout, and the runs `fp32` and `fp16`."""
    root = tmp_path_factory.mktemp("audited")
    for seed, (name, count) in enumerate({"train": 30, "validation": 9, "test": 12}.items()):
        write_csv(root / f"{name}.csv", rows(count, seed), ("text", "label"))
    torch.manual_seed(0)
    config = tiny_config(save_tokenizer(root / "model"))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    BertModel(config).save_pretrained(root / "model")
    for mode in ("fp32", "fp16"):
        succeeded(call_here(CLASSIFY, *flags(root), "--mixed_precision", mode,
                            "--output_dir", root / mode, "--evaluate_fp32"))  # fmt: skip
    return root


def flags(root: Path) -> list[object]:
    return [
        "--model_name_or_path", root / "model", "--train_file", root / "train.csv",
        "--validation_file", root / "validation.csv", "--test_file", root / "test.csv",
        "--num_train_epochs", 2, "--learning_rate", 5e-3, "--use_cpu", "--cpu_threads", 1,
    ]  # fmt: skip


@pytest.fixture
def run(made, tmp_path) -> Path:
    """A copy of the run in fp32, to be damaged."""
    return shutil.copytree(made / "fp32", tmp_path / "run")


def audit(folder: Path, *words: object) -> int:
    with fresh_global_state():
        try:
            return main(["audit", str(folder), *map(str, words)])
        except SystemExit as end:
            return int(str(end.code))


def audited(folder: Path, tmp_path: Path, *words: object) -> dict[str, Any]:
    """Return the JSON form of an audit of a few steps, with its exit code."""
    file = tmp_path / "audit.json"
    code = audit(folder, "--json", file, *(words or ("--steps", STEPS)))
    return {**json.loads(file.read_text()), "exit_code": code}


def statuses(result: dict[str, Any]) -> dict[str, str]:
    """Return the status of each check; of checks with the same name, the worst."""
    order = ("equal", "not compared", "within tolerance", "missing", "differs")
    found: dict[str, str] = {}
    for check in result["checks"]:
        found[check["name"]] = max(
            found.get(check["name"], "equal"), check["status"], key=order.index
        )
    return found


def different(result: dict[str, Any]) -> set[str]:
    assert result["exit_code"] == 1
    assert result["verdict"] == "not confirmed"
    return {name for name, status in statuses(result).items() if status == "differs"}


def sign(folder: Path, edit: Callable[[dict[str, Any]], None] = lambda values: None) -> None:
    """Edit a record as a forger does: model card, text report and all hashes follow the forgery."""
    path = folder / RECORD_NAME
    write(path, edit)
    record = read_record(folder, verify=False)
    report = read_report(folder, replace(record, files={}))
    (folder / "README.md").write_text(model_card(record, report))
    (folder / "report.txt").write_text(report_with_heading(report, selected=False))
    files = describe_files(folder)
    del files[RECORD_NAME]
    write(path, lambda values: values.update(files={k: vars(v) for k, v in files.items()}))
    read_record(folder)  # its hash is correct


def write(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    values.pop("sha256", None)
    edit(values)
    path.write_text(json_text({**values, "sha256": values_hash(values)}))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_a_run_is_confirmed_bit_for_bit(made, tmp_path, mode):
    before = snapshot(made / mode)
    result = audited(made / mode, tmp_path, "--steps", "all")
    assert result["exit_code"] == 0
    assert (result["verdict"], result["machine"]) == ("confirmed", [])
    assert (result["steps"], result["steps_of_run"]) == (8, 8)
    assert statuses(result) == dict.fromkeys(
        ("files", "data", "weights", "config", "examples", "history", "loss", "scale", "dtypes",
         "validated", "model", "predicted", "metrics", "warnings", "card"), "equal"
    )  # fmt: skip
    assert snapshot(made / mode) == before


@pytest.mark.slow
def test_a_run_with_everything_is_confirmed(made, tmp_path):
    """Resumed, validated by steps, with micro-batches chosen by memory, from perturbed weights."""
    folder = tmp_path / "run"
    words = [*flags(made), "--mixed_precision", "fp16", "--output_dir", folder,
             "--eval_steps", 3, "--checkpointing_steps", 2, "--auto_micro_batch",
             "--gradient_accumulation_steps", 2, "--per_device_train_batch_size", 4,
             "--perturb_initial_weights", "--class_weights", "balanced"]  # fmt: skip
    with interrupted(5):
        assert call_here(CLASSIFY, *words).returncode == 130
    succeeded(call_here(CLASSIFY, *words, "--resume_from_checkpoint", "latest"))
    result = audited(folder, tmp_path, "--steps", "all")
    assert result["verdict"] == "confirmed"
    assert {"validated", "model"} <= statuses(result).keys()
    assert len(json.loads((folder / RECORD_NAME).read_text())["resumes"]) == 1


@pytest.mark.slow
def test_the_text_and_the_badge(made, tmp_path, capsys):
    badge = tmp_path / "badge.svg"
    assert audit(made / "fp32", "--steps", 2, "--badge", badge) == 0
    out = capsys.readouterr().out
    assert "machine    as in the record\n" in out
    assert "2 of 8 steps of the training" in out
    assert "verdict    confirmed\n" in out
    assert "](badge.svg)\n" in out
    title = ElementTree.parse(badge).getroot().findtext("{http://www.w3.org/2000/svg}title")
    assert title.startswith("ampft audit: confirmed, 2 of 8 steps repeated, ")
    assert describe_files(made / "fp32")[RECORD_NAME].sha256 in title


def metric(folder: Path) -> None:
    write(folder / "report.json", lambda report: report.update(accuracy=0.99))
    sign(folder, lambda record: record["metrics"].update(accuracy=0.99))


def seed(folder: Path) -> None:
    sign(folder, lambda record: record["arguments"].update(seed=7))


def precision(folder: Path) -> None:
    """Claim fp16: as measured dtypes, and with loss scales."""
    text = (
        (folder / "history.jsonl")
        .read_text()
        .replace('"loss_scale": null', '"loss_scale": 65536.0')
    )
    (folder / "history.jsonl").write_text(text)

    def edit(record: dict[str, Any]) -> None:
        part = record["precision"]
        record["arguments"]["mixed_precision"] = part["requested"] = "fp16"
        part["resolved"].update(mode="fp16", compute_dtype="float16", execution="emulated")
        part["executed"]["is_emulated"] = True
        for row in part["executed"]["rows"]:
            row.update(inputs=["float16"] * len(row["inputs"]), output="float16")

    sign(folder, edit)


def weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"][0] += 1e-3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    sign(folder)


def rewritten(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change the predictions, with a report and a record that follow from them."""
    import pyarrow.parquet as pq

    path = folder / "predictions.parquet"
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
    outcome = change(read_predictions(path))
    write_predictions(path, outcome, lambda part: {"text": texts[part]})
    report = outcome.report()
    write(folder / "report.json", lambda values: values.update(report.as_dict()))
    metrics = {**outcome.metrics(), **report.metrics()}

    def edit(record: dict[str, Any]) -> None:
        record["warnings"] = {}
        for name in ("metrics", "metrics_fp32"):
            record[name].update(metrics)

    sign(folder, edit)


def predictions(folder: Path) -> None:
    """Make every prediction right."""

    def change(outcome: Any) -> Any:
        sure = np.eye(3, dtype=np.float32)[outcome.labels] * 0.94 + np.float32(0.02)
        return replace(outcome, probabilities=sure)

    rewritten(folder, change)


def labels(folder: Path) -> None:
    """Make every label what the model predicted."""
    rewritten(folder, lambda outcome: replace(outcome, labels=np.roll(outcome.labels, 1)))


def edit_row(folder: Path, index: int, **values: object) -> None:
    path = folder / "history.jsonl"
    lines = path.read_text().splitlines()
    lines[index] = json.dumps({**json.loads(lines[index]), **values})
    path.write_text("\n".join(lines) + "\n")
    sign(folder)


def data_fingerprint(folder: Path) -> None:
    sign(folder, lambda record: record["data"]["fingerprints"].update(train="ab" * 32))


def activation(folder: Path) -> None:
    sign(folder, lambda record: record["model"]["configuration"].update(hidden_act="relu"))


def best(folder: Path) -> None:
    def edit(record: dict[str, Any]) -> None:
        validations, part = record["validations"], record["best"]
        (other,) = [v for v in validations if v["step"] != part["step"]]
        part.update(epoch=other["epoch"], step=other["step"])

    sign(folder, edit)


def skipped(folder: Path) -> None:
    sign(folder, lambda record: record["steps"].update(applied=7, skipped=1))


def warned(folder: Path) -> None:
    sign(folder, lambda record: record.update(warnings={"flat": "nothing was learned"}))


FORGERIES = {
    "metric": (metric, {"metrics"}),
    "seed": (seed, {"weights", "examples", "history"}),
    "precision": (precision, {"loss", "dtypes", "predicted"}),
    "weights": (weights, {"predicted"}),
    "predictions": (predictions, {"predicted"}),
    "labels": (labels, {"predicted", "warnings"}),
    "fingerprint": (data_fingerprint, {"data"}),
    "activation": (activation, {"config"}),
    "loss": (lambda run: edit_row(run, 1, loss=1.09), {"loss"}),
    "rate": (lambda run: edit_row(run, 7, learning_rate=1e-3), {"history"}),
    "tokens": (lambda run: edit_row(run, 7, tokens=5), {"history"}),
    "best": (best, {"metrics"}),
    "skipped": (skipped, {"history"}),
    "warnings": (warned, {"warnings"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_correct_hashes_is_found(run, tmp_path, name):
    forge, expected = FORGERIES[name]
    forge(run)
    assert different(audited(run, tmp_path)) == expected


@pytest.mark.slow
def test_a_later_loss_is_found_if_all_steps_are_repeated(run, tmp_path):
    edit_row(run, 7, loss=1.09)
    assert audited(run, tmp_path)["exit_code"] == 0
    assert different(audited(run, tmp_path, "--steps", "all")) == {"loss"}


@pytest.mark.slow
def test_a_changed_record_without_its_hash_is_found(run, tmp_path):
    path = run / RECORD_NAME
    path.write_text(path.read_text().replace('"seed": 42', '"seed": 43'))
    (run / "history.jsonl").write_text("damaged\n")
    assert {"files", "weights", "history"} <= different(audited(run, tmp_path))


@pytest.mark.slow
def test_other_data_are_found_and_moved_data_are_read(made, run, tmp_path):
    moved, other = tmp_path / "moved.csv", tmp_path / "other.csv"
    shutil.copy(made / "train.csv", moved)
    other.write_text(moved.read_text().replace(",metal", ",river", 1))
    sign(run, lambda record: record["arguments"].update(train_file="/nowhere/train.csv"))
    assert audit(run) == 2
    assert audited(run, tmp_path, "--train_file", moved, "--steps", 1)["verdict"] == "confirmed"
    assert different(audited(run, tmp_path, "--train_file", other)) == {"data"}


def gpu_run(made: Path, folder: Path) -> Path:
    """A run whose dropout masks this machine cannot draw, as if it were of a GPU."""
    done = call_here(CLASSIFY, *flags(made), "--mixed_precision", "fp16", "--output_dir", folder,
                     "--padding", "--evaluate_fp32")  # fmt: skip
    succeeded(done)

    def edit(record: dict[str, Any]) -> None:
        record["arguments"].update(padding=False, use_cpu=False)
        record["random_state_sha256"] = "ab" * 32
        record["topology"]["device"] = "cuda"
        record["hardware"]["gpus"] = ["NVIDIA H100"]
        record["precision"]["resolved"].update(execution="native", device_type="cuda")

    sign(folder, edit)
    return folder


@pytest.mark.full
@pytest.mark.slow
def test_a_cpu_audits_a_run_of_a_gpu(made, tmp_path):
    folder = gpu_run(made, tmp_path / "gpu")
    result = audited(folder, tmp_path, "--steps", 4)
    assert (result["verdict"], result["exit_code"]) == ("confirmed within tolerance", 0)
    assert any(line.startswith("device cpu instead of cuda") for line in result["machine"])
    assert statuses(result)["loss"] == "within tolerance"
    edit_row(folder, 0, loss=1.6)  # instead of about 1.1
    assert "loss" in different(audited(folder, tmp_path, "--steps", 4))


@pytest.mark.full
@pytest.mark.slow
def test_other_kernels_confirm_within_tolerance(made, tmp_path):
    """On kernels without vector instructions, as on another kind of CPU."""
    folder = shutil.copytree(made / "fp16", tmp_path / "run")
    sign(folder, lambda record: record["hardware"].update(cpu="Another CPU"))
    file = tmp_path / "audit.json"
    environment = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    succeeded(call(sys.executable, "-m", "ampft", "audit", folder, "--json", file, **environment))
    result = json.loads(file.read_text())
    assert result["verdict"] == "confirmed within tolerance"
    assert {name for name, status in statuses(result).items() if status == "within tolerance"} <= {
        "weights", "loss", "predicted", "metrics"
    }  # fmt: skip


@pytest.mark.slow
def test_code_of_a_model_runs_only_if_the_auditor_trusts_it(made, run, tmp_path):
    model = shutil.copytree(made / "model", tmp_path / "model")
    canary = tmp_path / "canary"
    (model / "planted.py").write_text(f"open({str(canary)!r}, 'w')\n")
    write(model / "config.json", lambda c: c.update(auto_map={"AutoConfig": "planted.Config"}))

    def edit(record: dict[str, Any]) -> None:
        record["arguments"].update(trust_remote_code=True, model_name_or_path=str(model))

    sign(run, edit)
    audit(run, "--steps", 1)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--steps", 0), "--steps: received '0'; it must be at least 1, or all"),
        (("--json", "{run}/audit.json"), "an audit writes nothing into the folder of the run"),
        (("--badge", "{run}"), "this is a folder"),
        (("--stepz", 1), "unknown flag --stepz"),
    ],
)
def test_wrong_use(run, capsys, words, message):
    before = snapshot(run)
    assert audit(run, *(str(word).format(run=run) for word in words)) == 2
    assert message in capsys.readouterr().err
    assert snapshot(run) == before


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda record: record.update(status="interrupted"), "the run is interrupted"),
        (lambda record: record["arguments"].update(seed=-1), "--seed: received -1"),
        (lambda record: record["arguments"].update(new=1), "unknown flag --new"),
        (lambda record: record["data"].update(name="data in memory"), "data in memory, which"),
        (
            lambda record: record["precision"].update(requested="fp8"),
            "run was trained in fp8: not available on this device (cpu)",
        ),
    ],
)
def test_what_cannot_be_audited(run, capsys, edit, message):
    write(run / RECORD_NAME, edit)
    assert audit(run) == 2
    assert message in capsys.readouterr().err


CARD = """---
tags:
- fp16
---

# `bert` on `a.csv`

```python
classify = pipeline("text-classification", model="path")
```

BertForSequenceClassification, 0.1 M parameters. On `test` (300 examples): accuracy 0.3867.

Trained in fp16, emulated.

**Warning:** next to nothing was learned.

| class | F1 |
| :--- | ---: |
| `fruit` | 0.112 |

| method | accuracy |
| :--- | ---: |
| fine-tuned model | 0.3867 |
| frozen encoder | - |
"""
NAMES = ("fruit", "metal")
TABLE = "              precision    recall\n\n       fruit      0.857     0.060       100\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("On `test` (300 examples): accuracy", "The accuracy is for 300 examples of `test`:"),
        ("class | F1", "label | F1 score"),
        ("next to nothing was learned", "hardly anything was learned"),
        ("Trained in", "The training ran in"),
        ("| fine-tuned model", "| trained model"),
    ],
)
def test_another_wording_states_the_same_facts(old, new):
    changed = CARD.replace(old, new)
    assert changed != CARD
    assert state_the_same(changed, CARD, NAMES)
    assert state_the_same(TABLE.replace("precision", "precise"), TABLE, NAMES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("0.3867", "0.3868"), ("fp16, emulated", "fp16, native"), ("fp16,", "bf16,")),
        *(("- fp16", "- fp32"), ("`fruit`", "`metal`"), ("0.112", "0.113"), ("`test`", "`train`")),
        *(("**Warning:** next to nothing was learned.", ""), ("BertFor", "RobertaFor")),
        *(("| fine-tuned model", "| frozen encoder"), ("| - |", "| good |")),
        *(("| fine-tuned model | 0.3867 |\n", ""), ("pipeline(", "Pipeline(")),
    ],
)
def test_another_fact_is_found(old, new):
    """Negative control."""
    assert old in CARD
    assert not state_the_same(CARD.replace(old, new), CARD, NAMES)
    for other in ("metal", "banana"):
        assert not state_the_same(TABLE.replace("fruit", other), TABLE, NAMES)


@pytest.mark.parametrize(
    ("by", "epoch", "error"),
    [("mse", 1, 0.01), ("last", 2, 0.5), ("mse", 1, 0.5), ("last", 2, 0.01)],
)
def test_the_squared_error_chooses_the_epoch_of_numbers(by, epoch, error):
    parts = [
        ValidationPart(epoch=each, step=each, metrics={"r2": -mse, "mse": mse})
        for each, mse in ((1, 1.0), (2, 1.25))
    ]
    best = BestPart(
        metric="r2", epoch=epoch, step=epoch, value=parts[epoch - 1].metrics["r2"], by=by, rows=20,
        gain=0.25, gain_error=error,
    )  # fmt: skip
    record = SimpleNamespace(best=best, validations=parts, arguments={})
    problems = list(_best_problems(record, SimpleNamespace(problem=Regression(("y",)))))
    assert bool(problems) == ((by == "mse") != (error == 0.01)), problems


def test_an_undefined_metric_of_an_own_loop_is_as_recorded(tmp_path):
    shares = np.full((4, 2), 0.5, dtype=np.float32)
    outcome = Predictions(np.arange(4), np.zeros(4, dtype=np.int64), shares, ("a", "b"), "test")
    write_predictions(tmp_path / "predictions.parquet", outcome, lambda rows: {})
    (tmp_path / "history.jsonl").touch()
    record = SimpleNamespace(
        arguments={"batch_size": 1, "seed": 0},
        data=SimpleNamespace(examples={"train": 4}),
        steps=SimpleNamespace(applied=0, skipped=0),
        example_ids_sha256="",
        metrics=json_values(outcome.metrics()),
    )
    assert record.metrics["cohen_kappa"] is None
    checks = {check.name: check.status for check in own_loop_checks(tmp_path, record)}
    assert checks["metrics"] == "equal"


def test_the_weights_of_the_repeated_training_are_freed():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    for processes, kept in ((2, 72), (1, 0)):  # those of several processes are in shared buffers
        free_weights(
            SimpleNamespace(
                accelerator=SimpleNamespace(num_processes=processes),
                optimizer=optimizer,
                loaded=SimpleNamespace(model=model),
            )
        )
        assert sum(parameter.numel() for parameter in model.parameters()) == kept
        assert bool(optimizer.state) == bool(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "metric"), [("macro_roc_auc", "macro_roc_auc"), ("eval_f1", "macro_f1")]
)
def test_weights_kept_by_a_ranking_metric_are_confirmed(made, tmp_path, named, metric):
    folder = tmp_path / "ranked"
    words = ("--metric_for_best_model", named, "--output_dir", folder)
    succeeded(call_here(CLASSIFY, *flags(made), *words))
    record = read_record(folder)
    assert record.best.metric == metric
    result = audited(folder, tmp_path)
    assert (result["exit_code"], result["verdict"]) == (0, "confirmed"), statuses(result)
    # Weights of another epoch than the metric chooses are named.
    worst = min(record.validations, key=lambda part: part.metrics[metric])
    if worst.metrics[metric] < record.best.value:
        sign(folder, lambda values: values["best"].update(value=worst.metrics[metric]))
        assert "differs" in statuses(audited(folder, tmp_path)).values()


METRIC = """
import evaluate
import datasets

class Right(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"right": sum(map(int.__eq__, map(int, predictions), map(int, references)))}
"""


def test_the_metrics_that_a_user_chose_are_computed_again(made, tmp_path, capsys):
    module = tmp_path / "right.py"
    module.write_text(METRIC)
    quick = ("--max_train_steps", 1, "--no-baseline", "--no-serve_back")
    where = ("--metric", module, "--output_dir", tmp_path / "run")
    succeeded(call_here(CLASSIFY, *flags(made), *quick, *where))
    assert audit(tmp_path / "run", "--steps", 1) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "chosen 1 value of --metric follow from the predictions" in printed
    changed = tmp_path / "moved" / "right.py"
    changed.parent.mkdir()
    changed.write_text(METRIC.replace("sum(map", "2 + sum(map"))
    record = read_record(tmp_path / "run")
    outcome = read_predictions(tmp_path / "run" / "predictions.parquet")
    arguments = {**record.arguments, "metric": str(changed)}
    check = check_chosen_metrics(replace(record, arguments=arguments), outcome)
    assert check.status == "differs"
    arguments["metric"] = str(tmp_path / "gone.py")
    gone = check_chosen_metrics(replace(record, arguments=arguments), outcome)
    assert gone.status == "missing"
    module.unlink()
    chosen_metrics._loaded.cache_clear()
    result = audited(tmp_path / "run", tmp_path, "--steps", 1)
    assert (result["exit_code"], result["verdict"]) == (1, "partly confirmed")
