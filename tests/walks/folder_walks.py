"""Folders, checkpoints and finished runs that a command refuses."""

from __future__ import annotations

from pathlib import Path

from data_walks import REMOVE, Remedy
from export_walks import EXPORT
from model_walks import edited_json
from prepared import OF_PLANS, copied, train, with_arguments
from training_walks import METRIC, changed, instead, of_pairs, refused, without


def wider(path: Path) -> None:
    from PIL import Image

    Image.open(path).resize((40, 64)).save(path)


TOKEN = "hf_abcdefghijklmnopqrstuvwxyz012345"
WITH_TOKEN = train().replace("train.csv", f"{TOKEN}/train.csv")

RESUMED = train("--checkpointing_steps 2 --resume_from_checkpoint run/checkpoints/step-2")
WALKS = {
    "a checkpoint of nothing": changed(
        RESUMED.replace("run/checkpoints/step-2", "nowhere"),
        instead("nowhere", "latest", "or latest"),
    ),
    "a damaged checkpoint": changed(
        RESUMED,
        instead("step-2", "step-4", "To continue from one of them"),
        files={"run/checkpoints/step-2/state.json": "{"},
    ),
    "checkpoints of another program": refused(
        "--checkpointing_steps 2 --overwrite_output_dir",
        instead("dir o", "dir o2", "choose another --output_dir"),
        files={"o/checkpoints/step-2/a.txt": "x"},
    ),
    "a file for checkpoints": refused(
        "--checkpointing_steps 2 --overwrite_output_dir",
        Remedy("Move it", files={"o/checkpoints": None}),
        instead("dir o", "dir o2", "choose another folder"),
        files={"o/checkpoints": "x"},
    ),
    "a private folder of another program": refused(
        "",
        Remedy("Move it", files={"o/.ampft-run": None}),
        instead("dir o", "dir o2", "choose another folder"),
        files={"o/.ampft-run/a": "x"},
    ),
    "a path with a token": changed(
        f"{WITH_TOKEN} ; {EXPORT.replace('run', 'o', 1)}",
        instead(
            f"{WITH_TOKEN} ; {EXPORT.replace('run', 'o', 1)}",
            f"{EXPORT.replace('run', 'o', 1)} --train_file {TOKEN}/train.csv",
            "Give the path again: --train_file PATH",
        ),
        files={f"{TOKEN}/train.csv": copied("train.csv")},
    ),
    "recorded settings of another version": changed(
        EXPORT,
        Remedy("Check the flags", files={"run/run.json": copied("run/run.json")}),
        files={"run/run.json": with_arguments(lr_scheduler_type="linar")},
    ),
    "data in memory to verify": changed(
        "export memory-run --format torch --no_measure --output_dir a",
        Remedy("--verify FILE", add="--verify u.csv"),
    ),
    "data in memory to audit": changed(
        "audit memory-run --steps 1",
        Remedy(
            "--train_file FILE, --validation_file and --test_file",
            add="--train_file train.csv --validation_file v.csv --test_file u.csv",
        ),
    ),
    "modules in float32 of 16 bits": refused(
        "--fp32_modules classifier --mixed_precision bf16-true",
        instead("bf16-true", "bf16", "bf16 or fp32"),
        without("--fp32_modules classifier", "or remove the flag"),
    ),
    "modules in float32 that are no list": refused(
        "",
        Remedy("or remove the entry", files={"model/config.json": copied("base/config.json")}),
        files={"model/config.json": edited_json(ampft_fp32_modules=3)},
    ),
    "a model of another task": changed(
        "train --do_eval --test_file u.csv --task multi-label --use_cpu --model_name_or_path run"
        " --output_dir o",
        instead("--task multi-label", "--task text", "Add --task text"),
    ),
    "pairs for a model of texts": changed(
        "train --do_eval --test_file t.csv --use_cpu --model_name_or_path run --output_dir o",
        Remedy("Name one column", add="--text_column_names premise"),
        Remedy("or choose other data", files={"t.csv": copied("u.csv")}),
        files={"t.csv": "premise,hypothesis,label\nw1,w2,ant\nw3,w4,bee\nw3,w4,cow\n"},
    ),
    "a positive label of several": changed(
        of_pairs(
            "--task multi-label --label_column_name p,q --text_column_names a --tune_thresholds f1"
            " --positive_label p"
        ),
        without("--positive_label p", REMOVE),
    ),
    "a metric that fails": refused(
        "--metric m.py",
        without("--metric m.py", "Remove it"),
        instead("m.py", "n.py", "or pass a module of your own"),
        files={"m.py": METRIC.replace("sum(", "nothing("), "n.py": METRIC},
    ),
    "text without its end": changed(
        train().replace("path model", "path t5"),
        Remedy("Use the tokenizer of the model", files={"t5": copied("t5")}),
        files={"t5/config.json": edited_json(eos_token_id=44)},
    ),
    "a watched model that is compiled": changed(
        "ACCELERATE_DYNAMO_BACKEND=EAGER " + train("--watch 1"),
        without("--watch 1", REMOVE),
        without("ACCELERATE_DYNAMO_BACKEND=EAGER", "or launch with --dynamo_backend no"),
    ),
    "a doctor of 16 bits": changed(
        f"doctor --mixed_precision bf16-true --no_cure --batches 1 {OF_PLANS}",
        instead("bf16-true", "bf16", "the doctor examines modes with float32 weights"),
    ),
    "images of other sizes": changed(
        "train --dataset_name pictures --model_name_or_path resnet --max_train_steps 2 --use_cpu"
        " --cpu_threads 1 --output_dir o",
        Remedy(
            "Save the processor with a fixed height and width", files={"resnet": copied("resnet")}
        ),
        files={
            "resnet/preprocessor_config.json": edited_json(do_resize=False),
            "pictures/red/1.png": lambda path, _: wider(path),
        },
    ),
}
