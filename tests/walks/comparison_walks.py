"""Comparisons that are planned, interrupted or repeated, and what their messages advise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_walks import COMPARED, FOLD, FOLDED, GOOD, TABLES, table
from data_walks import REMOVE, Remedy, Walk
from prepared import OF_PLANS, Prepared, copied, edited, recorded, with_arguments
from run_walks import BF16, FP32
from training_walks import changed, instead, without

MODES = "compare --modes fp32,bf16 --seeds 3 --anyway --output_dir"
REPEATED = f"{MODES} planned {OF_PLANS}"
PLAN = f"UNTIL=plan {MODES} p {OF_PLANS}"
LOW = "--arm 'low: --learning_rate 1e-4' --arm 'high: --learning_rate 1e-3'"
OF_ARMS = (
    f"{MODES.replace('--modes fp32,bf16', LOW)} p {OF_PLANS.replace(' --learning_rate 1e-3', '')}"
)
PLAN_ARMS = f"UNTIL=plan {OF_ARMS}"
SELECTED = PLAN_ARMS.replace(
    "--anyway", "--anyway --select validation --arm 'mid: --learning_rate 3e-4'"
)
RUNS = " ".join(f"planned/runs/{mode}-seed{s}" for mode in ("fp32", "bf16") for s in (42, 43, 44))
CAFE = "text,label\nw1 caf\xe9,ant\nw2,bee\nw3,cow\n"
BOTH = "text,a,b,label\n"
LAST = {"planned/runs/fp32-seed44": None}
REPEAT = "Repeat the command"


def of_plan(*remedies: Remedy, files: dict[str, Any] | None = None, more: str = "") -> Walk:
    """Return the walk of a comparison that is planned."""
    return changed(f"{PLAN}{more}", *remedies, files=files)


def linked(path: Path, prepared: Prepared) -> None:
    """Replace a folder by a link to another."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def without_seed(path: Path, prepared: Prepared) -> None:
    import json

    arguments = json.loads(path.read_text())["arguments"]
    recorded(arguments=arguments | {"seed": None})(path, prepared)


