"""What a training made, prepared once for all walks: models, finished runs, artifacts, ledgers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
import transformers
from global_state import fresh_global_state
from media_files import image_folder
from running import write_csv
from tiny_masks import save_tiny_segformer, write_folders
from tiny_media import save_model
from tiny_text import LABELS, save_tiny_bert, tiny_texts
from tiny_words import write_sentences

import ampft
from ampft import cli
from ampft.comparison.execution import launch, planning
from ampft.comparison.execution.launch import EndedProgram, LocalLauncher, Program, locked_log
from ampft.comparison.execution.session import ComparisonSession
from ampft.errors import InputError
from ampft.files import hashed_text

OF_TEXT = "--train_file train.csv --validation_file v.csv --test_file u.csv"
SHORT = "--max_train_steps 4 --per_device_train_batch_size 8 --use_cpu --cpu_threads 1"
TRAIN = f"train --model_name_or_path model {OF_TEXT} {SHORT} --learning_rate 1e-3"
WITHOUT = "WITHOUT"  # before a command: a package that it does not find
OF_PLANS = "-- " + TRAIN.removeprefix("train ")
UNTIL = "UNTIL"
VARIABLES = re.compile(r"([A-Z][A-Z_]+)=(\S*)")


def train(*flags: str, output_dir: str = "o") -> str:
    """Return the command of a short training on texts."""
    return " ".join([TRAIN, *flags, "--output_dir", output_dir])


def write_texts(name: str, count: int, seed: int) -> Callable[[Path], object]:
    """Return a function that writes a table of texts, whose labels follow from their words."""

    def write(folder: Path) -> object:
        table = tiny_texts(count, seed=seed)
        rows = [
            (f"{text} w{label} w{label} w{label}", LABELS[label])
            for text, label in zip(table["text"], table["label"], strict=True)
        ]
        return write_csv(folder / name, rows, ("text", "label"))

    return write


def write_pairs(folder: Path) -> None:
    """Write a table with pairs, a number, several labels, groups, weights and a feature."""
    table = tiny_texts(36, seed=5)
    pd.DataFrame(
        {
            "a": table["text"], "b": table["text"][::-1],
            "score": [label / 2 + i % 3 for i, label in enumerate(table["label"])],
            "p": [i % 2 for i in range(36)], "q": [i // 2 % 2 for i in range(36)],
            "user": [i // 3 for i in range(36)], "age": range(36),
            "label": [LABELS[i] for i in table["label"]],
        }
    ).to_csv(folder / "pairs.csv", index=False)  # fmt: skip


def save_encoder(folder: Path) -> None:
    """Save a tiny BERT without a head."""
    save_tiny_bert(folder)
    transformers.BertModel.from_pretrained(folder).save_pretrained(folder)


def save_small(folder: Path) -> None:
    """Save a DistilBERT, whose tokenizer is that of the tiny BERT."""
    save_tiny_bert(folder)
    config = transformers.DistilBertConfig(
        vocab_size=45, dim=16, n_layers=1, n_heads=2, hidden_dim=32, num_labels=3
    )
    transformers.DistilBertForSequenceClassification(config).save_pretrained(folder)


def save_wide(folder: Path) -> None:
    """Save a BERT with wider layers than those of the tiny one."""
    save_tiny_bert(folder)
    config = transformers.BertConfig.from_pretrained(folder, intermediate_size=96)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


def save_xlnet(folder: Path) -> None:
    """Save a tiny XLNet, which does not run without padding."""
    save_tiny_bert(folder)
    config = transformers.XLNetConfig(
        vocab_size=45, d_model=16, n_layer=1, n_head=2, d_inner=32, num_labels=3
    )
    transformers.XLNetForSequenceClassification(config).save_pretrained(folder)


def save_broken(folder: Path) -> None:
    """Save a tiny BERT with a weight that is not finite."""
    save_tiny_bert(folder)
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    model.classifier.weight.data[0, 0] = float("nan")
    model.save_pretrained(folder)


GPT2 = transformers.GPT2Config(
    vocab_size=45, n_embd=16, n_layer=1, n_head=2, num_labels=3, pad_token_id=0, n_positions=64
)
T5 = transformers.T5Config(
    vocab_size=45, d_model=16, d_kv=8, d_ff=16, num_heads=2, num_layers=1, num_labels=3,
    decoder_start_token_id=0, pad_token_id=0, eos_token_id=3,
)  # fmt: skip


def save_other(folder: Path, config: transformers.PretrainedConfig) -> None:
    """Save a model of another family, whose tokenizer is that of the tiny BERT."""
    save_tiny_bert(folder)
    auto = transformers.AutoModelForSequenceClassification
    auto.from_config(config).save_pretrained(folder)


def save_canine(folder: Path) -> None:
    """Save a tiny CANINE, whose tokenizer is written in Python."""
    transformers.CanineTokenizer().save_pretrained(folder)
    config = transformers.CanineConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        num_labels=3, num_hash_buckets=64, local_transformer_stride=16, max_position_embeddings=128,
    )  # fmt: skip
    transformers.CanineForSequenceClassification(config).save_pretrained(folder)


def sound_folder(folder: Path) -> None:
    """Write tones of two classes, one folder each."""
    for label, name in enumerate(("low", "high")):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            time = np.arange(8000) / 16000
            wave = 0.5 * np.sin(2 * np.pi * (200 + 600 * label + 9 * number) * time)
            soundfile.write(folder / name / f"{number}.wav", wave, 16000)


def write_workbook(path: Path) -> None:
    """Write the training texts as a workbook."""
    pd.read_csv(path.with_name("train.csv")).to_excel(path, index=False)


def train_in_memory(folder: Path) -> None:
    """Train on the tables as data frames."""
    frames = [pd.read_csv(folder / name) for name in ("train.csv", "v.csv", "u.csv")]
    settings = {"max_train_steps": 2, "use_cpu": True, "cpu_threads": 1}
    with fresh_global_state(), contextlib.redirect_stdout(io.StringIO()):
        ampft.finetune(
            frames[0],
            validation=frames[1],
            test=frames[2],
            model_name_or_path=str(folder / "model"),
            output_dir=str(folder / "memory-run"),
            **settings,
        )


# What each item is made by: a function of the folder, or a command; and the items that it needs.
ITEMS: dict[str, Callable[[Path], object] | str] = {
    "model": lambda folder: save_tiny_bert(folder / "model"),
    "train.csv": write_texts("train.csv", 24, 0),
    "v.csv": write_texts("v.csv", 12, 1),
    "u.csv": write_texts("u.csv", 12, 2),
    "pairs.csv": write_pairs,
    "words.conll": lambda folder: write_sentences(folder / "words.conll", 20),
    "base": lambda folder: save_encoder(folder / "base"),
    "xlnet": lambda folder: save_xlnet(folder / "xlnet"),
    "broken": lambda folder: save_broken(folder / "broken"),
    "small": lambda folder: save_small(folder / "small"),
    "wide": lambda folder: save_wide(folder / "wide"),
    "gpt2": lambda folder: save_other(folder / "gpt2", GPT2),
    "t5": lambda folder: save_other(folder / "t5", T5),
    "canine": lambda folder: save_canine(folder / "canine"),
    "resnet": lambda folder: save_model(folder / "resnet", "resnet"),
    "ast": lambda folder: save_model(folder / "ast", "ast", labels=2),
    "vit": lambda folder: save_model(folder / "vit", "vit"),
    "segformer": lambda folder: save_tiny_segformer(folder / "segformer"),
    "pictures": lambda folder: image_folder(folder / "pictures"),
    "sounds": lambda folder: sound_folder(folder / "sounds"),
    "t.xlsx": lambda folder: write_workbook(folder / "t.xlsx"),
    "masks": lambda folder: write_folders(folder / "masks", train=6, val=3),
    "run": train("--checkpointing_steps 2", output_dir="run"),
    "inspected": train("--inspect_data", output_dir="inspected"),
    "lora-run": train("--lora_r 2 --no-merge_lora", output_dir="lora-run"),
    "merged-run": train("--lora_r 2", output_dir="merged-run"),
    "pair-run": TRAIN.replace(OF_TEXT, "--train_file pairs.csv --validation_fraction 0")
    + " --text_column_names a,b --output_dir pair-run",
    "feature-run": TRAIN.replace(OF_TEXT, "--train_file pairs.csv --validation_fraction 0")
    + " --text_column_names a --feature_columns age --output_dir feature-run",
    "word-run": TRAIN.replace(OF_TEXT, "--train_file words.conll --validation_fraction 0")
    + " --output_dir word-run",
    "word-run-2": TRAIN.replace(OF_TEXT, "--train_file words.conll --validation_fraction 0")
    + " --weight_decay 0.1 --output_dir word-run-2",
    "small-run": train("--seed 9", output_dir="small-run").replace("path model", "path small"),
    "wide-run": train("--seed 9", output_dir="wide-run").replace("path model", "path wide"),
    **{
        f"valid-{seed}": train(f"--seed {seed}", output_dir=f"valid-{seed}").replace(
            " --test_file u.csv", " --test_fraction 0"
        )
        for seed in (1, 2, 3)
    },
    **{
        f"leak-{seed}": train(f"--seed {seed}", output_dir=f"leak-{seed}").replace(
            "train.csv", "train.csv,u.csv"
        )
        for seed in (1, 2, 3)
    },
    "torch-model": "export run --format torch --no_measure --output_dir torch-model",
    "memory-run": train_in_memory,
    "mask-run": "train --dataset_name masks --model_name_or_path segformer --max_train_steps 2"
    " --use_cpu --cpu_threads 1 --output_dir mask-run",
    "number-run": TRAIN.replace(OF_TEXT, "--train_file pairs.csv --validation_fraction 0")
    + " --text_column_names a --label_column_name score --task regression --output_dir number-run",
    "picture-run": "train --dataset_name pictures --model_name_or_path vit --validation_fraction 0"
    f" {SHORT} --output_dir picture-run",
    **{
        f"{mode}-{seed}": train(
            f"--mixed_precision {mode} --seed {seed}", output_dir=f"{mode}-{seed}"
        )
        for mode in ("fp32", "bf16")
        for seed in (1, 2, 3)
    },
    "planned": f"compare --modes fp32,bf16 --seeds 3 --anyway --output_dir planned {OF_PLANS}",
    "ledger": "judge ledger --best fp32-1 fp32-2 fp32-3",
}  # fmt: skip


MADE_OF_TABLES = {"t.xlsx": ("train.csv",), "memory-run": ("train.csv", "v.csv", "u.csv", "model")}


def items_in(words: str) -> list[str]:
    """Return the items that a text mentions."""
    parts = {*re.findall(r"[\w.-]+", words)}
    return [name for name in ITEMS if name in parts]


class Prepared:
    """Items, each made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: set[str] = set()

    def make(self, name: str) -> None:
        if name in self.made:
            return
        item = ITEMS[name]
        if callable(item):
            for table in MADE_OF_TABLES.get(name, ()):
                self.make(table)
            item(self.folder)
        else:
            for each in items_in(item):
                if each != name:
                    self.make(each)
            with contextlib.chdir(self.folder):
                answer = command(item)
            assert not isinstance(answer, str), f"{item}: {answer}"
        self.made.add(name)

    def copy(self, words: str, folder: Path, besides: Collection[str] = ()) -> None:
        """Copy into a folder what a text mentions and is not there, with what it was made of."""
        wanted = items_in(words)
        for name in wanted:
            item = ITEMS[name]
            made_of = items_in(item) if isinstance(item, str) else []
            wanted += [each for each in made_of if each not in wanted]
        for name in wanted:
            if name not in besides and not (folder / name).exists():
                self.put(name, folder / name)

    def put(self, name: str, path: Path) -> None:
        """Copy an item, or a part of one, to a path, in the place of what is there."""
        self.make(name.partition("/")[0])
        source = self.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, path)


