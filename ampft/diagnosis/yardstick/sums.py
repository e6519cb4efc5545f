"""Running sums over step batches, so that no gradient is kept: Welford's for the noise.

Sums are float64. Beside the gradients themselves, the noise keeps one vector as long as the
gradient, and so does each mode, in float32: rounding these changes no figure by more than 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ampft.diagnosis.yardstick.figures import WHOLE, GradientError, GradientNoise

Gradient = Mapping[str, Tensor]
# Noise below this share of the gradient is that of the mean's float32.
ROUNDING = 1e-6
ENTRIES_AT_ONCE = 2**20  # a few copies of so many entries stay in a processor's cache, or nearly


@dataclass(frozen=True)
class Found:
    """A gradient as the optimizer would see it.

    Attributes:
        gradient: Parameter -> float32 tensor, unscaled; None when not finite at any scale.
        overflowed: Whether it was not finite at first.
        scale: Scale of the loss that made it finite; None without a scaler.
    """

    gradient: Gradient | None
    overflowed: bool = False
    scale: float | None = None


class NoiseSums:
    """The float64 gradients of the batches so far.

    Args:
        blocks: Of the model.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.batches = 0
        self._blocks = blocks
        self._mean: dict[str, Tensor] = {}
        self._squares = [0.0] * len(blocks.names)

    def add(self, exact: Gradient) -> None:
        """Add a batch.

        Args:
            exact: Parameter -> float64 gradient, for every trainable parameter.
        """
        self.batches += 1
        for name, block in self._blocks.of_parameter.items():
            if name not in self._mean:
                self._mean[name] = torch.zeros(exact[name].shape, device=exact[name].device)
            total = torch.zeros((), dtype=torch.float64, device=exact[name].device)
            for gradient, mean in _pieces(exact[name], self._mean[name]):
                change = gradient - mean
                total += change @ change
                mean += (change / self.batches).float()
            self._squares[block] += float(total) * (self.batches - 1) / self.batches

    def figures(self) -> tuple[GradientNoise, tuple[GradientNoise, ...]]:
        """Return the noise of the whole gradient, and of each block."""
        squared_means = [0.0] * len(self._blocks.names)
        for name, block in self._blocks.of_parameter.items():
            squared_means[block] += sum(
                float(part.double().square().sum()) for (part,) in _pieces(self._mean[name])
            )
        parts = list(zip(self._blocks.sizes, squared_means, self._squares, strict=True))
        sizes, means, squares = (sum(column) for column in zip(*parts, strict=True))
        whole = self._figures(WHOLE, int(sizes), means, squares)
        named = zip(self._blocks.names, parts, strict=True)
        return whole, tuple(self._figures(name, *part) for name, part in named)

    def _figures(self, name: str, size: int, squared_mean: float, squares: float) -> GradientNoise:
        variance = squares / (self.batches - 1)
        return GradientNoise(
            name=name,
            parameters=size,
            gradient_norm=math.sqrt(squared_mean),
            signal=math.sqrt(max(0.0, squared_mean - variance / self.batches)),
            noise=math.sqrt(variance),
        )


