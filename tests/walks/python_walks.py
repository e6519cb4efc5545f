"""Functions of the library that end in a message, which a command line seldom or never meets."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from data_walks import Remedy, Walk
from judge_walks import FINAL_NEW, FINAL_OLD, TRIED
from judge_walks import T as JUDGED
from library_walks import code
from prepared import OF_TEXT, SHORT, Prepared, copied, recorded, train
from run_walks import BF16, FP32
from training_walks import changed, instead, without

FROM_FILES = "train_file='train.csv', validation_file='v.csv', test_file='u.csv'"
TASK = f"""
settings = ampft.ClassifyArguments(model_name_or_path="model", {FROM_FILES})
task = ampft.make_task(ampft.load_data(settings), settings)
"""
OF_IMAGES = f"""
settings = ampft.ClassifyArguments(task="images", model_name_or_path="model")
data = ampft.ClassifyArguments({FROM_FILES})
task = ampft.make_task(ampft.load_data(data), settings)
"""
EVALUATED = """
words = "--do_eval --train_file train.csv --test_file u.csv --model_name_or_path model --use_cpu"
settings = ampft.parse_classify_arguments(words.split())
data = ampft.load_data(ampft.ClassifyArguments(train_file="pairs.csv", text_column_names="a"))
task = ampft.make_task(data, settings)
"""
BASELINES = f"""{TASK}
from ampft.checks.baseline import BAG_OF_WORDS, baselines
from ampft.runs.extension_points import MethodLimit
from ampft.evaluation.sanity import constant_outcome
outcome = constant_outcome(task, "test")
methods = baselines(task, outcome, torch.device("cpu"), 0, MethodLimit(0.0))
found = methods[BAG_OF_WORDS]()
"""
LOADED = f"\ndata = ampft.load_data(ampft.ClassifyArguments({FROM_FILES}))\n"
YARDSTICK = """
from ampft.lab.yardstick.measure import measure_yardstick
words = "--train_file train.csv --model_name_or_path model --use_cpu"
settings = ampft.parse_classify_arguments([*words.split(), "--per_device_train_batch_size", "4"])
found = measure_yardstick(settings, ["fp32", "bf16"], batches=2)
"""
STORED = """
from ampft.precision.executed import check_trainable_dtype
model = torch.nn.Linear(4, 2).bfloat16()
check_trainable_dtype(model, torch.float32)
"""
PREDICTED = """
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import predict_file
predict_file("run", PredictRequest(files=["u.csv"], overwrite=True))
"""
NUMBERS = '\nanswers = ampft.FinishedRun("number-run").predict(["w1"], decimals=2)\n'
OTHER_TEXTS = """
from ampft.export.inference.compare_inference import compare_inference
settings = dict(model_name_or_path="model", max_train_steps=2, use_cpu=True, cpu_threads=1)
for seed, word in ((1, "a "), (2, "b ")):
    test = pd.read_csv("u.csv").assign(text=lambda table: word + table["text"])
    run = ampft.finetune(pd.read_csv("train.csv"), test=test, seed=seed, output_dir=f"o{seed}",
                         overwrite_output_dir=True, **settings)
