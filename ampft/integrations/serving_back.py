"""Serves a saved run back: do plain clients give its predictions from its folder?

A run compares ampft with ampft, so that what its training and its evaluation misunderstand alike
goes unseen. Here `transformers.pipeline` gets what its user would type, `ampft predict` gets the
user's file, and their answers are held against predictions.parquet.
"""

from __future__ import annotations

import gc
import io
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image

from ampft.data.dataset import RAW_TEXT_COLUMN, ClassificationData
from ampft.data.splits import FILE_COLUMN, NUMBER_COLUMNS
from ampft.decision import (
    ABSTENTION,
    CONTRACT_NAME,
    POSITIVE_LABEL,
    POSITIVE_THRESHOLD,
    TEMPERATURE,
    THRESHOLDS,
    Contract,
    column_starts,
    entities,
    is_bio,
    most_probable_of_columns,
    template,
    unambiguous_separator,
)
from ampft.errors import InputError
from ampft.integrations.pipeline_answers import (
    Answer,
    NoPipelineAnswers,
    Question,
    entities_differ,
    other_picture,
)
from ampft.kinds.prediction import PredictRequest
from ampft.kinds.views import MASK_COLUMN
from ampft.models.minilm import HUB_ID, default_model
from ampft.precision.accelerator import numerics
from ampft.precision.modes import BASELINE, FORMATS, MODE_TABLE, is_fp32
from ampft.precision.resolve import resolve
from ampft.runs.caller_state import caller_state_kept
from ampft.runs.client_answers import PIPELINE, PREDICT, SERVER, ServedClient, ServedPart
from ampft.runs.predict import recorded_training
from ampft.runs.predictions import read_rows
from ampft.runs.predictor import Predictor
from ampft.runs.prepared import configuration_of, saved_preprocessing
from ampft.runs.record import RunRecord
from ampft.runs.run_text import holds_adapters, pipeline_arguments, problem_of, task_row
from ampft.tasks.outcome import Outcome, TunableOutcome
from ampft.text.escaping import inert
from ampft.text.terminal import quiet_libraries

PREDICTIONS = "predictions.parquet"
ROWS = 40
SECONDS = 5.0  # of each client; at least one batch is asked
BATCH = 4  # rows between two looks at the clock
SAME = 1e-4  # largest difference of probabilities in float32 that is rounding; usually 1e-6
SAME_PIXELS = 1e-3  # largest share of the pixels of a mask that rounding changes
# Largest difference in another precision, as a multiple of the distance from 1 to the next number.
ROUNDINGS, LARGEST = 16, 0.25
LARGE = 50_000_000  # parameters of a model whose copies are removed at once
LISTED = 3  # settings in a sentence
# Entries of decision.json that a pipeline does not read.
UNUSED = {
    TEMPERATURE: "the temperature",
    THRESHOLDS: "the tuned thresholds",
    POSITIVE_LABEL: "the tuned threshold",
    POSITIVE_THRESHOLD: "the tuned threshold",
    ABSTENTION: "the abstention",
}
IN_A_FILE = [name for name, shown in NUMBER_COLUMNS.items() if shown != "position"]


@dataclass(frozen=True, kw_only=True)
class OtherRuntime:
    """The model of a run in another runtime: an artifact."""

    run: Path  # Folder of the run.
    precision: str  # Precision of the artifact.
    predictor: Predictor  # What `ampft predict` calls.
    model: Any  # Model for a pipeline of transformers, or None to load it from the folder.
    # Function that returns the shown columns of texts or sentences, as a server without ampft gives
    # them; None for other inputs.
    answer: Callable[[Sequence[Any]], Mapping[str, list[Any]]] | None


