"""Ledgers, final claims and yardsticks that end in a message, and what the message advises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from command_walks import of_seed, one_case, table
from data_walks import Files, Remedy, Walk
from prepared import OF_PLANS, Prepared, copied, recorded
from run_walks import BF16, FP32
from training_walks import TWO_FILES, changed, instead

LABELS = np.arange(120) % 3 % 2


def side(name: str, wrong: int, *seeds: int, first: int = 0, text: bool = False) -> Files:
    """Return tables of an arm that is wrong about one of `wrong` rows, others for each seed."""
    files: Files = {}
    for seed in seeds:
        generator = np.random.default_rng([wrong, seed])
        missed = generator.random(120) < 1 / wrong
        rows = [
            f"{first + i},{'xy'[label]},{'xy'[label ^ int(miss)]}" + f",text {first + i}" * text
            for i, (label, miss) in enumerate(zip(LABELS, missed, strict=True))
        ]
        header = "id,label,prediction" + ",text" * text
        files[f"{name}-seed{seed}.csv"] = table(*rows, header=header)
    return files


def named(name: str, *seeds: int) -> str:
    """Return the tables of an arm, as words."""
    return " ".join(f"{name}-seed{seed}.csv" for seed in seeds)


OLD, NEW = named("old", 1, 2, 3), named("new", 1, 2, 3)
FINAL_OLD, FINAL_NEW = named("fold", 1, 2, 3), named("fnew", 1, 2, 3)
T = {
    **side("old", 3, 1, 2, 3, 4, 5), **side("new", 40, 1, 2, 3, 4, 5),
    **side("fold", 3, 1, 2, 3, first=500), **side("fnew", 40, 1, 2, 3, first=500),
}  # fmt: skip
START = f"judge l --best {OLD}"
TRIED = f"{START} ; judge l --candidate {NEW}"
FINAL = f"{TRIED} ; judge l --final --candidate {FINAL_NEW} --best {FINAL_OLD}"


def of_tables(words: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of a ledger over tables."""
    return changed(words, *remedies, files=T | (files or {}))


def blocked(path: Path, prepared: Prepared) -> None:
    path.mkdir(parents=True)


