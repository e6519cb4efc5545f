"""A trained model, ready to predict in one precision, with proof of what it executes and costs."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ampft.comparison.cost_findings import BatchTiming
from ampft.comparison.statistics.speed_up import speed_up
from ampft.errors import InputError
from ampft.kinds.inputs import Reader
from ampft.kinds.logits import forward_logits
from ampft.lab.export.int8 import INT8, Int8ProductCounter, quantize
from ampft.models.adapters import merge_adapters
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import numerics
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision, resolve
from ampft.runs.predictor import saved_problem
from ampft.runs.record import RunRecord
from ampft.runs.show import task_row

FLAG = "--inference"
MODES = (BASELINE, "tf32", "bf16", "fp16", "bf16-true", INT8)
MIN_ROUNDS, MAX_ROUNDS = 7, 40  # of times in turns
SECONDS = 20.0  # per batch size, after which no further round starts


def resolve_inference(mode: str, device: torch.device) -> Precision:
    """Return the precision of everything that is not quantized: for int8, float32.

    Raises:
        InputError: The device does not support the mode.
    """
    return resolve(BASELINE if mode == INT8 else mode, device, flag=FLAG)


@dataclass
class ModelInPrecision:
    """A model in one precision."""

    mode: str  # One of `MODES`.
    precision: Precision  # Precision of the parts that are not quantized.
    model: nn.Module  # Model on its device, in evaluation mode, without ampft's padding-free path.
    problem: Any  # Problem that decodes its logits.

    @contextmanager
    def context(self) -> Iterator[None]:
        """Enter the numerics of the precision, without gradients."""
        precision = self.precision
        with (
            numerics(precision),
            torch.no_grad(),
            torch.autocast(
                precision.device_type,
                dtype=precision.compute_dtype if precision.uses_autocast else None,
                enabled=precision.uses_autocast,
            ),
        ):
            yield

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (m, K) float32 logits; call it inside `context`."""
        return forward_logits(self.model, inputs)

    def seconds(self, batch: Mapping[str, Tensor]) -> float:
        """Return the time of the forward pass of a batch, without tokenization."""
        with self.context():
            self._wait()
            start = time.perf_counter()
            self.logits(batch)
            self._wait()
            return time.perf_counter() - start

    def _wait(self) -> None:
        if self.precision.device_type == "cuda":
            torch.cuda.synchronize()

    def executed(self, inputs: Mapping[str, Tensor]) -> str:
        """Predict one batch, check the dtypes of its products, and return them in one clause.

        Raises:
            InputError: The executed dtypes do not match the mode.
        """
        recorder, integers = ProductRecorder(self.precision), Int8ProductCounter()
        with self.context(), recorder, integers:
            try:
                self.logits(inputs)
            except (AttributeError, RuntimeError) as error:
                raise InputError(
                    f"{FLAG} {self.mode}: {type(self.model).__name__} cannot predict in it "
                    f"({str(error).splitlines()[0]}). Leave {self.mode} out."
                ) from error
        census = recorder.census(self.model)
        if self.mode != INT8:
            found = precision_contradiction(self.precision, census, where="the first batch")
            if found is not None:
                raise InputError(f"{FLAG} {self.mode}: {found}. Leave {self.mode} out.")
            return census.summary()
        products = sum(row.count for row in census.rows if row.kind != "attention")
        if not integers.products:
            raise InputError(
                f"{FLAG} int8: no product was executed in int8 although the layers are quantized. "
                "Leave int8 out."
            )
        share = f"{integers.products} of {products}"
        return (
            f"linear layers int8 x int8 ({share} products with weights, recorded); everything else "
            "float32"
        )


@dataclass(frozen=True)
class SavedModel:
    """A finished run's model and the conversion of texts, from which predictors are made."""

    folder: Path  # Folder of the run.
    record: RunRecord  # Its record.
    model: nn.Module  # Float32 model on the CPU.
    reader: Reader  # Conversion of texts to the inputs of the model.

    @classmethod
    def load(cls, folder: Path, record: RunRecord) -> SavedModel:
        row = task_row(record)
        model = load_saved(getattr(transformers, row.model_class), str(folder)).eval()
        merge_adapters(model)  # as for deployment; int8 could not quantize around them
        reader = row.kind.tensors.saved_reader(folder, record.arguments, model.config)
        return cls(folder, record, model, reader)

    def predictor(self, mode: str, device: torch.device) -> ModelInPrecision:
        precision = resolve_inference(mode, device)
        model = quantize(self.model) if mode == INT8 else copy.deepcopy(self.model)
        check_float32_modules(model, precision)
        cast_in_place(model, precision.storage_dtype)
        problem = saved_problem(self.record, self.folder)
        return ModelInPrecision(mode, precision, model.to(device).eval(), problem)

    def tokens(self, columns: Sequence[Sequence[str]], rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the padded inputs of some examples, truncated or in windows as in training.

        Args:
            columns: Texts of all examples, by input column.
        """
        return dict(self.reader.collate([[column[row] for row in rows] for column in columns]))


def size_on_disk(model: nn.Module) -> int:
    """Return the size of the weights as torch saves them, in bytes."""
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)
        return file.tell()


def time_in_turns(
    predictors: Mapping[str, Callable[[Any], float]],
    batches: Mapping[int, Sequence[Any]],
    *,
    baseline: str,
    seconds: float = SECONDS,
) -> dict[str, tuple[BatchTiming, ...]]:
    """Return the times of every arm by ascending batch size, and the arms' ratios to the baseline.

    In each round, every arm predicts the same batch once, and another arm begins, so that other
    load affects every arm alike. The first round is a warm-up.

    Args:
        predictors: Functions that predict a batch and return its time, without what only prepares
            it, by name of the arm.
        batches: Inputs by batch size; the rounds use them in turns.
        baseline: Name of the arm that the ratios refer to.
        seconds: Time per batch size after which no further round starts.
    """
    rounds = {size: _rounds(predictors, some, seconds) for size, some in sorted(batches.items())}
    return {
        name: tuple(
            _timing(size, np.array(times[name]), None if name == baseline else times[baseline])
            for size, times in rounds.items()
        )
        for name in predictors
    }


def _rounds(
    predictors: Mapping[str, Callable[[Any], float]], batches: Sequence[Any], seconds: float
) -> dict[str, list[float]]:
    names = list(predictors)
    times: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for number in range(MAX_ROUNDS + 1):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            taken = predictors[name](batches[number % len(batches)])
            if number:
                times[name].append(taken)
        if number >= MIN_ROUNDS and time.perf_counter() - start > seconds:
            break
    return times


def _timing(size: int, seconds: np.ndarray, baseline: Sequence[float] | None) -> BatchTiming:
    low, middle, high = (float(value) for value in np.quantile(seconds, (0.25, 0.5, 0.75)))
    return BatchTiming(
        batch_size=size,
        seconds=middle,
        quartiles=(low, high),
        speed_up=None
        if baseline is None
        else speed_up((np.array(baseline) / seconds).tolist(), in_turns=True),
    )
