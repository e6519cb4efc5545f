"""What a search trains, rung by rung within a time, and which settings its rows prove to be better.

Successive halving (Jamieson and Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016): many learning rates train briefly, and the best third
of them train three times as long, each time. Hyperband (Li et al., JMLR 18, 2018), ASHA
(Li et al., MLSys 2020) and scikit-learn's HalvingGridSearchCV have the same factor. A run is not
continued from one rung to the next, because its learning rate falls to 0 at its own end; so each
rung is also a length that may be chosen.

The default is trained at its own length before all others. A candidate replaces it only if that is
shown on the same rows, with the level divided by the number of tests (Bonferroni): if its log loss
is lower and its primary metric no lower, or if its primary metric is higher. If several are better,
the one that trained longest is taken, unless a shorter one is better than it in the same sense.
With few rows, the best value of a metric is a worse choice than no choice: `benchmarks/LOG.md`,
"Which epoch to keep".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.comparison.execution.comparison_folder import planned_ending, run_folder
from ampft.comparison.execution.plan import CostEstimate, Plan, TrainingSize
from ampft.comparison.settings import ArmSettings
from ampft.comparison.statistics.folds import corrected_variance, estimate_over_folds
from ampft.errors import InputError
from ampft.features.validations import ERROR, LOSS, case_losses
from ampft.metrics.paired import LEVEL, paired_gain
from ampft.metrics.sums import CaseSums, Metric
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import check_files
from ampft.runs.predictions import read_groups, read_predictions
from ampft.tasks.outcome import Problem
from ampft.tasks.table import problem_types
from ampft.text.numbers import approximate_duration

FloatArray = npt.NDArray[np.float64]

FACTOR = 3
RATES = (0.1, 0.3, 3.0, 10.0)  # times the default learning rate
LENGTHS = (1 / FACTOR, 1, FACTOR)  # times the default length
FEW_ROWS, FOLDS = 200, 5  # With fewer validation rows, folds choose.
# The plan leaves a tenth for a busier machine, and seconds for this process.
RESERVE, OWN_SECONDS = 1.1, 15.0
SERVED_SECONDS, BASELINE_SECONDS, BASELINE_SHARE = 5.0, 5.0, 0.1  # at the end of runs that judge
EPOCHS, STEPS = "num_train_epochs", "max_train_steps"
DEFAULT = "default"
TESTS = 2  # for each candidate: its log loss, and its primary metric


def exact(rate: float) -> str:
    """Return a learning rate as text that gives the same number when it is read."""
    short = f"{rate:g}"
    return short if float(short) == rate else repr(rate)


@dataclass(frozen=True)
class Candidate:
    """Settings that a search trains."""

    rate: float | None  # Learning rate; None for the default.
    length: int  # Epochs or steps.

    @property
    def name(self) -> str:
        """Name of its arm."""
        return f"{DEFAULT if self.rate is None else f'rate-{exact(self.rate)}'}-{self.length}"


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What a search may train: fixed by timed steps before the first run."""

    rates: tuple[float, ...]  # Learning rates beside the default.
    lengths: tuple[int, ...]  # Length of each rung, ascending.
    setting: str  # Name of the setting of the length.
    default: int  # Length of the default.
    default_rate: float | None  # Its learning rate.
    folds: int  # Folds of the search; 0 for the validation rows.
    validation_rows: int
    test_rows: int
    seeds: int  # Seeds of the runs that judge, on each side.
    budget: float  # Seconds.
    trial_seconds: float  # Seconds of the trial, which count.
    mode: str  # Precision.
    has_server: bool  # Whether runs are forks of a process that has imported what they need.
    import_seconds: float
    estimate: CostEstimate  # Of a run of the default.

    @property
    def default_candidate(self) -> Candidate:
        """The default."""
        return Candidate(None, self.default)

    @property
    def unit(self) -> str:
        """What a length counts: "epoch" or "step"."""
        return "epoch" if self.setting == EPOCHS else "step"

    def length_text(self, length: int) -> str:
        return f"{length} {self.unit}{'s' if length != 1 else ''}"

    def values(self, candidate: Candidate) -> dict[str, Any]:
        """Return the settings of a candidate as keyword arguments of `ampft.finetune`."""
        rate = {} if candidate.rate is None else {"learning_rate": candidate.rate}
        return {**rate, self.setting: candidate.length}

    def flags(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the settings of a candidate."""
        rate = () if candidate.rate is None else ("--learning_rate", exact(candidate.rate))
        return (*rate, f"--{self.setting}", str(candidate.length))

    def arm(self, candidate: Candidate) -> ArmSettings:
        return ArmSettings(candidate.name, self.flags(candidate), self.mode)

    def rung(self, number: int, before: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates of a rung.

        Args:
            number: Number of the rung, from 0.
            before: Candidates of the rung before that finished, the best first.
        """
        length = self.lengths[number]
        if number == 0:
            return [Candidate(rate, length) for rate in (None, *self.rates)]
        return [replace(each, length=length) for each in before[: self.rung_size(number)]]

    def rung_size(self, number: int) -> int:
        """Return the number of candidates of a rung, if enough of the one before finished."""
        return math.ceil((1 + len(self.rates)) / FACTOR**number)

    def search_estimate(self, candidate: Candidate) -> CostEstimate:
        """Return what a run of the search costs: with folds, one of them."""
        found, rows = self._sized(candidate), self.estimate.size.train_examples
        reported = self.validation_rows
        if self.folds:
            whole = rows + self.validation_rows
            share = rows / whole
            rows = max(round(whole * (1 - 1 / self.folds) * share), 1)
            reported = -(-whole // self.folds)
        size = replace(found.size, train_examples=rows)
        return replace(found, size=size, final_examples=reported)

    def _sized(self, candidate: Candidate) -> CostEstimate:
        size = {"epochs" if self.setting == EPOCHS else "max_steps": candidate.length}
        imports = self.import_seconds if self.has_server else 0.0
        return replace(
            self.estimate,
            startup=max(self.estimate.startup - imports, 0.0),
            size=replace(self.estimate.size, **size),
        )

    def search_seconds(self, candidates: Sequence[Candidate]) -> float:
        """Return the seconds of the runs of candidates in the search."""
        estimates = [self.search_estimate(each) for each in candidates]
        return max(self.folds, 1) * sum(e.run_seconds(self.mode, e.size) for e in estimates)

    def final_estimate(self, candidate: Candidate) -> CostEstimate:
        """Return what a run that judges costs."""
        return self._sized(candidate)

    def final_seconds(self, chosen: Candidate) -> float:
        """Return the seconds of the runs that judge, or of the one run with the default."""
        sides = [chosen, self.default_candidate] if chosen != self.default_candidate else [chosen]
        seconds = self.import_seconds + BASELINE_SECONDS * len(sides)
        for side in sides:
            estimate = self.final_estimate(side)
            run = estimate.run_seconds(self.mode, estimate.size)
            runs = self.seeds if len(sides) > 1 else 1
            seconds += runs * run + BASELINE_SHARE * run
            seconds += SERVED_SECONDS * runs * (side == chosen)
        return seconds

    def remaining_seconds(self, number: int, rungs: int | None = None) -> float:
        """Return the seconds of the rungs from one on, and of the longest judgement after them.

        Args:
            number: Number of the first of these rungs.
            rungs: Number of these rungs; None for all that are left.
        """
        seconds, longest = 0.0, self.default
        end = len(self.lengths) if rungs is None else number + rungs
        for rung, length in enumerate(self.lengths[:end]):
            longest = max(longest, length)
            if rung >= number:
                candidates = [Candidate(math.inf, length)] * self.rung_size(rung)
                seconds += self.search_seconds(candidates)
        return seconds + self.final_seconds(Candidate(math.inf, longest))

    @property
    def seconds(self) -> float:
        """Seconds of the whole search, at most, as planned."""
        own = self.import_seconds + OWN_SECONDS + self.trial_seconds
        return own + RESERVE * (
            self.search_seconds([self.default_candidate]) + self.remaining_seconds(0)
        )


def default_length(estimate: CostEstimate) -> tuple[str, int]:
    """Return the setting of the length of a run, and its value."""
    size: TrainingSize = estimate.size
    return (EPOCHS, size.epochs) if size.max_steps is None else (STEPS, size.max_steps)


def plans(largest: SearchPlan, *, few: bool, own_rates: bool) -> Iterator[SearchPlan]:
    """Yield plans, the most thorough first.

    Args:
        largest: Plan with all rates and lengths.
        few: Whether folds choose if the time allows.
        own_rates: Whether the user named the rates, so that all of them are tried.
    """
    for folds in dict.fromkeys((FOLDS if few else largest.folds, largest.folds)):
        for rates, rungs in ((4, 3), (4, 2), (2, 2)):
            middle = (len(RATES) - rates) // 2
            kept = largest.rates if own_rates else largest.rates[middle : len(RATES) - middle]
            lengths = largest.lengths[: min(rungs, len(largest.lengths))]
            yield replace(largest, folds=folds, rates=kept, lengths=lengths)


def fitting_plan(largest: SearchPlan, *, few: bool, own_rates: bool, asked: str) -> SearchPlan:
    """Return the most thorough plan within the time.

    Args:
        asked: The time as the user wrote it.

    Raises:
        InputError: There is none.
    """
    every = list(plans(largest, few=few, own_rates=own_rates))
    for plan in every:
        if plan.seconds <= plan.budget:
            return plan
    least = min(every, key=lambda plan: plan.seconds)
    one = least.final_estimate(least.default_candidate)
    raise InputError(
        f"--time_budget {asked}: the smallest search takes about "
        f"{approximate_duration(least.seconds)}, because one training takes "
        f"{approximate_duration(one.run_seconds(least.mode, one.size))}, and {2 * least.seeds} of "
        f"them judge the choice. Raise the budget, shorten the training (--{least.setting}), or "
        "use the defaults with ampft train."
    )


@dataclass(frozen=True)
class Evidence:
    """What a candidate predicts on the rows of the search."""

    losses: FloatArray  # (n,) sum of the losses of each case, over all folds.
    units: FloatArray  # (n,) number of units of each case.
    sums: CaseSums  # Sums of the cases for the primary metric.
    folds: npt.NDArray[np.int64] | None  # (n,) fold of each case; None without folds.
    fingerprints: tuple[str, ...]  # Contents of the rows of each fold.

    @property
    def loss(self) -> float:
        return float(self.losses.sum() / self.units.sum())


def loss_name(problem: type[Problem]) -> str:
    """Return the name of the metric that is a mean of losses."""
    first = next(iter(problem.metrics))
    return next((name for name in (LOSS, ERROR) if name in problem.metrics), first)


def read_evidence(folder: Path, plan: Plan, name: str, metric: str) -> Evidence | None:
    """Return what the runs of an arm predict on the rows of the search; None if one did not finish.

    Raises:
        InputError: Its predictions were changed.
    """
    losses, units, sums, prints = [], [], [], []
    runs = [run for run in plan.all_runs() if run.arm.name == name]
    for run in runs:
        place = run_folder(folder, run)
        record = planned_ending(folder, run).record
        if record is None or record.status != "finished":
            return None
        check_files(place, record.files, [PREDICTIONS_NAME])
        outcome = read_predictions(place / PREDICTIONS_NAME)
        groups = read_groups(place / PREDICTIONS_NAME)
        found = outcome.sums(loss_name(problem_types()[outcome.kind])), outcome.sums(metric)
        of_loss, of_metric = (s if groups is None else s.grouped(groups.ids) for s in found)
        one, count = case_losses(of_loss)
        losses.append(one)
        units.append(count)
        sums.append(of_metric)
        prints.append(record.data.fingerprints[outcome.split])
    counts = [len(each) for each in losses]
    folds = np.repeat(np.arange(len(runs)), counts) if plan.design.folds else None
    return Evidence(
        np.concatenate(losses), np.concatenate(units), joined(sums), folds, tuple(prints)
    )


def joined(parts: Sequence[CaseSums]) -> CaseSums:
    """Return the sums of the cases of all parts, in their order."""
    from scipy.sparse import csr_array, vstack

    starts = np.cumsum([0, *(part.patterns.shape[0] for part in parts)])
    of = [part.pattern_of + start for part, start in zip(parts, starts, strict=False)]
    return CaseSums(csr_array(vstack([part.patterns for part in parts])), np.concatenate(of))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the rows of the search say about a candidate, compared with the default."""

    name: str
    loss: float  # Mean loss.
    loss_gain: float  # How much lower it is than the default's.
    loss_needed: float | None  # How much would be beyond chance; None if nothing would be.
    value: float | None  # Primary metric; None if it is undefined.
    value_gain: float | None  # How much better it is than the default's.
    value_needed: float | None

    @property
    def has_lower_loss(self) -> bool:
        """Whether its loss is lower beyond chance, and its primary metric no worse."""
        is_lower = self.loss_needed is not None and self.loss_gain > self.loss_needed
        return is_lower and self.value_gain is not None and self.value_gain >= 0

    @property
    def is_better(self) -> bool:
        """Whether it is better than the default by more than its uncertainty."""
        if self.value_gain is None or self.value_needed is None:
            return self.has_lower_loss
        return self.has_lower_loss or self.value_gain > self.value_needed


def compared(name: str, found: Evidence, default: Evidence, metric: Metric, tests: int) -> Choice:
    """Compare a candidate with the default on the same rows.

    Args:
        tests: Number of tests that share the level.

    Raises:
        InputError: They predict other rows.
    """
    from scipy.special import stdtrit

    if found.fingerprints != default.fingerprints:
        raise InputError(
            f"{name}: its runs predict other rows than the default. Choose another --output_dir."
        )
    tail = LEVEL / 2 / tests
    gain = paired_gain(default.losses, found.losses, default.units)
    needed = -float(stdtrit(gain.cases - 1, tail)) * gain.error if gain.cases > 1 else math.nan
    if default.folds is not None:
        gains, units = default.losses - found.losses, default.units
        apart = np.bincount(default.folds, gains) / np.bincount(default.folds, units)
        error = math.sqrt(corrected_variance(apart[None], np.bincount(default.folds)[None]))
        needed = max(needed, -float(stdtrit(len(apart) - 1, tail)) * error)
    value = metric.value(found.sums)
    sign, half = 1 if metric.higher_is_better else -1, math.nan
    try:
        folds = [default.folds]
        estimate = estimate_over_folds([found.sums], [default.sums], folds, metric)
        half = estimate.half_width(tail)
    except InputError:  # it is undefined, or would be without one of the cases
        pass
    return Choice(
        name=name,
        loss=found.loss,
        loss_gain=gain.mean,
        loss_needed=_defined(needed),
        value=_defined(value),
        value_gain=_defined(sign * (value - metric.value(default.sums))),
        value_needed=_defined(half),
    )


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) else None


def choices(evidence: Mapping[str, Evidence], default: str, metric: Metric) -> list[Choice]:
    """Compare all candidates with the default, the lowest loss first."""
    tests = TESTS * max(len(evidence) - 1, 1)
    found = [
        compared(name, each, evidence[default], metric, tests) for name, each in evidence.items()
    ]
    return sorted(found, key=lambda choice: choice.loss)


def best(
    evidence: Mapping[str, Evidence],
    tried: Mapping[str, Candidate],
    found: Sequence[Choice],
    metric: Metric,
) -> str | None:
    """Return the name of the candidate that replaces the default; None if none is better.

    Of several, it is the one that trained longest, unless a shorter one is better than that beyond
    chance: the rule by which a run keeps an epoch.

    Args:
        tried: Candidates by name.
        found: Comparisons with the default, the lowest loss first.
    """
    better = [each.name for each in found if each.is_better]
    if not better:
        return None
    longest = max(better, key=lambda name: tried[name].length)  # the lowest loss, of several
    shorter = [name for name in better if tried[name].length < tried[longest].length]
    tests = TESTS * max(len(shorter), 1)
    return next(
        (
            name
            for name in shorter
            if compared(name, evidence[name], evidence[longest], metric, tests).is_better
        ),
        longest,
    )
