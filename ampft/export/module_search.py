"""The smallest set of modules with which a model holds, and the shortest patterns that match it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from torch import nn

from ampft.precision.float32_modules import called_modules, matching_modules

Holds = Callable[[Sequence[str]], bool]
"""Called with the paths of the modules to keep in float32."""


def smallest_sufficient_modules(
    model: nn.Module, holds: Holds, hints: Iterable[Sequence[str]] = ()
) -> tuple[str, ...] | None:
    """Return a smallest set of modules with which the model holds, by delta debugging.

    No module of the result can be left out, nor be replaced by the modules inside it (Zeller and
    Hildebrandt, 2002, "Simplifying and Isolating Failure-Inducing Input", section 3; on a tree as
    in Misherghi and Su, 2006, "HDD: Hierarchical Delta Debugging").

    Args:
        model: Model, which fails without such modules.
        holds: Test of a set of paths.
        hints: Sets that probably suffice. They are tried first, in their order.

    Returns:
        Paths in the order of the model; None if the model does not hold with all modules either.
    """
    for start in (*hints, _parts(model, "")):
        if start and holds(start):
            found = _minimal(list(start), holds)
            order = [path for path, _ in model.named_modules()]
            return tuple(sorted(_refined(model, found, holds), key=order.index))
    return None


def _parts(model: nn.Module, path: str) -> list[str]:
    """Return the paths of the modules directly inside a module that are called."""
    prefix = f"{path}." if path else ""
    children = model.get_submodule(path).named_children()
    parts = [called_modules(f"{prefix}{name}", child) for name, child in children]
    return [part for paths in parts for part in paths]


def _minimal(paths: list[str], holds: Holds) -> list[str]:
    """Return a subset with which the model holds and from which no module can be left out."""
    chunks = 2
    while len(paths) >= 2:
        size = -(-len(paths) // chunks)
        parts = [paths[start : start + size] for start in range(0, len(paths), size)]
        found = next((part for part in parts if len(part) < len(paths) and holds(part)), None)
        if found is not None:
            paths, chunks = found, 2
            continue
        if len(parts) > 2:
            others = ([p for p in paths if p not in part] for part in parts)
            found = next((rest for rest in others if holds(rest)), None)
            if found is not None:
                paths, chunks = found, max(chunks - 1, 2)
                continue
        if size == 1:
            break
        chunks = min(len(paths), 2 * chunks)
    return paths


def _refined(model: nn.Module, paths: list[str], holds: Holds) -> list[str]:
    """Return a minimal set with modules replaced by modules inside them where these suffice."""
    done: list[str] = []
    while paths:
        path, *rest = paths
        parts = _parts(model, path)
        others = done + rest
        if not parts or not holds(others + parts):
            done.append(path)
            paths = rest
            continue

        def holds_with_others(chosen: Sequence[str], others: list[str] = others) -> bool:
            return holds(others + list(chosen))

        paths = _minimal(parts, holds_with_others) + rest
    return done


def shortest_patterns(model: nn.Module, paths: Sequence[str]) -> tuple[str, ...]:
    """Return few and short patterns that match these modules and no others.

    Args:
        paths: Paths of modules, none of them inside another.
    """
    wanted = set(paths)
    exact: dict[str, set[str]] = {}
    for candidate in {pattern for path in paths for pattern in _candidates(path)}:
        matched = set(matching_modules(model, [candidate]))
        if matched <= wanted:
            exact[candidate] = matched
    chosen: list[str] = []
    while wanted:
        best = min(exact, key=lambda name: (-len(exact[name] & wanted), *_reading_order(name)))
        chosen.append(best)
        wanted -= exact[best]
    order = {path: index for index, path in enumerate(paths)}
    return tuple(sorted(chosen, key=lambda name: min(order[path] for path in exact[name])))


def _reading_order(pattern: str) -> tuple[bool, int, str]:
    """Return the key by which the pattern that reads best comes first."""
    starts_with_name = not pattern[0].isdigit() and pattern[0] != "*"
    return not starts_with_name, len(pattern), pattern


def _candidates(path: str) -> set[str]:
    """Return the endings of a path, with its numbers and a part in the middle left open."""
    names = path.split(".")
    found = {path}
    for start in range(len(names)):
        ending = names[start:]
        for choice in product(*((name, "*") if name.isdigit() else (name,) for name in ending)):
            found.add(".".join(choice))
            for tail in (1, 2):
                for end in range(1, len(choice) - tail):
                    found.add(".".join((*choice[:end], "*", *choice[-tail:])))
    return found - {"*"}
