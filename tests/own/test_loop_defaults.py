"""What a training does to the numbers of a loop by default: nothing, or what its page lists."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.autograd import Function
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import ampft
from ampft.errors import InputError
from ampft.own.schedules import advanced_by
from ampft.runs.record import read_record

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from ported_loops import examples, network, sgd, weights  # noqa: E402

TOLERANCE = 2e-6  # relative, of weights after at most 20 steps


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


def optimizer_of(*sizes):
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes or (1,)]
    return torch.optim.SGD([{"params": [each]} for each in parameters], lr=0.1)


def chosen(make, epochs=10, steps=1000, every=None):
    return advanced_by(make(optimizer_of()), every=every, epochs=epochs, steps=steps)


def sequence(optimizer, last):
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=2)]
    parts.append(lr_scheduler.CosineAnnealingLR(optimizer, last))
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


class OfAnotherPackage(lr_scheduler.LRScheduler):
    """A schedule that is not torch's."""

    def get_lr(self):
        return [0.1]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lr_scheduler.ReduceLROnPlateau, "metric"),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 10), "epoch"),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 1000), "step"),
        (lambda o: lr_scheduler.StepLR(o, 3), "epoch"),
        (lambda o: lr_scheduler.MultiStepLR(o, [3, 8]), "epoch"),
        (lambda o: lr_scheduler.ExponentialLR(o, 0.9), "epoch"),
        (lambda o: sequence(o, 8), "epoch"),
        (lambda o: sequence(o, 998), "step"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=1001), "step"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, step_size_up=5), "step"),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step), "step"),
        (OfAnotherPackage, "step"),
    ],
)
def test_schedules_by_step_epoch_and_metric_are_told_apart(make, expected):
    assert chosen(make) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 200), "length of 200 is neither the"),
        (lambda o: lr_scheduler.MultiStepLR(o, [30, 60]), "length of 60 is neither"),
        (lambda o: sequence(o, 98), "length of 100 is neither"),
        (lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch), "can count steps or epochs"),
    ],
)
def test_a_schedule_that_could_count_both_is_asked_about(make, message):
    with pytest.raises(InputError, match=message):
        chosen(make)
    for every in ("step", "epoch"):  # the advice
        assert chosen(make, every=every) == every
    with pytest.raises(InputError, match='Pass "step" or "epoch"'):
        chosen(make, every="metric")
    with pytest.raises(InputError, match="for ReduceLROnPlateau, which follows a metric"):
        chosen(lr_scheduler.ReduceLROnPlateau, every="epoch")


def training(folder, model, optimizer, **settings):
    values = {"batch_size": 8, "epochs": 2, "output_dir": folder, **settings}
    return ampft.Training(model, optimizer, examples(), **values)


def summed(model):
    return lambda b: ampft.summed_cross_entropy(model(b[0]), b[1])


def test_the_direction_of_a_plateau_is_that_of_its_metric(tmp_path):
    def run(name, mode="min", **settings):
        model = network()
        optimizer = sgd(model)
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, patience=0)
        made = training(tmp_path / name, model, optimizer, schedule=schedule, **settings)
        with made:
            for _ in made:
                made.step(summed(model))
                if made.validation_is_due:
                    made.validated(accuracy=0.5, loss=1.0)
        return schedule.last_epoch

    with pytest.raises(InputError, match=r"mode='min'\) would follow 'accuracy', where higher"):
        run("a")
    assert run("b", "max") == run("c", schedule_metric="loss") == 2
    with pytest.raises(InputError, match="the metric 'f1' is missing"):
        run("d", schedule_metric="f1")


def test_a_plateau_without_validations_is_a_warning(tmp_path):
    model = network()
    made = training(tmp_path, model, sgd(model), schedule=lr_scheduler.ReduceLROnPlateau)
    with made:
        for _ in made:
            made.step(summed(model))
    assert "was never advanced" in read_record(tmp_path).warnings["schedule"]


def test_what_cannot_be_continued_is_refused(tmp_path):
    model = network()
    for value, message in ((3, "a int, without state_dict"), (nn.Linear(2, 2), "no tensors")):
        with pytest.raises(InputError, match=f"checkpointed: .*{message}"):
            training(tmp_path, model, sgd(model), checkpointed={"mine": value})
    with pytest.raises(InputError, match="schedule: received str"):
        training(tmp_path, model, sgd(model), schedule=lambda o: "cosine")
    models = {"a": network(), "b": network()}
    optimizers = {name: sgd(each) for name, each in models.items()}
    made = ampft.Training(models, optimizers, examples(), output_dir=tmp_path / "two")
    models["c"] = nn.Linear(1, 1)
    optimizers["a"].add_param_group({"params": models["c"].parameters()})

    def loop():
        with made:
            for _ in made:
                made.step(summed(models["a"]), update="a")

    with pytest.raises(InputError, match=r"went from 2 to 3\. A group can be added to a single"):
        loop()


