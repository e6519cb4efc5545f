"""A generated case: everything that is needed to run it again, as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A training of a tiny model on drawn data, and what is asked of it afterwards."""

    task: str  # Task as the command line names it, or "pairs".
    seed: int  # Seed of the data and of the weights.
    family: str = "bert"  # Key in `draw.FAMILIES`.
    rows: tuple[int, int, int] = (20, 10, 10)  # Rows for training, validation and testing.
    classes: int = 3  # Number of classes or labels.
    format: str = "csv"  # Ending of the files.
    traits: tuple[str, ...] = ()  # Names in `draw.TRAITS`: what is unusual about the data.
    settings: Settings = field(default_factory=dict)  # Flags of the training; True for a bare one.
    door: str = "none"  # Key in `decide.DOORS`: who predicts the test file again.
    relation: str = "none"  # Key in `relations.RELATIONS`.
    stop_after: int | None = None  # Step after which the run is stopped, to be resumed.
    change: Settings = field(default_factory=dict)  # Settings that differ when it is resumed.
    processes: int = 1  # Number of processes that train.

    @property
    def precision(self) -> str:
        """The precision of the training and of the run's predictions."""
        asked = self.settings.get("mixed_precision", "no")
        return "fp32" if asked == "no" else str(asked)

    def line(self) -> str:
        """Return the case as one line of JSON, without what is as usual."""
        usual = asdict(Case(self.task, self.seed))
        items = {k: v for k, v in asdict(self).items() if k in ("task", "seed") or v != usual[k]}
        return json.dumps(items, sort_keys=True)

    @classmethod
    def read(cls, line: str) -> Case:
        """Return the case in a line of JSON."""
        items = json.loads(line)
        lists = {k: tuple(items[k]) for k in ("rows", "traits") if k in items}
        return cls(**{**items, **lists})

    def smaller(self) -> Iterator[Case]:
        """Yield cases with less, much less first, to find the smallest that still fails."""
        plain = replace(self, relation="none", door="none", processes=1, stop_after=None, change={})
        if plain != self:
            yield plain
        yield from self._with_fewer_settings()
        for name in self.change:
            yield replace(self, change=without(self.change, name))
        if self.stop_after is not None:
            yield replace(self, stop_after=None, change={})
        for name, usual in {"relation": "none", "door": "none", "processes": 1}.items():
            if getattr(self, name) != usual:
                yield replace(self, **{name: usual})
        for trait in self.traits:
            yield replace(self, traits=tuple(t for t in self.traits if t != trait))
        for name, usual in {"family": "bert", "format": "csv"}.items():
            if getattr(self, name) != usual:
                yield replace(self, **{name: usual})
        half = tuple(max(n // 2, self.classes) for n in self.rows)
        if half != self.rows:
            yield replace(self, rows=half)

    def _with_fewer_settings(self) -> Iterator[Case]:
        names = list(self.settings)
        size = len(names) // 2
        while size:
            for start in range(0, len(names), size):
                cut = set(names[start : start + size])
                rest = {name: v for name, v in self.settings.items() if name not in cut}
                yield replace(self, settings=rest)
            size //= 2


def without(settings: Settings, name: str) -> dict[str, Any]:
    """Return settings without one of them."""
    return {key: value for key, value in settings.items() if key != name}


@dataclass(frozen=True)
class Disagreement:
    """What the product says and what the oracle says about one thing."""

    what: str  # The thing, such as "report.json: macro_f1".
    product: Any
    oracle: Any

    def __str__(self) -> str:
        return f"{self.what}: the product has {self.product}, the oracle {self.oracle}"


def compare(what: str, product: Any, oracle: Any, tolerance: float = 0.0) -> list[Disagreement]:
    """Return nothing if two values are equal: numbers within a tolerance, relative above 1."""
    is_number = not isinstance(oracle, str | bool) and not isinstance(product, str)
    if product is None or oracle is None or not is_number:
        return [] if product == oracle else [Disagreement(what, product, oracle)]
    if isinstance(oracle, Mapping):
        if not isinstance(product, Mapping) or set(product) != set(oracle):
            return [Disagreement(what, product, oracle)]
        pairs = [(f"{what}.{k}", product[k], oracle[k]) for k in oracle]
    elif isinstance(oracle, list | tuple):
        if not isinstance(product, list | tuple) or len(product) != len(oracle):
            return [Disagreement(what, product, oracle)]
        pairs = [(f"{what}[{i}]", product[i], oracle[i]) for i in range(len(oracle))]
    else:
        if product != product and oracle != oracle:
            return []
        close = abs(product - oracle) <= tolerance * max(1.0, abs(oracle))
        return [] if close else [Disagreement(what, product, oracle)]
    return [found for pair in pairs for found in compare(*pair, tolerance)]
