"""Loops of `ampft.Training` over plain models of torch, against plain torch in float64."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import math
import os
import signal
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

from oracle import product
from oracle.cases import Case, Disagreement, compare
from oracle.train import order_of_examples

CLASSES = 3
# All that a loop consists of, with the values that are drawn; the first one is the default.
VALUES: dict[str, list[Any]] = {
    "model": ["mlp", "norm", "convolution", "words", "adapters"],
    "loss": ["cross", "class weights", "smooth", "focal", "soft", "binary", "positive weights",
             "squared", "huber"],
    "optimizer": ["sgd", "momentum", "nesterov", "adam", "adamw", "amsgrad", "rmsprop", "adagrad",
                  "adadelta", "groups"],
    "schedule": [None, "lambda", "one cycle", "cosine of steps", "cosine of epochs", "steps",
                 "exponential", "sequence", "plateau", "own"],
    "schedule_every": [None, "step", "epoch"],
    "batch_size": [8, 5], "micro_batches": [None, 2, 3], "epochs": [2, 3],
    "max_train_steps": [None, 5], "seed": [None, 7], "shuffle": [None, False],
    "drop_last": [None, True], "max_grad_norm": [None, 0.05], "ema_decay": [None, 0.8],
    "row weights": [None, True], "examples": ["tuple", "names", "list", "loader"],
    "validations": [None, "loss", "score"], "eval_steps": [None, 2],
    "load_best_model_at_end": [None, False], "early_stopping_patience": [None, 1],
    "frozen": [None, True], "checkpointing_steps": [None, "2"], "async_checkpoints": [None, True],
    "dataloader_num_workers": [None, 1], "on_nonfinite": [None, "skip"],
    "processes": [1, 2], "stop": [None, 1, 3],
}  # fmt: skip
OF_TRAINING = (  # what the training takes as it is
    *("batch_size", "micro_batches", "epochs", "max_train_steps", "seed", "shuffle", "drop_last"),
    *("max_grad_norm", "ema_decay", "load_best_model_at_end", "early_stopping_patience"),
    *("eval_steps", "schedule_every", "checkpointing_steps", "async_checkpoints"),
    *("dataloader_num_workers", "on_nonfinite"),
)
OF_CLASSES = ("cross", "class weights", "smooth", "focal", "soft")
OF_EPOCHS = ("cosine of epochs", "steps", "exponential")
CLASS_WEIGHTS, POSITIVE_WEIGHTS = (1.0, 2.0, 0.5), (3.0, 1.0, 0.5)


def conflict(s: Mapping[str, Any]) -> bool:
    """Return whether settings have no meaning together, or are refused."""
    schedule, every = s.get("schedule"), s.get("schedule_every")
    return bool(
        (every and schedule in (None, "own", "plateau"))
        or (schedule == "plateau" and not s.get("validations"))
        or (s.get("model") == "words" and s.get("loss", "cross") not in ("cross", "smooth"))
        or (s.get("model") == "adapters" and s.get("frozen"))  # the rest is frozen already
        or (s.get("early_stopping_patience") and not s.get("validations"))
        or (s.get("load_best_model_at_end") is False and not s.get("validations"))
        or (s.get("dataloader_num_workers") and s.get("processes", 1) > 1)
    )


class Words(nn.Module):
    """Scores of each word, which does not see the others."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.embedding(ids)))
        return scores


def made_model(case: Case) -> nn.Module:
    """Return the initial model in float32."""
    torch.manual_seed(case.seed)
    kind = case.settings["model"]
    if kind == "words":
        return Words()
    if kind == "convolution":
        shaped, first = nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1)
        model = nn.Sequential(shaped, first, nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES))
    else:
        middle = [nn.LayerNorm(12)] if kind == "norm" else []
        model = nn.Sequential(nn.Linear(16, 12), *middle, nn.Tanh(), nn.Linear(12, CLASSES))
        if kind == "adapters":
            from peft import LoraConfig, get_peft_model

            return get_peft_model(model, LoraConfig(r=2, lora_alpha=6, target_modules=["0", "2"]))
    if case.settings.get("frozen"):
        for parameter in model[1 if kind == "convolution" else 0].parameters():
            parameter.requires_grad_(False)
    return model


