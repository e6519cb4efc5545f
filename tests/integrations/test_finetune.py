"""`ampft.finetune` and its result: data in memory, several runs in one process."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from accelerate import Accelerator
from datasets import Dataset, DatasetDict
from running import rows, text_settings
from transformers import BertForSequenceClassification

import ampft
from ampft.emulation import inside_emulation
from ampft.engine.step import StepOutcome
from ampft.runs import history

LABELS = {"fruit", "metal", "river"}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def settings(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    return {"model_name_or_path": str(tiny_model), "max_train_steps": 3, "use_cpu": True}


def frame(count: int = 90, seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(rows(count, seed), columns=["text", "label"])


@pytest.mark.slow
def test_a_divergence_says_why(settings):
    with pytest.raises(
        ampft.TrainingStopped, match=r"not finite .* Lower learning_rate"
    ) as stopped:
        ampft.finetune(frame(), precision="bf16", learning_rate=1e35, max_grad_norm=0, **settings)
    assert not isinstance(stopped.value.__context__, TypeError)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("more", [{}, {"lora_r": 2}], ids=["whole", "lora"])
def test_a_model_is_freed_with_its_run(settings, precision, more):
    def models():
        gc.collect()
        return {
            id(each) for each in gc.get_objects() if type(each) is BertForSequenceClassification
        }

    # A library that logs an error of its import keeps the frames above in pytest's record of it.
    ampft.finetune(frame(), precision=precision, **settings, **more)
    before = models()
    run = ampft.finetune(frame(), precision=precision, **settings, **more)
    assert run.predictions["position"].size
    del run
    assert models() <= before


@pytest.mark.slow
def test_a_data_frame_gives_report_and_predictions(settings, tmp_path):
    longer = {"max_train_steps": 60, "learning_rate": 8e-3, "warmup_ratio": 0.2}
    run = ampft.finetune(frame(240), precision="bf16", **settings | longer)
    assert run.record.precision.resolved["mode"] == "bf16"
    assert run.record.data.name == "data in memory"
    assert run.record.command[0] == "ampft.finetune"
    assert "--mixed_precision=bf16" in run.record.command
    assert run.folder.parent.name == "runs"
    assert run.report.metrics()["accuracy"] > 0.8
    assert len(run.predictions) == run.report.examples == 48
    predicted = run.predict(["old iron and tin", "the nile is a river nile"])
    assert list(predicted.prediction) == ["metal", "river"]
    assert predicted.confidence.between(0.4, 1).all()
    assert run.predict("iron iron").prediction[0] == "metal"
    assert type(run.model).__name__ == "BertForSequenceClassification"
    assert ampft.FinishedRun(run.folder).report == run.report


@pytest.mark.slow
def test_the_default_learning_rate_is_recorded_and_can_be_resumed(settings, tmp_path):
    folder = {"output_dir": tmp_path / "run", "checkpointing_steps": "2"}
    run = ampft.finetune(frame(), **settings | folder)
    assert run.record.arguments["learning_rate"] == 1e-4  # a hidden size of 32
    assert json.loads((tmp_path / "run/history.jsonl").read_text().splitlines()[0])[
        "learning_rate"
    ] == pytest.approx(1e-4)
    point = tmp_path / "run/checkpoints/step-2"
    again = ampft.finetune(
        frame(), **settings | {"output_dir": tmp_path / "again", "resume_from_checkpoint": point}
    )
    assert again.record.metrics == run.record.metrics
    finished = {"output_dir": tmp_path / "run", "resume_from_checkpoint": "latest"}
    assert ampft.finetune(frame(), **settings | finished).record == run.record


def test_all_checkpoints_must_fit_on_the_disk(settings, monkeypatch):
    # The tiny model has 0.08 MB of weights: 0.16 MB are enough for the run without checkpoints.
    usage = shutil.disk_usage("/")._replace(free=400_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ampft.InputError, match=r"the run with 3 checkpoints .*needs"):
        ampft.finetune(frame(), **settings, checkpointing_steps="1")


@pytest.mark.slow
def test_it_is_the_recipe(settings, files, tiny_model, tmp_path):
    """Same data, same settings: the metrics and the examples of each step are the same."""
    from running import CLASSIFY, call_here, succeeded

    words = text_settings(files, tiny_model, tmp_path / "recipe")
    succeeded(call_here(CLASSIFY, *words, "--max_train_steps", "3"))
    expected = json.loads((tmp_path / "recipe/run.json").read_text())
    tables = {name: pd.read_csv(files / f"{name}.csv") for name in ("train", "validation", "test")}
    given = {k: v for k, v in expected["arguments"].items() if not k.endswith("_file")}
    given = {k: v for k, v in given.items() if v != getattr(ampft.ClassifyArguments, k)}
    run = ampft.finetune(**tables, **given | {"output_dir": tmp_path / "mine"})
    assert run.record.metrics == expected["metrics"]
    assert run.record.example_ids_sha256 == expected["example_ids_sha256"]
    assert run.record.data.fingerprints == expected["data"]["fingerprints"]
    other = {"output_dir", "train_file", "validation_file", "test_file"}
    assert {k: v for k, v in run.record.arguments.items() if k not in other} == {
        k: v for k, v in expected["arguments"].items() if k not in other
    }


def state() -> tuple:
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        [inside_emulation(dtype) for dtype in (torch.float16, torch.bfloat16)],
        torch.backends.mkldnn.matmul.fp32_precision,
        dict(os.environ),
        list(warnings.filters),
        transformers.logging.get_verbosity(),
        list(sys.argv),
    )


@pytest.mark.slow
def test_several_precisions_in_one_process_leave_no_trace(settings, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    before = state()
    data = Dataset.from_pandas(frame(), preserve_index=False)
    for precision in ("fp16", "bf16", "fp32"):
        run = ampft.finetune(data, precision=precision, cpu_threads=1, **settings)
        assert run.record.precision.executed is not None
        assert run.record.precision.resolved["mode"] == precision
        assert run.record.topology.cpu_threads == 1
    after = state()
    assert after == before
    # The caller's own Accelerator, and its state, live on.
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    ampft.finetune(data, precision="bf16", cpu_threads=1, **settings)
    assert accelerator.mixed_precision == "no"
    assert accelerator.gradient_accumulation_steps == 3


@pytest.mark.slow
def test_the_callers_seed_does_not_matter(settings):
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(ampft.finetune(frame(), **settings))
    assert runs[0].record.metrics == runs[1].record.metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "dictionaries", "splits", "categories"])
def test_other_data_in_memory(kind, settings):
    table = frame(60)
    data = {
        "pairs": list(zip(table.text, table.label, strict=True)),
        "dictionaries": table.to_dict("records"),
        "splits": DatasetDict(
            {name: Dataset.from_pandas(frame(60, n), preserve_index=False)
             for n, name in enumerate(("train", "test"))}
        ),
        "categories": table.astype({"label": "category"}),
    }[kind]  # fmt: skip
    run = ampft.finetune(data, **settings | {"max_train_steps": 1})
    assert set(run.record.label_names) == LABELS


@pytest.mark.slow
def test_predictions_say_where_each_row_is(settings, tmp_path):
    table = frame(60).assign(key=[f"k{i}" for i in range(60)])
    run = ampft.finetune(table.set_index("key"), **settings)
    rows = table.iloc[run.predictions.position]
    assert run.predictions.text.tolist() == rows.text.tolist()
    assert run.predictions.id.tolist() == rows.key.tolist()  # the index of the frame
    table.to_csv("rows.csv", index=False)
    run = ampft.finetune("rows.csv", id_column="key", **settings)
    lines = Path("rows.csv").read_text().splitlines()
    for line, text, key in zip(
        run.predictions.file_line, run.predictions.text, run.predictions.id, strict=True
    ):
        assert lines[line - 1].startswith(f"{text},")
        assert lines[line - 1].endswith(f",{key}")
    with pytest.raises(ampft.InputError, match=r"^id_column: rows\.csv has no column 'kee'"):
        ampft.finetune("rows.csv", id_column="kee", **settings)


@pytest.mark.slow
def test_the_html_is_inert(settings):
    table = frame(60)
    table["label"] = table.label.replace("metal", HOSTILE)
    run = ampft.finetune(table, **settings)
    html = run._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "<td" in html
    assert HOSTILE in repr(run)


@pytest.mark.slow
def test_in_a_thread(settings):
    """Only the main thread may set signal handlers."""
    done = []
    thread = threading.Thread(target=lambda: done.append(ampft.finetune(frame(60), **settings)))
    thread.start()
    thread.join()
    assert done[0].record.status == "finished"


@pytest.mark.slow
def test_a_line_in_logs(settings, capsys, monkeypatch):
    ampft.finetune(frame(60), **settings)
    assert "step 2 of 3" not in capsys.readouterr().out
    monkeypatch.setattr(history, "SECONDS_BETWEEN_LINES", 0.0)
    ampft.finetune(frame(60), **settings)
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("step 2 of 3")]
    assert "loss " in line
    assert line.endswith(" s left")


@pytest.mark.parametrize(
    ("seconds", "total", "said_at", "text"),
    [
        # The first step allocates, and does not count.
        (0.5, 105, 5, "about 50 s for the other 100 training steps"),
        (30.0, 42, 2, "about 20 min for the other 40 training steps"),
        (0.25, 109, 9, "about 25 s for the other 100 training steps"),
        (0.5, 20, None, None),  # too short to say
        (30.0, 2, None, None),
    ],
)
def test_the_duration_is_said_once(seconds, total, said_at, text, monkeypatch, capsys):
    clock = iter([0.0, *(99.0 + seconds * step for step in range(total))])
    monkeypatch.setattr(history, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(history, "SECONDS_BETWEEN_LINES", 1e9)
    accelerator = SimpleNamespace(is_main_process=True, trackers=[])
    batch = SimpleNamespace(
        epoch=0, effective_ids=[0], effective_length=9, micro_batches=[0], wait_seconds=0.0
    )
    outcome = StepOutcome(1.0, 1.0, None, skipped=False, learning_rate=1e-4)
    said = []
    with history.History(None, accelerator, total) as written:
        for step in range(total):
            written.record(batch, outcome, {})
            printed = capsys.readouterr().out
            said += [(step + 1, line) for line in printed.splitlines() if "time" in line]
    assert said == ([] if text is None else [(said_at, f"time       {text}")])


PAIRS = [("a", "x"), ("b", "y")] * 8


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"train": 7}, r"^train: received int\. Allowed are a path, a pandas\.DataFrame"),
        ({"train": []}, r"^train: the list is empty"),
        ({"train": ["a"]}, r"^train: position 0 \(from 0\) is not a \(text, label\) pair: str"),
        (
            {"train": PAIRS, "test": "t.csv"},
            r"^test: a path cannot be combined with data in memory",
        ),
        ({"train": PAIRS, "dataset_name": "stdlib"}, r"^train and dataset_name both name data"),
        ({"test": PAIRS}, r"^train is missing"),
        ({"train": "no.csv"}, r"^train_file: the file no\.csv does not exist"),
        ({"train": PAIRS, "learning_rat": 1}, r"^unknown flag learning_rat\. Did you mean"),
        ({"train": PAIRS, "learning_rate": "x"}, r"learning_rate: received 'x'; it must"),
        ({"train": PAIRS, "precision": "fp15"}, r"mixed_precision: received 'fp15'"),
        ({"train": PAIRS, "precision": "bf16", "mixed_precision": "bf16"}, r"same setting"),
        (
            {"train": [("a", None), ("b", "y")]},
            r"^data in memory, split train, position 0 .*: no label",
        ),
        (
            {"train": PAIRS, "early_stopping_patience": 1, "load_best_model_at_end": False},
            r"^early_stopping_patience 1 has no effect with load_best_model_at_end=False",
        ),
    ],
)
def test_refused_with_one_exception(arguments, match, settings, tmp_path):
    with pytest.raises(ampft.InputError, match=match) as error:
        ampft.finetune(**arguments | {"use_cpu": True})
    assert error.value.__suppress_context__
    assert "--l" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ampft.InputError, match="use `accelerate launch -m ampft train`"):
        ampft.finetune(PAIRS)


def test_arguments_of_the_trainer_are_answered_together():
    with pytest.raises(ampft.InputError) as error:
        ampft.finetune(train_dataset=PAIRS, eval_dataset=PAIRS, compute_metrics=print, model=print)
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "train_dataset", "eval_dataset", "compute_metrics", "model",
    ]  # fmt: skip
    assert "Pass it as train, the first argument." in str(error.value)
