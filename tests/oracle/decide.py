"""From a text to the answer: the saved model in float64, through transformers only."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oracle import certify
from oracle.cases import Case, Disagreement, compare
from oracle.draw import Drawn
from oracle.product import RunFolder, command
from oracle.read import kept_rows, text_of
from oracle.train import ROUGH, encode, load, logits_of, word_logits

PRECISE = 2e-5  # of probabilities of a tiny model in float32
EXPORTED = 2e-4  # between PyTorch and another runtime


def precise(case: Case) -> float:
    """Return how far a probability may be off because of rounding."""
    return max(PRECISE, ROUGH[case.precision])


def final_logits(case: Case, drawn: Drawn, run: RunFolder, split: str) -> np.ndarray:
    """Return (n, K) logits of the saved model in float64."""
    model, tokenizer = load(case, run.folder)
    rows = []
    with torch.no_grad():
        for _, row in kept_rows(case, drawn, split):
            windows = encode(case, tokenizer, text_of(case, drawn, row))
            rows.append(logits_of(model, windows).numpy())
    return np.stack(rows)


def shares_of(case: Case, names: list[str], logits: np.ndarray, temperature: float = 1) -> Any:
    """Return (n, K) probabilities."""
    scores = logits / temperature
    if case.task == "multi-label":
        return 1 / (1 + np.exp(-scores))
    if case.task == "columns":
        parts = [[i for i, n in enumerate(names) if n.startswith(c)] for c in ("mood=", "topic=")]
        shares = np.zeros_like(scores)
        for part in parts:
            shares[:, part] = _softmax(scores[:, part])
        return shares
    return _softmax(scores)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def answer(
    case: Case, names: list[str], shares: np.ndarray, rule: dict[str, Any]
) -> tuple[Any, float, float]:
    """Return the labels of a row, its confidence, and how close it was to another answer.

    Args:
        shares: (K,) probabilities.
        rule: What was fitted on the validation split.
    """
    if case.task == "multi-label":
        bounds = rule.get("label_thresholds") or [case.settings.get("threshold", 0.5)] * len(names)
        has = shares >= np.array(bounds)
        confidence = float(np.where(has, shares, 1 - shares).min())
        chosen = [name for name, is_there in zip(names, has, strict=True) if is_there]
        return chosen, confidence, float(np.abs(shares - bounds).min())
    if case.task == "columns":
        parts = [[i for i, n in enumerate(names) if n.startswith(c)] for c in ("mood=", "topic=")]
        best = [max(part, key=lambda i: shares[i]) for part in parts]
        gaps = [min([shares[b] - shares[i] for i in p if i != b], default=1)
                for p, b in zip(parts, best, strict=True)]  # fmt: skip
        return [names[i] for i in best], float(min(shares[best])), float(min(gaps))
    if (bound := rule.get("threshold_of_label")) is not None:
        positive = names.index(rule["threshold_label"])
        chosen = positive if shares[positive] >= bound else 1 - positive
        return names[chosen], float(shares[chosen]), float(abs(shares[positive] - bound))
    order = np.argsort(-shares)
    gap = shares[order[0]] - shares[order[1]] if len(order) > 1 else 1.0
    return names[order[0]], float(shares[order[0]]), float(gap)


def check(case: Case, drawn: Drawn, run: RunFolder, folder: Path) -> list[Disagreement]:
    """Hold the predictions of a run, and those of another door, against the saved model."""
    names = run.record["label_names"]
    if case.task == "tokens":
        return _check_tags(case, drawn, run, names)
    logits = final_logits(case, drawn, run, "test")
    got = run.predictions
    if case.task == "regression":
        scale = max(1.0, float(np.abs(logits).max()))
        found = compare("predictions", [row["prediction"] for row in got], logits[:, 0].tolist(),
                        precise(case) * scale)  # fmt: skip
        return found + DOORS[case.door](case, drawn, run, folder, [])
    rule = run.decision["rule"]["decisions"]
    shares = shares_of(case, names, logits, rule.get("logit_temperature") or 1.0)
    near = precise(case)
    found = compare("probabilities", [r["probabilities"] for r in got], shares.tolist(), near)
    found = found[:1] + _check_answered(case, run)
    answers = [answer(case, names, row, rule) for row in shares]
    for position, (row, (label, confidence, gap)) in enumerate(zip(got, answers, strict=True)):
        if gap > 2 * near:
            what = f"predictions.parquet, row {position}"
            shown = row["prediction"]
            shown = sorted(shown) if isinstance(label, list) else shown
            label = sorted(label) if isinstance(label, list) else label
            found += compare(f"{what}: prediction", shown, label)
            found += compare(f"{what}: confidence", row["confidence"], confidence, 2 * near)
    return found + DOORS[case.door](case, drawn, run, folder, answers)


def _check_answered(case: Case, run: RunFolder) -> list[Disagreement]:
    """Rows from the fitted confidence on are answered."""
    if "abstain" not in case.settings:
        return []
    least = run.decision["rule"]["decisions"]["abstention"]["least_confidence"]
    got = [row["answered"] for row in run.predictions]
    oracle = [least is not None and row["confidence"] >= least for row in run.predictions]
    return compare("predictions.parquet: answered", got, oracle)


def _check_tags(case: Case, drawn: Drawn, run: RunFolder, names: list[str]) -> list[Disagreement]:
    """Hold the tags of words against the saved model."""
    model, tokenizer = load(case, run.folder)
    found = []
    with torch.no_grad():
        for (_, row), got in zip(kept_rows(case, drawn, "test"), run.predictions, strict=True):
            logits = word_logits(case, model, tokenizer, row["text"])
            two = logits.softmax(1).topk(2).values
            tags = [names[i] for i in logits.argmax(1)]
            if float((two[:, 0] - two[:, 1]).min()) > 2 * precise(case):
                shown = got.get("predictions", got.get("prediction"))
                shown = shown.split() if isinstance(shown, str) else shown
                found += compare("tags of a sentence", shown, tags)
    return found


def check_fitted(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold the temperature and the thresholds against the best ones on the validation rows."""
    rule, names = run.decision["rule"]["decisions"], run.record["label_names"]
    asked = {"calibrate", "tune_thresholds"} & set(case.settings)
    if "abstain" in case.settings:  # fitted on a half that the oracle does not know
        return []
    if not asked:
        return compare("decision.json: decisions", rule, {})
    if case.precision != "fp32":  # fitted on rounded probabilities
        return []
    logits, found = final_logits(case, drawn, run, "validation"), []
    index = {name: i for i, name in enumerate(names)}
    labels = [row["label"] for _, row in kept_rows(case, drawn, "validation")]
    lists = [label if isinstance(label, list) else [label] for label in labels]
    lists = [[] if chosen == [None] else chosen for chosen in lists]
    has = np.zeros(logits.shape, dtype=bool)
    for row, chosen in enumerate(lists):
        has[row, [index[str(name)] for name in chosen]] = True
    temperature = rule.get("logit_temperature")
    if "calibrate" in asked and "class_weights" not in case.settings:
        found += _check_temperature(case, names, logits, has, temperature)
    if "tune_thresholds" not in asked:
        return found
    shares = shares_of(case, names, logits, temperature or 1.0)
    bounds = rule.get("label_thresholds")
    if bounds is None:
        rare = int(has[:, 1].mean() <= 2 / 3)
        label = case.settings.get("positive_label", names[rare])
        found += compare("decision.json: threshold_label", rule["threshold_label"], label)
        columns = {index[label]: rule["threshold_of_label"]}
    else:
        columns = dict(enumerate(bounds))
    for column, bound in columns.items():
        if has[:, column].any():
            own = sorted(shares[:, column])
            # What rounding tells apart is no choice.
            middles = [(a + b) / 2 for a, b in itertools.pairwise(own) if b - a > 1e-5 * b]
            candidates = [own[0] / 2, *middles, (1 + own[-1]) / 2, 1.1]
            best = max(goodness(case, has[:, column], shares[:, column], c) for c in candidates)
            got = goodness(case, has[:, column], shares[:, column], bound)
            what = f"goodness of the threshold of {names[column]}"
            found += compare(what, got, max(got, best), 1e-9)
            near = min(abs(share - bound) for share in own)
            found += compare(f"{what}: no share lies at it", near > 1e-8, True)
    return found


