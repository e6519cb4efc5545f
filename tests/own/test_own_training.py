"""`ampft.Training`: what it refuses, and what its runs are to other commands."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import datasets
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import ampft
from ampft.errors import AlreadyFinished, InputError, Preempted, TrainingStopped
from ampft.lab.audit.audit import audit_run
from ampft.own.examples import own_examples
from ampft.runs.record import read_record

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import own_loops  # noqa: E402


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def made(folder, **settings):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    examples = (torch.randn(20, 4), torch.arange(20) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = {"output_dir": folder, "batch_size": 8, "epochs": 1, **settings}
    return model, ampft.Training(model, optimizer, examples, **values)


def trained(training, loss):
    with training:
        for _ in training:
            training.step(loss)


def summed(model):
    return lambda batch: ampft.summed_cross_entropy(model(batch[0]), batch[1])


def test_a_mean_is_refused_by_name_before_a_step(tmp_path):
    model, training = made(tmp_path / "run")
    before = model.weight.detach().clone()
    with pytest.raises(InputError, match="a mean over the examples, not their sum"):
        trained(training, lambda b: nn.functional.cross_entropy(model(b[0]), b[1]))
    assert torch.equal(model.weight, before)
    assert read_record(tmp_path / "run").status == "interrupted"


@pytest.mark.parametrize("weight", [1, 0.25, "mean"])
def test_a_weight_that_is_a_mean_is_refused(tmp_path, weight):
    model, training = made(tmp_path / "run")

    def loss(batch):
        mask = (batch[0][:, 0] > -9).float()
        return summed(model)(batch), mask.mean() if weight == "mean" else weight

    with pytest.raises(InputError, match=r"its weight is not a sum over the examples: .* for two"):
        trained(training, loss)
    model, training = made(tmp_path / "other")
    trained(training, lambda batch: (summed(model)(batch), len(batch[0])))


def test_a_mean_is_accepted_on_request_and_a_sum_always(tmp_path):
    model, training = made(tmp_path / "one", check_loss=False)
    trained(training, lambda b: nn.functional.cross_entropy(model(b[0]), b[1]))
    model, training = made(tmp_path / "two")
    trained(training, summed(model))
    assert read_record(tmp_path / "two").status == "finished"


def test_a_loss_of_pairs_is_a_warning(tmp_path):
    model, training = made(tmp_path / "run")
    trained(training, lambda b: torch.cdist(model(b[0]).float(), model(b[0]).float()).sum())
    assert (
        "not the sum of the losses"
        in read_record(tmp_path / "run").warnings["split_dependent_loss"]
    )


def test_a_loss_in_16_bits_is_refused(tmp_path):
    model, training = made(tmp_path / "run", precision="bf16")
    with pytest.raises(InputError, match=r"summed in torch.bfloat16"):
        trained(training, lambda b: model(b[0]).sum())


class Stream(IterableDataset):
    """Examples without an index."""

    def __iter__(self):
        return iter([1, 2])


@pytest.mark.parametrize("source", [Stream(), DataLoader(Stream()), iter([1, 2]), []])
def test_examples_without_an_index_are_refused_with_the_reason(source):
    with pytest.raises(InputError, match=r"can only be iterated|at least one example"):
        own_examples(source)


ROWS = TensorDataset(torch.arange(20.0), torch.arange(20))


class Grouped(Sampler):
    """All rows in an order of its own, or all rows but one."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter([4, 2, *range(5, self.count), 0, 1, 3])


class Endless(Sampler):
    """All rows, again and again."""

    def __iter__(self):
        return itertools.cycle(range(20))


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(12)),
        WeightedRandomSampler([0.0] * 10 + [1.0] * 10, 20),
        SequentialSampler(range(12)),
        RandomSampler(ROWS, num_samples=12),
        RandomSampler(ROWS, replacement=True),
        Grouped(19),
        Endless(),
    ],
)
def test_a_loader_that_leaves_out_examples_is_refused(sampler):
    with pytest.raises(InputError, match=f"{type(sampler).__name__} of the DataLoader leaves out"):
        own_examples(DataLoader(ROWS, sampler=sampler))
    part = own_examples(DataLoader(Subset(ROWS, range(12)), shuffle=True, drop_last=True))
    assert len(part.weights) == 12


