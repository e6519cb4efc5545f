"""A task: inputs and a problem, combined for the loop, the evaluation and the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ampft.data.dataset import ClassificationData
from ampft.data.row_labels import Targets, UnitLabels
from ampft.data.splits import FILE_COLUMN, ID_COLUMN, NUMBER_COLUMNS
from ampft.data.step_batches import (
    AugmentedExamples,
    FloatArray,
    InputExamples,
    IntArray,
    MicroBatch,
    ScaledExamples,
)
from ampft.decision import Contract
from ampft.errors import InputError, check_type, quoted_list
from ampft.kinds.inputs import DrawsPredictions, Inputs, LabellingInputs, PredictedMasks
from ampft.kinds.logits import LABEL_WEIGHTS, forward_logits
from ampft.models.adapters import check_whole_layers, restrict_training
from ampft.models.freezing import last_layers
from ampft.models.pretrained import load_config
from ampft.models.tokenizer import read_contract
from ampft.models.weights import LoadedModel
from ampft.precision.float32_modules import apply_patterns, description, replaced_forwards
from ampft.precision.resolve import Precision
from ampft.precision.transfer import to_device
from ampft.tasks import TaskRow
from ampft.tasks.outcome import Outcome, Problem, label_config_arguments, problem_with_rule
from ampft.tasks.table import TASKS, default_task
from ampft.tasks.task_settings import TaskSettings, check_read_settings
from ampft.text.escaping import without_credentials

ORIGINS = {FILE_COLUMN: "file", **NUMBER_COLUMNS, ID_COLUMN: "id"}

# What CrossEncoder of sentence-transformers applies to the logits, by the type of the problem.
# Without an entry, a single output goes through a sigmoid, and several through nothing.
CROSS_ENCODER_ACTIVATIONS = {
    "regression": "torch.nn.modules.linear.Identity",
    "multi_label_classification": "torch.nn.modules.activation.Sigmoid",
}


@dataclass(frozen=True)
class LabelledExamples:
    """The examples of one split: inputs, labels, and weights in the loss."""

    inputs: InputExamples  # The inputs.
    targets: Targets  # (n, ...) labels, or labels of the units of n examples.
    weights: FloatArray  # (n,) weights in the loss, float64.
    row_weights: FloatArray | None = None  # (n,) the part of them that the user gave, if any.

    @property
    def lengths(self) -> IntArray:
        """(n,) cost of each example."""
        return self.inputs.lengths

    def for_step(self, epoch: int, step: int) -> LabelledExamples:
        """Return the examples as an optimizer step of the training sees them."""
        if isinstance(self.inputs, AugmentedExamples):
            return replace(self, inputs=self.inputs.for_step(epoch, step))
        return self

    def in_largest_size(self) -> LabelledExamples:
        """Return the examples in the largest size that an optimizer step can have."""
        if isinstance(self.inputs, ScaledExamples):
            return replace(self, inputs=self.inputs.in_largest_size())
        return self

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the model's inputs and `labels` (m, ...) of the examples `ids`.

        Inputs on which the shape of the labels depends collate them too. Weights of rows are
        `label_weights` (m,), one for each label of an example with several units.
        """
        collated = self.inputs.collate(ids)
        if "labels" in collated:
            return collated
        collated = {**collated, "labels": torch.from_numpy(self.targets[ids])}
        if self.row_weights is not None:
            weights = self.row_weights[ids].astype(np.float32)
            if isinstance(self.targets, UnitLabels):
                weights = np.repeat(weights, self.targets.counts[ids])
            collated[LABEL_WEIGHTS] = torch.from_numpy(weights)
        return collated


