"""Runs with modules in float32: the record, the saved model, a resume, and refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import pytest
from fuzzed_json import signed
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import CLASSIFY, call_here, printed, succeeded

import ampft
from ampft.files import describe_file

pytestmark = pytest.mark.slow

KEPT = ("--mixed_precision", "fp16", "--fp32_modules", "layer.1.output.dense,classifier")
NAMES = ["bert.encoder.layer.1.output.dense", "classifier"]


@pytest.fixture(scope="module")
def start(files, tiny_model):
    def run(folder, *more):
        return call_here(CLASSIFY, *two_epochs(files, tiny_model, folder, *more))

    return run


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    done = succeeded(start(folder, *KEPT, "--checkpointing_steps", "5"))
    return folder, done.stdout


def test_the_record_states_what_was_kept(whole):
    folder, stdout = whole
    record = json.loads((folder / "run.json").read_text())
    assert record["precision"]["fp32_modules"] == NAMES
    rows = record["precision"]["executed"]["rows"]
    by_request = [row for row in rows if row["by_request"]]
    assert {row["direction"]: row["count"] for row in by_request} == {"forward": 4, "backward": 8}
    assert {dtype for row in by_request for dtype in row["inputs"]} == {"float32"}
    assert "2 modules in float32" in printed(stdout, "model")
    assert "float32 sums, by --fp32_modules" in printed(stdout, "ran")


def test_a_resume_is_equal_bit_for_bit_and_needs_the_flag(whole, start, tmp_path):
    folder, saves = tmp_path / "run", ("--checkpointing_steps", "5")
    with interrupted(8):
        assert start(folder, *KEPT, *saves).returncode
    refused = start(folder, "--mixed_precision", "fp16", *LATEST)
    assert refused.returncode == 2
    assert "--fp32_modules" in refused.stderr
    succeeded(start(folder, *KEPT, *saves, *LATEST))
    assert evidence(folder) == evidence(whole[0])


def test_predictions_in_fp16_keep_the_same_modules(whole, tmp_path):
    folder, _ = whole
    text = ["rhine nile the old"]
    kept = ampft.FinishedRun(folder).predict(text, precision="fp16")
    plain = shutil.copytree(folder, tmp_path / "plain")
    config = plain / "config.json"
    config.write_text(config.read_text().replace("ampft_fp32_modules", "other"))
    record = json.loads((plain / "run.json").read_text())
    record["files"]["config.json"] = asdict(describe_file(config))
    (plain / "run.json").write_text(signed(record))
    other = ampft.FinishedRun(plain).predict(text, precision="fp16")
    assert kept["prediction"][0] == other["prediction"][0]
    assert kept["confidence"][0] != other["confidence"][0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--fp32_modules", "wo"), "--fp32_modules wo: the pattern matches no module"),
        (("--fp32_modules", "a,,b"), "--fp32_modules 'a,,b': a pattern is empty"),
        (
            ("--fp32_modules", "classifier", "--mixed_precision", "bf16-true"),
            "the mode bf16-true cannot do that, because it stores all weights in bfloat16",
        ),
    ],
)
def test_bad_requests_write_nothing(start, tmp_path, flags, message):
    done = start(tmp_path / "run", *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
