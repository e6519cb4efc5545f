"""Fine-tune a classifier from transformers in the precision you choose.

    accelerate launch recipes/classify.py --mixed_precision fp16
    accelerate launch recipes/classify.py --train_file reviews.csv

`--help_all` lists all settings. `train` is the complete run and shows its loop.
"""

from __future__ import annotations

import sys

try:
    import ampft
except ImportError as error:  # a forgotten environment
    hint = f" ({sys.executable}). Activate the environment of ampft." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)


def train(args: ampft.ClassifyArguments) -> None:
    """Fine-tune with the settings `args`, and write and print the results."""
    prepared = ampft.prepare(args)  # accelerator, data, task, model, batches, optimizer, schedule
    accelerator, task, model = prepared.accelerator, prepared.task, prepared.model
    optimizer, schedule = prepared.optimizer, prepared.schedule
    if args.perturb_initial_weights:  # the placebo of a comparison
        ampft.perturb_weights(model, args.seed)

    def gradient(step_batch: ampft.StepBatch) -> ampft.Losses:
        """Accumulate the gradient of an optimizer step; return the losses of its micro-batches."""
        losses = []
        for micro_batch in step_batch:
            with ampft.synchronized_last(accelerator, model, micro_batch):
                loss = task.loss(model, micro_batch) / step_batch.effective_weight
                losses.append(ampft.backward(accelerator, loss))
        return losses

    with ampft.numerics(prepared.precision), ampft.open_run(prepared) as run:
        for epoch in run.epochs:
            model.train()
            for step_batch in run.step_batches(epoch):
                with run.measured():
                    # Repeated with smaller micro-batches if memory runs out.
                    losses = run.gradient(gradient, step_batch)
                    outcome = ampft.apply_step(
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


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: train(ampft.parse_classify_arguments())))
