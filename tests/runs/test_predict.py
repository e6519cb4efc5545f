"""What `ampft predict` reads and writes: all columns, in order, in every format."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from test_predict_refusals import trained_on
from tiny_text import LABELS, write_contract
from transformers import AutoModelForImageClassification, ViTImageProcessorPil

import ampft
import ampft.runs.predict
from ampft.errors import InputError
from ampft.fast.packing.packed_attention import ATTENTION_NAME
from ampft.kinds.prediction import PredictedRows, PredictRequest, TrainingInfo
from ampft.kinds.rows import lines_as_table
from ampft.media.image_tensors import _small_vit
from ampft.runs.predict import opened_output, predict_file, predict_inputs
from ampft.runs.predictor import Predictor
from ampft.runs.record import DataPart
from ampft.words.tensors import sentence_of, sentence_output
from ampft.words.token_labels import TokenLabels

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

WORDS = [f"w{i} w{i % 3}" + " w5" * (i % 7) for i in range(20)]


@pytest.fixture
def folder(tiny_bert, tmp_path, monkeypatch):
    return trained_on(("text",), tiny_bert, tmp_path, monkeypatch)


@pytest.fixture
def pair_folder(tiny_bert, tmp_path, monkeypatch):
    return trained_on(("a", "b"), tiny_bert, tmp_path, monkeypatch)


def predict(folder, *files, **options) -> None:
    predict_file(str(folder), PredictRequest(files=[*map(str, files)], **options))


def table(capsys) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(capsys.readouterr().out))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [(f"id-{i}", text, LABELS[i % 3]) for i, text in enumerate(WORDS)]
    pd.DataFrame(rows, columns=["id", "Text ", "label"]).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_every_column_and_the_order_are_kept(folder, file, capsys):
    predict(folder, file, batch_size=3)
    together = table(capsys)
    assert list(together) == ["id", "Text ", "label", "prediction", "confidence"]
    assert list(together.id) == [f"id-{i}" for i in range(20)]
    assert list(together["Text "]) == WORDS
    predict(folder, file, batch_size=1)
    assert table(capsys).prediction.equals(together.prediction)


def test_probabilities(folder, file, capsys):
    predict(folder, file, top_k=2, all_probabilities=True)
    found = table(capsys)
    added = [f"probability_{name}" for name in LABELS]
    ranks = ["label_1", "probability_1", "label_2", "probability_2"]
    assert list(found)[3:] == ["prediction", "confidence", *ranks, *added]
    probabilities = found[added].to_numpy()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    order = np.argsort(-probabilities, axis=1)
    assert list(found.label_1) == [LABELS[i] for i in order[:, 0]] == list(found.prediction)
    assert list(found.label_2) == [LABELS[i] for i in order[:, 1]]
    assert np.allclose(found.probability_1, found.confidence)


@pytest.mark.slow
def test_scores(folder, file, capsys, tmp_path):
    predict(folder, file)
    captured = capsys.readouterr()
    found = pd.read_csv(io.StringIO(captured.out))
    accuracy = (found.label == found.prediction).mean()
    assert captured.err.startswith("labels from column 'label'\nclassification report, file, 20 ex")
    assert f"accuracy                          {accuracy:.3f}        20" in captured.err
    changed = found[["Text ", "label"]].rename(columns={"Text ": "text", "label": "Verdict"})
    changed.loc[0, "Verdict"] = "unknown"
    changed.loc[1, "Verdict"] = None
    changed.to_csv(tmp_path / "other.csv", index=False)
    predict(folder, tmp_path / "other.csv")
    assert capsys.readouterr().err == ""
    predict(folder, tmp_path / "other.csv", label_column_name="Verdict")
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("1 row with labels that the model does not know left out; 1 row "
                          "with no label left out")  # fmt: skip
    changed["Verdict"] = "x"
    changed.to_csv(tmp_path / "other.csv", index=False)
    predict(folder, tmp_path / "other.csv", label_column_name="Verdict")
    assert capsys.readouterr().err.startswith("not scored: no label in column")
    changed.head(0).to_csv(tmp_path / "other.csv", index=False)
    predict(folder, tmp_path / "other.csv", label_column_name="Verdict")
    assert capsys.readouterr().err.startswith("not scored: no row has a label in column 'Verdict'")


@pytest.mark.slow
def test_parquet_and_json_lines(folder, file, tmp_path, capsys):
    frame = pd.read_csv(file).assign(number=range(20), share=1 / 3e4, nothing=None)
    frame.to_parquet(tmp_path / "rows.parquet")
    for name in ("out.parquet", "out.jsonl", "out.csv"):
        predict(folder, tmp_path / "rows.parquet", output_file=str(tmp_path / name))
    assert "wrote      " in capsys.readouterr().out
    parquet = pd.read_parquet(tmp_path / "out.parquet")
    assert parquet.number.tolist() == list(range(20))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["confidence"] for line in lines] == parquet.confidence.tolist()
    assert [line["number"] for line in lines] == list(range(20))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [row["prediction"] for row in rows] == parquet.prediction.tolist()
    assert rows[0]["nothing"] == ""
    assert float(rows[0]["share"]) == 1 / 3e4


def not_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_numbers_that_json_does_not_have_are_null(folder, tmp_path):
    day = datetime(2026, 1, 2, tzinfo=UTC)
    cells = {
        "share": [math.nan, math.inf, 0.5],
        "more": [[1.0, math.nan], [0.25], None],
        "inner": [{"x": -math.inf}, {"x": 1.0}, {"x": None}],
        "days": [[day], [], [None]],
    }
    columns = {"text": ["w1", "w2", "w3"], **cells}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    for name in ("out.jsonl", "out.csv"):
        predict(folder, tmp_path / "rows.parquet", output_file=str(tmp_path / name))
    expected = {
        "share": [None, None, 0.5],
        "more": [[1.0, None], [0.25], None],
        "inner": [{"x": None}, {"x": 1.0}, {"x": None}],
        "days": [[str(day)], [], [None]],
    }
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=not_json) for line in lines]
    assert {name: [row[name] for row in rows] for name in cells} == expected
    table = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    for name in ("more", "inner", "days"):
        found = [json.loads(row[name] or "null", parse_constant=not_json) for row in table]
        assert found == expected[name]


def test_its_own_output_is_predicted_again(folder, file, tmp_path, capsys):
    predict(folder, file, output_file=str(tmp_path / "once.csv"))
    capsys.readouterr()
    predict(folder, tmp_path / "once.csv")
    found = table(capsys)
    assert list(found)[-2:] == ["prediction_2", "confidence_2"]
    assert found.prediction.equals(found.prediction_2)


def test_a_file_is_replaced_only_if_that_is_asked_for(folder, file, tmp_path):
    output = tmp_path / "mine.csv"
    output.write_text("mine")
    with pytest.raises(InputError, match=r"mine\.csv: this file exists.*add --overwrite"):
        predict(folder, file, output_file=str(output))
    assert output.read_text() == "mine"
    predict(folder, file, output_file=str(output), overwrite=True)
    assert output.read_text().startswith("id,")
    with pytest.raises(InputError, match="--overwrite has no effect without --output_file"):
        predict(folder, file, overwrite=True)


def test_texts(folder, capsys):
    predict(folder, texts=["w1 w2", "w3"])
    assert list(table(capsys).text) == ["w1 w2", "w3"]


def test_pairs_and_standard_input(pair_folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("w1\tw2\n\nw3\tw4\n"))
    predict(pair_folder, "-")
    found = table(capsys)
    assert found[["a", "b"]].fillna("").values.tolist() == [["w1", "w2"], ["", ""], ["w3", "w4"]]
    assert found.prediction.isna().tolist() == [False, True, False]
    monkeypatch.setattr(sys, "stdin", io.StringIO("w3\t\n"))
    with pytest.raises(InputError, match="standard input, line 1: nothing in column 'a', 'b'"):
        predict(pair_folder, "-")
    predict(pair_folder, texts=["w1", "w2"])
    assert table(capsys)[["a", "b"]].values.tolist() == [["w1", "w2"]]


@pytest.mark.parametrize("lines", ["\n", "w1\n \n\nw2", "\n\nw1\n"])
def test_each_line_of_standard_input_is_a_row(folder, capsys, monkeypatch, lines):
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    predict(folder, "-", top_k=2, all_probabilities=True)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["text"] for row in rows] == [line.strip() for line in lines.splitlines()]
    for row in rows:
        assert {bool(value) for value in row.values()} == {bool(row["text"])}


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (["text"], "id,text,label"), (["text"], '"text";"label"'), (["text"], "text"),
        (["text"], '{"text": "w1", "label": 0}'), (["a", "b"], "a\tb"), (["a", "b"], "b,a"),
    ],
)  # fmt: skip
def test_a_table_in_standard_input_is_no_text(monkeypatch, columns, line):
    """`ampft predict - < FILE.csv` would answer its header and its commas."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"\n{line}\nw1\tw2\n"))
    with pytest.raises(InputError, match=r"line 2: .* is a line of a table"):
        lines_as_table(columns)


