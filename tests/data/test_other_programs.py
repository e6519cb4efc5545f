"""Files as other programs write them: JSON tables, words in rows, hidden cells, garbled texts."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
from dataclasses import replace

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from tiny_files import NO_SPLITS, ROWS, csv_of, load, rows_of, write

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.errors import InputError

pytestmark = pytest.mark.add_ons

OBJECTS = [{"text": text, "label": label} for text, label in ROWS]
COLUMNS = {name: [row[name] for row in OBJECTS] for name in ("text", "label")}
INDEX = [str(row) for row in range(len(ROWS))]


def by_index(values):
    return dict(zip(INDEX, values, strict=True))


@pytest.mark.parametrize(
    "content",
    [
        {name: by_index(values) for name, values in COLUMNS.items()},  # pandas' to_json
        by_index(OBJECTS),  # orient="index"
        {"columns": ["text", "label"], "index": INDEX, "data": [list(row) for row in ROWS]},
        {"schema": {"fields": [], "primaryKey": ["index"]}, "data": OBJECTS},
        COLUMNS,
        {"features": [], "rows": [{"row_idx": n, "row": row} for n, row in enumerate(OBJECTS)]},
        {"data": OBJECTS},
        {"rasa_nlu_data": {"common_examples": OBJECTS}},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_objects_that_hold_a_table(tmp_path, content, indent):
    data = load(tmp_path, json.dumps(content, indent=indent), "train.json")
    assert rows_of(data) == ROWS
    assert any(f"{len(ROWS)} rows" in note or "from the key" in note for note in data.notes)


def test_objects_that_span_several_lines(tmp_path):
    content = "\n".join(json.dumps(row, indent=2) for row in OBJECTS)
    data = load(tmp_path, content, "train.json")
    assert rows_of(data) == ROWS
    assert any("40 objects, which span several lines" in note for note in data.notes)
    with pytest.raises(InputError, match="line 1: not valid JSON"):
        load(tmp_path, content.replace('"label": "a"', '"label": a', 1), "train.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": OBJECTS, "test": OBJECTS}, "Save the list in 'train' or 'test' as a file"),
        ({"version": "5", "shapes": [], "imagePath": "a.png"}, "labelme .*--dataset_name .* says"),
        ({"images": [], "annotations": []}, "annotations of COCO are not read"),
        (
            {"columns": ["text", "label"], "data": [*map(list, ROWS), ["good", "a", "b"]]},
            r"row 40 \(from 0\) of the key data does not have one cell for each of 2 names",
        ),
        ({"columns": ["text", "label", "source"], "data": [*map(list, ROWS)]}, "each of 3 names"),
        (
            {
                "features": [],
                "rows": [
                    {"row_idx": n, "row": row, "truncated_cells": ["text"] * (n == 3)}
                    for n, row in enumerate(OBJECTS)
                ],
            },
            "cut off cells of 1 row",
        ),
    ],
)
def test_objects_that_hold_no_table(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, json.dumps(content), "train.json")


def test_a_sentence_in_one_object_is_a_row(tmp_path):
    content = json.dumps({"tokens": ["Ann", "sleeps"], "ner_tags": ["B-PER", "O"]})
    assert len(load(tmp_path, content, "train.json").splits["train"]) == 1


def sentences(data):
    part = data.splits["train"]
    tags = [[data.label_names[code] for code in codes] for codes in part["label"]]
    return list(zip(part["tokens"], tags, strict=True))


SENTENCES = [
    (["Ann", "met", "Bob"], ["B-PER", "O", "B-PER"]),
    (["NA", "sleeps"], ["B-PER", "O"]),
    (["Hi"], ["O"]),
]


@pytest.mark.parametrize("header", ["Sentence #,Word,POS,Tag", "sent_id,token,pos,ner_tags"])
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("task", [None, "tokens"])
def test_a_row_per_word(tmp_path, header, repeats, task):
    rows = [
        (f"Sentence: {number}" if repeats or not place else "", word, "X", tag)
        for number, (words, tags) in enumerate(SENTENCES)
        for place, (word, tag) in enumerate(zip(words, tags, strict=True))
    ]
    data = load(tmp_path, csv_of(rows, header), task=task)
    assert sentences(data) == SENTENCES
    assert data.splits["train"]["ampft_line"][:] == [2, 5, 7]
    named = header.split(",")
    options = {"task": "tokens", "text_column_names": named[1], "label_column_name": named[3]}
    assert sentences(load(tmp_path, csv_of(rows, header), **options)) == SENTENCES


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        ([("1", "one two", "a"), ("2", "three", "b")] * 5, "sentence_id,text,label"),
        ([(f"s {n}", "word", "ab"[n % 2]) for n in range(9)], "sentence,word,label"),
    ],
)
def test_other_tables_have_a_text_per_row(tmp_path, rows, header):
    column = "text" if "text" in header else "sentence"
    assert load(tmp_path, csv_of(rows, header), text_column_names=column).kind == "text"


@pytest.mark.parametrize("outside", ["0", "o", "OTHER"])
def test_another_spelling_of_no_entity_is_refused(tmp_path, outside):
    words = "".join(f"Ann B-PER\nsleeps{n} {outside}\nnow {outside}\n\n" for n in range(9))
    with pytest.raises(InputError, match="seem to mark entities in another spelling"):
        load(tmp_path, words, "train.conll")


def test_a_column_with_one_value_holds_no_tags(tmp_path):
    words = "".join(f"bc/x 0 Ann{n} NNP (PER) -\nbc/x 1 runs VB * -\n\n" for n in range(9))
    with pytest.raises(InputError, match="all words have the tag '-', from 'ner_tags'"):
        load(tmp_path, words, "train.conll")


@pytest.mark.parametrize("several", [True, False])
def test_choices_of_label_studio_and_shares_of_spacy(tmp_path, several):
    extra = ["B"] if several else []
    rows = [(f"text {n}", ["A", *extra] if n % 2 else ["B"]) for n in range(20)]
    expected = [frozenset(labels) for _, labels in rows]
    shares = [{"A": float("A" in labels), "B": float("B" in labels)} for _, labels in rows]
    for cells, column in (
        ([{"choices": labels} for _, labels in rows], "label"),
        ([json.dumps({"choices": labels}) for _, labels in rows], "label"),
        (shares, "cats"),
        ([labels for _, labels in rows], "accept"),
    ):
        if not several and isinstance(cells[0], str):
            continue
        objects = [{"text": row[0], column: cell} for row, cell in zip(rows, cells, strict=True)]
        content = "".join(json.dumps(each) + "\n" for each in objects)
        data = load(tmp_path, content, "t.jsonl", task="multi-label" if several else None)
        codes = data.splits["train"]["label"]
        found = [{data.label_names[c] for c in (code if several else [code])} for code in codes]
        assert found == expected, (cells[0], column)
    if several:
        with pytest.raises(InputError, match=r"several labels.*Add --task multi-label"):
            load(tmp_path, content, "t.jsonl")


def test_spans_as_columns(tmp_path):
    spans = [{"start": [0, 9], "end": [3, 12], "label": ["PER", "PER"]}] * 3
    table = pa.table({"text": [f"Ann sees Bob {n}" for n in range(3)], "entities": spans})
    pq.write_table(table, tmp_path / "t.parquet")
    data = load_data(ClassifyArguments(train_file=tmp_path / "t.parquet", **NO_SPLITS))
    tags = [data.label_names[code] for code in data.splits["train"]["label"][0]]
    assert tags == ["B-PER", "O", "B-PER", "O"]


def notes_of(tmp_path, texts, **options):
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(texts)]
    return load(tmp_path, csv_of(rows), **options).notes


GARBLED = [f"Das Café am Fluß {n} – schön" for n in range(9)]


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        ([t.encode().decode("cp1252", "replace") for t in GARBLED], "'Ã©' for 'é': UTF-8 that a"),
        ([f"caf\ufffd {n}" for n in range(9)], r"9 training texts with \\ufffd, which stands"),
        ([f"Tom &amp; Jerry {n}" for n in range(9)], "9 of 9 training texts have character ref"),
        ([f"b'text {n}'" for n in range(9)], "9 of 9 training texts have Python's bytes"),
        ([f"'text {n}'" for n in range(9)], "9 of 9 training texts have single quotes"),
    ],
)
def test_texts_that_a_program_changed_are_said(tmp_path, texts, note):
    note = note.replace(r"\\", "\\")
    assert any(note in each for each in notes_of(tmp_path, texts))


@pytest.mark.parametrize(
    "texts",
    [
        GARBLED,
        [f"AT&T; R&D {n}" for n in range(9)],
        [f"LÍNGUA PORTUGUESA, MAÇÃ {n}" for n in range(9)],
        [f"日本語 {n}" for n in range(9)],
    ],
)
def test_other_texts_have_no_such_note(tmp_path, texts):
    found = ("Windows-1252", "ufffd", "HTML", "bytes", "single quotes")
    notes = notes_of(tmp_path, [text.replace(",", "") for text in texts])
    assert not any(what in note for note in notes for what in found)


def test_a_wrong_encoding_is_said(tmp_path):
    assert any("--encoding" in note for note in notes_of(tmp_path, GARBLED, encoding="cp1252"))


@pytest.mark.parametrize(
    ("name", "advice"), [("{}.m4a", "ffmpeg -i"), ("films/{}.mp4", "ffmpeg"), ("{}.pdf", "Convert")]
)
def test_names_of_files_that_are_not_read_are_no_texts(tmp_path, name, advice):
    with pytest.raises(InputError, match=rf"names of files, such as .*{advice}"):
        notes_of(tmp_path, [name.format(n) for n in range(9)])


def test_a_quote_after_a_backslash_has_a_remedy(tmp_path):
    with pytest.raises(InputError, match=r"Quotes after \\: sed"):
        load(tmp_path, 'text,label\n"he said \\"hi\\", and left",a\n')


@pytest.fixture
def book():
    found = openpyxl.Workbook()
    found.active.title = "data"
    for row in (("text", "label", "class"), *((*row, "x") for row in ROWS)):
        found.active.append(row)
    return found


def load_book(book, tmp_path):
    book.save(tmp_path / "t.xlsx")
    return load_data(ClassifyArguments(train_file=tmp_path / "t.xlsx", **NO_SPLITS))


def test_hidden_rows_and_columns_are_said(book, tmp_path):
    assert not any("hidden" in note for note in load_book(book, tmp_path).notes)
    for row in (5, 6):
        book.active.row_dimensions[row].hidden = True
    book.active.column_dimensions["B"].hidden = True
    data = load_book(book, tmp_path)
    assert rows_of(data) == ROWS
    assert any(note.endswith("2 hidden rows are read too: 5, 6.") for note in data.notes)
    assert any(note.endswith("hidden columns can be read: 'label'.") for note in data.notes)


def test_a_hidden_sheet_is_not_the_first(book, tmp_path):
    old = book.create_sheet("old", 0)
    for row in (("text", "label"), ("old", "x"), ("older", "y")):
        old.append(row)
    old.sheet_state = "hidden"
    book.active = 1
    data = load_book(book, tmp_path)
    assert rows_of(data) == ROWS
    assert any("hidden sheets are not read: 'old' (--sheet_name)" in note for note in data.notes)
    asked = ClassifyArguments(train_file=tmp_path / "t.xlsx", sheet_name="old", **NO_SPLITS)
    assert len(load_data(asked).splits["train"]) == 2


def test_formulas_without_values_are_refused(book, tmp_path):
    book.active["B3"] = '=IF(TRUE,"a","b")'
    with pytest.raises(InputError, match=r"the formulas of B3 have no values.*Excel"):
        load_book(book, tmp_path)


def test_folders_in_classes_that_are_named_as_splits_are_said(tmp_path):
    for name in ("a", "b"):
        for split in ("train", "test"):
            for row in range(4):
                write_text(tmp_path / name / split / f"{row}.txt", f"{name} {split} {row}")
    request = ClassifyArguments(dataset_name=tmp_path)
    assert any("are not read as splits" in note for note in load_data(request).notes)


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_classes_are_matched_by_name_where_splits_order_them_otherwise(tmp_path):
    for name, names in (("a", ["neg", "pos"]), ("b", ["pos", "neg"])):
        features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
        rows = {"text": [f"{name} {n}" for n in range(8)], "label": [n % 2 for n in range(8)]}
        Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{name}.parquet")
    request = ClassifyArguments(
        train_file=tmp_path / "a.parquet", test_file=tmp_path / "b.parquet", validation_fraction=0.0
    )
    data = load_data(request)
    assert data.label_names == ("neg", "pos")
    assert data.splits["test"]["label"][:] == [1, 0] * 4


def test_columns_with_spaces_are_named_without_them_in_the_remedy(tmp_path):
    rows = [(f"{n}.jpg", f" {n % 2}", f" {1 - n % 2}") for n in range(8)]
    path = write(tmp_path, csv_of(rows, "filename, cat, dog"))
    with pytest.raises(InputError, match="--task multi-label --label_column_name cat,dog"):
        load_data(replace(ClassifyArguments(train_file=path), **NO_SPLITS))


def test_a_folder_of_csv_files_is_said_to_be_read_otherwise(tmp_path):
    rows = [(f"text {n}", ["007", "7", "010"][n % 3]) for n in range(12)]
    path = write(tmp_path, csv_of(rows))
    data = load_data(ClassifyArguments(dataset_name=tmp_path, **NO_SPLITS))
    assert data.label_names == ("7", "10")
    assert any("`datasets` reads 007 as 7, NA as missing" in note for note in data.notes)
    exact = load_data(ClassifyArguments(train_file=path, **NO_SPLITS))
    assert exact.label_names == ("007", "7", "010")
    assert not any("`datasets`" in note for note in exact.notes)


@pytest.mark.parametrize(
    ("separator", "names"), [(";", "a;b"), ("|", "b|c"), (" ", "a b"), ("\n", "a\nb")]
)
def test_labels_with_another_separator_are_refused(tmp_path, separator, names):
    rows = [(f"text {n}", [f'"{names}"', "b", "c", "a"][n % 4]) for n in range(12)]
    typed = "$'\\n'" if separator == "\n" else f"'{separator}'"
    with pytest.raises(InputError, match=re.escape(f"add --label_separator {typed}")):
        load(tmp_path, csv_of(rows), task="multi-label")
    data = load(tmp_path, csv_of(rows), task="multi-label", label_separator=separator)
    assert data.label_names == ("a", "b", "c")


def test_a_label_that_contains_the_name_of_another_is_a_name(tmp_path):
    rows = [(f"text {n}", ["very good", "good", "bad"][n % 3]) for n in range(12)]
    data = load(tmp_path, csv_of(rows), task="multi-label")
    assert data.label_names == ("bad", "good", "very good")


def zipped(name: str) -> bytes:
    """Return a ZIP archive with one file of the rows."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, csv_of(ROWS))
    return content.getvalue()