def serve_back(
    folder: Path,
    record: RunRecord,
    outcome: Outcome,
    data: ClassificationData,
    runtime: OtherRuntime | None = None,
) -> ServedPart:
    """Ask plain clients about some rows of the final split, and compare their answers.

    Whatever a client raises is its answer: this never fails.

    Args:
        folder: Folder with the saved model and predictions.parquet.
        runtime: What predicts in the folder, if it is an artifact.
    """
    served = _Served(folder, record, outcome, data, runtime)
    # With a device, because Accelerate would look for one by waiting for processes that have ended.
    # An artifact predicts on the CPU, wherever its model was trained.
    plain = resolve(BASELINE, record.topology.device if runtime is None else "cpu")
    with caller_state_kept(), numerics(plain):
        quiet_libraries()
        warnings.simplefilter("ignore")
        clients = [served.compared(PREDICT, served.predict_answers())]
        if record.model.parameters > LARGE:
            gc.collect()  # so that there are at most two copies of the model
        clients.insert(0, served.compared(PIPELINE, served.pipeline_answers()))
        if runtime is not None and runtime.answer is not None:
            clients.append(served.shown_by(runtime.answer))
    return ServedPart(
        split=outcome.split,
        clients=clients,
        causes=tuple(
            dict.fromkeys(
                [*served.other_decisions(), *served.other_preprocessing(), *served.causes]
            )
        ),
        notes=tuple(served.notes()),
    )


def tolerance_of(mode: str) -> float:
    """Return the largest difference of a probability that rounding in a mode explains."""
    row = MODE_TABLE[BASELINE if is_fp32(mode) else mode]
    if row.name == BASELINE:
        return SAME
    name = "tf32" if row.allows_tf32 else row.compute
    epsilon = next(each.epsilon for each in FORMATS if each.name == name)
    return min(ROUNDINGS * epsilon, LARGEST)


