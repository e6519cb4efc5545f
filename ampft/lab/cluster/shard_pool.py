"""Predict shards on the nodes of a Ray cluster, each worker with a model that it loads once."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.integrations.extension_points import Shard, ShardJob
from ampft.integrations.predict_shards import shard_writer
from ampft.lab.cluster.canary import code_hash
from ampft.lab.cluster.launcher import ATTEMPTS, NODE_ID, stream_messages
from ampft.lab.cluster.node_worker import SIGN_SECONDS, SILENT_SECONDS
from ampft.lab.cluster.nodes import (
    Nodes,
    ResourceNeed,
    connect,
    default_cpu_count,
    forwarded_environment,
    has_gpus,
)
from ampft.lab.cluster.parcels import PART_BYTES
from ampft.machine import versions
from ampft.ownership import temporary_folder
from ampft.text.escaping import inert


class ShardActor:
    """Predicts shards on a node, with one model.

    Each method call is a generator: Ray sends what it yields while it runs.
    """

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        """Prepare the process, which has not imported torch yet."""
        os.chdir(directory)
        os.environ.update(environment)
        self._stack = contextlib.ExitStack()
        self._target = temporary_folder("shard") / "shard.parquet"
        self._write: Any = None
        # All shards in one thread: settings of torch belong to a thread.
        self._pool = ThreadPoolExecutor(1)

    def describe(self) -> Iterator[dict[str, str]]:
        """Yield what decides how this node computes, by name."""
        yield {"the code of ampft": code_hash(), **versions()}

    def predict(self, job: ShardJob, shard: Shard) -> Iterator[bytes | tuple[int, str]]:
        """Yield empty parts while it predicts, the output, and its number of rows and SHA-256."""
        work = self._pool.submit(self._predict, job, shard)
        while wait([work], SIGN_SECONDS).not_done:
            yield b""
        rows = work.result()
        digest = hashlib.sha256()
        with self._target.open("rb") as file:
            while part := file.read(PART_BYTES):
                digest.update(part)
                yield part
        yield rows, digest.hexdigest()

    def _predict(self, job: ShardJob, shard: Shard) -> int:
        if self._write is None:
            self._write = self._stack.enter_context(shard_writer(job))
        return int(self._write(shard, self._target))


class _Lost(Exception):
    """The worker or its node was lost."""


class _Stopped(Exception):
    """The command ends."""


class ShardPool:
    """The workers of one command."""

    def __init__(self, job: ShardJob, target: Callable[[Shard], Path]) -> None:
        """Connect to the cluster.

        Raises:
            InputError: No cluster was found, or no node has room for a worker.
        """
        self._job, self._path_of = job, target
        head = connect()
        gpus = int(has_gpus())
        self._nodes = Nodes(ResourceNeed(default_cpu_count(gpus), gpus), head)
        self._own = {"the code of ampft": code_hash(), **versions()}
        self._stop = threading.Event()
        self._todo: deque[Shard] = deque()
        self._lost: Counter[str] = Counter()
        self.done: queue.Queue[tuple[Shard, int]] = queue.Queue()

    def places(self) -> list[str]:
        """Return the node of each worker that the cluster has room for.

        Raises:
            InputError: There is none.
        """
        import ray

        self._nodes.head.wait(self._watch)
        alive, need = self._nodes.alive(), self._nodes.need
        if not alive:
            raise self._nodes.nothing_left()
        resources = {str(each["NodeID"]): each["Resources"] for each in ray.nodes()}
        room = {id_: int(resources[id_].get("CPU", 0) // need.cpus) for id_ in alive}
        if need.gpus:
            room = {id_: min(n, int(resources[id_].get("GPU", 0))) for id_, n in room.items()}
        # By turns, so that a few workers are on as many nodes as possible.
        return [id_ for turn in range(max(room.values())) for id_ in alive if room[id_] > turn]

    def predict(self, shards: Sequence[Shard]) -> Iterator[tuple[Shard, int]]:
        """Predict shards, write them, and yield each with its number of rows."""
        places = self.places()[: len(shards)]
        self._todo.extend(shards)
        left = len(shards)
        with ThreadPoolExecutor(len(places)) as pool:
            try:
                work = [pool.submit(self._serve, place) for place in places]
                while left:
                    with contextlib.suppress(queue.Empty):
                        yield self.done.get(timeout=0.5)
                        left -= 1
                        continue
                    for each in work:
                        if each.done():
                            each.result()
            finally:
                self._stop.set()

    def _serve(self, place: str) -> None:
        """Let a worker predict shards until none is left; a lost one is replaced elsewhere."""
        import ray

        actor = None
        try:
            while True:
                try:
                    shard = self._todo.popleft()
                except IndexError:
                    return
                try:
                    actor = actor or self._start(place)
                    self.done.put((shard, self._receive(actor, shard, place)))
                except _Lost as loss:
                    self._lost[shard.name] += 1
                    if self._lost[shard.name] == ATTEMPTS:
                        raise InputError(
                            f"FILE: {shard.source}: {ATTEMPTS} workers were lost while they "
                            f"predicted it ({inert(str(loss))})."
                        ) from loss
                    self._todo.appendleft(shard)
                    if actor is not None:
                        ray.kill(actor)  # if it is only stopped, its cores are still taken
                    actor, places = None, self.places()
                    place = place if place in places else places[0]
        except _Stopped:
            return
        finally:
            if actor is not None:
                ray.kill(actor)

    def _start(self, place: str) -> Any:
        """Return a new worker on a node, which is left out if it differs from this machine."""
        import ray

        need = self._nodes.need
        environment = {**forwarded_environment(), "OMP_NUM_THREADS": str(need.cpus)}
        actor: Any = ray.remote(ShardActor)
        actor = actor.options(
            num_cpus=need.cpus, num_gpus=need.gpus, label_selector={NODE_ID: f"in({place})"}
        ).remote(str(Path.cwd()), environment)
        (found,) = self._news(actor.describe.options(num_returns="streaming").remote(), place)
        changed = [name for name, value in self._own.items() if found.get(name) != value]
        if not changed:
            return actor
        ray.kill(actor)
        self._nodes.leave_out(place, f"it differs from this machine in {', '.join(changed)}")
        raise _Lost("its node is left out")

    def _receive(self, actor: Any, shard: Shard, place: str) -> int:
        """Let a worker predict a shard, and write what arrives; return the number of rows."""
        stream = actor.predict.options(num_returns="streaming").remote(self._job, shard)
        news = self._news(stream, place, patience=SILENT_SECONDS)
        digest = hashlib.sha256()
        with atomic_path(self._path_of(shard)) as path:
            with path.open("wb") as file:
                for part in news:
                    if isinstance(part, tuple):
                        rows, sha256 = part
                        break
                    digest.update(part)
                    file.write(part)
                else:
                    raise _Lost("it ended too early")
            if digest.hexdigest() != sha256:
                raise _Lost("the parts that arrived are not those that were sent")
        return int(rows)

    def _news(self, stream: Any, place: str, *, patience: float = math.inf) -> Iterator[Any]:
        """Yield what a worker yields.

        Args:
            patience: Seconds without news after which it is given up.

        Raises:
            _Lost: The worker or its node was lost.
        """
        import ray

        heard = time.monotonic()

        def check() -> None:
            if not self._nodes.is_alive(place):
                raise _Lost("its node does not answer")
            if time.monotonic() - heard > patience:
                raise _Lost(f"it gave no sign of life for {patience:.0f} seconds")

        try:
            for message in stream_messages(stream, self._watch, self._nodes.head, check):
                heard = time.monotonic()
                yield message
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from error
            raise
        except ray.exceptions.RayError as error:
            raise _Lost(str(error).strip().splitlines()[0]) from error

    def _watch(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def predict_on_cluster(
    job: ShardJob, shards: Sequence[Shard], target: Callable[[Shard], Path]
) -> Iterator[tuple[Shard, int]]:
    """Predict shards on the nodes of a Ray cluster, as `predict_here` does.

    Raises:
        InputError: No cluster or node was found, or an input is refused.
        EngineLost: The head of the cluster is gone.
    """
    pool = ShardPool(job, target)
    import ray

    try:
        yield from pool.predict(shards)
    finally:
        ray.shutdown()
