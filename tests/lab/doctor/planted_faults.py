"""Small models, each with one planted fault whose module, operation and cause are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EXAMPLES, WIDTH, CLASSES = 8, 16, 3
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Planted:
    """A case and the fault that the doctor must name.

    Attributes:
        model: Model with the fault.
        module: Path of the module that fails.
        operation: Operator that fails.
        cause: Cause.
        direction: `forward` or `backward`.
        examples: Ids of the affected examples; None does not check them.
        in_float32: Whether float32 fails too.
        is_harmless: Whether training works nevertheless.
        options: Further arguments of `scan`.
        batches: Batches.
        loss: Loss.
    """

    model: nn.Module
    module: str
    operation: str
    cause: str
    direction: str = "forward"
    examples: Sequence[int] | None = None
    in_float32: bool = False
    is_harmless: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    batches: Sequence[Batch] = field(default_factory=lambda: [inputs()])
    loss: Callable[[nn.Module, Any], Tensor] = field(
        default=lambda model, batch: cross(model, batch)
    )


def inputs(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    return {"x": torch.randn(EXAMPLES, WIDTH, generator=generator), "labels": labels}


def cross(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]).float(), batch["labels"])


class Function(nn.Module):
    """A module that applies a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """Adds a linear layer with a gain to its input."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        nn.init.eye_(self.layer.weight)
        self.layer.weight.data *= gain

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


def around(function: Callable[[Tensor], Tensor], *, gain: float = 1.0) -> nn.Sequential:
    """Return a linear layer, a function named `1`, and a head."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Function(function), nn.Linear(WIDTH, CLASSES))
    model[0].weight.data *= gain
    model[0].bias.data *= gain
    return model


def deep(gains: Sequence[float]) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in gains]
    for layer, gain in zip(layers, gains, strict=True):
        nn.init.eye_(layer.weight)
        layer.weight.data *= gain
    return nn.Sequential(*layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))


def exploding() -> nn.Sequential:
    """The stream doubles in every block. Its first layer makes it 16 bits wide."""
    torch.manual_seed(0)
    blocks = [Residual(1.0) for _ in range(20)]
    ends = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, *ends)


def plain() -> nn.Sequential:
    return around(torch.relu)


def norm_by_sum(x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return x / (x * x).sum(-1, keepdim=True).sqrt()


def divided_by_variance(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred * centred).mean(-1, keepdim=True)


def masked_by_number(x: Tensor) -> Tensor:
    return x.masked_fill(x < 0, -1e9).softmax(-1)


def masked_rows(x: Tensor) -> Tensor:
    visible = torch.ones(EXAMPLES, WIDTH, dtype=torch.bool, device=x.device)
    visible[3] = False
    return x.masked_fill(~visible, float("-inf")).softmax(-1)


def mask_as_number(x: Tensor) -> Tensor:
    """In float32 a fully masked row is a uniform softmax; in binary16, -1e9 is minus infinity."""
    hidden = torch.zeros(EXAMPLES, WIDTH, device=x.device)
    hidden[2] = -1e9
    return (x + hidden.to(x.dtype)).softmax(-1)


def masks_subtracted(x: Tensor) -> Tensor:
    masked = x.masked_fill(torch.arange(WIDTH, device=x.device) > 12, float("-inf"))
    return (masked - masked.amin(-1, keepdim=True)).softmax(-1)


def selected_log(x: Tensor) -> Tensor:
    positive = x * (x > 0)
    return torch.where(positive > 0, positive.log(), 0.0)


def variance_by_squares(x: Tensor) -> Tensor:
    return (-(x * x).mean(-1, keepdim=True) - 0.1).sqrt() * x


def with_one_large_example() -> list[Batch]:
    batch = inputs()
    batch["x"][5] *= 400
    return [inputs(1), batch]


def with_nan() -> list[Batch]:
    batch = inputs()
    batch["x"][6, 2] = float("nan")
    return [batch]


def with_infinite_weight() -> nn.Module:
    model = plain()
    model[2].weight.data[1, 1] = float("inf")
    return model


def tiny_loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross(model, batch) * 1e-6


def steep_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["x"]).float().mul(1e6).sum()


def focal_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"]).float() * 2000
    odds = torch.exp(logits)
    return (odds / (1 + odds)).log1p().mean()


def log_of_softmax(model: nn.Module, batch: Batch) -> Tensor:
    probabilities = (model(batch["x"]).float() * 2000).softmax(-1)
    return -torch.log(probabilities).mean()