@pytest.mark.parametrize("line", ["this text, and a comma", "text and more", "{w1}", "{1: 2}", "a"])
def test_a_text_with_commas_or_braces_is_a_text(monkeypatch, line):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line}\n"))
    assert list(lines_as_table(["text"]).read(["text"])) == [(1, [line])]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_must_be_text(monkeypatch, errors):
    def lines(content):
        stream = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors=errors)
        monkeypatch.setattr(sys, "stdin", stream)
        return list(lines_as_table(["text"]).read(["text"]))

    assert lines("\ufeffcafé\n".encode()) == [(1, ["café"])]
    assert lines(b"10 %\r100 %\r\nw1\n") == [(1, ["10 %\r100 %"]), (2, ["w1"])]
    with pytest.raises(InputError, match="standard input: byte 0xe9 is not utf-8"):
        lines("w1\ncafé\n".encode("latin-1"))


@pytest.fixture
def image_folder(tmp_path, monkeypatch):
    names = ("dark", "light")
    arguments = {
        "id2label": dict(enumerate(names)),
        "label2id": {n: i for i, n in enumerate(names)},
    }
    torch.manual_seed(0)
    run = tmp_path / "image-run"
    AutoModelForImageClassification.from_config(_small_vit(8, arguments)).save_pretrained(run)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(run)
    write_contract(run, None, task="images", columns=("image",), names=names)
    record = SimpleNamespace(
        status="finished", task="images", label_names=names, arguments={}, files={},
        data=DataPart(name="x", kind="image", input_columns=("image",),
                      fingerprints={}, examples={}),
        model=SimpleNamespace(padding_free=None),
    )  # fmt: skip
    monkeypatch.setattr(ampft.runs.predict, "read_record", lambda folder: record)
    return run


