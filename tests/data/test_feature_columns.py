"""Columns of numbers and categories that are put before a text: how they are read."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_files import ROWS, csv_of, load, rows_of

from ampft import decision
from ampft.data.sources.source_table import as_text
from ampft.decision import Contract, Rule, is_described, template, with_features
from ampft.errors import InputError
from ampft.kinds.prediction import TrainingInfo
from ampft.kinds.rows import rows_in_memory

FEATURES = {"feature_columns": "age,country"}


@pytest.mark.parametrize(
    ("value", "said"),
    [(42, "42"), (42.0, "42"), ("42.0", "42"), ("4.2e1", "42"), (-0.0, "0"), ("007", "007"),
     ("3.50", "3.5"), (3.5, "3.5"), (0.1 + 0.2, "0.3"), (1234567.89, "1234570"),
     (1e-7, "0.0000001"), (1234567.0, "1234567"), (1e300, f"1{'0' * 300}"), (float("inf"), "inf"),
     ("1.2.3", "1.2.3"),
     (True, "True"), (None, "unknown"), (float("nan"), "unknown"), ("NaN", "unknown"),
     (" \t", "unknown"), (" New \n York ", "New York"), ("NA", "NA")],
)  # fmt: skip
def test_a_value_is_said_in_one_way(value, said):
    assert with_features({"x": value}, "a text") == f"x: {said}. a text"
    assert is_described(["x"], f"x: {said}. a text")


def test_rows_in_memory_may_have_values_of_numpy_and_pandas():
    """A column of pandas with gaps gives them one by one, so `Classifier.predict` receives them."""
    ages = pd.array([17, None], dtype="Int64")
    values = [*ages, np.int32(42), np.float32(1.5), np.float32("nan"), pd.NaT]
    assert [as_text(value, "here", "age") for value in values] == [
        "17", None, "42", "1.5", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("cell", ["", None, float("nan")])
def test_a_row_in_memory_without_a_text_says_so(cell):
    """Like an empty cell of a file; an empty text by itself is a text."""
    trained = TrainingInfo(("text",), ("a", "b"), {}, several_labels=False)
    assert rows_in_memory("text", "", trained) == [("",)]
    with pytest.raises(InputError, match=r"position 1 \(from 0\): the row has no text in 'text'\."):
        rows_in_memory("text", [{"text": "a"}, {"text": cell}], trained)


def test_what_a_client_types():
    assert template(["age", "country"]) == "age: AGE. country: COUNTRY. TEXT"
    assert is_described(["age", "country"], "age: 1.5. country: .. a\nb")
    for text in ("a text", "age: 42. a text", "country: FR. age: 42. a", " age: 42. country: F. x"):
        assert not is_described(["age", "country"], text)


def test_every_format_says_the_same(tmp_path):
    ages = [17, None, 42, 0] * 10
    table = [
        {"text": text, "label": label, "age": age, "country": ("FR", "")[i % 2]}
        for i, ((text, label), age) in enumerate(zip(ROWS, ages, strict=True))
    ]
    as_csv = [
        (t["text"], t["label"], "" if t["age"] is None else str(t["age"]), t["country"])
        for t in table
    ]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "c.parquet")
    floats = [{**t, "age": None if t["age"] is None else float(t["age"])} for t in table]
    files = {
        "a.csv": csv_of(as_csv, "text,label,Age,country"),  # other spelling
        "b.jsonl": "\n".join(map(json.dumps, floats)),  # as pandas has integers with gaps
        "c.parquet": (tmp_path / "c.parquet").read_bytes(),
    }
    prints = set()
    for name, content in files.items():
        data = load(tmp_path, content, name, **FEATURES)
        assert [row[0] for row in rows_of(data)[:3]] == [
            "age: 17. country: FR. text 0",
            "age: unknown. country: unknown. text 1",
            "age: 42. country: FR. text 2",
        ], name
        assert data.input_columns == ("text",)
        assert any("'age: AGE. country: COUNTRY. TEXT'" in note for note in data.notes)
        prints.add(data.fingerprints["train"])
    assert len(prints) == 1
    assert load(tmp_path, files["a.csv"]).fingerprints["train"] not in prints


def test_pairs_and_joined_texts_say_them_once(tmp_path):
    rows = [("one", "two", "three", "ab"[i % 2], str(i)) for i in range(40)]
    content = csv_of(rows, "a,b,c,label,age")
    data = load(tmp_path, content, text_column_names="a+b,c", feature_columns="age")
    assert rows_of(data)[3][:2] == ("age: 3. one two", "three")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [("year", {}, "--feature_columns: .* has no column 'year'. Its columns"),
     ("age,age", {}, "'age' is named twice"), ("label", {}, "column of the texts or of the labels"),
     ("text", {"text_column_names": "text"}, "column of the texts"),
     ("age,", {}, "has no column ''")],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(tmp_path, columns, options, message):
    content = csv_of([(*row, "1") for row in ROWS], "text,label,age")
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, feature_columns=columns, **options)


def test_a_row_without_text_stays_one(tmp_path):
    content = csv_of([(*row, "1") for row in ROWS] + [("", "a", "7")], "text,label,age")
    with pytest.raises(InputError, match="line 42: nothing in column 'text'"):
        load(tmp_path, content, feature_columns="age")


@pytest.mark.add_ons
def test_words_and_built_in_data_refuse_them(tmp_path):
    lines = [json.dumps({"tokens": ["a"], "tags": ["O"], "age": 1})] * 20
    with pytest.raises(InputError, match="--feature_columns has no effect on words with tags"):
        load(tmp_path, "\n".join(lines), "a.jsonl", task="tokens", feature_columns="age")


def test_the_contract_says_rows_as_the_training_did():
    contract = Contract("text", ("a+b", "c"), Rule(("x", "y")), feature_columns=("age",))
    assert Contract.from_values(json.loads(contract.text())) == contract
    cells = {"age": 42.0, "a": "one", "b": "two", "c": "3"}
    assert contract.texts(cells) == ("age: 42. one two", "3")
    with pytest.raises(ValueError, match="no text"):
        contract.texts({**cells, "a": None, "b": None})
    plain = Contract("text", ("text",), Rule(("x", "y")))
    assert "feature_columns" not in plain.text()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_page_for_browsers_refuses_texts_without_their_columns():
    module = Path(decision.__file__).with_suffix(".js")
    contract = {"tokenization": {}, "input_columns": ["text"], "feature_columns": ["age"]}
    script = f'import("{module}").then(m => m.classifier({json.dumps(contract)}, null))'
    script += ".catch(error => console.log(error.message))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert "Use ampft predict" in done.stdout