def made_data(case: Case) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the examples for training, with weights, and for validation."""
    random = torch.Generator().manual_seed(case.seed + 1)
    count, kind = case.rows[0] + case.rows[1], case.settings["loss"]
    if case.settings["model"] == "words":
        x = torch.randint(11, (count, 6), generator=random)
        y = x % CLASSES
        lengths = torch.randint(1, 7, (count, 1), generator=random)
        y = torch.where(torch.arange(6) < lengths, y, torch.tensor(-100))
    else:
        x = torch.randn(count, 16, generator=random)
        scores = x[:, :CLASSES] + 0.3 * torch.randn(count, CLASSES, generator=random)
        y = scores.argmax(1)
        if kind == "soft":
            y = scores.softmax(1)
        elif kind in ("binary", "positive weights"):
            y = (scores > 0).float()
        elif kind in ("squared", "huber"):
            y = scores
    w = torch.rand(count, generator=random) + 0.25
    n = case.rows[0]
    return (x[:n], y[:n], w[:n] if case.settings.get("row weights") else torch.ones(n)), (
        x[n:], y[n:]
    )  # fmt: skip


def product_loss(case: Case, model: nn.Module, batch: Any) -> Any:
    """Return the loss of a batch, as the documentation wants it."""
    import ampft

    if isinstance(batch, Mapping):
        batch = batch["x"], batch["y"], batch["w"]
    (x, y, w), kind = batch, case.settings["loss"]
    outputs = model(x)
    weights = w if case.settings.get("row weights") else None
    if case.settings["model"] == "words":
        outputs = outputs.transpose(1, 2)
        smoothing = 0.1 if kind == "smooth" else 0.0
        count: Any = (y >= 0).sum()
        if weights is not None:
            of_words = weights[:, None].expand(y.shape)
            count = (of_words * (y >= 0)).sum()
            weights = of_words if case.seed % 2 else weights
        return ampft.summed_cross_entropy(
            outputs, y, label_smoothing=smoothing, weights=weights
        ), count
    if kind in OF_CLASSES:
        of_classes = torch.tensor(CLASS_WEIGHTS) if kind == "class weights" else None
        total = ampft.summed_cross_entropy(
            outputs, y, class_weights=of_classes, label_smoothing=0.1 if kind == "smooth" else 0,
            focal_gamma=2.0 if kind == "focal" else 0.0, weights=weights,
        )  # fmt: skip
        if of_classes is not None:
            own = of_classes[y]
            return total, (own if weights is None else own * weights).sum()
        return total
    if kind in ("binary", "positive weights"):
        positive = torch.tensor(POSITIVE_WEIGHTS) if kind == "positive weights" else None
        return ampft.summed_binary_cross_entropy(
            outputs, y, positive_weights=positive, weights=weights
        )
    delta = 0.5 if kind == "huber" else None
    return ampft.summed_squared_error(outputs, y, huber_delta=delta, weights=weights)


def plain_loss(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Return the loss of one example by torch, and its weight without that of its row."""
    kind = case.settings["loss"]
    outputs = model(x[None])[0]
    if case.settings["model"] == "words":
        smoothing = 0.1 if kind == "smooth" else 0.0
        total = functional.cross_entropy(outputs, y, label_smoothing=smoothing, reduction="sum")
        return total, float((y >= 0).sum())
    if kind == "class weights":
        weight = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
        return weight[y] * -outputs.log_softmax(0)[y], float(weight[y])
    if kind == "soft":
        return -(y * outputs.log_softmax(0)).sum(), 1.0
    if kind == "focal":
        log_p = outputs.log_softmax(0)[y]
        return -((1 - log_p.exp()) ** 2) * log_p, 1.0
    if kind in ("cross", "smooth"):
        smoothing = 0.1 if kind == "smooth" else 0.0
        return functional.cross_entropy(outputs, y, label_smoothing=smoothing), 1.0
    if kind in ("binary", "positive weights"):
        positive = torch.tensor(POSITIVE_WEIGHTS, dtype=torch.float64)
        return functional.binary_cross_entropy_with_logits(
            outputs, y, pos_weight=positive if kind != "binary" else None, reduction="sum"
        ), 1.0
    if kind == "huber":
        return functional.huber_loss(outputs, y, delta=0.5, reduction="sum"), 1.0
    return ((outputs - y) ** 2).sum(), 1.0


def made_optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of torch; large constants keep rounding from being amplified."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    name, eps = case.settings["optimizer"], 1e-2
    if name == "groups":
        weights = [p for p in parameters if p.ndim > 1]
        others = [{"params": [p for p in parameters if p.ndim < 2], "lr": 0.002}]
        return torch.optim.AdamW([{"params": weights}, *others], lr=0.02, eps=eps, weight_decay=0.1)
    made: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.1),
        "nesterov": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.8, nesterov=True),
        "adam": lambda: torch.optim.Adam(parameters, lr=0.02, eps=eps, weight_decay=0.01),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=0.02, eps=eps, weight_decay=0.1),
        "amsgrad": lambda: torch.optim.AdamW(parameters, lr=0.02, eps=eps, amsgrad=True),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=0.01, eps=eps, momentum=0.5),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=0.05, eps=eps),
        "adadelta": lambda: torch.optim.Adadelta(parameters, lr=1.0, eps=eps),
    }
    return made[name]()


