"""Fine-tune a classifier of transformers in the precision you ask for.

    accelerate launch recipes/classify.py --mixed_precision fp16
    accelerate launch recipes/classify.py --mixed_precision bf16 --train_file reviews.csv

`--help` lists every setting. `train` is the whole run: the loop is written out, and each call in it
has its one home in `ampft`.
"""

from __future__ import annotations

import os
import sys

from ampft.arguments import ClassifyArguments, parse_classify_arguments
from ampft.errors import run_door


def train(args: ClassifyArguments) -> None:
    """Fine-tune as `args` say, and write and print the results."""
    # Here, not above: `--help` should not wait for torch.
    from accelerate.utils import set_seed

    from ampft.console import quiet_libraries
    from ampft.data.load import load_data
    from ampft.data.steps import StepBatches
    from ampft.precision import requested_mode, resolve
    from ampft.run import choose_folder, open_run
    from ampft.tasks import make_task
    from ampft.training.accelerator import make_accelerator, numerics, training_device
    from ampft.training.optimizer import make_optimizer, make_schedule
    from ampft.training.step import apply_step, backward, synchronized_last
    from ampft.training.threads import restore_cpu_threads

    quiet_libraries()
    device = training_device(cpu=args.use_cpu)
    precision = resolve(requested_mode(args.mixed_precision, os.environ), device)
    output_dir = choose_folder(args, precision.mode)
    accelerator = make_accelerator(
        precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        log_with=args.report_to if args.with_tracking else None,
        project_dir=output_dir,
    )
    restore_cpu_threads(args.cpu_threads, num_processes=accelerator.num_processes)

    with accelerator.main_process_first():  # the others find the tokens in the cache
        data = load_data(args.data_request())
        task = make_task(data, args.task_settings())

    set_seed(args.seed)
    loaded = task.load_model()
    step_batches = StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
        num_workers=args.dataloader_num_workers,
    )
    total_steps = args.max_train_steps or args.num_train_epochs * len(step_batches)
    optimizer = make_optimizer(loaded.model, args.optimizer_settings())
    schedule = make_schedule(optimizer, total_steps, args.schedule_settings())
    # Neither the loader nor the schedule is prepared: Accelerate would shard the one a second time
    # and step the other once per process.
    model, optimizer = accelerator.prepare(loaded.model, optimizer)

    with (
        numerics(precision),
        open_run(
            args, output_dir, accelerator, precision, task, loaded, step_batches, total_steps
        ) as run,
    ):
        for epoch in range(-(-total_steps // len(step_batches))):
            model.train()
            for step_batch in step_batches.epoch(epoch, stop=total_steps - run.steps):
                with run.watched(model, optimizer):
                    loss = 0.0
                    for micro_batch in step_batch:
                        with synchronized_last(accelerator, model, micro_batch):
                            part = task.loss(model, micro_batch) / step_batch.effective_weight
                            loss += backward(accelerator, part)
                    outcome = apply_step(
                        accelerator,
                        model,
                        optimizer,
                        schedule,
                        loss=loss,
                        max_grad_norm=args.max_grad_norm or None,
                    )
                optimizer.zero_grad()
                run.record(step_batch, outcome)
            if run.validate(model, epoch):
                break
        run.finish(model)


if __name__ == "__main__":
    sys.exit(run_door(lambda: train(parse_classify_arguments())))