OF_FOLDERS = {
    "settings beside a plan": changed("compare planned --by seed", without("--by seed", REMOVE)),
    "exchanged runs": changed(
        REPEATED,
        Remedy(
            "Restore them from a copy",
            files={"planned/runs/fp32-seed42": copied("planned/runs/fp32-seed42")},
        ),
        Remedy("delete this one to train the run again", files={"planned/runs/fp32-seed42": None}),
        files={"planned/runs/fp32-seed42": copied("planned/runs/bf16-seed42")},
    ),
    "another metric than the plan's": changed(
        "compare planned --metric macro_f1",
        without("--metric macro_f1", REMOVE),
        instead("compare planned", f"compare {RUNS}", "pass the runs themselves"),
    ),
    "runs without a record": changed(
        "compare planned", instead("compare planned", REPEATED, REPEAT), files=LAST
    ),
    "a damaged yardstick": changed(
        "compare planned",
        Remedy("Delete it", files={"planned/yardstick.json": None}),
        files={"planned/yardstick.json": "{"},
    ),
    "changed data": changed(
        REPEATED,
        Remedy("Restore the file", files={"train.csv": copied("train.csv")}),
        instead(REPEATED, PLAN, "choose another folder"),
        files={"train.csv": edited("w1", "w2")},
    ),
    "an invalid plan": changed(
        REPEATED,
        instead(REPEATED, PLAN, "Choose another --output_dir"),
        Remedy("delete the file together with its runs", files={"planned": None}),
        files={"planned/plan.json": edited("fp32", "fp23")},
    ),
    "a log of another program": changed(
        REPEATED,
        Remedy("Move it", files={"planned/logs/fp32-seed44.log": None}),
        files=LAST | {"planned/logs/fp32-seed44.log": "mine\n"},
    ),
    "another comparison": changed(
        REPEATED.replace("--anyway", "--anyway --margin 2"),
        instead(REPEATED.replace("--anyway", "--anyway --margin 2"), PLAN, "Choose another folder"),
        without("--margin 2", "use the settings of that comparison"),
    ),
    "a folder of logs that is a link": changed(
        REPEATED,
        Remedy("Move it", files={"planned/logs": lambda path, _: path.unlink()}),
        instead(REPEATED, PLAN, "choose another folder"),
        files={"planned/logs": linked},
    ),
    "an unfinished comparison": changed(
        f"{PLAN} ; report p",
        instead(f"{PLAN} ; report p", PLAN.removeprefix("UNTIL=plan "), "Repeat its command"),
    ),
    "no analysis yet": changed(
        f"{PLAN} ; compare p", instead(f"{PLAN} ; compare p", PLAN, "Repeat its command")
    ),
    "no arm that is chosen": changed(
        f"{SELECTED} ; compare p", instead(f"{SELECTED} ; compare p", SELECTED, "Repeat its")
    ),
    "a placebo of another mode": changed(
        f"compare {RUNS} planned/runs/placebo-seed42 planned/runs/placebo-seed43"
        " planned/runs/placebo-seed44 --baseline bf16",
        without(
            "planned/runs/placebo-seed42 planned/runs/placebo-seed43 planned/runs/placebo-seed44",
            "Omit this folder",
        ),
        instead("--baseline bf16", "--baseline fp32", "use --baseline fp32"),
    ),
    "a comparison that has not started": changed(
        f"compare c {FP32}",
        instead("compare c", f"compare {BF16}", "Give the folder of a comparison that has started"),
        files={"c/runs/.keep": ""},
    ),
    "a run without a seed": changed(
        f"compare {FP32} {BF16} inspected",
        without("inspected", "Omit this folder"),
        files={"inspected/run.json": without_seed},
    ),
    "no arm that finished": changed(
        "compare fp32-1 bf16-1",
        Remedy(
            "Train the missing runs", files={"fp32-1": copied("fp32-1"), "bf16-1": copied("bf16-1")}
        ),
        instead("compare fp32-1 bf16-1", "compare fp32-2 bf16-2", "omit those seeds"),
        files={
            "fp32-1/run.json": recorded(status="interrupted"),
            "bf16-1/run.json": recorded(status="interrupted"),
        },
    ),
    "a record of other predictions": changed(
        f"compare {FP32} {BF16}",
        Remedy("Copy the folder of the run again", files={"fp32-1": copied("fp32-1")}),
        files={"fp32-1/run.json": recorded(metrics={"split": "test", "accuracy": 0.01})},
    ),
    "inference of two models": changed(
        "compare fp32-1 small-run --inference fp32,bf16",
        instead("small-run", "fp32-2", "Pass runs that differ only in the seed"),
    ),
    "inference of a model on itself": changed(
        "compare run --on u.csv", Remedy("Pass another RUN, too", add="inspected")
    ),
    "a model twice": changed(
        "compare run run --on u.csv",
        instead("compare run run", "compare run inspected", "Pass the folders of several models"),
    ),
    "models of words": changed(
        "compare word-run word-run-2 --on words.conll",
        without("--on words.conll", "and compare them without --on"),
    ),
    "rows without a column of labels": changed(
        "compare run inspected --on t.csv",
        Remedy("Add the right labels", files={"t.csv": "text,label\nw1,ant\nw2,bee\nw5,bee\n"}),
        files={"t.csv": "text\nw1\nw2\n"},
    ),
    "rows without labels": changed(
        "compare run inspected --on t.csv",
        Remedy("Remove the others", files={"t.csv": "text,label\nw1,ant\nw2,bee\nw3,cow\n"}),
        files={"t.csv": "text,label\nw1,ant\nw2,\nw2,bee\nw3,cow\n"},
    ),
    "rows that may be left out": changed(
        "compare run inspected --on t.csv",
        Remedy("or add --drop_missing_labels"),
        files={"t.csv": "text,label\nw1,ant\nw2,\nw2,bee\nw3,cow\n"},
    ),
    "rows in another encoding": changed(
        "compare run inspected --on t.csv",
        Remedy("--encoding cp1252"),
        Remedy("or convert it: iconv", files={"t.csv": CAFE}),
        files={"t.csv": CAFE.encode("cp1252")},
    ),
    "rows in UTF-16 without a mark": changed(
        "compare run inspected --on t.csv",
        Remedy("Pass --encoding utf-16-le"),
        files={"t.csv": CAFE.encode("utf-16-le")},
    ),
    "no row with a label": changed(
        "compare run inspected --on t.csv --drop_missing_labels",
        Remedy("Add the right labels", files={"t.csv": CAFE}),
        files={"t.csv": "text,label\nw1,\nw2,\n"},
    ),
    "labels of two columns": changed(
        "compare run pair-run --on t.csv",
        Remedy("Correct it", files={"t.csv": BOTH + "w1,w2,w3,ant\nw5,w2,w1,bee\n"}),
        files={
            "t.csv": "text,a,b,label,kind\nw1,w2,w3,ant,ant\nw5,w2,w1,bee,cow\n",
            "pair-run/run.json": with_arguments(label_column_name="kind"),
        },
    ),
    "no row for both models": changed(
        "compare run pair-run --on t.csv --drop_missing_labels",
        Remedy("Pass a file with them", files={"t.csv": BOTH + "w1,w2,w3,ant\nw5,w2,w1,bee\n"}),
        files={"t.csv": BOTH + "w1,,,ant\n,w2,w3,bee\n"},
    ),
    "no such rows": changed(
        "compare run inspected --on w.csv",
        instead("w.csv", "u.csv", "--on: the file w.csv does not exist"),
    ),
}
OF_PLANNING = {
    "a folder with other files": of_plan(
        instead("--output_dir p", "--output_dir p2", "Choose a new or empty folder"),
        files={"p/a.txt": "x"},
    ),
    "more jobs than cores": changed(
        PLAN.replace("--anyway", "--anyway --jobs 99"),
        instead("--jobs 99", "--jobs 2", "Use at most --jobs"),
    ),
    "few rows": changed(
        PLAN.replace("--anyway ", ""),
        instead("--seeds 3", "--seeds 3 --anyway", "--anyway in its place"),
    ),
    "a short budget": changed(
        PLAN.replace("--anyway", "--anyway --budget 1s"),
        instead("--budget 1s", "--budget 1h", "Increase the budget"),
        without("--budget 1s", "remove --budget"),
    ),
    "folds of several labels": changed(
        PLAN.replace("--anyway", "--anyway --folds 3").replace(
            "--train_file train.csv --validation_file v.csv --test_file u.csv",
            "--train_file pairs.csv --text_column_names a --task multi-label"
            " --label_column_name p,q",
        ),
        instead("--folds 3", "", "For others, pass a --test_file"),
    ),
    "a choice without a test split": changed(
        SELECTED.replace("--test_file u.csv", "--test_fraction 0"),
        instead("--test_fraction 0", "--test_file u.csv", "Add --validation_file and --test_file"),
    ),
    "arms with other test rows": changed(
        PLAN_ARMS.replace("low: ", "low: --test_file v.csv "),
        without("--test_file v.csv ", "Compare arms that report on the same examples"),
    ),
    "arms with other validation rows": changed(
        SELECTED.replace("mid: ", "mid: --validation_file train.csv "),
        without("--validation_file train.csv ", "Choose between arms with the same ones"),
    ),
    "an arm that cannot be trained": changed(
        PLAN_ARMS.replace("low: ", "low: --freeze xyz "),
        instead("--freeze xyz", "--freeze embeddings", "Its modules are embeddings"),
    ),
    "settings of an arm in a file": changed(
        PLAN_ARMS.replace("low: ", "low: --config c.yaml "),
        without("--config c.yaml ", "write the settings of an arm as flags"),
        files={"c.yaml": "seed: 1\n"},
    ),
    "a setting of a training beside runs": changed(
        "compare run inspected --learning_rate 1e-3", without("--learning_rate 1e-3", "Remove it")
    ),
    "runs and settings of a training": changed(
        f"compare {FP32} {BF16} -- --train_file u.csv",
        without("-- --train_file u.csv", "Remove one of them"),
    ),
}
SHARES = "id,label,prediction,probability_x,probability_y"


