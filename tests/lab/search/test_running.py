"""A search on a clock of its own: it keeps its time, and leaves out rungs where runs are slow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from planned import plan, write_record
from record_fixtures import record_of
from test_rungs import PLAN

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import without_flags
from ampft.arguments.parsing import parse_classify_arguments
from ampft.comparison.execution.plan import Plan
from ampft.comparison.settings import ComparisonDesign
from ampft.errors import InputError
from ampft.files import describe_file, hashed_text
from ampft.lab.search import running
from ampft.lab.search.rungs import DEFAULT, Candidate, fitting_plan
from ampft.lab.search.running import Search, _with_arm
from ampft.lab.search.search_record import SearchState
from ampft.lab.search.search_settings import SearchSettings

DESIGN = ComparisonDesign(
    modes=None,
    arm_settings=(),
    first_seed=45,
    metric="accuracy",
    margin=0.01,
    placebo=False,
    config_file=None,
    budget=None,
    select_seeds=0,
    seed_counts=(1,),
)


class Folder:
    """A folder that keeps what is written to it, and nothing on the disk."""

    def __init__(self, path):
        self.path = path
        self.written = []

    def __truediv__(self, name):
        return self.path / name

    def write_text(self, name, text):
        self.written.append(name)


class Session:
    """Runs that take what was planned, times `slowness`, on a clock that only they advance."""

    def __init__(self, search_plan, clock, slowness, path):
        self.clock, self.slowness, self.folder = clock, slowness, Folder(path)
        self.done, self.trained = set(), []
        self.progress = SimpleNamespace(follow=lambda plan, todo: None)
        empty = Plan(
            design=DESIGN, arguments={}, estimate=search_plan.estimate,
            size=search_plan.estimate.size,
        )  # fmt: skip
        self.plan = _with_arm(empty, search_plan, search_plan.default_candidate)

    def missing(self):
        return tuple(run for run in self.plan.all_runs() if run not in self.done)

    def complete(self):
        return [run for run in self.plan.all_runs() if run in self.done]

    def write_plan(self):
        pass

    def train(self, runs):
        for run in runs:
            imports = PLAN.import_seconds if not self.done else 0.0  # of the first of them
            seconds = self.slowness * self.plan.expected_seconds(run) + imports
            self.clock.now += seconds
            self.plan = replace(self.plan, runs_seconds=self.plan.runs_seconds + seconds)
            self.done.add(run)
            self.trained.append(run.arm.name)


@pytest.fixture
def simulate(monkeypatch, tmp_path):
    """Return a function that searches with a plan, and returns search, session and candidates."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(running, "time", SimpleNamespace(time=lambda: clock.now))
    order = {None: 5.0, 1e-5: 4.0, 3e-5: 3.0, 3e-4: 1.0, 1e-3: 2.0}

    def evidence(folder, plan, name, metric):
        rate = None if name.startswith(DEFAULT) else float(name.split("-", 1)[1].rsplit("-", 1)[0])
        loss = order[rate] - 0.01 * int(name.rsplit("-", 1)[1])
        return SimpleNamespace(loss=loss)

    monkeypatch.setattr(running, "read_evidence", evidence)

    def search(plan, slowness, before=None, stopped=None):
        clock.now = plan.trial_seconds + 5.0  # and the imports of this process
        state = SearchState(
            arguments={}, settings={}, metric="accuracy", plan=plan, stopped=stopped
        )
        found = Search(SearchSettings(time_budget="1h"), (), None, Folder(tmp_path), state, 0.0)
        session = Session(plan, clock, slowness, tmp_path)
        if before is not None:  # a folder that is continued
            session.plan, session.done = before.plan, set(before.done)
        return found, session, found._rungs(session)

    return search


def test_the_rungs_follow_the_losses(simulate):
    found, session, tried = simulate(PLAN, 1.0)
    assert session.trained == [
        "default-3", "default-1", "rate-1e-05-1", "rate-3e-05-1", "rate-0.0003-1", "rate-0.001-1",
        "rate-0.0003-3", "rate-0.001-3", "rate-0.0003-9",
    ]  # fmt: skip
    assert list(tried) == session.trained
    assert tried["rate-0.0003-9"] == Candidate(3e-4, 9)
    assert found.state.stopped is None


