"""Commands that read what a training made, and what their messages advise."""

from __future__ import annotations

from data_walks import REMOVE, Remedy
from prepared import copied, edited, recorded
from training_walks import changed, instead, without

TABLE = "id,label,prediction\n" + "".join(
    f"{i},{'xy'[i % 2]},{'xy'[i * i % 2]}\n" for i in range(12)
)
FP32 = "fp32-1 fp32-2 fp32-3"
BF16 = "bf16-1 bf16-2 bf16-3"
PREDICT = "predict --model run u.csv"
ROWS = "text,label\n" + "w1 w2,ant\nw3,bee\n" * 4
EXPORT = "export run --format torch --no_measure --output_dir a"
OF_PREDICTIONS = {
    "a report of several processes": changed(
        "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=29999 " + PREDICT,
        without(
            "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=29999",
            "Start it without torchrun",
        ),
    ),
    "an output for a score": changed(
        "report run --output_file p.html", without("--output_file p.html", REMOVE)
    ),
    "a run that did not finish": changed(
        PREDICT,
        instead("--model run", "--model inspected", "not finished"),
        files={"run/run.json": recorded(status="diverged")},
    ),
    "a record that is gone": changed(
        PREDICT,
        instead("--model run", "--model inspected", "Give the --output_dir of a run"),
        files={"run/run.json": None},
    ),
    "a folder of a comparison": changed(
        "predict --model planned u.csv",
        instead("--model planned", "--model planned/runs/fp32-seed42", "Give one of its runs"),
    ),
    "a record that is damaged": changed(
        "report run",
        Remedy(
            "Restore it from a copy",
            files={
                "run/run.json": copied("inspected/run.json"),
                "run/report.json": copied("inspected/report.json"),
            },
        ),
        files={"run/run.json": "{"},
    ),
    "a report of no folder": changed(
        "report ran", instead("ran", "run", "Give the --output_dir of a run")
    ),
    "a label with the name of a rank": changed(
        "train --train_file pairs.csv --text_column_names a --label_column_name p"
        " --model_name_or_path model --max_train_steps 2 --use_cpu --cpu_threads 1"
        " --output_dir o --overwrite_output_dir"
        " ; predict --model o pairs.csv --top_k 2 --all_probabilities",
        without("--top_k 2", "Remove one of the flags"),
        without("--all_probabilities", "Remove one of the flags"),
    ),
    "texts of a pair": changed(
        "predict --model pair-run --text w1", Remedy("--text 2 times per row", add="--text w2")
    ),
    "masks of nothing": changed(
        "predict --model picture-run --text w1",
        instead("--text w1", "pictures", "Pass images or folders"),
    ),
    "an output in a run": changed(
        "predict --model run u.csv --output_file run/run.json --overwrite",
        instead("run/run.json", "o.csv", "Choose another file"),
    ),
    "scores of files": changed(
        "predict --model run u.csv --output_dir o --label_column_name label",
        without("--label_column_name label", "Remove one of them"),
        without("--output_dir o", "Remove one of them"),
    ),
    "an output in the input": changed(
        "predict --model run d --output_dir d/o",
        instead("d/o", "o", "Choose another one"),
        files={"d/a.csv": ROWS},
    ),
    "two inputs of one name": changed(
        "predict --model run a.csv d/a.csv --output_dir o",
        Remedy("Rename one of them", without="d/a.csv", add="d/b.csv", files={"d/b.csv": ROWS}),
        files={"a.csv": ROWS, "d/a.csv": ROWS + "w9,bee\n"},
    ),
    "shards with other settings": changed(
        "predict --model run u.csv --output_dir o ; predict --model run u.csv v.csv --output_dir o"
        " --top_k 2",
        instead(
            "v.csv --output_dir o --top_k 2",
            "v.csv --output_dir o2 --top_k 2",
            "Choose another folder",
        ),
    ),
    "shards of a damaged manifest": changed(
        "predict --model run u.csv --output_dir o",
        instead("dir o", "dir o2", "Choose another --output_dir"),
        files={"o/.ampft-predict.json": "{"},
    ),
    "several types in Parquet": changed(
        "predict --model run t.jsonl --output_file o.parquet",
        instead("o.parquet", "o.jsonl", "Choose a .csv or .jsonl file"),
        instead("o.parquet", "o.csv", "Choose a .csv or .jsonl file"),
        files={"t.jsonl": '{"text": "w1", "x": 1}\n{"text": "w2", "x": "y"}\n'},
    ),
    "a large number": changed(
        "predict --model run t.jsonl --output_file o.parquet",
        Remedy("Remove the cell", files={"t.jsonl": '{"text": "w1", "x": 1}\n'}),
        files={"t.jsonl": '{"text": "w1", "x": 99999999999999999999}\n'},
    ),
    "features that are missing": changed(
        "predict --model feature-run --text w1",
        instead("--text w1", "--text 'age: 1. w1'", "or write them before each text"),
        instead("--text w1", "f.csv", "Pass rows with these columns"),
        files={"f.csv": "age,a\n1,w1\n2,w3\n"},
    ),
    "words in cells": changed(
        "predict --model word-run t.jsonl --output_file o.conll",
        Remedy("Remove it from the word", files={"t.jsonl": '{"tokens": ["w1", "w2"]}\n'}),
        instead("o.conll", "o.jsonl", "give a .jsonl"),
        files={"t.jsonl": '{"tokens": ["w1\\tx", "w2"]}\n'},
    ),
    "two files of words": changed(
        "predict --model word-run words.conll w.conll",
        Remedy("give one", without="w.conll"),
        files={"w.conll": "w1 O\n\n"},
    ),
    "a page of the user": changed(
        "errors run --output_file mine.html",
        instead("mine.html", "e.html", "Choose another file"),
        Remedy("remove it", files={"mine.html": None}),
        files={"mine.html": "<p>mine"},
    ),
    "checkpoints of a run without": changed(
        "checkpoint list inspected",
        instead("inspected", "run", "Give the --output_dir of a run with --checkpointing_steps"),
        instead("inspected", "run/checkpoints/step-4", "or one of its checkpoints"),
    ),
    "a recipe": changed("recipe clasify", instead("clasify", "classify", "Choose one of")),
    "no command": changed("", Remedy("See ampft --help", add="--help")),
    "a file of settings as a command": changed(
        "s.yaml",
        instead("s.yaml", "train --config s.yaml --help", "ampft train --config"),
        files={"s.yaml": "max_train_steps: 3\n"},
    ),
    "another command": changed("trian", instead("trian", "train --help", "Did you mean 'train'")),
    "an audit into the run": changed(
        "audit run --json run/a.json --steps 1",
        instead("run/a.json", "a.json", "Pass a file elsewhere"),
    ),
    "an audit of a training that stopped": changed(
        "audit run --steps 1",
        instead("audit run", "audit inspected", "Pass the folder of a finished run"),
        files={"run/run.json": recorded(status="diverged")},
    ),
    "an audit of nothing": changed(
        "audit model", instead("audit model", "audit run --steps 1", "Pass the folder of one")
    ),
    "a doctor of no folder": changed(
        "doctor ran", instead("ran", "run --no_cure --batches 1", "Pass the --output_dir of a run")
    ),
    "a doctor of changed data": changed(
        "doctor run --no_cure --batches 1",
        Remedy(
            "pass the settings that changed after ` -- `",
            add="-- --train_file t.csv",
            files={"t.csv": copied("train.csv")},
        ),
        files={"train.csv": edited("w", "x")},
    ),
    "a doctor in a file": changed(
        "doctor run --no_cure --batches 1 --output_dir u.csv",
        instead("dir u.csv", "dir d", "Pass another one"),
    ),
    "operations in fp32": changed(
        "ops --mixed_precision fp32 --use_cpu", instead("fp32", "bf16", "Choose fp16 or bf16")
    ),
}
OF_COMPARISONS = {
    "no runs": changed(
        "compare",
        Remedy("Pass folders of runs", add=f"{FP32} {BF16}"),
        Remedy(
            "tables with --predictions FILE",
            add="--predictions p=p.csv q=q.csv",
            files={"p.csv": TABLE, "q.csv": TABLE},
        ),
    ),
    "an unknown setting": changed(
        f"compare {FP32} {BF16} --by learning_rat",
        without("--by learning_rat", "The runs differ in"),
        instead("learning_rat", "mixed_precision", "The runs differ in"),
    ),
    "a setting that does not distinguish": changed(
        f"compare {FP32} {BF16} --by seed", instead("seed", "mixed_precision", "The runs differ in")
    ),
    "a setting with one value": changed(
        f"compare {FP32} {BF16} --by learning_rate",
        instead("learning_rate", "mixed_precision", "The runs differ in"),
    ),
    "a missing seed": changed(
        f"compare {FP32} bf16-1 bf16-2",
        Remedy("Train the missing runs", add="bf16-3"),
        instead("fp32-3 bf16-1", "bf16-1", "omit all runs with those seeds"),
    ),
    "no such run": changed(
        f"compare {FP32} {BF16} nothing", without("nothing", "Give the --output_dir of a run")
    ),
    "a run twice": changed(
        f"compare {FP32} {BF16} again",
        without("again", "Pass only one of them"),
        files={"again": copied("fp32-1")},
    ),
    "another baseline": changed(
        f"compare {FP32} {BF16} --baseline fp16",
        instead("fp16", "bf16", "choose another baseline with --baseline MODE"),
        without("--baseline fp16", "choose another baseline"),
    ),
    "one arm": changed(f"compare {FP32}", Remedy("Add runs in another mode", add=BF16)),
    "another metric": changed(
        f"compare {FP32} {BF16} --metric acuracy", instead("acuracy", "accuracy", "accuracy")
    ),
    "results over a run": changed(
        f"compare {FP32} {BF16} --output_dir run",
        instead("dir run", "dir c", "Choose another folder"),
    ),
    "results over files": changed(
        f"compare {FP32} {BF16} --output_dir c",
        instead("dir c", "dir c2", "Choose another folder"),
        files={"c/comparison.html": "mine"},
    ),
    "inference of two arms": changed(
        "compare fp32-1 bf16-1 --inference fp32,bf16", without("bf16-1", "Pass runs of one of them")
    ),
    "inference of one arm": changed(
        "compare fp32-1 --inference fp32@32",
        instead("fp32@32", "fp32@1,fp32@32", "--inference fp32@1,fp32@32"),
    ),
    "inference of a run twice": changed(
        "compare fp32-1 again --inference fp32,bf16",
        without("again", "Pass only one of them"),
        files={"again": copied("fp32-1")},
    ),
    "inference of images": changed(
        "compare picture-run --inference fp32,bf16",
        instead("picture-run", "fp32-1", "Pass finished runs on texts"),
    ),
    "a comparison without a plan": changed(
        "compare c",
        instead(
            "compare c",
            "compare " + " ".join(f"c/runs/{name}" for name in f"{FP32} {BF16}".split()),
            "pass the folders in",
        ),
        files={
            "c/comparison.json": "{}",
            **{f"c/runs/{name}": copied(name) for name in f"{FP32} {BF16}".split()},
        },
    ),
}
OF_EXPORTS = {
    "no run to export": changed(
        EXPORT.replace("run", "ran"), instead("ran", "run", "Pass the --output_dir of a run")
    ),
    "a precision that the format lacks": changed(
        EXPORT.replace("torch", "onnx --precision bf16"), instead("bf16", "fp32", "fp32")
    ),
    "a choice of int8": changed(
        EXPORT.replace("torch", "onnx --int8 blocks"), without("--int8 blocks", REMOVE)
    ),
    "a folder for the artifact": changed(
        EXPORT.replace("torch", "onnx").replace("dir a", "dir run"),
        instead("dir run", "dir a", "Pass another one"),
    ),
    "verified on no split": changed(
        EXPORT.replace("torch", "onnx --verify trian"),
        instead("trian", "test", "Choose one of them"),
        instead("trian", "u.csv", "Choose one of them"),
    ),
    "verified on a split that the run lacks": changed(
        "export pair-run --format onnx --no_measure --verify validation --output_dir a",
        instead("validation", "pairs.csv", "Pass a file with labels"),
    ),
}
JUDGE = f"judge new --best {FP32}"
OF_LEDGERS = {
    "settings of a ledger that exists": changed(
        f"judge ledger --candidate {BF16} --tries 5",
        without("--tries 5", "Remove them"),
        instead(f"ledger --candidate {BF16}", f"new --best {FP32}", "start a new ledger"),
    ),
    "no candidate": changed(
        "judge ledger", Remedy("Pass the runs of the change", add=f"--candidate {BF16}")
    ),
    "no ledger": changed(
        f"judge new --candidate {BF16}",
        instead(f"--candidate {BF16}", f"--best {FP32}", "--best RUN RUN RUN"),
    ),
    "a ledger that is a file": changed(
        JUDGE.replace("new", "u.csv"), instead("judge u.csv", "judge new", "Pass a folder")
    ),
    "a ledger in another folder": changed(
        JUDGE.replace("new", "model"), instead("judge model", "judge new", "a new folder")
    ),
    "few seeds": changed(
        "judge new --best fp32-1 fp32-2", Remedy("Train it with more seeds", add="fp32-3")
    ),
    "tries": changed(f"{JUDGE} --tries 0", instead("0", "5", "must be from 1")),
    "many seeds": changed(
        f"{JUDGE} --max_seeds 2", instead("max_seeds 2", "max_seeds 3", "must be at least 3")
    ),
    "seeds that are there": changed(
        f"judge ledger --best {FP32}",
        instead("--best", "--candidate bf16-1 bf16-2 bf16-3 --best", "or a --candidate"),
    ),
}
WALKS = {**OF_PREDICTIONS, **OF_COMPARISONS, **OF_EXPORTS, **OF_LEDGERS}
