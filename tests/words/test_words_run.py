"""Words with tags: from a CoNLL file to the report, comparison, `ampft predict` and a pipeline."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from running import BIN, CLASSIFY, Finished, call_here, printed, succeeded, write_csv
from tiny_words import TAGS, tiny_sentences, write_sentences

import ampft
from ampft.decision import entities
from ampft.runs.finished import FinishedRun
from ampft.runs.predictions import read_predictions

pytestmark = pytest.mark.slow

MODES = ("fp32", "bf16", "fp16")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for seed, (name, count) in enumerate({"train": 160, "validation": 30, "test": 40}.items()):
        write_sentences(folder / f"{name}.conll", count, seed=seed)
    return folder


@pytest.fixture(scope="module")
def runs(files, tiny_bert, tmp_path_factory):
    """A run in each mode; some sentences have more than one window."""
    root, finished = tmp_path_factory.mktemp("runs"), {}
    for mode in MODES:
        settings = {
            **{
                f"{split}_file": files / f"{split}.conll"
                for split in ("train", "validation", "test")
            },
            **{"model_name_or_path": tiny_bert, "output_dir": root / mode, "mixed_precision": mode},
            **{"max_seq_length": 20, "stride": 6, "learning_rate": 8e-3, "num_train_epochs": 5},
            **{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        done = succeeded(call_here(CLASSIFY, *words, "--use_cpu", "--cpu_threads", 1))
        finished[mode] = Finished(root / mode, done.stdout, done.stderr)
    return finished


@pytest.mark.parametrize("mode", MODES)
def test_it_learns_and_reports(runs, mode):
    run = runs[mode]
    report = run.report
    assert report["micro_f1"] > 0.8
    assert report["accuracy"] == report["token_accuracy"] > 0.9
    assert 0 < report["macro_f1"] <= 1
    assert report["types"] == ["LOC", "PER"]
    assert run.record["best"]["metric"] == "micro_f1"
    assert f"micro F1 {report['micro_f1']:.4f}" in run.stdout.splitlines()[-1]
    data = printed(run.stdout, "data")
    assert "Task tokens, found from the columns" in data
    assert "The tags follow BIO" in data
    assert "sentences are longer than 20 tokens and split into" in data
    assert "padding-free path" in printed(run.stdout, "model")
    methods = {each["name"]: each for each in run.record["simple_methods"]}
    assert list(methods) == ["frozen encoder + regression", "class frequencies"]
    assert methods["frozen encoder + regression"]["metrics"]["token_accuracy"] > 0.5
    assert run.record["warnings"] == {}


def test_the_predictions_file_has_the_metrics_of_the_report(runs):
    run = runs["fp32"]
    outcome = read_predictions(run.folder / "predictions.parquet")
    assert outcome.metrics()["micro_f1"] == run.report["micro_f1"]
    assert outcome.report().metrics()["log_loss"] == run.report["log_loss"]
    rows = pq.read_table(run.folder / "predictions.parquet").to_pylist()
    assert all(len(row["text"].split()) == len(row["prediction"]) for row in rows)
    assert rows[0]["file_line"] == 1
    card = (run.folder / "README.md").read_text()
    assert 'pipeline("token-classification"' in card
    assert 'classify("a text", aggregation_strategy="first")' in card


def predicted(run, *words):
    return call_here(BIN / "ampft", "predict", "--model", run.folder, *words)


def test_predict_gives_the_predictions_of_the_report(runs, files, tmp_path):
    run = runs["fp32"]
    out = tmp_path / "predicted.jsonl"
    done = succeeded(predicted(run, files / "test.conll", "--output_file", out))
    assert f"{run.report['token_accuracy']:.4f}" in done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    stored = pq.read_table(run.folder / "predictions.parquet").to_pylist()
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in stored]
    for row in rows:
        text = " ".join(row["tokens"])
        assert [text[e["start"] : e["end"]] for e in row["entities"]] == [
            e["text"] for e in row["entities"]
        ]
        expected = [
            (e[0], " ".join(row["tokens"][e[1] : e[2]])) for e in entities(row["prediction"])
        ]
        assert [(e["label"], e["text"]) for e in row["entities"]] == expected
    tagged = tmp_path / "predicted.conll"
    succeeded(predicted(run, files / "test.conll", "--output_file", tagged))
    blocks = tagged.read_text().strip().split("\n\n")
    assert [[line.split("\t")[1] for line in block.splitlines()] for block in blocks] == [
        row["prediction"] for row in stored
    ]


def test_predict_finds_entities_in_a_text(runs):
    text = "w5 w0 w6 w2, w7."
    frame = FinishedRun(runs["fp32"].folder).predict([text, "w5 w6"])
    found = [(e["label"], text[e["start"] : e["end"]]) for e in frame["entities"][0]]
    assert found == [("LOC", "w0"), ("PER", "w2")]
    assert frame["words"][0] == ["w5", "w0", "w6", "w2", ",", "w7", "."]
    assert frame["entities"][1] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", "a", "--top_k", 2), "--top_k has no effect on words, which have a class each"),
        (("--text", " "), "--text: received ' '"),
    ],
)
def test_predict_refuses(runs, words, message):
    done = predicted(runs["fp32"], *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_pipeline_of_transformers_gives_the_same_entities(runs):
    from transformers import pipeline

    run = runs["fp32"]
    classify = pipeline(
        "token-classification", model=str(run.folder), device="cpu", aggregation_strategy="first"
    )
    rows = pq.read_table(run.folder / "predictions.parquet").to_pylist()
    # The pipeline cuts long texts, and takes parts of words with punctuation for words.
    rows = [row for row in rows if len(row["label"]) <= 18 and "-" not in row["text"]]
    assert len(rows) > 2
    compared = 0
    for row in rows:
        found = [
            (entity["entity_group"], row["text"][entity["start"] : entity["end"]])
            for entity in classify(row["text"])
        ]
        words = row["text"].split()
        expected = [(e[0], " ".join(words[e[1] : e[2]])) for e in entities(row["prediction"])]
        assert found == expected
        compared += len(found)
    assert compared > 3
    probabilities = np.array(rows[0]["probabilities"]).reshape(len(rows[0]["label"]), len(TAGS))
    raw = pipeline("token-classification", model=str(run.folder), device="cpu", ignore_labels=[])
    scores = [token["score"] for token in raw(rows[0]["text"])]
    np.testing.assert_allclose(scores, probabilities.max(axis=1), atol=1e-5)


def test_few_sentences_have_enough_steps_by_default(tiny_bert, tmp_path):
    """Their three epochs left an F1 near 0: benchmarks/LOG.md, "The rate and the length ..."."""
    sentences = [
        {"tokens": tokens, "ner_tags": [TAGS[tag] for tag in tags]}
        for tokens, tags in zip(*tiny_sentences(40).values(), strict=True)
    ]
    run = ampft.finetune(
        sentences, model_name_or_path=str(tiny_bert), output_dir=str(tmp_path / "run"),
        max_seq_length=20, max_train_steps=1, baseline=False, serve_back=False, use_cpu=True,
    )  # fmt: skip
    assert run.record.arguments["num_train_epochs"] == 16


def test_long_texts_are_predicted_as_they_were_trained(files, tiny_bert, tmp_path):
    """`ampft predict` pools the windows of a text as the evaluation does."""
    texts = [" ".join(f"w{(i * j) % 12}" for j in range(5 + i % 30)) for i in range(60)]
    table = [(text, "ab"[index % 2]) for index, text in enumerate(texts)]
    write_csv(tmp_path / "texts.csv", table, ("text", "label"))
    settings = {
        **{"train_file": tmp_path / "texts.csv", "test_file": tmp_path / "texts.csv"},
        **{"model_name_or_path": tiny_bert, "output_dir": tmp_path / "run", "max_seq_length": 16},
        **{"long_text": "windows", "stride": 5, "max_train_steps": 3},
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    done = succeeded(call_here(CLASSIFY, *words, "--use_cpu", "--cpu_threads", 1))
    assert "the logits of a text are the mean over its" in printed(done.stdout, "data")
    stored = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pydict()
    found = FinishedRun(tmp_path / "run").predict(stored["text"], all_probabilities=True)
    expected = np.array(stored["probabilities"])
    np.testing.assert_allclose(found[["probability_a", "probability_b"]], expected, atol=1e-5)
    assert expected[:, 0].std() > 0.01  # texts differ
