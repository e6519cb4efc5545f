"""Generated cases, on which the product must agree with a naive second implementation.

    python -m pytest tests/oracle --minutes 3
    python -m pytest tests/oracle --cases 10000 --oracle_seed 1 --oracle_log cases.jsonl -n 0

The second form continues where the log ends. A case that fails is shrunk, and printed as a line for
`found.jsonl`, whose cases run each time.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ampft
from oracle import one, plan
from oracle.cases import Case
from oracle.one import Result

FOUND = Path(__file__).with_name("found.jsonl")
REPLAYS = [line for line in FOUND.read_text(encoding="utf-8").splitlines() if line]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory) -> Iterator[None]:
    one.warm(tmp_path_factory.mktemp("warm"))
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()  # hypothesis looks for referrers when it is imported, which may be later


@pytest.mark.slow
@pytest.mark.parametrize("line", REPLAYS)
def test_what_was_found_stays_mended(line, warmed, tmp_path):
    result = one.run_case(Case.read(line), tmp_path / "case")
    assert not result.found, _text(result)


def test_every_flag_has_an_oracle_or_a_reason():
    flags = {field.name for field in dataclasses.fields(ampft.ClassifyArguments)}
    assert flags == set(plan.FLAGS)
    for name, flag in plan.FLAGS.items():
        assert bool(flag.values) != bool(flag.why), name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tokens", "regression"])
def test_the_plan_covers_every_pair_of_values(task):
    covered = set().union(*(plan.pairs_in(task, row) for row in plan.covering(task, 0)))
    assert set(plan.pairs_of(task)) <= covered


def test_a_case_is_a_line_of_json():
    for case in itertools.islice(plan.cases(0, ("tokens",)), 20):
        assert Case.read(case.line()) == case


@pytest.mark.slow
def test_drawn_cases_agree(request, warmed, tmp_path):
    minutes, count = (request.config.getoption(name) for name in ("--minutes", "--cases"))
    if minutes is None and count is None:
        pytest.skip("needs --minutes or --cases")
    log = request.config.getoption("--oracle_log")
    start = len(Path(log).read_text().splitlines()) if log and Path(log).exists() else 0
    cases = plan.cases(request.config.getoption("--oracle_seed"))
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    failed, done = [], 0
    for case in _until(itertools.islice(cases, start, count), end):
        result = one.run_case(case, tmp_path / "case")
        done += 1
        if log:
            _append(Path(log), result)
        if result.found:
            failed.append(result)
            if not log and len(failed) >= 3:
                break
    print(f"{done} cases, {len(failed)} of them failed")
    small = [one.shrink(result, tmp_path / "case") for result in failed[:3]]
    assert not failed, "\n\n".join(map(_text, small))
    assert done


def _until(cases: Iterator[Case], end: float) -> Iterator[Case]:
    for case in cases:
        if time.monotonic() > end:
            return
        yield case


def _append(log: Path, result: Result) -> None:
    entry = {
        "case": result.case.line(),
        "seconds": round(result.seconds, 2),
        "refused": result.refused,
        "checked": result.checked,
        "found": [str(found)[:2000] for found in result.found],
    }
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _text(result: Result) -> str:
    return "\n".join([result.case.line(), *(f"  {found}" for found in result.found[:10])])
