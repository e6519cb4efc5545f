"""What `prepare` builds: the components of a training, and their record before its first step.

Weights and data have hashes of their own. The rest of what determines a prediction is recorded so
that two runs can compare it: the configuration that the model was built with, and the tokenizer,
image processor or feature extractor as the run would save it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ampft.arguments import ClassifyArguments
from ampft.data.step_batches import StepBatches
from ampft.features.contention import CpuTime
from ampft.files import describe_file
from ampft.machine import hardware
from ampft.models.by_length import REMOTE_CODE
from ampft.models.extension_points import PACKED_ATTENTION
from ampft.models.four_bit import weight_counts
from ampft.models.weights import LoadedModel, class_name
from ampft.ownership import TemporaryFolder
from ampft.precision.accelerator import is_sharded
from ampft.precision.compilation import configured_backend
from ampft.precision.executed import dtype_name
from ampft.precision.float32_modules import replaced_forwards
from ampft.precision.resolve import Precision
from ampft.runs.record import DataPart, ModelPart, PrecisionPart, RunRecord, StepsPart, TopologyPart
from ampft.runs.resume import ResumePoint
from ampft.tasks.task import Task

# Where a model came from, its labels and its dtype. Labels are compared as classes, weights are
# always loaded in float32, and modules in float32 are compared by their paths. Names that begin
# with an underscore are comments or private to transformers.
OF_NO_EFFECT = frozenset({
    "ampft_fp32_modules", "architectures", "auto_map", "default_learning_rate", "dtype", "id2label",
    "is_local", "label2id", "label_colors", "local_files_only", "name_or_path", "torch_dtype",
    "transformers_version",
})  # fmt: skip
STATE_OF_TOKENIZER = frozenset({"truncation", "padding"})  # as its last call left them
LONGEST_VALUE = 100  # characters of JSON; a longer value is replaced by its SHA-256


@dataclass(frozen=True)
class ProcessStart:
    """Time and memory of the process after the imports, before data and model are loaded."""

    seconds: float  # `time.perf_counter()`.
    memory: int | None  # Peak resident set in bytes; None if it cannot be read.
    cpu: CpuTime  # Processor times.


@dataclass(frozen=True)
class Prepared:
    """The components of a training; build them with `prepare`."""

    started: ProcessStart  # Time and memory at the start of the process.
    args: ClassifyArguments  # Settings of the run.
    output_dir: Path | None  # Folder of the results; None writes nothing.
    precision: Precision  # Precision resolved for this device.
    accelerator: Accelerator  # Accelerator for `precision`.
    task: Task  # Examples, loss and outcome.
    loaded: LoadedModel  # Model as loaded, before `accelerator.prepare`.
    model: nn.Module  # Prepared model.
    optimizer: Any  # Prepared optimizer.
    # Learning rate schedule. It is not prepared, because Accelerate would advance it once per
    # process.
    schedule: LRScheduler
    # Step batches of the training split. They are not prepared, because Accelerate would shard them
    # a second time.
    step_batches: StepBatches
    validated_epochs: int = 1  # Epochs between validations, unless `--eval_steps` says otherwise.
    # Where the training begins with `--resume_from_checkpoint`.
    resume_point: ResumePoint | None = None
    # Why attention runs in groups, and the result of `--check_precision`.
    check_notes: tuple[str, ...] = ()

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return total_steps_of(self.args, self.step_batches)

    @cached_property
    def record(self) -> RunRecord:
        """Record of the run before its first step."""
        return _initial_record(self)

    @property
    def folder(self) -> Path:
        """Folder of the results of a run, which `prepare` has chosen."""
        assert self.output_dir is not None, "prepare() chooses a folder"
        return self.output_dir

    @property
    def plain_model(self) -> Any:
        """The model without what Accelerate added."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    @property
    def final_split(self) -> str:
        """The split of the final report: test if it exists, otherwise validation."""
        if self.evaluated:
            return self.evaluated[-1]
        return "test" if "test" in self.task.data.splits else "validation"

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Splits that a run without training reports on; empty if it trains."""
        return tuple(split for split in self.args.evaluated if split in self.task.data.splits)

    @property
    def selects_best(self) -> bool:
        """Whether the best weights on the validation split are kept."""
        is_asked = self.args.load_best_model_at_end and not self.args.evaluated
        return is_asked and "validation" in self.task.data.splits

    @property
    def can_resume(self) -> bool:
        """Whether an exact resume is proven for the precision."""
        return not self.precision.properties.replaces_layers

    @property
    def groups_may_change(self) -> bool:
        """Whether the code of a loop may change settings and groups of the optimizer."""
        return False


def total_steps_of(args: ClassifyArguments, step_batches: StepBatches) -> int:
    """Return the optimizer steps of a whole training."""
    if args.evaluated:
        return 0
    assert args.num_train_epochs is not None, "prepare_training() chooses the default"
    return args.max_train_steps or args.num_train_epochs * len(step_batches)


def _initial_record(prepared: Prepared) -> RunRecord:
    """Return the record of a run before its first step."""
    args, task, model = prepared.args, prepared.task, prepared.loaded.model
    data, accelerator = task.data, prepared.accelerator
    device = accelerator.device
    counts = weight_counts(model)
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    return RunRecord(
        status="running",
        arguments=asdict(args),
        command=sys.argv,
        task=task.name,
        label_names=task.label_names,
        data=DataPart(
            name=data.name,
            kind=data.kind,
            fingerprints=data.fingerprints,
            examples={name: len(rows) for name, rows in data.splits.items()},
            notes=(*data.notes, *task.notes),
            input_columns=data.input_columns,
            files=data.files,
            shared_with_train=data.shared_with_train,
            truncated=getattr(task.inputs.splits.get("train"), "truncated", 0),
            hub_id=_hub_id(args.dataset_name),
        ),
        model=ModelPart(
            name=prepared.loaded.name,
            architecture=class_name(model),
            parameters=sum(counts.values()),
            trainable_parameters=sum(n for p, n in counts.items() if p.requires_grad),
            initial_weights_sha256=prepared.loaded.float32_sha256,
            hub_id=_hub_id(prepared.loaded.name),
            perturbed=args.perturb_initial_weights,
            padding_free=prepared.loaded.padding_free,
            configuration=configuration_of(model),
            preprocessing=preprocessing_of(task),
            notes=(*prepared.loaded.notes, *prepared.check_notes),
            files=_model_files(prepared.loaded.name),
        ),
        precision=PrecisionPart(
            requested=prepared.precision.mode,
            resolved={
                name: value if isinstance(value, str | bool) else dtype_name(value)
                for name, value in vars(prepared.precision).items()
            },
            fp32_modules=tuple(replaced_forwards(model)),
        ),
        topology=TopologyPart(
            num_processes=accelerator.num_processes,
            cpu_threads=torch.get_num_threads(),
            device=device.type,
            sharded=is_sharded(accelerator),
            compiled=configured_backend(accelerator),
        ),
        steps=StepsPart(
            total=prepared.total_steps,
            effective_batch_size=prepared.step_batches.effective_batch_size,
            micro_batches=prepared.step_batches.micro_batches,
        ),
        hardware=hardware(gpus),
    )


def _hub_id(name: str | None) -> str | None:
    """Return `name` if it has the form of a hub id and is not a local path."""
    if name is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).exists():
        return None
    return name


MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".model", ".py", ".txt")


def _model_files(name: str) -> dict[str, str]:
    """Return the SHA-256 of the files that a model folder is loaded from; empty if it is none."""
    folder = Path(name)
    if not (folder / "config.json").is_file():
        return {}
    return {
        path.name: describe_file(path).sha256
        for path in sorted(folder.iterdir())
        if path.suffix in MODEL_SUFFIXES and path.is_file() and path.stem != "optimizer"
    }


def configuration_of(model: nn.Module) -> dict[str, Any]:
    """Return the configuration with which a model of transformers was built, by name.

    Args:
        model: Model as loaded, sharded or not.

    Returns:
        Effective values, defaults included, without those that have no effect on the computation.
        Code from the model's repository is there with its SHA-256.
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        return {}
    values = _shortened(_nested(json.loads(config.to_json_string(use_diff=False))))
    # Kept under a private name. Without padding, attention has a name of this program.
    implementation = getattr(config, "_attn_implementation", None)
    replaced = {packed: name for name, packed in (PACKED_ATTENTION.get() or {}).items()}
    values["attn_implementation"] = replaced.get(str(implementation), implementation)
    modules = {kind.__module__ for kind in type(model).__mro__}
    for name in sorted(name for name in modules if name.startswith(REMOTE_CODE)):
        content = Path(str(sys.modules[name].__file__)).read_bytes()
        values[f"code {name.rpartition('.')[2]}"] = hashlib.sha256(content).hexdigest()
    return values