def test_a_loader_may_have_an_order_of_its_own():
    state = torch.get_rng_state()
    batches = [[4, 2, 0], [1, 3], [*range(5, 20)]]
    for loader in (
        DataLoader(ROWS, sampler=Grouped(20)),
        DataLoader(ROWS, batch_sampler=batches),
        DataLoader(ROWS, batch_size=None),
    ):
        assert len(own_examples(loader).weights) == 20
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(InputError, match="list of the DataLoader leaves out"):
        own_examples(DataLoader(ROWS, batch_sampler=batches[:2]))


def test_the_batches_of_a_loader_are_not_replaced_by_the_default(tmp_path):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=5)
    with pytest.raises(InputError, match="the DataLoader has batches of 5, and steps are of 32"):
        ampft.Training(model, optimizer, loader, output_dir=tmp_path / "run")
    for size in (5, 10):
        ampft.Training(model, optimizer, loader, output_dir=tmp_path / "run", batch_size=size)


class Doubled(TensorDataset):
    """Rows that are changed when they are read."""

    def __getitem__(self, index):
        value, label = super().__getitem__(index)
        return 2 * value + torch.rand(()), label


def test_examples_are_read_as_their_own_class_reads_them():
    examples = own_examples(Doubled(*ROWS.tensors)).for_step(0, 0)
    ids = torch.arange(20).numpy()
    values, labels = examples.collate(ids)
    assert torch.equal(labels, ROWS.tensors[1])
    assert torch.equal((values - 2 * ROWS.tensors[0]).floor(), torch.zeros(20))
    assert torch.equal(examples.collate(ids)[0], values)  # the same draws


@dataclass
class Pair:
    """A row as users write it."""

    values: torch.Tensor
    label: str


def test_rows_that_are_objects_are_compared_by_their_fields():
    def fingerprint(label):
        rows = [Pair(torch.ones(3), "a"), Pair(torch.zeros(3), label)]
        return own_examples(rows).fingerprint()

    assert fingerprint("a") == fingerprint("a")
    assert fingerprint("a") != fingerprint("b")


def test_what_examples_have_themselves_is_not_overruled_in_silence():
    examples = ampft.TensorExamples({"x": torch.randn(4, 2)})
    assert own_examples(examples) is examples
    for given in ({"weights": [1, 2, 3, 4]}, {"collate": list}):
        with pytest.raises(InputError, match="Leave out weights and collate"):
            own_examples(examples, **given)


def test_a_gradient_from_before_the_training_is_not_added(tmp_path):
    def norms(folder, *, passes_before):
        model, training = made(folder)
        if passes_before:
            model(torch.ones(3, 4)).sum().backward()
        found = []
        with training:
            for step_batch in training:
                found.append(training.step(summed(model)).grad_norm)
                if passes_before and step_batch.step == 0:
                    model(torch.ones(3, 4)).sum().backward()
        return found

    assert norms(tmp_path / "a", passes_before=True) == norms(tmp_path / "b", passes_before=False)


def test_a_step_batch_without_a_step_is_an_error(tmp_path):
    model, training = made(tmp_path / "run", epochs=2)

    def loop():
        with training:
            for step_batch in training:
                if step_batch.step != 1:
                    training.step(summed(model))

    with pytest.raises(InputError, match=r"went on from step 2 without training\.step"):
        loop()


@pytest.mark.parametrize(
    ("name", "kept"),
    [("mse", 1), ("val_rmse", 1), ("loss/nll", 1), ("log_loss", 1), ("MAE", 1), ("recall", 2)],
)
def test_the_best_value_of_a_metric_is_the_one_that_is_better(tmp_path, name, kept):
    model, training = made(tmp_path / "run", epochs=3)
    scores, weights = iter([1.0, 0.5, 1.5]), []
    with training:
        for _ in training:
            training.step(summed(model))
            if training.validation_is_due:
                training.validated(**{name: next(scores)})
                weights.append(model.weight.detach().clone())
    assert torch.equal(model.weight, weights[kept])