found = compare_inference([Path("o1"), Path("o2")], ("fp32", "bf16"))
"""
OF_FUNCTIONS = {
    "a task of another kind": code(
        OF_IMAGES,
        without('task="images", ', "Remove the flag"),
        instead(
            f'data = ampft.ClassifyArguments({FROM_FILES})',
            'settings = ampft.ClassifyArguments(task="images", model_name_or_path="vit")\n'
            'data = ampft.ClassifyArguments(task="images", dataset_name="pictures")',
            "or use other data",
        ),
    ),
    "labels that a model lacks": code(
        EVALUATED.replace('"a")', '"a", label_column_name="p")'),
        instead(', label_column_name="p"', "", "give the data the model's labels"),
        instead("--do_eval ", "--do_eval --do_train ", "or add --do_train"),
    ),
    "a simple method without time": code(
        BASELINES, instead("MethodLimit(0.0)", "None", "--baseline computes it")
    ),
    "three columns of texts": code(
        LOADED.replace("u.csv'", "u.csv', text_column_names='text,a,b'"),
        instead("text,a,b", "text+a+b", "write + between them"),
        files={
            name: "text,a,b,label\n" + "".join(f"w{i},x,y,{'cd'[i % 2]}\n" for i in range(8))
            for name in ("train.csv", "v.csv", "u.csv")
        },
    ),
    "one batch of noise": code(
        YARDSTICK.replace("batches=2", "batches=1"),
        instead("batches=1", "batches=2", "needs at least 2 batches"),
    ),
    "noise of no mode": code(
        YARDSTICK.replace('["fp32", "bf16"]', "[]"),
        instead("[]", '["fp32", "bf16"]', "Use a value such as --modes fp32,bf16"),
    ),
    "weights in 16 bits": code(
        STORED,
        instead("torch.nn.Linear(4, 2).bfloat16()", "torch.nn.Linear(4, 2, dtype=torch.float32)",
                "Load the model with dtype=torch.float32"),
        instead("bfloat16()\n", "bfloat16()\nmodel.float()\n", "or call model.float()"),
    ),
    "an output without a file": code(
        PREDICTED, instead(", overwrite=True", "", "Remove the flag")
    ),
    "decimals of numbers": code(
        NUMBERS,
        instead(", decimals=2)", ")", "Remove it"),
    ),
    "inference on other texts": code(
        OTHER_TEXTS, instead('(2, "b ")', '(2, "a ")', "Pass runs that differ only in")
    ),
}  # fmt: skip


def damaged(path: Path, prepared: Prepared) -> None:
    """Damage the texts in the predictions of a run whose record has no hashes, as old ones."""
    recorded(files={})(path.with_name("run.json"), prepared)
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    column = columns["text"]
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    size = column.total_compressed_size
    content[start : start + size] = b"\xff" * size
    path.write_bytes(content)


WEIGHTED = {
    name: "text,y,w\n" + "".join(f"w{i},{i % 2},{i % 2}\n" for i in range(12))
    for name in ("train.csv", "v.csv", "u.csv")
}
ADAPTED = "train --dataset_name pictures --lora_r 2 --no-merge_lora --max_train_steps 2 --use_cpu"
SPLITS = {
    f"d/{split}.csv": "text,label\n" + "".join(f"{w}{i},{'ab'[i % 2]}\n" for i in range(40))
    for split, w in (("train", "w"), ("validation", "v w"))
}
CURVE = (
    "UNTIL=plan curve --seeds 3 --sizes 12,24 --output_dir p -- --dataset_name d"
    f" --test_fraction 0 --model_name_or_path model {SHORT}"
)
GROUPED = {
    f"{name}.csv": "text,label,g\n"
    + "".join(f"{name}{i} w,{'cd'[i % 2]},{name[0]}{i // size}\n" for i in range(24))
    for name, size in (("a", 1), ("b", 1), ("u", 2))
}
OF_GROUPS = (
    "train --train_file a.csv --validation_file b.csv --group_column g --model_name_or_path model"
    f" {SHORT}"
)
TWO_GROUPINGS = (
    f"{OF_GROUPS} --test_file u.csv --output_dir o1 --overwrite_output_dir ; {OF_GROUPS}"
    " --test_file t.csv --output_dir o2 --learning_rate 1e-3 ; compare o1 o2"
)
OF_RUNS = f"judge l --final --candidate {BF16} --best {FP32}"
OF_COMMANDS = {
    "numbers that are equal where they count": Walk(
        WEIGHTED,
        train("--task regression --label_column_name y --weight_column w"),
        (
            without("--weight_column w", "rows with the weight 0 do not count"),
        ),
    ),
    "adapters of random weights": changed(
        f"{ADAPTED} --output_dir o", instead("--no-merge_lora", "--merge_lora", "Add --merge_lora")
    ),
    "runs with other groups": changed(
        TWO_GROUPINGS,
        Remedy(
            "the same groups in it",
            without="t.csv",
            add="u.csv --overwrite_output_dir",
        ),
        files=GROUPED | {"t.csv": GROUPED["u.csv"].replace(",u1\n", ",u0\n")},
    ),
    "a curve without test rows": changed(
        CURVE,
        instead(
            "--dataset_name d --test_fraction 0",
            OF_TEXT,
            "pass files with --train_file and --test_file",
        ),
        Remedy(
            "or a --dataset_name with a test split",
            without="--test_fraction 0",
            files={"d/test.csv": SPLITS["d/validation.csv"].replace("v", "u")},
        ),
        files=SPLITS,
    ),
    "a final claim of runs on a ledger of tables": changed(
        f"{TRIED} ; {OF_RUNS}",
        instead(
            f"{TRIED} ; {OF_RUNS}",
            f"judge l --final --candidate {FINAL_NEW} --best {FINAL_OLD}",
            "Pass tables with the ledger's column id",
        ),
        files=JUDGED,
    ),
    "damaged texts of mistakes": changed(
        "errors fp32-1",
        Remedy(
            "Copy the file again",
            files={"fp32-1/predictions.parquet": copied("fp32-1/predictions.parquet")},
        ),
        instead("errors fp32-1", "errors fp32-2", "or repeat the run"),
        files={"fp32-1/predictions.parquet": damaged},
    ),
    "damaged texts of inference": changed(
        "compare fp32-1 --inference fp32,bf16",
        instead("compare fp32-1", "compare fp32-2", "Repeat the run"),
        files={"fp32-1/predictions.parquet": damaged},
    ),
}  # fmt: skip
WALKS = OF_FUNCTIONS
