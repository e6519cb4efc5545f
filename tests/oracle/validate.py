"""The validations of a run, which of its weights are kept, and when it stops early."""

from __future__ import annotations

import math

import numpy as np
import torch

from oracle.cases import Case, Disagreement, compare
from oracle.draw import MEDIA, Drawn
from oracle.product import RunFolder
from oracle.read import kept_rows, text_of, weights_of
from oracle.train import ROUGH, Trained, encode, load_initial, logits_of, targets_of

CLOSE = 2e-3  # of log losses in float32 and float64, after some steps
MILLIONTH = 1e-6
OF_LENGTH = {"num_train_epochs", "max_train_steps", "early_stopping_patience"}


def check(
    case: Case, drawn: Drawn, names: list[str], run: RunFolder, oracle: Trained
) -> list[Disagreement]:
    """Hold the validations of a run of one class per row against the oracle's weights."""
    found = _check_steps(case, run)
    if not run.record["validations"] or run.record["steps"]["skipped"]:
        return found
    found += _check_stop(case, run)
    fitted = {"calibrate", "tune_thresholds", "abstain"} & set(case.settings)
    if case.task not in ("text", "pairs", "ordinal", *MEDIA) or fitted:
        return found
    losses = _losses(case, drawn, names, oracle, [v["step"] for v in run.record["validations"]])
    for validation in run.record["validations"]:
        weights = None
        if case.settings.get("weighted_metrics"):
            weights = weights_of(case, kept_rows(case, drawn, "validation"))
        mean = float(np.average(losses[validation["step"]], weights=weights))
        got = validation["metrics"]["log_loss"]
        near = max(CLOSE, 2 * ROUGH[case.precision])
        found += compare(f"validation at step {validation['step']}: log_loss", got, mean, near)
    return found + (_check_choice(case, run, losses) if case.precision == "fp32" else [])


def _losses(
    case: Case, drawn: Drawn, names: list[str], oracle: Trained, steps: list[int]
) -> dict[int, np.ndarray]:
    """Return (n,) log losses of the validation rows, by the step whose weights predict them."""
    model, tokenizer = load_initial(case, drawn, names)
    rows = kept_rows(case, drawn, "validation")
    targets = targets_of(case, names, rows)
    inputs = [encode(case, tokenizer, text_of(case, drawn, row)) for _, row in rows]
    losses = {}
    for step in steps:
        model.load_state_dict(oracle.averages[step], strict=False)
        with torch.no_grad():
            logits = [logits_of(model, windows).log_softmax(0) for windows in inputs]
        losses[step] = np.array([-float(each[t]) for each, t in zip(logits, targets, strict=True)])
    return losses


def _check_steps(case: Case, run: RunFolder) -> list[Disagreement]:
    """Validations are after each epoch, every few steps and at the end, or three in all."""
    done = run.history[-1]["step"]
    if case.settings.get("load_best_model_at_end") is False:
        steps: list[int] = []
    elif every := case.settings.get("eval_steps"):
        steps = sorted({*range(every, done + 1, every), done})
    else:
        steps = sorted({row["epoch"]: row["step"] for row in run.history}.values())
        if not OF_LENGTH & {*case.settings}:
            between = math.ceil(len(steps) / 3)  # three in all where no length is set
            steps = sorted({*steps[between - 1 :: between], done})
    got = [validation["step"] for validation in run.record["validations"]]
    return compare("steps of validations", got, steps)


def _check_stop(case: Case, run: RunFolder) -> list[Disagreement]:
    """A run stops early after some validations without a better value, and only then."""
    patience = case.settings.get("early_stopping_patience")
    if patience is None or "class_weights" in case.settings:  # the classes count by their weights
        return []
    name = case.settings.get("metric_for_best_model") or "log_loss"
    sign = -1 if "loss" in name else 1
    best, since = -np.inf, []
    for validation in run.record["validations"]:
        metrics = validation["metrics"]
        value = metrics.get(name, metrics.get("mse"))
        if name == "log_loss" and name not in metrics:
            return []
        is_better = sign * value > best + (MILLIONTH if name == "log_loss" else 0)
        since.append(0 if is_better else since[-1] + 1)
        best = max(best, sign * value)
    found = compare("validations without a better one before the end",
                    max(since[:-1], default=0) < patience, True)  # fmt: skip
    stopped_early = run.history[-1]["step"] < run.record["steps"]["total"]
    if stopped_early:
        found += compare("validations without a better one at the end", since[-1], patience)
    return found


def _check_choice(case: Case, run: RunFolder, losses: dict[int, np.ndarray]) -> list[Disagreement]:
    best, validations = run.record["best"], run.record["validations"]
    if name := case.settings.get("metric_for_best_model"):
        order = [(v["metrics"][name], -v["metrics"]["log_loss"]) for v in validations]
        tops = [v["step"] for v, o in zip(validations, order, strict=True) if o == max(order)]
        return compare(f"step with the best {name}", best["step"] in tops, True)
    if "class_weights" in case.settings:  # the classes count by their weights
        return []
    last = validations[-1]
    lowest = min(validations, key=lambda v: v["metrics"]["log_loss"])
    if lowest is last or "group_column" in case.settings or "weighted_metrics" in case.settings:
        return compare("step that is kept", best["step"], last["step"]) if lowest is last else []
    gains = losses[last["step"]] - losses[lowest["step"]]
    found = compare("best: gain", best["gain"], float(gains.mean()), CLOSE)
    if len(gains) > 1 and "duplicates" not in case.traits:
        # At least the effect of one changed row.
        least = float(np.square(losses[last["step"]]).mean() ** 0.5) / len(gains)
        error = max(float(gains.std(ddof=1) / len(gains) ** 0.5), least)
        found += compare("best: gain_error", best["gain_error"], error, CLOSE)
        is_clear = gains.mean() < 1.2 * error
        if is_clear:
            found += compare("step that is kept", best["step"], last["step"])
    return found
