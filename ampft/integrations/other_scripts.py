"""What other training scripts call their flags, commands and tasks, and what the same is here."""

from __future__ import annotations

from dataclasses import fields

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.extension_points import OtherNames
from ampft.integrations.transformers_rows import ROWS

DEVICE = (
    "Remove the flag: a GPU is used if there is one. CUDA_VISIBLE_DEVICES chooses which, and"
    " accelerate launch --num_processes N uses several."
)
DEVICE_FLAGS = ("device", "devices", "gpu", "gpus", "n_gpu", "num_gpus", "cuda", "gpu_id")
# Flags here, and the names of the same in other scripts.
_SAME = {
    "model_name_or_path": "model model_name",
    "mixed_precision": "precision dtype torch_dtype",
    "resume_from_checkpoint": "resume checkpoint resume_from",
    "train_file": "data train file train_data",
    "dataset_name": "dataset",
    "output_dir": "output save_dir out out_dir",
    "per_device_train_batch_size": "batch train_batch_size batch_size train_batch "
    "per_device_batch_size",
    "label_column_name": "target label label_column label_column_names label_field",
    "text_column_names": "text text_column text_field",
    "num_train_epochs": "epoch epochs num_epochs n_epochs max_epochs",
    "per_device_eval_batch_size": "eval_batch_size",
    "max_grad_norm": "gradient_clipping grad_clip clip_grad_norm gradient_clip_val",
    "label_smoothing_factor": "label_smoothing",
    "report_to": "log_with",
    "learning_rate": "lr",
    "max_eval_samples": "max_val_samples",
    "max_predict_samples": "max_test_samples",
    "max_seq_length": "max_len max_tokens seq_len",
    "seed": "random_seed",
    "weight_decay": "wd",
    "optim": "optimizer",
    "lr_scheduler_type": "scheduler lr_schedule",
    "warmup_ratio": "warmup warmup_proportion",
    "gradient_accumulation_steps": "gradient_accumulation accumulate_grad_batches accum_steps "
    "accumulation_steps",
    "dataloader_num_workers": "workers num_workers",
    "early_stopping_patience": "patience early_stopping",
    "metric_for_best_model": "monitor eval_metric",
    "validation_file": "valid_file val_file dev_file eval_data",
    "lora_r": "lora lora_rank use_lora peft",
    "ema_decay": "ema",
    "class_weights": "class_weight",
    "image_size": "img_size",
    "model_revision": "revision",
    "freeze": "freeze_layers",
    "train_layers": "unfreeze",
    "task": "task_type",
    "focal_gamma": "focal_loss",
    "validation_fraction": "val_split validation_split val_size",
    "test_fraction": "test_size test_split",
}
RENAMED = {other: name for name, others in _SAME.items() for other in others.split()}
REPLACEMENTS = {
    "fp8": "Use --mixed_precision fp8.",
    **dict.fromkeys(
        ("amp", "use_amp", "half", "float16", "fp_16"), "Use --mixed_precision fp16 or bf16."
    ),
    **dict.fromkeys(("bfloat16", "bf_16"), "Use --mixed_precision bf16."),
    **dict.fromkeys(
        ("num_labels", "n_classes", "num_classes"),
        "Remove the flag: --label_column_name gives the classes.",
    ),
    "problem_type": "Use --task multi-label if a row has several labels; text is the default.",
    "dropout": "It is a setting of the model: change config.json in the folder of "
    "--model_name_or_path. Adapters have --lora_dropout.",
    "momentum": "For AdamW it is --adam_beta1.",
    "quantization": "For QLoRA: --load_in_4bit with --lora_r 8.",
    "compile": "Use accelerate launch --dynamo_backend inductor with --mixed_precision as before.",
    "swa": "Averaged weights are --ema_decay 0.999.",
    **dict.fromkeys(
        ("mixup", "cutmix"), "It is not supported. --label_smoothing_factor softens labels too."
    ),
    **dict.fromkeys(("logdir", "log_dir"), "Trackers write into --output_dir."),
    **dict.fromkeys(
        ("wandb_project", "wandb_name"),
        "Set WANDB_PROJECT or WANDB_NAME; --report_to wandb turns it on with --with_tracking.",
    ),
    **dict.fromkeys(
        ("freeze_backbone", "freeze_encoder"), "Use --train_layers 0, which trains only the head."
    ),
    "tensorboard": "Use --with_tracking --report_to tensorboard.",
    **dict.fromkeys(
        ("time_budget", "time_limit", "n_trials", "hp_search_backend"),
        "ampft search --time_budget 10min -- ... chooses learning rate and length within a time; "
        "--max_time ends one training.",
    ),
    "modes": "ampft compare --modes fp32,bf16 -- ... trains in several precisions and compares "
    "them; --mixed_precision is the precision of one training.",
    "seeds": "ampft compare --seeds 5 -- ... trains with several seeds and compares; --seed is "
    "the seed of one training.",
    **dict.fromkeys(
        ("arm", "margin", "placebo", "anyway", "budget", "jobs", "engine"),
        "Remove the flag: it is a setting of ampft compare.",
    ),
    "load_in_8bit": "Train without it; ampft compare RUN --inference fp32,int8 measures int8.",
    **dict.fromkeys(
        ("weighted_loss", "use_class_weights", "balanced"), "Use --class_weights balanced."
    ),
    **dict.fromkeys(DEVICE_FLAGS, DEVICE),
    **{other: f"Use --{name}." for other, name in RENAMED.items()},
}
# Names of commands, and of the same here.
COMMANDS = {
    **dict.fromkeys(("finetune", "fine-tune", "fintune", "fit", "run"), "train"),
    **dict.fromkeys(("classify", "infer", "inference", "test"), "predict"),
    **dict.fromkeys(("show", "evaluate", "eval"), "report"),
}
# Names of tasks, and of the same here.
TASK_NAMES = {
    **dict.fromkeys(("classification", "text-classification", "sentiment", "binary"), "text"),
    **dict.fromkeys(("multilabel", "multi_label"), "multi-label"),
    **dict.fromkeys(("sts", "stsb", "sts-b"), "regression"),
    **dict.fromkeys(("ordinal-regression", "ordinal_regression"), "ordinal"),
    **dict.fromkeys(("ner", "token-classification", "pos", "tagging"), "tokens"),
    **dict.fromkeys(("image-classification", "vision"), "images"),
    **dict.fromkeys(("audio-classification", "audio"), "sounds"),
    **dict.fromkeys(("segmentation", "semantic-segmentation", "image-segmentation"), "pixels"),
}
NAMES = {**TASK_NAMES, **COMMANDS}
# Advice on values that no program here has.
OTHER_CHOICES = {
    "int8": " Nothing trains in int8; ampft compare RUN --inference fp32,int8 lets a trained model"
    " predict in it."
}
NAMES_OF_OTHERS = OtherNames(
    advice=REPLACEMENTS,
    flags=RENAMED,
    of_every_command=DEVICE_FLAGS,
    settings={each.name for each in fields(ClassifyArguments)},
    transformers={name: row.text for name, row in ROWS.items()},
    names=NAMES,
    choices=OTHER_CHOICES,
)