def made_schedule(case: Case, optimizer: torch.optim.Optimizer) -> Any:
    """Return the schedule of torch; None if there is none, or the loop sets the rate."""
    steps = len(batches(case))
    epochs = math.ceil(steps / per_epoch(case))
    rates = [group["lr"] for group in optimizer.param_groups]
    made: dict[str, Any] = {
        "lambda": lambda: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "one cycle": lambda: lr_scheduler.OneCycleLR(
            optimizer, rates, total_steps=steps + 1, cycle_momentum=False
        ),
        "cosine of steps": lambda: lr_scheduler.CosineAnnealingLR(optimizer, steps),
        "cosine of epochs": lambda: lr_scheduler.CosineAnnealingLR(optimizer, epochs),
        "steps": lambda: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        "exponential": lambda: lr_scheduler.ExponentialLR(optimizer, 0.7),
        "sequence": lambda: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.2, total_iters=2),
             lr_scheduler.CosineAnnealingLR(optimizer, max(steps - 2, 1))],
            [2],
        ),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(
            optimizer, "min" if case.settings["validations"] == "loss" else "max", 0.3, patience=0
        ),
    }  # fmt: skip
    name = case.settings.get("schedule")
    return None if name in (None, "own") else made[name]()


def own_rate(step: int, group: int) -> float:
    """Return the rate that a loop sets before a step."""
    return 0.05 / (1 + step) / (1 + group)


def set_rates(optimizer: torch.optim.Optimizer, step: int) -> None:
    for index, group in enumerate(optimizer.param_groups):
        group["lr"] = own_rate(step, index)


def per_epoch(case: Case) -> int:
    """Return the number of steps of an epoch."""
    size, count = case.settings["batch_size"], case.rows[0]
    return count // size if case.settings.get("drop_last") else math.ceil(count / size)


def batches(case: Case) -> list[list[int]]:
    """Return the example ids of each step."""
    s, count = case.settings, case.rows[0]
    steps = s.get("max_train_steps") or s["epochs"] * per_epoch(case)
    ids: list[list[int]] = []
    for epoch in range(math.ceil(steps / per_epoch(case))):
        order = [*range(count)]
        if s.get("shuffle") is not False:
            order = order_of_examples(s.get("seed", 42), epoch, count).tolist()
        cut = [order[i : i + s["batch_size"]] for i in range(0, count, s["batch_size"])]
        ids += cut[: per_epoch(case)]
    return ids[:steps]


def score_of(case: Case, model: nn.Module, held: tuple[Tensor, Tensor]) -> float:
    """Return the metric of a validation: the loss per example, or minus its root."""
    x, y = held
    total = sum(float(plain_loss(case, model, x[i], y[i])[0]) for i in range(len(x))) / len(x)
    return total if case.settings["validations"] == "loss" else -math.sqrt(total)


def examples_of(case: Case, data: tuple[Tensor, Tensor, Tensor]) -> Any:
    form, (x, y, w) = case.settings["examples"], data
    if form == "tuple":
        return data
    if form == "names":
        return {"x": x, "y": y, "w": w}
    rows = list(zip(x, y, w, strict=True))
    if form == "list":
        return rows
    size = case.settings["batch_size"]
    return torch.utils.data.DataLoader(rows, batch_size=size, shuffle=True)  # type: ignore[arg-type]


def train(case: Case, output: Path, stop: int | None = None) -> None:
    """Train with the product, in this process or one of several."""
    import ampft

    model, (data, held), s = made_model(case), made_data(case), case.settings
    optimizer = made_optimizer(case, model)
    settings = {name: s[name] for name in OF_TRAINING if s.get(name) is not None}
    training = ampft.Training(
        model, optimizer, examples_of(case, data), precision="fp32",
        schedule=made_schedule(case, optimizer), output_dir=str(output),
        weights=data[2] if s.get("row weights") else None, **settings,
    )  # fmt: skip
    with training:
        for _ in training:
            if s.get("schedule") == "own":
                set_rates(optimizer, training.steps)
            training.step(lambda batch: product_loss(case, model, batch))
            if training.steps == stop and os.environ.get("RANK", "0") == "0":
                os.kill(os.getpid(), signal.SIGTERM)
            if s.get("validations") and training.validation_is_due:
                with training.evaluation():
                    exact = copy.deepcopy(model).double()
                    held64 = (_exact(held[0]), _exact(held[1]))
                    training.validated(**{s["validations"]: score_of(case, exact, held64)})
        if s["loss"] == "cross" and s["model"] != "words":
            with training.evaluation():
                logits = model(held[0])
            training.finish(ampft.Predictions.from_logits(logits, held[1], "abc"))


