"""Launch runs on the nodes of a Ray cluster; what they write comes back to this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import later_wins
from ampft.comparison.execution.comparison_folder import planned_ending
from ampft.comparison.execution.launch import (
    POLL_SECONDS,
    EndedProgram,
    Launcher,
    NoResult,
    Program,
    ResourceSlot,
    call_in_subprocess,
    locked_log,
)
from ampft.comparison.execution.plan import Plan
from ampft.comparison.settings import CompareCommand
from ampft.errors import InputError
from ampft.files import hashed_text, read_hashed, write_text
from ampft.lab.cluster.canary import NodeFacts, recorded_device_kind
from ampft.lab.cluster.node_worker import (
    CHECKPOINT,
    HISTORY,
    LOG,
    PART,
    RESULT,
    SILENT_SECONDS,
    STARTED,
    ProgramMessage,
    ProgramRequest,
    run_program,
)
from ampft.lab.cluster.nodes import (
    HeadMonitor,
    Nodes,
    ResourceNeed,
    connect,
    default_cpu_count,
    forwarded_environment,
    has_gpus,
)
from ampft.lab.cluster.parcels import DamagedParcel, Receiver, pack_folder, put_in_place
from ampft.ownership import private_file, remove_tree, temporary_folder
from ampft.precision.modes import BASELINE
from ampft.processes import TERMINATION_SECONDS
from ampft.runs.record import read_record
from ampft.text.escaping import inert
from ampft.text.json_io import from_json
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line

CANARY_MODULE = "ampft.lab.cluster.canary"
CANARY_NAME = "canary.json"
ATTEMPTS = 5  # of one run, whose node or worker was lost
REFRESH_SECONDS = 5.0  # between looks at the nodes while a run waits for one
UNCONSUMED = 8  # messages of a run that wait for this machine
NODE_ID = "ray.io/node-id"  # label that Ray gives every node


class _Lost(Exception):
    """The node or the worker of a program was lost."""


class _OtherNodes(Exception):
    """The nodes on which a waiting program may run have changed."""


@dataclass
class Cluster:
    """A Ray cluster, with what each program of one command is told."""

    nodes: Nodes  # Its nodes.
    config_file: str | None  # Configuration file of Accelerate.
    canary_argv: tuple[str, ...]  # Arguments of the baseline's first run.
    store: Path | None = None  # File that keeps the reference of the nodes; None for none.

    @property
    def need(self) -> ResourceNeed:
        """What one run needs of a node."""
        return self.nodes.need

    def keep_reference(self, store: Path) -> None:
        """Read the reference of the nodes from a file, and write it there from now on."""
        self.store = store
        try:
            for kind, values in read_hashed(store)[0].items():
                self.nodes.reference[kind] = from_json(NodeFacts, values, CANARY_NAME)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise InputError(
                f"{store}: the reference of the nodes is damaged ({error}). Choose another "
                "--output_dir, or delete the file together with the runs."
            ) from error
        self._write_reference()

    def nodes_for(
        self, program: Program, launcher: RayLauncher, watch: Callable[[], None]
    ) -> tuple[str, ...]:
        """Return the nodes on which a program may run, after a canary on those that are new."""
        known = len(self.nodes.reference)
        found = self.nodes.for_group(
            program.group, lambda ids: self._measure(ids, launcher, watch), watch
        )
        if len(self.nodes.reference) != known:
            self._write_reference()
        return found

    def _write_reference(self) -> None:
        if self.store is not None and self.nodes.reference:
            write_text(self.store, hashed_text(self.nodes.reference))

    def _measure(
        self, ids: Sequence[str], launcher: RayLauncher, watch: Callable[[], None]
    ) -> Mapping[str, NodeFacts | InputError]:
        with ThreadPoolExecutor(len(ids)) as pool:
            work = {
                id_: pool.submit(_canary, id_, launcher, self.canary_argv, watch) for id_ in ids
            }
            return {id_: each.result() for id_, each in work.items()}


def _canary(
    id_: str, launcher: RayLauncher, argv: Sequence[str], watch: Callable[[], None]
) -> NodeFacts | InputError:
    losses: list[str] = []

    def start(program: Program) -> None:
        for _ in range(2):
            try:
                with locked_log(program.log) as output:
                    launcher.attempt(program, (id_,), output, watch)
                return
            except _Lost as loss:
                losses.append(str(loss))

    # The launcher names files after the folder, for all nodes at once.
    try:
        values = call_in_subprocess(
            CANARY_MODULE, f"canary-{id_}", {"classify_argv": list(argv)}, start
        )
    except _OtherNodes:
        return InputError("the node is gone")
    except NoResult as error:
        return InputError([*losses, str(error)][0])
    except InputError as error:
        return error
    return from_json(NodeFacts, values, "canary")


@dataclass
class RayLauncher:
    """Launches one program at a time on a node of a Ray cluster; see `Launcher`.

    The program reads and writes a folder of the node. Its folder here changes only when a whole
    checkpoint or the whole result has arrived. A program whose node or worker is lost continues
    from its checkpoint, on whichever node is free.
    """

    slot: ResourceSlot  # Its position among the launchers.
    cluster: Cluster  # The cluster.
    arrivals: Path  # Folder for what is arriving, on the file system of the programs' folders.
    _histories: dict[Path, Path] = field(default_factory=dict)
    _task: Any = None

    def run(self, program: Program, watch: Callable[[], None]) -> EndedProgram:
        """Run a program to its end, whatever its exit code; see `Launcher`."""
        started, node = time.perf_counter(), None
        with locked_log(program.log) as output:
            for number in range(1, ATTEMPTS + 1):
                try:
                    node = self._attempt_anywhere(program, output, watch)
                    break
                except _Lost as loss:
                    text = f"attempt {number} of {ATTEMPTS} was lost: {inert(str(loss))}\n"
                    output.write(text.encode())
                    output.flush()
        name = None if node is None else self.cluster.nodes.name(node)
        return EndedProgram(time.perf_counter() - started, name)

    def history(self, program: Program) -> Path:
        """Return a copy of the history that grows as messages arrive."""
        return self._histories.setdefault(program.folder, self._file("history.jsonl"))

    def kill(self) -> None:
        """Kill the program, and its worker, without waiting for them."""
        import ray

        if self._task is not None:
            ray.cancel(self._task, force=True)

    def close(self) -> None:
        """Disconnect from the cluster if this is the first launcher."""
        import ray

        if self.slot.number == 0:
            ray.shutdown()

    def attempt(
        self,
        program: Program,
        nodes: Sequence[str],
        output: BinaryIO,
        watch: Callable[[], None],
        allowed: Callable[[], Sequence[str]] | None = None,
    ) -> str:
        """Run a program on one of some nodes, and return the node.

        Args:
            watch: Callback, called about twice a second.
            allowed: Returns the nodes on which it may run; None for those that are alive.

        Raises:
            _Lost: The node or the worker was lost.
            _OtherNodes: `allowed` has changed before the program began.
        """
        import ray

        task: Any = ray.remote(run_program).options(
            num_cpus=self.cluster.need.cpus,
            num_gpus=self.cluster.need.gpus,
            memory=self.cluster.need.memory or None,
            max_retries=0,
            num_returns="streaming",
            label_selector={NODE_ID: f"in({','.join(nodes)})"},
            _generator_backpressure_num_objects=UNCONSUMED,
        )
        receiver = Receiver(self._file(f"parcel-{program.folder.name}"))
        stream = None
        try:
            stream = self._task = task.remote(self._request(program))
            waiting = _Waiting(nodes, allowed or self.cluster.nodes.alive, self.cluster.nodes)
            for message in stream_messages(stream, watch, self.cluster.nodes.head, waiting.check):
                self._take(message, program, receiver, output)
                waiting.heard = time.monotonic()
                if message.kind == STARTED:
                    waiting.node = message.text
        except (ray.exceptions.RayError, DamagedParcel) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise _Lost(f"{type(error).__name__}: {lines[0] if lines else ''}") from error
        except (_Lost, _OtherNodes):
            ray.cancel(stream, force=True)  # its node, if it comes back, ends the run
            raise
        except BaseException:
            if stream is not None and not self.cluster.nodes.head.is_silent:
                _cancel(stream)  # without a head, nodes end their runs after a minute
            raise
        finally:
            self._task = None
            receiver.clear()
        return waiting.node

    def _attempt_anywhere(
        self, program: Program, output: BinaryIO, watch: Callable[[], None]
    ) -> str:
        def allowed() -> tuple[str, ...]:
            return self.cluster.nodes_for(program, self, watch)

        while True:
            with contextlib.suppress(_OtherNodes):
                node = self.attempt(program, allowed(), output, watch, allowed)
                self._check_result(program, node)
                return node

    def _check_result(self, program: Program, node: str) -> None:
        """Check that a run computed with what its node had when it was measured.

        Raises:
            _Lost: It did not, so its result was removed, and the node is used no longer.
        """
        facts = self.cluster.nodes.facts(node)
        try:
            record = read_record(program.folder)
        except InputError:
            return
        if facts is None:
            return
        expected = {**facts.files, **{f"version of {k}": v for k, v in facts.versions.items()}}
        found = {**record.data.files, **{f"version of {k}": v for k, v in record.versions.items()}}
        expected["CPU threads"], found["CPU threads"] = (
            str(facts.cpu_threads),
            str(record.topology.cpu_threads),
        )
        changed = [name for name in expected if name in found and found[name] != expected[name]]
        if changed:
            remove_tree(program.folder)
            reason = f"{', '.join(changed)} changed after its first steps"
            self.cluster.nodes.leave_out(node, reason)
            raise _Lost(reason)

    def _request(self, program: Program) -> ProgramRequest:
        import ray

        need, sha256 = self.cluster.need, None
        parts: tuple[Any, ...] = ()
        if program.folder.exists():
            sha256, packed = pack_folder(program.folder, self._file(f"sent-{program.folder.name}"))
            parts = tuple(ray.put(part) for part in packed)
        return ProgramRequest(
            replace(program, group=None),
            str(Path.cwd()),
            self.cluster.config_file,
            need.cpus,
            need.gpus,
            forwarded_environment(),
            sha256,
            parts,
        )

    def _take(
        self, message: ProgramMessage, program: Program, receiver: Receiver, output: BinaryIO
    ) -> None:
        if message.kind == LOG:
            output.write(message.content)
            output.flush()
        elif message.kind == HISTORY:
            with self.history(program).open("ab") as file:
                file.write(message.content)
        elif message.kind == PART:
            receiver.add(message.content)
        elif message.kind in (CHECKPOINT, RESULT):
            arrived = self._file(f"arrived-{program.folder.name}")
            receiver.unpack(message.text, arrived)
            put_in_place(arrived, program.folder)

    def _file(self, name: str) -> Path:
        self.arrivals.mkdir(exist_ok=True)
        return self.arrivals / f"{self.slot.number}-{name}"


@dataclass
class _Waiting:
    """What a program waits for: a free node while the nodes stay the same, then its messages."""

    ids: Sequence[str]
    allowed: Callable[[], Sequence[str]]
    nodes: Nodes
    node: str = ""
    heard: float = 0.0  # Time of its last message.
    _checked: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Check now and then that the nodes on which the program may start, or its node, are left.

        Ray itself waits seven minutes for a worker whose connection is open but that does not
        answer (`RAY_grpc_client_keepalive_time_ms`), although the head gives up its node earlier.

        Raises:
            _OtherNodes: The nodes have changed before the program began.
            _Lost: The head has given up its node, or its worker is stopped or hangs.
        """
        if time.monotonic() - self._checked < REFRESH_SECONDS:
            return
        self._checked = time.monotonic()
        if self.node and not self.nodes.is_alive(self.node):
            raise _Lost("its node does not answer")
        if self.node and time.monotonic() - self.heard > SILENT_SECONDS:
            raise _Lost(f"its worker gave no sign of life for {SILENT_SECONDS:.0f} seconds")
        if not self.node and not set(self.ids) <= set(self.allowed()):
            raise _OtherNodes


