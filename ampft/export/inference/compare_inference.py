"""`ampft compare --inference`: the same trained models predict in several precisions."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from torch import Tensor, nn

from ampft.comparison.analysis.loading import RecordedRun, find_runs
from ampft.comparison.analysis.predictions import (
    ALPHA,
    ArmPredictions,
    check_margin,
    read_texts,
    with_prediction_results,
)
from ampft.comparison.analysis.run_figures import environment, title
from ampft.comparison.analysis.run_predictions import (
    CaseInputs,
    Cases,
    RunPredictions,
    predictions_from_outcome,
    primary_metric,
    read_run_predictions,
)
from ampft.comparison.analysis.stamps import screening_stamp
from ampft.comparison.findings import (
    INFERENCE,
    ArmResult,
    BatchTiming,
    Comparison,
    Inference,
    RunOutcome,
    metric_infos,
)
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.settings import (
    MIN_SEEDS,
    PLACEBO,
    baseline_first,
    check_mode,
    parse_mode_list,
)
from ampft.comparison.statistics.speed_up import is_reliable_speed, speed_up
from ampft.errors import InputError
from ampft.export.int8 import INT8, Int8ProductCounter, quantize
from ampft.kinds.inputs import Reader
from ampft.kinds.logits import forward_logits
from ampft.machine import hardware, versions
from ampft.models.adapters import merge_adapters
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import numerics, training_device
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.modes import BASELINE, is_fp32
from ampft.precision.resolve import Precision, resolve
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import check_files, check_model_files
from ampft.runs.predictions import RESERVED_COLUMNS, read_predictions
from ampft.runs.predictor import saved_problem
from ampft.runs.record import RunRecord, TopologyPart
from ampft.runs.run_text import problem_of, task_row
from ampft.text.numbers import counted
from ampft.text.terminal import quiet_libraries

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


BATCH_SIZE, PLACEBO_BATCH_SIZE = 32, 8
AT, MAX_BATCH_SIZE = "@", 65_536  # between a precision and its batch size
TIMED_SIZES = (1, 32)
TIMED_BATCHES = 16  # different batches of each size


@dataclass
class _Arm:
    """An arm while its models predict."""

    name: str
    mode: str
    batch_size: int = BATCH_SIZE
    predictions: list[RunPredictions] = field(default_factory=list)
    executed: str | None = None
    size: int | None = None
    failure: str | None = None


def parse_inference_modes(text: str) -> tuple[str, ...]:
    """Return the precisions of a comma-separated list, the first fp32 first.

    A precision can have a batch size, as in "fp32@1,fp32@32,bf16@32".

    Raises:
        InputError: One is unknown or listed twice, a batch size is not at least 1, or nothing is
            compared with fp32.
    """
    if AT not in text:
        return baseline_first(parse_mode_list(FLAG, text, MODES))
    names: list[str] = []
    for part in text.split(","):
        mode, at, size = part.strip().lower().partition(AT)
        mode = BASELINE if is_fp32(mode) else mode
        check_mode(FLAG, text, mode, MODES)
        if at and not (size.isdecimal() and 0 < int(size) <= MAX_BATCH_SIZE):
            raise InputError(
                f"{FLAG}: received {text!r}; the batch size after {mode}{AT} must be a whole "
                f"number from 1 to {MAX_BATCH_SIZE:,}, such as {mode}{AT}32."
            )
        names.append(f"{mode}{AT}{int(size)}" if at else mode)
        if names.count(names[-1]) > 1:
            raise InputError(f"{FLAG}: received {text!r}; {names[-1]} appears twice.")
    baseline = next((name for name in names if name.partition(AT)[0] == BASELINE), BASELINE)
    ordered = (baseline, *(name for name in names if name != baseline))
    if len(ordered) == 1:
        raise InputError(
            f"{FLAG}: received {text!r}; give another precision or batch size to compare with, "
            f"such as {FLAG} fp32@1,fp32@32."
        )
    return ordered


def compare_inference(
    folders: Sequence[Path],
    modes: Sequence[str],
    *,
    metric: str | None = None,
    margin: float = 0.01,
) -> Comparison:
    """Let the models of runs predict their test split in several precisions, and compare.

    Args:
        folders: Output folders of runs with different seeds, otherwise alike.
        modes: Precisions from `parse_inference_modes`, some with a batch size.
        metric: Name of the primary metric; None uses the primary metric of the runs' task.
        margin: Equivalence margin as a fraction (0.01 is one point).

    Raises:
        InputError: The runs cannot be read or compared, an argument is out of range, or this
            machine cannot predict in a precision.
    """
    quiet_libraries()
    check_margin(margin)
    runs = _checked_runs(find_runs(folders))
    problem = problem_of(runs[0].record)
    name = primary_metric(metric, problem)
    device = training_device()
    arms: list[_Arm] = []
    for arm_name in modes:
        mode, _, size = arm_name.partition(AT)
        resolve_inference(mode, device)  # refuses before the first model predicts
        arms.append(_Arm(arm_name, mode, int(size) if size else BATCH_SIZE))
    arms.insert(1, _Arm(PLACEBO, BASELINE, PLACEBO_BATCH_SIZE))
    cases: Cases | None = None
    for run in runs:
        _, cases = read_run_predictions(run.folder / PREDICTIONS_NAME, cases, name)
    assert cases is not None
    for run in runs[1:]:
        hashes = {each.record.data.fingerprints.get(cases.split) for each in (runs[0], run)}
        if len(hashes) > 1:
            raise InputError(
                f"RUN: {runs[0].folder} and {run.folder} have different texts or weights in the "
                f"split {cases.split}. Pass runs that differ only in the seed."
            )
    weights = getattr(read_predictions(runs[0].folder / PREDICTIONS_NAME), "weights", None)
    columns = _texts(runs[0])
    timed: dict[str, ModelInPrecision] = {}
    for run in runs:
        saved = SavedModel.load(run.folder, run.record)
        for arm in arms:
            predictor = saved.predictor(arm.mode, device)
            _predict(arm, predictor, saved, columns, cases, name, weights)
            if run is runs[0]:
                arm.size = size_on_disk(predictor.model)
                timed[arm.name] = predictor
        if run is runs[0]:
            timings = _timings(timed, saved, columns, baseline=arms[0].name)
            timed = {}
    seeds = tuple(run.seed for run in runs)
    # This machine, where the models predict, instead of the training's
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    topology = TopologyPart(
        num_processes=1, cpu_threads=torch.get_num_threads(), device=device.type
    )
    here = replace(runs[0].record, hardware=hardware(gpus), versions=versions(), topology=topology)
    draft = Comparison(
        kind=INFERENCE,
        title=title([run.record for run in runs]),
        metric=name,
        metrics=metric_infos(problem),
        margin=margin,
        alpha=ALPHA,
        seed_counts=(len(seeds),),
        seeds=seeds,
        split=cases.split,
        examples=len(cases.truth),
        groups=cases.group_count,
        label_names=cases.class_names,
        arms=tuple(_result(arm, arms[0], timings.get(arm.name, ()), runs, device) for arm in arms),
        stamps=tuple(_stamps(runs, timings)),
        setup=_setup(runs, modes),
        environment=environment(here),
    )
    predictions = {arm.name: ArmPredictions(arm.predictions) for arm in arms if arm.failure is None}
    texts = partial(read_texts, runs[0].folder / PREDICTIONS_NAME)
    return with_prediction_results(
        draft, predictions, replace(cases, inputs=CaseInputs(texts, has_words=True))
    )


def _checked_runs(runs: Sequence[RecordedRun]) -> tuple[RecordedRun, ...]:
    """Return the runs by ascending seed.

    Raises:
        InputError: They are not finished runs of one arm on texts, with different seeds and models.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    if len(arms) != 1:
        raise InputError(
            f"{FLAG}: the runs were trained as {', '.join(arms) or 'none'}. Pass runs of one of "
            "them, such as the folders that begin with fp32 in the folder runs of a comparison."
        )
    ordered = sorted(runs, key=lambda run: run.seed)
    for run, previous in zip(ordered, (None, *ordered), strict=False):
        if run.record.status != "finished" or not task_row(run.record).kind.has_texts:
            raise InputError(
                f"RUN {run.folder}: the run is {run.record.status}, and its task is "
                f"{run.record.task}. Pass finished runs on texts."
            )
        if previous is not None and previous.seed == run.seed:
            raise InputError(
                f"RUN: {previous.folder} and {run.folder} have the same seed {run.seed}. Pass "
                "only one of them."
            )
        architectures = [each.record.model.architecture for each in (run, ordered[0])]
        if architectures[0] != architectures[1]:
            raise InputError(
                f"RUN: {ordered[0].folder} and {run.folder} have different models, "
                f"{architectures[1]} and {architectures[0]}. Pass runs that differ only in the "
                "seed."
            )
        record = run.record
        check_model_files(run.folder, record.files)
        check_files(run.folder, record.files, [PREDICTIONS_NAME])
    return tuple(ordered)


