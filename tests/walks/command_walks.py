"""Command lines that cause a message, and what the message advises."""

from __future__ import annotations

from collections.abc import Callable

from data_walks import Files, Remedy, Walk


def table(*rows: str, header: str = "id,label,prediction") -> str:
    """Return a table of predictions."""
    return "\n".join([header, *rows]) + "\n"


ARMS = [f"{arm}-seed{seed}.csv" for arm in "pq" for seed in (1, 2, 3)]
GOOD = table(*(f"{i},{'xy'[i % 2]},{'xy'[i * i % 2]}" for i in range(12)))
TABLES = dict.fromkeys(ARMS, GOOD)
COMPARED = f"--predictions {' '.join(ARMS)}"


def bad_table(content: str | bytes, *remedies: Remedy, words: str = COMPARED) -> Walk:
    """Return the walk of a bad table among good ones."""
    return Walk(TABLES | {"q-seed2.csv": content}, words, remedies)


MENDED = {"q-seed2.csv": GOOD}
ONE_CLASS = dict.fromkeys(ARMS, table(*(f"{i},x,x" for i in range(12))))


def shares(first: float) -> str:
    """Return a table with probabilities, of which the first row's sum is `first`."""
    rows = ((i, "xy"[i % 2], 0.9 if i % 2 == 0 else 0.1) for i in range(12))
    return table(
        *(f"{i},{k},{p},{(first if i == 0 else 1) - p:.1f}" for i, k, p in rows),
        header="id,label,probability_x,probability_y",
    )


FOLDED = [f"{i},{'xy'[i % 2]},{'xy'[i * i % 2]}" for i in range(12)]
FOLD = "id,label,prediction,fold"
IN_ONE_FOLD, IN_FOLDS = (
    table(
        *(f"{row},{i % folds}" for i, row in enumerate(FOLDED)), header="id,label,prediction,fold"
    )
    for folds in (1, 3)
)


def one_case(name: str, predicted: Callable[[int], str], *, truth: str = "yx") -> Files:
    """Return tables of three seeds, where only the first of 40 rows can have another label.

    Args:
        name: Name of the arm.
        predicted: Function from the seed to the predictions of the first rows; all other rows are
            predicted to be x.
        truth: Labels of the first row and of all others.
    """
    labels = truth[0] + truth[1] * 39
    tables: Files = {}
    for seed in (1, 2, 3):
        pairs = zip(labels, predicted(seed).ljust(40, "x"), strict=True)
        rows = [f"{i},{label},{prediction}" for i, (label, prediction) in enumerate(pairs)]
        tables[f"{name}-seed{seed}.csv"] = table(*rows)
    return tables


def of_seed(seed: int) -> str:
    """Return predictions in which one row is y, another for each seed; none for the first."""
    return "x" * (seed - 1) + "y" * (seed > 1)


OF_TABLES = {
    "a measure of one rare case": Walk(
        one_case("p", lambda _: "") | one_case("q", of_seed), f"{COMPARED} --metric cohen_kappa",
        (
            Remedy("Use another metric", add="--metric accuracy", without="--metric cohen_kappa"),
            Remedy("or more test examples of the rare classes", files=TABLES),
        ),
    ),
    "a measure of one label": Walk(
        one_case("p", lambda _: "", truth="xx") | one_case("q", of_seed, truth="xx"),
        f"{COMPARED} --label_names x,y --metric cohen_kappa",
        (
            Remedy("Use another metric", add="--metric accuracy", without="--metric cohen_kappa"),
        ),
    ),
    "an id twice": bad_table(GOOD + "0,x,x\n", Remedy("Give every example once", files=MENDED)),
    "an empty cell": bad_table(
        GOOD.replace("0,x,x", "0,,x"), Remedy("Fill the cell", files=MENDED)
    ),
    "an unknown class": bad_table(
        GOOD.replace("0,x,x", "0,x,z"),
        Remedy("Fix the spelling", files=MENDED),
        Remedy("give all classes with --label_names", add="--label_names x,y,z"),
    ),
    "a table in another encoding": bad_table(
        table(
            *(f"{i},{'xy'[i % 2]},{'xy'[i * i % 2]},caf\xe9 {i}" for i in range(12)),
            header="id,label,prediction,text",
        ).encode("cp1252"),
        Remedy("--encoding cp1252"),
        Remedy("or convert it: iconv", files=MENDED),
    ),
    "a class twice": Walk(
        TABLES, f"{COMPARED} --label_names x,x,y",
        (Remedy("a class occurs twice", add="--label_names x,y", without="--label_names x,x,y"),),
    ),
    "one arm": Walk(
        TABLES, "--predictions p-seed1.csv p-seed2.csv p-seed3.csv",
        (Remedy("Add a table of another arm", add="q-seed1.csv q-seed2.csv q-seed3.csv"),),
    ),
    "probabilities with another sum": Walk(
        dict.fromkeys(ARMS, shares(1)) | {"q-seed2.csv": shares(1.4)}, COMPARED,
        (Remedy("Write probabilities, not logits", files={"q-seed2.csv": shares(1)}),),
    ),
    "one class in all tables": Walk(
        ONE_CLASS, COMPARED,
        (Remedy("Compare more examples", files=TABLES),
         Remedy("list all classes with --label_names", add="--label_names x,y")),
    ),
    "two seeds": Walk(
        TABLES, "--predictions p-seed1.csv p-seed2.csv q-seed1.csv q-seed2.csv",
        (Remedy("Add trainings with other seeds", add="p-seed3.csv q-seed3.csv"),
         Remedy("give one table per arm to compare these models only",
                add="--predictions p=p-seed1.csv q=q-seed1.csv",
                without="--predictions p-seed1.csv p-seed2.csv q-seed1.csv q-seed2.csv")),
    ),
    "one fold": Walk(
        dict.fromkeys(ARMS, IN_ONE_FOLD), COMPARED,
        (Remedy("remove the column for a test split", files=TABLES),
         Remedy("at least two folds", files=dict.fromkeys(ARMS, IN_FOLDS))),
    ),
    "tables without seeds": Walk(
        TABLES, "--predictions p=p-seed1.csv p=q-seed1.csv",
        (Remedy("named ARM=FILE with an arm of its own",
                add="--predictions p=p-seed1.csv q=q-seed1.csv",
                without="--predictions p=p-seed1.csv p=q-seed1.csv"),),
    ),
    "unpaired seeds": Walk(
        TABLES, "--predictions p-seed1.csv p-seed2.csv p-seed3.csv q-seed1.csv q-seed2.csv",
        (Remedy("Add them", add="q-seed3.csv"),),
    ),
    "a metric of probabilities": Walk(
        TABLES, f"{COMPARED} --metric log_loss",
        (Remedy("use another metric", without="--metric log_loss"),),
    ),
    "an unknown baseline": Walk(
        TABLES, f"{COMPARED} --baseline r",
        (Remedy("the tables have the arms p, q", add="--baseline q", without="--baseline r"),),
    ),
}  # fmt: skip

