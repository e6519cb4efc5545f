"""What `ampft search` finds and gains on real texts, and whether it keeps its time.

Run: `python benchmarks/search_gain.py --data ../shared/data --out FILE`; the results are in
`results/search-gain.json`. Cases that the file already has are not measured again. MiniLM trains on
`size` rows, the classes in turn, with 200 other validation rows and 400 other test rows, texts of
at most 48 tokens, in bf16.

Cases: `planted`, a default that is far off (a learning rate of 1e-6, four epochs, a random head);
`default`, the defaults of ampft, where little is left to gain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from defaults import rows_of
from provenance import provenance, write_results

from ampft.arguments.flags import parse_duration
from ampft.lab.search.search_record import read_state

SETTINGS = (
    "--max_seq_length",
    "48",
    "--mixed_precision",
    "bf16",
    "--use_cpu",
    "--cpu_threads",
    "1",
)
FAR_OFF = ("--learning_rate", "1e-6", "--num_train_epochs", "4", "--head_init", "random")
OWN = {"planted": FAR_OFF, "default": ()}
RATES = {"planted": ("--learning_rates", "1e-5,1e-4,1e-3"), "default": ()}


def in_turn(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return so many rows, the classes in turn."""
    turn = rows.groupby("label").cumcount()
    return rows.iloc[turn.argsort(kind="stable")][:count]


def measured(data: Path, name: str, size: int, case: str, budget: str) -> dict[str, Any]:
    """Search once in a folder of its own, and return the answer and the seconds."""
    pool, test = (part[part["text"].str.strip() != ""] for part in rows_of(data, name))
    train = in_turn(pool.sample(frac=1, random_state=size), size)
    validation = pool.drop(train.index).sample(200, random_state=1)
    parts = {"train": train, "validation": validation, "test": test.sample(400, random_state=2)}
    with tempfile.TemporaryDirectory() as place:
        folder, files = Path(place), []
        for part, rows in parts.items():
            rows.to_csv(folder / f"{part}.csv", index=False)
            files += [f"--{part}_file", str(folder / f"{part}.csv")]
        started = time.time()
        words = ["search", "--time_budget", budget, "--output_dir", str(folder / "search")]
        words += RATES[case]
        subprocess.run(
            [sys.executable, "-m", "ampft", *words, "--", *files, *SETTINGS, *OWN[case]], check=True
        )
        seconds = time.time() - started
        state = read_state(folder / "search")
        assert state is not None
        assert state.answer is not None
        runs = [json.loads(path.read_text()) for path in folder.glob("search/*/runs/*/run.json")]
    return {
        **{"set": name, "size": size, "case": case, "budget": parse_duration("budget", budget)},
        **{"seconds": seconds, "planned": state.plan.seconds, "runs": len(runs)},
        **{"stopped": state.stopped, "is_judged": state.is_judged, "answer": asdict(state.answer)},
    }


def main() -> None:
    """Measure the cases that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default="cr:128:planted:20min,sst2:64:default:30min")
    args = parser.parse_args()
    known = json.loads(args.out.read_text())["searches"] if args.out.exists() else []
    for text in args.cases.split(","):
        name, size, case, budget = text.split(":")
        if any([e["set"], str(e["size"]), e["case"]] == [name, size, case] for e in known):
            continue
        known.append(measured(args.data, name, int(size), case, budget))
        write_results(args.out, {"searches": known, **provenance()})


if __name__ == "__main__":
    main()
