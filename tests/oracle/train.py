"""Trains as the documentation says: one example at a time, in float64, by formulas written out."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from oracle import media
from oracle.cases import Case, Disagreement, compare
from oracle.draw import MEDIA, Drawn
from oracle.product import RunFolder
from oracle.read import kept_rows, text_of, weights_of

Tensors = dict[str, Tensor]
# How far losses, norms and probabilities of tiny models may be off, by precision.
ROUGH = {"fp32": 0.0, "fp16": 0.05, "bf16": 0.1}
MODEL_LENGTH = 64  # Longest input of every drawn model.
DEFAULT = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "weight_decay": 0.0,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0,
    "lr_scheduler_type": "linear", "warmup_ratio": 0.0, "optim": "adamw_torch", "seed": 42,
    "max_seq_length": 128, "label_smoothing_factor": 0.0, "focal_gamma": 0.0,
}  # fmt: skip


@dataclass
class Trained:
    """A training in float64."""

    steps: int  # Number of optimizer steps.
    losses: list[float] = field(default_factory=list)  # By step.
    norms: list[float] = field(default_factory=list)  # Norms of the gradient before clipping.
    rates: list[float] = field(default_factory=list)  # Learning rates.
    weights: list[Tensors] = field(default_factory=list)  # After each step, from the initial ones.
    averages: list[Tensors] = field(default_factory=list)  # Averaged weights, likewise.
    # How far rounding of float32 may move each weight, by step: see `_doubt`.
    doubts: list[Tensors] = field(default_factory=list)


def setting(case: Case, name: str) -> Any:
    """Return a setting of a case, or its default."""
    return case.settings.get(name, DEFAULT.get(name))


def encode(case: Case, tokenizer: Any, text: Any) -> list[dict[str, Tensor]]:
    """Return the inputs of the windows of a text: one, if it is truncated."""
    if case.task in MEDIA:
        return [media.encode(case, tokenizer, text)]
    length = min(setting(case, "max_seq_length"), MODEL_LENGTH)
    options: dict[str, Any] = {"truncation": True, "max_length": length}
    if isinstance(text, list):
        options["is_split_into_words"] = True
    if setting(case, "long_text") == "windows":
        stride = setting(case, "stride")
        options["return_overflowing_tokens"] = True
        options["stride"] = length // 4 if stride is None else stride
    pair = text if isinstance(text, tuple) else (text,)
    encoded = tokenizer(*pair, **options)
    encoded.pop("overflow_to_sample_mapping", None)
    if "return_overflowing_tokens" not in options:
        encoded = {name: [values] for name, values in encoded.items()}
    count = len(encoded["input_ids"])
    return [{k: torch.tensor([v[i]]) for k, v in encoded.items()} for i in range(count)]


def logits_of(model: Any, windows: Sequence[dict[str, Tensor]]) -> Tensor:
    """Return (K,) logits of a text: the mean over its windows."""
    return torch.stack([model(**window).logits[0] for window in windows]).mean(0)


def load(case: Case, folder: Path) -> tuple[Any, Any]:
    """Return the model of a folder in float64, and its tokenizer."""
    import transformers

    auto = transformers.AutoModelForSequenceClassification
    if case.task == "tokens":
        auto = transformers.AutoModelForTokenClassification
    if case.task in MEDIA:
        auto = transformers.AutoModelForImageClassification
        if case.task == "sounds":
            auto = transformers.AutoModelForAudioClassification
    eager = {} if case.family == "convnext" else {"attn_implementation": "eager"}
    model = auto.from_pretrained(folder, dtype=torch.float64, **eager).eval()
    if case.task in MEDIA:
        processor = transformers.AutoImageProcessor
        if case.task == "sounds":
            processor = transformers.AutoFeatureExtractor
        return model, processor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if model.config.pad_token_id is None:  # then padded with the end of a text, which heads skip
        model.config.pad_token_id = tokenizer.eos_token_id
    return model, tokenizer


def load_initial(case: Case, drawn: Drawn, names: list[str]) -> tuple[Any, Any]:
    """Return the initial model, the rows of whose head are in the order of the labels."""
    model, tokenizer = load(case, drawn.model)
    own = list(model.config.id2label.values())
    if own != names:
        rows = [own.index(name) for name in names]
        depths = {name: depth_of(name, 99) for name, _ in model.named_parameters()}
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if len(parameter) == len(names) and depths[name] > 99:
                    parameter.copy_(parameter[rows].clone())
    return model, tokenizer


def word_logits(case: Case, model: Any, tokenizer: Any, words: list[str]) -> Tensor:
    """Return (m, K) logits of the words of a sentence.

    A word is read at its first token, in the window in which it has the most context: the first
    one, if there are several.
    """
    length = min(setting(case, "max_seq_length"), MODEL_LENGTH)
    special = tokenizer.num_special_tokens_to_add()
    shared = min(length // 4, length - special - 1)
    windows = tokenizer(
        words, is_split_into_words=True, truncation=True, max_length=length, stride=shared,
        return_overflowing_tokens=True,
    )  # fmt: skip
    windows.pop("overflow_to_sample_mapping", None)
    count = len(windows["input_ids"])
    places = [  # of the tokens of words in each window
        [i for i, word in enumerate(windows.word_ids(w)) if word is not None] for w in range(count)
    ]
    starts = [w * (len(places[0]) - shared) for w in range(count)]
    ends = [start + len(own) for start, own in zip(starts, places, strict=True)]
    logits = [
        model(**{k: torch.tensor([v[w]]) for k, v in windows.items()}).logits[0]
        for w in range(count)
    ]
    whole = tokenizer(words, is_split_into_words=True, add_special_tokens=False).word_ids()
    rows = []
    for word in range(len(words)):
        first, best = whole.index(word), (-1.0, 0)
        for w in range(count):
            left = first - starts[w] if w else math.inf
            right = ends[w] - 1 - first if w < count - 1 else math.inf
            if starts[w] <= first < ends[w] and min(left, right) > best[0]:
                best = min(left, right), w
        rows.append(logits[best[1]][places[best[1]][first - starts[best[1]]]])
    return torch.stack(rows)


Loss = Callable[[Tensor, Any], Tensor]


def losses(
    case: Case, names: list[str], targets: Sequence[Any], weights: Sequence[float]
) -> tuple[Loss, list[float]]:
    """Return the loss of an example, and the weight of each training example by its labels."""
    of_classes = _class_weights(case, len(names), targets)
    if case.task == "regression":
        return _number_loss(case, deviation_of(targets, weights) ** 2), [1.0] * len(targets)
    make = {"multi-label": _several, "columns": _columns, "tokens": _words, "ordinal": _ordinal}
    loss = make.get(case.task, _single)(case, names, of_classes)
    if case.task in ("multi-label", "columns"):
        return loss, [1.0] * len(targets)
    if case.task == "tokens":
        return loss, [float(sum(of_classes[tag] for tag in target)) for target in targets]
    return loss, [float(of_classes[target]) for target in targets]


def _several(case: Case, names: list[str], of_classes: Tensor) -> Loss:
    smoothing, gamma = setting(case, "label_smoothing_factor"), setting(case, "focal_gamma")

    def loss(logits: Tensor, target: Any) -> Tensor:
        has = torch.tensor([float(k in target) for k in range(len(names))], dtype=torch.float64)
        if gamma:
            p = torch.sigmoid(logits)
            right = torch.where(has > 0, p, 1 - p)
            each = -((1 - right) ** gamma) * right.log() * (has * (of_classes - 1) + 1)
        else:
            smooth = has * (1 - smoothing) + smoothing / 2
            log_p, log_q = functional.logsigmoid(logits), functional.logsigmoid(-logits)
            each = -(of_classes * smooth * log_p + (1 - smooth) * log_q)
        return each.mean()

    return loss


def _columns(case: Case, names: list[str], of_classes: Tensor) -> Loss:
    smoothing, gamma = setting(case, "label_smoothing_factor"), setting(case, "focal_gamma")
    parts = [[i for i, n in enumerate(names) if n.startswith(c)] for c in ("mood=", "topic=")]

    def loss(logits: Tensor, target: Any) -> Tensor:
        each = []
        for part, label in zip(parts, target, strict=True):
            log_p = logits[part].log_softmax(0)
            right = log_p[part.index(label)]
            smooth = smoothing * log_p.mean() + (1 - smoothing) * right
            each.append(-((1 - right.exp()) ** gamma) * right if gamma else -smooth)
        return torch.stack(each).mean()

    return loss


def _words(case: Case, names: list[str], of_classes: Tensor) -> Loss:
    of_word = _single(case, names, of_classes)

    def loss(logits: Tensor, target: Any) -> Tensor:
        words = zip(logits, target, strict=True)
        return torch.stack([of_word(scores, tag) for scores, tag in words]).sum()

    return loss


def _ordinal(case: Case, names: list[str], of_classes: Tensor) -> Loss:
    def loss(logits: Tensor, target: Any) -> Tensor:
        below = logits.softmax(0).cumsum(0)[:-1]
        sides = [below[k] if target <= k else 1 - below[k] for k in range(len(names) - 1)]
        return -of_classes[target] * torch.stack(sides).log().mean()

    return loss


def _single(case: Case, names: list[str], of_classes: Tensor) -> Loss:
    smoothing, gamma = setting(case, "label_smoothing_factor"), setting(case, "focal_gamma")

    def loss(logits: Tensor, target: Any) -> Tensor:
        log_p = logits.log_softmax(0)
        right = -of_classes[target] * log_p[target]
        if gamma:
            return (1 - log_p[target].exp()) ** gamma * right
        spread = -(of_classes * log_p).sum()
        return (1 - smoothing) * right + smoothing / len(names) * spread

    return loss


def _class_weights(case: Case, classes: int, targets: Sequence[Any]) -> Tensor:
    asked = case.settings.get("class_weights")
    if asked is None:
        return torch.ones(classes, dtype=torch.float64)
    if asked != "balanced":
        return torch.tensor([float(part) for part in asked.split(",")], dtype=torch.float64)
    if case.task == "multi-label":  # examples without the label, for each with it
        counts = np.array([sum(k in target for target in targets) for k in range(classes)])
        return torch.tensor((len(targets) - counts) / counts, dtype=torch.float64)
    if case.task == "tokens":  # words count
        targets = [tag for target in targets for tag in target]
    counts = np.bincount(np.array(targets), minlength=classes)
    weights = len(targets) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return torch.tensor(np.where(counts, weights, 1), dtype=torch.float64)  # 1 without rows


def deviation_of(targets: Sequence[float], weights: Sequence[float]) -> float:
    """Return the standard deviation of the training labels, by the weights of their rows."""
    mean = np.average(targets, weights=weights)
    return float(np.average((np.array(targets) - mean) ** 2, weights=weights) ** 0.5)


def _number_loss(case: Case, variance: float) -> Loss:
    delta = setting(case, "huber_delta")

    def number(logits: Tensor, target: Any) -> Tensor:
        error = (logits[0] - target).abs()
        if delta is None:
            return error**2 / variance
        return torch.where(error <= delta, error**2 / 2, delta * (error - delta / 2)) / variance

    return number


def targets_of(case: Case, names: list[str], rows: Sequence[Any]) -> list[Any]:
    """Return the labels of rows as indices."""
    index = {name: i for i, name in enumerate(names)}
    if case.task == "regression":
        return [float(row["label"]) for _, row in rows]
    if case.task == "columns":
        return [[index[f"{c}={row[c]}"] for c in ("mood", "topic")] for _, row in rows]
    if case.task in ("multi-label", "tokens"):
        return [[index[str(each)] for each in row["label"] or ()] for _, row in rows]
    return [index[str(row["label"])] for _, row in rows]


def order_of_examples(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of an epoch; `check_order` holds it against what the run recorded."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


def batches_of(case: Case, count: int) -> list[list[int]]:
    """Return the example ids of each optimizer step."""
    size = case.processes * setting(case, "per_device_train_batch_size")
    size *= setting(case, "gradient_accumulation_steps")
    steps, most = math.ceil(count / size), setting(case, "max_train_steps")
    epochs = setting(case, "num_train_epochs")
    if most is not None:
        epochs = math.ceil(most / steps)
    elif epochs is None:  # 250 steps, in 3 to 16 epochs; pictures and sounds are read three times
        epochs = 3 if case.task in MEDIA else max(3, min(16, math.ceil(250 / steps)))
    batches = []
    for epoch in range(epochs):
        order = order_of_examples(setting(case, "seed"), epoch, count).tolist()
        batches += [order[i : i + size] for i in range(0, count, size)]
    return batches[:most]


def rate_of(case: Case) -> float:
    """Return the peak learning rate that is set, or the default for models of this size."""
    if (rate := setting(case, "learning_rate")) is not None:
        return float(rate)
    # ConvNeXt has no width that would say that it is small.
    rate = 5e-5 if case.family == "convnext" else 1e-4
    rate = 1e-3 if setting(case, "optim") == "adafactor" else rate
    trains_little = "lora_r" in case.settings or setting(case, "train_layers") == 0
    return 10 * rate if trains_little else rate


def rate_factor(case: Case, step: int, steps: int) -> float:
    """Return the factor on the learning rate at a step, counted from 0."""
    name, warmup = setting(case, "lr_scheduler_type"), setting(case, "num_warmup_steps")
    if warmup is None:
        warmup = math.ceil(setting(case, "warmup_ratio") * steps)
    if name == "constant":
        return 1.0
    if step < warmup:
        return step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    if name == "linear":
        return 1 - progress
    if name in ("cosine", "cosine_with_restarts"):
        return 0.5 * (1 + math.cos(math.pi * progress))
    if name == "polynomial":
        end = 1e-7 / rate_of(case)
        return (1 - end) * (1 - progress) + end
    if name == "inverse_sqrt":
        scale = warmup or 10_000
        return 1 / math.sqrt((step - warmup + scale) / scale)
    return 1.0  # constant_with_warmup


LAYER = re.compile(r"(?:^|\.)(?:layers?|h|block)\.(\d+)\.")
EMBEDDINGS = re.compile(r"embed|relative_attention_bias|shared\.|wte|wpe|tok_embeddings")


def depth_of(name: str, layers: int) -> int:
    """Return 0 for embeddings, the number of the layer from 1, and one more for the head."""
    if match := LAYER.search(name):
        return int(match[1]) + 1
    return 0 if EMBEDDINGS.search(name) else layers + 1


def is_trained(case: Case, name: str, layers: int) -> bool:
    """Return whether a parameter is trained."""
    if (most := setting(case, "train_layers")) is not None:
        return depth_of(name, layers) > layers - most
    patterns = setting(case, "freeze")
    return not patterns or not any(f".{part}." in f".{name}" for part in patterns.split(","))


def train(case: Case, drawn: Drawn, names: list[str], steps: int | None = None) -> Trained:
    """Return the weights and losses of every step, or of the first `steps`."""
    model, tokenizer = load_initial(case, drawn, names)
    rows = kept_rows(case, drawn, "train")
    inputs = [encode(case, tokenizer, text_of(case, drawn, row)) for _, row in rows]
    targets, weights = targets_of(case, names, rows), weights_of(case, rows)
    loss, factors = losses(case, names, targets, weights)
    unit = deviation_of(targets, weights) if case.task == "regression" else 1.0
    trained, groups = trained_groups(case, model, unit)
    batches = batches_of(case, len(rows))
    update = OPTIMIZERS[setting(case, "optim")](case, trained, groups)
    result = Trained(len(batches))
    result.weights = [_copy(trained)]
    result.averages, result.doubts = [_copy(trained)], [_zeros(trained)]
    for step, batch in enumerate(batches[:steps]):
        model.zero_grad()
        divisor = sum(weights[i] * factors[i] for i in batch)
        total = 0.0
        for i in batch:
            if case.task == "tokens":
                logits = word_logits(case, model, tokenizer, rows[i][1]["text"])
            else:
                logits = logits_of(model, inputs[i])
            part = weights[i] * loss(logits, targets[i]) / divisor
            part.backward()
            total += part.item()
        gradients = {
            n: p.grad if p.grad is not None else p.detach() * 0 for n, p in trained.items()
        }
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        largest = setting(case, "max_grad_norm")
        if largest and norm > largest:
            gradients = {n: g * largest / (norm + 1e-6) for n, g in gradients.items()}
        rate = rate_of(case) * rate_factor(case, step, len(batches))
        with torch.no_grad():
            doubt = update(gradients, rate)
        result.losses.append(total)
        result.norms.append(norm)
        result.rates.append(rate)
        result.weights.append(_copy(trained))
        result.doubts.append({n: result.doubts[-1][n] + doubt[n] for n in trained})
        result.averages.append(_average(case, result, step))
    return result


def trained_groups(case: Case, model: Any, unit: float) -> tuple[Tensors, dict[str, Group]]:
    """Return the trained parameters, and how each is updated.

    Args:
        unit: Unit of the last layer: of numbers, the deviation of the training labels.
    """
    from transformers import Trainer

    numbers = [int(m[1]) for n, _ in model.named_parameters() if (m := LAYER.search(n))]
    layers = 1 + max(numbers, default=0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(case, name, layers))
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    decays = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    groups = {}
    for name, parameter in trained.items():
        is_last = len(parameter) == 1 and depth_of(name, layers) > layers
        has_unit = is_last and setting(case, "optim") != "adafactor"
        factor = _layer_factor(case, name, layers)
        groups[name] = Group(name in decays, factor, unit if has_unit else 1.0)
    return trained, groups


def _copy(trained: Tensors) -> Tensors:
    return {name: p.detach().clone() for name, p in trained.items()}


def _zeros(trained: Tensors) -> Tensors:
    return {name: torch.zeros_like(p) for name, p in trained.items()}


def _average(case: Case, result: Trained, step: int) -> Tensors:
    most = setting(case, "ema_decay")
    if most is None:
        return result.weights[-1]
    decay = min(most, (1 + step) / (10 + step))
    old, new = result.averages[-1], result.weights[-1]
    return {name: decay * old[name] + (1 - decay) * new[name] for name in new}


@dataclass(frozen=True)
class Group:
    """How a parameter is updated."""

    decays: bool  # Whether weight decay applies to it.
    factor: float  # Factor on the learning rate.
    unit: float = 1.0  # What it is measured in: it is updated as if it were divided by it.


Update = Callable[[Tensors, float], Tensors]
ROUNDING = (
    2e-5  # relative to the largest gradient of a tensor; float32 sums of tiny models err less
)


def _error(name: str, gradients: Tensors) -> float:
    """Return how far float32 may be off in the gradient of a tensor.

    Some gradients, such as that of a key's bias, are zero by algebra: sums of terms that cancel.
    Their error depends on the size of the terms, which is that of other gradients.
    """
    own, *every = (float(g.abs().max()) for g in (gradients[name], *gradients.values()))
    return ROUNDING * own + 1e-7 * max(every) + 1e-9


def _adamw(case: Case, trained: Tensors, groups: Mapping[str, Group]) -> Update:
    first, second, count = _zeros(trained), _zeros(trained), 0
    b1, b2 = setting(case, "adam_beta1"), setting(case, "adam_beta2")

    def update(gradients: Tensors, rate: float) -> Tensors:
        nonlocal count
        count += 1
        doubts = {}
        for name, g in gradients.items():
            group, p, m, v = groups[name], trained[name], first[name], second[name]
            own, g = rate * group.factor, g * group.unit
            if group.decays:
                p.mul_(1 - own * setting(case, "weight_decay"))
            m.copy_(b1 * m + (1 - b1) * g)
            v.copy_(b2 * v + (1 - b2) * g**2)
            root = (v / (1 - b2**count)).sqrt() + setting(case, "adam_epsilon")
            p.sub_(group.unit * own * (m / (1 - b1**count)) / root)
            doubts[name] = (
                group.unit * own * (4 * group.unit * _error(name, gradients) / root).clamp(max=2.0)
            )
        return doubts

    return update


def _adafactor(case: Case, trained: Tensors, groups: Mapping[str, Group]) -> Update:
    state: dict[str, list[Tensor]] = {}
    eps, count = float(torch.finfo(torch.float32).eps), 0

    def mean_square(t: Tensor) -> float:
        return float((t**2).mean().sqrt())

    def update(gradients: Tensors, rate: float) -> Tensors:
        nonlocal count
        count += 1
        keep, doubts = 1 - count**-0.8, {}
        for name, g in gradients.items():
            own, p = rate * groups[name].factor, trained[name]
            scale = min(own, count**-0.5) * max(1e-3, mean_square(p))
            if groups[name].decays:
                p.mul_(1 - own * setting(case, "weight_decay"))
            parts = [g**2] if g.ndim < 2 else [
                (g**2).mean(-1, keepdim=True), (g**2).mean(-2, keepdim=True)
            ]  # fmt: skip
            old = state.get(name, [torch.zeros_like(part) for part in parts])
            state[name] = [keep * o + (1 - keep) * new for o, new in zip(old, parts, strict=True)]
            variance = state[name][0]
            if g.ndim > 1:
                row, column = state[name]
                variance = row @ column / row.mean(-2, keepdim=True).clamp(min=eps)
            root = variance.clamp(min=eps**2).sqrt()
            step = g / root
            p.sub_(scale * step / max(1.0, mean_square(step)))
            doubts[name] = scale * (4 * _error(name, gradients) / root).clamp(max=4.0)
        return doubts

    return update


def _muon(case: Case, trained: Tensors, groups: Mapping[str, Group]) -> Update:
    matrices = {n for n, p in trained.items() if p.ndim == 2 and LAYER.search(n)}
    buffers = _zeros(trained)
    rest = _adamw(case, {n: p for n, p in trained.items() if n not in matrices}, groups)

    def update(gradients: Tensors, rate: float) -> Tensors:
        doubts = rest({n: g for n, g in gradients.items() if n not in matrices}, rate)
        for name in matrices:
            g, p, own = gradients[name], trained[name], rate * groups[name].factor
            buffers[name] = 0.95 * buffers[name] + 0.05 * g
            direction = _orthogonal(0.05 * g + 0.95 * buffers[name])
            if groups[name].decays:
                p.mul_(1 - own * setting(case, "weight_decay"))
            p.sub_(own * 0.2 * math.sqrt(max(p.shape)) * direction)
            # Muon itself multiplies in bfloat16.
            doubts[name] = torch.full_like(p, own * 0.2 * math.sqrt(max(p.shape)) * 0.1)
        return doubts

    return update


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return five steps of Newton and Schulz, as Jordan (2024) has them."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / max(float(x.norm()), 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def _layer_factor(case: Case, name: str, layers: int) -> float:
    decay = setting(case, "layer_decay")
    return 1.0 if decay is None else decay ** (layers + 1 - depth_of(name, layers))


OPTIMIZERS: dict[str, Callable[..., Update]] = {
    "adamw_torch": _adamw, "adafactor": _adafactor, "muon": _muon,
}  # fmt: skip


def check_order(case: Case, run: RunFolder, count: int) -> list[Disagreement]:
    """Hold the order of the examples against the recorded hash of the ids of every step."""
    digest = hashlib.sha256().digest()
    for batch in batches_of(case, count)[: len(run.history)]:  # fewer if it stopped early
        ids = np.sort(np.array(batch, dtype="<i8"))
        digest = hashlib.sha256(digest + ids.tobytes()).digest()
    return compare("run.json: example_ids_sha256", run.record["example_ids_sha256"], digest.hex())


def _steps_before_overflow(run: RunFolder) -> int:
    """Return the steps before one that overflows in fp16: what follows has other weights."""
    return next((row["step"] - 1 for row in run.history if row["skipped"]), len(run.history))


def check(case: Case, drawn: Drawn, run: RunFolder, oracle: Trained) -> list[Disagreement]:
    """Hold the history and the saved weights of a run in float32 against the oracle."""
    is_muon, digits = setting(case, "optim") == "muon", ROUGH[case.precision]
    tolerance = max(0.2 if is_muon else 2e-3, digits)
    done = len(run.history)
    found = compare("steps", [row["step"] for row in run.history], [*range(1, done + 1)])
    if "early_stopping_patience" not in case.settings:
        found += compare("number of steps", done, oracle.steps)
    for row in run.history:
        for name in ("examples", "tokens"):
            rate = row[name] / row["seconds"]
            found += compare(f"history: {name} per second", row[f"{name}_per_second"], rate, 1e-9)
    if found:
        return found
    until = _steps_before_overflow(run)
    for name, values, precise in (
        ("learning_rate", oracle.rates, 1e-9),
        ("loss", oracle.losses, tolerance),
        ("grad_norm", oracle.norms, 2 * tolerance),
    ):
        got = [row[name] for row in run.history[:until]]
        found += compare(f"history: {name}", got, values[:until], precise)[:1]
    if digits:  # how rounding moves the weights is not for float64 to say
        return found
    chosen = (run.record.get("best") or {}).get("step") or done
    expected = oracle.averages[chosen]
    saved = parameters_of(load(case, run.folder)[0])
    start = oracle.weights[0]
    for name, tensor in expected.items():
        if name not in saved:
            continue  # tied to another one
        got = saved[name]
        moved = float((tensor - start[name]).abs().max())
        allowed = 3 * oracle.doubts[chosen][name] + 0.01 * moved + 1e-6
        over = ((got - tensor).abs() - allowed).max()
        if float(over) > 0:
            worst = int(((got - tensor).abs() - allowed).argmax())
            values = [float(each.flatten()[worst]) for each in (got, tensor, start[name])]
            found.append(Disagreement(f"weights: {name}[{worst}], began at {values[2]:.6g}",
                                      values[0], values[1]))  # fmt: skip
    return found + _check_frozen(case, drawn, saved, start)


def check_adapters(
    case: Case, drawn: Drawn, names: list[str], run: RunFolder
) -> list[Disagreement]:
    """Hold the history of a run with adapters, which change nothing at first, against formulas."""
    done, count = len(run.history), len(kept_rows(case, drawn, "train"))
    steps = len(batches_of(case, count))
    until = _steps_before_overflow(run)
    rates = [rate_of(case) * rate_factor(case, i, steps) for i in range(until)]
    got = [row["learning_rate"] for row in run.history[:until]]
    found = compare("history: learning_rate", got, rates, 1e-9)
    if "early_stopping_patience" not in case.settings:
        found += compare("number of steps", done, steps)
    first = train(case, drawn, names, steps=1).losses[0]
    tolerance = max(2e-3, ROUGH[case.precision])
    found += compare("history: first loss", run.history[0]["loss"], first, tolerance)
    scale = case.settings.get("lora_alpha", 4) / case.settings["lora_r"]
    config = json.loads(next(run.folder.rglob("adapter_config.json")).read_text())
    factor = config["lora_alpha"] / config["r"]
    return found + compare("adapter_config.json: factor", factor, scale)


def parameters_of(model: Any) -> Tensors:
    """Return the parameters by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _check_frozen(case: Case, drawn: Drawn, saved: Tensors, trained: Tensors) -> list[Disagreement]:
    """What is not trained must have the initial bits."""
    found, initial = [], parameters_of(load(case, drawn.model)[0])
    for name, tensor in saved.items():
        if name not in trained and name in initial and not torch.equal(tensor, initial[name]):
            found.append(Disagreement(f"weights: {name} is not trained", "changed", "as before"))
    return found
