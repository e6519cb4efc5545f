"""Files, folders and flags that cause a message about data, and what the message advises."""

from __future__ import annotations

import io
import json
import wave

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
from data_walks import AB, FILE, PIXEL, SPANS, WHITE, Files, Remedy, T, Walk, csv, lines


def parquet(classes: tuple[str, ...] = (), **columns: list) -> bytes:
    """Return a table in Parquet, with declared classes of the column `label` if there are any."""
    table = pa.table(columns)
    if classes:
        features = {"label": {"names": list(classes), "_type": "ClassLabel"}}
        described = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": described})
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def workbook(*rows: tuple, sheet: str = "S") -> bytes:
    """Return a workbook of one sheet."""
    book, content = openpyxl.Workbook(), io.BytesIO()
    book.active.title = sheet
    for row in rows:
        book.active.append(row)
    book.save(content)
    return content.getvalue()


def sound(frequency: float = 440.0, size: float = 0.5) -> bytes:
    """Return a second of a tone as a file of WAV."""
    content, time = io.BytesIO(), np.arange(8000) / 8000
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        samples = size * 32000 * np.sin(2 * np.pi * frequency * time)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


BOOK = workbook(("text", "label"), ("x", "a"), ("y", "b"))
GOOD_PARQUET = parquet(text=["x", "y"], label=["a", "b"])
TAGS = [{"tokens": ["Ann", "ran"], "ner_tags": ["B-PER", "O"]}] * 4
FIRST, SECOND = sound(), sound(880.0)
SOUNDS: Files = {"d/a/1.wav": FIRST, "d/a/2.wav": FIRST, "d/b/1.wav": SECOND, "d/b/2.wav": SECOND}
PICTURES: Files = {
    "d/a/1.png": PIXEL, "d/a/2.png": WHITE, "d/b/1.png": WHITE, "d/b/2.png": PIXEL,
}  # fmt: skip
OF_PICTURES = "image,label\nx.png,a\nz.png,b\n"
LISTED = "file_name,label\n{0}1.png,a\n{0}2.png,b\n"
META: Files = {"d/1.png": PIXEL, "d/2.png": WHITE, "d/metadata.csv": LISTED.format("")}
DECLARED = parquet(("neg", "pos"), text=["x", "y"], label=[0, 2])
OF_FLAGS = {
    "a pair beside other columns": Walk(
        {"t.csv": "id,sentence_A,sentence_B,label\n1,x,y,a\n2,z,v,b\n"}, FILE,
        (Remedy("--text_column_names sentence_A,sentence_B"),),
    ),
    "a choice": Walk(
        T, f"{FILE} --lr_scheduler_type linar",
        (Remedy("Choose from linear", without="--lr_scheduler_type linar",
                add="--lr_scheduler_type linear"),),
    ),
    "a time": Walk(
        T, f"{FILE} --max_time 2x",
        (Remedy("such as 2h", add="--max_time 2h", without="--max_time 2x"),
         Remedy("15min", add="--max_time 15min", without="--max_time 2x")),
    ),
    "a list of settings": Walk(
        T | {"c.yaml": "- train_file\n"}, "--config c.yaml",
        (Remedy("must map flag names to values", files={"c.yaml": "train_file: t.csv\n"}),),
    ),
    "settings that are not YAML": Walk(
        T | {"c.yaml": "a: [\n"}, "--config c.yaml",
        (Remedy("neither YAML nor JSON", files={"c.yaml": "train_file: t.csv\n"}),),
    ),
    "no settings": Walk(
        T | {"c.yaml": "train_file: t.csv\n"}, "--config d.yaml",
        (Remedy("cannot be read", add="--config c.yaml", without="--config d.yaml"),),
    ),
    "a file without a flag": Walk(
        T, "t.csv", (Remedy("every setting is a flag", add=FILE, without="t.csv"),)
    ),
    "a metric of the best weights": Walk(
        T, f"{FILE} --metric_for_best_model acuracy",
        (Remedy("Did you mean 'accuracy'", without="--metric_for_best_model acuracy",
                add="--metric_for_best_model accuracy"),),
    ),
    "only test rows": Walk(
        T | {"u.csv": AB}, "--test_file u.csv", (Remedy("Add it", add=FILE),)
    ),
    "a file and a data set": Walk(
        T, f"{FILE} --dataset_name stdlib",
        (Remedy("Remove one of them", without="--dataset_name stdlib"),
         Remedy("Remove one", without=FILE)),
    ),
    "a column twice": Walk(
        {"t.csv": "text,a,b\nx,1,0\ny,0,1\n"}, f"{FILE} --task multi-label "
        "--label_column_name a,a",
        (Remedy("Name each once", add="--label_column_name a,b",
                without="--label_column_name a,a"),),
    ),
    "a column twice, of one task": Walk(
        T, f"{FILE} --label_column_name label,label",
        (Remedy("Name each once", add="--label_column_name label",
                without="--label_column_name label,label"),),
    ),
    "a class that a flag removes": Walk(
        {"t.csv": csv("1 -1 1 -1")}, f"{FILE} --ignore_label -1",
        (Remedy("remove --ignore_label", without="--ignore_label -1"),),
    ),
    "all rows that a flag removes": Walk(
        {"t.csv": csv("a b a"), "u.csv": csv("b")},
        f"{FILE} --validation_file u.csv --test_file u.csv --ignore_label b",
        (Remedy("remove --ignore_label", without="--ignore_label b"),),
    ),
    "a test split to leave out": Walk(
        T | {"u.csv": csv("a b")}, f"{FILE} --leave_out_test --test_fraction 0",
        (Remedy("Pass --validation_file and --test_file", without="--test_fraction 0",
                add="--validation_file u.csv --test_file u.csv"),),
    ),
}  # fmt: skip
OF_TABLE_FILES = {
    "a sheet": Walk(
        {"t.xlsx": BOOK}, "--train_file t.xlsx --sheet_name X",
        (Remedy("its sheets: 'S'", add="--sheet_name S", without="--sheet_name X"),),
    ),
    "a damaged workbook": Walk(
        {"t.xlsx": BOOK[:300]}, "--train_file t.xlsx",
        (Remedy("save the sheet as CSV", add=FILE, without="--train_file t.xlsx", files=T),),
    ),
    "an error in a cell": Walk(
        {"t.xlsx": workbook(("text", "label"), ("x", "#DIV/0!"), ("y", "b"))},
        "--train_file t.xlsx", (Remedy("Correct its formula", files={"t.xlsx": BOOK}),),
    ),
    "a damaged Parquet file": Walk(
        {"t.parquet": GOOD_PARQUET[:200]}, "--train_file t.parquet",
        (Remedy("write it again", files={"t.parquet": GOOD_PARQUET}),),
    ),
    "bytes": Walk(
        {"t.parquet": parquet(text=[b"\xff", b"y"], label=["a", "b"])}, "--train_file t.parquet",
        (Remedy("Write it as texts", files={"t.parquet": GOOD_PARQUET}),),
    ),
    "a number without a class": Walk(
        {"t.parquet": DECLARED}, "--train_file t.parquet",
        (Remedy("Correct the value", files={"t.parquet": parquet(
            ("neg", "pos"), text=["x", "y"], label=[0, 1])}),
         Remedy("declare all classes", files={"t.parquet": parquet(
             ("neg", "pos", "mid"), text=["x", "y"], label=[0, 2])})),
    ),
    "a class declared twice": Walk(
        {"t.parquet": parquet(("neg", "neg"), text=["x", "y"], label=[0, 1])},
        "--train_file t.parquet",
        (Remedy("Name each once", files={"t.parquet": parquet(
            ("neg", "pos"), text=["x", "y"], label=[0, 1])}),),
    ),
    "a split with two uses": Walk(
        {"d/train.csv": AB, "d/test.csv": AB},
        "--dataset_name d --validation_split_name test --test_split_name test",
        (Remedy("Change --train_split_name, --validation_split_name",
                without="--validation_split_name test", add=" "),),
    ),
    "different columns": Walk(
        {"d/train-1.csv": AB, "d/train-2.csv": csv("a b", "text,kind")}, "--dataset_name d",
        (Remedy("Give all files of a split the same columns", files={"d/train-2.csv": AB}),),
    ),
    "cells that the viewer has cut": Walk(
        {"t.json": json.dumps({"features": [], "rows": [
            {"row_idx": 0, "row": {"text": "x", "label": "a"}, "truncated_cells": ["text"]}]})},
        "--train_file t.json",
        (Remedy("Download the files", add=FILE, without="--train_file t.json", files=T),),
    ),
    "annotations of COCO": Walk(
        {"t.json": json.dumps({"images": [], "annotations": [], "categories": []}),
         "x.png": PIXEL, "z.png": WHITE}, "--train_file t.json",
        (Remedy("write a table with the columns image and label", add="--train_file t2.csv",
                without="--train_file t.json", files={"t2.csv": OF_PICTURES}),),
    ),
    "a tab in a quote": Walk(
        {"t.tsv": 'text\tlabel\n"x\ta\ny"\tb\nz\ta\n'}, "--train_file t.tsv",
        (Remedy("save the file as .csv", add="--train_file t2.csv",
                without="--train_file t.tsv",
                files={"t2.csv": 'text,label\n"x\ta\ny",b\nz,a\n'}),
         Remedy("replace the quotes", files={"t.tsv": "text\tlabel\n'x\ta\ny'\tb\nz\ta\n"})),
    ),
}  # fmt: skip
OF_FOLDERS = {
    "images and sounds": Walk(
        PICTURES | {"d/a/3.wav": FIRST, "d/b/3.wav": SECOND}, "--dataset_name d",
        (Remedy("--task images"),
         Remedy("--task sounds")),
    ),
    "a file beside the folders": Walk(
        PICTURES | {"d/9.png": PIXEL}, "--dataset_name d",
        (Remedy("into the folder of its class", files={"d/9.png": None, "d/b/9.png": PIXEL}),),
    ),
    "files without folders": Walk(
        {"d/1.png": PIXEL, "d/2.png": WHITE}, "--dataset_name d",
        (Remedy("its own subfolder", files=PICTURES | {"d/1.png": None, "d/2.png": None}),
         Remedy("pass a table of paths and labels with --train_file", without="--dataset_name d",
                add="--train_file t.csv", files={"t.csv": "image,label\nd/1.png,a\nd/2.png,b\n"})),
    ),
    "two tables of one folder": Walk(
        META | {"d/metadata.jsonl": lines({"file_name": "1.png", "label": "a"})},
        "--dataset_name d",
        (Remedy("Remove all but one", files={"d/metadata.jsonl": None}),
         Remedy("pass the right one with --train_file", add="--train_file d/metadata.csv "
                "--image_column_name file_name", without="--dataset_name d")),
    ),
    "a table of two splits": Walk(
        {"d/train/1.png": PIXEL, "d/train/2.png": WHITE, "d/test/1.png": PIXEL,
         "d/metadata.csv": "file_name,label\ntrain/1.png,a\ntrain/2.png,b\ntest/1.png,a\n"},
        "--dataset_name d",
        (Remedy("Put a table into the folder of each split", files={
            "d/metadata.csv": None, "d/train/metadata.csv": LISTED.format(""),
            "d/test/metadata.csv": "file_name,label\n1.png,a\n"}),),
    ),
    "silent sounds": Walk(
        {name: sound(size=0.0) for name in SOUNDS}, "--dataset_name d",
        (Remedy("Keep one channel of each", files=SOUNDS),),
    ),
    "a sound that is cut off": Walk(
        SOUNDS | {"d/a/1.wav": FIRST[:9000]}, "--dataset_name d",
        (Remedy("copy it again", files={"d/a/1.wav": FIRST}),),
    ),
}  # fmt: skip
TOKENS = "--train_file t.jsonl --task tokens"
OF_WORDS = {
    "a word per row": Walk(
        {"t.jsonl": lines(*({"tokens": ["Ann"], "ner_tags": ["B-PER"]} for _ in range(4)))},
        TOKENS, (Remedy("Write a .conll file", without="--train_file t.jsonl",
                        add="--train_file t.conll",
                        files={"t.conll": "Ann B-PER\nran O\n\nBo B-PER\nsat O\n\n"}),),
    ),
    "another spelling of tags": Walk(
        {"t.jsonl": lines(*({"tokens": ["Ann", "ran"], "ner_tags": ["PER-B", "O"]}
                            for _ in range(4)))}, TOKENS,
        (Remedy("Write them as B-PER, I-PER and O", files={"t.jsonl": lines(*TAGS)}),),
    ),
    "one tag": Walk(
        {"t.jsonl": lines(*({"tokens": ["Ann", "ran"], "ner_tags": ["X", "X"],
                             "tags": ["B-PER", "O"]} for _ in range(4)))},
        f"{TOKENS} --label_column_name ner_tags",
        (Remedy("pass the column of tags with --label_column_name", add="--label_column_name tags",
                without="--label_column_name ner_tags"),),
    ),
    "numbers and names of tags": Walk(
        {"t.jsonl": lines({"tokens": ["a", "b"], "ner_tags": [0, 1]},
                          {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]})}, TOKENS,
        (Remedy("Write the names of the tags", files={"t.jsonl": lines(*TAGS)}),),
    ),
    "tags that a flag removes": Walk(
        {"t.jsonl": lines(*({"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]} for _ in range(4)))},
        f"{TOKENS} --ignore_label B-X",
        (Remedy("remove --ignore_label", without="--ignore_label B-X"),),
    ),
    "no column of words": Walk(
        {"t.jsonl": lines(*({"w": ["Ann", "ran"], "t": ["B-PER", "O"]} for _ in range(4)))},
        TOKENS, (Remedy("Pass them with --text_column_names and --label_column_name",
                        add="--text_column_names w --label_column_name t"),),
    ),
    "two columns of words": Walk(
        {"t.jsonl": lines(*({"tokens": ["Ann", "ran"], "w": ["Ann", "ran"],
                             "ner_tags": ["B-PER", "O"]} for _ in range(4)))},
        f"{TOKENS} --text_column_names tokens,w",
        (Remedy("Pass one", add="--text_column_names w", without="--text_column_names tokens,w"),),
    ),
    "a span beyond its text": Walk(
        {"t.jsonl": SPANS + lines({"text": "Bo", "label": [[0, 9, "PER"]]})},
        f"{TOKENS} --text_column_names text",
        (Remedy("Fix the spans", files={"t.jsonl": SPANS}),),
    ),
}  # fmt: skip
OF_FILES = {**OF_FLAGS, **OF_TABLE_FILES, **OF_FOLDERS, **OF_WORDS}
