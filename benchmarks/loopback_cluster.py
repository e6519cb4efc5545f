"""A Ray cluster on this machine's loopback address, each node a tree of processes."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psutil

_OWN_PRIORITY = {"RAY_worker_niceness": "0"}  # by default, other programs of this machine go first
LOOPBACK = "127.0.0.1"
OF_WORKER = "AMPFT_WORKER"  # environment variable of every process that a worker starts
STORE_BYTES = 80 << 20
MARK = "AMPFT_LOOPBACK_CLUSTER"  # environment variable of every process of a cluster


class LoopbackCluster:
    """A head without CPUs, and nodes with one CPU each; a context manager that ends all of it."""

    def __init__(self, *nodes: str, store_bytes: int = STORE_BYTES) -> None:
        """Start a head, and a node of each name."""
        self.mark = uuid.uuid4().hex
        self.port = _free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self._store_bytes = store_bytes
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._trees: dict[str, subprocess.Popen[bytes]] = {}
        self._names = nodes

    def __enter__(self) -> LoopbackCluster:
        try:
            self.start_head()
            for name in self._names:
                self.add(name)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    def start_head(self) -> None:
        """Start a head; after `kill("head")`, a new one at another port."""
        if "head" in self._trees:
            self.port = _free_port()
            self.address = f"{LOOPBACK}:{self.port}"
        folder = tempfile.mkdtemp(dir=self._folder)
        words = ["--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false"]
        self._start("head", [*words, f"--temp-dir={folder}"])
        self.wait_for(1)

    def add(
        self, name: str, *, instead: tuple[Path, Path] | None = None, **environment: str
    ) -> None:
        """Start a node.

        Args:
            name: Name of the node.
            instead: A file, and the file in whose place its processes see it.
            environment: Environment variables that its processes see in addition.
        """
        before = len(alive(self.address))
        words = [f"--address={self.address}", "--num-cpus=1"]
        self._start(name, words, instead=instead, **environment)
        self.wait_for(before + 1)  # nodes that start at the same time take each other's ports

    def kill(self, name: str) -> None:
        """Kill all processes of a node at once, but not the runs that it has started."""
        tree = self._trees[name]
        if tree.poll() is None:
            processes = psutil.Process(tree.pid).children(recursive=True)
            ours = [each for each in processes if _is_rays(each)]
            for process in [*ours, psutil.Process(tree.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        tree.wait()

    def workers(self) -> list[psutil.Process]:
        """Return the processes in which tasks of comparisons run now."""
        trees = [tree for tree in self._trees.values() if tree.poll() is None]
        below = [p for tree in trees for p in psutil.Process(tree.pid).children(recursive=True)]
        return [each for each in below if _title(each).startswith("ray::run_program")]

    def processes(self) -> list[psutil.Process]:
        """Return all processes that were started by this cluster, directly or not."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def wait_for(self, count: int) -> None:
        """Wait until the head knows `count` nodes that are alive."""
        deadline = time.monotonic() + 180
        while len(alive(self.address)) < count:
            if time.monotonic() > deadline:
                raise TimeoutError("the nodes did not join")
            time.sleep(0.2)

    def wait_until_gone(self, name: str) -> None:
        """Wait until the head knows that a node is not alive."""
        deadline = time.monotonic() + 180
        while name in alive(self.address):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} stays alive")
            time.sleep(0.2)

    def freeze(self, name: str) -> None:
        """Stop all processes of a node, as if the network to it were cut."""
        for process in psutil.Process(self._trees[name].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def of_runs(self) -> list[psutil.Process]:
        """Return the processes that workers have started for runs, except those that guard."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                if OF_WORKER in process.environ():
                    found.append(process)
        return found

    def _start(
        self,
        name: str,
        words: list[str],
        *,
        instead: tuple[Path, Path] | None = None,
        **environment: str,
    ) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        common = [f"--node-ip-address={LOOPBACK}", f"--object-store-memory={self._store_bytes}"]
        command += [*words, *common, f"--node-name={name}", "--disable-usage-stats"]
        if instead is not None:
            script = 'mount --bind "$1" "$2"; shift 2; exec "$@"'
            own = ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, instead)]
            command = [*own, *command]
        log = (self._folder / f"{name}.log").open("ab")
        self._trees[name] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**_clean_environment(), **_OWN_PRIORITY, MARK: self.mark, **environment},
        )

    def _end(self) -> None:
        for tree in self._trees.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(tree.pid, signal.SIGTERM)
        for tree in self._trees.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                tree.wait(10)
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for tree in self._trees.values():
            tree.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def ray_address(cluster: LoopbackCluster) -> Iterator[None]:
    """Let this process and its children use a cluster."""
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield
    finally:
        if before is None:
            del os.environ["RAY_ADDRESS"]
        else:
            os.environ["RAY_ADDRESS"] = before


def _clean_environment() -> dict[str, str]:
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "OMP_", "ACCELERATE_"))
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return int(free.getsockname()[1])


def alive(address: str) -> list[str]:
    """Return the names of the nodes that are alive; none if the head does not answer."""
    raylet = importlib.import_module("ray._raylet")  # without types
    try:
        nodes = raylet.GcsClient(address=address).get_all_node_info(timeout=5)
    except Exception:  # it has only just started
        return []
    return [each.node_name for each in nodes.values() if each.state == 0]


def _is_rays(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return "ray" in words and "orphans.py" not in words and "ampft" not in process.name()
    return False


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
