"""Writes the numbers of logs of generated cases to `benchmarks/results/oracle.json`.

    python tests/oracle/summary.py cases.jsonl ...

Entries that are written by hand, such as the list of faults, are kept.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
RESULTS = HERE.parents[2] / "benchmarks" / "results" / "oracle.json"
sys.path.insert(0, str(HERE.parents[1]))

from oracle import plan  # noqa: E402  (this file is started as a program)
from oracle.cases import Case  # noqa: E402


def row_of(case: Case) -> dict[str, Any]:
    """Return the values of the plan that a case has, None where a flag is not set."""
    settings = dict(case.settings)
    if "," in str(settings.get("class_weights", "")):
        settings["class_weights"] = "list"
    if "positive_label" in settings:
        settings["positive_label"] = "first"
    others = {
        "family": case.family, "format": case.format, "door": case.door, "relation": case.relation,
        "stop": case.stop_after, "change": next(iter(case.change), None),
        "processes": case.processes,
    }  # fmt: skip
    return {**dict.fromkeys(plan.parameters(case.task)), **settings, **others}


def pairs_covered(cases: list[Case]) -> dict[str, dict[str, int]]:
    """Return how many pairs of values of each task were in a case, and how many there are."""
    pairs = {}
    for task in dict.fromkeys(plan.TASKS):
        rows = [row_of(case) for case in cases if case.task == task and case.relation != "unfit"]
        covered = set().union(*(plan.pairs_in(task, row) for row in rows))
        possible = set(plan.pairs_of(task))
        pairs[task] = {"covered": len(covered & possible), "of": len(possible)}
    return pairs


def main(logs: list[str]) -> None:
    """Write the numbers of the logs into the file of results."""
    entries = [json.loads(line) for log in logs for line in Path(log).read_text().splitlines()]
    cases = [Case.read(entry["case"]) for entry in entries]
    seconds = sorted(entry["seconds"] for entry in entries)
    results = json.loads(RESULTS.read_text())
    results |= {
        "command": "python tests/oracle/summary.py LOG ...",
        "cases": len(cases),
        "different_cases": len({entry["case"] for entry in entries}),
        "hours": round(sum(seconds) / 3600, 2),
        "median_seconds": seconds[len(seconds) // 2],
        "refused_as_expected": sum(bool(entry["refused"]) for entry in entries),
        "disagreements": sum(bool(entry["found"]) for entry in entries),
        "pairs": pairs_covered(cases),
        "flags": dict(Counter(flag.by for flag in plan.FLAGS.values())),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