def shares(x: str, y: str) -> str:
    """Return a table with probabilities of 12 rows, whose predictions alternate."""
    rows = (f"{i},{'xy'[i % 2]},{'xy'[i % 2]},{(x, y)[i % 2]},{(y, x)[i % 2]}" for i in range(12))
    return table(*rows, header=SHARES)


def of_tables(content: str | bytes, *remedies: Remedy, words: str = COMPARED) -> Walk:
    """Return the walk of a bad table among good ones."""
    return changed(f"compare {words}", *remedies, files=TABLES | {"q-seed2.csv": content})


MENDED = {"q-seed2.csv": GOOD}
SEVERAL = "--predictions p=p.csv q=q.csv"
TEXTS = [f"{i % 6},{'xy'[i % 2]},{'xy'[i * i % 2]},t{i // 2}" for i in range(12)]


def two(first: str, second: str, *remedies: Remedy, words: str = SEVERAL) -> Walk:
    """Return the walk of two tables."""
    return changed(f"compare {words}", *remedies, files={"p.csv": first, "q.csv": second})


OBJECTS = "".join(
    f'{{"id": {i}, "label": "{"xy"[i % 2]}", "probabilities": {{"x": {0.9 - 0.8 * (i % 2):.1f}, '
    f'"y": {0.1 + 0.8 * (i % 2):.1f}}}}}\n'
    for i in range(12)
)
LISTS = OBJECTS.replace('{"x": ', "[").replace('"y": ', "").replace("}}", "]}")
OF_TABLES = {
    "probabilities of other classes": two(
        shares("0.9", "0.1"), shares("0.1", "0.9"),
        Remedy("Check the names or the order", files={"q.csv": shares("0.9", "0.1")}),
    ),
    "texts of other rows": two(
        table(*(f"{row},t{i}" for i, row in enumerate(FOLDED)), header="id,label,prediction,text"),
        table(*(f"{row},u{i}" for i, row in enumerate(FOLDED)), header="id,label,prediction,text"),
        Remedy("remove the column text", files={"p.csv": GOOD, "q.csv": GOOD}),
    ),
    "a group in several folds": two(
        table(*(f"{r},{i % 3},g{i // 2}" for i, r in enumerate(FOLDED)), header=FOLD + ",group"),
        table(*(f"{r},{i % 3},g{i // 2}" for i, r in enumerate(FOLDED)), header=FOLD + ",group"),
        Remedy("Keep them in one fold", files={
            f"{n}.csv": table(*(f"{row},{i // 2 % 3},g{i // 2}" for i, row in enumerate(FOLDED)),
                              header=FOLD + ",group") for n in "pq"}),
    ),
    "lists of probabilities": changed(
        "compare --predictions p=p.jsonl q=q.jsonl",
        Remedy("Write an object", files={"p.jsonl": OBJECTS, "q.jsonl": OBJECTS}),
        files={"p.jsonl": LISTS, "q.jsonl": LISTS},
    ),
    "a probability too few": changed(
        "compare --predictions p=p.jsonl q=q.jsonl",
        Remedy("Give one probability per class", files={"q.jsonl": OBJECTS}),
        files={"p.jsonl": OBJECTS, "q.jsonl": OBJECTS.replace('"x": 0.9, ', "", 1)},
    ),
    "an arm twice": two(
        GOOD, table(*(f"{row},a" for row in FOLDED), header="id,label,prediction,arm"),
        Remedy("Remove the column", files={"q.csv": GOOD}),
    ),
    "columns that are missing": two(
        GOOD, GOOD.replace("id,", "number,", 1),
        Remedy("A table needs the columns id", files={"q.csv": GOOD}),
        instead("--predictions p=p.csv q=q.csv", "run inspected --on u.csv", "ampft compare RUN RUN"
                " --on FILE"),
    ),
    "a seed in two files": changed(
        f"compare {COMPARED} d/q-seed2.csv",
        without("d/q-seed2.csv", "Give the rows of an arm and seed in one file"),
        files=TABLES | {"d/q-seed2.csv": GOOD},
    ),
    "a single row": two(
        table("0,x,x"), table("0,x,y"), Remedy("Use a larger test set", files={
            "p.csv": GOOD, "q.csv": GOOD}), words=f"{SEVERAL} --label_names x,y",
    ),
}  # fmt: skip
WALKS = {**OF_FOLDERS, **OF_PLANNING, **OF_TABLES}
