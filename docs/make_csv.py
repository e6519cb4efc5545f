"""Write docstrings.csv for the tutorial: descriptions of Python functions, and their packages."""

import csv
from pathlib import Path

from ampft.data.sources.built_in import load_stdlib

with Path("docstrings.csv").open("w", encoding="utf-8", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["text", "label"])
    for split in load_stdlib().values():
        names = split.features["label"].names
        rows.writerows((row["text"], names[row["label"]]) for row in split)