def _check_temperature(
    case: Case, names: list[str], logits: np.ndarray, has: np.ndarray, temperature: float | None
) -> list[Disagreement]:
    from scipy.optimize import minimize_scalar

    def loss(power: float) -> float:
        shares = shares_of(case, names, logits, float(np.exp(power)))
        if case.task == "multi-label":
            return float(-np.log(np.where(has, shares, 1 - shares)).mean())
        return float(-np.log(shares[has]).mean())

    bounds = np.log(0.05), np.log(20)
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-7}).x
    if min(abs(best - bounds[0]), abs(best - bounds[1])) < 0.05:
        return []
    if temperature is None:
        return [Disagreement("decision.json: temperature", None, float(np.exp(best)))]
    return compare("log loss at the temperature", loss(np.log(temperature)), loss(best), 1e-6)


def goodness(case: Case, has: np.ndarray, shares: np.ndarray, bound: float) -> float:
    """Return how good a threshold is for what `--tune_thresholds` asks."""
    name, _, value = str(case.settings["tune_thresholds"]).partition("=")
    chosen = shares >= bound
    right, predicted, labelled = (has & chosen).sum(), chosen.sum(), has.sum()
    recall, precision = right / labelled, right / predicted if predicted else 1.0
    if name == "f1":
        return float(2 * right / (predicted + labelled))
    if name == "cost":
        miss, alarm = map(float, value.split(":"))
        return float(-miss * (labelled - right) - alarm * (predicted - right))
    if name == "precision":
        return float(recall) if precision >= float(value) else -1.0
    return float(precision) if recall >= float(value) else -1.0


