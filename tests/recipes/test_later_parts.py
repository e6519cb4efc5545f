"""A failure after the training costs neither the model nor other parts; a repeat completes it."""

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from media_files import image_folder, sound_table
from planted_run import plant
from running import BIN, CLASSIFY, call, call_here, rows, succeeded, write_csv
from safetensors.torch import load_file
from tiny_media import save_model
from tiny_words import write_sentences

from ampft.errors import InputError
from ampft.exit_codes import EXIT_CODES, PartsFailed
from ampft.runs.finished import FinishedRun
from ampft.runs.later_parts import PARTS

pytestmark = pytest.mark.slow

# What fails in each part: a function of a module, or a method of a class in it.
PLANTED = {
    "evaluation": "ampft.runs.run:predict",
    "trackers": "ampft.features.trackers:TrackerReporting.end",
    "pictures": "ampft.tasks.task:Task.save_pictures",
    "speed": "ampft.runs.run:doubled_batch_timings",
    "simple methods": "ampft.runs.run:compared_methods",
    "predictions": "ampft.runs.run:write_predictions",
    "serving back": "ampft.integrations.serving_back:serve_back",
    "report": "ampft.runs.run:save_report",
    "model card": "ampft.runs.run:model_card",
}
LATER = {"evaluation": {*PARTS} - {"evaluation"}, "predictions": {"serving back"}}
KEPT = ("report.txt", "report.json", "predictions.parquet", "decision.json")


@pytest.fixture(scope="module")
def flags(tmp_path_factory, tiny_bert) -> list[object]:
    folder = tmp_path_factory.mktemp("data")
    files = {
        name: write_csv(folder / f"{name}.csv", rows(size, seed), ("text", "label"))
        for seed, (name, size) in enumerate({"train": 24, "validation": 12, "test": 12}.items())
    }
    named = [word for name, path in files.items() for word in (f"--{name}_file", path)]
    sizes = ["--num_train_epochs", "2", "--per_device_train_batch_size", "8"]
    return ["--model_name_or_path", tiny_bert, *named, *sizes, "--mixed_precision", "fp32"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, flags) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    succeeded(call_here(CLASSIFY, *flags, "--output_dir", folder))
    return folder


def record_of(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_bytes())


def weights(folder: Path) -> dict[str, bytes]:
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in load_file(folder / "model.safetensors").items()
    }