def test_a_path_from_python(image_folder, tmp_path):
    path = tmp_path / "x.png"
    Image.new("RGB", (10, 12), (80, 40, 0)).save(path)
    request = PredictRequest(batch_size=4)
    one = predict_inputs(image_folder, path, request)
    assert one.equals(predict_inputs(image_folder, [str(path)], request))


def test_images(image_folder, tmp_path, capsys):
    photos = tmp_path / "photos"
    (photos / "inner").mkdir(parents=True)
    for number, path in enumerate(("b.png", "a.jpg", "inner/c.PNG")):
        Image.new("RGB", (10, 12), (80 * number, 40, 0)).save(photos / path)
    (photos / "notes.txt").write_text("not an image")
    (photos / "._b.png").write_text("not an image, but the metadata of one on macOS")
    predict(image_folder, photos)
    found = table(capsys)
    assert list(found.file) == [str(photos / n) for n in ("a.jpg", "b.png", "inner/c.PNG")]
    assert set(found.prediction) <= {"dark", "light"}
    predict(image_folder, photos / "b.png", photos / "a.jpg")
    assert list(table(capsys).confidence) == list(found.confidence)[1::-1]
    rows = [{"bytes": (photos / name).read_bytes(), "path": name} for name in ("b.png", "a.jpg")]
    pd.DataFrame({"image": rows}).to_parquet(tmp_path / "images.parquet")
    predict(image_folder, tmp_path / "images.parquet")
    again = table(capsys)
    assert list(again.image) == ["b.png", "a.jpg"]
    assert list(again.confidence) == list(found.confidence)[1::-1]


@pytest.mark.parametrize(
    ("files", "options", "match"),
    [
        ((), {}, r"^FILE or --text: received neither"),
        (("{file}",), {"texts": ["a"]}, r"^FILE or --text: received both"),
        (("{file}", "{file}"), {}, r"^FILE: received 2 files; give one"),
        (
            ("{folder}",),
            {},
            r"^FILE: .* is an image, a sound or a folder, and the model was trained on tex",
        ),
        (("{file}",), {"top_k": 4}, r"^--top_k: received 4; the model has 3 labels"),
        (("{file}",), {"label_column_name": "x"}, r"^--label_column_name: .* has no column 'x'"),
        (("{file}",), {"output_file": "no/such/x.csv"}, r"^--output_file no/such/x\.csv: its fold"),
    ],
)
def test_refused(files, options, match, folder, file):
    files = [name.format(file=file, folder=folder) for name in files]
    with pytest.raises(InputError, match=match):
        predict(folder, *files, **options)