Answers = list[tuple[Any, float, float]]


def no_door(*_: Any) -> list[Disagreement]:
    return []


def _held(
    case: Case, run: RunFolder, door: str, rows: list[dict[str, Any]], near: float = 1e-5
) -> list[Disagreement]:
    """Hold the answers of a door against the predictions of the run."""
    stored, near = run.predictions, max(near, precise(case) if case.precision != "fp32" else 0)
    found = compare(f"{door}: rows", len(rows), len(stored))
    for position, (row, own) in enumerate(zip(rows, stored, strict=False)):
        what = f"{door}, row {position}"
        expected = own["prediction"]
        if case.task == "regression":
            found += compare(what, float(row["prediction"]), float(expected), near)
            continue
        if near > PRECISE and case.task != "tokens" and _is_near_another(own, near):
            continue
        shown = row["prediction"]
        if isinstance(expected, list):
            shown = [] if shown in ("", None) else shown
            separator = case.settings.get("label_separator", ",")
            shown = shown.split(separator) if isinstance(shown, str) else shown
            shown, expected = sorted(shown), sorted(expected)
        if own.get("answered") is False:
            expected = type(shown)() if shown is not None else None
        found += compare(f"{what}: prediction", shown, expected)
        found += compare(f"{what}: confidence", float(row["confidence"]), own["confidence"], near)
    return found


def _is_near_another(row: dict[str, Any], near: float) -> bool:
    """Return whether rounding may give a row another answer, whatever the rule."""
    shares = sorted(row["probabilities"], reverse=True)
    return shares[0] - shares[1] < 4 * near or any(abs(each - 0.5) < 4 * near for each in shares)


def predict_file(
    case: Case, drawn: Drawn, run: RunFolder, folder: Path, _: Answers, ending: str = "csv",
    artifact: Path | None = None,
) -> list[Disagreement]:  # fmt: skip
    """`ampft predict` on the test file, by the run or by an artifact of it."""
    output = folder / f"predicted.{ending}"
    model = artifact or run.folder
    words = ["--model", model, drawn.files["test"], "--output_file", output]
    if "sheet_name" in case.settings:
        words += ["--sheet_name", case.settings["sheet_name"]]
    if case.settings.get("drop_missing_text"):
        return []
    done = command("predict", *words)
    if done.code:
        return [Disagreement("ampft predict", f"exit code {done.code}: {done.err[-400:]}", 0)]
    if ending == "csv":
        with output.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    elif ending == "jsonl":
        rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    else:
        import pyarrow.parquet as pq

        rows = pq.read_table(output).to_pylist()
    kept = {index for index, _ in kept_rows(case, drawn, "test")}
    return _held(case, run, f"{model.name}: ampft predict to {ending}",
                 [row for i, row in enumerate(rows) if i in kept],
                 EXPORTED if artifact else 1e-5)  # fmt: skip