@dataclass
class _Served:
    """The rows that are asked about, and what is found out about the answers."""

    folder: Path
    record: RunRecord
    outcome: Outcome
    data: ClassificationData
    runtime: OtherRuntime | None = None
    causes: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    other_labels: int = 0  # Rows whose class a pipeline takes without the run's decisions.
    other_entities: int = 0  # Sentences in which a pipeline joins words to other entities.
    source: str = ""  # What ampft predict reads.
    reader: Any = None  # Conversion of rows by ampft predict.
    unasked: list[str] = field(default_factory=list)  # Clients that were not asked, and why.
    inputs: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    pipe: Any = None

    @cached_property
    def row(self) -> Any:
        return task_row(self.record)

    @cached_property
    def tolerance(self) -> float:
        """Largest difference of a probability that rounding explains."""
        mode = tolerance_of(str(self.record.precision.resolved.get("mode", BASELINE)))
        if self.runtime is None:
            return mode
        is_int8 = self.runtime.precision not in MODE_TABLE
        return LARGEST if is_int8 else max(mode, tolerance_of(self.runtime.precision))

    @cached_property
    def scale(self) -> float:
        """What a difference is divided by: of numbers, the largest one; otherwise 1."""
        if not self.row.number_labels:
            return 1.0
        return float(np.abs(self.outcome.choices).max()) or 1.0

    @cached_property
    def rows(self) -> list[int]:
        """Rows of the split, spread evenly; fewer of images with masks, which are large."""
        largest, count = self.row.kind.max_rows, len(self.outcome)
        limit = min(count, ROWS if largest is None else 2 * largest)
        return [int(row) for row in np.unique(np.linspace(0, count - 1, limit).round())]

    @cached_property
    def expected(self) -> dict[int, Answer]:
        """The answers in predictions.parquet."""
        if self.row.number_labels:
            found = self._stored(("prediction",))
            return {row: np.array([[cells["prediction"]]]) for row, cells in found.items()}
        wanted = ("probabilities", MASK_COLUMN)
        found = self._stored(wanted)
        classes = len(self.record.label_names)
        return {
            row: _mask(cells[MASK_COLUMN])
            if MASK_COLUMN in cells
            else np.asarray(cells["probabilities"], dtype=np.float64).reshape(-1, classes)
            for row, cells in found.items()
        }

    def compared(self, client: str, answers: Iterator[tuple[int, Answer, Any]]) -> ServedClient:
        """Return how the answers of a client compare with the predictions.

        Args:
            answers: Row, answer, and the predicted class or labels if the client decides.
        """
        tolerance = self.tolerance
        asked, equal, largest, problem = 0, 0, 0.0, None
        unlike: int | None = None
        try:
            for row, answer, choice in answers:
                expected = self.expected[row]
                difference = _difference(answer, expected) / self.scale
                limit = tolerance if answer.dtype.kind == "f" else max(tolerance, SAME_PIXELS)
                asked, largest = asked + 1, max(largest, difference)
                if difference <= limit and not self._decides_otherwise(row, choice, difference):
                    equal += 1
                elif unlike is None:
                    unlike = row
            if unlike is not None:
                self.causes += self._causes(client, unlike)
        except NoPipelineAnswers as reason:
            self.unasked.append(f"{client} was not asked: {reason}.")
        except Exception as error:  # whatever a plain client meets in this folder
            problem = _reason(error, self.folder)
        return self._client(client, asked, equal, largest, problem)

    def shown_by(self, answer: Callable[[Sequence[Any]], Mapping[str, list[Any]]]) -> ServedClient:
        """Return how what a server shows compares with the columns of predictions.parquet."""
        names = ("prediction", "confidence", "answered")
        asked, equal, largest, problem = 0, 0, 0.0, None
        try:
            shown = answer([_as_typed(self._question(row)) for row in self.rows])
            for number, (row, stored) in enumerate(self._stored(names).items()):
                found = {name: values[number] for name, values in shown.items() if name in names}
                compared = "prediction" if self.row.number_labels else "confidence"
                difference = abs(found.pop(compared) - stored.pop(compared)) / self.scale
                is_same = self.row.number_labels or found == self._as_shown(stored)
                asked, largest = asked + 1, max(largest, difference)
                equal += difference <= self.tolerance and (
                    is_same or self._is_close(row, difference)
                )
        except NoPipelineAnswers as reason:
            self.unasked.append(f"{SERVER} was not asked: {reason}.")
        except Exception as error:  # as of other clients
            problem = _reason(error, self.folder)
        return self._client(SERVER, asked, equal, largest, problem)

    def _client(
        self, client: str, asked: int, equal: int, largest: float, problem: str | None
    ) -> ServedClient:
        return ServedClient(
            client=client,
            source=self.source if client == PREDICT else "",
            asked=asked,
            equal=equal,
            difference=largest if asked else None,
            tolerance=self.tolerance,
            problem=problem,
        )

    def _stored(self, names: Sequence[str]) -> dict[int, dict[str, Any]]:
        folder = self.folder if self.runtime is None else self.runtime.run
        return read_rows(folder / PREDICTIONS, self.rows, lambda name: name in names)

    def _as_shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return a stored prediction as `ampft predict` writes it."""
        prediction = stored["prediction"]
        if self.row.several_labels:
            separator = str(self.record.arguments["label_separator"])
            names = self.record.label_names
            prediction = unambiguous_separator(separator, names).join(prediction)
        return {**stored, "prediction": prediction if stored.get("answered", True) else ""}

    def _decides_otherwise(self, row: int, choice: Any, difference: float) -> bool:
        """Return whether a choice is not the run's, although rounding cannot explain it."""
        if choice is None or not isinstance(self.outcome, TunableOutcome):
            return False
        is_same = np.array_equal(choice, self.outcome.predicted[row])
        return not is_same and not self._is_close(row, difference)

    def _is_close(self, row: int, difference: float) -> bool:
        """Return whether probabilities that differ so much can decide a row otherwise."""
        limit = 2 * max(difference, 1e-6)
        if not isinstance(self.outcome, TunableOutcome):
            second, first = np.sort(self.expected[row], axis=1)[:, -2:].T
            return bool((first - second).min() <= limit)
        found, decisions = self.outcome.probabilities[row], self.outcome.decisions
        least = None if decisions.abstention is None else decisions.abstention.least_confidence
        if least is not None and abs(float(self.outcome.confidence[row]) - least) <= limit:
            return True
        if self.row.labels_of_columns:
            parts = np.split(found, column_starts(self.record.label_names)[1:])
            margin = float(min(np.diff(np.sort(part)[-2:])[0] for part in parts))
        elif self.row.several_labels:
            limits = (
                self.outcome.threshold if decisions.thresholds is None else decisions.thresholds
            )
            margin = 2 * float(np.abs(found - np.asarray(limits)).min())
        elif decisions.positive is not None and decisions.positive_threshold is not None:
            margin = 2 * abs(float(found[decisions.positive]) - decisions.positive_threshold)
        else:
            second, first = np.sort(found)[-2:]
            margin = float(first - second)
        return margin <= limit

    def predict_answers(self) -> Iterator[tuple[int, Answer, Any]]:
        """Yield the answers of ampft predict in float32, for the rows in the user's file."""
        if int(self.record.topology.num_processes) > 1:
            raise NoPipelineAnswers("the run has several processes")
        trusts = bool(self.record.arguments.get("trust_remote_code"))
        request = PredictRequest(batch_size=BATCH, trust_remote_code=trusts)
        if self.runtime is None:
            predictor = Predictor.of_run(self.folder, self.record, request)
        else:
            predictor = self.runtime.predictor
        self.reader, self.config = predictor.reader, predictor.config
        self.inputs, self.source = self._user_rows()
        end = time.monotonic() + SECONDS
        with predictor.numerics:
            for start in range(0, len(self.inputs), BATCH):
                rows = list(self.inputs)[start : start + BATCH]
                columns = zip(*(self.inputs[row] for row in rows), strict=True)
                decoded = predictor(list(columns)).decoded
                choices = self._choices(predictor, decoded, len(rows))
                cells = next(
                    decoded[n] for n in ("probabilities", "values", "mask") if n in decoded
                )
                for row, cell, choice in zip(rows, cells, choices, strict=True):
                    is_mask = isinstance(cell, bytes)
                    yield row, _mask(cell) if is_mask else np.atleast_2d(cell).astype(float), choice
                if time.monotonic() > end:
                    return

    def _choices(self, predictor: Predictor, decoded: Any, count: int) -> list[Any]:
        if not isinstance(self.outcome, TunableOutcome):
            return [None] * count
        targets = np.zeros_like(self.outcome.truth[:count])
        outcome = predictor.problem.outcome("served", targets, decoded)
        assert isinstance(outcome, TunableOutcome), "of the same problem"
        return list(outcome.predicted)

    def _user_rows(self) -> tuple[dict[int, tuple[Any, ...]], str]:
        """Return the inputs of the rows as ampft predict reads them, and what it reads."""
        kind, trained = self.row.kind, recorded_training(self.record, self.folder)
        files = self._files()
        if files:
            found: dict[int, tuple[Any, ...]] = {}
            for path, rows in files.items():
                found |= self._rows_of_file(path, rows)
            named = [Path(path).name for path in files]
            return {row: found[row] for row in self.rows if row in found}, ", ".join(named[:LISTED])
        cells = [self._question(row).cells for row in self.rows]
        if kind.has_files:
            paths = [self._question(row).file for row in self.rows]
            inputs = kind.rows_in_memory(paths, trained)
            are_files = all(isinstance(path, str) for path in paths)
            return dict(zip(self.rows, inputs, strict=True)), "the files" if are_files else "memory"
        single = len(self.data.input_columns) == 1
        inputs = kind.rows_in_memory([c[0] if single else tuple(c) for c in cells], trained)
        return dict(zip(self.rows, inputs, strict=True)), "rows in memory"

    def _files(self) -> dict[str, dict[int, int]]:
        """Return by file the number of each row in it, of rows that were read from tables."""
        part, arguments = self.data.splits[self.outcome.split], self.record.arguments
        number = next((name for name in IN_A_FILE if name in part.column_names), None)
        if number is None:
            return {}
        names = [name for name in (number, FILE_COLUMN) if name in part.column_names]
        named = arguments.get(f"{self.outcome.split}_file") or arguments.get("train_file")
        columns = part.select_columns(names)[self.rows]
        paths = columns.get(FILE_COLUMN, [named] * len(self.rows))
        found: dict[str, dict[int, int]] = {}
        for row, path, place in zip(self.rows, paths, columns[number], strict=True):
            found.setdefault(str(path), {})[place] = row
        return found if all(Path(path).is_file() for path in found) else {}

    def _rows_of_file(self, path: str, rows: Mapping[int, int]) -> dict[int, tuple[Any, ...]]:
        """Return the inputs of rows, by row, of which `rows` has the numbers in the file."""
        given = self.record.arguments
        request = PredictRequest(
            files=(path,),
            encoding=str(given.get("encoding") or PredictRequest.encoding),
            sheet_name=given.get("sheet_name"),
        )
        table = self.row.kind.open_rows(request, recorded_training(self.record, self.folder))
        found: dict[int, tuple[Any, ...]] = {}
        end = time.monotonic() + SECONDS
        for number, cells in table.table.read(table.sources):
            if number in rows:
                inputs = table.convert(cells, table.place(number))
                if inputs is None:
                    raise InputError(f"{table.place(number)}: ampft predict finds no inputs there")
                found[rows[number]] = inputs
            if len(found) == len(rows) or (found and time.monotonic() > end):
                break
        return found

    def pipeline_answers(self) -> Iterator[tuple[int, Answer, Any]]:
        """Yield the answers of a pipeline of transformers that loads the folder."""
        self.pipe = self._pipeline()
        end = time.monotonic() + SECONDS
        for row in self.rows:
            question = self._question(row)
            try:
                answer = self.row.kind.ask(question)
            except NoPipelineAnswers as reason:
                self.left_out[str(reason)] += 1
                continue
            self._look_at_decisions(question, answer)
            yield row, self._with_temperature(answer), None
            if time.monotonic() > end:
                return

    def _pipeline(self) -> Any:
        options: dict[str, Any] = {"model": str(self.folder)}
        if self.record.arguments.get("trust_remote_code"):
            options["trust_remote_code"] = True
        if self.runtime is not None:
            if self.runtime.model is not None:
                options = {"model": self.runtime.model, **self._processor()}
        elif holds_adapters(self.record):
            options = self._adapters(options)
        return transformers.pipeline(self.row.pipeline_tag, **options)

    def _adapters(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model as the card of adapters without their base says."""
        if self.record.arguments.get("load_in_4bit"):
            raise NoPipelineAnswers("the folder holds adapters for a base in 4 bits")
        from peft import PeftModel

        names = self.record.label_names
        auto_class = getattr(transformers, self.row.model_class)
        name = self.record.model.name
        kind = problem_of(self.record).transformers_type
        base = auto_class.from_pretrained(
            default_model(None)[0] if name == HUB_ID else name,
            id2label=dict(enumerate(names)),
            **({} if kind is None else {"problem_type": kind}),
        )
        model = PeftModel.from_pretrained(base, str(self.folder)).merge_and_unload()
        return {**options, "model": model, **self._processor()}

    def _processor(self) -> dict[str, Any]:
        """Return the tokenizer or processor for a pipeline with a model in memory."""
        name, folder = self.row.kind.processor, str(self.folder)
        if name != "feature_extractor":
            return {name: folder}
        # A pipeline looks for a decoder beside it, under the name of a model that has none.
        return {name: transformers.AutoFeatureExtractor.from_pretrained(folder)}

    def _question(self, row: int) -> Question:
        arguments = pipeline_arguments(self.record)
        names = self.record.label_names
        return Question(self.pipe, self.data, self.outcome.split, row, arguments, names)

    def _with_temperature(self, answer: Answer) -> Answer:
        """Return probabilities after the temperature of the run, which a pipeline does not use."""
        if not isinstance(self.outcome, TunableOutcome):
            return answer
        if self.row.labels_of_columns:  # a pipeline has one softmax over all columns
            starts = column_starts(self.record.label_names)
            sizes = np.diff([*starts, answer.shape[1]])
            return answer / np.repeat(np.add.reduceat(answer, starts, axis=1), sizes, axis=1)
        temperature = self.outcome.decisions.temperature
        if temperature is None:
            return answer
        tiny = np.finfo(np.float64).tiny
        scaled = np.maximum(answer, tiny) ** (1 / temperature)
        if self.row.several_labels:
            return scaled / (scaled + np.maximum(1 - answer, tiny) ** (1 / temperature))
        return scaled / scaled.sum(axis=1, keepdims=True)

    def _look_at_decisions(self, question: Question, answer: Answer) -> None:
        """Count where a pipeline's user sees another class, or other entities."""
        if isinstance(self.outcome, TunableOutcome):
            decided = self._with_temperature(answer)[0]
            if self.row.labels_of_columns:
                names = self.record.label_names
                shown = most_probable_of_columns(answer, names)
                is_other = not np.array_equal(shown, most_probable_of_columns(decided[None], names))
            elif self.row.several_labels:
                shares, limit = decided.astype(np.float32), self.outcome.threshold
                has = self.outcome.decisions.labels(shares, limit)
                is_other = not np.array_equal(answer[0] >= 0.5, has)
            else:
                classes = self.outcome.decisions.classes(decided[None].astype(np.float32))
                is_other = bool(answer[0].argmax() != classes[0])
            self.other_labels += is_other
        elif is_bio(self.record.label_names) and answer.dtype.kind == "f":
            names = self.record.label_names
            tags = [names[code] for code in self.expected[question.row].argmax(axis=1)]
            self.other_entities += entities_differ(question, list(entities(tags)))

    def _unused_decisions(self, outcome: TunableOutcome, asked: int) -> Iterator[str]:
        """Yield what a pipeline does not use of the decisions, and what its user sees instead."""
        entries = outcome.decisions.entries(self.record.label_names)
        unused = list(dict.fromkeys(UNUSED[name] for name in entries))
        if not entries and self.other_labels:
            unused = [f"--threshold {outcome.threshold:g}"]
        if not unused:
            return
        label = "other labels" if self.row.several_labels else "another class"
        seen = {
            "other probabilities": TEMPERATURE in entries,
            f"{label} in {self.other_labels} of {asked} rows": self.other_labels
            or entries.keys() & {THRESHOLDS, POSITIVE_THRESHOLD},
            "an answer to every row": ABSTENTION in entries,
        }
        listed = " and ".join(each for each, is_seen in seen.items() if is_seen)
        them = "them" if len(unused) > 1 or unused[0].endswith("s") else "it"
        yield (
            f"A pipeline does not use {' and '.join(unused)}: its user sees {listed}. "
            f"ampft predict uses {them}."
        )

    def notes(self) -> Iterator[str]:
        yield from self.unasked
        if self.row.labels_of_columns:
            yield (
                "A pipeline shows the labels of all columns in one list: the first of each column "
                "is its answer, and scores were divided by their sum over the column."
            )
        if features := self.data.feature_columns:
            yield f"{PIPELINE} was given texts with their columns: {template(features)}"
        for reason, count in self.left_out.items():
            yield f"Not asked in {PIPELINE}: {count} {reason}."
        asked = len(self.rows) - self.left_out.total()
        if isinstance(self.outcome, TunableOutcome):
            yield from self._unused_decisions(self.outcome, asked)
        if self.other_entities:
            yield (
                f"A pipeline joins tokens to words by its own rule, so that it shows other "
                f"entities in {self.other_entities} of {asked} sentences. Word by word, they were "
                "compared above. ampft predict shows the run's entities; in a pipeline with "
                'aggregation_strategy="none", a word has the class of its first token.'
            )

    def other_decisions(self) -> list[str]:
        """Return a sentence if decision.json states other decisions than the run took.

        `ampft predict` takes some of them from the record, so that its answers do not show all.
        """
        try:
            contract = Contract.read(self.folder)
        except (OSError, ValueError):  # masks have none, and whoever needs it reports the rest
            return []
        ours: dict[str, Any] = {
            "label_names": tuple(self.record.label_names),
            "several": self.row.several_labels,
            "numbers": self.row.number_labels,
        }
        rule, read = contract.rule, contract.tokenization
        theirs = {name: getattr(rule, name) for name in ours}
        saved = self.record.model.preprocessing.get("tokenizer_config.json") or {}
        if read is not None and "model_max_length" in saved:  # it truncates as in training
            ours["max_length"], theirs["max_length"] = saved["model_max_length"], read.max_length
        if isinstance(self.outcome, TunableOutcome):  # other runs have no such decisions
            ours |= self.outcome.decisions.entries(self.record.label_names)
        theirs |= rule.decisions.entries(rule.label_names)
        if self.row.several_labels and isinstance(self.outcome, TunableOutcome):
            ours["threshold"], theirs["threshold"] = self.outcome.threshold, rule.threshold
        return [*map(inert, _unequal(CONTRACT_NAME, ours, theirs))]

    def other_preprocessing(self) -> list[str]:
        """Return which entries of the saved tokenizer or processor are not the training's.

        A flag can have no effect on the rows that were asked about, or leave none to ask about.
        """
        trained = self.record.model.preprocessing
        try:
            saved = saved_preprocessing(self.folder, list(trained))
        except (OSError, ValueError):  # clients that load it report it
            return []
        parts = [_unequal(name, trained[name], values) for name, values in saved.items()]
        return [inert(text) for part in parts for text in part]

    def _causes(self, client: str, row: int) -> Iterator[str]:
        """Yield why the answer of a client is not the run's, in sentences."""
        config = self.pipe.model.config if client == PIPELINE else self.config
        names = tuple(config.id2label[code] for code in sorted(config.id2label))
        found = []
        if names != tuple(self.record.label_names):
            ours = ", ".join(self.record.label_names[:LISTED])
            theirs = ", ".join(names[:LISTED])
            found.append(f"config.json has the classes {theirs}; the run has {ours}.")
        found = [*map(inert, found), *self.other_preprocessing()]
        if not found and client == PIPELINE and self.pipe.tokenizer is not None:
            found += map(inert, self._other_tokens(row))
        if not found and client == PIPELINE and self.row.kind.processor == "image_processor":
            found += map(inert, filter(None, [other_picture(self._question(row))]))
        if not found and client == PIPELINE:
            now = configuration_of(self.pipe.model)
            before = {k: v for k, v in self.record.model.configuration.items() if k in now}
            found += map(inert, _unequal("config.json", before, {k: now[k] for k in before}))
        yield from found

    def _other_tokens(self, row: int) -> Iterator[str]:
        """Yield that a pipeline's tokenizer gives other tokens than the one of the run."""
        if self.reader is None or row not in self.inputs:
            return
        tokenizer, question = self.pipe.tokenizer, self._question(row)
        ours = self.reader.collate([[cell] for cell in self.inputs[row]])["input_ids"][0].tolist()
        theirs = tokenizer(*question.texts, truncation=True)["input_ids"]
        for one, other in zip(*map(tokenizer.convert_ids_to_tokens, (ours, theirs)), strict=False):
            if one != other:
                yield f"The run reads the token {one!r} where a pipeline reads {other!r}."
                return
        if len(ours) != len(theirs):
            yield f"The run reads {len(ours)} tokens where a pipeline reads {len(theirs)}."


def _difference(answer: Answer, expected: Answer) -> float:
    """Return the largest difference of probabilities, or the share of pixels that differ."""
    if answer.shape != expected.shape:
        return float("inf")
    if answer.dtype.kind != "f":
        return float((answer != expected).mean())
    return float(np.nanmax(np.abs(answer - expected)))


def _as_typed(question: Question) -> Any:
    """Return the text, pair of texts or list of words of a case."""
    cells = question.cells
    if isinstance(cells[0], list):
        has_text = RAW_TEXT_COLUMN in question.data.splits[question.split].column_names
        return question.sentence[0] if has_text else cells[0]
    return cells[0] if len(cells) == 1 else tuple(cells)


def _mask(png: bytes) -> Answer:
    return np.asarray(Image.open(io.BytesIO(png))).astype(np.int64)


def _unequal(place: str, before: Any, now: Any) -> list[str]:
    """Return a sentence on the entries that differ, if there are any."""
    if before == now:
        return []
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [f"{place} is not the file of the training."]
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    parts = [f"{name} {now.get(name)!r}, not {before.get(name)!r}" for name in names[:LISTED]]
    return [f"{place} has {'; '.join(parts)}{' and more' if len(names) > LISTED else ''}."]


def _reason(error: Exception, folder: Path) -> str:
    """Return the first line of an error, with its type unless it is a message of this program.

    Paths in the folder, whose name may be a word such as `out`, are shown without it.
    """
    line = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    line = re.sub(rf"(?<![\w.-]){re.escape(str(folder))}(?=[/\\'\"])", "the folder", line)
    return inert(line if isinstance(error, InputError) else f"{type(error).__name__}: {line}")
