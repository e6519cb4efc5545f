"""Runs one case through the product and the oracle, and returns where they disagree."""

from __future__ import annotations

import os
import re
import shutil
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from oracle import decide, effects, loops, product, read, report, train, validate
from oracle.cases import Case, Disagreement, compare
from oracle.draw import MEDIA, Drawn, draw
from oracle.plan import refusal_of
from oracle.relations import RELATIONS, stopped

ALWAYS = {"cpu_threads": 1, "baseline": False, "serve_back": False}


WARMING = (
    Case("text", 0, door="predict parquet", settings={"max_train_steps": 2}),
    Case("pairs", 0, family="roberta", door="pipeline", settings={"max_train_steps": 1}),
    Case("tokens", 0, format="jsonl", settings={"max_train_steps": 1}),
    Case("images", 0, family="vit", settings={"max_train_steps": 1}),
    Case("sounds", 0, family="ast", settings={"max_train_steps": 1}),
)


@dataclass(frozen=True)
class Result:
    """What became of a case."""

    case: Case
    found: tuple[Disagreement, ...]
    seconds: float
    refused: str = ""  # Message, if the product refused the case, as it should.
    checked: tuple[str, ...] = ()  # Oracles that the case went through.


def run_case(case: Case, folder: Path) -> Result:
    """Run a case in a copy of this process."""
    start = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    result = product.forked(lambda: in_this_process(case, folder))()
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(result, product.Crash):
        found = (Disagreement("the oracle or the product crashed", result.text[-3000:], "none"),)
        result = Result(case, found, 0.0)
    return Result(case, result.found, time.perf_counter() - start, result.refused, result.checked)


def warm(folder: Path) -> None:
    """Run a few cases in this process, so that copies of it have imported and cached everything."""
    # A tokenizer that has started threads waits for them for ever in a copy of its process.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for number, case in enumerate(WARMING):
        in_this_process(case, folder / str(number))


def in_this_process(case: Case, folder: Path) -> Result:
    """Draw the data, train, and hold everything against the oracle."""
    if case.task == "loop":
        return Result(case, tuple(loops.judge(case, folder)), 0.0, checked=("loop",))
    drawn = draw(case, folder)
    output = folder / "run"
    settings = {**ALWAYS, **case.settings}
    task = [] if case.task in ("text", "pairs", *MEDIA) else ["--task", case.task]
    words = [*drawn.words(), *task]
    start = time.perf_counter()
    done = product.train(
        [*words, "--output_dir", output, *product.flags(settings)], output, case.processes
    )
    seconds = time.perf_counter() - start
    expected = refusal_of(case, drawn)
    if done.code == 2 and expected:
        left = [path.name for path in folder.glob("run*")]
        found = [Disagreement("files after a refusal", left, [])] if left else []
        return Result(case, tuple(found), 0.0, done.err.strip().splitlines()[-1])
    if done.code == 2 and "abstain" in settings and "--abstain" in done.err:
        # How many rows are independent is not for the oracle to say.
        return Result(case, (), 0.0, done.err.strip().splitlines()[-1])
    if done.code == 3:  # the product says that the training destroyed the model
        return Result(case, (), 0.0, done.err.strip().splitlines()[-1])
    if done.code or expected:
        said = f"exit code {done.code}: {done.err[-1500:]}"
        return Result(case, (Disagreement("ampft train", said, expected or "exit code 0"),), 0.0)
    run = product.RunFolder(output)
    found, checked = check(case, drawn, run, folder)
    wrote = [line for line in done.out.splitlines() if line.startswith("wrote ")]
    found += compare("printed: where the files are", [str(output) in w for w in wrote], [True])
    times, steps = run.record["timings"], [row["seconds"] for row in run.history]
    parts = [sum(steps), times["training_seconds"], times["checkpoint_seconds"]]
    is_possible = min(*steps, *parts) >= 0 and max(parts) <= times["total_seconds"] <= seconds
    found += compare(f"seconds {parts} of {times['total_seconds']}", is_possible, True)
    found += RELATIONS[case.relation]((case, drawn, run), task, settings)
    if case.stop_after is not None:
        found += stopped(case, words, settings, run, folder)
    return Result(case, tuple(found), 0.0, checked=tuple(checked))


def check(
    case: Case, drawn: Drawn, run: product.RunFolder, folder: Path
) -> tuple[list[Disagreement], list[str]]:
    """Hold a finished run against each oracle that speaks about it."""
    names = run.record["label_names"]
    found, checked = [], []

    def weights() -> list[Disagreement]:
        count = len(read.kept_rows(case, drawn, "train"))
        different = train.check_order(case, run, count)
        if different:
            return different
        if "lora_r" in case.settings:
            return train.check_adapters(case, drawn, names, run)
        trained = train.train(case, drawn, names)
        return [
            *train.check(case, drawn, run, trained),
            *validate.check(case, drawn, names, run, trained),
        ]

    oracles = {
        "read": lambda: read.check(case, drawn, run),
        "report": lambda: report.check(case, drawn, run),
        "effects": lambda: effects.check(case, run),
        "train": weights,
        "decide": lambda: decide.check(case, drawn, run, folder),
        "fitted": lambda: decide.check_fitted(case, drawn, run),
    }
    for name, oracle in oracles.items():
        try:
            found += oracle()
        except Exception:
            found.append(Disagreement(f"{name}: a traceback", traceback.format_exc()[-2500:], ""))
        checked.append(name)
    return found, checked


def kind_of(found: tuple[Disagreement, ...]) -> str:
    """Return what the first disagreement is about, without numbers and values."""
    text = found[0].what
    if found[0].what == "ampft train" or "crash" in text or "traceback" in text:
        lines = [line for line in str(found[0].product).strip().splitlines() if line]
        text += f" {lines[-1]}"
    return re.sub(r"\[[^\]]*\]|\d+(?:\.\d+)?|/\S+", "", text)[:120]


def shrink(result: Result, folder: Path, most: int = 40) -> Result:
    """Return the result of the smallest case that still fails in the same way."""
    kind, tries = kind_of(result.found), 0
    is_smaller = True
    while is_smaller and tries < most:
        is_smaller = False
        for case in result.case.smaller():
            tries += 1
            other = run_case(case, folder)
            if other.found and kind_of(other.found) == kind:
                result, is_smaller = other, True
                break
            if tries >= most:
                break
    return result
