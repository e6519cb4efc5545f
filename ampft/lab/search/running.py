"""A running search: its rungs, its choice, and the runs that judge it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import later_wins, without_flags
from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.execution.comparison_folder import (
    LOGS_NAME,
    check_inputs_unchanged,
    planned_ending,
)
from ampft.comparison.execution.plan import CostEstimate, Plan, read_plan
from ampft.comparison.execution.planning import redacted_settings
from ampft.comparison.execution.session import ComparisonSession, open_comparison
from ampft.comparison.settings import MIN_SEEDS, CompareCommand, ComparisonFlags, comparison_command
from ampft.errors import InputError
from ampft.files import hashed_text
from ampft.lab.referee.checks import IdenticalPredictions
from ampft.lab.referee.judge import judge
from ampft.lab.referee.keep_or_drop import CandidateAnswer, GainEstimate
from ampft.lab.referee.ledger import OPEN, LedgerSettings, is_ledger
from ampft.lab.search.rungs import (
    DEFAULT,
    Candidate,
    SearchPlan,
    best,
    choices,
    exact,
    loss_name,
    read_evidence,
)
from ampft.lab.search.search_record import SEARCH_NAME, SearchAnswer, SearchState
from ampft.lab.search.search_settings import SearchSettings
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import check_files, remove_weights
from ampft.runs.record import read_record
from ampft.runs.run_text import problem_of
from ampft.text.numbers import approximate_duration, counted
from ampft.text.terminal import labelled, print_line

CANDIDATES, FINAL, LEDGER = "candidates", "final", "ledger"  # folders in the folder of a search
CHOSEN = "chosen"
LEAVES_OUT = ("--leave_out_test", "--no-baseline")
# Settings of a run whose decisions are not fitted.
NOT_FITTED: dict[str, Any] = {
    "calibrate": False, "tune_thresholds": None, "positive_label": None, "abstain": None,
}  # fmt: skip


def comparison(
    settings: SearchSettings,
    argv: Sequence[str],
    classify: ClassifyArguments,
    *,
    seeds: int,
    folds: int = 0,
    output_dir: Path | None = None,
    keep_models: str = "none",
) -> CompareCommand:
    """Return a comparison whose runs a search trains.

    Args:
        argv: Command line arguments that all runs share.
        classify: The same, parsed.
        output_dir: Folder of the search.
    """
    shared = ComparisonFlags(
        seeds=str(max(seeds, MIN_SEEDS)),
        folds=folds or None,
        metric=settings.metric,
        no_placebo=True,
        anyway=True,
        config_file=settings.config_file,
        keep_models=keep_models,
        output_dir=None if output_dir is None else str(output_dir),
    )
    command = comparison_command(shared, argv, classify)
    return replace(command, design=replace(command.design, seed_counts=(seeds,), draws=False))


@dataclass
class Search:
    """A search in a locked folder."""

    settings: SearchSettings
    argv: Sequence[str]  # Settings of the runs.
    classify: ClassifyArguments  # The same, parsed.
    folder: RunFolder
    state: SearchState
    started: float  # When this process, or the call, began: seconds since the epoch.
    _earlier: float = field(init=False, default=0.0)  # Seconds of earlier processes.

    def run(self) -> None:
        """Train the rungs, choose, judge, and write the answer.

        Raises:
            InputError: The default or a run that judges did not finish.
        """
        if (self.folder / SEARCH_NAME).exists():  # what a kill has cost does not count
            plans = [read_plan(self.folder / name) for name in (CANDIDATES, FINAL)]
            runs = sum(plan.runs_seconds for plan in plans if plan is not None)
            self._earlier = self.plan.trial_seconds + runs
        self._write()
        print_line(_described(self.plan, self.folder.path))
        with self._candidates() as session:
            tried = self._rungs(session)
            candidate, answer = self._chosen(session, tried)
            pace = self._pace(session)
        self._judge(candidate, answer, pace)

    def check_inputs_unchanged(self) -> None:
        """Check that the answer is about the files that this command names, and about its runs.

        Raises:
            InputError: Data, a local model or the predictions of a run were changed since.
        """
        for place in (self.folder / name for name in (CANDIDATES, FINAL)):
            if (plan := read_plan(place)) is not None:
                check_inputs_unchanged(plan, place)
            for run in () if plan is None else plan.all_runs():
                if (record := planned_ending(place, run).record) is not None:
                    check_files(place / RUNS_NAME / run.name, record.files, [PREDICTIONS_NAME])

    @property
    def plan(self) -> SearchPlan:
        return self.state.plan

    def _write(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        self.folder.write_text(SEARCH_NAME, hashed_text(self.state))

    def _used(self) -> float:
        """Return the seconds so far."""
        return self._earlier + time.time() - self.started

    def _print(self, title: str, runs: str, left: float) -> None:
        used, budget = map(approximate_duration, (self._used(), self.plan.budget))
        text = f"{title}: {runs}; {used} of {budget} used, at most about"
        print_line(labelled("search", f"{text} {approximate_duration(left)} left"))

    @contextmanager
    def _session(self, name: str, command: CompareCommand) -> Iterator[ComparisonSession]:
        """Open or continue the comparison in a subfolder."""
        place = self.folder.path / name
        plan = read_plan(place) or Plan(
            design=replace(command.design, metric=self.state.metric),
            arguments=redacted_settings(command),
            estimate=self.plan.estimate,
            size=self.plan.estimate.size,
            arm_estimates={arm.name: self.plan.estimate for arm in command.design.arm_settings},
        )
        with open_comparison(command, place, plan, describes=False) as session:
            yield session
            session.write_plan()

    @contextmanager
    def _candidates(self) -> Iterator[ComparisonSession]:
        plan = self.plan
        argv = later_wins(ClassifyArguments, self.argv, LEAVES_OUT)
        classify = replace(self.classify, leave_out_test=True, baseline=False)
        if not plan.folds:  # they would be fitted on the rows that choose
            argv = without_flags(ClassifyArguments, argv, NOT_FITTED)
            classify = replace(classify, **NOT_FITTED)
        command = comparison(
            self.settings, argv, classify, seeds=1, folds=plan.folds, output_dir=self.folder.path
        )
        # The judgement uses different seeds, so that a lucky choice does not count there.
        first = command.design.first_seed + plan.seeds
        arms = (plan.arm(plan.default_candidate),)
        design = replace(command.design, first_seed=first, arm_settings=arms)
        with self._session(CANDIDATES, replace(command, design=design)) as session:
            yield session

    def _rungs(self, session: ComparisonSession) -> dict[str, Candidate]:
        """Train the default and the rungs; return all candidates that finished, by name."""
        plan, place = self.plan, session.folder.path
        default = plan.default_candidate
        self._train(session, [default], "the default", plan.remaining_seconds(0))
        if read_evidence(place, session.plan, default.name, self.state.metric) is None:
            raise InputError(
                f"{place}: the default did not finish, so there is nothing to compare with. See "
                f"{place / LOGS_NAME}, and repeat the command."
            )
        tried, before = {default.name: default}, list[Candidate]()
        for number in range(len(plan.lengths)):
            rung = plan.rung(number, before)
            known = {arm.name for arm in session.plan.design.arm_settings}
            if any(each.name not in known for each in rung):
                left = self._pace(session) * plan.remaining_seconds(number, rungs=1)
                if self.state.stopped is None and self._used() + left > plan.budget:
                    self._write(stopped=number)
                if self.state.stopped is not None:
                    break
            later = plan.remaining_seconds(number + 1)
            self._train(session, rung, f"rung {number + 1} of {len(plan.lengths)}", later)
            losses = {}
            for each in rung:
                found = read_evidence(place, session.plan, each.name, self.state.metric)
                if found is not None and math.isfinite(found.loss):
                    tried[each.name], losses[each] = each, found.loss
            before = sorted(losses, key=lambda each: losses[each])
            if not before:
                break
        return tried

    def _train(
        self, session: ComparisonSession, rung: Sequence[Candidate], title: str, later: float
    ) -> None:
        """Train the candidates of a rung that have no result yet, and say how much time is left.

        Args:
            later: Planned seconds of what follows.
        """
        for each in rung:
            session.plan = _with_arm(session.plan, self.plan, each)
        names = {each.name for each in rung}
        missing = [run for run in session.missing() if run.arm.name in names]
        if not missing:
            return
        session.write_plan()
        session.progress.follow(session.plan, tuple(missing))
        now = sum(session.plan.expected_seconds(run) for run in missing)
        runs = f"{counted(len(missing), 'run')} of {self.plan.length_text(rung[0].length)}"
        self._print(title, runs, self._pace(session) * (now + later))
        session.train(missing)

    def _pace(self, session: ComparisonSession) -> float:
        """Seconds of the runs so far, as a multiple of what was planned; 1 before the first."""
        planned = sum(session.plan.expected_seconds(run) for run in session.complete())
        taken = session.plan.runs_seconds - self.plan.import_seconds * self.plan.has_server
        return max(taken, 0.0) / planned if planned else 1.0

    def _chosen(
        self, session: ComparisonSession, tried: Mapping[str, Candidate]
    ) -> tuple[Candidate, SearchAnswer]:
        """Return the chosen candidate, and what is known of it."""
        plan, place = self.plan, session.folder.path
        problem = problem_of(read_record(place / RUNS_NAME / session.complete()[0].name))
        metric = problem.metrics[self.state.metric]
        evidence = {
            name: found
            for name in tried
            if (found := read_evidence(place, session.plan, name, metric.name)) is not None
        }
        default = plan.default_candidate
        listed = choices(evidence, default.name, metric)
        winner = best(evidence, tried, listed, metric)
        candidate = default if winner is None else tried[winner]
        answer = SearchAnswer(
            chosen=candidate.name,
            settings={} if winner is None else plan.values(candidate),
            rows=len(evidence[default.name].losses),
            tried=len(tried) - 1,
            choices=listed,
            loss=loss_name(problem),
            metric=metric.title,
            is_share=metric.is_share,
        )
        return candidate, answer

    def _judge(self, candidate: Candidate, answer: SearchAnswer, pace: float) -> None:
        """Train both sides with new seeds, judge them on the test rows, and write the answer."""
        plan, default = self.plan, self.plan.default_candidate
        left = pace * plan.final_seconds(candidate)
        changes = candidate != default
        if changes and not (self.folder / FINAL).exists() and self._used() + left > plan.budget:
            self._write(is_judged=False)
        is_judged = changes and self.state.is_judged
        arms = [replace(plan.arm(candidate), name=CHOSEN)] if changes else []
        if is_judged or not changes:  # exactly the settings of the user
            arms.append(replace(plan.arm(default), name=DEFAULT, flags=()))
        command = comparison(
            self.settings,
            self.argv,
            self.classify,
            seeds=plan.seeds if is_judged else 1,
            output_dir=self.folder.path,
            keep_models="baseline",  # the first arm
        )
        design = replace(command.design, arm_settings=tuple(arms))
        with self._session(FINAL, replace(command, design=design)) as session:
            for arm, side in zip(arms, (candidate, default), strict=False):
                estimates = {**session.plan.arm_estimates, arm.name: plan.final_estimate(side)}
                session.plan = replace(session.plan, arm_estimates=estimates)
            if missing := session.missing():
                session.progress.follow(session.plan, missing)
                runs = counted(len(missing), "run")
                self._print("judgement" if is_judged else "model", runs, left)
            session.train(missing)
            place, runs_of_plan = session.folder.path / RUNS_NAME, session.plan.all_runs()
            if failed := session.missing():
                raise InputError(
                    f"{session.folder.path}: {counted(len(failed), 'run')} failed. See "
                    f"{session.folder.path / LOGS_NAME}, and repeat the command."
                )
        names = [run.name for run in runs_of_plan]
        model = next(run.name for run in runs_of_plan if run.arm.name == arms[0].name)
        if is_judged:
            answer = self._refereed(answer, place, names)
            for name in names:
                if name != model:
                    remove_weights(place / name)
        relative = str((place / model).relative_to(self.folder.path))
        self._write(answer=replace(answer, seconds=self._used(), model=relative))

    def _refereed(self, answer: SearchAnswer, place: Path, names: Sequence[str]) -> SearchAnswer:
        """Return the answer with what the referee says about the choice."""
        ledger = self.folder / LEDGER
        sides = {
            side: [place / name for name in names if name.startswith(f"{side}-seed")]
            for side in (CHOSEN, DEFAULT)
        }
        if not is_ledger(ledger):
            settings = LedgerSettings(metric=self.state.metric, tries=1, answers=OPEN)
            judge(ledger, best=sides[DEFAULT], settings=settings)
        try:
            found = judge(ledger, candidate=sides[CHOSEN])
        except IdenticalPredictions:
            same = GainEstimate(gain=0.0, lower=0.0, interval=(0.0, 0.0))
            drop = CandidateAnswer.DROP
            return replace(answer, answer=drop, estimate=same, judged_rows=self.plan.test_rows)
        trial = found.entry.trial
        assert trial is not None, "a candidate was judged"
        rows = found.state.test.examples
        return replace(answer, answer=trial.answer, estimate=trial.estimate, judged_rows=rows)


def _with_arm(plan: Plan, searched: SearchPlan, candidate: Candidate) -> Plan:
    """Return the plan of the candidates with one more, unless it has it."""
    arms = plan.design.arm_settings
    estimates: dict[str, CostEstimate] = {
        **plan.arm_estimates,
        candidate.name: searched.search_estimate(candidate),
    }
    if all(arm.name != candidate.name for arm in arms):
        arms = (*arms, searched.arm(candidate))
    design = replace(plan.design, arm_settings=arms)
    return replace(plan, design=design, arm_estimates=estimates)


def _described(plan: SearchPlan, folder: Path) -> str:
    """Return the lines of the plan."""
    rates = ", ".join(map(exact, plan.rates))
    lengths = ", ".join(map(str, plan.lengths))
    rows = counted(plan.validation_rows, "validation row")
    if plan.folds:
        rows = f"{plan.folds} folds of the rows that do not judge"
    planned, budget = map(approximate_duration, (plan.seconds, plan.budget))
    rate = "" if plan.default_rate is None else f"{exact(plan.default_rate)}, "
    kept = f"kept unless another is better by more than chance on {rows}"
    lines = [
        ("tries", f"learning rates {rates} and the default, for {lengths} {plan.unit}s"),
        ("default", f"{rate}{plan.length_text(plan.default)}; {kept}"),
        ("judges", f"on {counted(plan.test_rows, 'test row')}, with {plan.seeds} seeds per side"),
        ("time", f"at most about {planned} of {budget}"),
        ("folder", str(folder)),
    ]
    return "\n".join(labelled(*each) for each in lines)
