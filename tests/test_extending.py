"""What CONTRIBUTING says of adding a task, a precision, a metric, a flag and a data source is true:
each test adds one in the places that are listed there, and in no others."""

from __future__ import annotations

import dataclasses
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import time_series
import torch
from accelerate.state import AcceleratorState
from tiny_text import LABELS

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.arguments.classify import OPTIMIZERS
from ampft.arguments.flags import parse_flags
from ampft.arguments.help_text import Help
from ampft.cli import main
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.data.load import load_data
from ampft.data.sources.readers import READERS
from ampft.data.sources.source_table import SourceTable
from ampft.errors import InputError
from ampft.flag import flag
from ampft.integrations import transformers_rows
from ampft.kinds.prediction import PredictRequest
from ampft.metrics.sums import Metric, class_counts, costliest_of_classes, effect_on_share
from ampft.precision.modes import MODE_TABLE, Mode
from ampft.precision.resolve import _PROBES, resolve
from ampft.runs.predict import predict_inputs
from ampft.runs.record import read_record
from ampft.runs.run_text import read_report
from ampft.tasks import TaskRow
from ampft.tasks.single_label import METRICS, SingleLabel
from ampft.tasks.table import TASKS

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def train():
    """The `train` function of the recipe."""
    return runpy.run_path(str(REPOSITORY / "recipes" / "classify.py"))["train"]


