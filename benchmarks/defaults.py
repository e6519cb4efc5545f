"""What a run without settings reaches, beside simple methods and the Trainer's defaults.

Run: `python benchmarks/defaults.py --data ../shared/data --out benchmarks/results/defaults.json`,
and `--table` for the table of a file. Cells that the file has already are not measured again.
MiniLM trains on `size` rows (0: all; validation rows of 10 % are among them), drawn by the seed,
the classes in turn, or as they come where `AS_THEY_COME` has the set. It is tested on at most 400
rows that are the same for all. Texts are cut at 48 tokens, or as `TOKENS` says. With one row of
each class, no validation rows are used, because a class needs two rows to be split. `SOURCES` are
files of public repositories that `../shared/data` does not have: they are read in the folder `more`
of `--data`, under the names there. `--model` takes another encoder, such as a folder that
`small_encoders.py` wrote; give it a separate file of results.

Arms: `default`, no settings; `before`, the defaults until the head began at a probe (three epochs
from a random head on the first token); `trainer`, the defaults of transformers' Trainer (like
`before`, with the learning rate 5e-5 and without validation); `longer`, `before` with the epochs of
`default`. `frozen` and `tf-idf` are the simple methods of `default`. Arms that led to the default:
`whole`, from all of the probe at the rate 1e-4; `whole-slow`, at half of it; `strong`, `whole` with
the strongest regularisation; `mean`, a random head on the mean; `longest`, two classes with the
epochs of others. `calibrated` is `default` with `--calibrate`: the same predictions, unless another
epoch is kept. `demo-ARM` takes the settings of the docstrings of README (size 1836: all rows).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import json
import math
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from provenance import provenance, write_results
from scipy.special import stdtrit

import ampft
from ampft.arguments.classify import BUILT_IN_DEFAULTS, EPOCHS, LEAST_STEPS, MOST_EPOCHS
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.interval import half_widths
from ampft.data.sources.built_in import TEST_FOLDERS, docstrings, first_paragraph, load_stdlib
from ampft.evaluation.simple_methods import BAG_OF_WORDS, FROZEN
from ampft.metrics.paired import LEVEL, PairedGain, paired_gain
from ampft.text.numbers import points

TEST_ROWS = 400
MARGIN = 0.01  # of accuracy, within which two methods are as good
SIMPLE = {BAG_OF_WORDS: "tf-idf", FROZEN: "frozen"}
ARMS = (
    "default",
    "before",
    "trainer",
    "longer",
    "whole",
    "whole-slow",
    "strong",
    "mean",
    "longest",
    "calibrated",
)
OLD: dict[str, Any] = {"pooling": "first", "head_init": "random"}
FAST = {"learning_rate": 1e-4}
PATCHES: dict[str, dict[str, Any]] = {  # of constants that no flag sets
    "whole": {"ampft.runs.prepare.START": 1.0},
    "whole-slow": {"ampft.runs.prepare.START": 1.0},
    "strong": {"ampft.runs.prepare.START": 1.0, "ampft.evaluation.probe.STRENGTHS": (1.0,) * 3},
}
TITLES = {
    "cr": "customer reviews",
    "sst2": "SST-2",
    "trec": "TREC",
    "trec50": "TREC fine",
    "sst5": "SST-5",
    "ag_news": "AG News",
    "docstrings": "docstrings",
    "mrpc": "MRPC (pairs)",
    "modules": "docstrings by module",
    "emotions": "GoEmotions, one label",
    "noisy_cr": "customer reviews, a quarter of the labels wrong",
    "banking": "BANKING77",
    "clinc": "CLINC150",
    "sms": "SMS spam",
    "tweets": "hate speech",
    "gnad": "German news",
    "subj": "subjectivity",
    "mpqa": "MPQA phrases",
}
SOURCES = {  # repository, commit, file there, name in `more`
    "banking": ("PolyAI-LDN/task-specific-datasets", "57ec275d", "banking_data/{train,test}.csv",
                "banking_{train,test}.csv"),
    "clinc": ("clinc/oos-eval", "828f8093", "data/data_full.json", "clinc.json"),
    "sms": ("justmarkham/pycon-2016-tutorial", "53397105", "data/sms.tsv", "sms.tsv"),
    "tweets": ("t-davidson/hate-speech-and-offensive-language", "cb50f7e9",
               "data/labeled_data.csv", "davidson.csv"),
    "gnad": ("tblock/10kGNAD", "da845fe4", "test.csv", "gnad_test.csv"),
    "subj": ("harvardnlp/sent-conv-torch", "d61ded09", "data/subj.all", "subj.all"),
    "mpqa": ("harvardnlp/sent-conv-torch", "d61ded09", "data/mpqa.all", "mpqa.all"),
}  # fmt: skip
AS_THEY_COME = {"emotions", "sms", "tweets"}  # sets with rare classes
TOKENS = {"gnad": 128}  # the tool's default
FOREIGN = {"site-packages", "dist-packages", "lib2to3", "idlelib", "ensurepip"}  # or not everywhere
LEAST_TEXTS = 20  # of a module
WRONG = 0.25  # share of the labels of `noisy_cr`
CELL = ["set", "size", "seed"]


def settings_of(arm: str, size: int) -> dict[str, Any]:
    """Return the settings of an arm."""
    epochs = max(EPOCHS, min(MOST_EPOCHS, math.ceil(LEAST_STEPS / math.ceil(0.9 * size / 8))))
    arms: dict[str, dict[str, Any]] = {
        "default": {},
        "before": {**OLD, "num_train_epochs": EPOCHS},
        "trainer": {
            **OLD, "num_train_epochs": EPOCHS, "learning_rate": 5e-5, "validation_fraction": 0.0
        },
        "longer": {**OLD, "num_train_epochs": epochs},
        "whole": FAST,
        "whole-slow": {},
        "strong": FAST,
        "mean": {"pooling": "mean", "head_init": "random"},
        "longest": {"num_train_epochs": epochs},
        "calibrated": {"calibrate": True},
    }  # fmt: skip
    own = arms[arm.removeprefix("demo-")]
    return {**own, **BUILT_IN_DEFAULTS["stdlib"]} if arm.startswith("demo-") else own


def _labelled(path: Path) -> pd.DataFrame:
    """Read lines of a label, a space and a text."""
    lines = [line.split(" ", 1) for line in path.read_text("latin-1").split("\n") if line]
    return pd.DataFrame([(text, label) for label, text in lines], columns=["text", "label"])


def _halves(rows: pd.DataFrame, test: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return distinct texts in two parts, the second of `test` rows."""
    rows = rows.drop_duplicates("text").sample(frac=1, random_state=0)
    return rows[test:], rows[:test]


