"""The nodes of a Ray cluster: which can train a run, and which compute the same."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampft.engine.threads import usable_cores
from ampft.errors import EngineLost, InputError
from ampft.lab.cluster.canary import NodeFacts
from ampft.text.escaping import inert
from ampft.text.numbers import byte_size
from ampft.text.terminal import labelled, print_line

ADDRESS = "RAY_ADDRESS"
# Without an answer of the head until the command ends; after a minute, Ray would end it without a
# sentence that a user understands.
HEAD_SECONDS = 30.0
BETWEEN_CALLS, CALL_SECONDS = 0.4, 2.0
_PASSED_ON = (
    *("OMP_", "MKL_", "KMP_", "ATEN_", "DNNL_", "ONEDNN_", "TORCH_", "PYTORCH_", "CUBLAS_"),
    *("CUDNN_", "NVIDIA_TF32_OVERRIDE", "ACCELERATE_", "HF_HUB_OFFLINE", "PYTHONHASHSEED"),
)


@dataclass
class HeadMonitor:
    """Checks now and then whether the head of a cluster answers."""

    address: str  # Its host and port.
    _called: float = 0.0
    _silent_since: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the head did not answer the last call."""
        return self._silent_since is not None

    def wait(self, watch: Callable[[], None]) -> None:
        """Wait until the head answers, because calls of Ray would hang; see `answers`."""
        self._called = 0.0
        while not self.answers():
            watch()
            time.sleep(BETWEEN_CALLS)

    def answers(self) -> bool:
        """Return whether the head answered the last call, which is repeated now and then.

        Raises:
            EngineLost: It has not answered for `HEAD_SECONDS`.
        """
        now = time.monotonic()
        if now - self._called < BETWEEN_CALLS:
            return not self.is_silent
        self._called = now
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CALL_SECONDS).close()
            self._silent_since = None
        except OSError:
            self._silent_since = self._silent_since or now
        if self._silent_since is not None and now - self._silent_since > HEAD_SECONDS:
            raise EngineLost(
                f"the head of the Ray cluster ({inert(self.address)}) has not answered for "
                f"{HEAD_SECONDS:.0f} seconds. Start a new head and nodes if it has ended."
            )
        return not self.is_silent


@dataclass(frozen=True)
class ResourceNeed:
    """The CPU cores, GPUs and memory that one run needs of a node."""

    cpus: int  # CPU cores, and threads of its processes.
    gpus: int = 0  # GPUs.
    memory: int = 0  # Memory in bytes; 0 if it is unknown.

    def fits(self, resources: Mapping[str, float]) -> bool:
        """Return whether a node with these resources can train a run."""
        return (
            resources.get("CPU", 0) >= self.cpus
            and resources.get("GPU", 0) >= self.gpus
            and resources.get("memory", 0) >= self.memory
        )

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPU", *([f"{self.gpus} GPU"] if self.gpus else [])]
        return ", ".join(
            [*parts, *([f"{byte_size(self.memory)} of memory"] if self.memory else [])]
        )


