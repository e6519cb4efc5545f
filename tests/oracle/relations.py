"""Other ways to the same answer: the run that comes out must have the same bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from oracle import product
from oracle.cases import Case, Disagreement, Settings, compare
from oracle.compared import on_a_file
from oracle.draw import MEDIA, Drawn, held_out, write
from oracle.read import FRACTIONS, kept_rows
from oracle.train import ROUGH, rate_of

HELD_OUT = ("folds", *FRACTIONS.values())

# What differs between runs that do the same.
OF_TIME = ("seconds", "examples_per_second", "tokens_per_second", "waiting_share", "memory_mib")


def same_run(what: str, run: product.RunFolder, other: product.RunFolder) -> list[Disagreement]:
    """Return where two runs that must have the same bits differ."""
    found = compare(
        f"{what}: history",
        [{k: v for k, v in row.items() if k not in OF_TIME} for row in other.history],
        [{k: v for k, v in row.items() if k not in OF_TIME} for row in run.history],
    )
    own, others = run.weights(), other.weights()
    different = [name for name in own if not (own[name] == others[name]).all()]
    found += compare(f"{what}: weights that differ", different, [])
    for name in ("prediction", "label", "confidence"):
        columns = [[row.get(name) for row in each.predictions] for each in (other, run)]
        found += compare(f"{what}: {name}", *columns)
    return found + compare(f"{what}: metrics", other.record["metrics"], run.record["metrics"])


Trained = tuple[Case, Drawn, product.RunFolder]


def _again(
    what: str, trained: Trained, drawn: Drawn, words: list[object], settings: Settings
) -> list[Disagreement]:
    """Train on other files, and hold the run against the first one."""
    output = drawn.model.parent / what.replace(" ", "-")
    words = [*drawn.words(), *words, "--output_dir", output, *product.flags(settings)]
    done = product.train(words, output, trained[0].processes)
    if done.code:
        return [Disagreement(what, f"exit code {done.code}: {done.err[-600:]}", 0)]
    return same_run(what, trained[2], product.RunFolder(output))


def _rewritten(trained: Trained, ending: str, change: Callable[[Any], Any]) -> Drawn:
    drawn, files = trained[1], {}
    for split, path in drawn.files.items():
        if split != "train" and path == drawn.files["train"]:
            files[split] = files["train"]
            continue
        files[split] = path.with_name(f"other-{split}.{ending}")
        write(files[split], change(drawn.rows[split]), False, trained[0].settings)
    return replace(drawn, files=files)


def other_format(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """The same rows in a file of another format."""
    ending = "parquet" if trained[0].format != "parquet" else "jsonl"
    drawn = _rewritten(trained, ending, lambda rows: rows)
    return _again("other format", trained, drawn, words, _without_sheets(settings))


def _without_sheets(settings: Settings) -> Settings:
    """Settings for data that are not in a workbook, where a sheet cannot be named."""
    return {name: value for name, value in settings.items() if name != "sheet_name"}


def more_columns(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """Two more columns, one of them empty, and another order of the columns."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"notes": f"n{i}", **dict(reversed(row.items())), "nothing": None}
                for i, row in enumerate(rows)]  # fmt: skip

    drawn = _rewritten(trained, trained[0].format, change)
    return _again("more columns", trained, drawn, words, settings)


