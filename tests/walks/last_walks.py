"""Launchers, folders, searches and curves that end in a message, and what the message advises."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from code_walks import FINETUNE, LOOP, SETTING
from comparison_walks import PLAN
from data_walks import REMOVE, Files, Remedy, T, Walk
from export_walks import EXPORT
from file_walks import parquet, workbook
from model_walks import edited_json
from prepared import OF_PLANS, OF_TEXT, copied, train, with_arguments
from training_walks import METRIC, changed, instead, of_pairs, refused, without

TORN = pa.array([b"caf\xe9", b"x"], pa.binary()).view(pa.string())
DATA = {
    "formulas without values": Walk(
        {"t.xlsx": workbook(("text", "label"), ("x", "=B3"), ("y", "b"), ("z", "a"))},
        "--train_file t.xlsx",
        (Remedy("Open the workbook in Excel and save it", files={
            "t.xlsx": workbook(("text", "label"), ("x", "b"), ("y", "b"), ("z", "a"))}),),
    ),
    "texts in Parquet that are not UTF-8": Walk(
        {"t.parquet": parquet(text=TORN, label=["a", "b"])}, "--train_file t.parquet",
        (Remedy("write the file again from decoded strings", files={
            "t.parquet": parquet(text=["caf\xe9", "x"], label=["a", "b"])}),),
    ),
}  # fmt: skip


def launched(variables: str, *remedies: Remedy, flags: str = "") -> Walk:
    """Return the walk of a training with variables of a launcher."""
    return changed(f"{variables} {train(flags)}", *remedies)


SHARDED = "ACCELERATE_USE_FSDP=true FSDP_VERSION=2"
OF_LAUNCHERS = {
    "DeepSpeed": launched(
        "ACCELERATE_USE_DEEPSPEED=true",
        instead("ACCELERATE_USE_DEEPSPEED=true", SHARDED, "Use FSDP2"),
    ),
    "FSDP of the first version": launched(
        "ACCELERATE_USE_FSDP=true FSDP_VERSION=1",
        instead("FSDP_VERSION=1", "FSDP_VERSION=2", "Set fsdp_version: 2"),
    ),
    "activations that FSDP recomputes": launched(
        f"{SHARDED} FSDP_ACTIVATION_CHECKPOINTING=true",
        instead(
            "FSDP_ACTIVATION_CHECKPOINTING=true",
            "FSDP_ACTIVATION_CHECKPOINTING=false",
            "Set it to false",
        ),
    ),
    "parameters off the device": launched(
        f"{SHARDED} FSDP_OFFLOAD_PARAMS=true",
        instead("FSDP_OFFLOAD_PARAMS=true", "FSDP_OFFLOAD_PARAMS=false", "Set it to false"),
    ),
    "a precision that FSDP lacks": launched(
        SHARDED,
        instead("bf16-true", "bf16", "--mixed_precision bf16"),
        without(SHARDED, "train without FSDP"),
        flags="--mixed_precision bf16-true",
    ),
    "compiled fp16": launched(
        "ACCELERATE_DYNAMO_BACKEND=EAGER",
        instead("BACKEND=EAGER", "BACKEND=NO", "Launch with --dynamo_backend no"),
        flags="--mixed_precision fp16",
    ),
    "several processes of the launcher": launched(
        "ACCELERATE_DYNAMO_MODE=default MASTER_ADDR=localhost",
        without("MASTER_ADDR=localhost", "unset MASTER_ADDR"),
    ),
}


TOKEN = "hf_abcdefghijklmnopqrstuvwxyz012345"
WITH_TOKEN = train().replace("train.csv", f"{TOKEN}/train.csv")
RESUMED = train("--checkpointing_steps 2 --resume_from_checkpoint run/checkpoints/step-2")
OF_FOLDERS = {
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


def wider(path: Path) -> None:
    from PIL import Image

    Image.open(path).resize((40, 64)).save(path)


CURVE = f"UNTIL=plan curve --seeds 3 --sizes 12,24 --output_dir p {OF_PLANS}"
SEARCH = f"UNTIL=plan search --time_budget 10h --output_dir p {OF_PLANS}"
OF_PLANS_OF_THE_LABORATORY = {
    "sizes that are too large": changed(
        CURVE.replace("12,24", "12,99"), instead("12,99", "12,24", "at least two sizes from")
    ),
    "a curve in a comparison": changed(
        f"{PLAN} ; {CURVE}",
        instead(f"{PLAN} ; {CURVE}", CURVE.replace("dir p", "dir p2"), "Choose another folder"),
    ),
    "another curve": changed(
        f"{CURVE} ; {CURVE.replace('12,24', '6,24')}",
        instead(
            f"{CURVE} ; {CURVE.replace('12,24', '6,24')}",
            CURVE.replace("--sizes 12,24 ", ""),
            "Remove the flag to continue it",
        ),
        instead(
            f"{CURVE} ; {CURVE.replace('12,24', '6,24')}",
            CURVE.replace("dir p", "dir p2"),
            "choose another --output_dir",
        ),
    ),
    "a short search": changed(
        SEARCH.replace("10h", "1s"),
        instead("1s", "10h", "Raise the budget"),
        instead(SEARCH.replace("10h", "1s"), train(), "use the defaults with ampft train"),
    ),
    "a search without test rows": changed(
        SEARCH.replace("--test_file u.csv", "--test_fraction 0"),
        instead("--test_fraction 0", "--test_file u.csv", "Pass files"),
    ),
    "a search of numbers in folds": changed(
        SEARCH.replace("10h", "10h --folds 3").replace(
            OF_TEXT, "--train_file pairs.csv --text_column_names a --task regression"
            " --label_column_name score"
        ),
        without("--folds 3", REMOVE),
    ),
    "a learning rate of nothing": changed(
        SEARCH.replace("1e-3", "0"),
        instead("10h", "10h --learning_rates 1e-4,1e-3", "Pass --learning_rates"),
    ),
    "another search": changed(
        f"{SEARCH} ; {SEARCH.replace('10h', '10h --seeds 4')}",
        instead(
            f"{SEARCH} ; {SEARCH.replace('10h', '10h --seeds 4')}",
            SEARCH.replace("dir p", "dir p2"),
            "Choose another folder",
        ),
        instead(
            f"{SEARCH} ; {SEARCH.replace('10h', '10h --seeds 4')}",
            SEARCH,
            "use the settings of that search to continue it",
        ),
    ),
    "a damaged search": changed(
        SEARCH,
        instead("dir p", "dir p2", "Choose another --output_dir"),
        files={"p/search.json": "["},
    ),
    "a search that has not finished": changed(
        f"{SEARCH} ; report p", instead(f"{SEARCH} ; report p", SEARCH, "Repeat its command")
    ),
}  # fmt: skip


def code(text: str, *remedies: Remedy, files: Files | None = None) -> Walk:
    """Return the walk of code in Python."""
    return Walk(files or {}, text, remedies)


LOADED = "\ndata = ampft.load_data(ampft.ClassifyArguments({}))\n"
STANDARD_INPUT = """
import io, sys
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file
before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"caf\\xe9\\n"), encoding="utf-8")
try:
    predict_file("run", PredictRequest(files=["-"]))