def test_the_first_lines_and_the_record_say_what_is_done(tmp_path, capsys):
    def lines(name, source, **settings):
        model = network()
        made = ampft.Training(
            model, sgd(model), source, output_dir=tmp_path / name, epochs=1, **settings
        )
        with made:
            for _ in made:
                made.step(summed(model))
        return capsys.readouterr().out

    text = lines("a", examples(), batch_size=8)
    assert "shuffled by seed 42 in each epoch; the last batch of 5 is kept" in text
    assert "gradient not clipped; learning rate set by the loop" in text
    loader = DataLoader(examples(), batch_size=8, drop_last=True)
    text = lines("b", loader, batch_size=8, max_grad_norm=0.5, ema_decay=0.9, schedule=lambda o: (
        lr_scheduler.StepLR(o, 1)), load_best_model_at_end=False)  # fmt: skip
    assert "37 examples, in their order; the last batch of 5 is left out" in text
    assert "gradient clipped to norm 0.5; learning rate StepLR(" in text
    assert "advanced by each epoch" in text
    assert "averaged with decay 0.9, or (1 + t) / (10 + t)" in text
    assert "the final weights are from the last step" in text
    record = read_record(tmp_path / "b")
    assert record.steps.total == 4
    assert (record.arguments["shuffle"], record.arguments["drop_last"]) == (False, True)
    with pytest.raises(InputError, match="drop_last: it leaves out all of the 37 examples"):
        lines("c", examples(), drop_last=True, batch_size=64)


def global_state():
    return (
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )


def test_nothing_global_changes_and_modes_are_the_loops(tmp_path):
    model = nn.Sequential(network(), nn.BatchNorm1d(2), nn.Dropout(0.0))
    model[1].eval()  # frozen statistics, as in detection and fine-tuning
    before, modes = global_state(), []
    made = training(tmp_path / "run", model, sgd(model), epochs=1)
    with made:
        for _ in made:
            modes.append([m.training for m in (model, model[1], model[2])])
            made.step(summed(model))
    assert global_state() == before
    assert all(each == [True, False, True] for each in modes)
    assert torch.equal(model[1].running_mean, torch.zeros(2))
    # Of several models, one that is not trained keeps its mode; one that is, is put into training.
    models = {"teacher": network().eval().requires_grad_(False), "student": network().eval()}
    made = ampft.Training(models, sgd(models["student"]), examples(), output_dir=tmp_path / "two")
    with made:
        for _ in made:
            assert (models["teacher"].training, models["student"].training) == (False, True)
            made.step(summed(models["student"]))


def test_the_check_of_a_loss_changes_no_buffer(tmp_path):
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = network()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.layer(x)

    model = Queue()
    made = training(tmp_path, model, sgd(model), epochs=1)
    with made:
        for _ in made:
            made.step(summed(model))
    assert int(model.calls) == 5


def test_skipped_steps_leave_the_rate_of_the_loop(tmp_path):
    model = network()
    optimizer = sgd(model)
    made = training(tmp_path, model, optimizer, precision="fp16", check_loss=False)
    rates, skipped = [], []
    with made:
        for step, _ in enumerate(made):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            factor = 1e9 if step in (0, 3) else 1.0
            outcome = made.step(lambda b, f=factor: f * summed(model)(b))
            rates.append(outcome.learning_rate)
            skipped.append(outcome.skipped)
    assert [i for i, each in enumerate(skipped) if each] == [0, 3]
    assert rates == [0.1 / (1 + step) for step in range(10)]


class SignDescent(torch.optim.Optimizer):
    """An optimizer without a learning rate."""

    def __init__(self, parameters):
        super().__init__(parameters, {"size": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["size"] * parameter.grad.sign()


def test_optimizers_without_a_rate_and_with_several_are_recorded_as_they_are(tmp_path):
    model = network()
    made = training(tmp_path / "none", model, SignDescent(model.parameters()), epochs=1)
    with made:
        for _ in made:
            assert math.isnan(made.step(summed(model)).learning_rate)
    model = network()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.3}]
    made = training(tmp_path / "two", model, torch.optim.SGD(groups, lr=0.1), epochs=1)
    with made:
        for _ in made:
            assert made.step(summed(model)).learning_rate == 0.3
    row = json.loads((tmp_path / "two" / "history.jsonl").read_text().splitlines()[0])
    assert [row[f"learning_rate{part}"] for part in ("", "/0", "/1")] == [0.3, 0.1, 0.3]
    assert (
        json.loads((tmp_path / "none" / "history.jsonl").read_text().splitlines()[0])["step"] == 1
    )