def test_a_step_batch_with_several_steps_counts_what_each_did(tmp_path):
    models = {"g": nn.Linear(4, 2), "d": nn.Linear(4, 2)}
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=rate)
        for (name, model), rate in zip(models.items(), (0.1, 0.001), strict=True)
    }
    training = ampft.Training(
        models, optimizers, (torch.randn(20, 4),), output_dir=tmp_path / "run", batch_size=20,
        epochs=1, precision="fp16", check_loss=False,
    )  # fmt: skip
    skipped = []
    with training:
        for _ in training:
            for name, factor in (("g", 1e9), ("g", 1e-3), ("d", 1e-3)):
                model = models[name]
                outcome = training.step(
                    lambda b, m=model, f=factor: f * m(b[0]).float().square().sum(), update=name
                )
                skipped.append(outcome.skipped)
    assert skipped == [True, False, False]
    (row,) = map(json.loads, (tmp_path / "run" / "history.jsonl").read_text().splitlines())
    assert row["skipped"]
    assert row["learning_rate"] == 0.1


def test_a_metric_that_predictions_have_is_not_replaced(tmp_path):
    model, training = made(tmp_path / "run")
    predictions = ampft.Predictions.from_logits(torch.eye(2), torch.tensor([0, 0]), ("a", "b"))
    with training:
        for _ in training:
            training.step(summed(model))
        with pytest.raises(InputError, match="finish: accuracy is computed from the predictions"):
            training.finish(predictions, accuracy=1.0)
        training.finish(predictions, own_accuracy=1.0)
    metrics = read_record(tmp_path / "run").metrics
    assert (metrics["accuracy"], metrics["own_accuracy"]) == (0.5, 1.0)


def test_a_skipped_step_is_told_without_a_folder_that_no_own_loop_has(tmp_path):
    folder = tmp_path / "run"
    model, training = made(folder, on_nonfinite="skip", max_grad_norm=None)
    with training:
        for step, _ in enumerate(training):
            factor = float("nan") if step == 1 else 1.0
            training.step(lambda b, factor=factor: factor * summed(model)(b))
        training.finish()
    (warning,) = read_record(folder).warnings.values()
    assert warning.startswith("the loss or gradient was not finite in 1 step, ")
    assert "nonfinite/" not in warning
    assert not (folder / "nonfinite").exists()
    assert model.weight.isfinite().all()


def test_a_norm_of_0_does_not_clip(tmp_path):
    weights = []
    for number, limit in enumerate((0, None, 1e9)):
        model, training = made(tmp_path / str(number), max_grad_norm=limit)
        trained(training, summed(model))
        weights.append(model.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    for wrong in (-1.0, float("nan")):
        with pytest.raises(InputError, match="max_grad_norm: received"):
            made(tmp_path / "wrong", max_grad_norm=wrong)


def test_a_schedule_of_no_optimizer_is_refused(tmp_path):
    models = {"g": nn.Linear(4, 2), "d": nn.Linear(4, 2)}
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()
    }

    def constant(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)

    rows = torch.randn(20, 4)
    with pytest.raises(InputError, match="schedule: gen names no optimizer"):
        ampft.Training(models, optimizers, (rows,), output_dir=tmp_path, schedule={"gen": constant})
    ampft.Training(models, optimizers, (rows,), output_dir=tmp_path, schedule={"g": constant})
    assert optimizers["g"].param_groups[0]["lr"] == 0.05
    assert optimizers["d"].param_groups[0]["lr"] == 0.1