def in_python(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """`ampft.finetune` on data frames."""
    import pandas as pd

    import ampft

    case, drawn, run = trained
    if case.processes > 1 or case.task in MEDIA:
        return []
    frames: dict[str, Any] = {split: pd.DataFrame(rows) for split, rows in drawn.rows.items()}
    for split in held_out(case):
        frames[split] = None
    output = drawn.model.parent / "in-python"
    task = {} if case.task == "pairs" else {"task": case.task}
    try:
        ampft.finetune(
            frames["train"], validation=frames["validation"], test=frames["test"],
            model_name_or_path=str(drawn.model), output_dir=str(output),
            text_column_names=",".join(drawn.texts), label_column_name=",".join(drawn.labels),
            **task, **_without_sheets(settings),
        )  # fmt: skip
    except Exception as error:
        return [Disagreement("in Python", f"{type(error).__name__}: {error}", "no error")]
    return same_run("in Python", run, product.RunFolder(output))


# Settings of the data and of the answers, which an evaluation needs too.
OF_ANSWERS = (
    *("max_seq_length", "long_text", "stride", "feature_columns", "weight_column", "threshold"),
    *("weighted_metrics", "drop_missing_text", "drop_missing_labels", "ignore_label", "id_column"),
    *("group_column", "encoding", "label_separator", "label_order", "padding", "token_buckets"),
    *("sheet_name", "text_column_delimiter", "mixed_precision"),
    *("max_predict_samples", "data_seed"),
)


def evaluate_only(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """The finished model, evaluated again without training."""
    case, drawn, run = trained
    fitted = {"calibrate", "tune_thresholds", "abstain", *HELD_OUT} & set(settings)
    # Adapters are merged for an evaluation, which rounds otherwise.
    is_rounded = "lora_r" in settings and case.precision != "fp32"
    if fitted or is_rounded or case.processes > 1:
        return []
    output = drawn.model.parent / "evaluated"
    kept = {name: value for name, value in settings.items() if name in OF_ANSWERS}
    words = [*replace(drawn, model=run.folder).words(), *words, "--output_dir", output,
             "--evaluate_only", "test", *product.flags(kept)]  # fmt: skip
    done = product.train(words, output)
    if done.code:
        return [Disagreement("evaluate only", f"exit code {done.code}: {done.err[-600:]}", 0)]
    other = product.RunFolder(output)
    found = []
    for name in ("prediction", "label", "confidence", "probabilities"):
        columns = [[row.get(name) for row in each.predictions] for each in (other, run)]
        found += compare(f"evaluate only: {name}", *columns, 1e-6)
    metrics = [{k: v for k, v in each.record["metrics"].items() if k not in ("split", "selected")}
               for each in (other, run)]  # fmt: skip
    return found + compare("evaluate only: metrics", *metrics, 1e-6)


OF_ROWS = ("drop_missing_text", "drop_missing_labels", "ignore_label")
# Settings that an estimator takes by name, of those that the oracle trains with.
OF_ESTIMATOR = ("class_weights", "label_smoothing_factor", "focal_gamma", "huber_delta",
                "weight_decay", "max_grad_norm", "layer_decay", "adam_beta1")  # fmt: skip


def classifier(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """`ampft.Classifier` or `ampft.Regressor` on texts, with weights if the case has some.

    It trains as the formulas say, and its answers are those of a plain model.
    """
    import ampft
    from oracle import train

    case, drawn, run = trained
    if (
        case.task not in ("text", "regression")
        or case.processes > 1
        or {"feature_columns", "text_column_delimiter"} & set(settings)
    ):
        return []
    rows = {split: [row for _, row in kept_rows(case, drawn, split)] for split in ("train", "test")}
    texts = {split: [row["text"] for row in rows[split]] for split in rows}
    labels = {split: [row["label"] for row in rows[split]] for split in rows}
    column, classes = settings.get("weight_column"), run.record["label_names"]
    learned = len(set(map(str, labels["train"])))
    # Refused: a class, or too few rows to hold some out. Else the model is one of other classes.
    if (case.task == "text" and learned != len(classes)) or len(labels["train"]) < 10:
        return []
    output = drawn.model.parent / "classifier"
    kind: Any = ampft.Classifier if case.task == "text" else ampft.Regressor
    given = {name: settings[name] for name in OF_ESTIMATOR if name in settings}
    has_numbers = case.task == "text" and case.seed % 2 == 1
    if has_numbers:  # whose order is not that of texts, and which the model does not know
        numbers = dict(zip(classes, (9, 10, 100, 11, 2), strict=False))
        labels = {split: [numbers[str(each)] for each in labels[split]] for split in labels}
    estimator = kind(
        str(drawn.model), output_dir=str(output), max_seq_length=settings.get("max_seq_length"),
        learning_rate=settings.get("learning_rate"), random_state=settings.get("seed", 42),
        settings={**given, "max_train_steps": 2, "cpu_threads": 1},
    )  # fmt: skip
    try:
        estimator.fit(texts["train"], labels["train"],
                      [row[column] for row in rows["train"]] if column else None)  # fmt: skip
    except Exception as error:
        return [Disagreement("Classifier", f"{type(error).__name__}: {error}", "no error")]
    kept = ("max_seq_length", "learning_rate", "seed", "weight_column", *OF_ROWS, *given)
    own = replace(case, settings={
        "max_train_steps": 2, **{name: case.settings[name] for name in kept if name in settings}
    })  # fmt: skip
    if has_numbers:
        return _check_answers(own, estimator, texts["test"], labels["test"])
    run = product.RunFolder(Path(estimator.run_.folder))
    names = run.record["label_names"]
    held_out = {row["position"] for row in run.predictions}  # a tenth, which is not trained on
    rest = [i for p, (i, _) in enumerate(kept_rows(case, drawn, "train")) if p not in held_out]
    every = {split: list(range(len(drawn.rows[split]))) for split in drawn.rows}
    drawn = replace(drawn, chosen={**every, "train": rest})
    found = compare("a tenth is held out", 0 < len(held_out) <= 1 + len(texts["train"]) // 5, True)
    found += train.check_order(own, run, len(rest))
    found += train.check(own, drawn, run, train.train(own, drawn, names))
    found = [replace(each, what=f"Classifier: {each.what}") for each in found]
    return found + _check_answers(own, estimator, texts["test"], labels["test"])


def _check_answers(
    case: Case, estimator: Any, texts: list[str], labels: list[Any]
) -> list[Disagreement]:
    """Hold the answers of an estimator against a plain model."""
    import pickle

    import numpy as np
    import torch

    from oracle.train import encode, load, logits_of

    model, tokenizer = load(case, estimator.run_.folder)
    with torch.no_grad():
        logits = [logits_of(model, encode(case, tokenizer, text)) for text in texts]
    if case.task == "regression":
        numbers = [float(each[0]) for each in logits]
        scale = max(1.0, *map(abs, numbers))
        return compare("Regressor: predict", estimator.predict(texts).tolist(),
                               numbers, 2e-5 * scale)  # fmt: skip
    names = list(model.config.id2label.values())
    shares = torch.stack(logits).softmax(1).numpy()
    columns = [names.index(str(label)) for label in estimator.classes_]
    again = pickle.loads(pickle.dumps(estimator))
    got = again.predict_proba(texts)
    found = compare("Classifier: probabilities", got.tolist(), shares[:, columns].tolist(), 2e-5)
    predicted = estimator.predict(texts)
    best = estimator.classes_[np.argmax(got, axis=1)]
    found += compare("Classifier: predict", predicted.tolist(), best.tolist())
    right = float(np.mean([p == label for p, label in zip(predicted, labels, strict=True)]))
    score = estimator.score(texts, labels)
    return found + compare("Classifier: score", score, right, 1e-9)


def compared(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """`ampft compare` of two models: the difference of what both report."""
    case, drawn, run = trained
    if case.processes > 1 or len(kept_rows(case, drawn, "test")) < 6:
        return []
    if "perturb_initial_weights" in settings:  # then both are the placebo of a comparison
        return []
    output, folder = drawn.model.parent / "faster", drawn.model.parent / "compared"
    other = {**settings, "learning_rate": 3 * rate_of(case)}
    words = [*drawn.words(), *words, "--output_dir", output, *product.flags(other)]
    if product.train(words, output).code:
        return []
    done = product.command("compare", run.folder, output, "--output_dir", folder)
    if done.code:
        return [Disagreement("ampft compare", f"exit code {done.code}: {done.err[-600:]}", 0)]
    result = json.loads((folder / "comparison.json").read_text())
    first, second = result["arms"]
    found, name = [], result["metric"]
    for arm, own in ((first, run), (second, product.RunFolder(output))):
        values = own.record["metrics"]
        shared = {key: each["mean"] for key, each in arm["metrics"].items() if key in values}
        oracle = {key: values[key] for key in shared}
        found += compare(f"comparison.json: {arm['name']}", shared, oracle, 1e-6)
        if name not in shared:
            found.append(Disagreement(f"run.json: metrics.{name}", sorted(values), name))
    values = [arm["metrics"][name]["mean"] for arm in (first, second)]
    if (difference := second["difference"]) is not None:
        found += compare("comparison.json: difference", difference["estimate"],
                         values[1] - values[0], 1e-6)  # fmt: skip
    if (flips := second["flips"]) is not None:
        answers = [[r["prediction"] for r in product.RunFolder(each).predictions]
                   for each in (run.folder, output)]  # fmt: skip
        changed = sum(a != b for a, b in zip(*answers, strict=True))
        found += compare("comparison.json: changed", flips["mean"], changed)
    return found


def from_a_file(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """The settings in a file for `--config`."""
    drawn = trained[1]
    path = drawn.model.parent / "settings.json"
    # Beside the columns on the command line, which it says to join.
    beside = {k: v for k, v in settings.items() if k == "text_column_delimiter"}
    path.write_text(json.dumps({k: v for k, v in settings.items() if k not in beside}))
    return _again("from a file", trained, drawn, [*words, "--config", path], beside)


def renamed_labels(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """Other names of the classes, in the same order: the same bits, under the other names."""
    case, drawn, run = trained
    if case.task not in ("text", "pairs", "multi-label") or "number_labels" in case.traits:
        return []

    def name(label: Any) -> Any:
        if isinstance(label, list):
            return [name(each) for each in label]
        return None if label is None else f"z{label}"

    if sorted(map(name, run.record["label_names"])) != [*map(name, run.record["label_names"])]:
        return []
    given = {key: _renamed(value) if key in OF_LABELS else value for key, value in settings.items()}
    other = _rewritten(
        trained, case.format, lambda rows: [{**row, "label": name(row["label"])} for row in rows]
    )
    folder = drawn.model.parent / "renamed-model"
    shutil.copytree(drawn.model, folder)
    config = json.loads((folder / "config.json").read_text())
    own = [config["id2label"][str(i)] for i in range(len(config["id2label"]))]
    config["id2label"] = {str(i): name(each) for i, each in enumerate(own)}
    config["label2id"] = {name(each): i for i, each in enumerate(own)}
    (folder / "config.json").write_text(json.dumps(config))
    output = drawn.model.parent / "renamed"
    words = [*replace(other, model=folder).words(), *words, "--output_dir", output,
             *product.flags(given)]  # fmt: skip
    done = product.train(words, output, case.processes)
    if done.code:
        return [Disagreement("renamed labels", f"exit code {done.code}: {done.err[-600:]}", 0)]
    renamed = product.RunFolder(output)
    found = compare("renamed labels: predictions",
                    [row["prediction"] for row in renamed.predictions],
                    [name(row["prediction"]) for row in run.predictions])  # fmt: skip
    weights, others = run.weights(), renamed.weights()
    different = [key for key in weights if not (weights[key] == others[key]).all()]
    found += compare("renamed labels: weights that differ", different, [])
    return found + compare(
        "renamed labels: metrics", renamed.record["metrics"], run.record["metrics"]
    )


OF_LABELS = ("ignore_label", "positive_label")


def _renamed(value: str) -> str:
    return ",".join(f"z{part}" for part in value.split(","))


def other_micro_batches(
    trained: Trained, words: list[object], settings: Settings
) -> list[Disagreement]:
    """Steps of as many rows, in other pieces: the same losses, in any precision."""
    case, drawn, run = trained
    size = int(settings.get("per_device_train_batch_size", 8))
    pieces = int(settings.get("gradient_accumulation_steps", 1))
    if "auto_micro_batch" in settings or (size * pieces) % 2 or settings.get("optim") == "muon":
        return []
    other = (size * pieces, 1) if pieces > 1 else (size // 2, 2)
    output = drawn.model.parent / "pieces"
    given = {**settings, "per_device_train_batch_size": other[0],
             "gradient_accumulation_steps": other[1]}  # fmt: skip
    words = [*drawn.words(), *words, "--output_dir", output, *product.flags(given)]
    done = product.train(words, output, case.processes)
    if done.code:
        return [Disagreement("other pieces", f"exit code {done.code}: {done.err[-600:]}", 0)]
    found, history = [], product.RunFolder(output).history
    near = max(1e-3, ROUGH[case.precision])
    for name, tolerance in (("loss", near), ("grad_norm", 2 * near), ("learning_rate", 1e-9),
                            ("examples", 0)):  # fmt: skip
        count = min(len(history), len(run.history))  # fewer if it stopped early
        rows = zip(history, run.history, strict=False)
        count = next((i for i, pair in enumerate(rows) if any(r["skipped"] for r in pair)), count)
        columns = [[row[name] for row in each[:count]] for each in (history, run.history)]
        found += compare(f"other pieces: {name}", *columns, tolerance)[:1]
    return found


def other_order(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """The rows of the test file in another order: the same answers, and the same report."""
    case, drawn, run = trained
    limited = {"max_predict_samples", "folds", "test_fraction"} & set(settings)
    if limited or case.processes > 1 or case.precision != "fp32":
        return []
    rows = {**drawn.rows, "test": drawn.rows["test"][::-1]}
    other = _rewritten((case, replace(drawn, rows=rows), run), case.format, lambda each: each)
    output = drawn.model.parent / "reversed"
    words = [*other.words(), *words, "--output_dir", output, *product.flags(settings)]
    done = product.train(words, output)
    if done.code:
        return [Disagreement("other order", f"exit code {done.code}: {done.err[-600:]}", 0)]
    reversed_ = product.RunFolder(output)
    own = [row["confidence"] for row in run.predictions if "confidence" in row]
    shown = [row["confidence"] for row in reversed_.predictions if "confidence" in row]
    found = compare("other order: confidence", shown[::-1], own, 2e-5)
    metrics = [
        {k: v for k, v in each.record["metrics"].items() if k not in ("split", "selected")}
        for each in (reversed_, run)
    ]
    return found + compare("other order: metrics", *metrics, 1e-4)


def audited(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """`ampft audit RUN` repeats a training and confirms it; `ampft errors RUN` counts errors."""
    case, drawn, run = trained
    if case.processes > 1:  # another launch
        return []
    done = product.command("audit", run.folder)
    told = " ".join(done.out.split())
    if done.code or "verdict confirmed" not in told:
        said = f"exit code {done.code}: {done.out[-900:]}{done.err[-600:]}"
        return [Disagreement("ampft audit", said, "confirmed")]
    page = drawn.model.parent / "errors.html"
    done = product.command("errors", run.folder, "--output_file", page)
    if case.task in ("regression", "tokens"):
        is_fit = done.code in (0, 2) and "Traceback" not in done.err
        return [] if is_fit else [Disagreement("ampft errors", done.err[-600:], "exit code 0 or 2")]
    rows = run.predictions
    wrong = sum(sorted(_listed(row["prediction"])) != sorted(_listed(row["label"])) for row in rows)
    noun, verb = "prediction" if len(rows) == 1 else "predictions", "is" if wrong == 1 else "are"
    told = f"{wrong} of {len(rows)} {noun} on test {verb} wrong"
    said = f"exit code {done.code}: {done.out[:200]}{done.err[-600:]}"
    return [] if done.code == 0 and told in done.out else [Disagreement("ampft errors", said, told)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


RELATIONS: dict[str, Callable[[Trained, list[object], Settings], list[Disagreement]]] = {
    "none": lambda *_: [],
    "unfit": lambda *_: [],  # the case must be refused
    "other format": other_format,
    "more columns": more_columns,
    "in Python": in_python,
    "from a file": from_a_file,
    "evaluate only": evaluate_only,
    "classifier": classifier,
    "compared": compared,
    "on a file": on_a_file,
    "renamed labels": renamed_labels,
    "other pieces": other_micro_batches,
    "other order": other_order,
    "audited": audited,
}


# How a refusal calls settings that it does not name.
REFUSED_AS = {"gradient_accumulation_steps": "effective batch size",
              "per_device_train_batch_size": "effective batch size"}  # fmt: skip
# Settings that may differ when a training is continued, because they change none of its bits.
FREE = {"history_csv", "use_cpu"}


def stopped(
    case: Case, words: list[object], settings: Settings, run: product.RunFolder, folder: Path
) -> list[Disagreement]:
    """Stop the training after a step and resume it, perhaps with other settings first."""
    assert case.stop_after is not None
    output = folder / "stopped"
    base = [*words, "--output_dir", output]
    count = case.processes
    done = product.train([*base, *product.flags(settings)], output, count, case.stop_after)
    if done.code != 75:
        said = f"exit code {done.code}: {done.err[-600:]}"
        return [] if done.code == 0 else [Disagreement("stopped by a signal", said, 75)]
    free = {name: value for name, value in case.change.items() if name in FREE}
    for name, value in case.change.items():
        # Nothing changes where it is the default.
        if name in FREE or value in (settings.get(name), run.record["arguments"].get(name)):
            continue
        changed = [*product.flags({**settings, name: value}), "--resume_from_checkpoint", "latest"]
        done = product.train([*base, *changed], output, count)
        is_named = name in done.err or REFUSED_AS.get(name, name) in done.err
        if done.code == 2 and not is_named:  # or it is refused without a training to continue
            fresh = [*words, "--output_dir", folder / "fresh"]
            first = product.train([*fresh, *changed[:-2]], folder / "fresh", count)
            is_named = first.code == 2 and first.err == done.err
        if done.code != 2 or not is_named:
            said = f"exit code {done.code}: {done.err[-600:]}"
            return [Disagreement(f"resumed with another --{name}", said, "a refusal")]
    first = product.LoopFolder(output)
    taken = first.history[-1]["step"]
    resumed = [*product.flags({**settings, **free}), "--resume_from_checkpoint", "latest"]
    done = product.train([*base, *resumed], output, count)
    if done.code:
        return [Disagreement("resumed", f"exit code {done.code}: {done.err[-600:]}", 0)]
    other = product.RunFolder(output)
    found = compare("resumed: started", other.record["started"], first.record["started"])
    parts = [{key: part[key] for key in ("step", "settings")} for part in other.record["resumes"]]
    found += compare("resumed: steps", [part["step"] for part in parts], [taken])
    changed = sorted(key for part in parts for key in part["settings"])
    found += compare("resumed: settings", set(changed) <= {f"--{name}" for name in FREE}, True)
    return found + same_run("resumed", run, other)