@dataclass
class Nodes:
    """The nodes of a cluster, each with the facts of its canary."""

    need: ResourceNeed  # What one run needs.
    head: HeadMonitor  # Head of the cluster.
    # Facts that nodes must have, by kind of device.
    reference: dict[str, NodeFacts] = field(default_factory=dict)
    _facts: dict[str, NodeFacts] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _left_out: dict[str, str] = field(default_factory=dict)
    _kinds: dict[Hashable, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def alive(self) -> list[str]:
        """Return the ids of the nodes that could train a run, and were not left out."""
        import ray

        found = [each for each in ray.nodes() if each["Alive"]]
        hosts = Counter(_host(each) for each in found)
        for each in found:
            host, id_ = _host(each), str(each["NodeID"])
            self._names[id_] = host if hosts[host] == 1 else f"{host}-{id_[:6]}"
        fitting = [str(each["NodeID"]) for each in found if self.need.fits(each["Resources"])]
        return [id_ for id_ in fitting if id_ not in self._left_out]

    def is_alive(self, id_: str) -> bool:
        """Return whether the head counts on a node; it does not once the node stops answering."""
        import ray

        return any(each["NodeID"] == id_ and each["Alive"] for each in ray.nodes())

    def name(self, id_: str) -> str:
        """Return the name of a node for readers."""
        return self._names.get(id_, id_[:6])

    def set_kind(self, group: Hashable, kind: str) -> None:
        """Let the programs of a group run on this kind of device if there is one."""
        self._kinds.setdefault(group, kind)

    def for_group(
        self,
        group: Hashable,
        measure: Callable[[Sequence[str]], Mapping[str, NodeFacts | InputError]],
        watch: Callable[[], None],
    ) -> tuple[str, ...]:
        """Return the ids of the nodes on which a program of a group may run now.

        Nodes that have joined since the last call are measured first. The first program of a group
        chooses its kind of device.

        Args:
            group: Group of the program; None for any kind.
            measure: Runs the canary on nodes, and returns their facts or why they have none.
            watch: Callback, called about twice a second while another thread measures.

        Raises:
            InputError: No node can train a run, or each refuses its input.
        """
        while not self._lock.acquire(timeout=0.5):
            watch()
        try:
            self.head.wait(watch)
            alive = self.alive()
            new = [id_ for id_ in alive if id_ not in self._facts]
            if new:
                self._admit(measure(new))
                alive = [id_ for id_ in alive if id_ in self._facts]
            if not alive:
                raise self.nothing_left()
            return tuple(sorted(self._of_kind(alive, group)))
        finally:
            self._lock.release()

    def leave_out(self, id_: str, reason: str) -> None:
        """Use a node no longer, and print why."""
        if id_ not in self._left_out:
            self._left_out[id_] = reason
            self._facts.pop(id_, None)
            print_line(labelled("left out", f"node {inert(self.name(id_))}: {inert(reason)}"))

    def facts(self, id_: str) -> NodeFacts | None:
        return self._facts.get(id_)

    def _admit(self, measured: Mapping[str, NodeFacts | InputError]) -> None:
        """Leave out the nodes that differ from the reference, or else from most others."""
        good: dict[str, NodeFacts] = {}
        errors: dict[str, InputError] = {}
        for id_, found in measured.items():
            if isinstance(found, InputError):
                errors[id_] = found
            else:
                good[id_] = found
        if errors and not good and not self._facts and len({str(e) for e in errors.values()}) == 1:
            raise next(iter(errors.values()))
        for id_, error in errors.items():
            self.leave_out(id_, f"its first steps failed: {error}")
        usual = _most_common(list(good.values()))
        for id_, found in sorted(good.items(), key=lambda item: self.name(item[0])):
            expected = self.reference.get(found.kind)
            expected = expected or next(iter(self.reference.values()), usual)
            if (difference := expected.differences(found)) is not None:
                self.leave_out(id_, f"it differs from other nodes in {difference}")
                continue
            self._facts[id_] = found
            if found.kind not in self.reference:
                same_kind = [each for each in good.values() if each.kind == found.kind]
                self.reference[found.kind] = _most_common(same_kind)
                if (difference := self.reference[found.kind].differences(found)) is not None:
                    self.leave_out(id_, f"it differs from other nodes in {difference}")

    def _of_kind(self, alive: Sequence[str], group: Hashable) -> list[str]:
        by_kind: dict[str, list[str]] = {}
        for id_ in alive:
            by_kind.setdefault(self._facts[id_].kind, []).append(id_)
        if group is None or (len(by_kind) == 1 and group not in self._kinds):
            if group is not None:
                self._kinds[group] = next(iter(by_kind))
            return list(alive)
        if group not in self._kinds:
            chosen = Counter(self._kinds.values())
            self._kinds[group] = min(by_kind, key=lambda k: (chosen[k] / len(by_kind[k]), k))
        kind = self._kinds[group]
        if kind not in by_kind:  # the analysis stamps runs of one seed on several kinds
            print_line(labelled("note", f"no node with {inert(kind)} is left for seed {group}"))
            return list(alive)
        return by_kind[kind]

    def nothing_left(self) -> InputError:
        """Return the error that no node can be used, with all nodes."""
        import ray

        shown = [
            f"{self.name(str(each['NodeID']))} ({', '.join(_resources(each['Resources']))})"
            for each in ray.nodes()
            if each["Alive"]
        ]
        left_out = [f"{self.name(id_)} ({reason})" for id_, reason in self._left_out.items()]
        left = f" Left out: {'; '.join(left_out)}." if left_out else ""
        return InputError(
            inert(
                f"--engine ray: no node has what a run needs ({self.need}). Nodes of the "
                f"cluster: {'; '.join(shown) or 'none'}.{left} Add a node, then repeat the command."
            )
        )


def connect() -> HeadMonitor:
    """Connect this process to the Ray cluster of `RAY_ADDRESS`, or to the one on this machine.

    Returns:
        The head of the cluster.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "--engine ray: Ray is not installed. Run pip install 'ampft[ray]' here and on each "
            "node."
        ) from error
    address = os.environ.get(ADDRESS, "auto")
    try:
        if not ray.is_initialized():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, namespace="ampft")
        return HeadMonitor(ray.get_runtime_context().gcs_address)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"--engine ray: no Ray cluster at {ADDRESS}={inert(address)} ({inert(reason)}). Start "
            "one with ray start --head, or give its address; on one machine, --jobs needs no Ray."
        ) from error


def forwarded_environment() -> dict[str, str]:
    """Return the environment variables that programs on nodes get from this process.

    They change numbers or are needed to reach the network; all others come from the node.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}


def default_cpu_count(gpus: int) -> int:
    """Return the CPU cores, and threads, of a program that uses so many GPUs."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    if own.isdigit() and int(own):
        return int(own)
    return 1 if gpus else usable_cores()


def has_gpus() -> bool:
    """Return whether a node of the cluster has a GPU."""
    import ray

    return bool(ray.cluster_resources().get("GPU"))


def _host(node: Mapping[str, Any]) -> str:
    """Return the name that a node was given, or the name of its machine."""
    given = str(node.get("NodeName") or "")
    return given if given and given != node["NodeManagerAddress"] else node["NodeManagerHostname"]


def _resources(resources: Mapping[str, float]) -> list[str]:
    shown = [f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name in resources]
    return [*shown, f"{byte_size(int(resources.get('memory', 0)))} of memory"]


def _most_common(facts: Sequence[NodeFacts]) -> NodeFacts:
    """Return the facts that most nodes share; of as many, the first."""
    return max(facts, key=lambda one: sum(one.differences(other) is None for other in facts))
