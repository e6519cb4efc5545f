"""Commands that only evaluate: the model as it is, with the report and the record of a run."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from running import (
    BIN,
    CLASSIFY,
    Finished,
    call,
    call_here,
    file_names,
    printed,
    record_of,
    succeeded,
    text_settings,
)
from safetensors.torch import load_file

from ampft.models.adapters import merge_adapters
from ampft.models.pretrained import load_saved

pytestmark = pytest.mark.slow


def trained(files, tiny_model, run_once, name: str, *more: object) -> Finished:
    words = [*text_settings(files, tiny_model, Path("folder"))]
    words = [word for word in words if word != "folder"]
    words.remove("--output_dir")
    return run_once(name, lambda folder: call_here(CLASSIFY, *words, "--output_dir", folder, *more))


@pytest.fixture(scope="module")
def run(files, tiny_model, run_once) -> Finished:
    return trained(files, tiny_model, run_once, "trained")


def evaluate(model: Path, output: Path, *words: object, **more):
    common = ("--model_name_or_path", model, "--output_dir", output, "--cpu_threads", 1)
    return call_here(BIN / "ampft", "train", *common, "--use_cpu", *words, **more)


def assert_same_weights(first: Path, second: Path) -> None:
    a, b = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def sentences(path: Path) -> tuple[list[str], list[str]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def pipeline_labels(model: Path, texts: list[str]) -> list[str]:
    classify = transformers.pipeline("text-classification", model=str(model), device="cpu")
    return [answer["label"] for answer in classify(texts, truncation=True)]


def rewritten(path: Path, target: Path, names: dict[str, object]) -> Path:
    texts, labels = sentences(path)
    lines = [["text", "label"], *([t, names[each]] for t, each in zip(texts, labels, strict=True))]
    with target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    return target


def plain_copy(model: Path, folder: Path, labels: list[str] | None) -> Path:
    """Save the model as a stranger would: only what transformers writes, with other names."""
    copy = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    if labels is None:
        labels = [f"LABEL_{index}" for index in range(copy.config.num_labels)]
    copy.config.id2label = dict(enumerate(labels))
    copy.config.label2id = {name: index for index, name in enumerate(labels)}
    copy.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def test_both_splits_are_evaluated_as_after_the_training(run, files, tmp_path):
    named = [f"--{split}_file={files / split}.csv" for split in ("train", "validation", "test")]
    done = succeeded(
        evaluate(
            run.folder, tmp_path / "out", *named, "--do_eval", "--do_predict", "--learning_rate",
            "1e-4", "--num_train_epochs", "1",
        )
    )  # fmt: skip
    result = Finished(tmp_path / "out", done.stdout, done.stderr)
    assert_same_weights(run.folder, result.folder)
    assert result.predictions["prediction"] == run.predictions["prediction"]
    np.testing.assert_allclose(
        result.predictions["confidence"], run.predictions["confidence"], atol=1e-6
    )
    assert file_names(result.folder) == [n for n in file_names(run.folder) if n in (
        "README.md", "config.json", "decision.json", "history.jsonl", "model.safetensors",
        "predictions.parquet", "report.json", "report.txt", "run.json", "tokenizer.json",
        "tokenizer_config.json",
    )]  # fmt: skip
    record = result.record
    assert (record["status"], record["steps"]["total"]) == ("finished", 0)
    assert record["data"]["examples"] == {"train": 140, "validation": 30, "test": 45}
    (validation,) = record["validations"]
    last = run.record["validations"][-1]["metrics"]
    if run.record["best"]["step"] == run.record["validations"][-1]["step"]:
        assert validation["metrics"]["accuracy"] == last["accuracy"]
    assert printed(done.stdout, "unused").startswith("--learning_rate, --num_train_epochs")
    shown = succeeded(call_here(BIN / "ampft", "report", result.folder)).stdout
    assert "none: the model was evaluated as it is" in shown
    assert "fine-tuned" not in (result.folder / "README.md").read_text().split("## Results")[0]


def test_only_the_validation_split_without_training_rows(run, files, tmp_path):
    done = succeeded(
        evaluate(
            run.folder, tmp_path / "out", "--validation_file", files / "validation.csv",
            "--test_file", files / "test.csv", "--do_eval",
        )
    )  # fmt: skip
    texts, labels = sentences(files / "validation.csv")
    result = Finished(tmp_path / "out", done.stdout, done.stderr)
    assert result.report["split"] == "validation"
    assert result.predictions["prediction"] == pipeline_labels(run.folder, texts)
    accuracy = np.mean(np.array(labels) == result.predictions["prediction"])
    assert result.report["accuracy"] == pytest.approx(accuracy)
    assert result.record["metrics"]["selected"] is False


def test_the_test_split_takes_the_place_of_validation(run, files, tmp_path):
    done = succeeded(
        evaluate(run.folder, tmp_path / "out", "--test_file", files / "test.csv", "--do_eval")
    )
    assert "the test split is evaluated in its place" in " ".join(done.stdout.split())
    assert record_of(tmp_path / "out")["data"]["examples"]["validation"] == 45


@pytest.mark.parametrize("case", ["reversed", "case", "unnamed", "numbers", "subset"])
def test_labels_are_found_in_those_of_the_model(case, run, files, tmp_path):
    names = ["fruit", "metal", "river"]
    file, model = files / "validation.csv", run.folder
    if case == "reversed":  # outputs in another order than the sorted labels of the data
        model = plain_copy(run.folder, tmp_path / "model", ["x", "m", "a"])
        file = rewritten(file, tmp_path / "a.csv", dict(zip(names, ["x", "m", "a"], strict=True)))
    elif case == "case":
        file = rewritten(file, tmp_path / "a.csv", {name: name.upper() for name in names})
    elif case == "unnamed":
        model = plain_copy(run.folder, tmp_path / "model", None)
    elif case == "numbers":
        file = rewritten(file, tmp_path / "a.csv", {name: i for i, name in enumerate(names)})
    else:
        lines = file.read_text().splitlines()
        (tmp_path / "a.csv").write_text("\n".join(x for x in lines if not x.endswith("metal")))
        file = tmp_path / "a.csv"
    out = tmp_path / "out"
    done = evaluate(model, out, "--validation_file", file, "--do_eval")
    result = Finished(out, succeeded(done).stdout, done.stderr)
    assert_same_weights(run.folder, out)
    texts, _ = sentences(file)
    assert result.predictions["prediction"] == pipeline_labels(model, texts)
    expected = pipeline_labels(run.folder, sentences(files / "validation.csv")[0])
    _, truth = sentences(files / "validation.csv")
    kept = [
        (e, t) for e, t in zip(expected, truth, strict=True) if case != "subset" or t != "metal"
    ]
    accuracy = np.mean([e == t for e, t in kept])
    assert result.report["accuracy"] == pytest.approx(accuracy)


def test_a_folder_of_adapters(files, tiny_model, run_once, tmp_path):
    pytest.importorskip("peft")
    run = trained(files, tiny_model, run_once, "adapters", "--lora_r", "2", "--no-merge_lora")
    assert not (run.folder / "model.safetensors").exists()
    out = tmp_path / "out"
    done = succeeded(evaluate(run.folder, out, "--test_file", files / "test.csv", "--do_predict"))
    result = Finished(out, done.stdout, done.stderr)
    assert result.predictions["prediction"] == run.predictions["prediction"]
    merged = load_saved(transformers.AutoModelForSequenceClassification, str(run.folder))
    merge_adapters(merged)
    whole = load_file(out / "model.safetensors")
    for name, weight in merged.state_dict().items():
        assert torch.equal(weight, whole[name]), name


def test_fitted_decisions_stay(files, tiny_model, run_once, tmp_path):
    run = trained(files, tiny_model, run_once, "calibrated", "--calibrate")
    out = tmp_path / "out"
    succeeded(evaluate(run.folder, out, "--test_file", files / "test.csv", "--do_predict"))
    assert (out / "decision.json").read_text() == (run.folder / "decision.json").read_text()
    result = Finished(out, "", "")
    np.testing.assert_allclose(
        result.predictions["confidence"], run.predictions["confidence"], atol=1e-6
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--do_eval", "--train_file", "{files}/train.csv"], "there are no validation rows"),
        (["--do_predict", "--train_file", "{files}/train.csv"], "Add --test_file"),
        (["--do_eval", "--validation_file", "{other}"], "and {other} has others: 'tree'"),
        (["--do_eval"], "the data are missing"),
        (
            ["--do_eval", "--validation_file", "{files}/test.csv", "--task", "regression"],
            "needs finite numbers",
        ),
        (
            ["--do_eval", "--validation_file", "{numbers}", "--task", "regression"],
            "Add --task text",
        ),
        (
            ["--do_eval", "--validation_file", "{files}/test.csv", "--task", "multi-label"],
            "Add --task text",
        ),
        (
            ["--do_eval", "--validation_file", "{files}/test.csv", "--mixed_precision=bf16-true"],
            "stores all weights in 16 bits",
        ),
    ],
)
def test_refusals_write_nothing(words, message, run, files, tmp_path):
    names = dict.fromkeys(("fruit", "metal"), "fruit")
    other = rewritten(files / "test.csv", tmp_path / "other.csv", {**names, "river": "tree"})
    numbers = rewritten(
        files / "test.csv", tmp_path / "n.csv", {"fruit": 0.5, "metal": 1.5, "river": 2.5}
    )
    places = {"files": files, "other": other, "numbers": numbers}
    done = evaluate(run.folder, tmp_path / "out", *(word.format(**places) for word in words))
    assert done.returncode == 2
    assert message.format(**places) in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_head_is_refused(tiny_model, files, tmp_path):
    done = evaluate(
        tiny_model, tmp_path / "out", "--validation_file", files / "test.csv", "--do_eval"
    )
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


def test_the_model_is_not_replaced_by_its_results(run, files, tmp_path):
    copy = shutil.copytree(run.folder, tmp_path / "model")
    before = (copy / "model.safetensors").read_bytes()
    done = evaluate(
        copy, copy, "--validation_file", files / "test.csv", "--do_eval", "--overwrite_output_dir"
    )
    assert done.returncode == 2
    assert "would replace the model" in done.stderr
    assert (copy / "model.safetensors").read_bytes() == before


def test_held_out_rows_if_they_were_asked_for(run, files, tmp_path):
    out = tmp_path / "out"
    succeeded(
        evaluate(
            run.folder, out, "--train_file", files / "train.csv", "--do_eval",
            "--train_val_split", "0.25", "--max_eval_samples", "20",
        )
    )  # fmt: skip
    assert record_of(out)["data"]["examples"] == {"train": 105, "validation": 20}


def without_labels(file: Path, target: Path, case: str) -> Path:
    """Write a test file without labels: in no row, in some, or with the mark of GLUE."""
    texts, labels = sentences(file)
    if case == "no column":
        target.write_text("text\n" + "\n".join(texts) + "\n")
        return target
    new = [("-1" if case == "mark" else "") if i % 3 else x for i, x in enumerate(labels)]
    rows = zip(texts, new, strict=True)
    target.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return target


@pytest.mark.parametrize("case", ["no column", "some empty", "mark"])
def test_test_rows_without_labels_are_predicted(case, run, files, tmp_path):
    out, file = tmp_path / "out", without_labels(files / "test.csv", tmp_path / "u.csv", case)
    done = succeeded(evaluate(run.folder, out, "--test_file", file, "--do_predict"))
    assert "so all rows are predicted" in " ".join(done.stdout.split())
    assert file_names(out) == ["test_predictions.parquet"]
    table = pq.read_table(out / "test_predictions.parquet").to_pydict()
    assert table["prediction"] == run.predictions["prediction"]
    assert table["text"] == sentences(files / "test.csv")[0]
    again = ("--test_file", file, "--do_predict", "--overwrite_output_dir")
    succeeded(evaluate(run.folder, out, *again))
    refused = evaluate(
        run.folder, run.folder.parent / "none", *again[:3], "--max_predict_samples=3"
    )
    assert refused.returncode == 2
    assert "Remove the flag" in refused.stderr


def test_rows_without_labels_are_left_out_if_the_command_says_so(run, files, tmp_path):
    out, file = (
        tmp_path / "out",
        without_labels(files / "test.csv", tmp_path / "u.csv", "some empty"),
    )
    succeeded(
        evaluate(run.folder, out, "--test_file", file, "--do_predict", "--drop_missing_labels")
    )
    labelled = len(range(0, len(sentences(file)[0]), 3))
    assert record_of(out)["data"]["examples"]["test"] == labelled
    assert pq.read_table(out / "predictions.parquet").num_rows == labelled
    assert_same_weights(run.folder, out)


def test_rows_without_labels_of_a_model_that_ampft_did_not_train(run, files, tmp_path):
    model = plain_copy(run.folder, tmp_path / "model", ["fruit", "metal", "river"])
    out, file = (
        tmp_path / "out",
        without_labels(files / "test.csv", tmp_path / "u.csv", "no column"),
    )
    words = ("--validation_file", files / "validation.csv", "--test_file", file, "--do_eval")
    done = succeeded(evaluate(model, out, *words, "--do_predict"))
    assert_same_weights(run.folder, out)
    assert record_of(out)["metrics"]["split"] == "validation"
    table = pq.read_table(out / "test_predictions.parquet").to_pydict()
    assert table["prediction"] == pipeline_labels(model, sentences(files / "test.csv")[0])
    assert "so all rows are predicted without a report" in " ".join(done.stdout.split())
    refused = evaluate(model, tmp_path / "none", "--test_file", file, "--do_predict")
    assert refused.returncode == 2
    assert "`ampft train --do_eval --do_predict` predicts them after such an" in refused.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("pairs", [False, True])
def test_a_model_of_single_texts_is_not_evaluated_on_pairs_nor_the_reverse(
    pairs, run, files, tiny_model, run_once, tmp_path
):
    folder = with_more_columns(files, tmp_path / "files")
    two = ("--text_column_names", "title,body", "--label_column_name", "kind")
    one = ("--text_column_names", "title", "--label_column_name", "kind")
    if pairs:
        words = [w for w in text_settings(folder, tiny_model, Path("run")) if w != "run"]
        words.remove("--output_dir")
        more = (*two, "--max_train_steps", 2, "--no-baseline")
        run = run_once("pairs", lambda at: call_here(CLASSIFY, *words, "--output_dir", at, *more))
    data = ("--validation_file", folder / "validation.csv", "--do_eval")
    done = evaluate(run.folder, tmp_path / "out", *data, *(one if pairs else two))
    assert done.returncode == 2
    trained = "pairs of texts (title, body)" if pairs else "single texts (text)"
    assert f"the model was trained on {trained}, and " in done.stderr
    assert not (tmp_path / "out").exists()
    succeeded(evaluate(run.folder, tmp_path / "out", *data, *(two if pairs else one)))


def test_rows_that_are_evaluated_are_not_said_to_leak(run, files, tmp_path):
    out, data = tmp_path / "out", ("--validation_file", files / "validation.csv", "--do_eval")
    done = succeeded(evaluate(run.folder, out, *data, "--fail_on_leak"))
    assert "have inputs that train has too" not in " ".join(done.stdout.split())
    train = ("--train_file", files / "validation.csv", "--test_file", files / "test.csv")
    copied = rewritten(files / "test.csv", tmp_path / "t.csv", dict.fromkeys(
        ("fruit", "metal", "river"), "fruit"))  # fmt: skip
    leaks = evaluate(run.folder, tmp_path / "no", "--train_file", copied, *train[2:],
                     "--do_predict", "--fail_on_leak")  # fmt: skip
    assert leaks.returncode == 2
    assert "have inputs that train has too" in leaks.stderr


def test_the_file_that_is_refused_is_named_by_its_flag(run, tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    done = evaluate(
        run.folder, tmp_path / "out", "--validation_file", tmp_path / "a.txt", "--do_eval"
    )
    assert done.returncode == 2
    assert "--validation_file: received" in done.stderr


@pytest.mark.parametrize("share", ["0.1", "0.25"])
def test_a_share_is_held_out_if_the_data_have_no_validation_split(share, run, files, tmp_path):
    words = ("--train_file", files / "train.csv", "--do_eval", "--train_val_split", share)
    succeeded(evaluate(run.folder, tmp_path / "out", *words))
    assert record_of(tmp_path / "out")["data"]["examples"]["validation"] == 140 * float(share)


@pytest.mark.parametrize("case", ["no column", "some empty"])
def test_validation_rows_beside_test_rows_without_labels(case, run, files, tmp_path):
    out, file = tmp_path / "out", without_labels(files / "test.csv", tmp_path / "u.csv", case)
    words = ("--validation_file", files / "validation.csv", "--test_file", file)
    words = (*words, "--do_eval", "--do_predict")
    succeeded(evaluate(run.folder, out, *words))
    succeeded(evaluate(run.folder, out, *words, "--overwrite_output_dir"))
    record = record_of(out)
    assert (record["metrics"]["split"], record["validations"]) == ("validation", [])
    table = pq.read_table(out / "test_predictions.parquet").to_pydict()
    assert table["prediction"] == run.predictions["prediction"]


def test_labelled_test_rows_are_reported_on(run, files, tmp_path):
    out = tmp_path / "out"
    succeeded(evaluate(run.folder, out, "--test_file", files / "test.csv", "--do_predict"))
    assert not (out / "test_predictions.parquet").exists()
    assert record_of(out)["metrics"] == run.record["metrics"]


def test_a_recipe_names_the_command_for_rows_without_labels(run, files, tmp_path):
    out, file = (
        tmp_path / "out",
        without_labels(files / "test.csv", tmp_path / "u.csv", "no column"),
    )
    words = ("--model_name_or_path", run.folder, "--test_file", file, "--do_predict")
    done = call_here(CLASSIFY, *words, "--output_dir", out, "--use_cpu")
    assert done.returncode == 2
    command = f"ampft predict --model {run.folder} {file}"
    assert done.stderr.rstrip().endswith(f"To predict rows without labels: {command}")
    assert not out.exists()


def test_the_processor_is_that_of_the_command_for_rows_without_labels(run, files, tmp_path):
    out, file = tmp_path / "out", without_labels(files / "test.csv", tmp_path / "u.csv", "mark")
    words = ("--test_file", file, "--do_predict", "--output_dir", out, "--cpu_threads", "0")
    done = call_here(BIN / "ampft", "train", "--model_name_or_path", run.folder, *words)
    assert done.returncode == 2
    assert "--cpu_threads: received 0; it must be at least 1" in done.stderr
    assert not out.exists()


def with_more_columns(files: Path, folder: Path) -> Path:
    """Write the files with a text of two columns, a number, and misleading usual names."""
    folder.mkdir()
    for name in ("train", "validation", "test"):
        texts, labels = sentences(files / f"{name}.csv")
        lines = [
            f"{text.split()[0]},{' '.join(text.split()[1:])},a red,{row % 5},{row % 2},{label}\n"
            for row, (text, label) in enumerate(zip(texts, labels, strict=True))
        ]
        (folder / f"{name}.csv").write_text("title,body,text,age,label,kind\n" + "".join(lines))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["--max_seq_length", "4"],
        ["--max_seq_length", "5", "--long_text", "windows", "--stride", "1"],
        ["--pooling", "mean", "--max_seq_length", "4"],
        [*("--text_column_names", "title+body", "--text_column_delimiter", " of ")],
        [*("--text_column_names", "title,body", "--max_seq_length", "6")],
        [*("--text_column_names", "body", "--feature_columns", "age")],
    ],
    ids=["length", "windows", "pooling", "delimiter", "pair", "features"],
)
def test_texts_are_read_as_in_the_training(words, files, tiny_model, tmp_path):
    if "--text_column_names" in words:
        files = with_more_columns(files, tmp_path / "files")
        words = [*words, "--label_column_name", "kind"]
    start, out = tmp_path / "run", tmp_path / "out"
    settings = (*text_settings(files, tiny_model, start), "--max_train_steps", 3, "--no-baseline")
    succeeded(call_here(CLASSIFY, *settings, *words))
    data = ("--validation_file", files / "validation.csv", "--test_file", files / "test.csv")
    succeeded(evaluate(start, out, *data, "--do_eval", "--do_predict"))
    assert record_of(out)["metrics"] == record_of(start)["metrics"]
    assert (out / "decision.json").read_text() == (start / "decision.json").read_text()


def test_training_flags_of_both_kinds_train(files, tiny_model, tmp_path):
    out = tmp_path / "out"
    words = text_settings(files, tiny_model, out)
    done = succeeded(call_here(CLASSIFY, *words, "--do_train", "--do_eval", "--max_train_steps", 2))
    assert record_of(out)["steps"]["applied"] == 2
    assert "--evaluate_only" not in done.stdout


@pytest.mark.parametrize("door", ["recipe", "accelerate", "torchrun"])
def test_other_doors(door, run, files, tmp_path):
    out = tmp_path / "out"
    start = {
        "recipe": ["python", CLASSIFY],
        "accelerate": [BIN / "accelerate", "launch", "--cpu", CLASSIFY],
        "torchrun": [BIN / "torchrun", "--nproc_per_node", "2", CLASSIFY],
    }[door]
    start[0] = BIN / "python" if start[0] == "python" else start[0]
    succeeded(
        call(
            *start, "--model_name_or_path", run.folder, "--test_file", files / "test.csv",
            "--do_predict", "--output_dir", out, "--use_cpu", "--cpu_threads", 1,
            warm=door == "recipe",
        )
    )  # fmt: skip
    assert_same_weights(run.folder, out)
    result = Finished(out, "", "")
    assert result.predictions["prediction"] == run.predictions["prediction"]
    assert result.record["topology"]["num_processes"] == (2 if door == "torchrun" else 1)


def test_in_python(run, files, tmp_path):
    import pandas as pd

    import ampft

    frame = pd.read_csv(files / "test.csv")
    result = ampft.finetune(
        validation=frame,
        model_name_or_path=str(run.folder),
        do_eval=True,
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        cpu_threads=1,
    )
    assert result.record.steps.total == 0
    assert list(result.predictions["prediction"]) == run.predictions["prediction"]
    assert json.loads((tmp_path / "out/run.json").read_text())["metrics"]["split"] == "validation"
