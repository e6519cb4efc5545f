"""Artifacts of a tiny run: a faithful one passes, and every planted fault is named."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_text import LABELS

from ampft.cli import main
from ampft.errors import InputError
from ampft.export import ExportRequest, export_run, open_artifact
from ampft.export.artifact import CERTIFICATE_NAME
from ampft.export.certificate.certificate_page import (
    certificate_text,
    differences,
    read_certificate,
    write_certificate,
)
from ampft.export.certificate.verified_rows import VerifyRequest, check_verification
from ampft.export.certificate.verify import certify
from ampft.files import describe_file
from ampft.runs.predict import load_run_classifier

pytestmark = pytest.mark.slow

WITHOUT_TIMES = VerifyRequest(measure=False)
# Fault -> what proves it. Statistics may find it too.
PROOFS = {
    "one class broken": "logits",
    "wrong id2label": "label_order",
    "other truncation": "inputs",
    "other pooling": "logits",
    "other lower-casing": "inputs",
    "kernel that depends on the batch": "batch",
}


@pytest.fixture(scope="module")
def faithful(faithful_artifact, certified_run):
    return certify(faithful_artifact, certified_run, WITHOUT_TIMES)


def test_a_faithful_artifact_passes(faithful, faithful_artifact, certified_run):
    assert (faithful.verdict, faithful.failures) == ("passed", ())
    assert faithful.arm.flips.mean == 0
    assert 0 < faithful.logits.share < 1e-4
    assert (faithful.batches.rows, faithful.batches.changed) == (256, 0)
    assert faithful.dtypes.weights.keys() == {"float32"}
    assert {row.inputs for row in faithful.dtypes.products} == {("float32", "float32")}
    assert sum(row.count for row in faithful.dtypes.products if row.with_weights) == 14
    model = faithful_artifact / "onnx/model.onnx"
    assert faithful.cost.size == model.stat().st_size
    assert faithful.run_sha256 == describe_file(certified_run / "run.json").sha256


def test_the_model_predicts_as_in_its_run(faithful, certified_run):
    report = json.loads((certified_run / "report.json").read_text())
    accuracy = faithful.comparison.baseline.metrics["accuracy"].mean
    assert accuracy == pytest.approx(report["accuracy"])
    assert 0.4 < accuracy < 1, "the model has learned, and the examples differ"


@pytest.mark.parametrize("fault", PROOFS)
def test_a_planted_fault_fails(fault, faults, faithful_artifact, certified_run, tmp_path):
    assert faults.FAULTS.keys() == PROOFS.keys()
    planted = faults.plant(faithful_artifact, tmp_path / "faulty", faults.FAULTS[fault])
    open_artifact(planted)  # nothing in the files gives the fault away
    made = certify(planted, certified_run, WITHOUT_TIMES)
    assert made.verdict == "failed"
    assert PROOFS[fault] in {each.kind for each in made.failures}


@pytest.mark.full
def test_a_fault_that_changes_few_predictions_of_int8_is_found(faults, certified_run, tmp_path):
    request = ExportRequest(
        run=certified_run, format="onnx", precision="int8", output_dir=tmp_path / "int8"
    )
    export_run(request)
    made = certify(request.output_dir, certified_run, WITHOUT_TIMES)
    assert 0.1 < made.logits.rounding < 1.5
    assert "rounding" not in {each.kind for each in made.failures}
    planted = faults.plant(request.output_dir, tmp_path / "faulty", faults.other_pooling)
    made = certify(planted, certified_run, WITHOUT_TIMES)
    assert made.logits.rounding > 3
    assert "rounding" in {each.kind for each in made.failures}


def test_a_changed_file_and_another_run_are_refused(
    faults, faithful_artifact, certified_run, tmp_path
):
    planted = faults.plant(faithful_artifact, tmp_path / "faulty", faults.wrong_labels)
    (planted / "config.json").write_text((faithful_artifact / "config.json").read_text())
    with pytest.raises(InputError, match="was changed after the export"):
        certify(planted, certified_run, WITHOUT_TIMES)
    record = certified_run / "run.json"
    other = tmp_path / "other"
    other.mkdir()
    for path in certified_run.iterdir():
        if path.is_file() and path != record:
            shutil.copyfile(path, other / path.name)
    values = json.loads(record.read_text())
    (other / "run.json").write_text(json.dumps(values) + "\n")  # other bytes, the same values
    with pytest.raises(InputError, match="made from another run"):
        certify(faithful_artifact, other, WITHOUT_TIMES)


def test_the_command_exports_verifies_and_audits(certified_run, tmp_path, capsys):
    folder = tmp_path / "onnx"
    words = ["--format", "onnx", "--output_dir", str(folder), "--no_measure"]
    assert main(["export", str(certified_run), *words]) == 0
    printed = capsys.readouterr().out
    assert "passed: the outputs of onnx fp32 equal its model's to rounding" in printed
    stored = read_certificate(folder / CERTIFICATE_NAME)
    assert (stored.verdict, stored.verify) == ("passed", "test")
    assert "## Certificate" in (folder / "README.md").read_text()
    assert "onnx fp32" in (folder / "certificate.html").read_text()
    audit = ["audit", str(folder), "--run", str(certified_run), "--no_measure"]
    assert main(audit) == 0
    assert "the results agree with the certificate" in capsys.readouterr().out
    # The certificate's own margin and metric hold, unless others are asked for.
    strict = replace(stored.comparison, metric="macro_f1", margin=0.001)
    write_certificate(folder, replace(stored, comparison=strict))
    assert main(audit) == 0
    assert "macro F1" in capsys.readouterr().out
    assert main([*audit, "--metric", "accuracy", "--margin", "1"]) == 0
    capsys.readouterr()
    # Other rows, of which 40 could not decide by their labels.
    with pytest.raises(SystemExit, match="1"):
        main([*audit, "--verify", "validation"])
    printed = capsys.readouterr().out
    assert "passed: the outputs of onnx fp32 equal its model's to rounding" in printed
    assert "the certificate was made on other examples" in printed


def test_an_artifact_without_a_valid_certificate_is_announced(
    faithful, faithful_artifact, certified_run, tmp_path, capsys
):
    folder = Path(shutil.copytree(faithful_artifact, tmp_path / "artifact"))
    words = ["predict", "--model", str(folder), "--text", "w1"]

    def announced() -> str:
        assert main(words) == 0
        return " ".join(capsys.readouterr().err.split())

    assert "has no certificate that it predicts as its model" in announced()
    with pytest.warns(UserWarning, match="has no certificate"):
        open_artifact(folder)
    write_certificate(folder, replace(faithful, verdict="failed"))
    assert "says 'failed': the artifact may differ from its model" in announced()
    with pytest.warns(UserWarning, match="says 'failed'"):
        open_artifact(folder)
    write_certificate(folder, replace(faithful, artifact_sha256="0" * 64))
    assert "is the certificate of other files" in announced()
    write_certificate(folder, faithful)
    assert announced() == ""
    open_artifact(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--verify", "dev"), "neither test nor validation nor a file"),
        (("--margin", "0"), "--margin: received 0.0"),
        (("--metric", "acuracy"), "Did you mean 'accuracy'?"),
        (("--test_file", "missing.jsonl"), "missing.jsonl"),
    ],
)
def test_bad_input_is_refused_before_the_export(words, message, certified_run, tmp_path, capsys):
    folder = tmp_path / "onnx"
    flags = ["--format", "onnx", "--output_dir", str(folder)]
    assert main(["export", str(certified_run), *flags, *words]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_one_row_is_refused_before_the_export(certified_run, tmp_path, capsys):
    rows, folder = tmp_path / "one.jsonl", tmp_path / "onnx"
    rows.write_text(json.dumps({"text": "w1", "label": LABELS[0]}))
    flags = ["--format", "onnx", "--output_dir", str(folder), "--verify", str(rows)]
    assert main(["export", str(certified_run), *flags]) == 2
    assert "at least 2 independent rows" in capsys.readouterr().err
    assert not folder.exists()


def test_a_file_with_labels_can_be_verified(faithful, faithful_artifact, certified_run, tmp_path):
    test_file = certified_run.parent / "test.jsonl"
    made = certify(
        faithful_artifact, certified_run, VerifyRequest(verify=str(test_file), measure=False)
    )
    assert made.comparison.arms[1].metrics == faithful.arm.metrics
    assert made.comparison.groups == faithful.comparison.groups
    unknown = tmp_path / "unknown.jsonl"
    unknown.write_text(json.dumps({"text": "w1", "label": "dog"}))
    with pytest.raises(InputError, match=r"labels that the model does not know: 'dog'"):
        certify(faithful_artifact, certified_run, VerifyRequest(verify=str(unknown)))


@pytest.mark.parametrize("verify", ["test", "FILE"])
def test_drawn_examples_are_verified(verify, faithful, faithful_artifact, certified_run):
    path = certified_run.parent / "test.jsonl"
    every = VerifyRequest(verify=str(path) if verify == "FILE" else verify, measure=False)
    saved = load_run_classifier(certified_run)
    rows = check_verification(saved, every)
    drawn = check_verification(saved, replace(every, max_samples=30))
    assert (len(drawn), drawn.available) == (30, len(rows))
    pairs = [*zip(map(drawn.text, range(30)), drawn.targets.tolist(), strict=True)]
    known = Counter(zip(map(rows.text, range(len(rows))), rows.targets.tolist(), strict=True))
    assert not Counter(pairs) - known
    assert len({rows.sha256, drawn.sha256}) == 2
    made = certify(faithful_artifact, certified_run, replace(every, max_samples=30))
    assert (made.comparison.examples, made.max_samples) == (30, 30)
    assert made.rows_sha256 == drawn.sha256
    assert f"30 of {len(rows):,} examples" in certificate_text(made)
    again = certify(faithful_artifact, certified_run, replace(every, max_samples=30))
    assert not list(differences(made, again))
    assert "the certificate was made on other examples." in differences(faithful, again)
    assert check_verification(saved, replace(every, max_samples=len(rows))).sha256 == rows.sha256


def test_an_audit_draws_the_same_examples_again(certified_run, tmp_path, capsys):
    folder = tmp_path / "torch"
    flags = ["--format", "torch", "--no_measure", "--max_verify_samples", "100"]
    assert main(["export", str(certified_run), *flags, "--output_dir", str(folder)]) == 0
    assert "100 of 320 examples of test" in capsys.readouterr().out
    assert read_certificate(folder / CERTIFICATE_NAME).max_samples == 100
    assert main(["audit", str(folder), "--run", str(certified_run), "--no_measure"]) == 0
    assert "the results agree with the certificate" in capsys.readouterr().out


def test_a_verified_file_has_the_groups_of_the_run(certified_run, tmp_path):
    saved = load_run_classifier(certified_run)
    grouped = {**saved.record.arguments, "group_column": "user"}
    saved = replace(saved, record=replace(saved.record, arguments=grouped))
    rows = [("w1", "u"), ("w2", "u"), ("W1!", "v"), ("w3", "w"), ("w4", None)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(
        json.dumps({"text": text, "label": LABELS[0], "user": user}) + "\n" for text, user in rows
    ))  # fmt: skip
    groups = check_verification(saved, VerifyRequest(verify=str(path))).groups
    assert groups.ids.tolist() == [0, 0, 0, 1, 2]


def test_rows_without_a_label_are_left_out_and_counted(certified_run, tmp_path, capsys):
    labels = [LABELS[0], None, LABELS[1], "", LABELS[2]]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(
        json.dumps({"text": f"w{i}", "label": label}) + "\n" for i, label in enumerate(labels)
    ))  # fmt: skip
    saved = load_run_classifier(certified_run)
    rows = check_verification(saved, VerifyRequest(verify=str(path)))
    assert [rows.text(i) for i in range(len(rows))] == ["w0", "w2", "w4"]
    said = " ".join(capsys.readouterr().out.split())
    assert "rows.jsonl: 2 rows without a label left out." in said


# Fault of a decision or a setting -> what names it.
SETTINGS = {
    "sigmoid for softmax": "contract",
    "labels swapped in decision.json": "answers",
    "labels swapped in artifact.json": "manifest",
    "labels swapped everywhere": "answers",
    "one token less": "contract",
    "a threshold that nobody reads": "contract",
    "hidden_act relu": "config",
    "accents": "processor",
    "special_tokens_map.json added": "processor",
    "tokenizer_config.json absent": "processor",
    "decision.py edited": "modules",
    "model.safetensors added": "added",
    "code added": "added",
    "another record": "processor",
    "embedding of one token": "probes",
    "head x 1.001": "values",
}


@pytest.mark.parametrize("fault", SETTINGS)
def test_a_setting_that_is_not_the_runs_is_named(
    fault, faults, faithful_artifact, certified_run, tmp_path
):
    every = {**faults.DECISION_FAULTS, **faults.GRAPH_FAULTS}
    planted = faults.plant(faithful_artifact, tmp_path / "faulty", every[fault])
    made = certify(planted, certified_run, WITHOUT_TIMES)
    assert made.verdict == "failed"
    named = {each.kind: each.text for each in made.failures}
    assert SETTINGS[fault] in named
    if "." in (file := fault.partition(" ")[0]):
        assert file in named[SETTINGS[fault]]


def test_what_equals_to_rounding_is_not_estimated(faithful_artifact, certified_run):
    few = VerifyRequest(verify="validation", measure=False)
    made = certify(faithful_artifact, certified_run, few)
    assert made.arm.outcome != "equivalent"
    assert (made.verdict, made.is_equal) == ("passed", True)
    assert (made.answers.labels, made.answers.answered, made.answers.decided) == (0, 0, 0)
    assert made.probes.rows >= 64
    assert made.probes.coverage == 1
    assert made.notes[0].kind == "equal"
    assert made.notes[0].text.startswith("the outputs equal the model's to rounding")
