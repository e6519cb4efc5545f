"""Odd and damaged files are refused with one message, or give exactly their rows back.

`AMPFT_FUZZ_EXAMPLES=2000 python -m pytest -n 0 tests/data/test_fuzzed_files.py` tries more of them.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import decimal
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampft.data.load import load_files
from ampft.data.request import DataRequest
from ampft.data.sources.text_files import long_csv_fields_allowed
from ampft.errors import InputError

# Its report of a failure contains the long cell.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
EXAMPLES = int(os.environ.get("AMPFT_FUZZ_EXAMPLES", "40"))
fuzz = settings(
    max_examples=EXAMPLES,
    derandomize="AMPFT_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    deadline=timedelta(seconds=20),
    suppress_health_check=list(HealthCheck),
)
OUTCOMES: Counter[str] = Counter()

ODD = (
    '"', ",", ";", "\t", "\n", "\r", "\r\n", "\0", "\ufeff", "\u2028", "\u202e", "'", "\\",
    "\x1b[2J", "None", "NA", "null", "-1", "", " ", "é", "\U0001f600", "x" * 200_000,
)  # fmt: skip
plain = st.text('ab ,"', min_size=1).map("x{}".format)
texts = plain | st.lists(st.text(max_size=5) | st.sampled_from(ODD), max_size=3).map("".join)
labels = st.sampled_from(
    (
        "a",
        "b",
        "b ",
        "B",
        "1",
        "01",
        "1.0",
        "None",
        "é",
        "x,y",
        'say "b"',
        "a\nb",
        "-1",
        "\u202eb",
        "",
    )
)
tables = st.lists(st.tuples(texts, labels), min_size=1, max_size=6)
plain_tables = st.lists(st.tuples(plain, st.sampled_from("ab")), min_size=2, max_size=6)
encodings = st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252", "cp932", "utf-7"))
edits = st.lists(
    st.tuples(st.floats(0, 1), st.binary(max_size=3), st.integers(0, 3)), min_size=1, max_size=3
)


@pytest.fixture(autouse=True, scope="module")
def _files_are_removed(tmp_path_factory):
    """Let all temporary files be those of the session."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("fuzzed")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


def read(path: Path, encoding: str = "utf-8") -> list[tuple[str, str]] | None:
    """Return the rows as the recipe reads them; None if the file is refused."""
    request = DataRequest(
        train_file=path, text_column_names="text", label_column_name="label",
        encoding=encoding,
    )  # fmt: skip
    try:
        rows = load_files(request)[0]["train"]
    except InputError:
        OUTCOMES[f"{path.suffix} refused"] += 1
        return None
    OUTCOMES[f"{path.suffix} accepted"] += 1
    found = [next(iter(rows.names_of(index))) for index in range(len(rows.labels))]
    return list(zip(rows.inputs["text"], found, strict=True))


@contextlib.contextmanager
def some_of_each(suffix: str) -> Iterator[None]:
    """Check that the block read some files and refused others: otherwise it shows nothing."""
    OUTCOMES.clear()
    yield
    for outcome in ("accepted", "refused"):
        assert OUTCOMES[f"{suffix} {outcome}"] >= EXAMPLES / 20, OUTCOMES


def edited(content: bytes, changes) -> bytes:
    """Return the content with some bytes replaced, inserted or removed."""
    for place, new, removed in changes:
        start = int(place * len(content))
        content = content[:start] + new + content[start + removed :]
    return content


def as_csv(table, **style) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, **style).writerows([("text", "label"), *table])
    return out.getvalue()


styles = st.fixed_dictionaries(
    {
        "quoting": st.sampled_from((csv.QUOTE_ALL, csv.QUOTE_MINIMAL)),
        "lineterminator": st.sampled_from(("\n", "\r\n", "\r")),
        "delimiter": st.sampled_from((",", ";", "\t")),
    }
)


@pytest.mark.slow
def test_csv_gives_its_rows_back(folder):
    path = folder / "t.csv"

    @fuzz
    @given(tables, styles, encodings)
    def holds(table, style, encoding):
        path.write_bytes(as_csv(table, **style).encode(encoding, "replace"))
        encoded = [[cell.encode(encoding, "replace") for cell in row] for row in table]
        assert read(path, encoding) in (
            None,
            [tuple(cell.decode(encoding) for cell in row) for row in encoded],
        )

    with some_of_each(".csv"):
        holds()


