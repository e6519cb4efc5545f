"""A complete training: the packaged form of `recipes/classify.py`, with the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from accelerate.tracking import GeneralTracker
from datasets import DatasetDict

from ampft.arguments import ClassifyArguments
from ampft.data.steps import StepBatch
from ampft.engine.step import Losses, apply_step, backward, synchronized_last
from ampft.models.weights import perturb_weights
from ampft.precision.accelerator import numerics
from ampft.runs.opening import open_run
from ampft.runs.prepare import prepare
from ampft.runs.run import Run


def train(
    args: ClassifyArguments,
    data: DatasetDict | None = None,
    trackers: Sequence[GeneralTracker] = (),
) -> Run:
    """Fine-tune with the settings `args`, and write and print the results.

    Args:
        data: Data in memory, by split; None reads the data that `args` names.
        trackers: Trackers of the user, in addition to those that `args` names.
    """
    # Accelerator, data, task, model, batches, optimizer, schedule
    prepared = prepare(args, data, trackers)
    accelerator, task, model = prepared.accelerator, prepared.task, prepared.model
    optimizer, schedule = prepared.optimizer, prepared.schedule
    if args.perturb_initial_weights:  # the placebo of a comparison
        perturb_weights(model, args.seed)

    def gradient(step_batch: StepBatch) -> Losses:
        """Accumulate the gradient of an optimizer step; return the losses of its micro-batches."""
        losses = []
        for micro_batch in step_batch:
            with synchronized_last(accelerator, model, micro_batch):
                loss = task.loss(model, micro_batch) / step_batch.effective_weight
                losses.append(backward(accelerator, loss))
        return losses

    with numerics(prepared.precision), open_run(prepared) as run:
        for epoch in run.epochs:
            model.train()
            for step_batch in run.step_batches(epoch):
                with run.measured():
                    # Repeated with smaller micro-batches if memory runs out.
                    losses = run.gradient(gradient, step_batch)
                    outcome = apply_step(
                        accelerator,
                        model,
                        optimizer,
                        schedule,
                        losses=losses,
                        max_grad_norm=args.max_grad_norm or None,
                        skip_nonfinite=run.may_skip_nonfinite,
                        votes=run.votes,
                    )
                optimizer.zero_grad()
                run.record(outcome)
                run.validate(model)  # after each epoch, or every --eval_steps
        run.finish(model)
    return run
