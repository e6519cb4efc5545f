"""Trackers receive the history, the final metrics, the report and the confusion matrix.

`test_run.py` tests TensorBoard.
"""

from __future__ import annotations

import json
import os
import sys

import pytest
from running import CLASSIFY, REPOSITORY, Finished, call, succeeded, text_settings

pytestmark = pytest.mark.slow


@pytest.fixture
def train(files, tiny_model, tmp_path):
    """Return a function that trains two steps with a tracker, and returns the run."""

    def run(tracker: str, **environment: str) -> Finished:
        folder = tmp_path / "run"
        words = (*text_settings(files, tiny_model, folder), "--max_train_steps", "2")
        flags = ("--with_tracking", "--report_to", tracker)
        # In a process, whose working directory the trackers may fill, without a remote server.
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        done = succeeded(
            call(
                sys.executable, REPOSITORY / CLASSIFY, *words, *flags, cwd=tmp_path,
                PYTHONPATH=path, **environment,
            )
        )  # fmt: skip
        return Finished(folder, done.stdout, done.stderr)

    return run


def confusion_rows(run: Finished) -> list[list[int]]:
    return run.report["confusion_matrix"]


def test_mlflow(train, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    server = (tmp_path / "mlruns").as_uri()
    run = train("mlflow", MLFLOW_TRACKING_URI=server)
    import mlflow

    client = mlflow.MlflowClient(server)
    (experiment,) = client.search_experiments(filter_string="name = 'ampft'")
    (tracked,) = client.search_runs([experiment.experiment_id])
    losses = [metric.value for metric in client.get_metric_history(tracked.info.run_id, "loss")]
    assert losses == pytest.approx([row["loss"] for row in run.history])
    assert tracked.data.metrics["test/accuracy"] == pytest.approx(run.report["accuracy"])
    artifacts = {file.path for file in client.list_artifacts(tracked.info.run_id)}
    assert artifacts == {"report.md", "report.json", "confusion_matrix.md"}


def test_wandb_offline(train, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    run = train("wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    tables = {
        path.name.split("_0_")[0].rsplit("_", 1)[0]: json.loads(path.read_text())
        for path in tmp_path.rglob("media/table/*.table.json")
    }
    matrix = next(t for t in tables.values() if t["columns"][0] == "label / prediction")
    assert [list(map(int, row[1:])) for row in matrix["data"]] == confusion_rows(run)
    report = next(t for t in tables.values() if t["columns"][0] == "class")
    assert report["data"][-1][0] == "weighted average"
    (log,) = tmp_path.rglob("run-*.wandb")
    written = log.read_bytes()
    for value in ("test/accuracy", "learning_rate", "grad_norm"):
        assert value.encode() in written
