"""Regression: from the file to the report, other clients, errors, a comparison and an artifact."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import sklearn.metrics as sk
from running import (
    BIN,
    CLASSIFY,
    Finished,
    call_here,
    succeeded,
    text_settings,
    trained_in_two_modes,
    write_csv,
)

import ampft

pytestmark = pytest.mark.slow

FLAGS = (
    *("--task", "regression", "--label_column_name", "year"),
    *("--num_train_epochs", 6, "--head_init", "probe"),
)
WORDS = [f"w{index}" for index in range(40)]


def rated(count: int, seed: int) -> list[tuple[str, float]]:
    """Return texts with a year: 1990, and three more for each word of the first half."""
    random = np.random.default_rng(seed)
    table = []
    for _ in range(count):
        words = random.choice(40, 8)
        year = 1990 + 3 * float((words < 20).sum()) + random.normal(scale=0.5)
        table.append((" ".join(WORDS[word] for word in words), round(year, 2)))
    return table


@pytest.fixture(scope="module")
def runs(tiny_bert, tmp_path_factory) -> list[Finished]:
    return trained_in_two_modes(tiny_bert, tmp_path_factory, rated, ("text", "year"), *FLAGS)


@pytest.fixture(scope="module")
def run(runs) -> Finished:
    return runs[0]


def test_it_learns_and_reports(runs):
    for run in runs:
        table = run.predictions
        report = run.report
        assert report["r2"] == pytest.approx(sk.r2_score(table["label"], table["prediction"]))
        assert report["r2"] > 0.5
        assert run.record["metrics"]["mse"] == pytest.approx(report["rmse"] ** 2)
        assert run.record["label_names"] == ["year"]
        assert run.record["best"]["metric"] == "r2"
        assert "regression report, test, 60 examples" in run.stdout
        assert "read       year from 19" in run.stdout
        assert "the head begins as ridge regression" in run.stdout
        assert not run.record["warnings"]
        methods = {each["name"]: each for each in run.record["simple_methods"]}
        assert methods["TF-IDF + regression"]["metrics"]["r2"] > 0.5
        assert methods["frozen encoder + regression"]["metrics"]["mse"] > 0
        assert methods["mean of the labels"]["metrics"]["r2"] < 0.05
        served = run.record["served_back"]["clients"]
        assert [each["asked"] == each["equal"] > 0 for each in served] == [True, True]
    assert "1 module in float32: classifier" in runs[1].stdout


def test_a_pipeline_of_transformers_answers_in_the_unit_of_the_labels(run):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run.folder), device="cpu")
    table = run.predictions
    for text, expected in list(zip(table["text"], table["prediction"], strict=True))[:10]:
        answer = classify(text, truncation=True)
        assert answer["label"] if isinstance(answer, dict) else answer[0]["label"] == "year"
        score = answer["score"] if isinstance(answer, dict) else answer[0]["score"]
        assert score == pytest.approx(expected, rel=1e-6)
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert "fine-tuned to predict the number `year`" in card
    assert "spearmanr" in card


def test_predict_writes_and_scores_numbers(run, tmp_path):
    table = run.predictions
    file = run.record["arguments"]["test_file"]
    target = tmp_path / "out.csv"
    done = succeeded(
        call_here(BIN / "ampft", "predict", "--model", run.folder, file, "--output_file", target)
    )
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert list(rows[0]) == ["text", "year", "prediction"]
    found = [float(row["prediction"]) for row in rows]
    assert found == pytest.approx(table["prediction"], rel=1e-6)
    assert f"{run.report['r2']:.4f}" in done.stdout
    done = call_here(BIN / "ampft", "predict", "--model", run.folder, file, "--all_probabilities")
    assert done.returncode == 2
    assert "--all_probabilities has no effect on numbers" in done.stderr
    with pytest.raises(ampft.InputError, match="decimals: received 2, but it rounds probabilities"):
        ampft.FinishedRun(run.folder).predict(["w1"], decimals=2)
    with pytest.raises(ampft.InputError, match="decimals: received -1"):
        ampft.FinishedRun(run.folder).predict(["w1"], decimals=-1)
    assert len(ampft.FinishedRun(run.folder).predict(["w1"], decimals=None)) == 1
    write_csv(tmp_path / "bad.csv", [("w1", "old")], ("text", "year"))
    done = succeeded(
        call_here(BIN / "ampft", "predict", "--model", run.folder, tmp_path / "bad.csv")
    )
    assert "the label in column 'year' is 'old'" in done.stderr


@pytest.mark.full
def test_errors_are_the_largest_distances(run):
    done = succeeded(call_here(BIN / "ampft", "errors", run.folder))
    table = run.predictions
    largest = np.abs(np.subtract(table["prediction"], table["label"])).max()
    assert "60 predictions on test: R²" in done.stdout
    assert f"{largest:.3f} " in done.stdout
    assert "predicted as" in done.stdout


def test_precisions_are_compared_by_paired_squared_errors(runs, tmp_path):
    target = tmp_path / "compared"
    said = succeeded(
        call_here(BIN / "ampft", "compare", *(run.folder for run in runs), "--output_dir", target)
    )
    found = json.loads((target / "comparison.json").read_text())
    assert found["metric"] == "r2"
    (difference,) = [arm["difference"] for arm in found["arms"] if arm["difference"]]
    one, other = (run.predictions for run in runs)
    truth = np.array(one["label"])
    errors = [np.square(np.array(each["prediction"]) - truth) for each in (one, other)]
    closer, farther = (errors[1] < errors[0]).sum(), (errors[1] > errors[0]).sum()
    # No number is right or wrong: it was "right in 0 of 60 examples where fp32 is wrong".
    text = " ".join(said.stdout.split())
    assert f" in {closer} of {len(truth)} examples, and farther from it in {farther}." in text
    assert "is right in" not in text
    expected = (errors[0] - errors[1]).mean() / truth.var()
    assert difference["estimate"] == pytest.approx(expected, abs=1e-9)
    low, high = difference["interval95"]
    assert low < expected < high
    assert difference["verdict"] in ("equivalent", "undecided", "better", "worse")


@pytest.mark.full
def test_an_artifact_gives_the_same_numbers_with_a_certificate(run, tmp_path):
    target = tmp_path / "artifact"
    words = ("--format", "onnx", "--output_dir", target, "--no_measure")
    done = succeeded(call_here(BIN / "ampft", "export", run.folder, *words))
    assert "verdict    passed" in done.stdout
    assert (target / "certificate.html").is_file()
    from ampft.decision import Contract

    contract = Contract.read(target)
    assert contract.rule.numbers
    assert contract.rule.answers(np.array([[1990.25]], np.float32)).columns() == {
        "prediction": [1990.25]
    }


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_an_artifact_in_16_bits_outputs_numbers_in_float32(run, form, tmp_path):
    """In float16, numbers near 2,000 are a whole number apart."""
    from ampft.export import ExportRequest, export_run
    from ampft.export.certificate.verified_rows import VerifyRequest
    from ampft.export.certificate.verify import certify

    target = tmp_path / "artifact"
    export_run(ExportRequest(run=run.folder, format=form, precision="fp16", output_dir=target))
    made = certify(target, run.folder, VerifyRequest(measure=False))
    assert made.failures == ()
    assert made.dtypes.weights["float16"] > made.dtypes.weights["float32"] > 0
    assert 0 < made.logits.largest < 0.1
    assert [each.text for each in made.notes][-1].endswith("in float32: classifier")


@pytest.mark.full
@pytest.mark.parametrize("fault", ["bias", "weight", "pooling", "batch", "numbers"])
def test_a_planted_fault_fails(run, fault, tmp_path):
    import artifact_faults as planted
    from onnx import numpy_helper

    from ampft.export import ExportRequest, export_run
    from ampft.export.certificate.verified_rows import VerifyRequest
    from ampft.export.certificate.verify import certify

    def shifted(graph):
        bias = planted._initializer(graph, "classifier.bias")
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 0.05, bias.name))

    faults = {
        "bias": lambda folder, made: planted._changed_graph(folder, made, shifted),
        "weight": planted.scaled_weight("classifier.weight", 1.02),
        "pooling": planted.other_pooling,
        "batch": planted.batch_dependent,
        "numbers": planted.entry("decision.json", "rule", "numbers", change=lambda _: False),
    }
    faithful = tmp_path / "faithful"
    export_run(ExportRequest(run=run.folder, format="onnx", precision="fp32", output_dir=faithful))
    faulty = planted.plant(faithful, tmp_path / "faulty", faults[fault])
    made = certify(faulty, run.folder, VerifyRequest(measure=False))
    assert made.verdict == "failed"
    expected = "contract" if fault == "numbers" else "logits"
    assert expected in {each.kind for each in made.failures}


@pytest.mark.full
def test_a_run_is_audited(run):
    assert "confirmed" in succeeded(call_here(BIN / "ampft", "audit", run.folder)).stdout


@pytest.mark.full
def test_the_estimator_predicts_numbers(tiny_bert):
    table = rated(80, 3)
    texts, years = [text for text, _ in table], np.array([year for _, year in table])
    regressor = ampft.Regressor(
        str(tiny_bert), learning_rate=5e-3, num_train_epochs=4,
        settings={"use_cpu": True, "cpu_threads": 1},
    )  # fmt: skip
    found = regressor.fit(texts, years, sample_weight=np.ones(80)).predict(texts)
    assert found.shape == (80,)
    assert regressor.score(texts, years) == pytest.approx(sk.r2_score(years, found))
    assert abs(found.mean() - years.mean()) < 5
    assert regressor.predict([]).shape == (0,)


@pytest.mark.parametrize("form", [pytest.param("json", marks=pytest.mark.full), "parquet"])
def test_pairs_and_other_formats_by_the_flags_of_run_glue(tiny_bert, tmp_path, form):
    """As STS-B: `run_glue --task_name stsb` on local files."""
    import pandas as pd

    for seed, (name, count) in enumerate({"train": 60, "validation": 20}.items()):
        random = np.random.default_rng(seed)
        table = rated(count, seed)
        frame = pd.DataFrame(
            {"sentence1": [text for text, _ in table],
             "sentence2": [text for text, _ in table[::-1]],
             "label": random.uniform(0, 5, count).astype(np.float32)}
        )  # fmt: skip
        if form == "json":
            frame.to_json(tmp_path / f"{name}.json", orient="records", lines=True)
        else:
            frame.to_parquet(tmp_path / f"{name}.parquet")
    words = ("--task_name", "stsb", "--do_train", "--do_eval", "--max_seq_length", 32)
    settings = text_settings(tmp_path, tiny_bert, tmp_path / "run")
    settings = [word.replace(".csv", f".{form}") for word in settings]
    place = settings.index("--test_file")
    del settings[place : place + 2]
    done = succeeded(
        call_here(CLASSIFY, *settings, "--num_train_epochs", 1, "--huber_delta", 1, *words)
    )
    assert "--task_name stsb -> --task regression" in done.stdout
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["arguments"]["task"] == "regression"
    assert record["data"]["input_columns"] == ["sentence1", "sentence2"]
    assert record["served_back"]["clients"][0]["equal"] > 0
    stored = pd.read_parquet(tmp_path / "run" / "predictions.parquet")["prediction"]
    sentence_transformers = pytest.importorskip("sentence_transformers")
    client = sentence_transformers.CrossEncoder(str(tmp_path / "run"), device="cpu", max_length=32)
    pairs = list(zip(frame["sentence1"], frame["sentence2"], strict=True))
    assert client.predict(pairs) == pytest.approx(stored.to_numpy(), abs=1e-4)
    assert stored.max() > 1, "a sigmoid never exceeds 1"


@pytest.mark.parametrize(
    ("cell", "message"),
    [("three", "is 'three', and --task regression needs finite numbers"),
     ("3,5", "Write a point instead of the comma"), ("1e999", "finite"), ("nan", "finite")],
)  # fmt: skip
def test_labels_that_are_no_numbers_are_refused(tiny_bert, tmp_path, cell, message):
    for name, count in {"train": 20, "validation": 6, "test": 6}.items():
        write_csv(tmp_path / f"{name}.csv", rated(count, 0), ("text", "year"))
    lines = (tmp_path / "train.csv").read_text().splitlines()
    lines[4] = f'w1 w2,"{cell}"'
    (tmp_path / "train.csv").write_text("\n".join(lines))
    settings = text_settings(tmp_path, tiny_bert, tmp_path / "run")
    words = ("--task", "regression", "--label_column_name", "year")
    done = call_here(CLASSIFY, *settings, *words)
    assert done.returncode == 2
    assert "line 5" in done.stderr
    assert message in done.stderr
    done = call_here(CLASSIFY, *settings, *words, "--calibrate")
    assert done.returncode == 2
    assert "--calibrate" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.parametrize("merges", [True, False])
def test_adapters_are_served_in_the_unit_of_the_labels(tiny_bert, tmp_path, merges):
    from transformers import AutoConfig, BertModel

    base = tmp_path / "base"
    shutil.copytree(tiny_bert, base)
    BertModel(AutoConfig.from_pretrained(tiny_bert)).save_pretrained(base)  # without a head
    for name, count in {"train": 40, "validation": 10, "test": 10}.items():
        write_csv(tmp_path / f"{name}.csv", rated(count, 0), ("text", "year"))
    words = (
        "--task", "regression", "--label_column_name", "year", "--num_train_epochs", 1,
        "--lora_r", 2, "--mixed_precision", "bf16", "--no-baseline",
        *([] if merges else ["--no-merge_lora"]),
    )  # fmt: skip
    done = succeeded(call_here(CLASSIFY, *text_settings(tmp_path, base, tmp_path / "run"), *words))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    clients = record["served_back"]["clients"]
    assert [each["asked"] == each["equal"] > 0 for each in clients] == [True, True], done.stdout
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert 'id2label=dict(enumerate(names)), problem_type="regression"' in card