@pytest.fixture
def arguments(tmp_path, tiny_bert):
    lines = [f"w{i % 7} w{i % 5},{LABELS[i % 3]}" for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return ClassifyArguments(
        model_name_or_path=str(tiny_bert),
        train_file=str(tmp_path / "train.csv"),
        max_train_steps=2,
        use_cpu=True,
        cpu_threads=1,
        output_dir=str(tmp_path / "run"),
    )


def trained(train, arguments) -> list[Path]:
    """Train in fp32 and in bf16; return the two folders."""
    folders = []
    for mode in ("fp32", "bf16"):
        folders.append(Path(arguments.output_dir).with_name(mode))
        AcceleratorState._reset_state(reset_partial_state=True)
        run = {"mixed_precision": mode, "output_dir": str(folders[-1])}
        train(dataclasses.replace(arguments, **run))
    return folders


@dataclasses.dataclass(frozen=True)
class SquaredError(SingleLabel):
    """One label per example, learned with the squared error of the probabilities."""

    name = "squared_error"

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the summed Brier score."""
        one_hot = torch.nn.functional.one_hot(targets, logits.shape[-1])
        return (logits.softmax(dim=-1) - one_hot).square().sum()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_a_task(monkeypatch, arguments, train):
    module = types.ModuleType("ampft.tasks.squared_error")
    module.SquaredError = SquaredError
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = dataclasses.replace(TASKS["text"], problem="ampft.tasks.squared_error:SquaredError")
    assert isinstance(row, TaskRow)
    monkeypatch.setitem(TASKS, "squared-error", row)
    folders = trained(train, dataclasses.replace(arguments, task="squared-error"))
    records = [read_record(folder) for folder in folders]
    for folder, record in zip(folders, records, strict=True):
        assert (record.task, record.status) == ("squared-error", "finished")
        assert read_report(folder, record).metrics()["accuracy"] == record.metrics["accuracy"]
    found = [arm.metrics["accuracy"].mean for arm in compare_folders(folders).arms]
    assert found == [record.metrics["accuracy"] for record in records]


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_a_precision(monkeypatch, arguments, train):
    row = Mode("bf16-by-hand", "bf16", "float32", "bfloat16", "by_hand")
    monkeypatch.setitem(MODE_TABLE, row.name, row)
    monkeypatch.setitem(_PROBES, "by_hand", lambda device: ("native", f"asked {device.type}"))
    assert resolve("bf16-by-hand", torch.device("cpu")).reason == "asked cpu"
    train(dataclasses.replace(arguments, mixed_precision="bf16-by-hand"))
    record = read_record(Path(arguments.output_dir))
    assert record.precision.resolved["mode"] == "bf16-by-hand"
    assert "bfloat16 x bfloat16" in record.precision.summary


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_a_metric(monkeypatch, arguments, train):
    def error_rate(sums: np.ndarray) -> np.ndarray:
        counts = class_counts(sums)
        return 1 - counts.true_positives.sum(axis=-1) / counts.cases

    worth = (effect_on_share, costliest_of_classes)
    metric = Metric("error_rate", "error rate", error_rate, *worth, higher_is_better=False)
    monkeypatch.setitem(METRICS, metric.name, metric)
    chosen = dataclasses.replace(arguments, metric_for_best_model="error_rate")
    folders = trained(train, chosen)
    comparison = compare_folders(folders, metric="error_rate")
    for arm in comparison.arms:
        assert arm.metrics["error_rate"].mean == pytest.approx(1 - arm.metrics["accuracy"].mean)
    record = read_record(folders[0])
    assert record.best.metric == "error_rate"
    report = read_report(folders[0], record)
    assert report.metrics()["error_rate"] == record.metrics["error_rate"]
    value = f"error rate {record.metrics['error_rate']:.4f}, macro ROC AUC"
    for shown in (report.text(), report.tables()[0].note):
        assert value in shown.partition("Further metrics: ")[2]


@pytest.mark.add_ons
@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_a_kind_of_data_and_a_label_of_another_nature(monkeypatch, tmp_path, train, capsys):
    """The folder `time_series` and this line are all that is added."""
    assert "series" not in TASKS, "without the line, --task series is refused"
    monkeypatch.setitem(TASKS, "series", time_series.ROW)
    random = np.random.default_rng(0)
    levels = random.integers(0, 4, 80)
    rows = (random.normal(size=(80, 6)) / 4 + levels[:, None]).round(3)
    table = tmp_path / "series.csv"
    header = [*(f"t{i}" for i in range(6)), "label"]
    pd.DataFrame([*map(list, rows)], columns=header[:-1]).assign(label=levels).to_csv(
        table, index=False
    )
    arguments = ClassifyArguments(
        task="series", train_file=str(table), num_train_epochs=6, learning_rate=0.05,
        per_device_train_batch_size=8, use_cpu=True, cpu_threads=1,
        output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    folders = trained(train, arguments)
    record = read_record(folders[0])
    assert record.data.kind == "series"
    assert read_report(folders[0], record).metrics()["accuracy"] == record.metrics["accuracy"] > 0.5
    assert "mean absolute error 0." in capsys.readouterr().out
    assert "classify([0.5, 0.25, 1.0])" in (folders[0] / "README.md").read_text()

    AcceleratorState._reset_state(reset_partial_state=True)
    predicted = tmp_path / "predicted.csv"
    run = ["--model", str(folders[0]), str(table), "--output_file", str(predicted)]
    assert main(["predict", *run]) in (None, 0)
    found = pd.read_csv(predicted)
    assert list(found) == [*header, "prediction", "confidence"]
    assert (found.prediction - levels).abs().mean() < 0.3
    assert "labels from column 'label'" in capsys.readouterr().out
    one = predict_inputs(
        folders[0], rows[:3].tolist(), PredictRequest(batch_size=2, top_k=2)
    )  # fmt: skip
    assert one.prediction.astype(int).tolist() == found.prediction[:3].tolist()

    assert main(["errors", str(folders[0])]) in (None, 0)
    assert f"{record.metrics['mean_absolute_error']:.4f}" in capsys.readouterr().out
    assert "0.0" in (folders[0] / "errors.html").read_text()

    comparison = compare_folders(folders, metric="mean_absolute_error")
    assert comparison.arms[0].metrics["mean_absolute_error"].mean == pytest.approx(
        record.metrics["mean_absolute_error"]
    )
    assert "two layers" in read_record(folders[1]).model.name

    AcceleratorState._reset_state(reset_partial_state=True)
    assert main(["doctor", str(folders[1]), "--no_cure"]) in (None, 0)
    assert "bf16" in capsys.readouterr().out


def test_a_flag(capsys):
    @dataclasses.dataclass(frozen=True)
    class Arguments(ClassifyArguments):
        momentum: float = flag(0.9, "momentum of SGD", group="optimizer", at_least=0, below=1)

    more = {"program": "classify.py", "shown": Help("Train.")}
    arguments, given = parse_flags(Arguments, ["--momentum", "0.5"], **more)
    assert (arguments.momentum, set(given)) == (0.5, {"momentum"})
    with pytest.raises(InputError, match=r"--momentum.* 1"):
        parse_flags(Arguments, ["--momentum", "1"], **more)
    with pytest.raises(SystemExit):
        parse_flags(Arguments, ["--help"], **more)
    assert "momentum of SGD" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ending", "start"),
    [(".tagged", ""), (".arff", "@relation texts\n"), (".tagged", "<html>\n"), (".xml", "")],
)
def test_a_data_source(monkeypatch, tmp_path, ending, start):
    """No add-on refuses a format that has a reader, whatever it knows of its ending and content."""

    def read_tagged(path: Path, *, encoding: str) -> SourceTable:
        """Read lines such as `good: a text`."""

        def read(names):
            text = path.read_text(encoding=encoding).removeprefix(start)
            for number, line in enumerate(text.splitlines(), start=1):
                label, text = line.split(": ", maxsplit=1)
                cells = {"text": text, "label": label}
                yield number, [cells[name] for name in names]

        return SourceTable(columns=("text", "label"), read=read, unit="line", origin=str(path))

    path = tmp_path / f"train{ending}"
    path.write_text(start + "".join(f"{'ab'[i % 2]}: text {i}\n" for i in range(40)))
    with pytest.raises(InputError, match=f"{ending}|is a Weka file|is a web page"):
        load_data(ClassifyArguments(train_file=path))
    monkeypatch.setitem(READERS, ending, read_tagged)
    data = load_data(ClassifyArguments(train_file=path))
    assert data.label_names == ("a", "b")
    assert {split: len(part) for split, part in data.splits.items()} == {
        "train": 28, "validation": 4, "test": 8,
    }  # fmt: skip


def test_an_optimizer(monkeypatch):
    """Flags of transformers' scripts accept each name in `OPTIMIZERS`."""
    refused = "--optim lion: received 'lion'; here are adamw_torch, adafactor, muon"
    with pytest.raises(InputError, match=refused):
        parse_classify_arguments(["--optim", "lion"])
    monkeypatch.setattr(transformers_rows, "OPTIMIZERS", (*OPTIMIZERS, "lion"))
    assert transformers_rows.ROWS["optim"].convert("lion", {}) == ["--optim", "lion"]
    for name in OPTIMIZERS:
        assert parse_classify_arguments(["--optim", name]).optim == name