@dataclass(frozen=True)
class Task:
    """What is classified; `make_task` creates it."""

    name: str  # Key in `TASKS`.
    row: TaskRow  # Row of `TASKS`.
    data: ClassificationData  # The examples, in splits.
    settings: TaskSettings  # The user's choices.
    problem: Problem  # Loss, decoding and outcome of its labels.
    inputs: Inputs = field(repr=False)  # Conversion of the examples to tensors.
    # Labels by split: (n, ...) of n examples, or of the units of n examples.
    labels: Mapping[str, Targets] = field(repr=False)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The K labels, in the order of the logits."""
        return self.problem.label_names

    @property
    def class_weights(self) -> npt.NDArray[np.float32] | None:
        """Weights of the K classes in the loss (with several labels, of rows that have one).

        Whatever else is fitted or chosen by a loss has them too: the probe, simple methods, the
        kept epoch, the size of the head and the temperature. None for equal weights.
        """
        return getattr(self.problem, "class_weights", None)

    @property
    def contract(self) -> Contract | None:
        """Everything between an input and its answer; None if the problem has no such rule."""
        rule = getattr(self.problem, "rule", None)
        if rule is None:
            return None
        return Contract(
            self.name,
            tuple(self.data.input_columns),
            rule,
            getattr(self.inputs, "tokenization", None),
            None if self.data.text_units is None else asdict(self.data.text_units),
            self.data.feature_columns,
            self.data.text_column_delimiter,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to print, such as how many texts were truncated."""
        return self.inputs.notes

    def load_model(self) -> LoadedModel:
        """Return the model in float32; new parameters are drawn with torch's current seed."""
        arguments = label_config_arguments(self.problem)
        loaded = self.inputs.load_model(self.row.model_class, arguments, self.settings)
        activation = CROSS_ENCODER_ACTIVATIONS.get(self.problem.transformers_type or "")
        if activation is not None:  # the checkpoint may state another one
            config: Any = loaded.model.config
            config.sentence_transformers = {"activation_fn": activation}
        loaded = restrict_training(loaded, self.settings)
        begin = getattr(self.problem, "begin_head", None)
        is_trained = self.settings.evaluate_only is None
        if is_trained and begin is not None and self._has_new_head(loaded.model):
            for layer in last_layers(loaded.model, len(self.label_names)).values():
                begin(layer)
        # Afterwards, so that a layer with adapters is kept as a whole.
        handle = apply_patterns(loaded.model, self.settings.fp32_patterns)
        check_whole_layers(loaded.model, handle.names)
        kept = description(handle)
        if self.settings.model_path != self.settings.model_name_or_path:  # pinned
            commit = Path(str(self.settings.model_path)).name
            loaded = replace(loaded, name=f"{self.settings.model_name_or_path}@{commit}")
        return replace(loaded, notes=(*loaded.notes, kept)) if kept else loaded

    def _has_new_head(self, model: Any) -> bool:
        """Return whether the head was not trained for these labels already."""
        from transformers import AutoConfig

        path = getattr(self.inputs, "model_path", None)
        if path is None:
            return True
        trusts = self.settings.trust_remote_code
        source = AutoConfig.from_pretrained(path, trust_remote_code=trusts)
        names = tuple(source.id2label.values())
        is_same = source.problem_type == model.config.problem_type and names == self.label_names
        return not (is_same and source.architectures == [type(model).__name__])

    @property
    def unit(self) -> float:
        """The unit of the outputs of the last layer, 1 but for numbers."""
        return float(getattr(self.problem, "scale", 1.0))

    def units(self, model: nn.Module) -> dict[str, float]:
        """Return the units of the parameters that do not have the unit 1, by name."""
        if self.unit == 1:
            return {}
        return {
            f"{name}.{parameter}": self.unit
            for name, layer in last_layers(model, len(self.label_names)).items()
            for parameter, _ in layer.named_parameters()
        }

    def with_exact_outputs(self, loaded: LoadedModel, precision: Precision) -> LoadedModel:
        """Return the model, whose last layer computes in float32 if outputs are numbers.

        A number in 16 bits has three digits at best, so that 1,990 and 1,994 are the same in
        bfloat16. Modes that cannot keep a module in float32 are left as they are.
        """
        is_possible = precision.properties.keeps_float32_modules
        if not (self.row.number_labels and is_possible):
            return loaded
        kept = [forward.pattern for forward in replaced_forwards(loaded.model).values()]
        found = last_layers(loaded.model, len(self.label_names))
        # As they are called without adapters, which the saved model can lack.
        names = [
            name.removeprefix("base_model.model.").partition(".modules_to_save.")[0]
            for name in found
        ]
        if not names or set(names) <= set(kept):
            return loaded
        handle = apply_patterns(loaded.model, list(dict.fromkeys([*kept, *names])))
        if precision.compute_dtype == torch.float32:
            return loaded
        return replace(loaded, notes=(*loaded.notes, description(handle)))

    def examples(self, split: str) -> LabelledExamples:
        """Return the examples of a split as tensors on request."""
        targets, given = self.labels[split], self.data.weights(split)
        weights = self.problem.weights(targets)
        if given is not None:
            weights = weights * given
        return LabelledExamples(self.inputs.splits[split], targets, weights, given)

    def loss(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        """Return the loss summed over the micro-batch, a float32 scalar."""
        logits = forward_logits(model, micro_batch.inputs, packing=micro_batch.packing)
        labels = to_device(micro_batch.inputs["labels"], logits.device)
        weights = micro_batch.inputs.get(LABEL_WEIGHTS)
        given = {} if weights is None else {"weights": to_device(weights, logits.device)}
        loss: Tensor = self.problem.loss(logits, labels, **given)
        return loss

    def logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (m, K) float32 logits."""
        return forward_logits(model, inputs)

    def decode(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the decoded predictions: arrays (m, ...)."""
        return self.problem.decode(self.logits(model, inputs), inputs)

    def outcome(self, split: str, decoded: Mapping[str, npt.NDArray[Any]]) -> Outcome:
        """Return the outcome of a split.

        Args:
            split: Name of the split.
            decoded: Results of `decode` for all examples, in order.
        """
        outcome = self.problem.outcome(split, self.labels[split], decoded)
        weights = None if split == "train" else self.data.weights(split)
        if weights is None:
            return outcome
        return cast("Outcome", replace(cast("Any", outcome), weights=weights))

    def origins(self, split: str, rows: slice) -> dict[str, list[Any]]:
        """Return where the examples `rows` come from: file, line or row, position, id."""
        part = self.data.splits[split]
        names = {name: shown for name, shown in ORIGINS.items() if name in part.column_names}
        columns = part.select_columns(list(names))[rows] if names else {}
        if FILE_COLUMN in columns:
            columns[FILE_COLUMN] = list(map(without_credentials, columns[FILE_COLUMN]))
        return {names[name]: values for name, values in columns.items()}

    def save_pictures(self, path: Path, outcome: Outcome) -> None:
        """Save a picture of the predictions as PNG, if the task has pictures."""
        if isinstance(self.inputs, DrawsPredictions) and isinstance(outcome, PredictedMasks):
            self.inputs.picture(outcome).save(path, format="PNG")


def make_task(data: ClassificationData, settings: TaskSettings) -> Task:
    """Return the task for `data`.

    Args:
        data: Labelled examples in splits.
        settings: The user's choices.

    Raises:
        InputError: The task needs another kind of data, or the tokenizer or image processor cannot
            be loaded.
    """
    check_type("make_task", "data", data, ClassificationData)
    check_type("make_task", "settings", settings, TaskSettings)
    name = settings.task or default_task(data.kind)
    row, kind = TASKS[name], TASKS[name].kind
    if kind.name != data.kind:
        raise InputError(
            f"--task {name} needs {kind.name} data, but {data.name} contains {data.kind} "
            "data. Remove the flag, or use other data."
        )
    check_read_settings(settings, name)
    inputs = kind.tensors.prepare_inputs(data, settings)
    source = inputs if isinstance(inputs, LabellingInputs) else data
    labels = {split: source.labels(split) for split in data.splits}
    if settings.evaluate_only is not None:
        problem = _trained_problem(name, row, data, settings)
        return Task(name, row, data, settings, problem, inputs, labels)
    given = {"weights": data.weights("train")} if row.number_labels else {}
    make = row.problem_type().from_settings
    problem = make(data.label_names, labels["train"], settings, **given)
    return Task(name, row, data, settings, problem, inputs, labels)


def _trained_problem(
    name: str, row: TaskRow, data: ClassificationData, settings: TaskSettings
) -> Problem:
    """Return the problem of a model that is evaluated as it is, with the decisions in its contract.

    Raises:
        InputError: The model has other labels than the data, or decides for another task.
    """
    path, given = str(settings.model_path), asdict(settings)
    contract = read_contract(Path(path))
    if contract is None:
        names = data.label_names
    elif contract.task == name:
        return problem_with_rule(row.problem_type(), contract.rule)
    else:
        raise InputError(
            f"--model_name_or_path {path}: the model was trained with --task {contract.task}, and "
            f"the task is {name}. Add --task {contract.task}."
        )
    labels = load_config(path, trust_remote_code=settings.trust_remote_code).id2label
    trained = tuple(labels[index] for index in sorted(labels))
    if not row.number_labels and trained != names:
        raise InputError(
            f"--model_name_or_path {path}: its labels are {quoted_list(trained)}, but "
            f"{data.name} has {quoted_list(names)}. A model that is only evaluated keeps its "
            "labels: give the data the model's labels, in the same order, or add --do_train."
        )
    return row.problem_type().from_arguments(names, given)
