"""What flags that change no answer add to the folder of a run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import Any

from oracle.cases import Case, Disagreement, compare
from oracle.product import RunFolder


def _history_csv(case: Case, run: RunFolder) -> list[Disagreement]:
    with (run.folder / "history.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows if row["step"]]
    return compare("history.csv: steps", steps, [row["step"] for row in run.history])


def _evaluate_fp32(case: Case, run: RunFolder) -> list[Disagreement]:
    """A run in fp32 has predicted in fp32 already; another one is near."""
    if case.precision != "fp32":
        return compare("metrics_fp32", sorted(run.record["metrics_fp32"]),
                       sorted(run.record["metrics"]))  # fmt: skip
    return compare("metrics_fp32", run.record["metrics_fp32"], run.record["metrics"])


def _checkpoints(case: Case, run: RunFolder) -> list[Disagreement]:
    steps = sorted(
        int(path.name.removeprefix("step-")) for path in (run.folder / "checkpoints").glob("step-*")
    )
    done = [row["step"] for row in run.history]
    if case.settings["checkpointing_steps"] == "epoch":
        epochs = {row["epoch"]: row["step"] for row in run.history}
        per_epoch = min(epochs.values())
        oracle = [step for step in sorted(epochs.values()) if step % per_epoch == 0]
        if len(epochs) == 1 and {"max_train_steps", "eval_steps"} & set(case.settings):
            # Perhaps not a whole one.
            return []
    else:
        oracle = [step for step in done if step % int(case.settings["checkpointing_steps"]) == 0]
    if most := case.settings.get("checkpoint_total_limit"):
        oracle = oracle[-most:]
    return compare("checkpoints", steps, oracle)


def _recorded(name: str) -> Callable[[Case, RunFolder], list[Disagreement]]:
    def check(case: Case, run: RunFolder) -> list[Disagreement]:
        return (
            [] if run.record.get(name) else [Disagreement(f"run.json: {name}", None, "something")]
        )

    return check


def _watch(case: Case, run: RunFolder) -> list[Disagreement]:
    watched = [row["step"] for row in run.history if "headroom" in json.dumps(row)]
    every = case.settings["watch"]
    return compare("history: some steps are watched", bool(watched), len(run.history) >= every)


def _perturbed(case: Case, run: RunFolder) -> list[Disagreement]:
    return compare("run.json: perturbed", run.record["model"]["perturbed"], True)


def _errors(case: Case, run: RunFolder) -> list[Disagreement]:
    is_there = (run.folder / "label_errors.csv").exists() or "inspected_data" in run.record
    return compare("label_errors.csv", is_there, True)


EFFECTS: dict[str, Any] = {
    "history_csv": _history_csv, "evaluate_fp32": _evaluate_fp32,
    "checkpointing_steps": _checkpoints, "checkpoint_total_limit": _checkpoints,
    "baseline": _recorded("simple_methods"), "serve_back": _recorded("served_back"),
    "watch": _watch, "perturb_initial_weights": _perturbed, "inspect_data": _errors,
}  # fmt: skip


def check(case: Case, run: RunFolder) -> list[Disagreement]:
    """Look for what the flags of a case must add."""
    return [d for name in case.settings if name in EFFECTS for d in EFFECTS[name](case, run)]