def test_settings_and_parameters_are_checked(tmp_path):
    with pytest.raises(InputError, match="hyperparameters: batch_size, seed is a setting"):
        made(tmp_path, hyperparameters={"batch_size": 64, "seed": 1, "layers": 2})
    with pytest.raises(
        InputError, match=r"batchsize is not a setting .* Did you mean 'batch_size'"
    ):
        made(tmp_path, batchsize=3)
    for name in ("epochs", "early_stopping_patience", "checkpoint_total_limit"):
        with pytest.raises(InputError, match=f"^{name}: received 0. Pass a whole number of at"):
            made(tmp_path, **{name: 0})
    with pytest.raises(InputError, match="micro_batches: received 9"):
        made(tmp_path, micro_batches=9)
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(InputError, match="a parameter that is not one of the model"):
        ampft.Training(model, optimizer, [1], output_dir=tmp_path)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with pytest.raises(InputError, match="1 trainable parameters, such as bias"):
        ampft.Training(model, optimizer, [1], output_dir=tmp_path)
    assert not any(tmp_path.iterdir())


def test_the_precision_of_accelerate_launch_is_not_ignored(tmp_path, monkeypatch):
    for launched, asked, mode in (
        ("no", None, "fp32"),
        ("bf16", None, "bf16"),
        ("bf16", "bf16", "bf16"),
        ("no", "fp16", "fp16"),
    ):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
        given = {} if asked is None else {"precision": asked}
        assert made(tmp_path / "run", **given)[1].precision.mode == mode
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    for asked in ("fp32", ampft.resolve("fp16", "cpu")):
        with pytest.raises(InputError, match=r"^precision fp\d\d disagrees with ACCELERATE_MIXED"):
            made(tmp_path / "run", precision=asked)


def test_sharding_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ampft.own.training.is_sharded", lambda accelerator: True)
    with pytest.raises(InputError, match="does not shard the model over the processes"):
        made(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_repeated_and_others_are_refused(tmp_path):
    for _ in range(2):
        model, training = made(tmp_path / "run")
        if (tmp_path / "run").exists():
            with pytest.raises(AlreadyFinished, match="has finished"):
                training.__enter__()
            break
        with training:
            for _ in training:
                training.step(summed(model))
    _, training = made(tmp_path / "run", seed=1)
    with pytest.raises(InputError, match="belongs to a run with other settings"):
        training.__enter__()


def test_a_finished_run_is_replaced_on_request(tmp_path):
    for _ in range(2):
        model, training = made(tmp_path / "run", overwrite_output_dir=True)
        trained(training, summed(model))
    assert read_record(tmp_path / "run").status == "finished"


def test_a_signal_stops_after_the_step_and_the_same_call_continues(tmp_path):
    import signal

    def run(stop_at=None):
        model, training = made(tmp_path / ("whole" if stop_at is None else "stopped"), epochs=2)
        with training:
            for _ in training:
                training.step(summed(model))
                if training.steps == stop_at:
                    signal.raise_signal(signal.SIGTERM)
        return model.weight.detach()

    expected = run()
    with pytest.raises(Preempted, match="stopped"):
        run(stop_at=2)
    assert read_record(tmp_path / "stopped").status == "preempted"
    assert torch.equal(run(stop_at=99), expected)


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("row", "data of train"),
        ("label", "data of train"),
        ("list", "data of train"),
        ("table", "data of train"),
        ("schedule", "schedule"),
        ("optimizer", "optimizer"),
    ],
)
def test_what_changed_since_the_checkpoint_is_named(tmp_path, change, named):
    def loop(changed):
        torch.manual_seed(0)
        model, rows, labels = nn.Linear(4, 2), torch.randn(200, 4), torch.arange(200) % 2
        if changed and change in ("row", "list", "table"):
            rows[5, 0] += 1  # one of 200
        if changed and change == "label":
            labels[5] = 1 - labels[5]
        kind = torch.optim.Adam if changed and change == "optimizer" else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=0.1)
        examples = (rows, labels)
        if change == "list":
            examples = list(zip(rows, labels, strict=True))
        if change == "table":
            table = datasets.Dataset.from_dict({"x": rows.tolist(), "y": labels.tolist()})
            examples = table.with_format("torch")
        steps = 20 if changed and change == "schedule" else 25
        training = ampft.Training(
            model, optimizer, examples, output_dir=tmp_path / "run", batch_size=8, epochs=1,
            schedule=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, steps),
            checkpointing_steps="2", schedule_every="step",
        )  # fmt: skip

        def loss(batch):
            x, y = (batch["x"], batch["y"]) if change == "table" else batch
            return ampft.summed_cross_entropy(model(x), y)

        with training:
            for step, _ in enumerate(training):
                training.step(loss)
                if not (tmp_path / "killed").exists() and step == 4:
                    (tmp_path / "killed").touch()
                    raise Killed
        return step

    with pytest.raises(Killed):
        loop(changed=False)
    with pytest.raises(InputError, match="belongs to a run with other settings") as refused:
        loop(changed=True)
    assert re.search(rf"^(configuration: )?{named} ", str(refused.value), re.MULTILINE)
    assert loop(changed=False) < 24  # the checkpoint itself continues


