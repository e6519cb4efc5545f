"""Eight labels per class: fine-tuning, frozen embeddings and TF-IDF beside SetFit's scores.

Run: `python benchmarks/few_labels.py --data DATA --tables FOLDER --out few-labels.json`, with
DATA holding `custrev.all`, `stsa.fine.train` and `.test`, `ag_news_test.csv` and
`setfit_published.json` (scores of ten draws per data set, from SetFit's repository).

Ten draws of eight training rows per class, and one test set of 500 rows per data set, the
same for all draws and systems:
- fine-tuning: all-MiniLM-L6-v2 with a new head, all weights trained by `ampft.finetune` with
  `SETTINGS`, which were not tuned and are the same for the three data sets; 40 steps are 20, 8 and
  10 epochs of the drawn rows of CR, SST-5 and AG News;
- frozen: logistic regression on the embeddings of all-MiniLM-L6-v2, which are not trained;
- tf-idf: logistic regression on words and pairs of words.

The draws are the seeds of a comparison: `ampft.comparison` computes the differences to `frozen`,
with intervals over draws and test rows, and their verdicts. Tables that FOLDER already holds are
not made again. SetFit's draws and test rows are others, so that its scores are shown, but not
compared.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from provenance import provenance

DRAWS, SHOTS, TEST_ROWS = 10, 8, 500
SETTINGS: dict[str, Any] = {
    "max_train_steps": 40,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-4,
    "warmup_ratio": 0.1,
    "max_seq_length": 128,
    "load_best_model_at_end": False,
}
SYSTEMS = ("frozen", "fine-tuning", "tf-idf")
PUBLISHED = {"CR": "SentEval-CR", "SST-5": "sst5", "AG News": "ag_news"}
INVERSE_REGULARISATION = 10.0  # as of --baseline
Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Texts:
    """Rows to draw from, and test rows."""

    pool: pd.DataFrame  # Columns `text` and `label`, from which training rows are drawn.
    test: pd.DataFrame  # The same columns, `TEST_ROWS` rows.

    def draw(self, number: int) -> pd.DataFrame:
        """Return `SHOTS` rows of each class.

        Args:
            number: Number of the draw, which is its seed.
        """
        by_class = self.pool.groupby("label", sort=True)
        return by_class.sample(n=SHOTS, random_state=number).reset_index(drop=True)


def read_texts(data: Path, name: str) -> Texts:
    """Return the rows of a data set; without a training split, one half is drawn from.

    Args:
        data: Folder of the files.
        name: "CR", "SST-5" or "AG News".
    """
    if name == "SST-5":
        pool, test = (_labelled_lines(data / f"stsa.fine.{part}") for part in ("train", "test"))
    else:
        rows = _labelled_lines(data / "custrev.all") if name == "CR" else _news(data)
        shuffled = rows.sample(frac=1, random_state=0)
        half = len(rows) // 2
        pool, test = shuffled[:half], shuffled[half:]
    pool, test = (rows[rows["text"].str.strip() != ""] for rows in (pool, test))
    test = test.sample(n=TEST_ROWS, random_state=0)
    seen = set(test["text"])
    pool = pool[[text not in seen for text in pool["text"]]]
    return Texts(pool.reset_index(drop=True), test.reset_index(drop=True))


def _labelled_lines(path: Path) -> pd.DataFrame:
    lines = path.read_text(encoding="latin-1").splitlines()
    pairs = [line.split(" ", 1) for line in lines if line.strip()]
    return pd.DataFrame([(text, label) for label, text in pairs], columns=["text", "label"])


def _news(data: Path) -> pd.DataFrame:
    with (data / "ag_news_test.csv").open(encoding="utf-8", newline="") as file:
        rows = [(f"{title} {text}", label) for label, title, text in csv.reader(file)]
    return pd.DataFrame(rows, columns=["text", "label"])


def fine_tuned(train: pd.DataFrame, test: pd.DataFrame, seed: int, folder: Path) -> pd.DataFrame:
    """Fine-tune on a draw; return the predictions of the test rows."""
    import ampft

    with redirect_stdout(io.StringIO()):
        run = ampft.finetune(
            train, test=test, precision="fp32", seed=seed, output_dir=folder, **SETTINGS
        )
    found = run.predictions.sort_values("position")
    assert list(found["text"]) == list(test["text"]), "every test row is predicted once, in order"
    return table(test, list(found["prediction"]))


def table(test: pd.DataFrame, predicted: Sequence[str]) -> pd.DataFrame:
    """Return a table of predictions as `ampft compare --predictions` reads it."""
    rows = {"id": range(len(test)), "label": test["label"], "prediction": list(predicted)}
    return pd.DataFrame(rows).astype(str)


def embeddings(texts: Sequence[str]) -> Probabilities:
    """Return the (n, 384) embeddings of texts, as sentence-transformers computes them."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from ampft.models.minilm import default_model

    folder, _ = default_model(None)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    model = model.float().eval()
    order = np.argsort([len(text) for text in texts], kind="stable")
    rows: list[Probabilities] = []
    with torch.no_grad():
        for start in range(0, len(order), 32):
            batch = [texts[index] for index in order[start : start + 32]]
            inputs = tokenizer(
                batch, padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            real = inputs["attention_mask"].unsqueeze(-1)
            mean = (model(**inputs)[0] * real).sum(1) / real.sum(1)
            rows.append(torch.nn.functional.normalize(mean).numpy())
    found: Probabilities = np.concatenate(rows)[np.argsort(order)]
    return found


def regression(
    features: Callable[[Sequence[str]], Any], train: pd.DataFrame, test: pd.DataFrame
) -> pd.DataFrame:
    """Fit logistic regression on features of the draw; return the predictions of the test rows."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)
    model.fit(features(list(train["text"])), train["label"])
    return table(test, model.predict(features(list(test["text"]))))


def tf_idf(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """Fit TF-IDF and logistic regression on a draw; return the predictions of the test rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(train["text"])
    return regression(vectorizer.transform, train, test)


def predictions(name: str, data: Path, folder: Path) -> list[str]:
    """Write the tables of all systems and draws that are missing; return their names for compare.

    Args:
        name: Data set.
        data: Folder of the files.
        folder: Folder of the tables.
    """
    texts = read_texts(data, name)
    draws = {draw: texts.draw(draw) for draw in range(1, DRAWS + 1)}
    used = pd.concat([texts.test, *draws.values()])["text"].unique().tolist()
    sources, vectors = [], dict[str, Any]()

    def frozen(new: Sequence[str]) -> list[Any]:
        return [vectors[text] for text in new]

    for system in SYSTEMS:
        for draw, train in draws.items():
            path = folder / name / f"{system}-seed{draw}.csv"
            sources.append(str(path))
            if path.is_file():
                continue
            if system == "frozen":
                if not vectors:
                    vectors.update(zip(used, embeddings(used), strict=True))
                rows = regression(frozen, train, texts.test)
            elif system == "tf-idf":
                rows = tf_idf(train, texts.test)
            else:
                with tempfile.TemporaryDirectory() as run:
                    rows = fine_tuned(train, texts.test, draw, Path(run, "run"))
            path.parent.mkdir(parents=True, exist_ok=True)
            rows.to_csv(path, index=False)
            accuracy = (rows["label"] == rows["prediction"]).mean()
            print(f"{name:8} {system:12} draw {draw:2}: {accuracy:.3f}", flush=True)
    return sources


def compared(sources: Sequence[str]) -> dict[str, Any]:
    """Return mean, deviation and draws of each system, and its difference to `frozen`."""
    from ampft.doors.foreign_predictions import compare_tables

    comparison = compare_tables(sources, metric="accuracy", baseline="frozen")
    systems: dict[str, dict[str, Any]] = {}
    for arm in comparison.arms:
        accuracy = arm.metrics["accuracy"]
        systems[arm.name] = {
            "mean": accuracy.mean,
            "sd": accuracy.sd,
            "per_draw": list(accuracy.per_seed),
        }
        if arm.difference is not None:
            assert arm.difference.verdict is not None
            systems[arm.name] |= {
                "difference_to_frozen": arm.difference.estimate,
                "interval_95": list(arm.difference.interval95),
                "p_holm": arm.difference.p_difference_holm,
                "verdict": arm.outcome,
            }
    return systems


def published(data: Path, name: str) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation of the published draws at eight labels per class."""
    rows = json.loads((data / "setfit_published.json").read_text(encoding="utf-8"))
    methods: dict[str, list[float]] = {}
    for row in rows:
        if (row["dataset"], row["shots"]) == (PUBLISHED[name], SHOTS):
            assert row["measure"] == "accuracy"
            methods.setdefault(f"{row['method']}, {row['backbone']}", []).append(row["score"] / 100)
    return {
        method: {
            "mean": statistics.fmean(scores),
            "sd": statistics.stdev(scores),
            "draws": len(scores),
        }
        for method, scores in methods.items()
    }


def main() -> None:
    """Predict with all systems, compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, metavar="DATA")
    parser.add_argument("--sets", default=",".join(PUBLISHED), metavar="a,b")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the predictions")
    parser.add_argument("--out", type=Path, help="JSON file of results")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name in args.sets.split(","):
        if name not in PUBLISHED:
            sys.exit(f"--sets {name}: choose from {', '.join(PUBLISHED)}.")
        results[name] = {
            "systems": compared(predictions(name, args.data, args.tables)),
            "published": published(args.data, name),
        }
    design = {"draws": DRAWS, "shots": SHOTS, "test_rows": TEST_ROWS, "fine_tuning": SETTINGS}
    text = json.dumps({**provenance(), "design": design, "sets": results}, indent=1)
    print(text if args.out is None else f"wrote {args.out}")
    if args.out is not None:
        args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
