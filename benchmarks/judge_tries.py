"""Thirty tries on TREC, of which 24 change nothing: the ledger beside "keep if the score rose".

Run: `python benchmarks/judge_tries.py --data DATA --out benchmarks/results/judge-tries.json --page
docs/judge_tries.md`, with DATA holding TREC's `train_5500.label`. It takes a few minutes on two
cores.

The model is a head (one hidden layer) on frozen embeddings of all-MiniLM-L6-v2, which sorts
questions into six classes, trained in plain torch on a few hundred rows with ten seeds. Its
tables of predictions are judged by `ampft.judge` on 2,000 questions, in a sealed ledger; 2,000
others, which no try uses, tell the truth. Of 30 tries in random order:
- 8 change the seed: a constant is added to all seeds;
- 8 change the order of the training rows;
- 8 change a comment: nothing changes at all, bit for bit;
- 6 change something: three for the better (more epochs, a higher learning rate, twice the rows)
  and three for the worse (a tenth of the learning rate, an eighth of the rows, dropout of 0.9).
Each try changes the best so far. Beside the ledger, two others keep whatever raises the test
score: of one seed, as is usual, and of the mean over ten seeds. Each goes its own way.

The truth of each way is the mean gain of its last best over the first on the other 2,000 questions,
with ten new seeds. The sequence is repeated with other orders, rows and seeds; the page
shows the first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from few_labels import embeddings
from provenance import provenance

import ampft
from ampft.lab.referee.checks import IdenticalPredictions
from ampft.lab.referee.ledger_page import ledger_report, summary, tries_table
from ampft.text.escaping import prose
from ampft.text.numbers import counted, points
from ampft.text.tables import Table, markdown_table

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

SEEDS = tuple(range(1, 11))
NEW_SEEDS = tuple(range(101, 111))
TEST_ROWS, NEW_ROWS = 2000, 2000
LEDGER, ONE_SEED, TEN_SEEDS = "ledger", "score of one seed rose", "mean score of ten seeds rose"
WAYS = (LEDGER, ONE_SEED, TEN_SEEDS)


@dataclass(frozen=True)
class Settings:
    """How a head is trained."""

    rows: int = 400
    epochs: int = 4
    learning_rate: float = 2e-3
    dropout: float = 0.1
    seed_constant: int = 0
    order: int = 0


@dataclass(frozen=True)
class Change:
    """A change of the best."""

    name: str  # What is written into the ledger.
    kind: str  # "better", "worse" or "nothing".
    values: dict[str, Any]  # New values of settings.


@dataclass(frozen=True)
class Questions:
    """Embeddings and labels, and which rows are for what."""

    vectors: FloatArray
    labels: IntArray
    names: tuple[str, ...]
    train: IntArray
    test: IntArray
    new: IntArray


def changes(generator: np.random.Generator) -> list[Change]:
    """Return the 30 changes in a random order."""
    found = [
        Change("12 epochs instead of 4", "better", {"epochs": 12}),
        Change("learning rate 6e-3", "better", {"learning_rate": 6e-3}),
        Change("800 rows instead of 400", "better", {"rows": 800}),
        Change("learning rate 2e-4", "worse", {"learning_rate": 2e-4}),
        Change("50 rows", "worse", {"rows": 50}),
        Change("dropout 0.9", "worse", {"dropout": 0.9}),
    ]
    for number in range(1, 9):
        found.append(Change(f"seed + {1000 * number}", "nothing", {"seed_constant": 1000 * number}))
        found.append(Change(f"order of rows {number}", "nothing", {"order": number}))
        found.append(Change(f"comment {number}", "nothing", {}))
    return [found[index] for index in generator.permutation(len(found))]


def read_questions(data: Path) -> tuple[list[str], list[str]]:
    """Return distinct questions and their coarse labels."""
    lines = (data / "train_5500.label").read_text(encoding="latin-1").splitlines()
    pairs = [line.split(" ", 1) for line in lines if line.strip()]
    by_text = {text: label.partition(":")[0] for label, text in pairs}
    return list(by_text), list(by_text.values())


def divided(vectors: FloatArray, names: Sequence[str], generator: np.random.Generator) -> Questions:
    """Return the questions with rows for training, test and truth."""
    classes = tuple(sorted(set(names)))
    order = generator.permutation(len(names))
    return Questions(
        vectors=vectors,
        labels=np.array([classes.index(name) for name in names]),
        names=classes,
        test=order[:TEST_ROWS],
        new=order[TEST_ROWS : TEST_ROWS + NEW_ROWS],
        train=order[TEST_ROWS + NEW_ROWS :],
    )


def predicted(questions: Questions, settings: Settings, seed: int, rows: IntArray) -> IntArray:
    """Train a head and return its predictions of some rows."""
    torch.manual_seed(seed + settings.seed_constant)
    train = questions.train[: settings.rows]
    if settings.order:
        train = np.random.default_rng(settings.order).permutation(train)
    vectors = torch.from_numpy(questions.vectors)
    x, y = vectors[train], torch.from_numpy(questions.labels[train])
    head = torch.nn.Sequential(
        torch.nn.Linear(vectors.shape[1], 64),
        torch.nn.ReLU(),
        torch.nn.Dropout(settings.dropout),
        torch.nn.Linear(64, len(questions.names)),
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=settings.learning_rate)
    for _ in range(settings.epochs):
        for batch in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(x[batch]), y[batch]).backward()
            optimizer.step()
    head.eval()
    with torch.no_grad():
        found: IntArray = head(vectors[rows]).argmax(dim=1).numpy()
    return found


def accuracies(
    questions: Questions, settings: Settings, seeds: Sequence[int], rows: IntArray
) -> list[float]:
    """Return the accuracy of trainings with some seeds on some rows."""
    labels = questions.labels[rows]
    return [float((predicted(questions, settings, s, rows) == labels).mean()) for s in seeds]


def tables(
    questions: Questions, settings: Settings, folder: Path, name: str, *, is_new: bool = False
) -> list[str]:
    """Train with all seeds and write a table of each: of the test rows, or of new ones."""
    rows, found = questions.new if is_new else questions.test, []
    labels = [questions.names[label] for label in questions.labels[rows]]
    for seed in NEW_SEEDS if is_new else SEEDS:
        values = [questions.names[code] for code in predicted(questions, settings, seed, rows)]
        path = folder / f"{name}-seed{seed}.csv"
        frame = pd.DataFrame({"id": rows, "label": labels, "prediction": values})
        frame.to_csv(path, index=False)
        found.append(str(path))
    return found


@dataclass
class Way:
    """One way through the tries."""

    settings: Settings  # Of its best.
    score: float  # Test score of its best, as it sees it.
    answers: list[str]  # What it said to each try.


def judged(
    way: Way, change: Change, changed: Settings, questions: Questions, folder: Path, number: int
) -> str:
    """Return the ledger's answer to a change."""
    files = tables(questions, changed, folder, f"try{number:02}")
    try:
        judgement = ampft.judge(folder / "ledger", candidate=files, note=change.name)
    except IdenticalPredictions:
        return "no effect"
    if judgement.answer == "keep":
        way.settings = changed
    return str(judgement.answer)