def test_a_label_with_the_name_of_a_rank_is_not_written_in_its_place(tiny_bert, tmp_path):
    """With labels 1 to 3, the probability of label 1 stood in the column of the first rank."""
    rows = pd.DataFrame({"text": WORDS, "label": [1 + i % 3 for i in range(20)]})
    run = ampft.finetune(
        rows, validation=rows, test=rows, output_dir=tmp_path / "run", baseline=False,
        model_name_or_path=str(tiny_bert), max_train_steps=2, cpu_threads=1, serve_back=False,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"column probability_1 would be both .* Remove one"):
        run.predict(WORDS, top_k=2, all_probabilities=True)
    ranked, of_labels = run.predict(WORDS, top_k=2), run.predict(WORDS, all_probabilities=True)
    by_label = of_labels[[f"probability_{label}" for label in (1, 2, 3)]].to_numpy()
    assert ranked["probability_1"].tolist() == by_label.max(axis=1).tolist()


def test_a_row_without_image_is_named_and_the_others_are_answered(image_folder, tmp_path, capsys):
    Image.new("RGB", (10, 12), (80, 40, 0)).save(tmp_path / "x.png")
    (tmp_path / "y.png").write_bytes(b"no image")
    rows = ("x.png,dark", ",dark", "y.png,light", "z.png,light", "x.png,light")
    (tmp_path / "rows.csv").write_text("\n".join(["image,label", *rows]) + "\n")
    predict(image_folder, tmp_path / "rows.csv")
    captured = capsys.readouterr()
    found = pd.read_csv(io.StringIO(captured.out))
    assert found.prediction.isna().tolist() == [False, True, True, True, False]
    said = " ".join(captured.err.split())
    for line in ("line 3: no image in column", "line 4: ", "line 5: "):
        assert f"rows.csv, {line}" in said
    assert "classification report, file, 2 ex" in captured.err


