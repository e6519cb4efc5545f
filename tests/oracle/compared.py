"""Comparisons of two finished models, recomputed from what both predict.

The rows are new ones, whose labels are made from both models: so that one is better where a word
is, and the other elsewhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from oracle import product
from oracle.cases import Case, Disagreement, Settings, compare
from oracle.decide import PRECISE, answer, shares_of
from oracle.draw import Drawn, more_rows, save_model, write
from oracle.read import text_of
from oracle.report import single_label
from oracle.train import encode, load, logits_of

COUNT = 150
TASKS = ("text", "pairs", "ordinal")
LEAST = 20  # Rows of a class, length or word that is examined.
Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Rows that both models predict."""

    names: list[str]
    truth: np.ndarray  # (n,) classes.
    answers: Pair  # (n,) classes that each model predicts.
    units: np.ndarray  # (n,) number of what each row belongs to: rows that are not independent.
    words: list[list[str]]

    def right(self, model: int) -> np.ndarray:
        """Return (n,) whether a model is right."""
        return np.asarray(self.answers[model] == self.truth)


def on_a_file(
    trained: tuple[Case, Drawn, product.RunFolder], words: list[object], settings: Settings
) -> list[Disagreement]:
    """`ampft compare OLD NEW --on FILE`."""
    case, drawn, run = trained
    if case.task not in TASKS or case.processes > 1 or "abstain" in settings:
        return []
    folder = drawn.model.parent
    names = run.record["label_names"]
    other = replace(drawn, model=folder / "other-model")
    save_model(replace(case, seed=case.seed + 1), list(names), other.model)
    output = folder / "new"
    done = product.train(
        [*other.words(), *words, "--output_dir", output, *product.flags(settings)], output
    )
    if done.code:
        return []
    runs = (run, product.RunFolder(output))
    rows, shares, is_close = _labelled(case, drawn, runs)
    if is_close:  # rounding may change an answer
        return []
    path, result = folder / f"today.{case.format}", folder / "on"
    kept = {name: value for name, value in case.settings.items() if name != "sheet_name"}
    write(path, rows, False, kept)  # the command reads the first sheet
    done = product.command("compare", run.folder, output, "--on", path, "--output_dir", result)
    if done.code:
        return [Disagreement("ampft compare --on", f"exit code {done.code}: {done.err[-600:]}", 0)]
    read = _read(case, drawn, names, rows, shares, runs)
    told = " ".join(done.out.split())
    return check(read, shares, json.loads((result / "comparison.json").read_text()), told)


def _labelled(
    case: Case, drawn: Drawn, runs: Sequence[product.RunFolder]
) -> tuple[list[dict[str, Any]], Pair, bool]:
    """Return rows with labels, the probabilities of both models, and whether one may tip over."""
    random_ = random.Random(case.seed + 2)
    plain = {"columns"} & set(case.traits)
    rows = more_rows(replace(case, traits=tuple(plain)), COUNT, random_)
    names, shares, is_close = runs[0].record["label_names"], [], False
    answers: list[list[str]] = []
    for run in runs:
        model, tokenizer = load(case, run.folder)
        logits = np.stack([
            logits_of(model, encode(case, tokenizer, text_of(case, drawn, row))).detach().numpy()
            for row in rows
        ])  # fmt: skip
        rule = run.decision["rule"]["decisions"]
        shares.append(shares_of(case, names, logits, rule.get("logit_temperature") or 1.0))
        made = [answer(case, names, each, rule) for each in shares[-1]]
        answers.append([label for label, _, _ in made])
        is_close |= min(gap for _, _, gap in made) < 2 * PRECISE
    for index, row in enumerate(rows):
        has_word = {"w1", "w2", "w3", "w4"} & set(str(row[drawn.texts[0]]).split())
        chance = random_.random()
        own = answers[not has_word][index] if chance < 0.7 else answers[bool(has_word)][index]
        row["label"] = own if chance < 0.9 else random_.choice(names)
    return rows, (shares[0], shares[1]), is_close


def _read(
    case: Case, drawn: Drawn, names: list[str], rows: list[dict[str, Any]], shares: Pair,
    runs: Sequence[product.RunFolder],
) -> Rows:  # fmt: skip
    read = [text_of(case, drawn, row) for row in rows]  # with columns before the text
    texts = [each if isinstance(each, str) else " | ".join(each) for each in read]
    keys = list(map(str, read))
    groups = [row["user"] if "group_column" in case.settings else i for i, row in enumerate(rows)]
    units = list(range(len(rows)))
    for of in (keys, groups):
        first: dict[Any, int] = {}
        for index, key in enumerate(of):
            old, new = units[index], units[first.setdefault(key, index)]
            units = [new if unit == old else unit for unit in units]
    answers = []
    for run, each in zip(runs, shares, strict=True):
        rule = run.decision["rule"]["decisions"]
        answers.append(np.array([names.index(answer(case, names, row, rule)[0]) for row in each]))
    truth = np.array([names.index(str(row["label"])) for row in rows])
    spoken = ["".join(c if c.isalnum() else " " for c in text.casefold()).split() for text in texts]
    return Rows(
        names, truth, (answers[0], answers[1]), np.unique(units, return_inverse=True)[1], spoken
    )