@pytest.mark.parametrize("part", PLANTED)
def test_a_part_that_fails_costs_nothing_and_is_completed(
    part, flags, undisturbed, tmp_path, monkeypatch
):
    command = [*flags, "--output_dir", tmp_path / "run"]
    with monkeypatch.context() as patch:
        plant(patch, PLANTED[part], ValueError("planted"))
        done = call_here(CLASSIFY, *command)
    assert done.returncode == EXIT_CODES[PartsFailed] == 7, done.stdout + done.stderr
    assert f"{part} (ValueError: planted, planted_run.py:" in done.stderr
    assert "Traceback" not in done.stderr
    record = record_of(tmp_path / "run")
    assert record["status"] == "trained"
    assert record["parts"][part].startswith("failed: ValueError: planted")
    pending = {name for name, status in record["parts"].items() if status == "pending"}
    assert pending == LATER.get(part, set())
    assert [name for name, status in record["parts"].items() if "failed" in status] == [part]
    assert weights(tmp_path / "run") == weights(undisturbed)
    assert (tmp_path / "run" / "tokenizer.json").is_file()
    with pytest.raises(InputError, match="what follows its training is incomplete"):
        FinishedRun(tmp_path / "run")

    steps = (tmp_path / "run" / "history.jsonl").read_bytes()
    again = succeeded(call_here(CLASSIFY, *command))
    assert "the training has ended, and only what follows is done now" in again.stdout
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == steps
    assert record_of(tmp_path / "run")["status"] == "finished"
    assert set(record_of(tmp_path / "run")["parts"].values()) <= {"done", "not wanted"}
    assert weights(tmp_path / "run") == weights(undisturbed)
    for name in KEPT:
        assert (tmp_path / "run" / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert not (tmp_path / "run" / "checkpoints").exists()
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {path.name for path in undisturbed.iterdir()}


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere")


@pytest.mark.parametrize(
    ("part", "fault", "code", "reason"),
    [
        ("evaluation", KeyboardInterrupt(), 130, "SIGINT"),
        ("simple methods", SystemExit(143), 143, "SIGTERM"),
        ("speed", full_disk(), 7, "No space left on device: '/somewhere'"),
        ("report", full_disk(), 7, "No space left on device: '/somewhere'"),
        ("serving back", KeyboardInterrupt(), 130, "SIGINT"),
        ("model card", SystemExit(143), 143, "SIGTERM"),
    ],
)
def test_the_report_has_the_command_that_completes_an_interrupted_run(
    part, fault, code, reason, flags, undisturbed, tmp_path, monkeypatch
):
    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        plant(patch, PLANTED[part], fault)
        done = call_here(BIN / "ampft", "train", *flags, "--output_dir", folder)
    assert done.returncode == code, done.stdout + done.stderr
    assert f"its model is saved; failed afterwards: {part} ({reason})" in done.stderr
    assert "Repeat the same command: it does what is missing" in done.stderr
    failed = {n: s for n, s in record_of(folder)["parts"].items() if s.startswith("failed")}
    assert failed == {part: f"failed: {reason}"}
    assert weights(folder) == weights(undisturbed)

    report = succeeded(call_here(BIN / "ampft", "report", folder)).stdout.splitlines()
    name, _, command = report[-1].partition("   ")
    assert name == "complete"
    program, *words = shlex.split(command)
    assert program == "ampft"
    succeeded(call_here(BIN / "ampft", *words))
    assert record_of(folder)["status"] == "finished"
    assert weights(folder) == weights(undisturbed)
    for each in KEPT:
        assert (folder / each).read_bytes() == (undisturbed / each).read_bytes(), each


def texts(folder: Path, model: Path, column: str, labels: Sequence[object]) -> list[object]:
    """Write texts with labels, and return the flags that read them."""
    words: list[object] = ["--model_name_or_path", model]
    for seed, (name, size) in enumerate({"train": 24, "validation": 12, "test": 12}.items()):
        table = [
            (text, labels[index % len(labels)]) for index, (text, _) in enumerate(rows(size, seed))
        ]
        words += [f"--{name}_file", write_csv(folder / f"{name}.csv", table, ("text", column))]
    return words


def sentences(folder: Path, model: Path) -> list[object]:
    words: list[object] = ["--model_name_or_path", model]
    for seed, (name, size) in enumerate({"train": 24, "validation": 12, "test": 12}.items()):
        write_sentences(folder / f"{name}.conll", size, seed=seed)
        words += [f"--{name}_file", folder / f"{name}.conll"]
    return words


def images(folder: Path, model: Path) -> list[object]:
    model = save_model(folder / "vit", "vit")
    data = image_folder(folder / "images", 4, ("train", "validation", "test"))
    return ["--model_name_or_path", model, "--dataset_name", data]


def sounds(folder: Path, model: Path) -> list[object]:
    model = save_model(folder / "ast", "ast")
    return ["--model_name_or_path", model, "--train_file", sound_table(folder / "sounds", 8)]


OTHER_TASKS = {
    "regression": lambda *at: [*texts(*at, "label", (0.5, 1.5, 4)), "--task", "regression"],
    "multi-label": lambda *at: [
        *texts(*at, "labels", ("x", "x|y", "y|z")),
        *("--task", "multi-label", "--label_separator", "|"),
    ],
    "words": sentences,
    "images": images,
    "sounds": sounds,
}


@pytest.mark.parametrize(
    ("task", "part"),
    [
        *(("words", "serving back"), ("images", "predictions")),
        *(
            pytest.param(task, part, marks=pytest.mark.full)
            for task in OTHER_TASKS
            for part in PLANTED
        ),
    ],
)
def test_the_parts_of_other_tasks(task, part, tiny_bert, tmp_path, monkeypatch):
    sizes = ("--num_train_epochs", 1, "--per_device_train_batch_size", 8, "--use_cpu")
    words = (CLASSIFY, *OTHER_TASKS[task](tmp_path, tiny_bert), *sizes)
    straight, folder = tmp_path / "straight", tmp_path / "run"
    succeeded(call_here(*words, "--output_dir", straight))
    with monkeypatch.context() as patch:
        plant(patch, PLANTED[part], full_disk())
        done = call_here(*words, "--output_dir", folder)
    assert done.returncode == EXIT_CODES[PartsFailed], done.stdout + done.stderr
    assert weights(folder) == weights(straight)
    succeeded(call_here(*words, "--output_dir", folder))
    assert record_of(folder)["status"] == "finished"
    assert weights(folder) == weights(straight)
    for name in {*KEPT} & {path.name for path in straight.iterdir()}:
        assert (folder / name).read_bytes() == (straight / name).read_bytes(), name


def test_an_evaluation_without_memory_is_completed_with_smaller_batches(
    flags, undisturbed, tmp_path, monkeypatch
):
    from ampft.runs import run

    original = run.predict

    def predict(state, model, split, **options):
        if split == "test" and state.prepared.args.per_device_eval_batch_size > 4:
            raise MemoryError
        return original(state, model, split, **options)

    monkeypatch.setattr(run, "predict", predict)
    folder = tmp_path / "run"
    done = call_here(CLASSIFY, *flags, "--output_dir", folder)
    assert done.returncode == EXIT_CODES[PartsFailed], done.stdout + done.stderr
    reason = "ran out of memory: MemoryError. During an evaluation, lower --per_device_eval_batch"
    assert f"its model is saved; failed afterwards: evaluation ({reason}" in done.stderr
    assert weights(folder) == weights(undisturbed)
    smaller = ("--per_device_eval_batch_size", 4)
    succeeded(call_here(CLASSIFY, *flags, "--output_dir", folder, *smaller))
    assert record_of(folder)["status"] == "finished"
    assert weights(folder) == weights(undisturbed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "part", "reason", "ends"),
    [
        (0, "evaluation", "ValueError: planted", 0),
        (1, "evaluation", "process 1 failed first: ValueError: planted", 1),
        (1, "trackers", "process 1: ValueError: planted", 0),
        (0, "report", "ValueError: planted", 0),
    ],
)
def test_a_part_that_fails_in_one_of_two_processes(rank, part, reason, ends, flags, tmp_path):
    tests = Path(__file__).parents[1]
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    paths, folder = f"{tests}:{tests.parent}", tmp_path / "run"

    def train(rank):
        return call(
            sys.executable, *launched, tests / "recipes" / "planted_run.py", rank, PLANTED[part],
            *flags, "--output_dir", folder, PYTHONPATH=paths, CUDA_VISIBLE_DEVICES="",
        )  # fmt: skip

    done = train(rank)
    assert done.returncode == 1  # of torchrun, whatever the codes of its processes
    assert re.search(rf"rank +: {ends} .*\n +exitcode +: {EXIT_CODES[PartsFailed]} ", done.stderr)
    record = record_of(folder)
    assert record["status"] == "trained"
    assert record["parts"][part].startswith(f"failed: {reason}")
    kept, steps = weights(folder), (folder / "history.jsonl").read_bytes()
    succeeded(train("none"))
    assert record_of(folder)["status"] == "finished"
    assert weights(folder) == kept
    assert (folder / "history.jsonl").read_bytes() == steps
