"""Exported models and their verification that end in a message, and what the message advises."""

from __future__ import annotations

from pathlib import Path

from data_walks import REMOVE, Files, Remedy, Walk
from prepared import Prepared, copied, edited
from training_walks import changed, instead, without

EXPORT = "export run --format torch --no_measure --output_dir a"
INSPECTED = EXPORT.replace("run", "inspected", 1)
ONNX = EXPORT.replace("torch", "onnx")
CSV = "text,label\nw1 w2,ant\nw3 w4,bee\nw5,cow\nw1 w3,ant\n"


def verified(file: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of an artifact that is verified on a file."""
    return changed(f"{EXPORT} --verify {file}", *remedies, files=files)


def emptied(path: Path, prepared: Prepared) -> None:
    path.write_text("")


OF_REQUESTS = {
    "modules that are float anyway": changed(
        f"{EXPORT} --keep_float classifier", without("--keep_float classifier", REMOVE)
    ),
    "a single row": verified(
        "t.csv",
        Remedy("Pass a file with more labelled rows", files={"t.csv": CSV}),
        files={"t.csv": "text,label\nw1 w2,ant\n"},
    ),
    "copies that were drawn": verified(
        "t.csv --max_verify_samples 2",
        Remedy("Raise the number", without="samples 2", add="samples 24"),
        Remedy("remove the flag", without="--max_verify_samples 2"),
        files={"t.csv": "text,label\nw5,cow\n" + "w1 w2,ant\n" * 40 + "w3,bee\n" * 2},
    ),
    "rows without a column of labels": verified(
        "t.csv",
        Remedy("Rename its column of labels", files={"t.csv": CSV}),
        files={"t.csv": CSV.replace("label", "kind")},
    ),
    "a row without a text": verified(
        "t.csv",
        Remedy("Fill the cell", files={"t.csv": CSV}),
        Remedy("remove the row", files={"t.csv": CSV.replace("w3 w4,bee\n", "")}),
        files={"t.csv": CSV.replace("w3 w4", "")},
    ),
    "rows in another encoding": verified(
        "t.csv",
        Remedy("Save the file in UTF-8", files={"t.csv": CSV}),
        Remedy("or convert it: iconv -f cp1252", files={"t.csv": CSV}),
        files={"t.csv": CSV.replace("w1 w2", "caf\xe9").encode("cp1252")},
    ),
    "a split that changed": changed(
        EXPORT,
        Remedy("Restore them", files={"u.csv": copied("u.csv")}),
        instead("--output_dir a", "--output_dir a --verify t.csv", "pass a file with labels"),
        files={"u.csv": edited("w1", "w2"), "t.csv": CSV},
    ),
    "a calibration on other rows": changed(
        f"{ONNX} --precision int8 --int8 static",
        Remedy(
            "Pass the files of the run with --train_file, --validation_file and --test_file",
            add="--train_file train.csv --validation_file old.csv --test_file u.csv",
            files={"old.csv": copied("v.csv")},
        ),
        files={"v.csv": edited("w1", "w2")},
    ),
    "a report of an artifact": changed(
        f"{EXPORT} ; report a",
        instead(f"{EXPORT} ; report a", "audit a --run run", "ampft audit a --run RUN"),
    ),
    "no artifact": changed(
        "audit a --run run",
        instead("audit a", "audit torch-model", "Pass a folder that ampft export wrote"),
        files={"a/artifact.json": "["},
    ),
    "a damaged artifact": changed(
        "predict --model torch-model u.csv",
        Remedy("is not an artifact", files={"torch-model": copied("torch-model")}),
        files={"torch-model/artifact.json": edited("torch", "trch")},
    ),
    "an artifact of another run": changed(
        "audit torch-model --run inspected",
        instead("--run inspected", "--run run", "Pass the run that it was made from"),
        instead("audit torch-model --run inspected", INSPECTED, "export"),
    ),
    "a precision of an artifact": changed(
        "predict --model torch-model u.csv --mixed_precision bf16",
        without("--mixed_precision bf16", REMOVE),
    ),
    "masks in a folder": changed(
        "predict --model mask-run masks/val --output_dir o",
        instead("--output_dir o", "--output_file o.csv", "with --output_file"),
    ),
    "masks without a file": changed(
        "predict --model mask-run masks/val",
        Remedy("such as --output_file predicted.csv", add="--output_file predicted.csv"),
    ),
    "masks of a long name": changed(
        f"predict --model mask-run masks/val --output_file {'o' * 251}.csv",
        instead("o" * 251, "o", "Choose a shorter one"),
    ),
    "masks that exist": changed(
        "predict --model mask-run masks/val --output_file o.csv",
        Remedy("Remove it", files={"o_masks": None}),
        instead("o.csv", "p.csv", "choose another file"),
        files={"o_masks/a.png": "x"},
    ),
    "masks with labels": changed(
        "predict --model mask-run masks/val --output_file o.csv --label_column_name x",
        without("--label_column_name x", REMOVE),
    ),
    "masks of no size": changed(
        "train --dataset_name masks --model_name_or_path erfnet --max_train_steps 2 --use_cpu"
        " --cpu_threads 1 --output_dir o",
        instead("--output_dir", "--image_size 16,24 --output_dir", "such as --image_size"),
        files={"masks/train/train00.png": lambda path, _: resized(path),
               "masks/trainannot/train00.png": lambda path, _: resized(path)},
    ),
    "masks of no model": changed(
        "train --dataset_name masks --max_train_steps 2 --use_cpu --cpu_threads 1 --output_dir o",
        Remedy("Pass erfnet", add="--model_name_or_path erfnet --image_size 16,24"),
        instead("--output_dir", "--model_name_or_path segformer --output_dir", "a model for sem"),
    ),
}  # fmt: skip


def resized(path: Path) -> None:
    from PIL import Image

    Image.open(path).resize((32, 32), Image.Resampling.NEAREST).save(path)


ROWS = "text,label\nw1 w2,ant\nw3,bee\n"
PREDICT = "predict --model run"
OF_PREDICTIONS = {
    "options of a table on texts": changed(
        f"{PREDICT} --text w1 --label_column_name x", without("--label_column_name x", REMOVE)
    ),
    "probabilities of numbers": changed(
        "predict --model number-run u.csv --text_column_names text --top_k 2",
        without("--top_k 2", REMOVE),
    ),
    "a model that is a file": changed(
        "predict --model u.csv u.csv", instead("--model u.csv", "--model run", "Give the --output")
    ),
    "a task of another version": changed(
        f"{PREDICT} u.csv",
        Remedy("Use the version that made the run", files={"run/run.json": copied("run/run.json")}),
        files={"run/run.json": lambda path, prepared: renamed(path, prepared)},
    ),
    "predictions over a run": changed(
        "train --do_predict --test_file x.csv --use_cpu --model_name_or_path run --output_dir"
        " inspected --overwrite_output_dir",
        instead("--output_dir inspected", "--output_dir o", "Choose another folder"),
        files={"x.csv": "text\nw1\nw2 w3\nw5\n"},
    ),
}


def renamed(path: Path, prepared: Prepared) -> None:
    from prepared import recorded

    recorded(task="tones")(path, prepared)


WALKS = {**OF_REQUESTS, **OF_PREDICTIONS}