def preprocessing_of(task: Task) -> dict[str, Any]:
    """Return the settings and vocabulary of the tokenizer or processor of a task, by file.

    It is saved as with the model and read again, so that files which mean the same are equal.
    """
    with TemporaryFolder("processor") as folder:
        task.inputs.save_processor(folder)
        names = sorted(path.name for path in folder.iterdir() if path.suffix != ".jinja")
        return saved_preprocessing(folder, names)


def saved_preprocessing(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the same of a saved tokenizer or processor; None for a file that is missing."""
    return {n: _content(folder / n) if (folder / n).is_file() else None for n in names}


def _content(path: Path) -> Any:
    content = path.read_bytes()
    if path.suffix != ".json":
        return hashlib.sha256(content).hexdigest()
    values = json.loads(content)
    if path.name == "tokenizer.json":
        values = {k: value for k, value in values.items() if k not in STATE_OF_TOKENIZER}
    return _shortened(_effective(values))


def _effective(values: Mapping[str, Any]) -> dict[str, Any]:
    names = sorted(name for name in values if not name.startswith("_") and name not in OF_NO_EFFECT)
    return {name: values[name] for name in names}


def _nested(value: Any) -> Any:
    """Return a configuration inside another one, such as `text_config`, without comments."""
    if not isinstance(value, dict):
        return value
    return {name: _nested(part) for name, part in _effective(value).items()}


def _shortened(values: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
    return {
        name: hashlib.sha256(text.encode()).hexdigest()
        if len(text) > LONGEST_VALUE
        else values[name]
        for name, text in texts.items()
    }
