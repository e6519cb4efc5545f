"""Which planted faults of decisions, settings and graphs does a certificate name?

Run: `python benchmarks/decision_faults.py --out benchmarks/results/decision-faults.json`, with
`--minilm` for MiniLM with its weights and fewer faults.

Trains a run on made-up texts with a temperature and abstention, exports it as ONNX in fp32 and for
PyTorch in bf16, plants each fault of `artifact_faults.py` in a copy with a manifest that fits it,
and certifies the copy on 200 rows. A fault is seen if the verdict is not "passed", or if
the artifact cannot be opened.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import artifact_faults
from certificate_catches import save_model, write_rows
from provenance import command_line, provenance, write_results

from ampft.cli import main as ampft
from ampft.errors import InputError
from ampft.export import ExportRequest, export_run
from ampft.export.certificate.verified_rows import VerifyRequest
from ampft.export.certificate.verify import certify
from ampft.models.minilm import default_model
from ampft.text.terminal import quiet_libraries

SIZES = {"train": 1200, "validation": 400, "test": 200}
KINDS = {"onnx": "fp32", "torch": "bf16"}
# Faults that are planted in MiniLM too.
OF_MINILM = (
    *("temperature x 1.15", "temperature x 3", "temperature x 0.333333", "temperature removed"),
    *("half of max_length", "hidden_act relu", "labels swapped everywhere", "lower-casing"),
    *("embedding of one token", "last position", "abstention removed"),
)


def train(folder: Path, model: str, *, epochs: int, rate: float) -> Path:
    """Train a run with a temperature and abstention, and return its folder."""
    words = ["train", "--model_name_or_path", model, "--output_dir", folder / "run", "--use_cpu"]
    for seed, (split, rows) in enumerate(SIZES.items()):
        words += [f"--{split}_file", write_rows(folder / f"{split}.jsonl", rows, seed)]
    words += ["--num_train_epochs", epochs, "--learning_rate", rate, "--max_seq_length", 24]
    if ampft([*map(str, words), "--calibrate", "--abstain", "0.2", "--cpu_threads", "1"]):
        raise SystemExit("the training failed")
    return folder / "run"


def certified(artifact: Path, run: Path) -> dict[str, Any]:
    """Return what the certificate of an artifact says."""
    try:
        made = certify(artifact, run, VerifyRequest(measure=False))
    except InputError as error:
        return {"verdict": "refused", "failures": [str(error)]}
    answers, logits = made.answers, made.logits
    return {
        "verdict": made.verdict,
        "failures": [each.kind for each in made.failures],
        "changed labels": None if answers is None else answers.labels,
        "largest difference of logits": None if logits is None else logits.largest,
    }


def results(folder: Path, run: Path, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the certificate says of the faithful artifacts, and of each fault."""
    for form, precision in KINDS.items():
        faithful = folder / form
        request = ExportRequest(run=run, format=form, precision=precision, output_dir=faithful)
        export_run(request)
        kind = {"format": form, "precision": precision}
        yield {"artifact": "untouched", **kind, **certified(faithful, run)}
        for number, (name, fault) in enumerate(names.items()):
            if form == "torch" and name in artifact_faults.GRAPH_FAULTS:
                continue
            planted = artifact_faults.plant(faithful, folder / f"{form}-{number}", fault)
            yield {"artifact": name, **kind, **certified(planted, run)}


def main() -> None:
    """Plant all faults, and write and print the counts."""
    parser = command_line(__doc__)
    parser.add_argument("--minilm", action="store_true")
    given = parser.parse_args()
    quiet_libraries()
    faults = {**artifact_faults.DECISION_FAULTS, **artifact_faults.GRAPH_FAULTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.minilm:
            faults = {each: faults[each] for each in OF_MINILM}
            run = train(folder, default_model(None)[0], epochs=1, rate=1e-4)
        else:
            run = train(folder, str(save_model(folder / "bert")), epochs=4, rate=3e-3)
        lines = []
        for line in results(folder, run, faults):
            lines.append(line)
            print(json.dumps(line), flush=True)
    planted = [line for line in lines if line["artifact"] != "untouched"]
    missed = [line for line in planted if line["verdict"] == "passed"]
    named = [line for line in planted if line["verdict"] in ("failed", "refused")]
    counts = {"planted": len(planted), "named": len(named), "passed": len(missed)}
    print(json.dumps(counts))
    write_results(given.out, {"provenance": provenance(), "counts": counts, "lines": lines})


if __name__ == "__main__":
    main()
