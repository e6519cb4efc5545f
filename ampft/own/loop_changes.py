"""What the code of an own loop changes while it trains, and a checkpoint has to bring back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.optim import Optimizer

from ampft.engine.checkpoints.training_state import random_state, restore_random_state
from ampft.errors import InputError
from ampft.features.feature import Feature, SavedFeature
from ampft.own.schedules import as_json, from_json
from ampft.text.json_io import Count


@dataclass(frozen=True, kw_only=True)
class LoopValues:
    """What a loop has changed, at a checkpoint and at the start of its epoch."""

    frozen: Sequence[str]  # Names of the parameters that are not trained.
    frozen_at_start: Sequence[str]  # The same at the start of the epoch.
    groups_at_start: Count  # Number of groups of parameters at the start of the epoch.
    random_at_start: Sequence[Mapping[str, Any]]  # Random state of each process at its start.
    objects: Mapping[str, Any]  # States of objects of the user, by name.


class LoopChanges(Feature):
    """What the loop changes: frozen parameters, groups, random states, and objects of the user.

    When a training continues, the code of the loop before the first step of an epoch runs again.
    `rewind` gives it what it had at the start of the epoch; the loop then restores the rest.
    """

    name = "loop"

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        objects: Mapping[str, Any],
    ) -> None:
        self._accelerator = accelerator
        self._model, self._optimizers, self._objects = model, optimizers, objects
        self._saved: LoopValues | None = None
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Take note of what the code of the loop finds at the start of an epoch."""
        self._frozen_at_start, self._groups_at_start = self._frozen(), self._groups()
        self._random_at_start = random_state(self._accelerator.device)

    def _frozen(self) -> list[str]:
        return [n for n, p in self._model.named_parameters() if not p.requires_grad]

    def _groups(self) -> int:
        return sum(len(each.param_groups) for each in self._optimizers)

    def _freeze(self, names: Sequence[str]) -> None:
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad == (name in names):
                parameter.requires_grad_(name not in names)

    def rewind(self) -> None:
        """Give the loop what it had before its code at the start of the epoch ran."""
        if self._saved is not None:
            self._freeze(self._saved.frozen_at_start)
            if len(self._optimizers) == 1:
                del self._optimizers[0].param_groups[self._saved.groups_at_start :]
            states = self._saved.random_at_start
            own = states[self._accelerator.process_index % len(states)]
            restore_random_state(own, self._accelerator.device)

    def state(self) -> LoopValues:
        return LoopValues(
            frozen=self._frozen(),
            frozen_at_start=self._frozen_at_start,
            groups_at_start=self._groups_at_start,
            random_at_start=gather_object([self._random_at_start]),
            objects={name: _state_of(name, each) for name, each in self._objects.items()},
        )

    def restore(self, saved: SavedFeature) -> None:
        self._saved = saved.state
        self.restore_changes()
        for optimizer in self._optimizers if saved.step else ():
            optimizer._opt_called = True  # type: ignore[attr-defined] # as schedules of torch check

    def restore_changes(self) -> None:
        """Bring back what a checkpoint has, after the code at the start of the epoch."""
        if self._saved is not None:
            self._freeze(self._saved.frozen)
            for name, each in self._objects.items():
                each.load_state_dict(from_json(each.state_dict(), self._saved.objects[name]))


def _state_of(name: str, value: Any) -> Any:
    """Return the state of an object as JSON values.

    Raises:
        InputError: It has other values.
    """
    state = as_json(value.state_dict())
    try:
        json.dumps(state)
    except TypeError as error:
        raise InputError(
            f"checkpointed: the state of {name!r} has values that are not numbers or texts "
            f"({error}). Pass objects such as schedules, whose state_dict() has no tensors."
        ) from None
    return state


def check_objects(objects: Mapping[str, Any]) -> None:
    """Check that objects can be in a checkpoint.

    Raises:
        InputError: One has no state.
    """
    if not isinstance(objects, Mapping):
        raise InputError(
            f"checkpointed: received {type(objects).__name__}. Pass objects by name, such as "
            '{"schedule": schedule}.'
        )
    for name, each in objects.items():
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise InputError(
                f"checkpointed: {name!r} is a {type(each).__name__}, without state_dict and "
                "load_state_dict. Pass objects that have both, such as schedules."
            )
        _state_of(name, each)