def stream_messages(
    stream: Any,
    watch: Callable[[], None],
    head: HeadMonitor,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Any]:
    """Yield what a task or an actor of Ray yields, while the head of the cluster answers.

    Args:
        watch: Callback, called about twice a second.
        check: Callback, called while the head answers and nothing arrives.

    Raises:
        EngineLost: The head does not answer.
    """
    import ray

    while True:
        ready, _ = ray.wait([stream], timeout=POLL_SECONDS)
        watch()
        answers = head.answers()
        if not ready:
            if answers:
                check()
            continue
        try:
            yield ray.get(next(stream))
        except StopIteration:
            return


def _cancel(stream: Any) -> None:
    """Let a program end as after SIGTERM, and kill it if that takes too long."""
    import ray

    deadline = time.monotonic() + TERMINATION_SECONDS
    with contextlib.suppress(ray.exceptions.RayError, StopIteration):
        ray.cancel(stream, force=False)
        while time.monotonic() < deadline:
            ready, _ = ray.wait([stream], timeout=POLL_SECONDS)
            if ready:
                ray.get(next(stream))
        ray.cancel(stream, force=True)


_clusters: list[tuple[CompareCommand, Cluster]] = []  # of this process: one for its command


def _cluster_of(command: CompareCommand, memory: int = 0) -> Cluster:
    """Return the cluster for a command, whose nodes are measured once.

    Raises:
        InputError: No cluster was found.
    """
    head = connect()
    if not _clusters or _clusters[0][0] is not command:
        args, design = command.classify, command.design
        gpus = design.gpus_per_run if has_gpus() and not args.use_cpu else 0
        first = design.arm_settings[0].flags if design.arm_settings else ()
        flags = first or ("--mixed_precision", BASELINE)
        own = (flags, ("--seed", str(design.first_seed)))
        argv = later_wins(ClassifyArguments, command.classify_argv, *own)
        nodes = Nodes(ResourceNeed(args.cpu_threads or default_cpu_count(gpus), gpus), head)
        _clusters[:] = [(command, Cluster(nodes, design.config_file, tuple(argv)))]
    cluster = _clusters[0][1]
    cluster.nodes.need = replace(cluster.need, memory=memory)
    return cluster


