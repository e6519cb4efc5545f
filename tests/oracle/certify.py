"""The certificate of an artifact in float32, from the files and from what the model predicts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

from oracle.cases import Case, Disagreement, compare
from oracle.draw import Drawn
from oracle.product import RunFolder
from oracle.read import kept_rows, label_of

NEAR = 1e-4  # of logits, relative to their range, and of probabilities
FILES = {"onnx": "onnx/model.onnx", "torch": "model.safetensors"}
BATCHES = [1, 32]  # Sizes whose predictions are compared, as the documentation says.


def check(
    case: Case, drawn: Drawn, run: RunFolder, artifact: Path, code: int
) -> list[Disagreement]:
    """Hold the certificate of an artifact against its files and the predictions of the run."""
    form = artifact.name.removeprefix("artifact-")
    page = json.loads((artifact / "certificate.json").read_text())
    rows = [row for _, row in kept_rows(case, drawn, "test")]
    units = sum(len(row["text"]) for row in rows) if case.task == "tokens" else len(rows)
    found = compare("certificate: failures", page["failures"], [])
    found += compare("certificate: verdict", page["verdict"] == "passed", code == 0)
    found += compare("certificate: verify", page["verify"], "test")
    digest = hashlib.sha256((run.folder / "run.json").read_bytes()).hexdigest()
    found += compare("certificate: run_sha256", page["run_sha256"], digest)
    facts = {"format": form, "precision": "fp32", "model file": FILES[form]}
    found += compare("certificate: artifact", {k: page["artifact"][k] for k in facts}, facts)
    size = (run.folder / "model.safetensors").stat().st_size
    found += compare("certificate: model_size", page["cost"]["model_size"], size)
    own = sum(p.stat().st_size for p in (artifact / FILES[form]).parent.glob("model*"))
    found += compare("certificate: size", page["cost"]["size"], own)
    found += compare("certificate: dtypes", sorted(page["dtypes"]["weights"]), ["float32"])
    for name in ("logits", "probes"):
        largest = page[name]["largest"] / max(page[name]["range"], 1e-6)
        found += compare(f"certificate: {name} are near", 0 <= largest < NEAR, True)
    batches = page["batches"]
    of_batches = {"sizes": BATCHES, "rows": len(rows), "changed": 0, "model_changed": 0}
    if len(rows) <= BATCHES[1]:
        found += compare("certificate: batches", {k: batches[k] for k in of_batches}, of_batches)
    if case.task != "tokens":
        found += compare("certificate: has answers", page["answers"] is not None, True)
    if (answers := page["answers"]) is not None:
        same = {"labels": 0, "answered": 0, "decided": 0}
        if case.task != "regression":
            found += compare("certificate: answers", {k: answers[k] for k in same}, same)
        found += compare("certificate: rows of answers", answers["rows"], units)
    if "weighted_metrics" not in case.settings:  # a certificate counts each row once
        found += _check_metrics(run, page)
    return found + _check_classes(case, drawn, page, rows)


def _check_metrics(run: RunFolder, page: dict) -> list[Disagreement]:
    """Both arms have the metrics of the run, and nothing flips."""
    model, artifact = page["comparison"]["arms"]
    found = []
    for arm in (model, artifact):
        shared = {k: v["mean"] for k, v in arm["metrics"].items() if k in run.record["metrics"]}
        own = {name: run.record["metrics"][name] for name in shared}
        found += compare(f"certificate: metrics of {arm['name']}", shared, own, NEAR)
        found += compare(f"certificate: {arm['name']} has metrics", len(shared) > 0, True)
    if (flips := artifact["flips"]) is not None:
        none = {"mean": 0, "gained": 0, "lost": 0}
        found += compare("certificate: flips", {k: flips[k] for k in none}, none)
    if (difference := artifact["difference"]) is not None:
        found += compare("certificate: difference", difference["estimate"], 0.0, NEAR)
    return found


def _check_classes(case: Case, drawn: Drawn, page: dict, rows: list) -> list[Disagreement]:
    """Each class has its rows, of which none is lost or gained."""
    if case.task not in ("text", "pairs", "ordinal"):
        return []
    sizes = Counter(label_of(case, drawn, row) for row in rows)
    got = {each["name"]: [each["rows"], each["lost"], each["gained"]] for each in page["classes"]}
    return compare("certificate: classes", {k: got.get(k) for k in sizes},
                   {name: [size, 0, 0] for name, size in sizes.items()})  # fmt: skip