def in_parquet() -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table(COLUMNS), content)
    return content.getvalue()


TABLE = csv_of(ROWS).encode()
SPACY_2 = [
    {"id": 0, "paragraphs": [{"raw": "Ann sleeps.", "sentences": [{"tokens": []}], "cats": []}]}
]
RASA = "version: '3.1'\n# made by hand\nnlu:\n- intent: greet\n  examples: |\n    - hello\n"
OTHER_FORMATS = {
    "gzip": ("train.csv", gzip.compress(TABLE), r"gunzip < .*train\.csv > .*unpacked-train\.csv"),
    "gzip called Parquet": ("train.parquet", gzip.compress(TABLE), "compressed with gzip"),
    "bzip2": ("train.tsv", bz2.compress(TABLE), "compressed with bzip2"),
    "xz": ("train.jsonl", lzma.compress(TABLE), "compressed with xz"),
    "ZIP": ("train.csv", zipped("a.csv"), r"is a ZIP archive\. Unpack it: unzip "),
    "workbook": ("train.csv", zipped("[Content_Types].xml"), "is a spreadsheet"),
    "Parquet": ("train.csv", in_parquet(), r"is a Parquet file\. Rename it: mv .*train\.parquet"),
    "Arrow": ("train.json", b"ARROW1\0\0", "is a file of Arrow"),
    "Git LFS": ("train.csv", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "HTML": ("train.csv", b"\n<!DOCTYPE html>\n<html>", "is a web page"),
    "spaCy 2": ("train.json", json.dumps(SPACY_2).encode(), "documents of spaCy 2"),
    "spaCy 3": ("train.spacy", b"\x78\x9c", "It holds documents of spaCy"),
    "WebAnno 3": ("train.tsv", b"#FORMAT=WebAnno TSV 3.2\n#T_SP=x\n", "as CoNLL 2002"),
    "WebAnno 2": ("train.conll", b"# webanno.custom.NER | value\n", "as CoNLL 2002"),
    "INCEpTION": ("train.json", b'{"%TYPES": {}, "%FEATURE_STRUCTURES": [{}]}', "as CoNLL 2002"),
    "INCEpTION, XMI": ("train.xmi", b"<xmi:XMI>", "export CoNLL 2002"),
    "VIA": ("train.json", b'{"a": {"regions": [{"region_attributes": {}}]}}', "by VGG Image Anno"),
    "SQL": ("train.csv", b"PRAGMA foreign_keys=OFF;\nCREATE TABLE t(a,b);\n", "is an SQL dump"),
    "SQL of MySQL": ("train.tsv", b"-- MySQL dump 10.13\n--\n", "is an SQL dump"),
    "ARFF": ("train.csv", b"% of UCI\n@RELATION r\n@DATA\n", "is a Weka file"),
    "Stata": ("train.dta", b"s", r"read_stata\('.*train\.dta'\)"),
    "R": ("train.rds", b"X", "write.csv"),
    "CVAT": ("annotations.xml", b"<annotations/>", "XML is not read"),
    "Rasa": ("train.yml", RASA.encode(), "rasa data convert nlu --format json"),
    "Rasa 1": ("train.md", b"## intent:greet\n- hello\n", "training data of Rasa"),
}


@pytest.mark.parametrize("case", OTHER_FORMATS)
def test_other_formats_are_named_with_what_to_do(tmp_path, case):
    name, content, message = OTHER_FORMATS[case]
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, name)