def command(words: str) -> Any:
    """Run command lines joined by `;` in this process; return the error, or what was printed."""
    out, err = io.StringIO(), io.StringIO()
    for line in words.split(" ; "):
        refused, said = run_here(line, out, err)
        if refused:
            return said
    return [out.getvalue()]


def started_here(program: Program) -> EndedProgram:
    """Run a program of a comparison in this process: a training, or a module with arguments."""
    module, *argv = program.argv[1:]
    with (
        locked_log(program.log),
        program.log.open("a", encoding="utf-8") as log,
        fresh_global_state(),
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", [module, *argv])
        with contextlib.suppress(SystemExit):
            runpy.run_module(module, run_name="__main__", alter_sys=False)
    return EndedProgram(1.0)


@contextlib.contextmanager
def trainings_here() -> Iterator[None]:
    """Let comparisons train in this process, one run after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_start_in", lambda *_: started_here)
        patch.setattr(LocalLauncher, "run", lambda _, program, watch: started_here(program))
        patch.setattr(launch, "ThreadPoolExecutor", _Here)
        yield


class _Here:
    """Executes what is submitted at once."""

    def __init__(self, workers: int) -> None:
        pass

    def submit(self, run: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(run(*arguments))
        return done

    def shutdown(self) -> None:
        pass


def _stop(*_: object) -> None:
    raise SystemExit(0)


def run_here(line: str, out: io.StringIO, err: io.StringIO) -> tuple[bool, str]:
    """Return whether a command is refused, and with what; variables may precede it."""
    before = dict(VARIABLES.findall(line.partition(" --")[0]))
    argv = shlex.split(VARIABLES.sub("", line, count=len(before)))
    with (
        pytest.MonkeyPatch.context() as patch,
        trainings_here(),
        fresh_global_state(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in before.items():
            if name == WITHOUT:  # a package that is not installed
                blocked = {name for name in sys.modules if name.startswith(f"{value}.")}
                for module in blocked | {value}:
                    patch.setitem(sys.modules, module, None)
            elif name == UNTIL:  # such as a plan: nothing is trained
                patch.setattr(ComparisonSession, "train", _stop)
            else:
                patch.setenv(name, value)
        try:
            code = cli.main(argv)
        except SystemExit as ended:
            code = ended.code
    errors = [each for each in err.getvalue().splitlines() if each.startswith("error: ")]
    # A verdict, such as that of `ampft judge`, has an exit code of its own and is no refusal.
    refused = bool(errors) or code in (1, 2)
    return refused, errors[-1].removeprefix("error: ") if errors else err.getvalue()


def python(code: str) -> Any:
    """Run code of Python, with what own loops import; return the error, or that it ran."""
    names = {"ampft": ampft, "torch": torch, "np": np, "pd": pd, "transformers": transformers,
             "Path": Path, "os": os, "json": json}  # fmt: skip
    silence = io.StringIO()
    with (
        fresh_global_state(),
        contextlib.redirect_stdout(silence),
        contextlib.redirect_stderr(silence),
    ):
        try:
            exec(compile(code, "walk", "exec"), names)
        except InputError as error:
            return str(error)
        except TypeError as error:  # as Python refuses arguments
            return f"{type(error).__name__}: {error}"
    return ["it ran"]


Change = Callable[[Path, Prepared], object]
"""A change of the file at a path."""


def edited(old: str, new: str) -> Change:
    """Return a function that replaces a text in a file."""

    def edit(path: Path, prepared: Prepared) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return edit


def copied(name: str) -> Change:
    """Return a function that copies an item, or a part of one, to a path."""
    return lambda path, prepared: prepared.put(name, path)


def recorded(**values: object) -> Change:
    """Return a function that sets entries of a file that states its own hash."""

    def change(path: Path, prepared: Prepared) -> None:
        entries = json.loads(path.read_text()) | values
        entries.pop("sha256")
        path.write_text(hashed_text(entries))

    return change


def with_arguments(**values: object) -> Change:
    """Return a function that changes arguments in the record of a run."""

    def change(path: Path, prepared: Prepared) -> None:
        arguments = json.loads(path.read_text())["arguments"] | values
        recorded(arguments=arguments)(path, prepared)

    return change