def test_an_image_that_cannot_be_read(image_folder, tmp_path):
    (tmp_path / "x.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"x\.png: not a readable image \(not an image file"):
        predict(image_folder, tmp_path / "x.png")
    with pytest.raises(InputError, match=r"^--text: the model was trained on images"):
        predict(image_folder, texts=["a"])


@pytest.mark.slow
def test_joined_columns_are_joined_and_written_as_they_were(
    tiny_bert, tmp_path, monkeypatch, capsys
):
    folder = trained_on(("title+body",), tiny_bert, tmp_path, monkeypatch)
    rows = pd.DataFrame({"Body": ["w1", None, "w2"], "title": ["w0", "w5", "w3"], "n": [1, 2, 3]})
    rows.to_excel(tmp_path / "rows.xlsx", index=False)
    predict(folder, tmp_path / "rows.xlsx")
    parts = table(capsys)
    assert list(parts) == ["Body", "title", "n", "prediction", "confidence"]
    (tmp_path / "joined.csv").write_text("text\nw0 w1\nw5\nw3 w2\n", encoding="utf-8")
    predict(folder, tmp_path / "joined.csv", text_column_names="text")
    assert list(parts.confidence) == list(table(capsys).confidence)
    with pytest.raises(InputError, match="no column 'nothing'"):
        predict(folder, tmp_path / "rows.xlsx", text_column_names="title +nothing")


def test_tags_and_types_of_entities_may_contain_blanks():
    names = ("O", "B-work of art", "I-work of art")
    problem = TokenLabels.from_arguments(names, {})
    probabilities = np.empty(2, dtype=object)
    probabilities[:] = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[:1]]
    decoded = {"probabilities": probabilities}

    labels, confidence = zip(*problem.predicted(decoded), strict=True)
    predictions = PredictedRows(list(labels), list(confidence), decoded, names)
    trained = TrainingInfo(("tokens",), names, {}, several_labels=False)
    rows = [(sentence_of(words, trained),) for words in (["the", "Mona", "Lisa"], ["here"])]
    columns = sentence_output(PredictRequest(), None).columns(rows, predictions)
    assert columns["prediction"] == [["O", "B-work of art", "I-work of art"], ["O"]]
    assert [e["text"] for e in columns["entities"][0]] == ["Mona Lisa"]
    assert columns["entities"][1] == []


def test_probabilities_need_not_be_rounded():
    probabilities = np.array([[1 - 3e-7, 3e-7]], dtype=np.float32)
    predictions = PredictedRows(["a"], [1 - 3e-7], {"probabilities": probabilities}, ("a", "b"))
    rounded = predictions.columns(all_probabilities=True)
    assert (rounded["confidence"], rounded["probability_b"]) == ([1.0], [0.0])
    exact = predictions.columns(top_k=2, all_probabilities=True, decimals=None)
    assert exact["confidence"] == [1 - 3e-7]
    assert exact["probability_b"] == exact["probability_2"] == [float(np.float32(3e-7))]


@pytest.mark.parametrize("decimals", [2, 0, None])
def test_confidences_of_words_and_entities_have_the_decimals_that_were_asked_for(decimals):
    names = ("O", "B-person", "I-person")
    probabilities = np.array([[0.1234567, 0.8765433, 0], [0.7654321, 0.2345679, 0]], np.float32)
    predictions = PredictedRows(["-"], [0.0], {"probabilities": [probabilities]}, names)
    trained = TrainingInfo(("text",), names, {}, several_labels=False)
    rows = [(sentence_of(["Mona", "sat"], trained),)]
    request = PredictRequest(decimals=decimals)
    columns = sentence_output(request, None).columns(rows, predictions)
    least, best = map(float, (probabilities[1, 0], probabilities[0, 1]))
    expected = [value if decimals is None else round(value, decimals) for value in (least, best)]
    assert columns["confidence"] == expected[:1]
    assert columns["entities"][0][0]["confidence"] == expected[1]


def test_the_next_labels_are_the_most_probable_although_they_are_shown_as_0():
    probabilities = np.array([[1e-8, 4e-7, 3e-7, 1.0], [0.1, 0.1999998, 0.2000002, 0.5]], "f")
    predictions = PredictedRows(["d"] * 2, [1.0, 0.5], {"probabilities": probabilities}, (*"abcd",))
    columns = predictions.columns(top_k=3)
    assert columns["label_2"] == ["b", "c"]
    assert columns["probability_2"] == [0.0, 0.2]
    assert columns["label_3"] == ["c", "b"]


def test_numbers_keep_the_digits_of_float32_in_csv_and_probabilities_six_decimals(tmp_path):
    file = tmp_path / "out.csv"
    numbers = np.array([1.2345678e-7, -3e-12, 1990.25, 0.5, 123456789.0], np.float32)
    rows = [(*map(float, (value, round(0.25 * rank, 6))),) for rank, value in enumerate(numbers)]
    with opened_output(str(file), [], ["prediction", "confidence"]) as write:
        write(rows)
    table = pd.read_csv(file, dtype=str)
    assert (table["prediction"].astype(np.float32) == numbers).all()
    assert table["confidence"].tolist()[:2] == ["0.000000", "0.250000"]


@pytest.mark.parametrize(
    ("recorded", "attention"), [(None, ATTENTION_NAME), (True, ATTENTION_NAME), (False, "sdpa")]
)
def test_the_model_runs_padded_where_the_training_did(folder, recorded, attention):
    record = ampft.runs.predict.read_record(folder)
    record.model.padding_free = recorded
    assert (
        Predictor.of_run(folder, record, PredictRequest(batch_size=4)).config._attn_implementation
        == attention
    )


CELLS = {  # rows of which the second lacks an input, and what is said of it
    "text": ('{"text": "w1", "label": "ant"}', '{"text": " ", "label": "bee"}', "nothing in"),
    "a list": (
        '{"text": "w1", "label": "ant"}',
        '{"text": ["x"], "label": "bee"}',
        "column 'text'",
    ),
    "pair": (
        '{"a": "w1", "b": "w2", "label": "ant"}',
        '{"a": "w3", "b": "", "label": "bee"}',
        "nothing in",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_row_without_input_is_named_and_the_others_are_answered(
    name, tiny_bert, tmp_path, monkeypatch, capsys
):
    columns = ("a", "b") if name == "pair" else ("text",)
    folder = trained_on(columns, tiny_bert, tmp_path, monkeypatch)
    good, bad, reason = CELLS[name]
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{good}\n{bad}\n{good}\n")
    predict(folder, file)
    captured = capsys.readouterr()
    found = pd.read_csv(io.StringIO(captured.out))
    assert found.prediction.isna().tolist() == [False, True, False]
    assert found.prediction[0] == found.prediction[2]
    assert "1 row without an answer, left empty:\n" in captured.err
    assert f"rows.jsonl, line 2: {reason}" in " ".join(captured.err.split())
    assert "classification report, file, 2 ex" in captured.err  # its label is not scored
    file.write_text(f"{bad}\n{bad}\n")
    with pytest.raises(InputError, match=rf"rows\.jsonl, lines 1, 2: {reason}"):
        predict(folder, file)