@pytest.mark.parametrize("text", ["PRAGMA of the film", "@relations of people", "CREATE TABLES"])
def test_a_table_about_formats_is_a_table(tmp_path, text):
    rows = [(f"{text} {i}", "ab"[i % 2]) for i in range(40)]
    assert len(load(tmp_path, csv_of(rows)).label_names) == 2


def test_a_text_about_paragraphs_is_no_document_of_spacy(tmp_path):
    rows = [(f'the "paragraphs" of {i}', "ab"[i % 2]) for i in range(40)]
    content = "\n".join(json.dumps({"text": text, "label": label}) for text, label in rows)
    assert rows_of(load(tmp_path, content, "train.jsonl")) == rows


def test_two_columns_of_one_name_are_refused(tmp_path):
    content = {"columns": ["text", "text", "label"], "data": [["a", "A", "x"]]}
    with pytest.raises(InputError, match="a name occurs twice in 'text', 'text', 'label'"):
        load(tmp_path, json.dumps(content), "train.json")


KAGGLE = (
    "Sentence #,Word,POS,Tag\nSentence: 1,Ann,NNP,B-per\n,sleeps,VB,O\nSentence: 2,Bob,NNP,B-per\n"
)


def test_a_quote_that_is_a_word_does_not_swallow_rows(tmp_path):
    rows = 'Sentence: 3,He,PRP,O\n,",O,O\n,Hello,UH,O\n,",O,O\n,.,.,O\n'
    with pytest.raises(InputError, match=r"line 6: the word .* spans lines. If a quote is a word"):
        load(tmp_path, KAGGLE + rows)
    doubled = rows.replace(',",', ',"""",')
    words, _ = sentences(load(tmp_path, KAGGLE + doubled))[-1]
    assert words == ["He", '"', "Hello", '"', "."]


