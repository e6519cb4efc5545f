"""Tiny files to load."""

from pathlib import Path

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data

SHARED = Path(__file__).resolve().parents[2] / "../shared/data"
ROWS = [(f"text {i}", "ab"[i % 2]) for i in range(40)]
NO_SPLITS = {"validation_fraction": 0.0, "test_fraction": 0.0}


def csv_of(rows, header="text,label"):
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


GOOD = csv_of(ROWS)


def write(folder, content, name="train.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def load(folder, content, name="train.csv", **options):
    path = write(folder, content, name)
    return load_data(ClassifyArguments(train_file=path, **{**NO_SPLITS, **options}))


def rows_of(data, split="train"):
    part = data.splits[split]
    columns = [part[name][:] for name in data.input_columns]
    labels = [data.label_names[code] for code in part["label"]]
    return list(zip(*columns, labels, strict=True))