def exported(
    case: Case, drawn: Drawn, run: RunFolder, folder: Path, answers: Answers, form: str = "onnx"
) -> list[Disagreement]:
    """`ampft predict` with what `ampft export` writes in float32: the same answers."""
    if case.processes > 1 or "lora_r" in case.settings:
        return []
    artifact = folder / f"artifact-{form}"
    words = ("export", run.folder, "--format", form, "--output_dir", artifact, "--no_measure")
    done = command(*words)
    if done.code == 2 and "is undefined for these predictions. Use another" in done.err:
        done = command(*words, "--metric", "accuracy")
    refusals = ("ONNX", "trace", "needs at least 2 independent rows")
    if done.code == 2 and any(each in done.err for each in refusals):
        return []
    if done.code not in (0, 4):  # 4: too few rows to decide
        return [Disagreement(f"ampft export to {form}", f"exit code {done.code}: {done.err[-600:]}",
                             0)]  # fmt: skip
    found = []
    if case.precision == "fp32":  # otherwise the run has predicted in 16 bits
        found = certify.check(case, drawn, run, artifact, done.code)
    return found + predict_file(case, drawn, run, folder, answers, "jsonl", artifact)


def python(
    case: Case, drawn: Drawn, run: RunFolder, folder: Path, _: Answers
) -> list[Disagreement]:
    """`run.predict` in Python."""
    import ampft

    finished = ampft.FinishedRun(run.folder)
    if case.task == "sounds":  # it takes texts and images
        return []
    texts = [row for _, row in kept_rows(case, drawn, "test")]
    inputs: list[Any] = [text_of(case, drawn, row) for row in texts]
    if case.settings.get("feature_columns"):
        inputs = texts
    answers = finished.predict(inputs)
    rows = answers.to_dict("records") if hasattr(answers, "to_dict") else answers
    return _held(case, run, "run.predict", rows)


def pipeline(
    case: Case, drawn: Drawn, run: RunFolder, folder: Path, answers: Answers
) -> list[Disagreement]:
    """A plain `transformers.pipeline`, where nothing was fitted and no text is cut."""
    from transformers import pipeline as make

    is_plain = not run.decision["rule"]["decisions"] and case.task in ("text", "pairs", "ordinal")
    if not is_plain or setting_is_windows(case) or case.precision != "fp32":
        return []
    asked = make("text-classification", model=str(run.folder), device="cpu")
    found = []
    length = run.decision["tokenization"]["max_length"]
    for position, (_, row) in enumerate(kept_rows(case, drawn, "test")):
        text = text_of(case, drawn, row)
        pair = {"text": text[0], "text_pair": text[1]} if isinstance(text, tuple) else text
        shown = asked(pair, truncation=True, max_length=length)
        shown = shown[0] if isinstance(shown, list) else shown
        label, confidence, gap = answers[position]
        if gap > 2 * PRECISE:
            found += compare(f"pipeline, row {position}", shown["label"], label)
            found += compare(f"pipeline, row {position}: score", shown["score"], confidence, 1e-4)
    return found


def setting_is_windows(case: Case) -> bool:
    """Return whether long texts are read in windows, which a pipeline does not do."""
    return case.settings.get("long_text") == "windows"


Door = Callable[[Case, Drawn, RunFolder, Path, Answers], list[Disagreement]]
DOORS: dict[str, Door] = {
    "none": no_door,
    "predict csv": predict_file,
    "predict jsonl": lambda *given: predict_file(*given, "jsonl"),
    "predict parquet": lambda *given: predict_file(*given, "parquet"),
    "python": python,
    "pipeline": pipeline,
    "export onnx": exported,
    "export torch": lambda *given: exported(*given, "torch"),
}
