"""A saved model, ready to predict rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ampft.errors import InputError
from ampft.evaluation.evaluate import as_array
from ampft.kinds.logits import forward_logits
from ampft.kinds.prediction import Decoded, Predictions
from ampft.models.packing.families import packing_support
from ampft.models.packing.install import install_packing
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import make_accelerator, numerics, training_device
from ampft.precision.compilation import turn_compilation_off
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import resolve
from ampft.runs.record import RunRecord
from ampft.runs.show import problem_of, task_row
from ampft.tasks.outcome import THRESHOLDS, Problem
from ampft.training.out_of_memory import is_out_of_memory


def saved_problem(record: RunRecord, config: Any) -> Problem:
    """Return the problem of a saved model, with the thresholds in its configuration.

    Args:
        record: Record of the run.
        config: Configuration of its model.
    """
    tuned = {THRESHOLDS: getattr(config, THRESHOLDS, None)}
    problem_type = problem_of(record)
    return problem_type.from_arguments(tuple(record.label_names), {**record.arguments, **tuned})


class Predictor:
    """A saved model, ready to predict lists of inputs; enter `numerics` around the calls.

    Attributes:
        numerics: Context for the numerics of the precision.
        config: Configuration of the model.
        problem: Decoding and outcome of the model's labels.
    """

    def __init__(self, folder: Path, record: RunRecord, mode: str, batch_size: int) -> None:
        """Load the model and its tokenizer or image processor.

        Args:
            folder: Folder of a finished run.
            record: Its record.
            mode: Precision of the computation.
            batch_size: Inputs per forward pass; of split texts, windows.
        """
        precision = resolve(canonical_mode(mode), training_device())
        self._mode = precision.mode
        accelerator = make_accelerator(precision)
        turn_compilation_off(accelerator)
        self.numerics = numerics(precision)
        row = task_row(record)
        tensors = row.kind.tensors  # registers the models of the kind
        model = load_saved(getattr(transformers, row.model_class), str(folder))
        self.config = model.config
        self.problem = saved_problem(record, model.config)
        self._reader = tensors.saved_reader(folder, record.arguments, model.config)
        self._batch_size = min(batch_size, row.kind.max_rows or batch_size)
        check_float32_modules(model, precision)
        cast_in_place(model, precision.storage_dtype)
        # A training that found other logits without padding ran with it. Older records do not say.
        if packing_support(model).supported and record.model.padding_free is not False:
            install_packing(model)
        self._model = accelerator.prepare(model).eval()

    def __call__(self, columns: Sequence[Sequence[Any]]) -> Predictions:
        """Predict rows, in batches of similar length.

        Args:
            columns: Inputs of the rows, one sequence per input column.
        """
        lengths = [self._reader.length(row) for row in zip(*columns, strict=True)]
        order = np.argsort(-np.array(lengths), kind="stable")
        parts = [
            self._decode([[column[row] for row in rows] for column in columns])
            for rows in np.split(order, range(self._batch_size, len(order), self._batch_size))
        ]
        back = np.argsort(order)
        decoded = {name: np.concatenate([p[name] for p in parts])[back] for name in parts[0]}
        labels, confidence = zip(*self.problem.predicted(decoded), strict=True)
        return Predictions(list(labels), list(confidence), decoded, self.problem.label_names)

    @torch.no_grad()
    def _decode(self, columns: list[list[Any]]) -> Decoded:
        try:
            inputs = self._reader.collate(columns)
            logits = forward_logits(self._model, inputs, max_rows=self._batch_size)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
            if is_out_of_memory(error):
                raise
            refusal = self._reader.refused(columns, type(self._model).__name__, error)
            if refusal is None:
                raise
            raise refusal from error
        if not torch.isfinite(logits).all():
            remedy = "Use another model." if self._mode == "fp32" else "Use --mixed_precision fp32."
            raise InputError(
                f"--mixed_precision {self._mode}: the model's predictions are not finite in this "
                f"precision. {remedy}"
            )
        return {name: as_array(t) for name, t in self.problem.decode(logits, inputs).items()}