class ErrorSums:
    """A mode's errors in the batches so far.

    Args:
        blocks: Of the model.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.batches = 0
        self.overflowed = 0
        self.failed = 0
        self.lowest_scale: float | None = None
        self._blocks = blocks
        self._sum: dict[str, Tensor] = {}
        # Per block and, last, over all: |e|^2, h, h^2, entries lost, entries not zero.
        self._totals = torch.zeros(len(blocks.names) + 1, 5, dtype=torch.float64)

    def add(self, found: Found, exact: Gradient) -> None:
        """Add a batch.

        Args:
            found: The mode's gradient.
            exact: Parameter -> float64 gradient.
        """
        self.batches += 1
        self.overflowed += found.overflowed
        if found.gradient is None:
            self.failed += 1
            return
        if found.scale is not None:
            self.lowest_scale = min(found.scale, self.lowest_scale or found.scale)
        batch = torch.zeros_like(self._totals)
        for name, block in self._blocks.of_parameter.items():
            gradient = found.gradient[name].to(exact[name].device)
            if name not in self._sum:
                self._sum[name] = torch.zeros(gradient.shape, device=gradient.device)
            batch[block] += _compared(gradient, exact[name], self._sum[name]).cpu()
        batch[-1] = batch[:-1].sum(dim=0)
        batch[:, 2] = batch[:, 1].square()
        self._totals += batch

    def figures(
        self, whole: GradientNoise, modules: tuple[GradientNoise, ...]
    ) -> tuple[GradientError, tuple[GradientError, ...]]:
        """Return the errors beside the noise that `NoiseSums.figures` gave."""
        rows = self._totals.tolist()
        named = zip(modules, rows[:-1], strict=True)
        return self._figures(whole, rows[-1]), tuple(self._figures(n, row) for n, row in named)

    def _figures(self, noise: GradientNoise, row: list[float]) -> GradientError:
        squares, products, squared_products, lost, present = row
        if self.failed or noise.noise <= ROUNDING * noise.gradient_norm:
            nothing = dict.fromkeys(("error_over_noise", "bias_over_noise", "bias_z", "underflow"))
            return GradientError(name=noise.name, **nothing)
        n = self.batches
        bias = math.sqrt(max(0.0, 2 * products / (n * (n - 1))))
        return GradientError(
            name=noise.name,
            error_over_noise=math.sqrt(squares / n) / noise.noise,
            bias_over_noise=bias / noise.noise,
            bias_z=products / math.sqrt(squared_products) if squared_products else 0.0,
            underflow=lost / present if present else 0.0,
        )


def _compared(found: Tensor, exact: Tensor, summed: Tensor) -> Tensor:
    """Return (5,) sums of one parameter, and add its error to `summed`."""
    totals = torch.zeros(5, dtype=torch.float64, device=exact.device)
    for gradient, reference, before in _pieces(found, exact, summed):
        error = gradient.double() - reference
        present = reference != 0
        totals[0] += error @ error
        totals[1] += error @ before.double()
        totals[3] += (present & (gradient == 0)).sum()
        totals[4] += present.sum()
        before += error.float()
    return totals


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors' entries side by side; what is contiguous can be written to."""
    flat = [tensor.reshape(-1).split(ENTRIES_AT_ONCE) for tensor in tensors]
    yield from zip(*flat, strict=True)


@dataclass(frozen=True)
class Blocks:
    """The trainable parameters of a model in its blocks.

    Attributes:
        names: In the model's order: `embeddings`, `encoder.layer.0`, ..., `classifier`.
        of_parameter: Name of a parameter -> index of its block.
        sizes: Entries of each block.
    """

    names: tuple[str, ...]
    of_parameter: Mapping[str, int]
    sizes: tuple[int, ...]


def blocks_of(model: nn.Module) -> Blocks:
    """Return the blocks of `model`: the items of its lists of layers, and what stands beside them.

    Args:
        model: Any module. A part is opened as long as there is a list of layers inside; the
            prefix of transformers' base model, such as `bert.`, is left out of the names.
    """
    prefix = str(getattr(model, "base_model_prefix", "") or "")
    paths = _paths(model, "")
    sizes: dict[str, int] = {}
    block: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shown = _shown(_longest(paths, name), prefix)
            block[name] = shown
            sizes[shown] = sizes.get(shown, 0) + parameter.numel()
    names = tuple(sizes)
    return Blocks(
        names=names,
        of_parameter={name: names.index(shown) for name, shown in block.items()},
        sizes=tuple(sizes.values()),
    )


def _paths(module: nn.Module, path: str) -> list[str]:
    """Return the paths of the blocks below `module`, and of every module that was opened."""
    found = []
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        found.append(below)
        if any(isinstance(part, nn.ModuleList) for part in child.modules()):
            listed = isinstance(child, nn.ModuleList)
            found += [f"{below}.{item}" for item, _ in child.named_children()] if listed else []
            found += [] if listed else _paths(child, below)
    return found


def _longest(paths: list[str], parameter: str) -> str:
    fitting = [path for path in paths if parameter.startswith(f"{path}.")]
    return max(fitting, key=len, default="")


def _shown(path: str, prefix: str) -> str:
    if path == prefix or not path:
        return path or "own parameters"
    return path.removeprefix(f"{prefix}.") if prefix else path