finally:
    sys.stdin = before
"""
FOLDERS = LOOP.replace(SETTING, "epochs=1, overwrite_output_dir=True")
CODE = {
    "no file to train on": code(
        LOADED.format("validation_file='t.csv'"),
        instead("validation_file", "train_file", "Pass a file to train on"),
        files=T,
    ),
    "a file and a data set": code(
        LOADED.format("train_file='t.csv', dataset_name='stdlib'"),
        without(", dataset_name='stdlib'", "Pass only one of them"),
        files=T,
    ),
    "masks of nothing": code(
        LOADED.format("task='pixels'"),
        instead("task='pixels'", "task='pixels', dataset_name='masks'", "Pass a folder with"),
    ),
    "bytes of another encoding": code(
        STANDARD_INPUT, instead('b"caf\\xe9\\n"', '"caf\\xe9\\n".encode()', "Convert it: iconv")
    ),
    "a table in standard input": code(
        STANDARD_INPUT.replace("caf\\xe9", "text,label\\ngood,bad"),
        Remedy("Pass the table as FILE", without='files=["-"]', add='files=["t.csv"]'),
        files=T,
    ),
    "an index of the name": code(
        FINETUNE.replace("finetune(frame,", "finetune(frame.assign(ampft_index=1)[2:],"),
        instead("ampft_index=1", "mine=1", "Rename the column"),
    ),
    "examples with a collation of their own": code(
        FOLDERS.replace(
            "ampft.Training(model, optimizer, examples,",
            "ampft.Training(model, optimizer, ampft.TensorExamples({'x': torch.randn(12, 4)}),"
            " collate=list,",
        ).replace("x, y = batch\n    return", "x, y = batch['x'], torch.zeros(len(batch['x']))"
                  ".long()\n    return"),
        without("collate=list,", "Leave out weights and collate"),
    ),
}  # fmt: skip
WALKS = {**OF_LAUNCHERS, **OF_FOLDERS, **OF_PLANS_OF_THE_LABORATORY}