def test_another_column_of_tags_can_be_named_in_a_row_per_word(tmp_path):
    data = load(tmp_path, KAGGLE, label_column_name="POS")
    assert sentences(data) == [(["Ann", "sleeps"], ["NNP", "VB"]), (["Bob"], ["NNP"])]


@pytest.mark.parametrize("empty", ["set()", "frozenset()", "[]"])
def test_a_set_without_labels_has_none(tmp_path, empty):
    text = f"text,labels\na,\"{{'x', 'y'}}\"\nb,{empty}\nc,{{'x'}}\nd,{{'y'}}\n"
    data = load(tmp_path, text, task="multi-label")
    assert data.label_names == ("x", "y")
    assert data.splits["train"]["label"][:] == [[0, 1], [], [0], [1]]


@pytest.mark.parametrize("label", ["frozenset({'x', 'y'})", "[007, 008]", "['C:\\users', 'x']"])
def test_other_lists_are_refused(tmp_path, label):
    text = f'text,labels\na,"{label}"\nb,x\nc,y\n'
    with pytest.raises(
        InputError, match=r"line 2: .* seems to be a list and cannot be read as one"
    ):
        load(tmp_path, text, task="multi-label")


@pytest.mark.parametrize(
    ("ending", "advice"), [(".csv", "ftfy FILE > NEW"), (".parquet", "ftfy.fix_text")]
)
def test_the_remedy_for_garbled_texts_fits_the_file(tmp_path, ending, advice):
    rows = [(t.encode().decode("cp1252", "replace"), "ab"[n % 2]) for n, t in enumerate(GARBLED)]
    content = csv_of(rows).encode()
    if ending == ".parquet":
        file = io.BytesIO()
        texts, labels = zip(*rows, strict=True)
        pq.write_table(pa.table({"text": texts, "label": labels}), file)
        content = file.getvalue()
    notes = load(tmp_path, content, f"train{ending}").notes
    (note,) = (each for each in notes if "Windows-1252" in each)
    assert advice in note
    assert ("--encoding" in note) == (ending == ".csv")
