"""Where the runs of a comparison train: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ampft.arguments.compare import RAY, CompareCommand
from ampft.comparison.execution.launch import launch_command, run_command
from ampft.comparison.execution.launchers import Launcher, LocalLauncher, Program
from ampft.comparison.execution.plan import Plan
from ampft.comparison.execution.slots import Slot, check_memory, command_slots


def make_launchers(command: CompareCommand, plan: Plan, folder: Path) -> tuple[Launcher, ...]:
    """Return a launcher for each run that trains at the same time.

    Args:
        command: Command of the user.
        plan: Plan of the comparison.
        folder: Folder of the comparison, locked by this process.

    Raises:
        InputError: There are too few GPUs, cores or nodes.
    """
    if command.design.engine == RAY:
        from ampft.comparison.execution.cluster.launcher import ray_launchers

        return ray_launchers(command, plan, folder)
    slots = command_slots(command)
    return tuple(LocalLauncher(slot, command.design.config_file) for slot in slots)


def trial_starter(command: CompareCommand) -> Callable[[Program], object]:
    """Return a function that runs a program to its end, where the runs of a command will train.

    Raises:
        InputError: There are too few GPUs, cores or nodes.
    """
    if command.design.engine == RAY:
        from ampft.comparison.execution.cluster.launcher import ray_launcher_of_trials

        launcher = ray_launcher_of_trials(command)
        return lambda program: launcher.run(program, lambda: None)
    return start_in(command_slots(command)[0], command.design.config_file)


def start_in(slot: Slot, config_file: str | None) -> Callable[[Program], object]:
    """Return a function that runs a program to its end in a slot of this machine."""

    def start(program: Program) -> object:
        words = launch_command(config_file, *program.argv, launcher_flags=slot.launcher_flags)
        return run_command(words, program.log, slot)

    return start


def check_memory_of_jobs(command: CompareCommand, peak_bytes: int) -> None:
    """Check that the runs that train at the same time fit into memory, as `check_memory` does.

    On a cluster, each run reserves its memory on its node.
    """
    if command.design.engine != RAY:
        check_memory(command.design.jobs, peak_bytes)
