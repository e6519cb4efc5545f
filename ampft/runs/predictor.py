"""A saved model, ready to predict rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor, nn

from ampft.decision import CONTRACT_NAME, UNTOUCHED, Decisions, Rule
from ampft.engine.out_of_memory import is_out_of_memory
from ampft.errors import InputError
from ampft.evaluation.evaluate import as_array
from ampft.kinds.extension_points import PADDING_REMOVAL
from ampft.kinds.inputs import TRUNCATED, Reader
from ampft.kinds.logits import forward_logits, logits_of_rows
from ampft.kinds.prediction import PredictedRows, PredictRequest
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_saved
from ampft.models.tokenizer import read_contract
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import make_accelerator, numerics, training_device
from ampft.precision.compilation import turn_compilation_off
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import resolve
from ampft.runs.record import RunRecord
from ampft.runs.run_text import problem_of, task_row
from ampft.tasks.outcome import Problem, problem_with_rule

IntArray = npt.NDArray[np.int64]
MOST_IN_VAIN = 32  # rows that are tried before one is answered


def saved_problem(record: RunRecord, folder: Path) -> Problem:
    """Return the problem of a saved model, with the rule in its contract.

    Raises:
        InputError: The folder has no contract, or a damaged one.
    """
    problem_type, contract = problem_of(record), read_contract(folder)
    if contract is None:
        if hasattr(problem_type, "rule"):
            raise InputError(
                f"{SAVED_MODEL_FLAG} {folder}: {CONTRACT_NAME}, which says how the model decides, "
                "is missing. An earlier version of ampft trained it: repeat the run."
            )
        return problem_type.from_arguments(tuple(record.label_names), record.arguments)
    return problem_with_rule(problem_type, contract.rule)


@dataclass(frozen=True, eq=False)
class Predictor:
    """A saved model, ready to predict lists of inputs; enter `numerics` around the calls."""

    model: nn.Module  # Model in evaluation mode, or a module that calls another runtime.
    config: Any  # Configuration of the model.
    problem: Problem  # Decoding and outcome of the model's labels.
    reader: Reader  # Conversion of rows to the inputs of the model.
    batch_size: int  # Inputs per forward pass; of split texts, windows.
    numerics: AbstractContextManager[None]  # Context for the numerics of the precision.
    not_finite: str  # Message for logits that are not finite.

    @classmethod
    def of_run(cls, folder: Path, record: RunRecord, request: PredictRequest) -> Predictor:
        """Load the model of a run and its tokenizer or image processor.

        Args:
            request: Device and precision of the computation, and inputs per forward pass; of split
                texts, windows. What to predict is not read.
        """
        device = training_device(cpu=request.use_cpu)
        precision = resolve(canonical_mode(request.mixed_precision), device)
        accelerator = make_accelerator(precision)
        turn_compilation_off(accelerator)
        row = task_row(record)
        tensors = row.kind.tensors  # registers the models of the kind
        auto_class, trusts = getattr(transformers, row.model_class), request.trust_remote_code
        model = load_saved(auto_class, str(folder), trust_remote_code=trusts)
        config = model.config
        problem = saved_problem(record, folder)
        reader = tensors.saved_reader(folder, record.arguments, config)
        check_float32_modules(model, precision)
        cast_in_place(model, precision.storage_dtype)
        # A training that found other logits without padding ran with it. Older records do not say.
        removal = PADDING_REMOVAL.get()
        if removal is not None and record.model.padding_free is not False:
            removal.install_where_supported(model)
        remedy = "Use another model."
        if precision.mode != "fp32":
            remedy = "Use --mixed_precision fp32."
        return cls(
            model=accelerator.prepare(model).eval(),
            config=config,
            problem=problem,
            reader=reader,
            batch_size=min(request.batch_size, row.kind.max_rows or request.batch_size),
            numerics=numerics(precision),
            not_finite=f"--mixed_precision {precision.mode}: the model's predictions are not finite"
            f" in this precision. {remedy}",
        )

    @property
    def decisions(self) -> Decisions:
        """What was fitted on validation."""
        rule: Rule | None = getattr(self.problem, "rule", None)
        return UNTOUCHED if rule is None else rule.decisions

    def __call__(self, columns: Sequence[Sequence[Any]]) -> PredictedRows:
        """Predict rows, in batches of similar length.

        Raises:
            InputError: The model cannot take a row.
        """
        predicted, refused = self.answer(columns)
        for row, reason in refused.items():
            raise InputError(f"row {row + 1}: {reason}")
        return predicted

    def answer(self, columns: Sequence[Sequence[Any]]) -> tuple[PredictedRows, dict[int, str]]:
        """Predict the rows that the model can take, in batches of similar length.

        Returns:
            The predictions of the others, in their order, and why the model cannot take a row, by
            its index.
        """
        refused: dict[int, str] = {}
        order, parts, truncated = [], [], 0
        for rows, inputs, logits in self._batches(columns, refused):
            order.append(rows)
            truncated += int(inputs[TRUNCATED].sum()) if TRUNCATED in inputs else 0
            decoded = self.problem.decode(logits, inputs)
            parts.append({name: as_array(tensor) for name, tensor in decoded.items()})
        if not parts:
            return self.no_rows(), refused
        back = np.argsort(np.concatenate(order))
        decoded = {name: np.concatenate([p[name] for p in parts])[back] for name in parts[0]}
        labels, confidence = zip(*self.problem.predicted(decoded), strict=True)
        answered = self.decisions.answered(np.array(confidence, dtype=np.float32))
        predicted = PredictedRows(
            list(labels),
            list(confidence),
            decoded,
            self.problem.label_names,
            None if answered is None else answered.tolist(),
            truncated,
        )
        return predicted, refused

    def no_rows(self) -> PredictedRows:
        """Return the predictions of no rows, which have the same columns."""
        names = self.problem.label_names
        answered: list[bool] | None = None if self.decisions.abstention is None else []
        rule: Rule | None = getattr(self.problem, "rule", None)
        decoded = "values" if rule is not None and rule.numbers else "probabilities"
        return PredictedRows([], [], {decoded: np.zeros((0, len(names)))}, names, answered)

    def logits(self, columns: Sequence[Sequence[Any]]) -> npt.NDArray[np.float32]:
        """Return the logits of n rows in their order, computed in batches of similar length.

        Returns:
            (n, K) float32; for words (m, K), with the m words of all sentences in order; for pixels
            (n, K, h, w) in the size of the model's output.
        """
        of_rows: dict[int, npt.NDArray[np.float32]] = {}
        for rows, inputs, logits in self._batches(columns, None):
            of_batch = logits_of_rows(logits, inputs, len(rows))
            of_rows |= {int(row): as_array(part) for row, part in zip(rows, of_batch, strict=True)}
        return np.concatenate([of_rows[row] for row in range(len(of_rows))])

    def _batches(
        self, columns: Sequence[Sequence[Any]], refused: dict[int, str] | None
    ) -> Iterator[tuple[IntArray, Mapping[str, Tensor], Tensor]]:
        """Yield the rows of each batch, its inputs and its logits.

        Args:
            refused: Takes the rows that the model cannot take, each of which is tried alone; None
                raises.

        Raises:
            InputError: The model cannot take a row, or none of the first `MOST_IN_VAIN`.
        """
        lengths = [self.reader.length(row) for row in zip(*columns, strict=True)]
        order = np.argsort(-np.array(lengths), kind="stable")
        batches = np.split(order, range(self.batch_size, len(order), self.batch_size))
        answered = 0
        while batches:
            rows = batches.pop(0)
            try:
                found = self._forward([[column[row] for row in rows] for column in columns])
            except InputError as error:
                if refused is None:
                    raise
                if len(rows) > 1:
                    batches[:0] = np.split(rows, len(rows))
                    continue
                refused[int(rows[0])] = str(error)
                if not answered and len(refused) >= min(len(order), MOST_IN_VAIN):
                    raise
                continue
            answered += len(rows)
            yield rows, *found

    @torch.no_grad()
    def _forward(self, columns: list[list[Any]]) -> tuple[Mapping[str, Tensor], Tensor]:
        try:
            inputs = self.reader.collate(columns)
            logits = forward_logits(self.model, inputs, max_rows=self.batch_size)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
            if is_out_of_memory(error):
                raise
            raise self.reader.refused(columns, self.model, error) from error
        if not torch.isfinite(logits).all():
            raise InputError(self.not_finite)
        return inputs, logits
