"""The documentation: its site builds, and its commands do what it says, on small data."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from media_files import image_folder, sound_table
from PIL import Image
from running import BIN, REPOSITORY, call_here, clean_environment, rows, succeeded, write_csv
from tiny_masks import IGNORED, write_folders
from tiny_words import write_sentences

from ampft.arguments import ClassifyArguments
from ampft.comparison.arm_settings import command_of_arms, parse_compare_arms_arguments
from ampft.comparison.compare_command import COMPARE
from ampft.comparison.settings import command_of_precisions, parse_compare_arguments
from ampft.data.sources.built_in import CLASSES
from ampft.precision.modes import MODES

PAGES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for path in (*REPOSITORY.glob("README*.md"), *(REPOSITORY / "docs").rglob("*.md"))
)
OURS = ("ampft", "python recipes/", "accelerate launch", "torchrun")
SMALL = {
    "max_train_samples": 60, "max_eval_samples": 12, "max_predict_samples": 12,
    "max_train_steps": 2, "cpu_threads": 1, "use_cpu": None,
}  # fmt: skip
AMPFT = BIN / "ampft"


def commands_of(page: str) -> list[str]:
    """Return the commands in the code blocks of a page, with continued lines joined."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    pieces = re.split(r"^ *```(.*)\n", text, flags=re.MULTILINE)  # text, language, block, "", ...
    blocks = [block for language, block in zip(pieces[1::4], pieces[2::4], strict=True)
              if language in ("", "bash")]  # fmt: skip
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    plain = (re.sub(r"^([A-Z_]+=\S+ +)+", "", line.strip()) for line in lines)
    return [shlex.join(shlex.split(line, comments=True)) for line in plain if is_ours(line)]


def is_ours(line: str) -> bool:
    return any(line.startswith(f"{start} " if start == "ampft" else start) for start in OURS)


COMMANDS = {command: page for page in reversed(PAGES) for command in commands_of(page)}


def starting_with(*starts: str) -> list[str]:
    return sorted(command for command in COMMANDS if command.startswith(starts))


def trainings() -> list[str]:
    return sorted(
        command
        for command in COMMANDS
        if command.startswith("ampft train")
        or ("recipes/classify.py" in command and not command.startswith("ampft"))
    )


RUN_IN_PROCESS = (
    "ampft env", "ampft errors", "ampft predict", "ampft report", "ampft yardstick", "ampft audit",
    "ampft checkpoint", "ampft doctor", "ampft ops", "ampft recipe",
)  # fmt: skip


# `test_predict.py` predicts images, `test_media_runs.py` folders and sounds, `test_pixel_run.py`
# masks, `test_words_run.py` words, `test_push.py` pushes, `test_resume_check.py` checks trainings,
# `test_judge.py` judges, `test_curve_command.py` draws curves, `test_search.py` searches,
# `test_estimate.py` estimates, `test_verify.py` exports and audits, `test_export_onnx.py` predicts
# with artifacts, and `test_serving.py` serves them.
TESTED_ELSEWHERE = (
    "ampft predict --model artifacts/",
    "python recipes/serving/",
    "ampft predict --model runs/digits",
    "ampft predict --model runs/photos",
    "ampft predict --model runs/clips",
    "ampft predict --model runs/camvid",
    "ampft predict --model runs/mine",
    "ampft judge",
    "ampft estimate",
    "ampft curve",
    "ampft search",
    "ampft export",
    "ampft audit artifacts/",
    "ampft accept --output_dir accepted",
    "ampft resume-check",
    "ampft push",
    "ampft predict --model runs/bf16-pairs",
    "ampft predict --model runs/ner",
)


def test_readme_is_read_in_a_minute():
    assert len((REPOSITORY / "README.md").read_text("utf-8").split()) <= 700


def test_commands_were_found():
    assert len(COMMANDS) >= 20
    assert {"README.md", "docs/tutorial.md", "docs/guide.md"} <= set(COMMANDS.values())
    known = {
        *trainings(),
        *starting_with(
            *RUN_IN_PROCESS,
            *TESTED_ELSEWHERE,
            "ampft compare",
            "python recipes/compare",
            "python recipes/plain_loop.py",
            "python recipes/by_feature/",
        ),
    }
    assert set(COMMANDS) == known, "a test is missing for these commands"


@pytest.fixture(scope="module")
def reader(tmp_path_factory, tiny_bert) -> Path:
    """The folder of a reader: the files that the commands name, and the runs that they read."""
    folder = tmp_path_factory.mktemp("reader")
    words = {word for command in COMMANDS for word in shlex.split(command)}
    for name in sorted(word for word in words if word.endswith(".csv") and "/" not in word):
        write_reviews(folder / name)
    numbered = list(enumerate(rows(150, 0)))
    for name, column, table in (
        ("ratings.csv", "score", [(text, len(text)) for _, (text, _) in numbered]),
        ("stars.csv", "stars", [(text, 1 + i % 5) for i, (text, _) in numbered]),
        ("tickets.csv", "mood,topic", [(row[0], "ab"[i % 2], "xyz"[i % 3]) for i, row in numbered]),
        ("people.csv", "label,age,country", [(*row, i, "FR") for i, row in numbered]),
    ):
        write_csv(folder / name, table, ("text", *column.split(",")))
    for seed, name in enumerate(sorted(word for word in words if word.endswith(".conll"))):
        write_sentences(folder / name, 40, seed=seed)
    image_folder(folder / "photos", 10)
    sound_table(folder / "clips", 10)
    write_camvid(folder)
    trained = folder / "runs" / "trained"
    train(["--train_file", "reviews.csv"], folder, tiny_bert, trained)
    for command in starting_with(*RUN_IN_PROCESS):
        for word in shlex.split(command):
            if word.startswith("runs/") and not (folder / word).exists():
                shutil.copytree(trained, folder / word)
    return folder


def write_camvid(folder: Path) -> None:
    """Write the folder and the class names that the pages on masks name."""
    names = re.findall(r"^\w+ \d+ \d+ \d+$", (REPOSITORY / "docs/pixels.md").read_text(), re.M)
    others = [f"class{value} {value} 0 9" for value in range(len(names), 12)]
    (folder / "camvid.txt").write_text("\n".join([*names, *others]) + "\n")
    for path in write_folders(folder / "camvid").glob("*annot/*.png"):
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.where(mask == IGNORED, 11, mask).astype(np.uint8)).save(path)


def write_reviews(path: Path) -> None:
    """Write texts in the columns that the guide names in its commands for files of that name."""
    table = rows(150, seed=0)
    if path.name in ("train.csv", "dev.csv", "test.csv"):
        offset = ("train.csv", "dev.csv", "test.csv").index(path.name)
        triples = [(text, "x", label) for text, label in rows(150, seed=offset)]
        write_csv(path, triples, ("question", "answer", "verdict"))
    elif path.name == "pairs.csv":
        write_csv(path, [(text, "x", label) for text, label in table], ("first", "second", "same"))
    else:
        write_csv(path, table, ("text", "label"))


def train(flags: list[str], folder: Path, model: Path, output_dir: Path | None = None) -> None:
    """Run the recipe with these flags, but with a tiny model and few steps."""
    settings = {**SMALL, "model_name_or_path": "erfnet" if "pixels" in flags else model}
    if "--do_eval" in flags and "--do_train" not in flags:  # evaluates what is trained already
        settings["model_name_or_path"] = folder / "runs" / "trained"
    if "--label_corrections" in flags:
        # Beside the runs, because other commands audit these.
        table = folder / "corrections.csv"
        flags[flags.index("--label_corrections") + 1] = str(table)
        (text, label), (_, other) = rows(150, seed=0)[:2]
        write_csv(table, [(label, other, text)], ("label", "corrected", "text"))
    if not {"photos", "clips/sounds.csv"}.isdisjoint(flags):
        del settings["model_name_or_path"]  # images and sounds have small default models
    settings |= {"output_dir": output_dir} if output_dir else {}
    for name, value in settings.items():
        if f"--{name}" in flags and value is not None:
            flags[flags.index(f"--{name}") + 1] = str(value)
        elif f"--{name}" not in flags:
            flags += [f"--{name}"] if value is None else [f"--{name}", str(value)]
    succeeded(call_here(REPOSITORY / "recipes" / "classify.py", *flags, cwd=folder))


@pytest.mark.slow
@pytest.mark.parametrize("command", trainings())
def test_a_training_command_trains(command, reader, tiny_bert, tmp_path):
    words = shlex.split(command)
    start = 2 if words[0] == "ampft" else 1 + words.index("recipes/classify.py")
    flags = [word for word in words[start:] if word != "..."]
    train(flags, reader, tiny_bert, tmp_path / "run")
    assert (tmp_path / "run" / "report.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", sorted({*starting_with(*RUN_IN_PROCESS)} - {*starting_with(*TESTED_ELSEWHERE)})
)
def test_a_command_of_ampft_runs(command, reader, tiny_bert):
    program, _, _ = command.partition(" '>' ")  # without the file that a shell writes
    words = shlex.split(program)[1:]
    if words[0] == "yardstick":
        words += [] if "--" in words else ["--"]
        words += ["--model_name_or_path", str(tiny_bert), "--max_train_samples", "60"]
        words[1:1] = ["--batches", "2"]
    if words[0] == "ops" and "--" in words and torch.__version__.startswith("2.11"):
        pytest.skip("torch 2.11 does not record the dtypes of operations")
    if words[0] in ("doctor", "ops") and "--" in words:
        words += ["--model_name_or_path", str(tiny_bert), "--cpu_threads", "1", "--use_cpu"]
    assert succeeded(call_here(AMPFT, *words, cwd=reader)).stdout


@pytest.mark.parametrize("command", starting_with("ampft compare", "python recipes/compare"))
def test_a_comparison_is_understood(command, reader, monkeypatch):
    """Whole comparisons are run by the tests of the recipes and of the analysis."""
    monkeypatch.chdir(reader)
    words = shlex.split(command)[2:]
    if command.startswith("python"):
        parse = parse_compare_arms_arguments if "--arm" in words else parse_compare_arguments
        assert len(parse(words).design.seed_counts) >= 1
        return
    line = COMPARE.parse(words, "ampft compare")
    if line.flags.arm:
        assert len(command_of_arms(line).design.arm_settings) >= 2
    elif not (line.flags.runs or line.flags.predictions):
        assert len(command_of_precisions(line).design.seed_counts) >= 1


@pytest.mark.parametrize(
    "command", starting_with("python recipes/by_feature/", "python recipes/plain_loop.py")
)
def test_a_loop_exists(command):
    """`test_by_feature.py` and `test_plain_loop.py` run the loops."""
    script, mode = shlex.split(command)[1:]
    assert (REPOSITORY / script).exists()
    assert mode in MODES


@pytest.mark.slow
def test_the_data_of_the_tutorial_are_written(tmp_path):
    succeeded(call_here(REPOSITORY / "docs" / "make_csv.py", cwd=tmp_path))
    with (tmp_path / "docstrings.csv").open(encoding="utf-8", newline="") as file:
        header, *table = csv.reader(file)
    assert header == ["text", "label"]
    assert len(table) > 2000
    assert {label for _, label in table} == set(CLASSES)


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """Strict: a broken link or a page that is missing in the navigation is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=REPOSITORY, env=clean_environment(NO_MKDOCS_2_WARNING="1"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    flags = (tmp_path / "site" / "reference" / "flags.html").read_text(encoding="utf-8")
    assert all(f"--{field.name}<" in flags for field in fields(ClassifyArguments))
    python = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert python.count('class="doc doc-heading"') >= 40
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")]
    assert not any(re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?:', page)
                   for page in pages)  # fmt: skip
    search = (tmp_path / "site" / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "loss_scale" in search or "loss scale" in search
    assert "javascripts/iframe-worker.js" in pages[0]
