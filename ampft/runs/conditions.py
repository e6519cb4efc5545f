"""The conditions of a training: what must not differ when a run continues, and what may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ampft.errors import AlreadyFinished, InputError
from ampft.runs.folder import on_main_process
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.record import RunRecord, read_record
from ampft.runs.redaction import redact_secrets
from ampft.text.json_io import json_values
from ampft.text.tables import Quote, Table, terminal_table

if TYPE_CHECKING:
    from ampft.runs.prepared import Prepared

CONFIGURATION = "configuration"
MICRO_BATCHES = "micro-batches per step and process"
# Settings that do not change the weights or the report, or whose effect is compared by content.
MAY_CHANGE = frozenset(
    {
        *(
            "output_dir",
            "overwrite_output_dir",
            "history_csv",
            "watch",
            "with_tracking",
            "report_to",
        ),
        *("checkpointing_steps", "checkpoint_total_limit", "resume_from_checkpoint"),
        *("async_checkpoints", "allow_topology_change", "max_time", "on_nonfinite"),
        *("push_to_hub", "hub_model_id", "hub_private_repo"),
        *(
            "baseline",
            "evaluate_fp32",
            "fail_on_leak",
            "inspect_data",
            "check_precision",
            "trust_remote_code",
        ),
        *("dataloader_num_workers", "use_cpu", "cpu_threads"),
        *("model_name_or_path", "dataset_name", "train_file", "validation_file", "test_file"),
        *("mixed_precision", "auto_micro_batch", "cuda_graphs"),
        *("per_device_train_batch_size", "gradient_accumulation_steps"),
    }
)
MISSING = "(not set)"
MAX_VALUE_LENGTH = 40


def settings_of(record: RunRecord, steps_per_epoch: int | None = None) -> dict[str, Any]:
    """Return what must be equal, by the names in which a difference is reported.

    Args:
        record: Record of a run, at any time; an earlier version's has less.
        steps_per_epoch: Optimizer steps of an epoch, which a record does not have.
    """
    model, steps = record.model, record.steps
    settings = {
        "precision": record.precision.requested,
        "model": model.architecture,
        "initial weights": model.initial_weights_sha256,
        CONFIGURATION: model.configuration,
        "preprocessing": model.preprocessing,
        "modules in float32": list(record.precision.fp32_modules),
        "classes": list(record.label_names),
        **{f"data of {name}": digest for name, digest in record.data.fingerprints.items()},
        "optimizer steps": steps.total,
        "steps per epoch": steps_per_epoch,
        "effective batch size": steps.effective_batch_size,
    }
    arguments = cast("dict[str, Any]", json_values(redact_secrets(record.arguments)))
    return {
        **{name: value for name, value in settings.items() if value is not None},
        **{f"--{name}": value for name, value in arguments.items() if name not in MAY_CHANGE},
    }


def topology_of(record: RunRecord) -> dict[str, Any]:
    """Return what may differ only with `--allow_topology_change`.

    Args:
        record: Record of a run, with the current number of micro-batches.
    """
    topology = record.topology
    return {
        "processes": topology.num_processes,
        "weights sharded": topology.sharded,
        MICRO_BATCHES: record.steps.micro_batches,
        "device": topology.device,
        "execution": record.precision.resolved["execution"],
        "CPU threads per process": topology.cpu_threads,
        **({} if topology.compiled is None else {"compilation": topology.compiled}),
    }


def environment_of(record: RunRecord) -> dict[str, Any]:
    """Return hardware and versions. If they differ, the last digits of results may differ."""
    packages = {f"version of {name}": version for name, version in record.versions.items()}
    return {"CPU": record.hardware["cpu"], "GPU": ", ".join(record.hardware["gpus"]), **packages}


def check_unfinished(prepared: Prepared) -> None:
    """Check that the run in the output folder, if there is one, has not finished.

    Raises:
        AlreadyFinished: It has, with the same settings, data and model.
        InputError: It has, with others.
    """
    point = prepared.resume_point
    if point is None or not point.is_finished:
        return
    record = on_main_process(lambda: read_record(point.output_dir))
    before, now = settings_of(record), settings_of(prepared.record)
    for name in before.keys() ^ now.keys():
        if not name.startswith("data of "):  # known to one version, or only before a run
            before.pop(name, None)
            now.pop(name, None)
    refuse_differences(
        f"{point.output_dir / RECORD_NAME}",
        differences(before, now),
        "Choose another --output_dir.",
    )
    raise AlreadyFinished(
        f"{point.output_dir}: this run has finished, so nothing is trained. To see its report: "
        f"ampft report {point.output_dir}"
    )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, before and now, by name.

    Values that are mappings are compared entry by entry: "configuration: hidden_act".
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**before, **now}:
        old, new = before.get(name, MISSING), now.get(name, MISSING)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= {f"{name}: {part}": pair for part, pair in differences(old, new).items()}
        elif old != new:
            found[name] = (old, new)
    return found


def refuse_differences(where: str, found: Mapping[str, tuple[Any, Any]], remedy: str) -> None:
    """Refuse to continue with other settings.

    Args:
        where: What was made with the other settings, such as the path of a checkpoint.
        found: Result of `differences`; empty if nothing is refused.
        remedy: What to do.

    Raises:
        InputError: There are differences; the message lists them as a table.
    """
    if not found:
        return
    rows = [(Quote(name), *map(_shortened, pair)) for name, pair in found.items()]
    table = terminal_table(Table(header=("setting", "checkpoint", "now"), rows=rows, left=3))
    raise InputError(
        f"--resume_from_checkpoint: {where} belongs to a run with other settings. {remedy}\n{table}"
    )


def _shortened(value: object) -> Quote:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return Quote(text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…")