def _exact(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def started(case: Case, output: Path, stop: int | None = None) -> product.Done:
    """Run the loop in as many processes as the case has."""
    import ampft

    shared = product.start_with(case.processes, output) if case.processes > 1 else {}

    def one(rank: int) -> product.Done:
        os.environ.update(shared)
        if shared:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        out, err = io.StringIO(), io.StringIO()
        torch.set_num_threads(1)
        product.forget_processes()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = ampft.run_main(lambda: train(case, output, stop)) or 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except Exception:
                traceback.print_exc()
                code = 1
        return product.Done(code, out.getvalue(), err.getvalue())

    ended = [product.forked(lambda rank=rank: one(rank)) for rank in range(case.processes)]
    results = [wait() for wait in ended]
    worst = max(results, key=lambda done: done.code != 0)
    return product.Done(worst.code, results[0].out, "".join(done.err for done in results))


class Plain:
    """The same loop in plain torch and float64, one example at a time."""

    def __init__(self, case: Case) -> None:
        self.case, (data, held) = case, made_data(case)
        self.model = made_model(case).double()
        self.start = copy.deepcopy(self.model.state_dict())
        self.data, self.held = [_exact(each) for each in data], (_exact(held[0]), _exact(held[1]))
        self.optimizer = made_optimizer(case, self.model)
        self.schedule = made_schedule(case, self.optimizer)
        self.average = copy.deepcopy(self.model)
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.rates: list[float] = []
        self.scores: list[tuple[int, float]] = []
        self.weights: dict[int, dict[str, Tensor]] = {}  # By step: what a validation sees.
        self.run()

    def run(self) -> None:
        """Train until the end, or until it stops early."""
        s, every = self.case.settings, batches(self.case)
        for step, ids in enumerate(every):
            self._step(step, ids)
            done = step + 1
            self.weights[done] = copy.deepcopy(self.average.state_dict())
            is_end = done % per_epoch(self.case) == 0
            due = done % s["eval_steps"] == 0 if s.get("eval_steps") else is_end
            if s.get("validations") and (due or done == len(every)) and self._validate(done):
                return
            if is_end and self._advanced_by() == "epoch":
                self.schedule.step()

    def _advanced_by(self) -> str:
        s = self.case.settings
        if s.get("schedule") in (None, "own", "plateau"):
            return "nothing"
        return s.get("schedule_every") or ("epoch" if s["schedule"] in OF_EPOCHS else "step")

    def _step(self, step: int, ids: list[int]) -> None:
        s, (x, y, w) = self.case.settings, self.data
        if s.get("schedule") == "own":
            set_rates(self.optimizer, step)
        self.rates.append(max(group["lr"] for group in self.optimizer.param_groups))
        self.optimizer.zero_grad()
        parts = [(plain_loss(self.case, self.model, x[i], y[i]), w[i]) for i in ids]
        divisor = sum(float(weight) * own for (_, own), weight in parts)
        loss = torch.stack([weight * each for (each, _), weight in parts]).sum() / divisor
        loss.backward()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        limit = s.get("max_grad_norm") or math.inf
        self.norms.append(float(nn.utils.clip_grad_norm_(trained, limit)))
        self.losses.append(float(loss.detach()))
        self.optimizer.step()
        if self._advanced_by() == "step":
            self.schedule.step()
        decay = min(s["ema_decay"], (1 + step) / (10 + step)) if s.get("ema_decay") else 0.0
        with torch.no_grad():
            for old, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                old.mul_(decay).add_((1 - decay) * new)

    def _validate(self, done: int) -> bool:
        """Validate; return whether the training stops early."""
        with torch.no_grad():
            self.scores.append((done, score_of(self.case, self.average, self.held)))
        if self.case.settings.get("schedule") == "plateau":
            self.schedule.step(self.scores[-1][1])
        patience = self.case.settings.get("early_stopping_patience")
        return bool(patience) and len(self.scores) - 1 - self.best() >= patience

    def best(self) -> int:
        """Return the index of the best validation, the first of several."""
        sign = -1 if self.case.settings["validations"] == "loss" else 1
        values = [sign * score for _, score in self.scores]
        return values.index(max(values))

    def is_close(self) -> bool:
        """Return whether two validations are as good, so that rounding decides."""
        values = sorted(score for _, score in self.scores)
        return any(b - a < 1e-6 for a, b in itertools.pairwise(values))

    def final(self) -> dict[str, Tensor]:
        """Return the weights at the end."""
        last = max(self.weights)
        if self.scores and self.case.settings.get("load_best_model_at_end") is not False:
            last = self.scores[self.best()][0]
        return self.weights[last]


def judge(case: Case, folder: Path) -> list[Disagreement]:
    """Run a loop with the product and in plain torch, and hold one against the other."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = Plain(case)
    done = started(case, folder / "run")
    if done.code:
        return [Disagreement("own loop", f"exit code {done.code}: {done.err[-1500:]}", 0)]
    run = product.LoopFolder(folder / "run")
    if plain.is_close():
        return []
    found = compare(
        "steps", [row["step"] for row in run.history], [*range(1, len(plain.losses) + 1)]
    )
    if found:
        return found
    for name, values, precise in (
        ("loss", plain.losses, 1e-4), ("grad_norm", plain.norms, 1e-3),
        ("learning_rate", plain.rates, 1e-9),
    ):  # fmt: skip
        found += compare(f"history: {name}", [row[name] for row in run.history], values, precise)[
            :1
        ]
    got = [
        [v["step"], v["metrics"][case.settings["validations"]]] for v in run.record["validations"]
    ]
    found += compare("validations", got, [list(each) for each in plain.scores], 1e-4)[:1]
    found += _check_weights(run, plain)
    found += _check_report(case, run, plain)
    return found + _check_stopped(case, folder, run)


def _check_weights(run: product.LoopFolder, plain: Plain) -> list[Disagreement]:
    found, saved = [], run.weights()
    for name, tensor in plain.final().items():
        moved = float((tensor - plain.start[name]).abs().max())
        error = (saved[name].double() - tensor).abs()
        if float(error.max()) > 1e-3 * moved + 1e-6:
            worst = int(error.argmax())
            values = [float(each.flatten()[worst]) for each in (saved[name], tensor)]
            found.append(Disagreement(f"weights: {name}[{worst}]", *values))
    return found


def _check_report(case: Case, run: product.LoopFolder, plain: Plain) -> list[Disagreement]:
    if case.settings["loss"] != "cross" or case.settings["model"] == "words":
        return []
    plain.model.load_state_dict(plain.final())
    (x, y) = plain.held
    with torch.no_grad():
        log_p = plain.model(x).log_softmax(1)
    two = log_p.exp().topk(2).values
    if float((two[:, 0] - two[:, 1]).min()) < 1e-4:
        return []
    metrics = run.record["metrics"]
    accuracy = float((log_p.argmax(1) == y).double().mean())
    loss = float(np.mean([-float(log_p[i, y[i]]) for i in range(len(y))]))
    found = compare("run.json: accuracy", metrics["accuracy"], accuracy, 1e-9)
    return found + compare("run.json: log_loss", metrics["log_loss"], loss, 1e-4)


def _check_stopped(case: Case, folder: Path, run: product.LoopFolder) -> list[Disagreement]:
    """Stop the loop after a step and repeat the call: the same bits."""
    if case.stop_after is None:
        return []
    output = folder / "stopped"
    done = started(case, output, case.stop_after)
    if done.code not in (0, 75):
        return [Disagreement("stopped", f"exit code {done.code}: {done.err[-600:]}", 75)]
    if done.code == 75 and (done := started(case, output)).code:
        return [Disagreement("repeated", f"exit code {done.code}: {done.err[-600:]}", 0)]
    other = product.LoopFolder(output)
    columns = ("step", "loss", "grad_norm", "learning_rate")
    rows = [[[row[name] for name in columns] for row in each.history] for each in (other, run)]
    found = compare("repeated: history", *rows)[:1]
    own, others = run.weights(), other.weights()
    different = [name for name in own if not torch.equal(own[name], others[name])]
    return found + compare("repeated: weights that differ", different, [])


def make_case(row: Mapping[str, Any], random_: Any) -> Case:
    """Return a case of the values in a row."""
    settings = {n: v for n, v in row.items() if v is not None and n not in ("processes", "stop")}
    rows = (random_.randint(11, 26), random_.randint(6, 12), 0)
    made = Case("loop", random_.randrange(10**6), rows=rows, classes=CLASSES, settings=settings)
    return replace(made, processes=row["processes"], stop_after=row["stop"])
