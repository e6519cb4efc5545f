"""The examples of an own loop: any map-style source, whose order is chosen for it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from ampft.data.step_batches import Examples, FloatArray, IntArray
from ampft.errors import InputError, quoted

SAMPLED = 64  # examples whose contents are in a fingerprint, of a source that is read one by one
READ = "__getitem__"  # method that reads an example
_FIRST_STEP = (0, 0)  # epoch and step with which a fingerprint reads them


@dataclass(frozen=True)
class OwnExamples:
    """Examples of a map-style source, read one by one, or as rows of tensors.

    A source that draws at random, as augmentation does, draws the same for an example of an epoch,
    whatever the number of processes, workers and micro-batches, and after a resume.
    """

    source: Any  # What has a length, and an example for each index; or tensors with a row for each.
    collate_examples: Callable[
        [list[Any]], Any
    ]  # Function that makes a batch of a list of examples.
    weights: FloatArray  # (n,) weights in the loss.
    seed: int = 0  # Seed of what the source draws.
    position: tuple[int, int] = _FIRST_STEP  # Epoch and step for which it draws.

    @property
    def lengths(self) -> IntArray:
        """(n,) ones: all examples cost the same."""
        return np.ones(len(self.weights), dtype=np.int64)

    @property
    def is_static(self) -> bool:
        """Whether reading an example draws nothing: it is in memory."""
        is_table = type(self.source).__module__.startswith("datasets.")
        has_transform = is_table and getattr(self.source, "format", {}).get("type") == "custom"
        held = _is_read_as(self.source, (list, tuple, TensorDataset)) or _columns(self.source)
        return self.collate_examples is default_collate and bool(
            held or (is_table and not has_transform)
        )

    def for_step(self, epoch: int, step: int) -> OwnExamples:
        """Return the examples as an optimizer step of the training sees them."""
        return replace(self, position=(epoch, step))

    def collate(self, ids: IntArray) -> Any:
        """Return the batch of the examples `ids`, as the source's collate function makes it."""
        columns = _columns(self.source)
        if columns is not None and self.collate_examples is default_collate:
            rows = {name: tensor[torch.from_numpy(ids)] for name, tensor in columns.items()}
            return rows if isinstance(self.source, Mapping) else tuple(rows.values())
        if self.is_static:
            return self.collate_examples([self.source[int(index)] for index in ids])
        with _own_generators():
            epoch, step = self.position
            examples = []
            for index in ids:
                _seed_generators(self.seed, epoch, int(index))
                examples.append(self.source[int(index)])
            _seed_generators(self.seed, epoch, step, int(ids[0]))
            return self.collate_examples(examples)

    def fingerprint(self) -> str:
        """Return a SHA-256 of the contents: of all examples in memory, otherwise of `SAMPLED`."""
        count = len(self.weights)
        digest = hashlib.sha256(str(count).encode())
        digest.update(np.ascontiguousarray(self.weights).tobytes())
        columns = _columns(self.source)
        if columns is not None:
            for part in _contents(columns):
                digest.update(part)
            return digest.hexdigest()
        if self.is_static and hasattr(self.source, "with_format"):  # a table of `datasets`
            for table in self.source.with_format("arrow").iter(SAMPLED):
                for part in _contents(table.to_pylist()):
                    digest.update(part)
            return digest.hexdigest()
        in_memory = _is_read_as(self.source, (list, tuple))
        ids = (
            range(count) if in_memory else np.unique(np.linspace(0, count - 1, SAMPLED).astype(int))
        )
        with _own_generators():
            for index in ids:
                _seed_generators(0, int(index))  # the same for every seed of a training
                for part in _contents(self.source[int(index)]):
                    digest.update(part)
        return digest.hexdigest()


