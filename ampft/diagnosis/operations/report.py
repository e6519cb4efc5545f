"""What autocast does on this device and in a model: the result of `ampft ops`, and its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from textwrap import wrap

import torch

from ampft.arguments import ClassifyArguments
from ampft.diagnosis.operations.documented import (
    UnlistedOperation,
    documented_policies,
    unlisted_operations,
)
from ampft.diagnosis.operations.probe import (
    FLOAT32,
    LOWER,
    POLICIES,
    REFUSED,
    WIDEST,
    AutocastOperation,
    autocast_operations,
)
from ampft.precision.accelerator import numerics, separate_accelerators, training_device
from ampft.precision.resolve import resolve
from ampft.text.escaping import inert
from ampft.text.numbers import counted
from ampft.text.tables import Table, terminal_table
from ampft.text.terminal import WIDTH, labelled

TITLES = {
    LOWER: "cast to 16 bits",
    FLOAT32: "cast to float32",
    WIDEST: "cast to the widest dtype among the inputs",
    REFUSED: "refused",
}


@dataclass(frozen=True)
class OperationsReport:
    """What autocast does in a mode on this device.

    Attributes:
        mode: Precision.
        execution: `native` or `emulated`.
        device: Device type.
        table: Device whose documented lists are compared; `cuda` if binary16 is emulated.
        torch: Version of torch.
        operations: Operations with an autocast kernel, found by probing.
        undocumented: Operations that PyTorch documents nowhere or under another policy.
        not_found: Documented operations that have another policy or no autocast kernel.
        model: Name of the model; None if none was examined.
        unlisted: Its operations that are on no list.
    """

    mode: str
    execution: str
    device: str
    table: str
    torch: str
    operations: tuple[AutocastOperation, ...]
    undocumented: tuple[str, ...]
    not_found: tuple[str, ...]
    model: str | None = None
    unlisted: tuple[UnlistedOperation, ...] = ()


def examine(mode: str, classify: ClassifyArguments | None, *, cpu: bool) -> OperationsReport:
    """Return what autocast does in a mode on this device.

    Args:
        mode: One of `ampft.MODES`.
        classify: Settings of a run whose model is examined; None examines none.
        cpu: Whether to use the CPU even if there is an accelerator.

    Raises:
        InputError: The mode has no autocast on this device, or the model cannot be loaded.
    """
    precision = resolve(mode, training_device(cpu=cpu))
    with numerics(precision):
        operations = autocast_operations(precision)
    table = "cuda" if precision.emulates_binary16 else precision.device_type
    documented = documented_policies(table)
    found = {(each.base_name, each.policy) for each in operations}
    other = {name for name, p in found if p != REFUSED and documented.get(name) != p}
    report = OperationsReport(
        mode=mode,
        execution=precision.execution,
        device=precision.device_type,
        table=table,
        torch=torch.__version__,
        operations=operations,
        undocumented=tuple(sorted(other)),
        not_found=tuple(sorted(n for n, p in documented.items() if (n, p) not in found)),
    )
    if classify is None:
        return report
    from ampft.runs.prepare import load_task, prepare_mode, start_clock

    started = start_clock()
    classify = replace(classify, output_dir=None)
    task = load_task(classify)
    with separate_accelerators(), numerics(precision):
        prepared = prepare_mode(classify, precision, task, started=started)
        step_batch = next(iter(prepared.step_batches.epoch(0)))
        prepared.model.train()
        unlisted = unlisted_operations(
            lambda: task.loss(prepared.model, step_batch.micro_batches[0]),
            {name for name, _ in found},
        )
    return replace(report, model=prepared.loaded.name, unlisted=unlisted)


def format_operations(report: OperationsReport) -> str:
    """Return the report as text, at most `WIDTH` columns wide."""
    emulated = ", as CUDA's autocast" * (report.execution == "emulated")
    parts = [
        "\n".join(
            [
                labelled("autocast", f"{report.mode} on {report.device}, torch {report.torch}"),
                labelled("execution", f"{report.execution}{emulated}"),
                labelled("known", counted(len(report.operations), "operation")),
            ]
        )
    ]
    for policy in POLICIES:
        names = [each.name for each in report.operations if each.policy == policy]
        if names:
            parts.append(_listed(f"{TITLES[policy]} ({len(names)})", names))
    documentation = f"PyTorch's documentation for {report.table}"
    parts += [_listed(f"not in {documentation}, or differently", report.undocumented)]
    if report.not_found:
        parts += [_listed(f"in {documentation}, but not found", report.not_found)]
    if report.model is not None:
        parts.append(_unlisted(report))
    return "\n\n".join(parts)


def _listed(title: str, names: Iterable[str]) -> str:
    text = ", ".join(names) or "none"
    return "\n".join([title, *(f"  {line}" for line in wrap(text, WIDTH - 2))])


def _unlisted(report: OperationsReport) -> str:
    """Return the operations of the model that are on no list, as a table."""
    assert report.model is not None
    title = (
        f"{inert(report.model)}: operations on no list, which run in the dtype that they receive"
    )
    rows = [(each.name, each.dtypes, str(each.calls)) for each in report.unlisted]
    table = Table(header=("operation", "inputs", "calls per forward pass"), rows=rows, left=2)
    return f"{title}\n\n{terminal_table(table, rule=True)}" if rows else f"{title}: none"
