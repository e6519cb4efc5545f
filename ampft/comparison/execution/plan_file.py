"""plan.json: written before the first run, and read again when a comparison goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ampft.comparison.execution.estimate import Estimate, ModeCost, Size
from ampft.comparison.execution.plan import SCHEMA, Plan
from ampft.errors import InputError
from ampft.text.escaping import inert

PLAN_NAME = "plan.json"

# What a folder's plan and a command have to agree in; the classify settings come on top.
QUESTION = ("modes", "first_seed", "metric", "margin", "placebo", "config_file", "budget")
FLAGS = {"first_seed": "seed"}


def read_plan(folder: Path) -> Plan | None:
    """Return the plan of a comparison's folder; None where there is none.

    Raises:
        InputError: plan.json is there and cannot be read.
    """
    path = folder / PLAN_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["schema"] != SCHEMA:
            raise InputError(
                f"{path}: has layout {values['schema']}, this ampft reads {SCHEMA}. Name another "
                "--output_dir."
            )
        return _plan(values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: is no plan as a comparison writes it ({type(error).__name__}: {error}). Name "
            "another --output_dir, or remove the file with the runs beside it."
        ) from error


def _plan(values: dict[str, Any]) -> Plan:
    estimate = values["estimate"]
    costs = {mode: ModeCost(**cost) for mode, cost in estimate["modes"].items()}
    sized = {**estimate, "modes": costs, "size": Size(**estimate["size"])}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    made = {**values, **lists, "estimate": Estimate(**sized), "size": Size(**values["size"])}
    return Plan(**made)


def difference(kept: Plan, asked: Mapping[str, Any]) -> str | None:
    """Return what a command asks for that the plan in its folder does not have; None for nothing.

    Args:
        kept: The plan in the folder.
        asked: Names of `QUESTION`, `looks` and `arguments`; a value of None for `modes` asks for
            those of the plan.
    """
    for name in QUESTION:
        if name == "modes" and asked[name] is None:
            continue
        if getattr(kept, name) != asked[name]:
            return _said(FLAGS.get(name, name), getattr(kept, name), asked[name])
    ours: Mapping[str, Any] = asked["arguments"]
    for name in sorted(set(ours) & set(kept.arguments)):
        if kept.arguments[name] != ours[name]:
            return _said(name, kept.arguments[name], ours[name])
    if not _extends(kept.looks, asked["looks"]):
        return _said("seeds", kept.looks, asked["looks"])
    return None


def _extends(planned: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether nothing changes, or there are more seeds and every new look lies among those."""
    new = [look for look in wanted if look not in planned]
    return wanted == planned or (wanted[-1] > planned[-1] and min(new) > planned[-1])


def _said(name: str, kept: object, asked: object) -> str:
    return f"--{name} was {_shown(kept)} there and is {_shown(asked)} now"


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    return inert(",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def with_looks(kept: Plan, looks: tuple[int, ...]) -> Plan:
    """Return the plan with more seeds; stamped where results had been looked at before."""
    if looks == kept.looks:
        return kept
    stamped = kept.added_after_look or bool(kept.looks_taken)
    return replace(kept, looks=looks, added_after_look=stamped)
