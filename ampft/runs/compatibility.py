"""What must not differ when a run continues from a checkpoint, and what may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ampft.errors import InputError
from ampft.runs.redaction import redact_secrets
from ampft.text.json_io import json_values
from ampft.text.tables import Quote, Table, terminal_table

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


def argument_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that must be equal, by flag."""
    values = cast("dict[str, Any]", json_values(redact_secrets(arguments)))
    return {f"--{name}": value for name, value in values.items() if name not in MAY_CHANGE}


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