def error_of(value: Callable[[np.ndarray], float], rows: np.ndarray, units: np.ndarray) -> float:
    """Return the standard error by the jackknife: each unit is left out once."""
    own = np.unique(units[rows])
    left = np.array([value(rows[units[rows] != unit]) for unit in own])
    return float(np.sqrt((len(own) - 1) / len(own) * ((left - left.mean()) ** 2).sum()))


def check(rows: Rows, shares: Pair, result: dict[str, Any], told: str) -> list[Disagreement]:
    """Hold a comparison against what both models predict."""
    first, second = result["arms"]
    found, count = [], len(rows.truth)
    gained, lost = (
        int((rows.right(one) & ~rows.right(other)).sum()) for one, other in ((1, 0), (0, 1))
    )
    flips = {"gained": gained, "lost": lost,
             "mean": int((rows.answers[0] != rows.answers[1]).sum())}  # fmt: skip
    found += compare("on a file: rows", result["examples"], count)
    found += compare("on a file: flips", {k: second["flips"][k] for k in flips}, flips, 1e-9)
    numbers = [
        single_label(rows.truth, each, answers, None)
        for each, answers in zip(shares, rows.answers, strict=True)
    ]
    for arm, own in zip((first, second), numbers, strict=True):
        got = {k: each["mean"] for k, each in arm["metrics"].items() if k in own}
        found += compare("on a file: metrics", got, {k: own[k] for k in got}, 1e-4)
        found += compare("on a file: has accuracy", "accuracy" in got, True)
    said = f"is right in {gained} of {count} examples where"
    if "No answer" not in told:
        found += compare(f"on a file: says {said!r}", said in told, True)
        found += compare(
            "on a file: says how many are lost", f"wrong in {lost} where" in told, True
        )
        found += _check_told(second, told)
    return found + _check_overall(rows, second) + _check_subgroups(rows, second)


def _check_told(arm: dict[str, Any], told: str) -> list[Disagreement]:
    """Hold the answer against the tables: it names what changed beyond chance, and the way."""
    changed: dict[str, set[str]] = {"worse": set(), "better": set()}
    for each in arm["classes"]:
        if each["difference"] is not None and each["difference"]["p_difference_holm"] <= 0.05:
            way = "better" if each["difference"]["estimate"] > 0 else "worse"
            changed[way].add(f"class {each['name']!r}")
    for way, side in (("worse", "losses"), ("better", "gains")):
        for each in (arm["subgroups"] or {}).get(side, ()):
            if each["kind"] != "class" and each["interval"][0] * each["interval"][1] > 0:
                of = f"of {each['name']}" if each["kind"] == "length" else f"with {each['name']!r}"
                changed[way].add(f"texts {of}")
    found = []
    for way, names in changed.items():
        start = f"Beyond chance, {arm['name']} is {way} in "
        sentence = told.partition(start)[2].partition("points). ")[0]
        found += compare(f"on a file: {way} beyond chance", start in told, bool(names))
        for name in names:
            found += compare(f"on a file: told {way}: {name}", f"{name} (" in sentence, True)
        count = sentence.count(" points)") + bool(sentence)  # the last one is cut off
        found += compare(f"on a file: changes told as {way}", count, len(names))
    return found


def _check_overall(rows: Rows, arm: dict[str, Any]) -> list[Disagreement]:
    gains = rows.right(1).astype(float) - rows.right(0)
    every = np.arange(len(gains))
    sizes = np.bincount(rows.units)
    found, got = [], arm["difference"]
    found += compare("on a file: cases", got["cases"], len(sizes))
    found += compare("on a file: difference", got["estimate"], gains.mean(), 1e-9)
    error = error_of(lambda r: float(gains[r].mean()), every, rows.units)
    error = max(error, got["one_case"])
    half = float(stats.t.ppf(0.975, len(sizes) - 1)) * error
    limits = [gains.mean() - half, gains.mean() + half]
    if (rare := got["rare95"]) is not None:  # a limit that excludes 0 stays
        limits = [min(limits[0], rare[0]) if limits[0] <= 0 else limits[0],
                  max(limits[1], rare[1]) if limits[1] >= 0 else limits[1]]  # fmt: skip
    found += compare("on a file: interval", got["interval95"], limits, 1e-6)
    p_value = 2 * float(stats.t.sf(abs(gains.mean()) / error, len(sizes) - 1))
    return found + compare("on a file: p", got["p_difference"], min(p_value, 1.0), 1e-6)