def _modules() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return first paragraphs of docstrings, by the modules of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        if TEST_FOLDERS.isdisjoint(place.parts) and place.parts[0] not in FOREIGN:
            name = ".".join(place.with_suffix("").parts)
            with contextlib.suppress(SyntaxError):
                found += [(first_paragraph(text), name) for text in docstrings(path)]
    rows = pd.DataFrame(found, columns=["text", "label"]).drop_duplicates("text", keep=False)
    return _halves(rows.groupby("label").filter(lambda part: len(part) >= LEAST_TEXTS), 800)


def _emotions(path: Path) -> pd.DataFrame:
    rows = pd.read_csv(
        path, sep="\t", header=None, names=["text", "label", "id"], dtype=str, quoting=3
    )
    return rows[~rows["label"].str.contains(",")].drop_duplicates("text")


def _noisy_reviews(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return customer reviews whose labels in training are the other one in a quarter of rows."""
    train, test = rows_of(data, "cr")
    is_wrong = np.random.default_rng(0).random(len(train)) < WRONG
    other = train["label"].map({"0": "1", "1": "0"})
    return train.assign(label=train["label"].mask(is_wrong, other)), test


def _table(path: Path, names: Sequence[str], **given: Any) -> pd.DataFrame:
    return pd.read_csv(path, names=names, dtype=str, **given)[["text", "label"]]


def _banking(more: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = (
        _table(more / f"banking_{part}.csv", ["text", "label"], header=0)
        for part in ("train", "test")
    )
    return train.drop_duplicates("text"), test


def _clinc(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training and test rows, without those out of scope."""
    parts = json.loads(path.read_text("utf-8"))
    train, test = (
        pd.DataFrame(parts[part], columns=["text", "label"]).drop_duplicates("text")
        for part in ("train", "test")
    )
    return train, test


def _ag_news(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = pd.read_csv(path, header=None, names=["label", "title", "rest"], dtype=str)
    rows = pd.DataFrame({"text": rows["title"] + ". " + rows["rest"], "label": rows["label"]})
    rows = rows.sample(frac=1, random_state=0)
    return rows[3800:], rows[:3800]


# Sets that `rows_of` does not read itself, by functions of the data folder.
READERS: dict[str, Callable[[Path], tuple[pd.DataFrame, pd.DataFrame]]] = {
    "ag_news": lambda data: _ag_news(data / "few_labels/ag_news_test.csv"),
    "modules": lambda data: _modules(),
    "emotions": lambda data: (
        _emotions(data / "goemotions/train.tsv"), _emotions(data / "goemotions/test.tsv")
    ),
    "noisy_cr": _noisy_reviews,
    "banking": lambda data: _banking(data / "more"),
    "clinc": lambda data: _clinc(data / "more/clinc.json"),
    "sms": lambda data: _halves(
        _table(data / "more/sms.tsv", ["label", "text"], sep="\t", quoting=csv.QUOTE_NONE), 2000
    ),
    "tweets": lambda data: _halves(
        _table(
            data / "more/davidson.csv",
            ["id", "count", "hate", "offensive", "neither", "label", "text"],
            header=0,
        ),
        2000,
    ),
    "gnad": lambda data: _halves(
        _table(data / "more/gnad_test.csv", ["label", "text"], sep=";", quotechar="'"), 400
    ),
    "subj": lambda data: _halves(_labelled(data / "more/subj.all"), 2000),
    "mpqa": lambda data: _halves(_labelled(data / "more/mpqa.all"), 2000),
}  # fmt: skip


@cache
def rows_of(data: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to draw from, and the test rows."""
    if name in READERS:
        return READERS[name](data)
    if name == "cr":
        rows = _labelled(data / "few_labels/custrev.all").sample(frac=1, random_state=0)
        return rows[1000:], rows[:1000]
    if name == "sst5":
        parts = [_labelled(data / f"few_labels/stsa.fine.{part}") for part in ("train", "test")]
        return parts[0].drop_duplicates("text"), parts[1]
    if name == "docstrings":
        splits = {part: rows.to_pandas() for part, rows in load_stdlib().items()}
        return pd.concat([splits["train"], splits["validation"]]), splits["test"]
    if name == "sst2":
        train, test = (
            pd.DataFrame(
                [
                    line.rsplit("\t", 1)
                    for line in (data / f"sst2/{part}.tsv").read_text().splitlines()
                ],
                columns=["text", "label"],
            ).drop_duplicates("text")
            for part in ("train", "test")
        )
        return train, test
    if name.startswith("trec"):
        parts = [_labelled(data / f"trec/{file}.label") for file in ("train_5500", "TREC_10")]
        if name != "trec50":
            for part in parts:
                part["label"] = part["label"].str.split(":").str[0]
        if name == "trec2":
            parts = [part[part["label"].isin(["DESC", "ENTY"])] for part in parts]
        return parts[0].drop_duplicates("text"), parts[1]
    if name == "mrpc":
        parts = []
        for part in ("train", "test"):
            path = next((data / "mrpc").glob(f"*{part}*"))
            with path.open(encoding="utf-8-sig") as stream:
                table = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
            parts.append(
                pd.DataFrame([(r[3], r[4], r[0]) for r in table], columns=["text", "b", "label"])
            )
        return parts[0], parts[1]
    raise SystemExit(f"no set {name}")


def drawn(pool: pd.DataFrame, size: int, seed: int, *, in_turn: bool = True) -> pd.DataFrame:
    """Return `size` rows, the classes in turn until they have none left, or as they come."""
    shuffled = pool.sample(frac=1, random_state=seed)
    if not in_turn:
        return shuffled[:size]
    turn = shuffled.groupby("label").cumcount()
    return shuffled.iloc[np.argsort(turn.to_numpy(), kind="stable")[:size]]


def parts_of(
    data: Path, cell: Mapping[str, Any], test_rows: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the training rows (size 0: all) and the test rows of a cell, without empty texts."""
    pool, test = rows_of(data, cell["set"])
    in_turn = cell["set"] not in AS_THEY_COME
    train = drawn(pool, cell["size"] or len(pool), cell["seed"], in_turn=in_turn)
    test = test.sample(frac=1, random_state=0)[:test_rows]
    return train[train["text"].str.strip() != ""], test[test["text"].str.strip() != ""]


def measure(
    data: Path, cell: Mapping[str, Any], arm: str, precision: str, model: str | None = None
) -> list[dict[str, Any]]:
    """Train an arm; return its result and, beside `default`, those of the simple methods.

    `right` has a character for each test row: 1 or 0, or a hyphen for a class without a training
    row.
    """
    train, test = parts_of(data, cell, TEST_ROWS)
    known = test["label"].isin(set(train["label"])).to_numpy()
    own = {**settings_of(arm, len(train)), "max_seq_length": TOKENS.get(cell["set"], 48)}
    if train["label"].is_unique:
        own["validation_fraction"] = 0.0
    started = time.process_time()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        for name, value in PATCHES.get(arm.removeprefix("demo-"), {}).items():
            stack.enter_context(patch(name, value))
        run = ampft.finetune(
            train, test=test[known], output_dir=f"{folder}/run",
            seed=cell["seed"], mixed_precision=precision, cpu_threads=1, serve_back=False,
            baseline=arm == "default", model_name_or_path=model,
            **own,
        )  # fmt: skip
        seconds, record, rows = time.process_time() - started, run.record, run.predictions
    right = np.full(len(test), "-")
    right[known] = np.where(rows["prediction"] == rows["label"], "1", "0")
    results = [
        {
            **cell,
            "arm": arm,
            "accuracy": record.metrics["accuracy"],
            "log_loss": record.metrics["log_loss"],
            "cpu_seconds": round(seconds, 1),
            "right": "".join(right),
            "device": f"CPU, {precision}",
        }
    ]
    results[0]["head_scale"] = 1.0 if record.head_scale is None else record.head_scale.factor
    if (part := record.decisions) is not None:
        untouched = part.figures["log_loss"].untouched
        results[0] |= {"temperature": part.temperature, "untouched_log_loss": untouched}
    for method in record.simple_methods:
        if method.name in SIMPLE and method.metrics:
            gain = method.difference
            assert gain is not None
            results.append(
                {
                    **cell,
                    "arm": SIMPLE[method.name],
                    "accuracy": method.metrics["accuracy"],
                    "log_loss": method.metrics.get("log_loss"),
                    "minus_default": [gain.value, gain.low, gain.high],
                    "device": f"CPU, {precision}",
                }
            )
    return results


def gain_interval(default: str, other: str) -> tuple[float, float, float]:
    """Return the accuracy of `other` minus the default's, with its 95 % interval over the rows."""
    pairs = [(a == "1", b == "1") for a, b in zip(default, other, strict=True) if a != "-"]
    first, second = np.array(pairs, dtype=float).T
    gain: PairedGain = paired_gain(second, first, np.ones(len(pairs)))
    half = float(stdtrit(gain.cases - 1, 1 - LEVEL / 2)) * gain.error
    return gain.mean, gain.mean - half, gain.mean + half


def gains(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return each arm minus the default, with an interval, by set, size and arm.

    From three draws on, it is over draws and test rows, by the rule of comparisons over seeds. The
    draws have the same test rows, whose covariance is taken to be as large as it can be. Of fewer
    draws, it has the mean bounds over the rows, for these trainings only.
    """
    default = {tuple(r[key] for key in CELL): r for r in results if r["arm"] == "default"}
    rows = []
    for result in results:
        base = default.get(tuple(result[key] for key in CELL))
        if base is None or result["arm"] == "default":
            continue
        found = result.get("minus_default") or gain_interval(base["right"], result["right"])
        rows.append([result["set"], result["size"], result["arm"], *found])
    table = pd.DataFrame(rows, columns=["set", "size", "arm", "gain", "low", "high"])
    return table.groupby(["set", "size", "arm"]).apply(over_draws).reset_index()


def over_draws(draws: pd.DataFrame) -> pd.Series[float]:
    """Return the mean gain of some draws of a cell, with its interval."""
    mean = draws[["gain", "low", "high"]].mean()
    if len(draws) < MIN_SEEDS:
        return mean
    error = (draws["high"] - draws["low"]) / 2 / -stdtrit(TEST_ROWS - 1, LEVEL / 2)
    variance = float((error**2).mean())
    (half,) = half_widths(
        LEVEL / 2,
        seed_variances=np.array([draws["gain"].var(ddof=1)]),
        seeds=len(draws),
        jackknife_variance=variance,
        covariance=variance,
        cases=TEST_ROWS,
    )
    return pd.Series(
        {"gain": mean["gain"], "low": mean["gain"] - half, "high": mean["gain"] + half}
    )


def verdict(low: float, high: float) -> str:
    """Return what an interval of another method minus the default says of the default."""
    if high < 0:
        return "better"
    if low > 0:
        return "worse"
    return "as good" if max(-low, high) <= MARGIN else "undecided"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return mean accuracies, verdicts of the default, and its mean gains over the sets."""
    wide = pd.DataFrame(results).pivot_table(index=CELL, columns="arm", values="accuracy")
    order = [arm for arm in ("tf-idf", "frozen", *reversed(ARMS)) if arm in wide]
    order += [arm for arm in wide if arm.startswith("demo-")]
    means = (100 * wide[order]).groupby(["set", "size"]).mean().round(1)
    found = gains(results)
    found["verdict"] = list(map(verdict, found["low"], found["high"]))
    verdicts = found.pivot_table(
        index=["set", "size"], columns="arm", values="verdict", aggfunc="first"
    )
    lines = [means.to_string(na_rep="-"), "", "the default against the arm", "(rows, averaged):"]
    lines.append(verdicts[[arm for arm in order if arm in verdicts]].to_string(na_rep="-"))
    for arm in order:
        of_sets = 100 * found[found["arm"] == arm].groupby("set")["gain"].mean()
        if len(of_sets):
            error = of_sets.std(ddof=1) / math.sqrt(len(of_sets))
            counts = found.loc[found["arm"] == arm, "verdict"].value_counts().to_dict()
            lines.append(
                f"default - {arm}: {-of_sets.mean():+.1f} points (SE over {len(of_sets)} sets "
                f"{error:.1f}); cells {counts}"
            )
    seconds = pd.DataFrame(results).pivot_table(index="size", columns="arm", values="cpu_seconds")
    return "\n".join([*lines, "", "processor seconds", seconds.round(0).to_string()])


def page_rows(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows of the table in `docs/defaults.md`.

    The best other is an arm with all draws of the default. The log losses are of draws with a known
    `head_scale`, if there are any.
    """
    by_arm: dict[tuple[int, str], dict[str, list[Mapping[str, Any]]]] = {}
    for result in results:
        cell = by_arm.setdefault((result["size"], result["set"]), {})
        cell.setdefault(result["arm"], []).append(result)
    found = gains(results).set_index(["size", "set", "arm"])
    lines = []
    for (size, name), arms in sorted(
        by_arm.items(), key=lambda item: (item[0][0] or math.inf, item[0][1])
    ):
        mean = {arm: sum(row["accuracy"] for row in rows) / len(rows) for arm, rows in arms.items()}
        scaled = {row["seed"] for row in arms["default"] if "head_scale" in row}
        losses = {
            arm: [r["log_loss"] for r in arms[arm] if not scaled or r["seed"] in scaled]
            for arm in ("default", "frozen")
        }
        losses_text = " (".join(f"{np.mean(rows):.2f}" for rows in losses.values())
        others = ("tf-idf", "frozen", "trainer", "before")
        draws = {arm: {row["seed"] for row in rows} for arm, rows in arms.items()}
        complete = [arm for arm in others if draws.get(arm, set()) >= draws["default"]]
        best = max(complete, key=lambda arm: mean[arm])
        gain = found.loc[size, name, best]
        value, low, high = (points(-gain[key]) for key in ("gain", "high", "low"))
        lines.append(
            f"| {TITLES[name]}, {f'{size:,}' if size else 'all'} | "
            + " | ".join(f"{100 * mean[arm]:.1f}" if arm in arms else "-" for arm in others)
            + f" | **{100 * mean['default']:.1f}** | {value} ({low} to {high}) | "
            f"{losses_text}) |"
        )
    return lines


def main() -> None:
    """Measure the missing cells, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(TITLES))
    parser.add_argument("--sizes", default="16,64,256,1024")
    parser.add_argument("--arms", default="default,before,trainer")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--mixed_precision", default="fp32")
    parser.add_argument("--model")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    results = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    if args.table:
        print(table(results), *page_rows(results), sep="\n")
        return
    done = {(*(r[key] for key in CELL), r["arm"]) for r in results}
    grid = itertools.product(
        range(args.seeds),
        map(int, args.sizes.split(",")),
        args.sets.split(","),
        args.arms.split(","),
    )
    for seed, size, name, arm in grid:
        if (name, size, seed, arm) not in done:
            cell = {"set": name, "size": size, "seed": seed}
            results += measure(args.data, cell, arm, args.mixed_precision, args.model)
            write_results(args.out, {**provenance(), "results": results})


if __name__ == "__main__":
    main()