class Tokens(nn.Module):
    """Pools tokens with weights that are 0/0 at padding, where nothing uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask.float() / attention_mask.float()
        weights = torch.where(attention_mask == 1, weights, 0.0)
        return self.head((self.embed(input_ids) * weights[..., None]).sum(1))


def padded() -> list[Batch]:
    mask = (torch.arange(6) < torch.tensor([6, 4, 2])[:, None]).long()
    return [{"input_ids": torch.arange(18).view(3, 6), "attention_mask": mask}]


def of_tokens(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(**batch).float()
    return functional.cross_entropy(logits, torch.arange(3, device=logits.device))


class Buffered(nn.Module):
    """Writes its rows into one buffer, the large one first and the others after it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        buffer = torch.empty_like(x)
        buffer[:1] = x[:1] * self.factor
        for row in range(1, len(x)):
            buffer[row : row + 1] = x[row : row + 1]
        return buffer


def with_buffer(factor: float) -> nn.Sequential:
    model = around(torch.relu)
    model[1] = Buffered(factor)
    return model


class Dense(nn.Module):
    """A residual block with the names of BERT; one bias of its output is far too large."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.output = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})
        self.output["dense"].bias.data[5] = bias
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.output["dense"](x))


def with_bias(bias: float) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Dense(bias), nn.Linear(WIDTH, CLASSES))


class Shift(nn.Module):
    """Adds a constant that it holds in a buffer."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.register_buffer("constant", torch.full((WIDTH,), constant))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constant.to(x.dtype) / 2 + self.constant.to(x.dtype) / 2


def shifted(*functions: Callable[[Tensor], Tensor]) -> nn.Sequential:
    """Return a linear layer, functions named `1`, `2` and so on, and a head."""
    torch.manual_seed(0)
    middle = map(Function, functions)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle, nn.Linear(WIDTH, CLASSES))


def scores_of(sign: int) -> Callable[[Tensor], Tensor]:
    """Attention whose scores are all beyond binary16."""

    def attention(x: Tensor) -> Tensor:
        scores = sign * 300 * (x.abs() + 1) @ (300 * (x.abs() + 1)).mT
        return scores.softmax(-1) @ x

    return attention


def with_signs(sign: int) -> dict[str, Callable[[], Planted]]:
    """Return overflows in one direction; those in the other have the same module and cause."""
    product, total = "overflow of a product", "overflow of a sum"
    conversion = "overflow of a conversion to 16 bits"
    return {
        "bias of a layer": lambda: Planted(
            with_bias(sign * 70_000.0), "1.output.dense", "_to_copy", conversion
        ),
        "number added": lambda: Planted(around(lambda x: x + sign * 8e4), "1", "add", total),
        "number subtracted": lambda: Planted(around(lambda x: x - sign * 8e4), "1", "sub", total),
        "constant filled in": lambda: Planted(
            around(lambda x: torch.where(x > 0, x, sign * 4e4) * 2), "1", "mul", product
        ),
        "constant added in places": lambda: Planted(
            around(lambda x: x + ((x > 0) * (sign * 8e4)).to(x.dtype)), "1", "_to_copy", conversion
        ),
        "buffer added": lambda: Planted(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), Shift(sign * 7e4), nn.Linear(WIDTH, CLASSES)),
            "1", "_to_copy", conversion,
        ),
        "residual": lambda: Planted(
            around(lambda x: x + sign * (x.abs() + 6e4) + sign * 6e4), "1", "add", total
        ),
        "product": lambda: Planted(
            around(lambda x: (x.abs() + 1) * 2e4 * (sign * 2e4)), "1", "mul", product
        ),
        "scores": lambda: Planted(around(scores_of(sign)), "1", "mm", product),
        "logits": lambda: Planted(
            nn.Sequential(*around(torch.relu), Function(lambda x: x + sign * 8e4 * x.sign())),
            "3", "mul", product,
        ),
    }  # fmt: skip


def rounding(sign: int) -> dict[str, Callable[[], Planted]]:
    """Return gradients that rounding turns: a large number is added, and subtracted again."""
    large, cause = sign * 4096.0, "gradient lost to rounding"
    return {
        "in one module": lambda: Planted(
            shifted(torch.tanh, lambda x: x + large - large), "2", "rounding", cause
        ),
        "in two modules": lambda: Planted(
            shifted(lambda x: x + large, lambda x: x - large), "1", "rounding", cause
        ),
    }  # fmt: skip


def nan_beside(*, in_one_batch: bool) -> list[Batch]:
    """Return an example that is NaN and one that overflows."""
    batches = [inputs(1), inputs(2)]
    batches[0]["x"][6, 2] = float("nan")
    batches[0 if in_one_batch else 1]["x"][3] *= 400
    return batches[: 1 if in_one_batch else 2]