def _texts(run: RecordedRun) -> list[list[str]]:
    """Return the texts of the compared split, by input column, from the predictions of a run."""
    path = run.folder / PREDICTIONS_NAME
    names = [
        f"input_{name}" if name in RESERVED_COLUMNS else name
        for name in run.record.data.input_columns
    ]
    try:
        table = pq.ParquetFile(path.absolute()).read(columns=names)
        return [table[name].to_pylist() for name in names]
    except (OSError, pa.ArrowException, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: the texts in this file cannot be read ({reason}). Repeat the run."
        ) from error


def _predict(
    arm: _Arm,
    predictor: ModelInPrecision,
    saved: SavedModel,
    columns: Sequence[Sequence[str]],
    cases: Cases,
    metric: str,
    weights: npt.NDArray[np.float64] | None,
) -> None:
    """Predict all examples, longest first, and keep what the comparison needs.

    Args:
        weights: Weights of the examples in the metrics, as in the runs; None for 1.
    """
    lengths = np.array([sum(map(len, row)) for row in zip(*columns, strict=True)])
    order = np.argsort(-lengths, kind="stable")
    parts: list[dict[str, npt.NDArray[Any]]] = []
    for start in range(0, len(order), arm.batch_size):
        inputs = saved.tokens(columns, order[start : start + arm.batch_size].tolist())
        if arm.executed is None and not start:
            arm.executed = predictor.executed(inputs)
        with predictor.context():
            logits = predictor.logits(inputs)
        wrong = int((~torch.isfinite(logits)).any(dim=-1).sum())
        if wrong:
            found = f"{counted(wrong, 'prediction')} of a batch of {len(logits)} are not finite"
            arm.failure = arm.failure or found
            return
        parts.append(predictor.problem.decode(logits))
    back = np.argsort(order)
    rows = {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
    outcome = predictor.problem.outcome(cases.split, cases.truth, rows)
    if weights is not None:
        outcome = replace(outcome, weights=weights)
    arm.predictions.append(predictions_from_outcome(outcome, metric, cases.groups))


def _timings(
    predictors: Mapping[str, ModelInPrecision],
    saved: SavedModel,
    columns: Sequence[Sequence[str]],
    *,
    baseline: str,
) -> dict[str, tuple[BatchTiming, ...]]:
    """Time all arms that run natively, with examples in the order of the split."""
    native = {
        name: each.seconds for name, each in predictors.items() if not each.precision.is_emulated
    }
    count = len(columns[0])
    batches = {
        size: [
            saved.tokens(columns, [(number * size + k) % count for k in range(size)])
            for number in range(TIMED_BATCHES)
        ]
        for size in TIMED_SIZES
    }
    return time_in_turns(native, batches, baseline=baseline)


def _result(
    arm: _Arm,
    baseline: _Arm,
    timings: tuple[BatchTiming, ...],
    runs: Sequence[RecordedRun],
    device: torch.device,
) -> ArmResult:
    """Return an arm with its costs, without what its predictions show."""
    assert arm.size is not None
    assert baseline.size is not None
    failure = arm.failure
    if arm is baseline and failure:
        raise InputError(
            f"{FLAG}: the predictions of the model in {BASELINE} are not finite ({failure})."
        )
    return ArmResult(
        name=arm.name,
        mode=arm.mode,
        is_placebo=arm.name == PLACEBO,
        execution="emulated" if resolve_inference(arm.mode, device).is_emulated else "native",
        executed=arm.executed,
        status="failed" if failure else "complete",
        runs=tuple(
            RunOutcome(
                seed=run.seed,
                status="failed" if failure else "finished",
                reason=failure,
                folder=run.folder.resolve().name,
                warnings=run.record.training_warnings,
            )
            for run in runs
        ),
        inference=Inference(
            timings=timings,
            size=arm.size,
            size_ratio=None if arm is baseline else arm.size / baseline.size,
        ),
    )


def _stamps(
    runs: Sequence[RecordedRun], timings: Mapping[str, Sequence[BatchTiming]]
) -> Iterator[Remark]:
    if len(runs) < MIN_SEEDS:
        yield remark("few_models", models=len(runs), needed=MIN_SEEDS)
    yield from screening_stamp(len(runs))
    ratios = [each.speed_up.ratio for each in timings.get(PLACEBO, ()) if each.speed_up]
    unreliable = [ratio for ratio in ratios if not is_reliable_speed(ratio)]
    if unreliable:
        yield remark("unreliable_times", baseline=BASELINE, ratio=unreliable[0])
    warnings = [text for run in runs for text in run.record.training_warnings]
    if warnings:
        yield remark("suspect_model", warning=warnings[0])


def _setup(runs: Sequence[RecordedRun], modes: Sequence[str]) -> dict[str, str]:
    record = runs[0].record
    others = f"{PLACEBO_BATCH_SIZE} in the placebo"
    if any(AT in name for name in modes):
        others += f"; after {AT}, the size that is named"
    return {
        "model": f"{record.model.name}, {record.model.architecture}, "
        f"{record.model.parameters / 1e6:.1f} M parameters",
        "data": record.data.name,
        "trained in": runs[0].mode,
        "batches": f"{BATCH_SIZE} texts, longest first ({others})",
        "maximum sequence length": str(record.arguments["max_seq_length"]),
    }