def own_examples(
    source: Any,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    weights: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Examples:
    """Return the examples of a source for step batches.

    Args:
        source: A list, a map-style data set of torch, a `datasets.Dataset`, tensors by name or in a
            tuple, whose rows are the examples, `Examples`, or a `DataLoader`, of which the data set
            and the collate function are used.
        collate: Function that makes a batch of a list of examples; None for the loader's, or for
            `torch.utils.data.default_collate`.
        weights: (n,) weights of the examples in the loss; None for 1.

    Raises:
        InputError: The source has no length or no indices, or is empty; its loader leaves out or
            repeats examples; or the weights do not fit.
    """
    loader = source if isinstance(source, DataLoader) else None
    if loader is not None:
        collate = collate or loader.collate_fn
        source = loader.dataset
    if isinstance(source, tuple) and source and all(isinstance(each, Tensor) for each in source):
        source = TensorDataset(*source)
    if all(hasattr(source, name) for name in ("collate", "weights", "lengths")):
        if collate is not None or weights is not None:
            raise InputError(
                f"examples: {type(source).__name__} has weights and a collate function of its own. "
                "Leave out weights and collate."
            )
        return source
    is_indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if isinstance(source, IterableDataset) or not is_indexed:
        raise InputError(
            f"examples: received {type(source).__name__}, which can only be iterated. The order of "
            "the examples, the share of each process and the place at which a stopped training "
            "continues need examples with a length and an index: pass a list, a map-style data "
            "set, or a DataLoader of one. A stream that fits on the disk can become one with "
            "datasets.Dataset.from_generator."
        )
    if loader is not None:
        _check_takes_all(loader)
    _check_type(source)
    if collate is not None and not callable(collate):
        raise InputError(f"collate: received {collate!r}. Pass a function that takes examples.")
    columns = _columns(source)
    lengths = {len(source)} if columns is None else {len(each) for each in columns.values()}
    if len(lengths) != 1 or not min(lengths):
        raise InputError(
            f"examples: received {type(source).__name__} of {sorted(lengths)} examples. Pass at "
            "least one example, and tensors with equally many rows."
        )
    (n,) = lengths
    try:
        values = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    is_valid = values.shape == (n,) and np.isfinite(values).all()
    if not is_valid or values.min() < 0 or not values.any():
        raise InputError(
            f"weights: received {quoted(weights)}. Pass {n} finite numbers of at least 0, one "
            "for each example, at least one of them above 0."
        )
    return OwnExamples(source, collate or default_collate, values, seed)


def _check_type(source: Any) -> None:
    """Raise InputError for a source whose items are not its examples."""
    advice = ""
    if hasattr(source, "iloc"):
        advice = "Pass datasets.Dataset.from_pandas(frame), or frame.to_dict('records')."
    elif isinstance(source, str | bytes):
        advice = "Pass a list of examples, or a data set."
    elif isinstance(source, Mapping) and not all(
        isinstance(each, Tensor) and each.ndim for each in source.values()
    ):
        advice = "Pass tensors by name, with a row for each example."
    elif isinstance(source, tuple) and any(isinstance(e, list | np.ndarray) for e in source):
        advice = (
            "In a tuple, each item would be an example. Pass tensors, whose rows are the examples, "
            "such as torch.as_tensor(array); or list(zip(*arrays))."
        )
    if advice:
        raise InputError(f"examples: received {type(source).__name__}. {advice}")


def loader_order(source: Any) -> tuple[bool, bool]:
    """Return whether examples are shuffled, and whether a smaller last batch is left out.

    A `DataLoader` says both. Examples without one are shuffled, and none is left out.
    """
    if not isinstance(source, DataLoader):
        return True, False
    batches: Any = source.batch_sampler
    if hasattr(batches, "num_processes"):  # the share of a process, of a loader of Accelerate
        batches = batches.batch_sampler
    sampler = getattr(batches, "sampler", source.sampler)
    is_in_order = type(sampler) is SequentialSampler or getattr(sampler, "shuffle", True) is False
    return not is_in_order, getattr(batches, "drop_last", False) is True


def _check_takes_all(loader: Any) -> None:
    """Check that a loader reads each example once in each pass, because its order is not used.

    Raises:
        InputError: It leaves out or repeats some.
    """
    batches, count = loader.batch_sampler, len(loader.dataset)
    if hasattr(batches, "num_processes"):  # the share of a process, of a loader of Accelerate
        batches = batches.batch_sampler
    if type(batches) in (BatchSampler, type(None)):  # drop_last leaves out others in each pass
        chooses = loader.sampler if batches is None else batches.sampler
        is_share = type(chooses) is DistributedSampler
        is_order = type(chooses) is SequentialSampler or (
            type(chooses) is RandomSampler and not chooses.replacement
        )
        if is_share or (is_order and len(chooses) == count):
            return
        batches = ([index] for index in chooses)
    else:
        chooses = batches
    with _own_generators():
        # One more than there are, because a sampler can be endless.
        ids = [int(index) for index in islice(chain.from_iterable(batches), count + 1)]
    if sorted(ids) != list(range(count)):
        raise InputError(
            f"examples: {type(chooses).__name__} of the DataLoader leaves out or repeats examples, "
            "and the training reads each one once in each epoch. Pass the examples that it reads, "
            "such as torch.utils.data.Subset(data, indices); weights of examples as weights=..."
        )


def _is_read_as(source: Any, kinds: tuple[Any, ...]) -> bool:
    """Return whether a source is of one of these kinds, and reads its examples as they do."""
    return any(
        isinstance(source, kind) and getattr(type(source), READ) is getattr(kind, READ)
        for kind in kinds
    )


def _columns(source: Any) -> Mapping[str, Tensor] | None:
    """Return the tensors of a source whose examples are their rows; None for any other source."""
    if _is_read_as(source, (TensorDataset,)):
        return {str(number): tensor for number, tensor in enumerate(source.tensors)}
    return source if isinstance(source, Mapping) else None


@contextmanager
def _own_generators() -> Iterator[None]:
    """Let the global generators of the CPU draw inside this context without an effect outside."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def _seed_generators(*numbers: int) -> None:
    words = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(words[0])
    np.random.seed(words[1])  # noqa: NPY002
    torch.default_generator.manual_seed(words[2])  # not a GPU's, from which dropout draws


def _contents(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the contents of an example: of tensors, arrays, and what holds them."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()  # the bytes are addresses
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} ".encode()
        yield np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield f"{name!r}: ".encode()
            yield from _contents(part)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield f"{len(value)} ".encode()
        for part in value:
            yield from _contents(part)
    elif isinstance(value, str | bytes | int | float | bool | None):
        yield repr(value).encode()
    elif is_dataclass(value):
        yield from _contents({each.name: getattr(value, each.name) for each in fields(value)})
    elif hasattr(value, "tobytes"):  # an image of PIL
        yield value.tobytes()
    else:  # another object: its type, because its text can have an address
        yield type(value).__qualname__.encode()
