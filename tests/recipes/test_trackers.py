"""Trackers receive the history, the final metrics, the report and the confusion matrix.

`test_run.py` tests TensorBoard.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, register_tracker_class
from running import CLASSIFY, REPOSITORY, Finished, call, rows, succeeded, text_settings

import ampft
from ampft.features.trackers import IDS_NAME, TrackerReporting, installed_trackers

pytestmark = pytest.mark.slow


@pytest.fixture
def train(files, tiny_model, tmp_path):
    """Return a function that trains two steps with a tracker, and returns the run."""

    def run(tracker: str, *more: object, name: str = "run", **environment: str) -> Finished:
        folder = tmp_path / name
        words = (*text_settings(files, tiny_model, folder), "--max_train_steps", "2")
        flags = ("--with_tracking", "--report_to", tracker, *more)
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
    assert tracked.info.run_name == run.folder.name
    assert tracked.data.params["max_train_steps"] == "2"


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


@pytest.mark.full
def test_trackio(train, tmp_path):
    pytest.importorskip("trackio", reason="trackio is not installed")
    tracked = {"TRACKIO_DIR": str(tmp_path / "tracked")}

    def ask(*words: str) -> dict:
        command = (sys.executable, "-m", "trackio.cli", *words, "--project", "ampft", "--json")
        return json.loads(succeeded(call(*command, warm=False, **tracked)).stdout)

    run = train("trackio", "--checkpointing_steps", "1", **tracked)
    assert "Reserved keys" not in run.stderr
    (name,) = ask("list", "runs")["runs"]
    assert name.startswith(f"{run.folder.name}-")

    def values(metric: str) -> list[tuple[int, float]]:
        found = ask("get", "metric", "--run", name, "--metric", metric)["values"]
        return [(value["step"], value["value"]) for value in found]

    assert values("loss") == [(row["step"], pytest.approx(row["loss"])) for row in run.history]
    assert values("test/accuracy") == [(2, pytest.approx(run.report["accuracy"]))]
    ((_, matrix),) = values("confusion_matrix")
    assert [list(map(int, [*row.values()][1:])) for row in matrix["_value"]] == confusion_rows(run)
    config = ask("get", "run", "--run", name)["config"]
    assert config["max_train_steps"] == 2
    # A run that continues from a checkpoint continues its run in the tracker.
    point = run.folder / "checkpoints/step-1"
    train("trackio", "--resume_from_checkpoint", point, name="again", **tracked)
    assert ask("list", "runs")["runs"] == [name]
    assert [step for step, _ in values("loss")] == [1, 2, 2]


class OwnTracker(GeneralTracker):
    """Keeps what it receives."""

    name = "own"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.settings: dict = {}
        self.logged: list[tuple[int | None, dict]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.calls: list[str] = []

    @property
    def tracker(self) -> OwnTracker:
        return self

    def start(self) -> None:
        self.calls.append("start")

    def store_init_configuration(self, values: dict) -> None:
        self.settings = values

    def log(self, values: dict, step: int | None = None, **_: object) -> None:
        self.logged.append((step, values))

    def log_table(self, name: str, columns: list, rows: list, step: int) -> None:
        self.tables[name] = rows

    def finish(self) -> None:
        self.calls.append("finish")


@pytest.fixture
def settings(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    return {"model_name_or_path": str(tiny_model), "max_train_steps": 2, "use_cpu": True}


def data() -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in rows(90, 0)]


def test_own_trackers_beside_names(settings):
    own = OwnTracker()
    run = ampft.finetune(data(), report_to=["tensorboard", own], **settings)
    history = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
    steps = [(step, values["loss"]) for step, values in own.logged if "loss" in values]
    assert steps == [(row["step"], row["loss"]) for row in history]
    (final,) = [values for _, values in own.logged if "test/accuracy" in values]
    assert final["test/accuracy"] == run.report.metrics()["accuracy"]
    assert own.settings["max_train_steps"] == 2
    assert own.tables.keys() == {"report", "confusion_matrix"}
    assert own.calls == ["start", "finish"]
    assert [*run.folder.rglob("events.out.tfevents*")]
    assert run.record.arguments["report_to"] == "tensorboard"


def test_an_own_tracker_is_enough(settings):
    own = OwnTracker()
    run = ampft.finetune(data(), report_to=own, **settings)
    assert len(own.logged) == 4  # two steps, a validation and the final metrics
    assert not [*run.folder.rglob("events.out.tfevents*")]


def test_a_failing_log_table_does_not_cost_the_run(settings, capsys):
    class Failing(OwnTracker):
        def log_table(self, *_: object, **__: object) -> None:
            raise ConnectionError("no server")

    ampft.finetune(data(), report_to=[Failing()], **settings)
    assert "own did not accept the report (ConnectionError: no server)." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (OwnTracker, r"report_to OwnTracker: a class. Pass an object of it: OwnTracker\(\)"),
        ([3], "report_to: received 3. Pass names of trackers and objects of"),
        (["trackioo"], "'trackioo' is not one of Accelerate's trackers. Did you mean 'trackio'"),
    ],
)
def test_other_values_are_refused(settings, tmp_path, wrong, message):
    with pytest.raises(ampft.InputError, match=message):
        ampft.finetune(data(), report_to=wrong, **settings)
    assert not [*tmp_path.iterdir()]


def test_registered_trackers_have_names(monkeypatch):
    monkeypatch.delitem(LOGGER_TYPE_TO_CLASS, "own", raising=False)
    with pytest.raises(ampft.InputError, match="'own' is not one of Accelerate's trackers"):
        installed_trackers("own")
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "own", None)  # restores the table afterwards
    del LOGGER_TYPE_TO_CLASS["own"]
    register_tracker_class(OwnTracker)
    assert installed_trackers("own,tensorboard") == ["own", "tensorboard"]


def test_no_step_stands_twice_after_a_run_begins_again(tmp_path, fresh_accelerate):
    """As after a kill before the first checkpoint; without the purge, each step stands twice."""
    from accelerate import Accelerator
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for loss in (1.0, 2.0):
        accelerator = Accelerator(log_with="tensorboard", project_dir=tmp_path)
        TrackerReporting(accelerator, {"seed": 1}).begin()
        for step in (1, 2, 3):
            accelerator.log({"loss": loss}, step=step)
        accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "ampft"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(1, 2), (2, 2), (3, 2)]


class Tracked:
    """What a tracker on a server keeps: the rows of runs, by the id of each."""

    name = "trackio"

    def __init__(self, runs: dict[str, list[tuple[int, str]]], run_id: str) -> None:
        self.rows = runs.setdefault(run_id, [])
        stored = max((step for step, _ in self.rows), default=-1)
        self.tracker = SimpleNamespace(name=run_id, _next_step=stored + 1)

    def log(self, values, step=None, **more):
        self.rows += [(step, name) for name in values]


class FakeAccelerator:
    """Begins trackers as Accelerate does."""

    is_main_process = True

    def __init__(self, runs: dict[str, list[tuple[int, str]]]) -> None:
        self.runs, self.trackers = runs, []

    def init_trackers(self, project, settings, arguments):
        run_id = arguments["trackio"]["name"]
        self.trackers = [Tracked(self.runs, run_id)]


def tracked_until(folder, runs, last, *, sent=0, begins_again=False):
    """Send the steps 1 to `last`, with a validation after every second one."""
    accelerator = FakeAccelerator(runs)
    reporting = TrackerReporting(
        accelerator, {"seed": 1}, "run", folder, sent=sent, begins_again=begins_again
    )
    reporting.begin()
    (tracker,) = accelerator.trackers
    for step in range(1, last + 1):
        tracker.log({"loss": 1.0}, step=step)
        if step % 2 == 0 and step != last:
            tracker.log({"eval/accuracy": 1.0}, step=step)


def test_a_run_that_begins_again_continues_in_its_tracker_without_a_step_twice(tmp_path):
    runs: dict[str, list[tuple[int, str]]] = {}
    tracked_until(tmp_path, runs, 4)  # ended before the validation of step 4
    tracked_until(tmp_path, runs, 7, sent=4, begins_again=True)
    (rows,) = runs.values()
    losses = [(step, "loss") for step in range(1, 8)]
    validations = [(step, "eval/accuracy") for step in (2, 4, 6)]
    assert sorted(rows) == sorted(losses + validations)


def test_steps_that_a_killed_run_did_not_send_are_sent(tmp_path):
    runs: dict[str, list[tuple[int, str]]] = {}
    tracked_until(tmp_path, runs, 5)
    (rows,) = runs.values()
    rows[:] = [row for row in rows if row[0] < 4]  # the others were in a queue
    tracked_until(tmp_path, runs, 7, sent=5, begins_again=True)
    assert sorted(step for step, name in rows if name == "loss") == [*range(1, 8)]


@pytest.mark.parametrize(("step", "sent_again"), [(0, [1, 2, 3, 4]), (3, [3, 4]), (9, [4])])
def test_wandb_gets_what_its_log_lacks(tmp_path, step, sent_again):
    """Offline, a run that is continued begins another log with step 0."""
    logged: list[int] = []

    class Wandb(FakeAccelerator):
        def init_trackers(self, project, settings, arguments):
            run = SimpleNamespace(id="a", starting_step=step)
            log = lambda values, step=None, **more: logged.append(step)  # noqa: E731
            self.trackers = [SimpleNamespace(name="wandb", tracker=run, log=log)]

    (tmp_path / IDS_NAME).write_text('{"wandb": "a"}')
    reporting = TrackerReporting(Wandb({}), {"seed": 1}, "run", tmp_path, sent=3, begins_again=True)
    reporting.begin()
    for each in range(1, 5):
        reporting.accelerator.trackers[0].log({"loss": 1.0}, step=each)
    assert logged == sent_again


@pytest.mark.parametrize("content", [None, "", "[]", '{"trackio": 1}', "\\xff"])
def test_a_run_without_its_ids_begins_another(tmp_path, content):
    runs: dict[str, list[tuple[int, str]]] = {}
    tracked_until(tmp_path, runs, 2)
    (tmp_path / IDS_NAME).unlink()
    if content is not None:
        (tmp_path / IDS_NAME).write_text(content)
    tracked_until(tmp_path, runs, 3, sent=2, begins_again=True)
    assert [step for step, name in [*runs.values()][1] if name == "loss"] == [1, 2, 3]


def test_another_run_in_the_folder_has_its_own_id(tmp_path):
    runs: dict[str, list[tuple[int, str]]] = {}
    tracked_until(tmp_path, runs, 2)
    tracked_until(tmp_path, runs, 2)  # --overwrite_output_dir
    assert len(runs) == 2
