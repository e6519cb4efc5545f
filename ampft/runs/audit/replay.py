"""Repeats the first optimizer steps of a run, as the recipe trains it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ampft.data.steps import StepBatch
from ampft.errors import TrainingStopped
from ampft.evaluation.evaluate import evaluate
from ampft.models.adapters import merge_adapters
from ampft.models.sharded import whole_state
from ampft.models.weights import perturb_weights
from ampft.precision.accelerator import numerics
from ampft.precision.executed import ExecutedDtypes
from ampft.runs.features import averaged_weights, fitted_decisions
from ampft.runs.prepared import Prepared
from ampft.tasks.outcome import Outcome
from ampft.training.first_step import FirstStep
from ampft.training.step import StepOutcome, accumulate_gradient, apply_step, shared_autocast_cache


@dataclass
class Replay:
    """The repeated steps of a run.

    Attributes:
        outcomes: Outcome of each step.
        executed: Dtypes of the first step; None if none was completed.
        random_state: Hash of the random states after the first step, as in the record.
        validations: Outcome on the validation split by number of steps so far.
        weights: Weights after the step that was asked for; None if it was not reached.
        stopped: Why a step could not be applied; None if all could.
    """

    outcomes: list[StepOutcome] = field(default_factory=list)
    executed: ExecutedDtypes | None = None
    random_state: str | None = None
    validations: dict[int, Outcome] = field(default_factory=dict)
    weights: Mapping[str, Tensor] | None = None
    stopped: str | None = None


def replay(
    prepared: Prepared,
    micro_batches: Sequence[int],
    *,
    validated: frozenset[int] = frozenset(),
    kept: int | None = None,
    mask_seed: int | None = None,
    rounding: tuple[float, int] | None = None,
) -> Replay:
    """Repeat the first optimizer steps of a run.

    Args:
        prepared: The run before its first step.
        micro_batches: Number of micro-batches of this process in each step to repeat.
        validated: Numbers of steps after which the validation split is evaluated.
        kept: Number of steps after which the weights are returned.
        mask_seed: Seed for dropout masks that differ from the run's; None repeats the run's masks.
        rounding: Relative size and seed of a random change of the initial weights; None for none.
    """
    result, first_step = Replay(), FirstStep(prepared.precision)
    if prepared.args.perturb_initial_weights:
        perturb_weights(prepared.model, prepared.args.seed)
    if rounding is not None:
        _round_weights(prepared.model, *rounding)
    if mask_seed is not None:
        torch.manual_seed(mask_seed)
    average = averaged_weights(prepared)
    with numerics(prepared.precision):
        prepared.model.train()
        try:
            for step, step_batch in enumerate(_step_batches(prepared, micro_batches), 1):
                result.outcomes.append(_train_step(prepared, step_batch, first_step))
                if average is not None and not result.outcomes[-1].skipped:
                    average.update()
                with nullcontext() if average is None else average.around_evaluation():
                    if step in validated:
                        result.validations[step] = _validation(prepared)
                    if step == kept:
                        result.weights = _weights(prepared)
        except TrainingStopped as error:
            result.stopped = str(error)
    result.executed, result.random_state = first_step.executed, first_step.random_state
    return result


def _step_batches(prepared: Prepared, micro_batches: Sequence[int]) -> Iterator[StepBatch]:
    """Yield the first step batches of the training, cut into these numbers of micro-batches."""
    batches, step = prepared.step_batches, 0
    while step < len(micro_batches):
        epoch = step // len(batches)
        for step_batch in batches.epoch(epoch, stop=len(micro_batches) - step):
            if len(step_batch.micro_batches) != micro_batches[step]:
                # Memory ran out in the run, which cut this step into more micro-batches.
                recut = replace(batches, micro_batches=micro_batches[step])
                step_batch = recut.recut(step_batch)
            yield step_batch
            step += 1


def _train_step(prepared: Prepared, step_batch: StepBatch, first_step: FirstStep) -> StepOutcome:
    accelerator, model, optimizer = prepared.accelerator, prepared.model, prepared.optimizer
    with first_step.measured(model, optimizer):
        with shared_autocast_cache(accelerator, model, step_batch):
            losses = accumulate_gradient(accelerator, model, prepared.task.loss, step_batch)
        outcome = apply_step(
            accelerator,
            model,
            optimizer,
            prepared.schedule,
            losses=losses,
            max_grad_norm=prepared.args.max_grad_norm or None,
            skip_nonfinite=prepared.args.on_nonfinite == "skip",
        )
    optimizer.zero_grad()
    return outcome


def _validation(prepared: Prepared) -> Outcome:
    outcome = evaluate(
        prepared.accelerator,
        prepared.model,
        prepared.task,
        "validation",
        batch_size=prepared.args.per_device_eval_batch_size,
    )
    decisions = fitted_decisions(prepared)
    return outcome if decisions is None else decisions.decided(outcome, lambda: outcome)


def _weights(prepared: Prepared) -> dict[str, Tensor]:
    weights = whole_state(prepared.accelerator, prepared.model)
    if prepared.args.merge_lora:
        plain = prepared.accelerator.unwrap_model(prepared.model, keep_torch_compile=False)
        merged = copy.deepcopy(plain)
        merge_adapters(merged)
        weights = merged.state_dict()
    return {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}


@torch.no_grad()
def _round_weights(model: nn.Module, unit: float, seed: int) -> None:
    """Change each trainable weight by the relative amount `unit`, up or down at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            signs = torch.randint(2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + unit * signs.to(parameter.device, parameter.dtype))