class Reversed(Function):
    """The layer of DANN that reverses the gradient."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.alpha * gradient, None


class Dann(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.features = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.classes, self.domains = nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x, alpha):
        features = self.features(x)
        return self.classes(features), self.domains(Reversed.apply(features, alpha))


def test_a_port_of_dann_ends_as_the_original(tmp_path):
    """Its gradient norm is far above 1, so clipping would be seen."""
    (source, labels), target = examples().tensors, 3 * torch.randn(37, 6) + 1
    rows = TensorDataset(20 * source, labels, 20 * target)

    def alpha(step):
        return 2 / (1 + math.exp(-10 * step / 10)) - 1

    original = Dann()
    optimizer = torch.optim.SGD(original.parameters(), lr=1e-3)
    norms = []
    for epoch in range(2):
        for i, (s, y, t) in enumerate(DataLoader(rows, batch_size=8)):
            a = alpha(i + 5 * epoch)
            classes, of_source = original(s, a)
            _, of_target = original(t, a)
            loss = cross_entropy(classes, y)
            loss = loss + cross_entropy(of_source, torch.zeros(len(s), dtype=torch.long))
            loss = loss + cross_entropy(of_target, torch.ones(len(t), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(nn.utils.clip_grad_norm_(original.parameters(), math.inf)))
            optimizer.step()
    assert max(norms) > 5

    def port(name, **settings):
        model = Dann()
        made = ampft.Training(
            model,
            torch.optim.SGD(model.parameters(), lr=1e-3),
            DataLoader(rows, batch_size=8),
            batch_size=8,
            epochs=2,
            output_dir=tmp_path / name,
            **settings,
        )

        def loss(batch):
            s, y, t = batch
            classes, of_source = model(s, alpha(made.steps))
            _, of_target = model(t, alpha(made.steps))
            return (
                ampft.summed_cross_entropy(classes, y)
                + ampft.summed_cross_entropy(of_source, torch.zeros_like(y))
                + ampft.summed_cross_entropy(of_target, torch.ones_like(y))
            )

        with made:
            for _ in made:
                made.step(loss)
        return weights(model)

    assert error(port("port"), weights(original)) < TOLERANCE
    # The control: with clipping, which was once the default, the port ends elsewhere.
    assert error(port("clipped", max_grad_norm=1.0), weights(original)) > 1e-3


def test_a_port_of_an_imagenet_loop_ends_as_the_original(tmp_path):
    def made():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        torch.manual_seed(3)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        settings = {"momentum": 0.9, "weight_decay": 1e-2, "nesterov": True}
        return model, torch.optim.SGD(model.parameters(), 0.1, **settings)

    def adjust_learning_rate(optimizer, epoch):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.1 ** (epoch // 2)

    original, optimizer = made()
    for epoch in range(4):
        adjust_learning_rate(optimizer, epoch)
        original.train()
        for x, y in DataLoader(examples(), batch_size=8, drop_last=True):
            loss = cross_entropy(original(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model, optimizer = made()
    loader = DataLoader(examples(), batch_size=8, drop_last=True)
    training = ampft.Training(model, optimizer, loader, batch_size=8, epochs=4, output_dir=tmp_path)
    with training:
        for epoch in training.epochs:
            adjust_learning_rate(optimizer, epoch)
            for _ in training.step_batches(epoch):
                training.step(summed(model))
    expected = original.state_dict()
    for name, tensor in model.state_dict().items():
        assert error(tensor.double(), expected[name].double()) < TOLERANCE, name


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_port_of_a_loop_of_accelerate_ends_as_the_original(tmp_path):
    def linear(optimizer):
        return lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)

    original = network()
    optimizer = sgd(original)
    accelerator = Accelerator(cpu=True)
    model, prepared, loader, schedule = accelerator.prepare(
        original, optimizer, DataLoader(examples(), batch_size=8), linear(optimizer)
    )
    for _ in range(2):
        model.train()
        for x, y in loader:
            accelerator.backward(cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 0.2)
            prepared.step()
            schedule.step()
            prepared.zero_grad()
    model = network()
    training = ampft.Training(
        model,
        sgd(model),
        DataLoader(examples(), batch_size=8),
        batch_size=8,
        schedule=linear,
        max_grad_norm=0.2,
        epochs=2,
        output_dir=tmp_path,
    )
    with training:
        for _ in training:
            training.step(summed(model))
    assert error(weights(model), weights(original)) < TOLERANCE
