"""Where numbers and categories beside a text are best put: before it, after it, or in a pair.

Run: `python benchmarks/feature_columns.py --data ../shared/data --out
benchmarks/results/feature-columns.json`, and `--table` for its table. MiniLM trains without
settings on 256 rows and is tested on 400; texts are cut at 48 tokens.

Sets: `docstrings`, the first sentence of a function of the standard library, whose package is to be
found, with its kind, its number of arguments and its number of lines; `readers`, sentences of SST-2
with an age and a country that are drawn: negative ones are "complaint", the others "young" or "old"
by the age (from 40), so that only the age tells two classes apart.

Forms: `none`, only the text; `before` and `after`, as `ampft.decision.described` writes them;
`pair`, written as the first text of a pair; `regression`, without text: logistic regression of the
columns.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import json
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from provenance import provenance, write_results
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import ampft
from ampft.data.sources.built_in import CLASSES
from ampft.decision import described

FORMS = ("before", "pair", "none", "regression", "after")
TRAIN, TEST = 256, 400
FEATURES = {"readers": ("age", "country"), "docstrings": ("kind", "arguments", "lines")}


def _functions() -> Iterator[dict[str, Any]]:
    library = Path(sysconfig.get_path("stdlib"))
    for name in CLASSES:
        module = library / f"{name}.py"
        for path in [module] if module.is_file() else sorted((library / name).rglob("*.py")):
            if "test" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    continue
                text = inspect.cleandoc(ast.get_docstring(node) or "").split("\n\n")[0]
                if len(text) > 10:
                    arguments = None if isinstance(node, ast.ClassDef) else len(node.args.args)
                    yield {
                        "kind": "class" if arguments is None else "function",
                        "arguments": arguments,
                        "lines": int(node.end_lineno or 0) - node.lineno + 1,
                        "text": " ".join(text.split()),
                        "label": name,
                    }


def rows_of(data: Path, name: str) -> pd.DataFrame:
    """Return all rows of a set, shuffled in one way."""
    if name == "docstrings":
        return pd.DataFrame(_functions()).drop_duplicates("text").sample(frac=1, random_state=0)
    lines = [line.rsplit("\t", 1) for line in (data / "sst2/train.tsv").read_text().splitlines()]
    rows = pd.DataFrame(lines, columns=["text", "sentiment"]).drop_duplicates("text")
    random = np.random.default_rng(0)
    rows["age"] = random.integers(16, 80, len(rows))
    rows["country"] = random.choice(["France", "India", "Kenya", "Peru"], len(rows))
    positive = np.where(rows["age"] < 40, "young", "old")
    rows["label"] = np.where(rows["sentiment"] == "0", "complaint", positive)
    return rows.drop(columns="sentiment").sample(frac=1, random_state=0)


def in_form(rows: pd.DataFrame, features: tuple[str, ...], form: str) -> pd.DataFrame:
    """Return the rows with their columns said in the text, or as text `a` of a pair."""
    cells = [dict(zip(features, row, strict=True)) for row in rows[list(features)].to_numpy()]
    said = [described(each, "").strip() for each in cells]
    texts = rows["text"].tolist()
    made = pd.DataFrame({"text": texts, "label": rows["label"].tolist()})
    if form == "pair":
        made.insert(0, "said", said)
    elif form != "none":
        pairs = zip(said, texts, strict=True)
        made["text"] = [" ".join(each if form == "before" else each[::-1]) for each in pairs]
    return made


def regression(train: pd.DataFrame, test: pd.DataFrame, features: tuple[str, ...]) -> float:
    """Return the accuracy of logistic regression of the columns without the text."""
    numbers = [name for name in features if pd.api.types.is_numeric_dtype(train[name])]
    others = [name for name in features if name not in numbers]
    columns = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), others)
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=1000))
    parts = [part[list(features)].fillna(dict.fromkeys(numbers, -1)) for part in (train, test)]
    return float(model.fit(parts[0], train["label"]).score(parts[1], test["label"]))


def measure(data: Path, name: str, form: str, seed: int) -> float:
    """Return the accuracy on the test rows, which are the same for all seeds."""
    rows, features = rows_of(data, name), FEATURES[name]
    test, train = rows[:TEST], rows[TEST:].sample(TRAIN, random_state=seed)
    test = test[test["label"].isin(set(train["label"]))]
    if form == "regression":
        return regression(train, test, features)
    columns = {"text_column_names": "said,text"} if form == "pair" else {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = ampft.finetune(
            in_form(train, features, form), test=in_form(test, features, form),
            output_dir=f"{folder}/run", seed=seed, max_seq_length=48, cpu_threads=1,
            serve_back=False, baseline=False, **columns,
        )  # fmt: skip
        return float(run.record.metrics["accuracy"])


def main() -> None:
    """Measure the cells that the file lacks, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    known = json.loads(arguments.out.read_text())["results"] if arguments.out.exists() else []
    cells = [(s, n, f) for s in range(1, arguments.seeds + 1) for n in FEATURES for f in FORMS]
    done = {(each["seed"], each["set"], each["form"]) for each in known}
    for seed, name, form in [] if arguments.table else cells:
        if (seed, name, form) in done:
            continue
        accuracy = measure(arguments.data, name, form, seed)
        known.append({"set": name, "form": form, "seed": seed, "accuracy": accuracy})
        print(known[-1], flush=True)
        write_results(arguments.out, {**provenance(), "results": known})
    table = pd.DataFrame(known).pivot_table("accuracy", "form", "set", aggfunc=["mean", "count"])
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