def sequence(vectors: FloatArray, names: Sequence[str], index: int, folder: Path) -> Any:
    """Return what each way keeps of one sequence of tries, and what is true of it."""
    generator = np.random.default_rng(index)
    questions, first = divided(vectors, names, generator), Settings()
    tried = changes(generator)
    ampft.judge(
        folder / "ledger",
        best=tables(questions, first, folder, "first"),
        settings=ampft.LedgerSettings(tries=len(tried)),
    )
    scores = accuracies(questions, first, SEEDS, questions.test)
    ways = {
        LEDGER: Way(first, fmean(scores), []),
        ONE_SEED: Way(first, scores[0], []),
        TEN_SEEDS: Way(first, fmean(scores), []),
    }
    for number, change in enumerate(tried, start=1):
        for name, way in ways.items():
            changed = replace(way.settings, **change.values)
            if name == LEDGER:
                way.answers.append(judged(way, change, changed, questions, folder, number))
                continue
            seeds = SEEDS[:1] if name == ONE_SEED else SEEDS
            score = fmean(accuracies(questions, changed, seeds, questions.test))
            is_kept = score > way.score
            way.answers.append("keep" if is_kept else "drop")
            if is_kept:
                way.settings, way.score = changed, score
    if ways[LEDGER].settings != first:
        ampft.judge(
            folder / "ledger",
            final=True,
            note="the last best",
            candidate=tables(questions, ways[LEDGER].settings, folder, "last-new", is_new=True),
            best=tables(questions, first, folder, "first-new", is_new=True),
        )
    seen = accuracies(questions, ways[LEDGER].settings, SEEDS, questions.test)
    ways[LEDGER].score = fmean(seen)
    starts = {LEDGER: fmean(scores), ONE_SEED: scores[0], TEN_SEEDS: fmean(scores)}
    before = fmean(accuracies(questions, first, NEW_SEEDS, questions.new))
    found = {}
    for name, way in ways.items():
        kinds = [c.kind for c, answer in zip(tried, way.answers, strict=True) if answer == "keep"]
        after = fmean(accuracies(questions, way.settings, NEW_SEEDS, questions.new))
        found[name] = {
            "kept": {kind: kinds.count(kind) for kind in ("better", "nothing", "worse")},
            "claimed": way.score - starts[name],
            "true": after - before,
            "answers": way.answers,
            "settings": asdict(way.settings),
        }
    return {
        "start": before,
        "changes": [(change.name, change.kind) for change in tried],
        "ways": found,
    }


