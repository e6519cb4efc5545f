"""The setup and environment that the runs of a comparison share, for readers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ampft.runs.record import RunRecord
from ampft.text.numbers import byte_size, counted

# Name in the report -> name of the argument.
SETTINGS = {
    "optimizer": "optim",
    "learning rate": "learning_rate",
    "learning rate decay per layer": "layer_decay",
    "schedule": "lr_scheduler_type",
    "epochs": "num_train_epochs",
    "weight decay": "weight_decay",
    "gradient clipping norm": "max_grad_norm",
    "maximum sequence length": "max_seq_length",
}
PACKAGES = ("ampft", "torch", "transformers", "accelerate", "numpy", "scikit-learn")


def title(records: Sequence[RunRecord]) -> str:
    """Return the title, such as "all-MiniLM-L6-v2 on stdlib (summary)".

    Args:
        records: One record per arm.
    """
    models = dict.fromkeys(record.model.name for record in records)
    data = dict.fromkeys(record.data.name for record in records)
    model = next(iter(models)) if len(models) == 1 else f"{len(models)} models"
    return f"{model} on {' and '.join(data)}"


def setup(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return what all arms trained and how, in display order.

    Args:
        records: One record per arm.
    """
    first, *others = map(_setup, records)
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _setup(record: RunRecord) -> dict[str, str]:
    sizes = ", ".join(f"{name} {count:,}" for name, count in record.data.examples.items())
    steps = record.steps
    batch = "unknown" if steps.effective_batch_size is None else f"{steps.effective_batch_size:,}"
    facts = {
        "model": f"{record.model.name}, {record.model.architecture}, "
        f"{record.model.parameters / 1e6:.1f} M parameters",
        "data": f"{record.data.name}: {sizes}; {counted(len(record.label_names), 'class')}",
        "effective batch": batch,
        "optimizer steps": f"{steps.total:,}",
    }
    for title_, name in SETTINGS.items():
        value = record.arguments.get(name)
        if value is not None:
            facts[title_] = f"{value:g}" if isinstance(value, float) else str(value)
    return facts


def dates(records: Sequence[RunRecord]) -> tuple[str, str]:
    """Return the days on which the first and the last run began, such as "2026-11-22"."""
    days = sorted(record.started.partition("T")[0] for record in records)
    return days[0], days[-1]


def command(record: RunRecord) -> str:
    """Return the command of a run, with files and folders only by their names."""
    words = [re.sub(r"[^=\s]*/(?=.)", "", word) for word in record.command]
    program = ["ampft"] if words[:1] == ["__main__.py"] else words[:1]
    return shlex.join([*program, *words[1:]])


def environment(record: RunRecord) -> dict[str, str]:
    """Return hardware and versions, in display order."""
    topology, hardware = record.topology, record.hardware
    facts = {
        "device": f"{topology.device}, {counted(topology.num_processes, 'process')}, "
        f"{counted(topology.cpu_threads, 'CPU thread')}"
        + " each" * (topology.num_processes > 1)
        + ", weights sharded (FSDP2)" * topology.sharded
        + (f", compiled by {topology.compiled}" if topology.compiled else ""),
        **_machine(hardware),
        "Python": record.versions.get("python", "unknown"),
    }
    return facts | {name: record.versions[name] for name in PACKAGES if name in record.versions}


def _machine(hardware: Mapping[str, Any]) -> dict[str, str]:
    gpus = ", ".join(str(gpu) for gpu in hardware.get("gpus") or [])
    memory = hardware.get("memory_bytes")
    facts = {
        "GPU": gpus,
        "CPU": str(hardware.get("cpu") or ""),
        "cores": str(hardware.get("usable_cores") or ""),
        "memory": byte_size(memory) if isinstance(memory, int) else "",
        "system": str(hardware.get("system") or ""),
    }
    return {name: value for name, value in facts.items() if value}
