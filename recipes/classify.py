"""Fine-tune a classifier of transformers in the precision you ask for.

    accelerate launch recipes/classify.py --mixed_precision fp16
    accelerate launch recipes/classify.py --mixed_precision bf16 --train_file reviews.csv

`--help` lists every setting. `train` is the whole run: the loop is written out, and each call in it
has its one home in `ampft`.
"""

import os
import sys

import ampft


def train(args: ampft.ClassifyArguments) -> None:
    """Fine-tune as `args` say, and write and print the results."""
    begun = ampft.begin()
    device = ampft.training_device(cpu=args.use_cpu)
    precision = ampft.resolve(ampft.requested_mode(args.mixed_precision, os.environ), device)
    output_dir = ampft.choose_folder(args, precision.mode)
    accelerator = ampft.make_accelerator(
        precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        log_with=ampft.installed_trackers(args.report_to) if args.with_tracking else None,
        project_dir=output_dir,
    )
    ampft.check_world_size(accelerator)
    ampft.restore_cpu_threads(args.cpu_threads, num_processes=accelerator.num_processes)

    with accelerator.main_process_first():  # one process downloads, the others find the files
        data = ampft.load_data(args.data_request())
        task = ampft.make_task(data, args.task_settings())

    ampft.set_seed(args.seed)
    loaded = ampft.cast_weights(task.load_model(), precision)
    step_batches = ampft.StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
        num_workers=args.dataloader_num_workers,
    )
    total_steps = args.max_train_steps or args.num_train_epochs * len(step_batches)
    optimizer = ampft.make_optimizer(loaded.model, args.optimizer_settings(), precision)
    schedule = ampft.make_schedule(optimizer, total_steps, args.schedule_settings())
    # Neither the loader nor the schedule is prepared: Accelerate would shard the one a second time
    # and step the other once per process.
    model, optimizer = accelerator.prepare(loaded.model, optimizer)

    setup = ampft.Setup(
        begun, args, accelerator, precision, task, loaded, step_batches, total_steps
    )
    with ampft.numerics(precision), ampft.open_run(setup, output_dir) as run:
        for epoch in range(-(-total_steps // len(step_batches))):
            model.train()
            for step_batch in run.step_batches.epoch(epoch, stop=total_steps - run.steps):
                with run.watched(model, optimizer, step_batch) as attempt:
                    # From the first again, in smaller ones, where memory runs out.
                    for micro_batch in attempt:
                        with attempt, ampft.synchronized_last(accelerator, model, micro_batch):
                            loss = task.loss(model, micro_batch) / step_batch.effective_weight
                            attempt.losses.append(ampft.backward(accelerator, loss))
                    outcome = ampft.apply_step(
                        accelerator,
                        model,
                        optimizer,
                        schedule,
                        losses=attempt.losses,
                        max_grad_norm=args.max_grad_norm or None,
                    )
                optimizer.zero_grad()
                run.record(attempt.step_batch, outcome)
            if run.validate(model, epoch):
                break
        run.finish(model)


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: train(ampft.parse_classify_arguments())))
