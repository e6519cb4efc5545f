"""A Ray cluster on this machine: each node is a tree of processes in a network of its own.

The head is in the network namespace of the caller, which must be a new one. Each other node has a
namespace of its own, joined to it by a bridge, so that the network to it can be cut.
"""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import psutil

_SETTINGS = {
    "RAY_worker_niceness": "0",  # by default, other programs of this machine go first
    # A node that does not answer is given up after about ten seconds.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
_LIGHT = ("--disable-usage-stats", "--include-log-monitor=false")
INSIDE = "AMPFT_INSIDE_NAMESPACE"
# Without a network, each look-up of this machine's name takes seconds.
_LOOPBACK = """
ip link set lo up
names=$(mktemp); servers=$(mktemp); echo "127.0.0.1 localhost $(hostname)" > "$names"
mount --bind "$names" /etc/hosts; mount --bind "$servers" /etc/resolv.conf; rm "$names" "$servers"
exec "$@"
"""
NETWORK, BRIDGE = "10.77.0", "br0"
HEAD_ADDRESS = f"{NETWORK}.1"
# Waits for the cable that the caller plugs in, and starts the node.
_IN_NAMESPACE = """
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip addr add "$1/24" dev eth0 && ip link set eth0 up
[ -z "$2" ] || mount --bind "$2" "$3"
shift 3; exec "$@"
"""
OF_WORKER = "AMPFT_WORKER"  # environment variable of every process that a worker starts
STORE_BYTES = 80 << 20
MARK = "AMPFT_LOOPBACK_CLUSTER"  # environment variable of every process of a cluster


class NamespaceCluster:
    """A head without CPUs, and nodes with one CPU each; a context manager that ends all of it."""

    def __init__(self, *nodes: str, store_bytes: int = STORE_BYTES) -> None:
        """Start a head, and a node of each name."""
        self.mark = uuid.uuid4().hex
        self.address = ""
        self._last_host = 1
        self._store_bytes = store_bytes
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._trees: dict[str, subprocess.Popen[bytes]] = {}
        self._names = nodes

    def __enter__(self) -> NamespaceCluster:
        try:
            _ip("link", "add", BRIDGE, "type", "bridge")
            _ip("addr", "add", f"{HEAD_ADDRESS}/24", "dev", BRIDGE)
            _ip("link", "set", BRIDGE, "up")
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
        """Start a head, each time at another port."""
        port = _free_port()
        self.address = f"{HEAD_ADDRESS}:{port}"
        folder = tempfile.mkdtemp(dir=self._folder)
        words = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        self._start("head", [*words, f"--temp-dir={folder}"], HEAD_ADDRESS)
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
        self._add(name, instead, environment)
        self.wait_for(before + 1)  # nodes that start at the same time take each other's sockets

    def cut(self, name: str) -> None:
        """Cut the network between a node and the others."""
        _ip("link", "set", name, "down")

    def join(self, name: str) -> None:
        """Restore the network of a node."""
        _ip("link", "set", name, "up")

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

    def workers(self, task: str = "run_program") -> list[psutil.Process]:
        """Return the processes in which a function or an actor of this name runs now."""
        trees = [tree for tree in self._trees.values() if tree.poll() is None]
        below = [p for tree in trees for p in psutil.Process(tree.pid).children(recursive=True)]
        return [each for each in below if _title(each).startswith(f"ray::{task}")]

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
                logs = "".join(path.read_text() for path in self._folder.glob("*.log"))
                raise TimeoutError(f"the nodes did not join\n{logs}")
            time.sleep(0.2)

    def wait_until_gone(self, name: str) -> None:
        """Wait until the head knows that a node is not alive."""
        deadline = time.monotonic() + 180
        while name in alive(self.address):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} stays alive")
            time.sleep(0.2)

    def freeze(self, name: str) -> None:
        """Stop all processes of a node."""
        for process in psutil.Process(self._trees[name].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        """Let all processes go on, as on a node that answers again after a pause."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def of_runs(self) -> list[psutil.Process]:
        """Return the processes that workers have started for runs, except those that guard."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                if OF_WORKER in process.environ():
                    found.append(process)
        return found

    def _add(
        self, name: str, instead: tuple[Path, Path] | None, environment: dict[str, str]
    ) -> None:
        self._last_host += 1
        host = f"{NETWORK}.{self._last_host}"
        mounted = ("", "") if instead is None else tuple(map(str, instead))
        prefix = ["unshare", "--net", "--mount", "sh", "-c", _IN_NAMESPACE, "sh", host, *mounted]
        words = [f"--address={self.address}", "--num-cpus=1"]
        self._start(name, words, host, prefix, **environment)
        tree = self._trees[name].pid
        while Path(f"/proc/{tree}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.02)
        _ip("link", "del", name, check=False)  # of an earlier node, whose processes still live
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(tree))
        _ip("link", "set", name, "master", BRIDGE, "up")

    def _start(
        self, name: str, words: list[str], host: str, prefix: Sequence[str] = (), **environment: str
    ) -> None:
        command = [*prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        common = [f"--node-ip-address={host}", f"--object-store-memory={self._store_bytes}"]
        command += [*words, *common, f"--node-name={name}", *_LIGHT]
        log = (self._folder / f"{name}.log").open("ab")
        self._trees[name] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**_clean_environment(), **_SETTINGS, MARK: self.mark, **environment},
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
        _ip("link", "del", BRIDGE, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def ray_address(cluster: NamespaceCluster) -> Iterator[None]:
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


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=not check)


def in_own_network() -> None:
    """Become this program in a network namespace of its own; return at once in there.

    SIGTERM then ends it as an exception does, with its cluster and its folders.
    """
    if INSIDE not in os.environ:
        own = ["unshare", "--map-root-user", "--net", "--mount", "sh", "-c", _LOOPBACK, "sh"]
        words = [*own, sys.executable, *sys.argv]
        os.execvpe(words[0], words, {**os.environ, INSIDE: "1"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A shell lets programs in its background, and what they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _clean_environment() -> dict[str, str]:
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "OMP_", "ACCELERATE_"))
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HEAD_ADDRESS, 0))
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
