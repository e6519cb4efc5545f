"""Trainings that end in a message, and what the message advises."""

from __future__ import annotations

from data_walks import REMOVE, Files, Remedy, Walk
from prepared import OF_TEXT, TRAIN, train

TWO = "text,label\n" + "".join(f"w{i % 9} w{i % 2 * 20},{'ab'[i % 2]}\n" for i in range(24))
METRIC = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        kind = datasets.Value("int64")
        features = datasets.Features({"predictions": kind, "references": kind})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"share": sum(predictions) / len(predictions)}
"""
TWO_FILES = {"train.csv": TWO, "v.csv": TWO, "u.csv": TWO}


def refused(flags: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of a training with flags that are refused."""
    return Walk(files or {}, train(flags), remedies)


def changed(command: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of another command."""
    return Walk(files or {}, command, remedies)


def of_pairs(flags: str) -> str:
    """Return the command of a short training on the table with pairs."""
    return f"{TRAIN} {flags} --output_dir o".replace(OF_TEXT, "--train_file pairs.csv")


def removal(flag: str, more: str = "", advice: str = REMOVE) -> Walk:
    """Return the walk of a flag that is to be removed."""
    return refused(f"{more} {flag}".strip(), Remedy(advice, without=flag))


def instead(old: str, new: str, advice: str) -> Remedy:
    """Return the remedy that replaces a part of a command."""
    return Remedy(advice, without=old, add=new)


def without(flag: str, advice: str = "remove the flag") -> Remedy:
    """Return the remedy that removes a part of a command."""
    return Remedy(advice, without=flag)


OF_MODELS = {
    "an empty value": refused(
        "--freeze ''",
        without("--freeze ''"),
        instead("--freeze ''", "--freeze embeddings", "Pass a value"),
    ),
    "modules in float32 that are all": refused(
        "--fp32_modules '*' --mixed_precision bf16",
        Remedy(
            "Use --mixed_precision fp32",
            without="--fp32_modules '*' --mixed_precision bf16",
            add="--mixed_precision fp32",
        ),
        instead("'*'", "classifier", "pass fewer modules"),
    ),
    "modules in float32 with a gap": refused(
        "--fp32_modules a,,classifier --mixed_precision bf16",
        instead(
            "a,,classifier", "encoder.layer.1.*,classifier", "Separate patterns with single commas"
        ),
        without("--fp32_modules a,,classifier"),
    ),
    "Muon without matrices": refused(
        "--optim muon --freeze 'bert.*'",
        instead("--optim muon", "--optim adamw_torch", "--optim adamw_torch"),
    ),
    "an optimizer with weights of 16 bits": refused(
        "--optim adamw_8bit --mixed_precision bf16-true",
        instead("bf16-true", "bf16", "--mixed_precision bf16"),
        instead("adamw_8bit", "adamw_torch", "Use --optim adamw_torch"),
    ),
    "polynomial": changed(
        train("--lr_scheduler_type polynomial").replace("1e-3", "1e-8"),
        instead("polynomial", "linear", "another schedule"),
        instead("1e-8", "1e-3", "Use a higher rate"),
    ),
    "many threads": changed(
        f"{TRAIN} --output_dir o".replace("threads 1", "threads 99"),
        instead("99", "1", "Use one thread per core"),
    ),
    "no threads": changed(
        f"{TRAIN} --output_dir o".replace("threads 1", "threads 0"),
        instead("threads 0", "threads 1", "at least 1"),
    ),
    "a scale without a probe": refused(
        "--probe_scale 1",
        without("--probe_scale 1"),
        Remedy("Add --head_init probe", add="--head_init probe"),
    ),
    "more layers than there are": refused(
        "--train_layers 9", instead("9", "2", "from 0 to 2"), instead("9", "0", "from 0 to 2")
    ),
    "a module that does not exist": refused(
        "--freeze xyz",
        instead("xyz", "embeddings", "Its modules are embeddings"),
        instead("xyz", "*embed*", "* stands for any characters"),
    ),
    "all modules frozen": refused(
        "--freeze '*'", instead("'*'", "embeddings,encoder", "Leave at least the head")
    ),
    "adapters of no layer": refused(
        "--lora_r 2 --lora_target_modules xyz",
        instead("xyz", "query,value", "Choose from dense, key, query, value"),
        instead("xyz", "all-linear", "use all-linear"),
    ),
    "a part of an adapted layer": refused(
        "--lora_r 2 --fp32_modules bert.encoder.layer.0.attention.self.query.base_layer"
        " --mixed_precision bf16",
        instead(".base_layer", "", "Give the whole layer"),
    ),
    "4 bits in 16 bits": refused(
        "--load_in_4bit --lora_r 2 --mixed_precision bf16-true",
        without("--load_in_4bit", REMOVE),
        instead("bf16-true", "bf16", "use --mixed_precision bf16"),
    ),
    "a revision of a folder": removal("--model_revision x"),
    "graphs": removal("--cuda_graphs"),
    "a head without a linear layer that is trained": removal(
        "--head_init probe", "--freeze classifier"
    ),
    "windows and a stride": refused(
        "--stride 3",
        without("--stride 3"),
        Remedy("Add --long_text windows", add="--long_text windows"),
    ),
    "a long stride": refused(
        "--long_text windows --stride 60 --max_seq_length 16", instead("60", "13", "at most 13")
    ),
    "short windows": refused(
        "--long_text windows --max_seq_length 2",
        instead("length 2", "length 4", "It must be at least 3"),
    ),
    "windows of pairs": changed(
        of_pairs("--long_text windows --text_column_names a,b"),
        without("--long_text windows", REMOVE),
    ),
    "a multiple without padding": refused(
        "--pad_to_multiple_of 8",
        without("--pad_to_multiple_of 8", REMOVE),
        Remedy("--padding", add="--padding"),
    ),
    "buckets with padding": changed(
        train("--token_buckets 8").replace("path model", "path xlnet"),
        without("--token_buckets 8"),
        instead("--token_buckets 8", "--pad_to_multiple_of 8", "Use --pad_to_multiple_of"),
    ),
    "precision checked in fp32": refused(
        "--check_precision",
        without("--check_precision", REMOVE),
        Remedy("--mixed_precision bf16", add="--mixed_precision bf16"),
    ),
    "a mode that disagrees": changed(
        "ACCELERATE_MIXED_PRECISION=fp16 " + train("--mixed_precision bf16"),
        without("--mixed_precision bf16", "Remove one of the two"),
        without("ACCELERATE_MIXED_PRECISION=fp16 ", "Remove one of the two"),
        instead("n bf16", "n fp16", "set both to the same mode"),
    ),
    "a size of images": changed(
        f"{TRAIN} --image_size 360 --output_dir o --task pixels".replace(
            OF_TEXT, "--dataset_name masks"
        ).replace("model ", "segformer "),
        instead("360", "32,32", "such as 360,480"),
    ),
    "feature columns before texts that are cut off": changed(
        of_pairs("--long_text windows --text_column_names a --feature_columns age"),
        without("--long_text windows", "Remove --long_text windows"),
    ),
    "gathers": removal("--fsdp_gathers bfloat16", "--mixed_precision bf16"),
    "a model for images": changed(
        train("--train_layers 1").replace("path model", "path vit"),
        instead("path vit", "path model", "Choose a model for texts"),
    ),
    "a model that is not finite": changed(
        train().replace("path model", "path broken"),
        Remedy("Use another model", without="path broken", add="path model"),
    ),
    "inspected masks": changed(
        "train --dataset_name masks --model_name_or_path segformer --inspect_data --max_train_steps"
        " 2 --use_cpu --cpu_threads 1 --output_dir o",
        without("--inspect_data", REMOVE),
    ),
}
OF_EVALUATION = {
    "few rows to inspect": refused(
        "--inspect_data",
        without("--inspect_data"),
        Remedy("Add rows until a class has 5", files=TWO_FILES),
        files={
            "train.csv": "text,label\nw1,ant\nw2,bee\nw3,ant\nw4,bee\nw5,cow\nw6,cow\n",
            "v.csv": "text,label\nw1,ant\nw2,bee\n",
            "u.csv": "text,label\nw1,ant\nw2,bee\n",
        },
    ),
    "a metric without a file": refused(
        "--metric x.py", Remedy("Check the path", files={"x.py": METRIC})
    ),
    "a metric of the hub": refused(
        "--metric a/b", Remedy("or pass a file", without="a/b", add="m.py", files={"m.py": METRIC})
    ),
    "thresholds of three classes": removal("--tune_thresholds f1"),
    "a target": refused(
        "--tune_thresholds precision=2",
        instead("precision=2", "f1", "Use f1"),
        instead("precision=2", "precision=0.95", "precision=0.95"),
        instead("precision=2", "recall=0.99", "recall=0.99"),
        instead("precision=2", "cost=10:1", "cost=10:1"),
        files=TWO_FILES,
    ),
    "a positive label without thresholds": refused(
        "--positive_label a",
        without("--positive_label a"),
        Remedy("Add it", add="--tune_thresholds f1"),
        files=TWO_FILES,
    ),
    "a positive label that is none": refused(
        "--positive_label c --tune_thresholds f1",
        instead("l c", "l a", "the classes are 'a', 'b'"),
        files=TWO_FILES,
    ),
    "decisions without a validation split": changed(
        f"{TRAIN} --calibrate --output_dir o".replace(
            "--validation_file v.csv ", "--validation_fraction 0 "
        ),
        without("--calibrate"),
        instead("--validation_fraction 0", "--validation_file v.csv", "--validation_file"),
    ),
    "decisions of numbers": changed(
        f"{TRAIN} --calibrate --output_dir o --task regression --label_column_name score"
        " --text_column_names a".replace(OF_TEXT, "--train_file pairs.csv"),
        without("--calibrate", REMOVE),
    ),
    "a promise of few rows": refused(
        "--abstain 0.05", instead("0.05", "0.4", "or a promise of at least")
    ),
    "weights of two classes": refused(
        "--class_weights 1,2",
        instead("1,2", "balanced", "use 'balanced'"),
        instead("1,2", "1,2,1", "3 positive numbers"),
    ),
    "a long warm-up": refused(
        "--num_warmup_steps 50",
        instead("50", "1", "Use fewer"),
        instead("--num_warmup_steps 50", "--warmup_ratio 0.1", "--warmup_ratio 0.1"),
    ),
    "a metric of another task": refused(
        "--metric_for_best_model r2", instead("r2", "macro_f1", "macro_f1")
    ),
    "a tracker": refused(
        "--with_tracking --report_to tensorbord",
        instead("tensorbord", "tensorboard", "Did you mean 'tensorboard'"),
    ),
    "a tracker that is not installed": refused(
        "--with_tracking --report_to mlflow",
        without("--with_tracking --report_to mlflow", "remove --with_tracking"),
    ),
    "patience without a validation split": changed(
        f"{TRAIN} --early_stopping_patience 2 --output_dir o".replace(
            "--validation_file v.csv ", "--validation_fraction 0 "
        ),
        without("--early_stopping_patience 2"),
        instead(
            "--validation_fraction 0",
            "--validation_fraction 0.3",
            "Use a --validation_fraction above 0",
        ),
    ),
    "no rows for a report": changed(
        f"{TRAIN} --validation_fraction 0 --test_fraction 0 --output_dir o".replace(
            OF_TEXT, "--train_file train.csv"
        ),
        instead("--test_fraction 0", "--test_fraction 0.3", "Use a fraction above 0"),
        instead("--validation_fraction 0", "--validation_file v.csv", "add a --validation_file"),
        instead("--test_fraction 0", "--test_file u.csv", "a --test_file"),
    ),
    "columns of one label": changed(
        of_pairs("--task columns --label_column_name p --text_column_names a"),
        instead("_name p", "_name p,q", "Pass at least two columns of labels"),
    ),
    "balanced weights of a label that all have": changed(
        f"{TRAIN} --task multi-label --class_weights balanced --label_column_name p,q"
        " --text_column_names a --output_dir o".replace(
            OF_TEXT, "--train_file t.csv --validation_file t.csv"
        ),
        instead("balanced", "1,2", "Pass the weights as numbers"),
        files={"t.csv": "a,p,q\n" + "w1 w2,1,0\nw3,1,1\n" * 9},
    ),
    "corrections of numbers": changed(
        f"{TRAIN} --task regression --label_column_name score --text_column_names a"
        " --label_corrections c.csv --output_dir o".replace(OF_TEXT, "--train_file pairs.csv"),
        without("--label_corrections c.csv", REMOVE),
        files={"c.csv": "label,corrected,text\n"},
    ),
    "corrections of another table": refused(
        "--label_corrections c.csv",
        Remedy("Pass the label_errors.csv", without="c.csv", add="inspected/label_errors.csv"),
        files={"c.csv": "label,text\nx,y\n"},
    ),
    "corrections with another label": refused(
        "--label_corrections c.csv",
        Remedy(
            "Correct the column corrected", files={"c.csv": "label,corrected,text\na,b,w0 w0\n"}
        ),
        files=TWO_FILES | {"c.csv": "label,corrected,text\na,c,w0 w0\n"},
    ),
    "corrections of other rows": refused(
        "--label_corrections c.csv",
        Remedy(
            "change only its column corrected", files={"c.csv": "label,corrected,text\na,b,w0 w0\n"}
        ),
        files=TWO_FILES | {"c.csv": "label,corrected,text\na,b,w0 w9\n"},
    ),
    "data that are missing": changed(
        "train --task pixels",
        Remedy(
            "Give them with --dataset_name",
            add=(
                "--dataset_name masks --model_name_or_path segformer --max_train_steps 2 --use_cpu"
                " --cpu_threads 1 --output_dir o"
            ),
        ),
    ),
    "masks as texts": changed(
        "train --dataset_name masks --task images --model_name_or_path vit --max_train_steps 2"
        " --use_cpu --cpu_threads 1 --output_dir o",
        instead(
            "--task images --model_name_or_path vit",
            "--task pixels --model_name_or_path segformer",
            "Pass this task",
        ),
        instead(
            "--task images --model_name_or_path vit",
            "--model_name_or_path segformer",
            "remove the flag",
        ),
    ),
}
OF_EVALUATING_ALONE = {
    "a head that does not exist": changed(
        f"train --do_eval {OF_TEXT} --use_cpu --model_name_or_path base --output_dir o",
        Remedy("add --do_train", add="--do_train"),
    ),
    "labels that the model lacks": changed(
        "train --do_eval --train_file train.csv --validation_file v.csv --use_cpu"
        " --model_name_or_path model --output_dir o",
        Remedy("--ignore_label", add="--ignore_label dog"),
        Remedy("rename them", files={"v.csv": "text,label\nw1,ant\nw2,bee\nw3,bee\n"}),
        Remedy(
            "add --do_train",
            add="--do_train --max_train_steps 2",
            files={"train.csv": "text,label\n" + "w1,ant\nw2,bee\nw3,dog\n" * 5},
        ),
        files={"v.csv": "text,label\nw1,ant\nw2,bee\nw3,dog\n"},
    ),
    "no rows to evaluate": changed(
        "train --do_predict --train_file train.csv --validation_file v.csv --use_cpu"
        " --model_name_or_path model --output_dir o",
        Remedy("Add --test_file", add="--test_file u.csv"),
        Remedy("--do_train", add="--do_train --max_train_steps 2"),
    ),
    "evaluated in 16 bits": changed(
        f"train --do_eval {OF_TEXT} --use_cpu --model_name_or_path model --mixed_precision"
        " bf16-true --output_dir o",
        instead("bf16-true", "bf16", "Use --mixed_precision bf16"),
        instead("bf16-true", "fp32", "fp32"),
    ),
    "predicted rows without labels": changed(
        "train --do_predict --test_file x.csv --use_cpu --model_name_or_path run"
        " --max_predict_samples 2 --output_dir o",
        without("--max_predict_samples 2", REMOVE),
        files={"x.csv": "text\nw1\nw2 w3\nw5\n"},
    ),
    "predicted rows without a folder": changed(
        "train --do_predict --test_file x.csv --use_cpu --model_name_or_path run",
        Remedy("Choose one", add="--output_dir o"),
        files={"x.csv": "text\nw1\nw2 w3\nw5\n"},
    ),
}
OF_FOLDERS = {
    "a file as folder": changed(
        train(output_dir="u.csv"), instead("dir u.csv", "dir o", "Choose a folder")
    ),
    "an address as folder": changed(
        train(output_dir="s3://x/y"), instead("s3://x/y", "o", "Choose a local folder")
    ),
    "a folder that is not empty": refused(
        "",
        instead("dir o", "dir o2", "Choose a new or empty folder"),
        Remedy("--overwrite_output_dir", add="--overwrite_output_dir"),
        files={"o/a.txt": "x"},
    ),
    "a folder below a file": changed(
        train(output_dir="u.csv/o"), instead("dir u.csv/o", "dir o", "Choose another folder")
    ),
    "a run as a checkpoint": changed(
        train("--checkpointing_steps 2 --resume_from_checkpoint run"),
        instead(
            "--checkpointing_steps 2 --resume_from_checkpoint run --output_dir o",
            "--checkpointing_steps 2 --output_dir run --resume_from_checkpoint latest",
            "--output_dir run --resume_from_checkpoint latest",
        ),
        instead(
            "checkpoint run", "checkpoint run/checkpoints/step-2", "Give one of its checkpoints"
        ),
    ),
    "a run with other settings": changed(
        train("--checkpointing_steps 2 --seed 7 --resume_from_checkpoint latest", output_dir="run"),
        instead(
            "--resume_from_checkpoint latest --output_dir run",
            "--output_dir o",
            "Choose another --output_dir",
        ),
    ),
    "checkpoints every 5x": refused(
        "--checkpointing_steps 5x",
        instead("5x", "5", "a number of optimizer steps such as 500"),
        instead("5x", "epoch", "the word epoch"),
        instead("5x", "10min", "10min"),
    ),
    "a file of another program among the results": changed(
        train("--overwrite_output_dir", output_dir="run"),
        instead("dir run", "dir o", "name another folder"),
        Remedy("Move them", files={"run/README.md": None}),
        files={"run/README.md": "mine"},
    ),
    "processes without an address": changed(
        "WORLD_SIZE=2 " + train(), without("WORLD_SIZE=2", "unset WORLD_SIZE")
    ),
    "a rank that is no number": changed(
        "LOCAL_RANK=a " + train(), without("LOCAL_RANK=a", "unset LOCAL_RANK")
    ),
}
WALKS = {**OF_MODELS, **OF_EVALUATION, **OF_EVALUATING_ALONE, **OF_FOLDERS}