def test_damaged_csv_is_refused_or_read_as_the_standard_says(folder):
    path = folder / "t.csv"

    @fuzz
    @given(tables | plain_tables, styles, edits)
    def holds(table, style, changes):
        path.write_bytes(edited(as_csv(table, **style).encode(errors="replace"), changes))
        found = read(path)
        if found is None:
            return
        lines = io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")
        with long_csv_fields_allowed():
            reader = csv.reader(lines, delimiter=style["delimiter"], strict=True)
            header, *rows = [row for row in reader if row]
        names = [name.strip().lower() for name in header]
        text, label = names.index("text"), names.index("label")
        assert found == [(row[text], row[label]) for row in rows]

    with some_of_each(".csv"):
        holds()


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, labels,
    st.lists(labels, max_size=2), st.dictionaries(texts, st.integers(), max_size=2),
)  # fmt: skip
objects = st.lists(
    st.fixed_dictionaries({"text": plain, "label": labels}), min_size=1, max_size=5
) | st.lists(
    st.fixed_dictionaries({"text": values, "label": values}, optional={"more": values}),
    min_size=1,
    max_size=5,
)
forms = st.sampled_from(("lines", "array", "wrapped"))


def as_cell(value) -> str | None:
    """Return what a cell of JSON or Parquet means: numbers and booleans as Python spells them."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value if isinstance(value, str) else str(value)


def objects_in(text: str) -> list[dict]:
    """Return the rows of a JSON file as the standard library reads it."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.split("\n") if line.strip(" \t\r")]
    if isinstance(whole, list):
        return whole
    return [whole] if "text" in whole else next(iter(whole.values()))


@pytest.mark.slow
def test_json_gives_its_rows_back_or_is_refused(folder):
    path = folder / "t.json"

    @fuzz
    @given(objects, forms, st.booleans(), st.none() | edits)
    def holds(table, form, is_ascii, changes):
        values = table if form != "wrapped" else {"rows": table}
        parts = table if form == "lines" else [values]
        content = "\n".join(json.dumps(part, ensure_ascii=is_ascii) for part in parts)
        path.write_bytes(edited(content.encode(errors="replace"), changes or ()))
        found = read(path)
        if found is not None:
            rows = objects_in(path.read_bytes().decode("utf-8-sig"))
            assert found == [(as_cell(row.get("text")), as_cell(row.get("label"))) for row in rows]

    with some_of_each(".json"):
        holds()


DAY = datetime.date(2020, 2, 29)
CELLS = {
    pa.string(): ["a", "b"], pa.large_string(): ["a", "b"], pa.string_view(): ["a", "b"],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b"], pa.int8(): [1, 2],
    pa.uint64(): [2**64 - 1, 2], pa.float32(): [0.5, 1.5], pa.float64(): [0.1, float("nan")],
    pa.bool_(): [True, False], pa.null(): [None, None], pa.binary(): [b"a", b"\xff"],
    pa.date32(): [DAY, DAY], pa.timestamp("ns", "UTC"): [0, 1],
    pa.duration("s"): [timedelta(1), timedelta(2)],
    pa.time64("us"): [datetime.time(1), datetime.time(2)],
    pa.decimal128(5, 2): [decimal.Decimal("1.10"), decimal.Decimal("2.00")],
    pa.list_(pa.string()): [["a"], []], pa.list_(pa.int8(), 1): [[1], [2]],
    pa.struct([("a", pa.int8())]): [{"a": 1}, {"a": 2}],
    pa.map_(pa.string(), pa.int8()): [[("a", 1)], []],
}  # fmt: skip
columns = st.sampled_from([*CELLS, *[pa.string()] * len(CELLS)]).flatmap(
    lambda kind: st.lists(
        st.sampled_from([*CELLS[kind] * 3, None]), min_size=3, max_size=3
    ).map(lambda cells: pa.array(cells, kind))
)  # fmt: skip


@pytest.mark.slow
def test_parquet_gives_its_rows_back_or_is_refused(folder):
    path = folder / "t.parquet"

    @fuzz
    @given(columns, columns, st.sampled_from(("label", "text", "Label ")), st.none() | edits)
    def holds(first, second, name, changes):
        table = pa.Table.from_arrays([first, second], names=["text", name])
        pq.write_table(table, path, write_page_checksum=True)
        path.write_bytes(edited(path.read_bytes(), changes or ()))
        found = read(path)
        if found is not None:
            rows = zip(first.to_pylist(), second.to_pylist(), strict=True)
            assert found == [(as_cell(text), as_cell(label)) for text, label in rows]

    with some_of_each(".parquet"):
        holds()


def test_any_bytes_are_refused_or_read(folder):
    suffixes = st.sampled_from((".csv", ".tsv", ".json", ".parquet"))
    read_files = []

    @fuzz
    @given(suffixes, st.binary(max_size=200), encodings)
    def holds(suffix, content, encoding):
        path = folder / f"t{suffix}"
        path.write_bytes(content)
        rows = read(path, encoding)
        assert rows is None or all(isinstance(label, str) for _, label in rows)
        read_files.append(path)

    holds()
    assert len(read_files) >= EXAMPLES