def page(results: Sequence[Any], ledger: Path) -> str:
    """Return the page about all sequences, with the tries of the first."""
    report, number = ledger_report(ledger), len(results)
    parts = [
        "# Thirty tries, of which 24 change nothing",
        "TREC's questions in six classes, a head on frozen embeddings of all-MiniLM-L6-v2, ten "
        f"seeds, {TEST_ROWS:,} test questions: 24 of 30 changes change nothing (another seed, "
        "another order of the rows, a comment), three are for the better and three for the worse. "
        "`benchmarks/judge_tries.py` makes this page; it runs in a few minutes.",
        f"## {counted(number, 'sequence')}",
        markdown_table(_kept(results)),
        f"Means over {counted(number, 'sequence')} with other orders, rows and seeds. The claimed "
        "gain is the test score of the last best minus that of the first; the true gain is "
        f"measured on {NEW_ROWS:,} other questions with ten new seeds. A comment, which changes "
        "no bit, is refused by the ledger as no effect. Rows and epochs were chosen after a first "
        "trial with fewer, in which the ledger kept one of three gains (`benchmarks/LOG.md`).",
        "## The tries of the first sequence",
        markdown_table(_tried(results[0])),
        "## Its ledger",
        "\n".join(f"- {prose(line)}" for line in summary(report)),
        markdown_table(tries_table(report)),
        "The same as a page: `ampft judge LEDGER --page ledger.html`. "
        "[How the referee decides](judge.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _tried(result: Any) -> Table:
    """Return the tries of a sequence with the answers of each way."""
    rows = [
        (str(index), name, kind, *(result["ways"][way]["answers"][index - 1] for way in WAYS))
        for index, (name, kind) in enumerate(result["changes"], start=1)
    ]
    return Table(header=("try", "change", "true effect", *WAYS), rows=rows, left=6)


def _kept(results: Sequence[Any]) -> Table:
    """Return what each way kept, claimed and gained."""
    rows = []
    for way in WAYS:
        every = [result["ways"][way] for result in results]
        kinds = ("better", "nothing", "worse")
        counts = [f"{fmean(each['kept'][kind] for each in every):.1f}" for kind in kinds]
        gains = [points(fmean(each[key] for each in every)) for key in ("claimed", "true")]
        wrong = sum(each["kept"]["nothing"] + each["kept"]["worse"] > 0 for each in every)
        rows.append((way, *counts, *gains, str(wrong)))
    header = ("keep if", "kept: better", "kept: nothing", "kept: worse")
    more = ("claimed gain, points", "true gain, points", "sequences with a false keep")
    return Table(header=(*header, *more), rows=rows)


def main() -> None:
    """Run all sequences and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--page", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts, names = read_questions(args.data)
    vectors = np.ascontiguousarray(embeddings(texts), dtype=np.float32)
    results = []
    with tempfile.TemporaryDirectory() as name:
        for index in range(args.sequences):
            folder = Path(name) / str(index)
            folder.mkdir()
            started = time.process_time()
            results.append(sequence(vectors, names, index, folder))
            results[-1]["cpu_seconds"] = round(time.process_time() - started, 1)
            ways = results[-1]["ways"]
            print(json.dumps({way: {**ways[way], "answers": None} for way in WAYS}), flush=True)
            if args.out is not None:
                document = {"provenance": provenance(), "results": results}
                args.out.write_text(json.dumps(document, indent=1) + "\n")
            if args.page is not None:
                args.page.write_text(page(results, Path(name) / "0" / "ledger"), encoding="utf-8")


if __name__ == "__main__":
    main()