def _check_subgroups(rows: Rows, arm: dict[str, Any]) -> list[Disagreement]:
    examined = {("class", n): np.flatnonzero(rows.truth == k) for k, n in enumerate(rows.names)}
    lengths = np.array([len(words) for words in rows.words])
    limits = sorted(set(np.quantile(lengths, [0, 0.25, 0.5, 0.75, 1], method="lower").tolist()))
    for low, high in pairwise(limits):
        first = low if low == limits[0] else low + 1
        name = f"{first} to {high} words" if first < high else f"{first} words"
        examined["length", name] = np.flatnonzero((lengths >= first) & (lengths <= high))
    for word in {word for words in rows.words for word in words}:
        own = np.array([word in words for words in rows.words])
        if own.sum() < len(own) / 2:
            examined["word", word] = np.flatnonzero(own)
    examined = {
        key: own for key, own in examined.items()
        if len(own) >= LEAST and len(set(rows.units[own])) > 1
    }  # fmt: skip
    if (got := arm["subgroups"]) is None:
        return []
    found = compare("on a file: subgroups", got["examined"], len(examined))
    found += compare("on a file: level", got["level"], 1 - 0.05 / len(examined), 1e-9)
    gains = rows.right(1).astype(float) - rows.right(0)
    for side in ("losses", "gains"):
        for each in got[side]:
            key = (each["kind"], each["name"])
            if key not in examined:
                found.append(Disagreement("on a file: subgroup", key, sorted(examined)))
                continue
            own = examined[key]
            what = f"on a file: {' '.join(key)}"
            found += compare(f"{what}: rows", each["examples"], len(own))
            found += compare(f"{what}: difference", each["estimate"], gains[own].mean(), 1e-9)
            count = len(set(rows.units[own]))
            error = error_of(lambda r: float(gains[r].mean()), own, rows.units)
            half = float(stats.t.ppf((1 + got["level"]) / 2, count - 1)) * error
            low, high = max(gains[own].mean() - half, -1), min(gains[own].mean() + half, 1)
            wider = each["interval"][0] <= low + 1e-9 and each["interval"][1] >= high - 1e-9
            found += compare(f"{what}: the interval is no shorter than by t", wider, True)
    return found + _check_classes(rows, arm)


def _check_classes(rows: Rows, arm: dict[str, Any]) -> list[Disagreement]:
    found, p_values = [], {}
    every = np.arange(len(rows.truth))
    for k, name in enumerate(rows.names):
        got = arm["classes"][k]["difference"]
        if not (rows.truth == k).any():
            found += compare(f"on a file: F1 of {name}", got, None)
            continue

        def difference(some: np.ndarray, k: int = k) -> float:
            f1 = []
            for answers in rows.answers:
                right = ((answers[some] == k) & (rows.truth[some] == k)).sum()
                both = (answers[some] == k).sum() + (rows.truth[some] == k).sum()
                f1.append(2 * right / both if both else 0.0)
            return float(f1[1] - f1[0])

        found += compare(f"on a file: F1 of {name}", got["estimate"], difference(every), 1e-9)
        p_values[k] = got["p_difference"]
        error, count = error_of(difference, every, rows.units), rows.units.max() + 1
        half = float(stats.t.ppf((1 + got["level"]) / 2, count - 1)) * error
        low, high = max(difference(every) - half, -1), min(difference(every) + half, 1)
        wider = got["interval"][0] <= low + 1e-9 and got["interval"][1] >= high - 1e-9
        found += compare(f"on a file: interval of F1 of {name} is no shorter", wider, True)
        least = 2 * float(stats.t.sf(abs(difference(every)) / error, count - 1)) if error else 0.0
        is_safe = got["p_difference"] >= least - 1e-6
        found += compare(f"on a file: p of F1 of {name} is no smaller", is_safe, True)
    order = sorted(p_values, key=lambda k: p_values[k])
    least = 0.0
    for place, k in enumerate(order):
        least = max(least, min(1.0, p_values[k] * (len(order) - place)))
        got = arm["classes"][k]["difference"]["p_difference_holm"]
        found += compare(f"on a file: Holm of {rows.names[k]}", got, least, 1e-9)
    return found