@pytest.mark.parametrize("slowness", [0.5, 1.0, 1.08])
def test_every_time_that_is_accepted_is_kept(simulate, slowness):
    """The last candidate is the longest, and the judgement of it is the dearest."""
    for budget in np.linspace(150, PLAN.seconds, 12):
        plan = replace(PLAN, budget=float(budget))
        try:
            plan = fitting_plan(plan, few=False, own_rates=False, asked="1s")
        except running.InputError:
            continue
        found, session, tried = simulate(plan, slowness)
        chosen = tried[session.trained[-1]]
        assert found.state.stopped is None
        assert found._used() + slowness * plan.final_seconds(chosen) <= budget
    assert found.state.stopped is None


@pytest.mark.parametrize("slowness", [1.6, 2.0])
def test_where_runs_are_slower_rungs_are_left_out(simulate, slowness):
    plan = replace(PLAN, budget=PLAN.seconds)
    found, session, tried = simulate(plan, slowness)
    assert found.state.stopped in (1, 2)
    assert len(session.trained) < 9
    assert found.folder.written == ["search.json"]
    without, full, _ = simulate(plan, 1.0)  # the control
    assert (without.state.stopped, len(full.trained)) == (None, 9)
    # A search that is continued, and would have the time now, stops where it had stopped.
    again, repeated, kept = simulate(plan, 0.1, session, stopped=found.state.stopped)
    assert repeated.trained == []
    assert kept == tried
    assert again.state.stopped == found.state.stopped


def test_an_answer_is_not_printed_for_other_data(tmp_path):
    data, place = tmp_path / "train.csv", tmp_path / "search" / "candidates"
    data.write_text("text,label\na,x\nb,y\n")
    part = replace(record_of().data, files={str(data): describe_file(data).sha256})
    write_record(place, plan().all_runs()[0], data=part)
    (place / "plan.json").write_text(hashed_text(plan()))
    settings = SearchSettings(time_budget="1h")
    search = Search(settings, (), ClassifyArguments(), Folder(place.parent), None, 0.0)
    search.check_inputs_unchanged()
    data.write_text("text,label\na,x\nb,x\n")
    with pytest.raises(InputError, match=r"train\.csv was changed since fp32-seed42"):
        search.check_inputs_unchanged()


def test_an_answer_is_not_printed_for_changed_predictions(tmp_path):
    place = tmp_path / "search" / "candidates"
    run = plan().all_runs()[0]
    (written := tmp_path / "written").write_bytes(b"predictions")
    write_record(place, run, files={"predictions.parquet": describe_file(written)})
    predictions = place / "runs" / run.name / "predictions.parquet"
    predictions.write_bytes(written.read_bytes())
    (place / "plan.json").write_text(hashed_text(plan()))
    settings = SearchSettings(time_budget="1h")
    search = Search(settings, (), ClassifyArguments(), Folder(place.parent), None, 0.0)
    search.check_inputs_unchanged()
    predictions.write_bytes(b"others")
    with pytest.raises(InputError, match=r"predictions\.parquet: the file was changed"):
        search.check_inputs_unchanged()


def test_candidates_are_compared_without_decisions_on_the_rows_that_choose():
    """These would be fitted on the only rows that are left, so that each candidate was refused."""
    given = ["--tune_thresholds", "f1", "--calibrate", "--positive_label=a", "--seed", "1"]
    given += ["--abstain", "0.1"]
    left = without_flags(ClassifyArguments, given, running.NOT_FITTED)
    assert left == ["--seed", "1"]
    classify = replace(parse_classify_arguments(["--train_file", "t.csv", *given]))
    assert classify.fitted_flags == ("--calibrate", "--tune_thresholds", "--abstain")
    assert replace(classify, **running.NOT_FITTED).fitted_flags == ()
