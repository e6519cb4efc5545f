"""Collates the next step batch in a thread while the device computes the current one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item], finish: Callable[[Item], Item]) -> Iterator[Item]:
    """Yield the items in their order, each computed before it is asked for.

    A thread is enough: tensors are copied and pinned without Python's lock, and between launches
    the host has time while the device computes.

    Args:
        items: Items, which are computed one at a time.
        finish: Function that the thread applies to each, such as a copy to pinned memory.
    """

    def following() -> Item | None:
        item = next(items, None)
        return None if item is None else finish(item)

    with ThreadPoolExecutor(1, thread_name_prefix="collate") as thread:
        waiting = thread.submit(following)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(following)
            yield item