def ray_launcher_of_trials(command: CompareCommand) -> RayLauncher:
    """Return a launcher for the trial of a command; it stays connected.

    Raises:
        InputError: No cluster was found.
    """
    return RayLauncher(ResourceSlot(), _cluster_of(command), temporary_folder("arrivals"))


def ray_launchers(command: CompareCommand, plan: Plan, folder: Path) -> tuple[Launcher, ...]:
    """Return a launcher for each run that trains at the same time.

    Args:
        folder: Folder of the comparison, locked by this process.

    Raises:
        InputError: No cluster was found.
    """
    estimates = [plan.estimate, *plan.arm_estimates.values()]
    cluster = _cluster_of(command, max(each.peak_bytes for each in estimates))
    cluster.keep_reference(folder / CANARY_NAME)
    for run in plan.all_runs():
        record = planned_ending(folder, run).record
        if record is not None:
            hardware = record.hardware
            cluster.nodes.set_kind(
                run.seed, recorded_device_kind(hardware.get("cpu"), hardware.get("gpus"))
            )
    print_line(labelled("cluster", f"{counted(len(cluster.nodes.alive()), 'node')} of Ray"))
    arrivals = private_file(folder, "arrivals")
    return tuple(
        RayLauncher(ResourceSlot(k), cluster, arrivals) for k in range(command.design.jobs)
    )
