"""The content of `ampft env`: how this machine and its packages handle mixed precision."""

from __future__ import annotations

import platform
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from ampft.emulation import Emulation
from ampft.precision.matrix_rate import MatrixRate, measure_matrix_rate
from ampft.precision.modes import FORMATS
from ampft.precision.resolve import cpu_capabilities, survey_modes
from ampft.text.numbers import counted
from ampft.text.page import Table, terminal_table

_PACKAGES = (
    "ampft", "torch", "transformers", "accelerate", "datasets", "evaluate", "scikit-learn", "numpy",
)  # fmt: skip

# Display name, name of PyTorch's capability, flag in /proc/cpuinfo.
_FEATURES_X86 = (
    ("AVX512-BF16", "avx512_bf16", "avx512_bf16"),
    ("AMX-BF16", "amx_bf16", "amx_bf16"),
    ("AVX512-FP16", "avx512_fp16", "avx512_fp16"),
    ("AMX-FP16", "amx_fp16", "amx_fp16"),
)
_FEATURES_ARM = (("BF16", "bf16", "bf16"), ("FP16", "fp16_arith", "asimdhp"))
_CPUINFO = Path("/proc/cpuinfo")
_WIDTH = 96


def collect_environment(measure: bool = True) -> dict[str, Any]:
    """Collect the facts that a bug report or a user needs.

    Args:
        measure: Whether to measure matrix product rates, which takes a few seconds.

    Returns:
        `versions`, `system`, `devices`, `modes`, `cpu_features`, `matrix_products`, `formats` and
        `amp`, as dictionaries, lists, strings, numbers, booleans and None that JSON can represent.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    devices = [torch.device("cpu")] + ([accelerator] if accelerator is not None else [])
    system = platform.system()
    if system == "Linux":
        with suppress(OSError):  # some Linux systems have no os-release
            system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    return {
        "versions": _versions(),
        "system": {"os": system, "machine": platform.machine()},
        "devices": [_describe(device) for device in devices],
        "modes": {d.type: [asdict(entry) for entry in survey_modes(d)] for d in devices},
        "cpu_features": _cpu_features(),
        "matrix_products": [asdict(rate) for rate in _rates(devices)] if measure else [],
        "formats": [asdict(entry) for entry in FORMATS],
        "amp": {"advice": ADVICE, "entry_points": amp_entry_points()},
    }


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        versions[package] = None
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {**versions, "cuda (of torch)": torch.version.cuda}


def _describe(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        name = torch.cpu.get_capabilities().get("cpu_name")
        return {
            "type": "cpu",
            "name": str(name or platform.processor() or platform.machine()),
            "physical_cores": psutil.cpu_count(logical=False),
            "threads": torch.get_num_threads(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            "type": "cuda",
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / 2**30, 1),
        }
    return {"type": device.type, "name": device.type, "count": torch.accelerator.device_count()}


def _cpu_features() -> dict[str, dict[str, bool | None]]:
    """Return for each feature whether PyTorch and the kernel report it; None if unknown."""
    capabilities = cpu_capabilities()
    try:
        flags: set[str] | None = set(_CPUINFO.read_text(errors="replace").split())
    except OSError:
        flags = None
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    return {
        name: {"torch": capabilities[query], "kernel": None if flags is None else flag in flags}
        for name, query, flag in (_FEATURES_ARM if is_arm else _FEATURES_X86)
    }


def _rates(devices: Iterable[torch.device]) -> list[MatrixRate]:
    rates = []
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            rates.append(measure_matrix_rate(device, dtype, name=name))
        if device.type == "cpu":
            for dtype in (torch.bfloat16, torch.float16):
                name = f"{str(dtype).removeprefix('torch.')} (emulated)"
                with Emulation(dtype):
                    rates.append(measure_matrix_rate(device, dtype, name=name))
        if device.type == "cuda":
            before = torch._C._get_fp32_precision_getter("cuda", "matmul")
            torch._C._set_fp32_precision_setter("cuda", "matmul", "tf32")
            try:
                rates.append(measure_matrix_rate(device, torch.float32, name="tf32"))
            finally:
                torch._C._set_fp32_precision_setter("cuda", "matmul", before)
    return rates


def format_environment(environment: dict[str, Any]) -> str:
    """Return the result of `collect_environment` as text of at most 96 columns."""
    versions = [[name, version or "-"] for name, version in environment["versions"].items()]
    system = environment["system"]
    labels = {True: "yes", False: "no", None: "unknown"}
    features = [
        [name, labels[found["torch"]], labels[found["kernel"]]]
        for name, found in environment["cpu_features"].items()
    ]
    rates = [
        [f"{rate['device']}, {rate['dtype']}", f"{rate['gflops']:.1f}", f"{rate['size']}"]
        for rate in environment["matrix_products"]
    ]
    rate_header = ("device, operand dtype", "GFLOP/s", "matrix size")
    columns = ("largest", "smallest_normal", "smallest_subnormal", "epsilon")
    formats = [
        [entry["name"], *(f"{entry[column]:.6g}" for column in columns)]
        for entry in environment["formats"]
    ]
    amp = environment["amp"]
    calls = [[entry["name"], entry["status"], entry["call"]] for entry in amp["entry_points"]]
    sections = {
        "Versions": _table([*versions, ["system", f"{system['os']}, {system['machine']}"]]),
        "Devices": [_device_line(device) for device in environment["devices"]],
        **{
            f"Modes on {device}": _table([[e["mode"], e["status"], e["reason"]] for e in entries])
            for device, entries in environment["modes"].items()
        },
        "CPU features for 16-bit arithmetic": _table(features, header=("", "torch", "kernel")),
        "Measured matrix product rates": _table(rates, header=rate_header, numbers=True)
        or ["not measured"],
        "Formats": _table(
            formats, header=["", *(each.replace("_", " ") for each in columns)], numbers=True
        ),
        "Entry points of automatic mixed precision": [
            *textwrap.wrap(amp["advice"], _WIDTH - 2),
            "",
            *_table(calls, header=("", "status", "current call")),
        ],
    }
    return "\n\n".join(
        "\n".join([title, *(f"  {line}".rstrip() for line in lines)])
        for title, lines in sections.items()
    )


def _table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), numbers: bool = False
) -> list[str]:
    """Return aligned lines. With `numbers`, all columns but the first are right-aligned."""
    if not rows:
        return []
    table = Table(
        header=header or ("",) * len(rows[0]), rows=rows, left=1 if numbers else len(rows[0])
    )
    return terminal_table(table, width=_WIDTH - 2).split("\n")


def _device_line(device: dict[str, Any]) -> str:
    details = [
        _amount(value, key) if isinstance(value, int) else f"{key} {value}"
        for key, value in device.items()
        if key not in ("type", "name", "memory_gib")
    ]
    memory = [f"{device['memory_gib']} GiB"] if "memory_gib" in device else []
    text = ", ".join([str(device["name"]), *details, *memory])
    return f"{device['type']}: {text.replace('compute_capability', 'compute capability')}"


def _amount(value: int, name: str) -> str:
    words = name.replace("_", " ")
    return counted(value, words.removesuffix("s")) if words.endswith("s") else f"{value} {words}"


CURRENT_IMPORT = "from torch.amp import autocast, GradScaler"

ADVICE = (
    "\"cannot import name 'amp'\" and \"No module named 'apex'\" come from code written for "
    "NVIDIA's apex (from apex import amp), which predates PyTorch's own AMP and is no longer "
    "needed. `pip install apex` installs an unrelated package of that name. Replace the import "
    f"with `{CURRENT_IMPORT}`, and amp.initialize and amp.scale_loss with the calls below, or let "
    "Accelerator(mixed_precision=...) make these calls."
)

# (module, name, arguments to call it with, current call)
_ENTRY_POINTS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("torch.amp", "autocast", ("cpu",), "torch.amp.autocast('cuda', dtype=torch.float16)"),
    ("torch.amp", "GradScaler", ("cpu",), "torch.amp.GradScaler('cuda')"),
    ("torch.cuda.amp", "autocast", (), "torch.amp.autocast('cuda', dtype=torch.float16)"),
    ("torch.cuda.amp", "GradScaler", (), "torch.amp.GradScaler('cuda')"),
    ("torch.cpu.amp", "autocast", (), "torch.amp.autocast('cpu', dtype=torch.bfloat16)"),
    ("torch.cpu.amp", "GradScaler", (), "torch.amp.GradScaler('cpu')"),
    ("apex.amp", "initialize", (), "torch.amp.autocast and torch.amp.GradScaler"),
)


def amp_entry_points() -> list[dict[str, str]]:
    """Call each known entry point of AMP.

    Returns:
        For each its full `name`, its `status` (`present`, `absent`, or `deprecated`: PyTorch emits
        a `FutureWarning` when it is used), and the current `call` to use.
    """
    return [
        {"name": f"{module}.{name}", "status": _status(module, name, arguments), "call": call}
        for module, name, arguments, call in _ENTRY_POINTS
    ]


def _status(module: str, name: str, arguments: tuple[str, ...]) -> str:
    if find_spec(module.partition(".")[0]) is None:
        return "absent"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            entry_point = getattr(import_module(module), name)
            # Initializing apex would patch this process, so it is only imported.
            if module != "apex.amp":
                entry_point(*arguments)
        except (ImportError, AttributeError):
            return "absent"
    if any(issubclass(warning.category, FutureWarning) for warning in caught):
        return "deprecated"
    return "present"