SETTINGS = "-- --train_file t.csv"
OF_COMPARISONS = {
    "too few seeds": Walk(
        {}, f"--seeds 2 {SETTINGS}", (Remedy("Use 3", add="", without="--seeds 2"),)
    ),
    "seeds that are no number": Walk(
        {}, f"--seeds five {SETTINGS}", (Remedy("such as 5", without="--seeds five"),)
    ),
    "a large seed": Walk(
        {}, f"{SETTINGS} --seed 4294967295", (Remedy("Use a smaller first seed",
                                                    add="--seed 7", without="--seed 4294967295"),)
    ),
    "a metric": Walk(
        {}, f"--metric acuracy {SETTINGS}", (Remedy("accuracy", without="--metric acuracy"),)
    ),
    "one precision": Walk(
        {}, f"--modes fp32 {SETTINGS}",
        (Remedy("--modes fp32,bf16", add=f"--modes fp32,bf16 {SETTINGS}",
                without=f"--modes fp32 {SETTINGS}"),),
    ),
    "dashes twice": Walk(
        {}, "-- --train_file t.csv --", (Remedy("Remove the other", add=SETTINGS,
                                               without="-- --train_file t.csv --"),)
    ),
}  # fmt: skip

TEXTS = {"in.csv": "text,a,b\nw1 w2,w1,w3\nw4,w4 w5,w6\n", "old.csv": "mine\n"}
MODEL = "--model run"
OF_PREDICTIONS = {
    "no input": Walk(
        TEXTS, MODEL, (Remedy("--text", add="--text w1"), Remedy("a file", add="in.csv"))
    ),
    "both inputs": Walk(
        TEXTS, f"{MODEL} in.csv --text w1", (Remedy("Give a file", without="--text w1"),)
    ),
    "no such file": Walk(
        TEXTS, f"{MODEL} w1", (Remedy("--text TEXT", add="--text w2", without="w1"),)
    ),
    "two files": Walk(
        TEXTS | {"b.csv": "text\nw1\n"}, f"{MODEL} in.csv b.csv",
        (Remedy("give one", without="b.csv"),),
    ),
    "another ending": Walk(
        TEXTS, f"{MODEL} in.csv --output_file o.xyz",
        (Remedy("Use .csv", add="--output_file o.csv", without="--output_file o.xyz"),
         Remedy(".jsonl", add="--output_file o.jsonl", without="--output_file o.xyz"),
         Remedy(".parquet", add="--output_file o.parquet", without="--output_file o.xyz")),
    ),
    "the input as output": Walk(
        TEXTS, f"{MODEL} in.csv --output_file in.csv",
        (Remedy("Choose another file", add="--output_file o2.csv",
                without="--output_file in.csv"),),
    ),
    "a file of the user": Walk(
        TEXTS, f"{MODEL} in.csv --output_file old.csv",
        (Remedy("Choose another file", add="--output_file o3.csv",
                without="--output_file old.csv"),
         Remedy("--overwrite")),
    ),
    "overwriting nothing": Walk(
        TEXTS, f"{MODEL} in.csv --overwrite", (Remedy("remove the flag", without="--overwrite"),)
    ),
    "too many labels": Walk(
        TEXTS, f"{MODEL} in.csv --top_k 99",
        (Remedy("between 1 and 3", add="--top_k 3", without="--top_k 99"),),
    ),
    "no examples in a batch": Walk(
        TEXTS, f"{MODEL} in.csv --batch_size 0",
        (Remedy("must be at least 1", add="--batch_size 1", without="--batch_size 0"),),
    ),
    "no such run": Walk(
        TEXTS, "--model ran in.csv",
        (Remedy("Give the --output_dir of a run", add=MODEL, without="--model ran"),),
    ),
    "a folder as output": Walk(
        TEXTS | {"o/a.txt": "x"}, f"{MODEL} in.csv --output_file o",
        (Remedy("Choose a file", add="--output_file o7.csv", without="--output_file o"),),
    ),
    "columns": Walk(
        TEXTS, f"{MODEL} in.csv --text_column_names a,b",
        (Remedy("Give as many columns as in training", add="--text_column_names a",
                without="--text_column_names a,b"),),
    ),
}  # fmt: skip
