"""Other ways to the same answer: the run that comes out must have the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from oracle import product
from oracle.cases import Case, Disagreement, Settings, compare
from oracle.draw import Drawn, write

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
        files[split] = path.with_name(f"other-{split}.{ending}")
        write(files[split], change(drawn.rows[split]), as_windows=False)
    return replace(drawn, files=files)


def other_format(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """The same rows in a file of another format."""
    ending = "parquet" if trained[0].format != "parquet" else "jsonl"
    return _again(
        "other format", trained, _rewritten(trained, ending, lambda rows: rows), words, settings
    )


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
    if case.processes > 1:
        return []
    frames = {split: pd.DataFrame(rows) for split, rows in drawn.rows.items()}
    output = drawn.model.parent / "in-python"
    task = {} if case.task == "pairs" else {"task": case.task}
    try:
        ampft.finetune(
            frames["train"], validation=frames["validation"], test=frames["test"],
            model_name_or_path=str(drawn.model), output_dir=str(output),
            text_column_names=",".join(drawn.texts), label_column_name=",".join(drawn.labels),
            **task, **settings,
        )  # fmt: skip
    except Exception as error:
        return [Disagreement("in Python", f"{type(error).__name__}: {error}", "no error")]
    return same_run("in Python", run, product.RunFolder(output))


def from_a_file(trained: Trained, words: list[object], settings: Settings) -> list[Disagreement]:
    """The settings in a file for `--config`."""
    drawn = trained[1]
    path = drawn.model.parent / "settings.json"
    path.write_text(json.dumps(dict(settings)))
    return _again("from a file", trained, drawn, [*words, "--config", path], {})


RELATIONS: dict[str, Callable[[Trained, list[object], Settings], list[Disagreement]]] = {
    "none": lambda *_: [],
    "unfit": lambda *_: [],  # the case must be refused
    "other format": other_format,
    "more columns": more_columns,
    "in Python": in_python,
    "from a file": from_a_file,
}


def stopped(
    case: Case, words: list[object], settings: Settings, run: product.RunFolder, folder: Path
) -> list[Disagreement]:
    """Stop the training after a step and resume it, perhaps with another setting."""
    assert case.stop_after is not None
    output = folder / "stopped"
    base = [*words, "--output_dir", output]
    done = product.train([*base, *product.flags(settings)], output, 1, case.stop_after)
    if done.code != 75:
        said = f"exit code {done.code}: {done.err[-600:]}"
        return [] if done.code == 0 else [Disagreement("stopped by a signal", said, 75)]
    changed = {**settings, **case.change}
    if case.change and case.change.items() <= settings.items():
        return []
    resumed = [*product.flags(changed), "--resume_from_checkpoint", "latest"]
    done = product.train([*base, *resumed], output)
    if case.change:
        name = next(iter(case.change))
        if done.code != 2 or name not in done.err:
            said = f"exit code {done.code}: {done.err[-600:]}"
            return [Disagreement(f"resumed with another --{name}", said, "a refusal")]
        done = product.train(
            [*base, *product.flags(settings), "--resume_from_checkpoint", "latest"], output
        )
    if done.code:
        return [Disagreement("resumed", f"exit code {done.code}: {done.err[-600:]}", 0)]
    return same_run("resumed", run, product.RunFolder(output))
