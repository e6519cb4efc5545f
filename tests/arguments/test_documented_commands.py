"""The commands in the documentation of transformers' scripts, run on small stand-ins offline."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hub_stand_in import TOKEN
from running import BIN, call_here, succeeded
from script_stand_ins import write_stand_ins

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more than this machine has
]
BERT = "--model_name_or_path google-bert/bert-base"
TEXT = (
    "--do_train --do_eval --max_seq_length 512 --per_device_train_batch_size 32 --learning_rate "
    "2e-5 --num_train_epochs"
)
GLUE = "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3"
SOUND = (
    "--overwrite_output_dir --remove_unused_columns False --do_train --do_eval --fp16 "
    "--learning_rate 3e-5 --attention_mask False --warmup_ratio 0.1 --gradient_accumulation_steps "
    "4 --logging_strategy steps --logging_steps 10 --eval_strategy epoch --save_strategy epoch "
    "--load_best_model_at_end True --metric_for_best_model accuracy --save_total_limit 3 --seed 0 "
    "--push_to_hub --model_name_or_path facebook/wav2vec2-base"
)
LOGGED = (
    "--remove_unused_columns False --do_train --do_eval --per_device_train_batch_size 8 "
    "--per_device_eval_batch_size 8 --logging_strategy steps --eval_strategy epoch "
    "--save_strategy epoch --seed 1337"
)
# Command, and what the record must say. Folders under /tmp are relative here, and the 10,000 steps
# of the segmentation are 20.
COMMANDS = {
    "run_classification": (
        f"{BERT}-uncased --dataset_name amazon_reviews_multi --dataset_config_name en "
        "--shuffle_train_dataset --metric_name accuracy --text_column_name "
        "'review_title,review_body,product_category' --text_column_delimiter '\\n' "
        f"--label_column_name stars {TEXT} 1 --output_dir out/",
        {"task": "text", "classes": 5},
    ),
    "run_classification, several labels": (
        f"{BERT}-uncased --dataset_name reuters21578 --dataset_config_name ModApte "
        "--shuffle_train_dataset --remove_splits unused --metric_name f1 --text_column_name text "
        f"--label_column_name topics {TEXT} 15 --output_dir out/",
        {"task": "multi-label", "classes": 3},
    ),
    "run_glue": (
        f"{BERT}-cased --task_name mrpc --do_train --do_eval --max_seq_length 128 {GLUE} "
        "--output_dir out/",
        {"task": "text", "classes": 2},
    ),
    "run_glue on a data set": (
        f"{BERT}-cased --dataset_name imdb --do_train --do_predict --max_seq_length 128 {GLUE} "
        "--output_dir out/",
        {"task": "text", "classes": 2},
    ),
    "run_glue_no_trainer": (
        f"{BERT}-cased --task_name mrpc --max_length 128 {GLUE} --output_dir out/",
        {"task": "text", "classes": 2},
    ),
    "run_xnli": (
        f"{BERT}-multilingual-cased --language de --train_language en --do_train --do_eval "
        "--per_device_train_batch_size 32 --learning_rate 5e-5 --num_train_epochs 2.0 "
        "--max_seq_length 128 --output_dir out/ --save_steps -1",
        {"task": "text", "classes": 3},
    ),
    "run_ner": (
        f"{BERT}-uncased --dataset_name tomaarsen/conll2003 --output_dir out --do_train --do_eval",
        {"task": "tokens", "classes": 5},
    ),
    "run_ner on files": (
        f"{BERT}-uncased --train_file path_to_train_file.json --validation_file "
        "path_to_validation_file.json --output_dir out --do_train --do_eval",
        {"task": "tokens", "classes": 5},
    ),
    "run_ner_no_trainer": (
        f"{BERT}-cased --dataset_name tomaarsen/conll2003 --task_name ner --max_length 128 {GLUE} "
        "--output_dir out/",
        {"task": "tokens", "classes": 5},
    ),
    "run_image_classification": (
        f"--dataset_name beans --output_dir ./out/ --label_column_name labels {LOGGED} "
        "--push_to_hub --push_to_hub_model_id vit-base-beans --learning_rate 2e-5 "
        "--num_train_epochs 5 --logging_steps 10 --load_best_model_at_end True "
        "--save_total_limit 3",
        {"task": "images", "classes": 3},
    ),
    "run_image_classification on a folder": (
        "--train_dir path-to-train-root --output_dir ./out/ --remove_unused_columns False "
        "--do_train --do_eval",
        {"task": "images", "classes": 3},
    ),
    "run_audio_classification": (
        f"--dataset_name superb --dataset_config_name ks --output_dir out {SOUND} "
        "--max_length_seconds 1 --num_train_epochs 5 --per_device_train_batch_size 32 "
        "--per_device_eval_batch_size 32 --dataloader_num_workers 4",
        {"task": "sounds", "classes": 3},
    ),
    "run_audio_classification of languages": (
        f"--dataset_name common_language --audio_column_name audio --label_column_name language "
        f"--output_dir out {SOUND} --max_length_seconds 16 --num_train_epochs 10 "
        "--per_device_train_batch_size 8 --per_device_eval_batch_size 1 --dataloader_num_workers 8",
        {"task": "sounds", "classes": 3},
    ),
    "run_semantic_segmentation": (
        "--model_name_or_path nvidia/mit-b0 --dataset_name segments/sidewalk-semantic --output_dir "
        f"./out/ {LOGGED} --push_to_hub --push_to_hub_model_id segformer-finetuned-sidewalk "
        "--max_steps 20 --learning_rate 0.00006 --lr_scheduler_type polynomial --logging_steps 100",
        {"task": "pixels", "classes": 4},
    ),
    # Its model and data are the defaults of that script.
    "run_semantic_segmentation_no_trainer": (
        "--model_name_or_path nvidia/mit-b0 --dataset_name segments/sidewalk-semantic "
        "--do_reduce_labels --output_dir out --with_tracking --push_to_hub",
        {"task": "pixels", "classes": 3},
    ),
}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    return write_stand_ins(tmp_path_factory.mktemp("scripts"))


@pytest.mark.parametrize("name", COMMANDS)
def test_documented_command(name, stand_ins, tmp_path, request):
    command, expected = COMMANDS[name]
    words = shlex.split(command)
    at = words.index("--output_dir") + 1
    words[at] = str(tmp_path / words[at])
    hub = request.getfixturevalue("hub") if "--push_to_hub" in words else None
    succeeded(call_here(BIN / "ampft", "train", *words, cwd=stand_ins, HF_TOKEN=TOKEN))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    found = {"task": record["task"], "classes": len(record["label_names"])}
    assert found == expected
    if "--push_to_hub_model_id" in words:
        assert {name.rpartition("/")[2] for name in hub.repositories} == {
            words[words.index("--push_to_hub_model_id") + 1]
        }
    if "--per_device_train_batch_size" in words:  # an inferred task keeps what was asked for
        size = int(words[words.index("--per_device_train_batch_size") + 1])
        assert record["arguments"]["per_device_train_batch_size"] == size
