"""The features of a run, in the order in which it calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from ampft.features.averaged_weights import AveragedWeights
from ampft.features.feature import Feature
from ampft.features.label_errors import InspectedData
from ampft.features.range_watch import RangeWatch
from ampft.runs.prepared import Prepared
from ampft.text.terminal import print_line

Write = Callable[[str], None]
"""Prints a line above the progress bar, on the main process."""


def averaged_weights(prepared: Prepared, write: Write = print_line) -> AveragedWeights | None:
    """Return the average of the weights before the first step; None without `--ema_decay`."""
    del write
    decay = prepared.args.ema_decay
    return None if decay is None else AveragedWeights(prepared.loaded.model, decay)


def _range_watch(prepared: Prepared, write: Write) -> RangeWatch | None:
    every = prepared.args.watch
    if every is None:
        return None
    return RangeWatch(every, prepared.accelerator, prepared.loaded.model, prepared.precision, write)


def _inspected_data(prepared: Prepared, write: Write) -> InspectedData | None:
    if not (prepared.args.inspect_data and prepared.accelerator.is_main_process):
        return None
    return InspectedData(prepared.task, write)


FEATURES: tuple[Callable[[Prepared, Write], Feature | None], ...] = (
    _inspected_data,
    _range_watch,
    averaged_weights,
)


def make_features(prepared: Prepared, write: Write) -> tuple[Feature, ...]:
    """Return the features that the settings of a run ask for, before its first step."""
    made = (make(prepared, write) for make in FEATURES)
    return tuple(feature for feature in made if feature is not None)


@contextmanager
def entered(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    """Enter contexts of features in their order."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
