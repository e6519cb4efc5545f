"""`--calibrate`, `--tune_thresholds`, `--abstain`: decisions fitted on the validation split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ampft.data.splits import dependent_groups
from ampft.decision import CONTRACT_NAME, Abstention, Contract, Decisions
from ampft.features.decision_figures import FittedPart, fitted_part
from ampft.features.feature import Feature
from ampft.files import write_text
from ampft.metrics.abstention import (
    ValidationHalves,
    candidate_confidences,
    least_confidence,
    split_in_halves,
)
from ampft.metrics.calibration import HIGHEST, LOWEST
from ampft.tasks.loss_settings import ValidationFitSettings
from ampft.tasks.outcome import Outcome, TunableOutcome
from ampft.tasks.task import Task
from ampft.tasks.tuning import fit_decisions, label_columns, select_rows, with_decisions


def validation_halves(task: Task) -> ValidationHalves:
    """Return the parts of the validation split of a run with `--abstain`."""
    groups = dependent_groups(task.data, "validation")
    rows = len(task.data.splits["validation"])
    return split_in_halves(rows, None if groups is None else groups.ids)


@dataclass
class FittedDecisions(Feature):
    """Decides by numbers fitted on the validation split, and saves them with the model.

    With `--abstain`, one half of the split is kept for the promise: validations are of the other
    half, so that neither the choice of the weights nor any other number has seen it.
    """

    name = "decisions"

    settings: ValidationFitSettings  # What is fitted.
    task: Task  # Task of the run.
    _validation: TunableOutcome | None = None
    _decisions: Decisions | None = None
    _untouched: TunableOutcome | None = None

    @cached_property
    def _halves(self) -> ValidationHalves:
        return validation_halves(self.task)

    def decided(self, outcome: Outcome, validation: Callable[[], Outcome]) -> Outcome:
        """Return the outcome with fitted decisions: a validation with its own.

        Those of any other split are fitted once, by the weights that are saved.
        """
        assert isinstance(outcome, TunableOutcome), "checked with the other arguments"
        if outcome.split == "validation":
            self._validation = outcome
            return fit_decisions(self._seen(outcome), self.settings, self.task.class_weights)
        if self._decisions is None:
            fitted = validation()
            assert isinstance(fitted, TunableOutcome)
            self._decisions, self._untouched = self._with_promise(fitted), outcome
        return with_decisions(outcome, self._decisions)

    def _seen(self, validation: TunableOutcome) -> TunableOutcome:
        """Return the validation rows that numbers are fitted on."""
        if self.settings.abstain is None:
            return validation
        return select_rows(validation, self._halves.fit)

    def _with_promise(self, fitted: TunableOutcome) -> Decisions:
        """Return the decisions of a validation, and which rows are answered."""
        error, decisions = self.settings.abstain, fitted.decisions
        if error is None:
            return decisions
        assert self._validation is not None, "predicted with the fitted outcome"
        proof = with_decisions(select_rows(self._validation, self._halves.promise), decisions)
        candidates = candidate_confidences(fitted.confidence, fitted.correct, error)
        least = least_confidence(candidates, proof.confidence, proof.correct, error)
        return replace(decisions, abstention=Abstention(error, least))

    @cached_property
    def _part(self) -> FittedPart | None:
        if self._untouched is None or self._decisions is None or self._validation is None:
            return None
        groups = dependent_groups(self.task.data, self._untouched.split)
        has_labels, _ = label_columns(self._seen(self._validation))
        return fitted_part(
            self._untouched,
            with_decisions(self._untouched, self._decisions),
            self.settings,
            fitted_on=self._halves if self.settings.abstain is not None else len(self._validation),
            groups=None if groups is None else groups.ids,
            labelled=has_labels.sum(axis=0),
        )

    def save_results(self, folder: Path) -> None:
        """Add the decisions to the contract in a folder."""
        assert self._decisions is not None, "the final split is predicted before"
        contract = Contract.read(folder)
        rule = replace(contract.rule, decisions=self._decisions)
        write_text(folder / CONTRACT_NAME, replace(contract, rule=rule).text())

    def record(self) -> Mapping[str, Any]:
        """Return what was fitted, and what it changes on the final split."""
        return {} if self._decisions is None else {"decisions": self._part}

    def warnings(self) -> Mapping[str, str]:
        return {} if self._decisions is None else decision_warnings(self.settings, self._decisions)


def decision_warnings(settings: ValidationFitSettings, decisions: Decisions) -> dict[str, str]:
    """Return what was asked for and could not be fitted, by name."""
    found = {}
    if settings.calibrate and decisions.temperature is None:
        found["temperature"] = (
            f"--calibrate: no temperature between {LOWEST:g} and {HIGHEST:g} has the lowest log "
            "loss on the validation split, for example because every row is right. The "
            "probabilities are unchanged."
        )
    if decisions.abstention is not None and decisions.abstention.least_confidence is None:
        found["abstention"] = (
            f"--abstain {decisions.abstention.error:g}: the validation split does not prove this "
            "promise at any confidence, so no row is answered. Promise a larger error, use more "
            "validation rows, or a better model."
        )
    return found