KAPPA = f"judge l --best {OLD} --metric cohen_kappa"
OF_LEDGERS = {
    "a measure of one rare case": changed(
        KAPPA,
        instead("cohen_kappa", "accuracy", "Use another metric"),
        files=one_case("old", of_seed),
    ),
    "a ledger that ended": of_tables(
        f"{FINAL} ; judge l --candidate {NEW}",
        instead(f"{FINAL} ; judge l --candidate {NEW}", f"judge l2 --best {FINAL_OLD}", "Start a"),
    ),
    "a final claim of one side": of_tables(
        f"{TRIED} ; judge l --final --candidate {FINAL_NEW}",
        instead(
            f"{TRIED} ; judge l --final --candidate {FINAL_NEW}",
            f"judge l --final --candidate {FINAL_NEW} --best {FINAL_OLD}",
            "and --best for what it must beat",
        ),
    ),
    "a final claim of other seeds": of_tables(
        f"{TRIED} ; judge l --final --candidate {FINAL_NEW} --best {named('fold', 1, 2)}",
        instead(
            f"{TRIED} ; judge l --final --candidate {FINAL_NEW} --best {named('fold', 1, 2)}",
            f"judge l --final --candidate {FINAL_NEW} --best {FINAL_OLD}",
            "Pass both sides with the same seeds",
        ),
    ),
    "a final claim of equal sides": of_tables(
        f"{TRIED} ; judge l --final --candidate {FINAL_OLD} --best {FINAL_OLD}",
        instead(
            f"{TRIED} ; judge l --final --candidate {FINAL_OLD}",
            f"judge l --final --candidate {FINAL_NEW}",
            "both sides have equal predictions",
        ),
    ),
    "a final claim on old rows": of_tables(
        f"{TRIED} ; judge l --final --candidate {NEW} --best {OLD}",
        instead(
            f"{TRIED} ; judge l --final --candidate {NEW} --best {OLD}",
            f"judge l --final --candidate {FINAL_NEW} --best {FINAL_OLD}",
            "needs rows that no try has used",
        ),
    ),
    "no ledger": of_tables(
        "judge l --page p.html",
        instead("judge l --page p.html", START, "judge l --best RUN RUN RUN"),
    ),
    "a lock that is a folder": of_tables(
        START,
        Remedy("Move it", files={"l": None}),
        instead("judge l", "judge l2", "pass another folder"),
        files={"l/.lock": blocked},
    ),
    "a table without a seed": of_tables(
        "judge l --best old=a.csv",
        instead("old=a.csv", "old:1=a.csv old-seed2.csv old-seed3.csv", "ARM:SEED=FILE"),
        instead("old=a.csv", OLD, "ARM-seed1.csv"),
        files={"a.csv": T["old-seed1.csv"]},
    ),
    "one table as two seeds": of_tables(
        f"{START} ; judge l --candidate new:1=new-seed1.csv new:2=new-seed1.csv new-seed3.csv",
        instead(
            f"{START} ; judge l --candidate new:1=new-seed1.csv new:2=new-seed1.csv new-seed3.csv",
            f"judge l --candidate {NEW}",
            "pass each of them once",
        ),
    ),
    "seeds in another order": of_tables(
        f"judge l --best {named('old', 1, 2, 3, 4, 5)} ; judge l --candidate {NEW}"
        f" ; judge l --best {named('new', 1, 2, 3, 5)}",
        instead(
            f"judge l --best {named('old', 1, 2, 3, 4, 5)} ; judge l --candidate {NEW}"
            f" ; judge l --best {named('new', 1, 2, 3, 5)}",
            f"judge l --best {named('new', 1, 2, 3, 4)}",
            "Add the seeds that come first",
        ),
    ),
    "a best that was changed": changed(
        f"judge ledger --candidate {BF16}",
        Remedy("restore it", files={"fp32-1": copied("fp32-1")}),
        files={"fp32-1/predictions.parquet": "x"},
    ),
    "runs without a test split": changed(
        "judge l --best valid-1 valid-2 valid-3",
        instead("valid-1 valid-2 valid-3", FP32, "train with --test_file"),
    ),
    "runs that saw the test set": changed(
        "judge ledger --candidate leak-1 leak-2 leak-3",
        instead("leak-1 leak-2 leak-3", BF16, "Remove them and train again"),
    ),
    "a report of a ledger": changed(
        "report ledger", instead("report ledger", "audit ledger", "ampft audit ledger")
    ),
}
YARDSTICK = f"yardstick --modes fp32,bf16 --batches 2 {OF_PLANS}"
HERE = "--checkpoints"


def yardstick(old: str, new: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of a yardstick with a part of its command changed."""
    assert old in YARDSTICK
    return changed(YARDSTICK.replace(old, new), *remedies, files=files)


OF_YARDSTICKS = {
    "a mode twice": yardstick(
        "fp32,bf16", "fp32,fp32", instead("fp32,fp32", "fp32,bf16", "a mode appears twice")
    ),
    "rounded weights": yardstick(
        "fp32,bf16", "fp32,bf16-true", instead("bf16-true", "bf16", "Use bf16")
    ),
    "no such run": yardstick(
        "--batches 2", "--batches 2 --checkpoints ran",
        instead("--checkpoints ran", "--checkpoints run", "Pass the --output_dir of a run"),
    ),
    "a run that did not finish": yardstick(
        "--batches 2", "--batches 2 --checkpoints inspected",
        instead("--checkpoints inspected", "--checkpoints run", "Pass a finished run"),
        files={"inspected/run.json": recorded(status="diverged")},
    ),
    "another model": yardstick(
        "--batches 2", "--batches 2 --checkpoints small-run",
        instead("path model", "path small", "Pass the arguments of that run"),
    ),
    "other labels": yardstick(
        "--batches 2", "--batches 2 --checkpoints run",
        Remedy("Pass the arguments of that run", files={"train.csv": copied("train.csv"),
               "v.csv": copied("v.csv"), "u.csv": copied("u.csv")}),
        files=TWO_FILES,
    ),
    "another size": yardstick(
        "--batches 2", "--batches 2 --checkpoints wide-run",
        instead("path model", "path wide", "Pass the arguments of that run"),
    ),
    "a large batch": yardstick(
        "batch_size 8", "batch_size 24",
        instead("batch_size 24", "batch_size 8", "Use a smaller batch size"),
    ),
}  # fmt: skip
WALKS = {**OF_LEDGERS, **OF_YARDSTICKS}
