"""Every task has a certificate: the artifact of its run predicts as the run does."""

from __future__ import annotations

import json
from dataclasses import replace

import exported
import pytest
from representatives import full_except

from ampft.decision import CONTRACT_NAME
from ampft.errors import InputError
from ampft.export import ExportRequest, export_run
from ampft.export.artifact import artifact_files, checked_manifest, write_manifest
from ampft.export.certificate.certificate_page import certificate_text, page
from ampft.export.certificate.verified_rows import VerifyRequest
from ampft.export.certificate.verify import certify
from ampft.runs.client_answers import PIPELINE, PREDICT, SERVER

pytestmark = pytest.mark.slow

OF_TEXTS = ("pairs", "several labels", "words")
TASKS = {
    "pairs": lambda folder: exported.train_texts(folder, pairs=True),
    "several labels": lambda folder: exported.train_texts(
        folder, several=True, task="multi-label", tune_thresholds=True
    ),
    "words": exported.train_words,
    "images": exported.train_images,
    "sounds": lambda folder: exported.train_sounds(folder, "ast"),
    "pixels": exported.train_pixels,
}


@pytest.mark.parametrize("name", full_except(TASKS, ["words"]))
def test_a_faithful_artifact_of_a_task_is_its_model(name, tmp_path):
    run = TASKS[name](tmp_path)
    target = tmp_path / "artifact"
    export_run(ExportRequest(run=run, format="torch", precision="fp32", output_dir=target))
    made = certify(target, run, VerifyRequest(measure=False))
    # So few examples prove nothing by their labels, but outputs may be equal to rounding.
    assert (made.verdict, made.failures) == ("passed" if made.is_equal else "undecided", ())
    assert made.arm.flips.mean == 0
    assert made.logits.largest < 1e-5
    assert made.logits.range > 0
    assert made.batches.changed == 0
    clients = {each.client: each for each in made.served.clients}
    assert clients.keys() == {PIPELINE, PREDICT, *([SERVER] if name in OF_TEXTS else [])}
    assert all(each.agrees for each in clients.values()), made.served.text()
    asked = {client: each.asked for client, each in clients.items()}
    assert asked.get(SERVER, asked[PREDICT]) == asked[PREDICT] > 1
    # Long sentences, and sounds of 8,000 Hz, are not for a pipeline.
    assert (asked[PIPELINE] > 0) == (name not in ("words", "sounds"))
    assert made.verdict in certificate_text(made)
    assert "<html" in page(made)
    drawn = certify(target, run, VerifyRequest(measure=False, max_samples=3))
    assert (drawn.comparison.examples, drawn.arm.flips.mean) == (3, 0)
    assert drawn.logits.largest < 1e-5


def test_a_pipeline_is_asked_about_sounds_of_an_artifact_in_another_runtime(tmp_path):
    run, target = exported.train_sounds(tmp_path, "ast", rate=16_000), tmp_path / "artifact"
    export_run(ExportRequest(run=run, format="onnx", precision="fp32", output_dir=target))
    made = certify(target, run, VerifyRequest(measure=False))
    assert [each.agrees for each in made.served.clients] == [True, True], made.served.text()
    assert all(each.asked > 1 for each in made.served.clients)


@pytest.mark.parametrize(
    ("task", "name", "entry", "values", "message"),
    [
        (
            "words", CONTRACT_NAME, "tokenization", {"truncation_side": "left"},
            "words are cut off at the right only",
        ),
        (
            "images", "preprocessor_config.json", "size", {"height": 8, "width": 8},
            "cannot predict the rows .*these files of the artifact are not the run's: preprocessor",
        ),
    ],
)  # fmt: skip
def test_settings_with_which_an_artifact_fails_are_named(
    task, name, entry, values, message, tmp_path
):
    run, target = TASKS[task](tmp_path), tmp_path / "artifact"
    export_run(ExportRequest(run=run, format="torch", precision="fp32", output_dir=target))
    manifest = checked_manifest(target)
    stored = json.loads((target / name).read_text())
    stored[entry] |= values
    (target / name).write_text(json.dumps(stored))
    write_manifest(target, replace(manifest, files=artifact_files(target)))
    with pytest.raises(InputError, match=message):
        certify(target, run, VerifyRequest(measure=False))


def test_an_artifact_of_adapters_without_their_base_is_its_model(tmp_path):
    run = exported.train_texts(tmp_path, lora_r=2, merge_lora=False)
    assert not (run / "config.json").exists()
    target = tmp_path / "artifact"
    export_run(ExportRequest(run=run, format="torch", precision="fp32", output_dir=target))
    made = certify(target, run, VerifyRequest(measure=False))
    assert (made.failures, made.arm.flips.mean) == ((), 0)
    assert all(each.agrees for each in made.served.clients), made.served.text()
