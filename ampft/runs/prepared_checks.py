"""Checks of a prepared training, before anything is written.

`--check_precision` compares the user's model and batch in the mode with float32. It fails where
training could not work, as `ampft doctor` judges it (`ampft.checks.harm`): the mode overflows at
every loss scale, or its gradient has another direction or size. It warns where the gradient is much
less exact than the mode usually is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from ampft.arguments.classify import ADAMW, ClassifyArguments
from ampft.data.step_batches import MicroBatch, ids_of_varied_length
from ampft.engine.checkpoints.checkpoint_interval import parse_interval
from ampft.engine.checkpoints.store import CheckpointStore
from ampft.engine.optimizer import OPTIMIZERS
from ampft.engine.out_of_memory import RandomAndBufferSnapshot, reset_peak_memory
from ampft.engine.step import ScaledGradient, descending_loss_scales, first_finite_gradient
from ampft.errors import InputError
from ampft.evaluation.evaluate import check_float32_possible, in_float32
from ampft.features.chosen_metrics import check_metrics
from ampft.features.decisions import validation_halves
from ampft.files import check_disk_space
from ampft.flag import split_names
from ampft.hub import is_folder_or_hub_id
from ampft.kinds.logits import model_inputs
from ampft.metrics.ranking import RANKING, selecting_metric
from ampft.models.by_length import largest_part
from ampft.models.training_mode import evaluation_mode
from ampft.models.weights import weights_size
from ampft.precision.accelerator import (
    check_equal_weights,
    is_sharded,
    numerics,
    verify_precision_unchanged,
)
from ampft.precision.compilation import configured_backend
from ampft.precision.executed import check_trainable_dtype
from ampft.precision.modes import is_fp32
from ampft.runs.extension_points import (
    GRADIENT_CHANGE,
    GRAPHS,
    GROUPED_ATTENTION_CHECK,
    GradientChange,
)
from ampft.runs.manifest import earlier_results
from ampft.runs.prepared import Prepared
from ampft.tasks.task import Task
from ampft.tasks.task_settings import check_data_for_decisions
from ampft.text.numbers import counted

CHECKED_EXAMPLES = 8
# Relative error of the whole gradient. The yardstick measures 1 to 3 % for bf16 and 0.1 to 0.3 %
# for fp16 on encoders; a few examples of a batch can have several times as much.
USUAL_ERROR = {torch.bfloat16: 0.15, torch.float16: 0.05, torch.float32: 0.02}


def check_prepared(prepared: Prepared) -> tuple[str, ...]:
    """Reject settings that do not fit the data or the model, before anything is written.

    Returns:
        Notes about how the model runs, to be printed.

    Raises:
        InputError: A split that a setting needs is missing, the weights do not have the storage
            dtype of the precision, or a setting does not work with this task, model or launcher.
    """
    args, data, accelerator = prepared.args, prepared.task.data, prepared.accelerator
    verify_precision_unchanged(accelerator, prepared.precision)
    check_equal_weights(accelerator, prepared.loaded.float32_sha256)
    check_trainable_dtype(prepared.loaded.model, prepared.precision.storage_dtype)
    if args.pad_to_multiple_of is not None and prepared.loaded.padding_free:
        raise InputError(
            f"--pad_to_multiple_of {args.pad_to_multiple_of} has no effect, because the model runs "
            "without padding. Remove the flag, or add --padding."
        )
    if args.token_buckets is not None and not prepared.loaded.padding_free:
        raise InputError(
            f"--token_buckets {args.token_buckets} has no effect, because the model runs with "
            "padding. Use --pad_to_multiple_of, or remove the flag."
        )
    note = _check_model_runs(prepared)
    if not {"validation", "test"} & set(data.splits):
        raise InputError(
            "--validation_fraction 0 and --test_fraction 0 leave no examples for the report. Use a "
            "fraction above 0 for one of them, or add a --validation_file or a --test_file."
        )
    for name in ("early_stopping_patience", "eval_steps", "metric_for_best_model"):
        value = getattr(args, name)
        if value is not None and "validation" not in data.splits:
            raise InputError(
                f"--{name} {value}: the flag needs a validation split. Use a --validation_fraction "
                "above 0, or remove the flag."
            )
    to_prove = 0
    if args.abstain is not None and "validation" in data.splits:
        to_prove = len(validation_halves(prepared.task).promise)
    splits = {name: len(rows) for name, rows in data.splits.items()}
    check_data_for_decisions(args, prepared.task.name, prepared.task.label_names, splits, to_prove)
    _check_schedule_and_metric(prepared)
    _check_trained_part(prepared)
    graphs = GRAPHS.get()
    if graphs is not None:
        graphs.check_cuda_graphs(prepared)
    _check_gathers(prepared)
    if args.inspect_data and data.masks is not None:
        raise InputError(
            f"--inspect_data does not support masks, and {data.name} contains {data.kind} data. "
            "Remove the flag."
        )
    if args.evaluate_fp32:
        check_float32_possible(prepared.precision)
    if (args.checkpointing_steps or args.resume_from_checkpoint) and not prepared.can_resume:
        raise InputError(
            f"--checkpointing_steps and --resume_from_checkpoint are not supported with "
            f"{prepared.precision.mode}, for which an exact resume is not proven. Remove the flags."
        )
    return () if note is None else (note,)


def _check_schedule_and_metric(prepared: Prepared) -> None:
    warmup, total = prepared.args.num_warmup_steps, prepared.total_steps
    if warmup and warmup >= total:
        raise InputError(
            f"--num_warmup_steps {warmup}: the training has only {counted(total, 'step')}, so the "
            "learning rate would never reach its peak. Use fewer, or a share of the steps, such as "
            "--warmup_ratio 0.1."
        )
    task, name = prepared.task, prepared.args.metric_for_best_model
    chosen = split_names(prepared.args.metric)
    if chosen:
        check_metrics(chosen, task, trust_remote_code=prepared.args.trust_remote_code)
    metrics = task.problem.metrics
    allowed = (*metrics, *_ranking_of(task))
    if name is not None and selecting_metric(name, metrics) not in allowed:
        raise InputError(
            f"--metric_for_best_model: received {name!r}, which is not a metric of the task "
            f"{task.name}. Choose from {', '.join(allowed)}."
        )


def _ranking_of(task: Task) -> tuple[str, ...]:
    """Return the ranking metrics of a task with probabilities per example or word."""
    outcome_type: Any = task.problem.outcome_type
    if "probabilities" not in outcome_type.__dataclass_fields__:
        return ()
    binary = len(task.label_names) == 2 and not task.row.several_labels
    return tuple(name for name in RANKING if name.startswith(("macro", "weighted")) != binary)


def check_sharded_settings(args: ClassifyArguments, accelerator: Accelerator) -> None:
    """Reject what FSDP2 cannot train, before data and model are loaded.

    Raises:
        InputError: The flag, and what to use instead.
    """
    if not is_sharded(accelerator):
        return
    if args.load_in_4bit:
        raise InputError(
            "--load_in_4bit: weights in 4 bits are not sharded. Remove the flag, or launch without "
            "FSDP."
        )
    if args.optim != ADAMW:
        raise InputError(
            f"--optim {args.optim} is not supported with FSDP: its update of a weight depends on "
            f"the whole matrix, which is sharded. Use --optim {ADAMW}, or launch without FSDP."
        )


def _check_trained_part(prepared: Prepared) -> None:
    args, mode = prepared.args, prepared.precision.mode
    name = prepared.loaded.name
    if args.lora_r is None:
        return
    if prepared.precision.properties.replaces_layers:
        raise InputError(
            f"--lora_r {args.lora_r}: adapters are not supported with {mode}, which replaces "
            "the layers that they are added to. Use --mixed_precision bf16."
        )
    if args.load_in_4bit and prepared.precision.properties.stores_16_bits:
        raise InputError(
            f"--load_in_4bit: {mode} stores all weights in 16 bits. Remove the flag, or use "
            "--mixed_precision bf16, which multiplies 4-bit weights in bfloat16."
        )
    if not args.merges_lora and not is_folder_or_hub_id(name):
        raise InputError(
            f"--lora_r {args.lora_r}: the adapters would be saved without their base model, "
            f"which cannot be loaded again ({name}). Add --merge_lora."
        )


def _check_gathers(prepared: Prepared) -> None:
    gathers, mode = prepared.args.fsdp_gathers, prepared.precision.mode
    sharded = is_sharded(prepared.accelerator)
    if gathers == "float32" or (sharded and prepared.precision.compute_dtype == torch.bfloat16):
        return
    raise InputError(
        f"--fsdp_gathers {gathers}: the flag is for runs in bf16 that FSDP2 shards "
        f"(accelerate_configs/fsdp2.yaml), and this run is in {mode}"
        f"{'' if sharded else ' without FSDP2'}. Remove the flag."
    )


def check_space_for_run(prepared: Prepared) -> None:
    """Check that the weights and checkpoints that the run will save fit on the disk."""
    folder = prepared.output_dir
    assert folder is not None, "prepare() chooses a folder"
    missing = max(0, planned_checkpoints(prepared) - len(CheckpointStore(folder).complete()))
    purpose = "the run"
    if missing:
        purpose += f" with {counted(missing, 'checkpoint')} (--checkpoint_total_limit)"
    earlier = sum(path.stat().st_size for path in earlier_results(folder))
    check_disk_space(folder, disk_bytes(prepared, missing), purpose, reclaimable=earlier)


def planned_checkpoints(prepared: Prepared) -> int:
    """Return how many checkpoints of the whole training are on the disk at once, at most."""
    return parse_interval(prepared.args.checkpointing_steps).most_at_once(
        prepared.total_steps, len(prepared.step_batches), prepared.args.checkpoint_total_limit
    )


def disk_bytes(prepared: Prepared, checkpoints: int) -> int:
    """Return the size in bytes of the weights and checkpoints that a run saves.

    Args:
        checkpoints: Number of checkpoints that are on the disk at once.
    """
    copies = 2 if prepared.selects_best else 1  # the best weights are loaded before they are saved
    copies += checkpoints * (1 + OPTIMIZERS[prepared.args.optim].state_per_weight)
    return copies * weights_size(prepared.loaded.model)


def _check_model_runs(prepared: Prepared) -> str | None:
    """Try the model unless it runs as in loading: in float32 on a CPU, not compiled.

    Returns:
        A note about its kernels, if there is one.
    """
    backend = configured_backend(prepared.accelerator)
    compute_dtype = prepared.precision.compute_dtype
    is_plain = prepared.accelerator.device.type == "cpu" and compute_dtype == torch.float32
    if is_plain and backend is None:
        return None
    if backend is not None and prepared.args.watch:
        raise InputError(
            f"--watch {prepared.args.watch}: a compiled model cannot be watched. Remove the flag, "
            "or launch with --dynamo_backend no."
        )
    try:
        return _run_model(prepared)
    except TorchDynamoException as error:
        reason = next(filter(None, str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"--dynamo_backend {backend}: torch cannot compile the model ({reason}). Launch with "
            "--dynamo_backend no."
        ) from error


def _run_model(prepared: Prepared) -> str | None:
    accelerator, precision, task = prepared.accelerator, prepared.precision, prepared.task
    examples = task.examples("train")
    batch = examples.collate(ids_of_varied_length(examples.lengths))
    with numerics(precision):
        if prepared.loaded.padding_free:
            plain = accelerator.unwrap_model(prepared.model, keep_torch_compile=False)
            tried = largest_part(plain, model_inputs(batch))
            inputs = {k: v.to(accelerator.device) for k, v in tried.items()}
            return GROUPED_ATTENTION_CHECK.require()(prepared.model, plain, inputs)
        try:
            with evaluation_mode(prepared.model):
                task.logits(prepared.model, batch)
        except TorchDynamoException:
            raise
        except RuntimeError as error:
            raise InputError(
                f"model: {type(prepared.loaded.model).__name__} cannot run in {precision.mode} "
                f"({error}).{_float32_remedy(prepared, batch)}"
            ) from error
    return None


def _float32_remedy(prepared: Prepared, batch: Mapping[str, Tensor]) -> str:
    """Return the advice to train in float32 if the model runs in it; empty if it does not."""
    accelerator, precision = prepared.accelerator, prepared.precision
    if precision.properties.replaces_layers or is_sharded(accelerator):
        return ""
    try:
        with in_float32(accelerator, prepared.model, precision) as plain, evaluation_mode(plain):
            prepared.task.logits(plain, batch)
    except RuntimeError:
        return ""
    return " It runs in float32: use --mixed_precision fp32."


@dataclass(frozen=True)
class PrecisionCheck:
    """What the check found."""

    mode: str  # Precision of the run.
    examples: int  # Number of examples.
    loss: float  # Mean loss in the mode.
    loss_float32: float  # Mean loss in float32.
    error: float  # Norm of the difference of the gradients, relative to that in float32.
    worst: tuple[str, float]  # Module with the largest relative error, and that error.
    lost: float  # Share of the entries of the gradient that are 0 only in the mode.
    # Loss scale at which the gradient did not overflow; None without a scaler.
    loss_scale: float | None
    initial_scale: float | None  # Loss scale with which the training begins; None without a scaler.
    usual: float  # Largest error, relative as `error`, that is usual in the mode.

    @property
    def notes(self) -> list[str]:
        """The result in words, the warnings last."""
        module, error = self.worst
        notes = [
            f"{self.mode} holds on {self.examples} examples: the gradient differs from "
            f"float32 by {self.error:.2%} (most in {module}: {error:.2%}), the loss is "
            f"{self.loss:.4f} instead of {self.loss_float32:.4f}"
        ]
        if self.lost > 0.01:
            notes.append(f"{self.lost:.1%} of the gradient becomes 0 in {self.mode}")
        if self.loss_scale != self.initial_scale:
            notes.append(
                f"the first steps will be skipped: the gradient overflows at a loss scale of "
                f"{self.initial_scale:g}, and not at {self.loss_scale:g}"
            )
        if self.error > self.usual:
            notes.append(
                f"warning: an error of at most {self.usual:.0%} is usual. To see where it arises: "
                "ampft yardstick, or ampft doctor"
            )
        return notes


def check_precision(prepared: Prepared) -> PrecisionCheck:
    """Compare forward and backward pass of a few examples in the mode with float32.

    The model, its buffers and the random state are as before afterwards.

    Raises:
        InputError: The mode cannot train this model, or cannot be compared with float32.
    """
    accelerator, precision = prepared.accelerator, prepared.precision
    mode = precision.mode
    if is_fp32(mode) or precision.properties.replaces_layers or is_sharded(accelerator):
        reason = (
            "there is nothing to compare" if is_fp32(mode)
            else "the same weights cannot compute in float32 there"
        )  # fmt: skip
        fsdp = " and FSDP" if is_sharded(accelerator) else ""
        raise InputError(
            f"--check_precision with {mode}{fsdp}: {reason}. "
            "Remove the flag, or use --mixed_precision bf16 or fp16 in a process without FSDP."
        )
    model: nn.Module = accelerator.unwrap_model(prepared.model, keep_torch_compile=False)
    (step_batch,) = prepared.step_batches.epoch(0, stop=1)
    ids = step_batch.ids[:CHECKED_EXAMPLES]
    examples = prepared.step_batches.examples
    batch = MicroBatch(ids, examples.collate(ids), counted=True, is_last=True)
    weight = float(examples.weights[ids].sum())
    snapshot, was_training = RandomAndBufferSnapshot(model), model.training
    model.eval()
    try:
        with numerics(precision):
            initial = None if accelerator.scaler is None else accelerator.scaler.get_scale()
            scales = descending_loss_scales(initial)
            found = first_finite_gradient(
                partial(_gradient, prepared, model, batch, weight), scales
            )
            with in_float32(accelerator, model, precision) as plain:
                reference = _gradient(prepared, plain, batch, weight, 1.0)
    finally:
        model.train(was_training)
        snapshot.restore()
        reset_peak_memory(accelerator.device)
    gradient, exact = found.gradient, reference.gradient
    if not reference.is_finite:
        raise InputError(
            "--check_precision: loss or gradient is not finite in float32 either, so no precision "
            "helps. Check the data and the model: ampft doctor shows the operation."
        )
    if not found.is_finite:
        where = "" if initial is None else f" at any loss scale from {initial:g} to {scales[-1]:g}"
        raise InputError(
            f"--check_precision: {mode} does not hold: loss or gradient is not finite{where}, but "
            "both are in float32. Use --mixed_precision bf16 or fp32; ampft doctor finds the "
            "module and a cure."
        )
    change = GRADIENT_CHANGE.require()((gradient[name] for name in exact), exact.values())
    worst = _worst_module(change, list(exact))
    if change.harm is not None:
        raise InputError(
            f"--check_precision: {mode} does not hold: {change.harm}. Compared with float32, the "
            f"gradient has a cosine of {change.cosine:z.2f} and {change.size:.2f} times the norm "
            f"(it differs most in {worst[0]}: {worst[1]:.0%}). Use --mixed_precision fp32; ampft "
            "doctor finds the module and a cure."
        )
    lost = sum(int(((gradient[n] == 0) & (exact[n] != 0)).sum()) for n in exact)
    return PrecisionCheck(
        mode=mode,
        examples=len(ids),
        loss=found.loss,
        loss_float32=reference.loss,
        error=change.error,
        worst=worst,
        lost=lost / max(1, sum(int((g != 0).sum()) for g in exact.values())),
        loss_scale=None if initial is None else found.scale,
        initial_scale=initial,
        usual=USUAL_ERROR.get(precision.compute_dtype, USUAL_ERROR[torch.bfloat16]),
    )


def _gradient(
    prepared: Prepared, model: nn.Module, batch: MicroBatch, weight: float, scale: float
) -> ScaledGradient:
    loss = prepared.task.loss(model, batch) / weight
    (loss * scale).backward()
    gradient = {
        name: parameter.grad.float() / scale
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return ScaledGradient(float(loss.detach()), gradient, scale)


def _worst_module(change: GradientChange, names: Sequence[str]) -> tuple[str, float]:
    """Return the module with the largest relative error of its gradient, and that error.

    A module counts only if a hundredth of the gradient is in it.
    """
    modules: dict[str, list[float]] = {}
    for name, (_, _, square, difference) in zip(names, change.sums.tolist(), strict=True):
        entry = modules.setdefault(name.rpartition(".")[0], [0.0, 0.0])
        entry[0] += difference
        entry[1] += square
    total = sum(square for _, square in modules.values()) or 1.0
    relative = {
        name: (difference / square) ** 0.5
        for name, (difference, square) in modules.items()
        if square > 1e-4 * total
    }
    worst = max(relative, key=lambda name: relative[name], default="")
    return worst, relative.get(worst, 0.0)
