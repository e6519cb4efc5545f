"""Commands of transformers' scripts, converted by value."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest

from ampft.arguments import parse_classify_arguments
from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import flag_switches
from ampft.arguments.parsing import command_line_words, translated
from ampft.errors import InputError
from ampft.integrations.transformers_flags import settings_of
from ampft.integrations.transformers_rows import HARMLESS, ROWS, TAKEN

SWITCHES = flag_switches(ClassifyArguments)
# The commands in the documentation of transformers' scripts.
DOCUMENTED = {
    "run_glue": "--model_name_or_path bert-base-cased --task_name mrpc --do_train --do_eval "
    "--max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 "
    "--num_train_epochs 3 --output_dir /tmp/mrpc/",
    "run_glue on the hub": "--model_name_or_path bert-base-cased --dataset_name imdb --do_train "
    "--do_predict --max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 "
    "--num_train_epochs 3 --output_dir /tmp/imdb/",
    "run_glue_no_trainer": "--model_name_or_path bert-base-cased --task_name mrpc --max_length 128 "
    "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 "
    "--output_dir /tmp/mrpc/",
    "run_ner": "--model_name_or_path google-bert/bert-base-uncased "
    "--dataset_name tomaarsen/conll2003 --output_dir /tmp/test-ner --do_train --do_eval",
    "run_ner on files": "--model_name_or_path google-bert/bert-base-uncased "
    "--train_file path_to_train_file --validation_file path_to_validation_file "
    "--output_dir /tmp/test-ner --do_train --do_eval",
    "run_ner_no_trainer": "--model_name_or_path google-bert/bert-base-cased "
    "--dataset_name tomaarsen/conll2003 --task_name ner --max_length 128 "
    "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 "
    "--output_dir /tmp/ner/",
    "run_image_classification": "--dataset_name beans --output_dir ./beans_outputs/ "
    "--remove_unused_columns False --label_column_name labels --do_train --do_eval --push_to_hub "
    "--push_to_hub_model_id vit-base-beans --learning_rate 2e-5 --num_train_epochs 5 "
    "--per_device_train_batch_size 8 --per_device_eval_batch_size 8 --logging_strategy steps "
    "--logging_steps 10 --evaluation_strategy epoch --save_strategy epoch "
    "--load_best_model_at_end True --save_total_limit 3 --seed 1337",
    "run_image_classification on a folder": "--train_dir path-to-train-root --output_dir "
    "./outputs/ --remove_unused_columns False --do_train --do_eval",
    "run_audio_classification": "--model_name_or_path facebook/wav2vec2-base --dataset_name superb "
    "--dataset_config_name ks --output_dir wav2vec2-base-ft-keyword-spotting "
    "--overwrite_output_dir --remove_unused_columns False --do_train --do_eval --fp16 "
    "--learning_rate 3e-5 --max_length_seconds 1 --attention_mask False --warmup_ratio 0.1 "
    "--num_train_epochs 5 --per_device_train_batch_size 32 --gradient_accumulation_steps 4 "
    "--per_device_eval_batch_size 32 --dataloader_num_workers 4 --logging_strategy steps "
    "--logging_steps 10 --evaluation_strategy epoch --save_strategy epoch "
    "--load_best_model_at_end True --metric_for_best_model accuracy --save_total_limit 3 --seed 0 "
    "--push_to_hub",
    "run_audio_classification of languages": "--model_name_or_path facebook/wav2vec2-base "
    "--dataset_name common_language --audio_column_name audio --label_column_name language "
    "--output_dir wav2vec2-base-lang-id --overwrite_output_dir --remove_unused_columns False "
    "--do_train --do_eval --fp16 --learning_rate 3e-5 --max_length_seconds 16 "
    "--attention_mask False --warmup_ratio 0.1 --num_train_epochs 10 "
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 4 --per_device_eval_batch_size "
    "1 --dataloader_num_workers 8 --logging_strategy steps --logging_steps 10 "
    "--evaluation_strategy epoch --save_strategy epoch --load_best_model_at_end True "
    "--metric_for_best_model accuracy --save_total_limit 3 --seed 0 --push_to_hub",
    "run_semantic_segmentation": "--dataset_name masks --reduce_labels --output_dir "
    "segformer-finetuned-ade --wandb --push_to_hub",
}
XNLI = (
    "--model_name_or_path bert-base-multilingual-cased --language de --train_language en "
    "--do_train --do_eval --per_device_train_batch_size 32 --learning_rate 5e-5 "
    "--num_train_epochs 2.0 --max_seq_length 128 --output_dir /tmp/debug_xnli/ --save_steps -1"
)


def words(command: str) -> list[str]:
    return translated(shlex.split(command), "ampft train")


def parse(command: str) -> ClassifyArguments:
    return parse_classify_arguments(shlex.split(command))


@pytest.mark.slow
def test_every_field_of_training_arguments_has_a_row():
    from transformers import TrainingArguments

    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert len(fields) > 100
    assert fields - ROWS.keys() == set()


# Fields of the scripts' own argument classes, in transformers' examples (4.20 to 5.8); tests cannot
# import them.
OF_MODELS = "model_name_or_path config_name cache_dir model_revision token trust_remote_code "
OF_SAMPLES = "dataset_name dataset_config_name max_train_samples max_eval_samples "
OF_FILES = (
    "train_file validation_file test_file max_predict_samples overwrite_cache max_seq_length "
)
OF_LOADED = "dataset_name dataset_config_name "
OF_LOOPS = (
    "model_name_or_path per_device_train_batch_size per_device_eval_batch_size learning_rate "
    "weight_decay num_train_epochs max_train_steps gradient_accumulation_steps lr_scheduler_type "
    "num_warmup_steps output_dir seed push_to_hub hub_model_id hub_token trust_remote_code "
    "checkpointing_steps resume_from_checkpoint with_tracking report_to ignore_mismatched_sizes "
)
SCRIPTS = {
    "run_classification": OF_MODELS + OF_SAMPLES + OF_FILES + "tokenizer_name use_fast_tokenizer "
    "ignore_mismatched_sizes do_regression text_column_names text_column_delimiter "
    "train_split_name validation_split_name test_split_name remove_splits remove_columns "
    "label_column_name preprocessing_num_workers pad_to_max_length shuffle_train_dataset "
    "shuffle_seed metric_name",
    "run_glue": OF_MODELS + OF_SAMPLES + OF_FILES + "tokenizer_name use_fast_tokenizer "
    "use_auth_token ignore_mismatched_sizes task_name pad_to_max_length",
    "run_ner": OF_MODELS + OF_SAMPLES + OF_FILES + "tokenizer_name ignore_mismatched_sizes "
    "task_name text_column_name label_column_name preprocessing_num_workers pad_to_max_length "
    "label_all_tokens return_entity_level_metrics",
    "run_image_classification": OF_MODELS + OF_SAMPLES + "train_dir validation_dir train_val_split "
    "model_type feature_extractor_name image_processor_name use_auth_token ignore_mismatched_sizes "
    "image_column_name label_column_name",
    "run_audio_classification": OF_MODELS + OF_SAMPLES + "train_file eval_file train_split_name "
    "eval_split_name audio_column_name label_column_name max_length_seconds feature_extractor_name "
    "freeze_feature_encoder attention_mask ignore_mismatched_sizes",
    "run_semantic_segmentation": OF_MODELS + OF_SAMPLES + "train_val_split do_reduce_labels "
    "reduce_labels image_processor_name",
    # Without the Trainer.
    "run_glue_no_trainer": OF_LOOPS + "task_name train_file validation_file max_length "
    "pad_to_max_length use_slow_tokenizer",
    "run_ner_no_trainer": OF_LOOPS + OF_LOADED + "train_file validation_file text_column_name "
    "label_column_name max_length pad_to_max_length config_name tokenizer_name model_type "
    "label_all_tokens return_entity_level_metrics task_name debug",
    "run_image_classification_no_trainer": OF_LOOPS + "dataset_name train_dir validation_dir "
    "max_train_samples max_eval_samples train_val_split image_column_name label_column_name",
    "run_semantic_segmentation_no_trainer": OF_LOOPS + "dataset_name do_reduce_labels "
    "reduce_labels train_val_split cache_dir adam_beta1 adam_beta2 adam_epsilon use_auth_token "
    "logging_steps wandb saving_steps",
    # Accelerate's examples, which have no class.
    "nlp_example and cv_example": "mixed_precision cpu checkpointing_steps output_dir "
    "resume_from_checkpoint use_stateful_dataloader with_tracking project_dir data_dir fp16 "
    "gradient_accumulation_steps num_folds ddp_comm_hook ddp_comm_wrapper local_sgd_steps "
    "record_shapes profile_memory with_flops output_trace_dir logging_dir model_name_or_path "
    "with_wandb_tracking load_best_model use_slow_tokenizer validation_split_percentage",
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_field_of_a_script_is_a_flag_or_has_a_row(script):
    fields = SCRIPTS[script].split()
    assert len(fields) == len(set(fields)) > 13
    assert [name for name in fields if name not in ROWS and name not in SWITCHES] == []
    for name in fields:
        row = ROWS.get(name)
        if row is None:
            continue
        assert row.text
        if row.kind == TAKEN:
            assert name in SWITCHES
        else:
            assert row.convert is not None or row.kind == HARMLESS


def test_rows_that_are_taken_are_flags_here():
    taken = {name for name, row in ROWS.items() if row.kind == TAKEN}
    assert taken <= SWITCHES.keys()
    assert len(taken) > 30


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_commands(name):
    arguments = parse(DOCUMENTED[name])
    assert arguments.output_dir is not None


def test_what_documented_commands_mean(capsys):
    arguments = parse(DOCUMENTED["run_audio_classification"])
    assert arguments.mixed_precision == "fp16"
    assert arguments.checkpointing_steps == "epoch"
    assert arguments.checkpoint_total_limit == 3
    assert arguments.max_length_seconds == 1
    printed = capsys.readouterr().out
    assert "--fp16 -> --mixed_precision fp16" in printed
    assert "--attention_mask False" in printed
    arguments = parse(DOCUMENTED["run_glue"])
    assert (arguments.dataset_name, arguments.dataset_config_name) == ("nyu-mll/glue", "mrpc")
    arguments = parse(DOCUMENTED["run_ner_no_trainer"])
    assert (arguments.task, arguments.label_column_name) == ("tokens", "ner_tags")
    arguments = parse(DOCUMENTED["run_semantic_segmentation"])
    assert (arguments.ignore_index, arguments.report_to) == (0, "wandb")
    assert arguments.with_tracking


def test_two_languages_are_two_configurations():
    arguments = parse(XNLI)
    assert arguments.dataset_name == "facebook/xnli"
    assert arguments.dataset_config_name == "en"
    assert arguments.eval_dataset_config_name == "de"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--fp16 True", "--mixed_precision fp16"),
        ("--fp16 False", ""),
        ("--fp16", "--mixed_precision fp16"),
        ("--bf16 true --tf32 True", "--mixed_precision bf16"),
        ("--tf32 True", "--mixed_precision tf32"),
        ("--pad_to_max_length False", ""),
        ("--warmup_steps 0.1", "--warmup_ratio 0.1"),
        ("--warmup_steps 100", "--num_warmup_steps 100"),
        ("--warmup_steps 0", "--warmup_ratio 0"),
        ("--metric_for_best_model eval_loss --greater_is_better False",
         "--metric_for_best_model log_loss"),
        ("--metric_for_best_model eval_rmse --greater_is_better False",
         "--metric_for_best_model mse"),
        ("--max_steps 50", "--max_train_steps 50"),
        ("--max_steps -1", ""),
        ("--eval_strategy epoch", ""),
        ("--eval_strategy steps --eval_steps 20", "--eval_steps 20"),
        ("--eval_strategy steps --logging_steps 10", "--eval_steps 10"),
        ("--eval_strategy no", "--no-load_best_model_at_end"),
        ("--save_strategy steps", "--checkpointing_steps 500"),
        ("--save_strategy epoch --save_total_limit 2",
         "--checkpointing_steps epoch --checkpoint_total_limit 2"),
        ("--save_steps 100", "--checkpointing_steps 100"),
        ("--save_steps -1 --save_total_limit 2", ""),
        ("--save_strategy no --save_total_limit 2", ""),
        ("--optim adamw_torch_fused", "--optim adamw_torch"),
        ("--metric_for_best_model eval_accuracy", "--metric_for_best_model accuracy"),
        ("--metric_for_best_model eval_loss", "--metric_for_best_model log_loss"),
        ("--metric_for_best_model eval_f1", "--metric_for_best_model f1"),
        ("--report_to wandb", "--report_to wandb --with_tracking"),
        ("--report_to wandb tensorboard", "--report_to wandb,tensorboard --with_tracking"),
        ("--report_to none", ""),
        ("--num_train_epochs 3.0", "--num_train_epochs 3"),
        ("--load_best_model_at_end True", "--load_best_model_at_end"),
        ("--load_best_model_at_end False", "--no-load_best_model_at_end"),
        ("--resume_from_checkpoint True", "--resume_from_checkpoint latest"),
        ("--resume_from_checkpoint runs/a", "--resume_from_checkpoint runs/a"),
        ("--auto_find_batch_size True", "--auto_micro_batch"),
        ("--model_revision v2", "--model_revision v2"),
        ("--learning-rate 2e-5", "--learning_rate 2e-5"),
        ("--use_cpu True", "--use_cpu"),
        ("--gradient_checkpointing False", "--no-gradient_checkpointing"),
        ("--do_train True --overwrite_cache --logging_steps 5 --hub_token hf_abc", ""),
        ("--deepspeed none", ""),
        ("--torch_compile False", ""),
        ("--train_dir data/train --validation_dir data/validation", "--dataset_name data"),
        ("--mixed_precision bf16 --bf16 True", "--mixed_precision bf16"),
        ("--no-padding --no_gradient_checkpointing", "--no-padding --no-gradient_checkpointing"),
        ("--no_pad_to_max_length", ""),
        ("--report_to=tensorboard --no-with_tracking",
         "--report_to tensorboard --no-with_tracking"),
        ("--learning_rate=2e-5 --padding", "--learning_rate=2e-5 --padding"),
        ("--adafactor True", "--optim adafactor"),
        ("--adafactor --optim adafactor", "--optim adafactor"),
        ("--adafactor False", ""),
        ("--optim adamw_8bit", "--optim adamw_8bit"),
        ("--optim adamw_bnb_8bit", "--optim adamw_8bit"),
        ("--half_precision_backend auto", ""),
        ("--tokenizer_name other", "--processor_name other"),
        ("--train_val_split 0.15", "--validation_fraction 0.15"),
        ("--train_val_split 0.15 --validation_file v.csv", "--validation_file v.csv"),
        ("--config_name m --model_name_or_path m", "--model_name_or_path m"),
        ("--text_column_name a,b,c", "--text_column_names a+b+c"),
        ("--text_column_names a,b", "--text_column_names a,b"),
        (
            "--text_column_names a,b --text_column_delimiter [SEP]",
            "--text_column_names a+b --text_column_delimiter [SEP]",
        ),
        (
            "--text_column_names a+b,c --text_column_delimiter [SEP]",
            "--text_column_names a+b,c --text_column_delimiter [SEP]",
        ),
        ("--language de", "--dataset_name facebook/xnli --dataset_config_name de"),
        ("--eval_split_name dev", "--validation_split_name dev"),
        ("--metric_name f1", ""),
        ("--evaluate_during_training", ""),
        ("--metric_for_best_model f1_macro", "--metric_for_best_model macro_f1"),
        ("--metric_for_best_model eval_overall_f1", "--metric_for_best_model micro_f1"),
        ("--task_name SST-2", "--dataset_name nyu-mll/glue --dataset_config_name sst2"),
        ("--do_reduce_labels", "--ignore_index 0"),
        ("--cpu", "--use_cpu"),
        ("--with_wandb_tracking", "--report_to wandb --with_tracking"),
        ("--validation_split_percentage 5", "--validation_fraction 0.05"),
        ("--project_dir logs --use_stateful_dataloader", ""),
        ("--model_type bert --model_name_or_path m", "--model_name_or_path m"),
        ("--do_lower_case --model_name_or_path bert-base-uncased",
         "--model_name_or_path bert-base-uncased"),
        ("--use_auth_token hf_abc --local_rank -1 --logging_steps 5", ""),
        ("--token --hub_token True --include_for_metrics inputs loss", ""),
        ("--eval_delay 0 --neftune_noise_alpha 0 --include_num_input_tokens_seen all", ""),
        ("--eval_strategy steps --logging_steps 10.0", "--eval_steps 10"),
        ("--hub_revision dev --push_to_hub_organization lab", ""),
        ("--hub_revision main --push_to_hub", "--push_to_hub"),
        ("--lr_scheduler_type cosine", "--lr_scheduler_type cosine"),
        ("--use_fast_tokenizer True --dataloader_multiprocessing_context spawn", ""),
    ],
)  # fmt: skip
def test_values(typed, expected):
    assert words(typed) == shlex.split(expected)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--fp16 True --bf16 True", "^--bf16 True: --fp16 is set too. Keep one of them.$"),
        ("--mixed_precision bf16 --fp16 True", "--mixed_precision bf16 is set too"),
        ("--fp16 maybe", "^--fp16 maybe: received 'maybe'; it must be True or False"),
        ("--bf16 a.csv", "^--bf16 a.csv: received 'a.csv'; it must be True or False"),
        ("--use_cpu maybe", "^--use_cpu maybe: this flag is a switch and takes no value. Use"),
        ("--fp16 True --fp16 False", "--fp16 True and --fp16 False: only one can hold"),
        ("--eval_strategy epoch --evaluation_strategy steps", "only one can hold"),
        ("--report_to none --report_to tensorboard", "only one can hold"),
        ("--fp16 True --mixed_precision no", "--mixed_precision no is set too"),
        ("--metric_for_best_model accuracy --greater_is_better False", "the other direction"),
        ("--metric_for_best_model mse --greater_is_better True", "mse has the other direction"),
        ("--warmup_steps 4 --warmup_ratio 0.5", "--warmup_ratio is set too"),
        ("--num_train_epochs 2.5", "epochs are whole here"),
        ("--warmup_steps many", "it must be a number"),
        ("--eval_strategy no --load_best_model_at_end True", "needs validations"),
        ("--optim paged_adamw_8bit", "Use --optim adamw_8bit"),
        ("--optim lion_8bit", "With less memory"),
        ("--task_name mrpc --dataset_name imdb", "--dataset_name names other data"),
        ("--do_train False", "nothing is left to do"),
        ("--dataloader_drop_last True", "every example counts once"),
        ("--half_precision_backend apex", "apex is not supported"),
        ("--adafactor --optim adamw_torch", "--optim adamw_torch is set too"),
        ("--config_name other --model_name_or_path m", "weights and configuration are one"),
        ("--train_language en", "it needs --language"),
        ("--language de --train_file a.csv", "--train_file names other data"),
        ("--deepspeed ds.json", "DeepSpeed is not supported"),
        ("--fsdp full_shard", "fsdp2.yaml"),
        ("--neftune_noise_alpha 5", "noise on embeddings"),
        (
            "--data_dir nowhere --labels labels.txt",
            "--data_dir nowhere: name its files with --train",
        ),
        ("--labels label", "--labels label: use --label_column_name"),
        ("--train_dir a/one --validation_dir a/two", "one folder holds all splits"),
        (
            "--train_dir a/train --dataset_name b",
            "^--train_dir a/train: --dataset_name names other",
        ),
        ("--deepspeed --fp16", "^--deepspeed: the value is missing"),
        ("--logging_steps --fp16", "^--logging_steps: the value is missing"),
        ("--logging_steps often", "^--logging_steps often: received 'often'; it must be a number"),
        ("--logging_strategy never", "^--logging_strategy never: .*it must be no, steps, epoch"),
        ("--do_eval maybe", "^--do_eval maybe: received 'maybe'; it must be True or False"),
        ("--greater_is_better maybe", "it must be True or False"),
        ("--hub_strategy often", "it must be end, every_save"),
        ("--save_total_limit many", "it must be a number"),
        ("--debug --train_file a.csv", "^--debug: it debugs TPUs.*--max_train_samples 100"),
        ("--model_type bert", "save a model with random weights"),
        ("--do_lower_case", "the tokenizer of the model decides"),
        ("--num_folds 3", "--folds 5 --fold 1"),
        ("--local_sgd_steps 8", "exact one of the whole batch"),
        (
            "--eval_strategy epoch --load_best_model_at_end False",
            "^--load_best_model_at_end False: a run with validations keeps the last weights unless",
        ),
        ("--save_strategy best --load_best_model_at_end False", "keeps the last weights unless"),
        ("--hub_revision dev --push_to_hub", "--hub_revision dev: the model is pushed to the main"),
        (
            "--push_to_hub --push_to_hub_organization lab --push_to_hub_model_id beans",
            "^--push_to_hub_organization lab: use --hub_model_id lab/beans",
        ),
        ("--lr_scheduler_type cosine_with_min_lr", "this schedule is not supported. Choose"),
        ("--validation_dir v --dataset_name d", "^--validation_dir v: it needs --train_dir"),
        ("--use_fast_tokenizer False", "tokenizers are fast ones"),
        ("--dataloader_drop_last maybe", "received 'maybe'; it must be True or False"),
        ("--ddp_timeout 2.5", "received 2.5; it must be a whole number"),
        ("--eval_accumulation_steps 0.5", "it must be a whole number"),
        ("--ddp_backend smoke", "it must be nccl, gloo"),
        ("--eval_strategy steps --logging_steps 0.1", "it must be a whole number of steps here"),
    ],
)
def test_refused_values(typed, message):
    with pytest.raises(InputError, match=message):
        parse(typed)


def test_all_problems_are_listed_and_the_rest_is_a_command():
    command = "--train_file a.csv --deepspeed x.json --fsdp full_shard --bf16 --optim lion_8bit"
    with pytest.raises(InputError) as error:
        parse(command)
    lines = str(error.value).splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["--deepspeed", "--fsdp", "--optim"]
    rest = lines[-1].partition("classify.py ")[2]
    assert parse(rest).mixed_precision == "bf16"


def refusal(command: str, program: str = "ampft train") -> list[str]:
    with pytest.raises(InputError) as error:
        parse_classify_arguments(shlex.split(command), program=program)
    return str(error.value).splitlines()


def test_unknown_flags_and_wrong_values_are_all_named_without_another_problem():
    *lines, rest = refusal(
        "--train_file a.csv --lr 1e-5 --no_such 1 --weight_decay x --seed 1 --seed 2 --epochs 3"
    )
    assert [line.partition(".")[0].partition(":")[0] for line in lines] == [
        "unknown flag --lr", "unknown flag --no_such", "--weight_decay",
        "--seed is set twice, to 1 and 2", "unknown flag --epochs",
    ]  # fmt: skip
    assert rest == (
        "Corrected, without the others: ampft train --train_file a.csv --learning_rate 1e-5 "
        "--num_train_epochs 3"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("batch_sizes", "Use --per_device_train_batch_size"), ("epochss", "Use --num_train_epochs"),
     ("eval_batch_sizes", "Use --per_device_eval_batch_size"), ("seeed", "Did you mean '--seed'"),
     ("learning_rates", "Did you mean '--learning_rate'"), ("devicess", "Remove the flag: a GPU")],
)  # fmt: skip
def test_a_typo_in_a_name_of_other_scripts_is_answered_as_the_name(typed, meant):
    line, *_ = refusal(f"--train_file a.csv --{typed} 8")
    assert line.startswith(f"unknown flag --{typed}. {meant}")


def test_other_names_alone_are_corrected():
    *_, rest = refusal("--train_file a.csv --lr=1e-5 --learning_rat_ 2 --epochs 3 --batch_size 4")
    assert rest.startswith("Corrected, without the others: ")  # one rate of two can hold
    assert "--learning_rate=1e-5 --num_train_epochs 3 --per_device_train_batch_size 4" in rest
    *_, rest = refusal("--train_file a.csv --epochs 3 --lerning_rate 1e-5")
    assert rest == (
        "Corrected: ampft train --train_file a.csv --num_train_epochs 3 --learning_rate 1e-5"
    )


def test_a_corrected_command_can_be_run():
    typed = "--train_file a.csv --torch_dtype bfloat16 --bf16 --use_lora --lora_target_modules q,v"
    lines = refusal(typed)
    assert lines[-1] == (
        "--lora_target_modules has no effect without --lora_r. Add it, or remove the flag."
    )
    *_, rest = refusal("--train_file a.csv --torch_dtype bfloat16 --bf16 --use_lora")
    assert rest.endswith("ampft train --train_file a.csv --mixed_precision bf16")


def test_flags_that_do_not_go_together_are_all_named():
    lines = refusal("--train_file a.csv --dataset_name b --lora_alpha 2 --load_in_4bit")
    assert len(lines) == 3
    assert lines[0].startswith("--lora_alpha has no effect without --lora_r")
    assert lines[2].startswith("--train_file a.csv and --dataset_name b: a run uses a single")


@pytest.mark.parametrize(
    "typed",
    ["--reduce_labels --output_dir o --wandb --push_to_hub", "--image_column_name img",
     "--label_column_name stars", "--max_length_seconds 1"],
)  # fmt: skip
def test_flags_about_data_do_not_train_on_the_built_in_ones(typed):
    (line,) = refusal(typed)
    assert line.endswith("the data are missing. Give them with --dataset_name or --train_file.")


def test_a_folder_of_classes_is_a_data_set(tmp_path):
    (tmp_path / "cat").mkdir()
    assert words(f"--data_dir {tmp_path} --fp16") == [
        "--dataset_name", str(tmp_path), "--mixed_precision", "fp16",
    ]  # fmt: skip


def test_messages_in_python_have_no_command_line():
    import ampft

    with pytest.raises(InputError) as error:
        ampft.finetune([("a", "x"), ("b", "y")], deepspeed="x.json", fp16=True, epochs=2)
    lines = str(error.value).splitlines()
    assert lines[0].startswith("deepspeed=x.json: DeepSpeed is not supported")
    assert "`accelerate launch --config_file accelerate_configs/fsdp2.yaml`" in lines[0]
    assert lines[1:] == [
        "unknown flag epochs. Use num_train_epochs. `ampft train --help` lists all settings."
    ]
    with pytest.raises(InputError, match=r"^deepspeed=x\.json: DeepSpeed is not supported"):
        ampft.finetune([("a", "x"), ("b", "y")], deepspeed="x.json")


@pytest.mark.parametrize("typed", ["--data_dir x --fsdp full_shard", "--task_name text --bf16"])
def test_no_command_without_its_data_is_advised(typed):
    with pytest.raises(InputError) as error:
        parse(typed)
    assert "Without" not in str(error.value)


def test_a_folder_of_words_with_tags_of_older_scripts(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text("Rita B-PER\n")
    arguments = parse(f"--data_dir {tmp_path} --labels {tmp_path}/labels.txt")
    assert (arguments.task, arguments.test_file) == ("tokens", None)
    assert arguments.train_file == f"{tmp_path}/train.txt"
    assert arguments.validation_file == f"{tmp_path}/dev.txt"


def test_a_file_as_the_only_argument(tmp_path):
    path = tmp_path / "arguments.json"
    values = {
        "train_file": "a.csv", "fp16": True, "num_train_epochs": 3.0, "eval_strategy": "epoch",
        "report_to": ["tensorboard"], "deepspeed": None, "do_train": True, "seed": 7,
    }  # fmt: skip
    path.write_text(json.dumps(values), encoding="utf-8")
    arguments = parse_classify_arguments([str(path)])
    assert (arguments.mixed_precision, arguments.seed) == ("fp16", 7)
    assert arguments.with_tracking
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match="must map flag names to values"):
        parse_classify_arguments([str(path)])


def test_a_file_of_settings_is_converted_by_value(tmp_path, capsys):
    path = tmp_path / "settings.yaml"
    path.write_text(
        "train_file: a.csv\nfp16: true\nnum_train_epochs: 2.0\nevaluation_strategy: steps\n"
        "eval_steps: 20\nreport_to: [tensorboard]\nwarmup_steps: 0.1\ndo_train: true\n"
        "optim: adamw_torch_fused\nmetric_for_best_model: eval_loss\nhub_token: null\nseed: 7\n"
    )
    arguments = parse(f"--config {path}")
    assert (arguments.mixed_precision, arguments.num_train_epochs) == ("fp16", 2)
    assert (arguments.eval_steps, arguments.warmup_ratio, arguments.seed) == (20, 0.1, 7)
    assert (arguments.optim, arguments.metric_for_best_model) == ("adamw_torch", "log_loss")
    assert arguments.with_tracking
    assert "--warmup_steps=0.1 -> --warmup_ratio 0.1" in " ".join(capsys.readouterr().out.split())
    assert parse(f"--config {path} --bf16").mixed_precision == "bf16"  # the command line wins
    path.write_text("fp16: true\nbf16: true\ndeepspeed: x.json\nfsdp: ''\n")
    with pytest.raises(InputError) as error:
        parse(f"--config {path}")
    lines = str(error.value).splitlines()
    assert len(lines) == 2  # a contradiction is said once
    assert all(line.startswith(f"--config {path}: --") for line in lines)


@pytest.mark.slow
def test_training_arguments_in_python():
    from transformers import TrainingArguments

    given = TrainingArguments(
        output_dir="runs/x", bf16=True, num_train_epochs=2, eval_strategy="epoch", use_cpu=True,
        report_to=["tensorboard"], metric_for_best_model="eval_loss", load_best_model_at_end=True,
        save_strategy="epoch", save_total_limit=2,
    )  # fmt: skip
    arguments = parse_classify_arguments(
        command_line_words({"train_file": "a.csv", **settings_of(given)})
    )
    changed = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(arguments)
        if getattr(arguments, field.name) != field.default
    }
    assert changed == {
        "train_file": "a.csv", "output_dir": "runs/x", "mixed_precision": "bf16",
        "num_train_epochs": 2, "use_cpu": True, "with_tracking": True, "learning_rate": 5e-5,
        "metric_for_best_model": "log_loss", "checkpointing_steps": "epoch",
        "checkpoint_total_limit": 2,
    }  # fmt: skip
    with pytest.raises(InputError, match="must be a TrainingArguments"):
        settings_of({"bf16": True})


def test_a_direction_that_training_arguments_fill_in_is_not_the_users():
    from transformers import TrainingArguments

    given = TrainingArguments(output_dir="o", metric_for_best_model="mse", use_cpu=True)
    assert given.greater_is_better
    assert "greater_is_better" not in settings_of(given)
    given = TrainingArguments(
        output_dir="o", metric_for_best_model="mse", greater_is_better=False, use_cpu=True
    )
    assert settings_of(given)["greater_is_better"] is False


@pytest.mark.slow
def test_values_that_equal_defaults_of_training_arguments_are_kept():
    from transformers import TrainingArguments

    given = TrainingArguments(output_dir="o", num_train_epochs=3, learning_rate=5e-5, use_cpu=True)
    found = settings_of(given)
    assert (found["num_train_epochs"], found["learning_rate"]) == (3, 5e-5)
    arguments = parse_classify_arguments(command_line_words({"train_file": "a.csv", **found}))
    assert (arguments.num_train_epochs, arguments.learning_rate) == (3, 5e-5)
    adafactor = TrainingArguments(output_dir="o", optim="adafactor", use_cpu=True)
    assert "learning_rate" not in settings_of(adafactor)


def test_unknown_flags_are_named_with_the_others_and_left_out_of_the_corrected_command(tmp_path):
    typed = "--train_file a.csv --deepspeed ds.json --lr 2e-5 --no_such --fp16 --output_dir o"
    with pytest.raises(InputError) as caught:
        parse(typed)
    *lines, rest = str(caught.value).splitlines()
    assert [line.partition(":")[0].partition(".")[0] for line in lines] == [
        "--deepspeed ds", "unknown flag --lr", "unknown flag --no_such",
    ]  # fmt: skip
    assert "--learning_rate" in lines[1]
    corrected = rest.removeprefix("Corrected, without the others: ").removeprefix("classify.py ")
    assert (
        corrected == "--train_file a.csv --learning_rate 2e-5 --mixed_precision fp16 --output_dir o"
    )
    parse(corrected)


def test_contradictions_of_all_kinds_are_in_one_message():
    lines = refusal(
        "--train_file a.csv --optim adafactor --adam_beta1 0.5 --adam_beta2 0.5 --threshold 0.3 "
        "--lora_alpha 3 --huber_delta 1 --resume_from_checkpoint latest --metric_for_best_model "
        "bleu --lr_scheduler_type constant --warmup_ratio 0.1 --checkpointing_steps often"
    )
    assert [line.split()[0].rstrip(":") for line in lines] == [
        "--checkpointing_steps", "--lora_alpha", "--huber_delta", "--threshold", "--adam_beta1",
        "--adam_beta2", "--warmup_ratio", "--resume_from_checkpoint", "--metric_for_best_model",
    ]  # fmt: skip


def test_an_unknown_flag_hides_no_contradiction():
    lines = refusal("--train_file a.csv --num_cycles 2 --checkpointing_steps best")
    assert [line.split()[0] for line in lines[:2]] == ["unknown", "--checkpointing_steps:"]
    first, second = refusal("--train_file a.csv --num_cycles 2 --huber_delta 1")
    assert "--num_cycles" in first
    assert "--huber_delta needs" in second
    assert len(refusal("--train_file a.csv --num_cycles 2")) == 1


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--train_file=~/x.csv", "--train_file ~/x.csv: ~ stands for the home folder"),
        ("--dataset_name '~/x'", "--dataset_name ~/x: ~ stands for the home folder"),
        ("--train_file https://u:pw@x.org/a.csv", "--train_file https://x.org/a.csv: this is the"),
        ("--train_file https://x.org/a.csv", "such as with `curl -LO https://x.org/a.csv`, and"),
        ("--train_file s3://x/a.csv", "only local files are read. Download it and pass the file."),
        (
            "--dataset_name https://huggingface.co/datasets/stanfordnlp/imdb",
            "Pass the name in it: --dataset_name stanfordnlp/imdb",
        ),
        (
            "--train_file a.csv --model_name_or_path https://huggingface.co/roberta-base/tree/main",
            "Pass the name in it: --model_name_or_path roberta-base\n",
        ),
        ("settings.yaml", "If it is a file of settings: --config settings.yaml"),
        ("--task_name waterbirds", "is --dataset_name waterbirds, and your own --train_file"),
        ("--task_name waterbirds --train_file a.csv", "--train_file names the data already"),
        ("--task_name tokens", "this is --task tokens here"),
    ],
)
def test_what_was_meant_is_answered(typed, message):
    assert message in "\n".join([*refusal(typed), ""])


@pytest.mark.parametrize(
    ("typed", "splits"),
    [
        ("--do_eval", "validation"),
        ("--do_predict", "test"),
        ("--do_predict True --do_eval True --do_train False", "validation,test"),
        ("--do_train --do_eval --do_predict", None),
        ("--do_eval False", None),
        ("", None),
    ],
)
def test_a_command_without_do_train_evaluates(typed, splits):
    given = parse(f"--model_name_or_path m --validation_file a.csv --train_file b.csv {typed}")
    assert given.evaluate_only == splits


def test_settings_of_a_training_have_no_effect_where_nothing_is_trained(capsys):
    given = parse(
        "--model_name_or_path m --test_file a.csv --do_predict --learning_rate 1 --lora_r 8 "
        "--save_strategy epoch --save_total_limit 2 --seed 3 --load_best_model_at_end"
    )
    default = ClassifyArguments()
    assert (given.learning_rate, given.lora_r, given.checkpointing_steps) == (None, None, None)
    assert (given.train_file, given.seed, given.optim) == ("a.csv", 3, default.optim)
    said = " ".join(capsys.readouterr().out.split())
    for flag in ("learning_rate", "lora_r", "checkpointing_steps", "checkpoint_total_limit"):
        assert f"--{flag}" in said.partition("unused")[2]
    assert "nothing is trained" in said
    assert "--load_best_model_at_end" not in said.partition("unused")[2]  # as by default


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--do_eval --train_file a.csv", "the model to evaluate is missing"),
        ("--do_eval --model_name_or_path m", "the data are missing"),
        (
            "--do_eval --model_name_or_path m --test_file a --resume_from_checkpoint latest "
            "--output_dir o",
            "no training to continue",
        ),
        ("--do_train --evaluate_only test --train_file a", "--evaluate_only is set too"),
        ("--do_train False", "nothing is left to do"),
    ],
)
def test_evaluations_that_cannot_be(typed, message):
    assert message in "\n".join(refusal(typed))


def test_wrong_values_and_contradictions_are_in_one_message():
    lines = refusal(
        "--train_file a.csv --fp16 True --bf16 True --max_time 3x --optim adafactor --adam_beta1 "
        "0.5 --threshold 0.3"
    )
    assert [line.split()[0].rstrip(":") for line in lines] == [
        "--bf16", "--max_time", "--threshold", "--adam_beta1",
    ]  # fmt: skip


def test_a_file_of_settings_is_reported_whole_with_the_command_line(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(
        "train_file: a.csv\ndeepspeed: x.json\nno_such: 3\nseed: -1\nepochs: 3\nfp16: true\n"
        "bf16: true\nlearning_rate: fast\nseed: -1\n"
    )
    lines = refusal(f"--config {path} --no_flag --fsdp full_shard")
    prefix = f"--config {path}: "
    assert [line.removeprefix(prefix).split(":")[0].split(".")[0] for line in lines] == [
        "--fsdp full_shard", "seed is set twice", "--deepspeed=x", "--bf16=True",
        "unknown setting 'no_such'", "--seed", "unknown setting 'epochs'",
        "learning_rate is 'fast'; it must be a number", "unknown flag --no_flag",
    ]  # fmt: skip
    assert sum(line.startswith(prefix) for line in lines) == 7
    # A command without the file would lose its other settings, so none is proposed.
    assert "Without" not in lines[-1]


@pytest.mark.parametrize("name", ["ks", "mrpc"])
def test_a_configuration_without_a_data_set_does_not_mean_the_built_in_one(name):
    (line,) = refusal(f"--dataset_config_name {name}")
    assert line == (
        f"--dataset_config_name {name}: the data are missing. Give them with --dataset_name or "
        "--train_file."
    )
    assert parse("--dataset_config_name full").dataset_name == "stdlib"


def test_a_token_is_not_printed(capsys):
    words("--train_file a.csv --hub_token=hf_secret --token=hf_secret --use_auth_token=hf_secret")
    printed = capsys.readouterr().out
    assert "--hub_token, --token, --use_auth_token" in printed
    assert "hf_secret" not in printed


@pytest.mark.parametrize(
    ("launcher", "variable"),
    [
        (["/x/bin/python3.11", "/x/bin/torchrun", "--nproc_per_node", "2", "-m", "ampft", "train"],
         "TORCHELASTIC_RUN_ID"),
        (["/x/bin/python", "/x/bin/accelerate", "launch", "--cpu", "recipes/classify.py"],
         "ACCELERATE_MIXED_PRECISION"),
        (["/x/bin/python", "-m", "torch.distributed.run", "-m", "ampft", "train"],
         "TORCHELASTIC_RUN_ID"),
    ],
)  # fmt: skip
def test_a_corrected_command_keeps_its_launcher(launcher, variable, monkeypatch):
    import psutil

    typed = ["--train_file", "a.csv", "--deepspeed", "d", "--fp16"]
    monkeypatch.setattr(
        psutil.Process, "parent",
        lambda self: type("Parent", (), {"cmdline": lambda self: [*launcher, *typed]})(),
    )  # fmt: skip
    *_, alone = refusal(" ".join(typed))
    assert alone.startswith("Without it: ampft train --train_file")
    monkeypatch.setenv(variable, "1")
    *_, corrected = refusal(" ".join(typed))
    shown = " ".join(launcher).replace("/x/bin/python /x/bin/", "").replace("/x/bin/", "")
    assert corrected == (
        f"Without it: {shown.removeprefix('python3.11 ')} --train_file a.csv --mixed_precision fp16"
    )


def test_a_corrected_command_of_another_program_has_no_launcher(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")  # as in a shell that a launcher started
    *_, corrected = refusal("--train_file a.csv --deepspeed d")
    assert corrected == "Without it: ampft train --train_file a.csv"


def test_a_corrected_command_has_only_what_its_command_accepts():
    from ampft.cli import find_command

    def refused(*settings: str) -> list[str]:
        words = ["--modes", "fp32,bf16", "--", "--train_file", "a.csv", *settings]
        with pytest.raises(InputError) as error:
            find_command("compare").parse(words, "ampft compare")
        return str(error.value).splitlines()

    problem, chosen = refused("--fp16", "--deepspeed", "x")
    assert problem.startswith("--deepspeed x: DeepSpeed is not supported")
    assert chosen.startswith("--mixed_precision fp16 after ` -- `: give the precisions before")
    _, corrected = refused("--deepspeed", "x")
    assert corrected == "Without it: ampft compare --modes fp32,bf16 -- --train_file a.csv"


def test_one_of_several_processes_says_how_flags_were_read(tmp_path, monkeypatch, capsys):
    path = tmp_path / "settings.yaml"
    path.write_text("bf16: true\n")
    command = f"--train_file a.csv --num_train_epochs 3.0 --config {path}"
    parse(command)
    assert capsys.readouterr().out.count("read as") == 2
    monkeypatch.setenv("RANK", "1")
    assert parse(command).mixed_precision == "bf16"
    assert capsys.readouterr().out == ""