FAULTS: dict[str, Callable[[], Planted]] = {
    "deep linear": lambda: Planted(
        deep([8.0] * 8), "4", "mm", "overflow of a product", examples=None
    ),
    "one layer": lambda: Planted(deep([1.0, 1e5, 1.0]), "1", "_to_copy",
        "overflow of a conversion to 16 bits"),
    "sum in a norm": lambda: Planted(
        around(norm_by_sum, gain=150.0), "1", "sum", "overflow of a sum"
    ),
    "log of softmax": lambda: Planted(
        plain(), "", "log", "log of 0", in_float32=True, loss=log_of_softmax
    ),
    "variance that underflows": lambda: Planted(
        around(divided_by_variance, gain=1e-4), "1", "div", "underflow, then x/0"
    ),
    "-1e9 mask": lambda: Planted(
        around(masked_by_number), "1", "masked_fill", "mask beyond binary16"
    ),
    "-1e9 row": lambda: Planted(
        around(mask_as_number), "1", "_softmax", "mask beyond binary16", examples=[2]
    ),
    "fully masked row": lambda: Planted(
        around(masked_rows), "1", "_softmax", "softmax over nothing", examples=[3], in_float32=True
    ),
    "masks subtracted": lambda: Planted(
        around(masks_subtracted), "1", "sub", "inf - inf", examples=range(8), in_float32=True
    ),
    "exploding residual stream": lambda: Planted(
        exploding(), "16", "add", "overflow of a sum",
    ),
    "gradients that vanish": lambda: Planted(
        plain(), "0", "gradient", "gradients lost to underflow", "backward", examples=range(8),
        loss=tiny_loss, options={"loss_scale": 1.0},
    ),
    "NaN in an input": lambda: Planted(
        plain(), "", "x", "input not finite", examples=[6], in_float32=True, batches=with_nan()
    ),
    "infinite parameter": lambda: Planted(
        with_infinite_weight(), "2", "parameter weight", "parameter not finite", in_float32=True
    ),
    "too large a scale": lambda: Planted(
        plain(), "", "_to_copy", "loss scale too large", "backward", is_harmless=True,
        options={"loss_scale": 2.0**30},
    ),
    "1/x near 0": lambda: Planted(
        around(lambda x: torch.ones_like(x) / (x * 1e-5)), "1", "div", "overflow of a quotient"
    ),
    "root at 0": lambda: Planted(
        around(lambda x: (x * (x > 0)).sqrt()), "1", "div", "gradient of a root at 0", "backward",
        in_float32=True,
    ),
    "exp in a focal loss": lambda: Planted(
        plain(), "", "exp", "overflow of an exponential", in_float32=True, loss=focal_loss
    ),
    "half-precision checkpoint": lambda: Planted(
        plain().half(), "0", "parameter weight", "weights in half precision"
    ),
    "checkpoint saved in half precision": lambda: Planted(
        plain().half().float(), "0", "parameter weight", "weights in half precision",
        is_harmless=True,
    ),
    "NaN confined to padding": lambda: Planted(
        Tokens(), "", "div", "NaN confined to padding", examples=[1, 2], in_float32=False,
        is_harmless=True, batches=padded(), loss=of_tokens,
    ),
    "only in backward": lambda: Planted(
        plain(), "", "_to_copy", "gradient overflow at every scale", "backward", loss=steep_loss
    ),
    "only one example": lambda: Planted(
        around(torch.relu, gain=400.0), "0", "addmm", "overflow of a product", examples=[13],
        batches=with_one_large_example(),
    ),
    "log of a negative": lambda: Planted(
        around(lambda x: (x - 10).log()), "1", "log", "log of a negative number", in_float32=True
    ),
    "root of a negative": lambda: Planted(
        around(variance_by_squares), "1", "sqrt", "root of a negative number", in_float32=True
    ),
    "0/0": lambda: Planted(
        around(lambda x: x.relu() / x.relu()), "1", "div", "0/0", in_float32=True
    ),
    "buffer written in parts": lambda: Planted(
        with_buffer(1e7), "1", "mul", "overflow of a product", examples=[0]
    ),
    "log behind where": lambda: Planted(
        around(selected_log), "1", "div", "log of 0", "backward", in_float32=True
    ),
}  # fmt: skip
for _sign, _word in ((1, "positive"), (-1, "negative")):
    FAULTS |= {f"{_word}: {name}": make for name, make in with_signs(_sign).items()}
    FAULTS |= {f"{_word}: rounding {name}": make for name, make in rounding(_sign).items()}