def test_averaged_weights_are_validated_inside_evaluation_only(tmp_path):
    model, training = made(tmp_path / "run", ema_decay=0.9)
    with training:
        for _ in training:
            training.step(summed(model))
            with pytest.raises(InputError, match=r"inside `with training\.evaluation"):
                training.validated(loss=1.0)
            with training.evaluation():
                training.validated(loss=1.0)


def test_early_stopping_keeps_the_best_weights(tmp_path):
    model, training = made(tmp_path / "run", epochs=9, early_stopping_patience=2)
    kept, scores = [], iter([1.0, 0.5, 0.7, 0.6, 0.4])
    with training:
        for _ in training:
            training.step(summed(model))
            if training.validation_is_due:
                training.validated(loss=next(scores))
                kept.append(model.weight.detach().clone())
    assert len(kept) == 4
    assert torch.equal(model.weight, kept[1])
    record = read_record(tmp_path / "run")
    assert record.best is not None
    assert (record.best.metric, record.best.epoch) == ("loss", 2)


def test_a_step_that_is_not_finite_stops_before_the_update(tmp_path):
    model, training = made(tmp_path / "run", check_loss=False)
    before = model.weight.detach().clone()
    with pytest.raises(TrainingStopped, match="not finite"):
        trained(training, lambda b: model(b[0]).float().sum() * float("nan"))
    assert torch.equal(model.weight, before)
    assert read_record(tmp_path / "run").status == "diverged"


def test_augmentation_does_not_depend_on_the_cut(tmp_path):
    examples = own_examples(own_loops.FlippedImages()).for_step(1, 2)
    ids = torch.arange(9).numpy()
    whole = examples.collate(ids)[0]
    parts = [examples.collate(part)[0] for part in (ids[:4], ids[4:])]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, examples.for_step(2, 2).collate(ids)[0])


@pytest.mark.slow
def test_own_runs_are_arms_and_are_audited(tmp_path):
    folders = []
    for mode in ("fp32", "fp16"):
        for seed in (1, 2, 3):
            folders.append(tmp_path / f"{mode}-{seed}")
            settings = {"max_train_steps": 6, "batch_size": 32, "seed": seed}
            own_loops.cnn(precision=mode, output_dir=folders[-1], **settings)
    comparison = ampft.compare_folders(folders)
    assert [arm.name for arm in comparison.arms] == ["fp32", "fp16"]
    assert comparison.examples == 96
    audit = audit_run(folders[-1], (), steps=None, cpu=True)
    assert audit.different == ()
    (folders[-1] / "history.jsonl").write_text("")
    found = {check.name for check in audit_run(folders[-1], (), steps=None, cpu=True).different}
    assert {"files", "history"} <= found


@pytest.mark.slow
def test_transformers_is_not_needed(tmp_path):
    done = subprocess.run(
        [sys.executable, str(HERE / "without_transformers.py"), str(tmp_path / "run")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
