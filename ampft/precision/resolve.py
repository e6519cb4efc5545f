"""Modes of precision: which was asked for, and what this device makes of it.

Nothing here replaces one mode by another. A mode that the device lacks is an error that lists
what it has; a mode that it can only imitate is called `emulated`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from ampft.errors import InputError, nearest

# How a bfloat16 weight takes its update, in the modes that store all in bfloat16.
_ROUNDINGS = {
    "bf16-true": "nearest",
    "bf16-true-kahan": "kahan",
    "bf16-true-stochastic": "stochastic",
}
_IN_WORDS = {
    "nearest": "updates rounded to the nearest",
    "kahan": "updates by Kahan summation",
    "stochastic": "updates rounded stochastically",
}
MODES = ("fp32", "tf32", "bf16", "fp16", "fp8", *_ROUNDINGS)
FLAG = "--mixed_precision"
VARIABLE = "ACCELERATE_MIXED_PRECISION"

NATIVE = "native"
EMULATED = "emulated"
UNAVAILABLE = "unavailable"

# `accelerate launch` writes the variable whenever it runs, so `no` is what nobody chose.
_UNSET = ("", "no")
_LAUNCHER_MODES = ("fp16", "bf16", "fp8")
# Where weights are bfloat16 there is nothing left for autocast to do.
_ACCELERATE_NAMES = {
    **dict.fromkeys(("fp32", "tf32", *_ROUNDINGS), "no"),
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
}
_COMPUTE_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    **dict.fromkeys(_ROUNDINGS, torch.bfloat16),
}


@dataclass(frozen=True)
class Precision:
    """A mode resolved for a device.

    Attributes:
        mode: One of `MODES`.
        device_type: `cpu`, `cuda`, `mps`, ...
        storage_dtype: Of weights, gradients and optimizer state: bfloat16 in the modes named
            `bf16-true`, float32 in every other.
        compute_dtype: Of the operands of matrix products. `tf32` stores its operands as float32
            and multiplies ten bits of their fraction.
        uses_scaler: Whether the loss is scaled against underflow of float16 gradients.
        execution: `native` or `emulated`.
        reason: Why, in one clause.
    """

    mode: str
    device_type: str
    storage_dtype: torch.dtype
    compute_dtype: torch.dtype
    uses_scaler: bool
    execution: str
    reason: str

    @property
    def accelerate_name(self) -> str:
        """The value of Accelerate's `mixed_precision` for this mode."""
        return _ACCELERATE_NAMES[self.mode]

    @property
    def rounding(self) -> str | None:
        """How bfloat16 weights take updates: `nearest`, `kahan`, `stochastic`; None in float32."""
        return _ROUNDINGS.get(self.mode)

    @property
    def is_emulated(self) -> bool:
        """Whether the hardware imitates this mode. Say so wherever speed is reported."""
        return self.execution == EMULATED


@dataclass(frozen=True)
class Availability:
    """What a mode would be on a device: `native`, `emulated` or `unavailable`, and why."""

    mode: str
    status: str
    reason: str


def canonical_mode(name: str) -> str:
    """Return the mode that `name` spells.

    Args:
        name: One of `MODES` in any case, or Accelerate's `no` for `fp32`.

    Raises:
        InputError: `name` is no mode.
    """
    mode = name.strip().lower()
    if mode == "no":
        return "fp32"
    if mode not in MODES:
        raise InputError(
            f"{FLAG}: {name!r} is no mode of precision.{nearest(mode, MODES)} "
            f"Choose one of {', '.join(MODES)} (`no` means fp32)."
        )
    return mode


def requested_mode(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the mode that was asked for on the command line or in the environment.

    Args:
        flag: The value of the program's own `--mixed_precision`; None when it was not given.
        environ: The environment, where `accelerate launch` writes its choice.

    Raises:
        InputError: The two name different modes, or one of them names none.
    """
    inherited = environ.get(VARIABLE, "").strip().lower()
    if flag is None:
        if inherited in _UNSET:
            return "fp32"
        return _mode_of_variable(inherited)
    mode = canonical_mode(flag)
    if inherited in _LAUNCHER_MODES and inherited != mode:
        raise InputError(
            f"{FLAG} {flag} disagrees with {VARIABLE}={inherited} (accelerate launch, its config "
            f"file or your shell). Name one precision: leave one of the two out, or make them "
            f"equal."
        )
    return mode


def _mode_of_variable(value: str) -> str:
    try:
        return canonical_mode(value)
    except InputError as error:
        raise InputError(
            f"{VARIABLE}={value} (accelerate launch, its config file or your shell) names no mode "
            f"of precision.{nearest(value, MODES)} Choose one of {', '.join(MODES)}."
        ) from error


def resolve(mode: str, device: torch.device) -> Precision:
    """Resolve a mode for a device, without replacing it by another.

    Args:
        mode: One of `MODES`, or `no`.
        device: Where training will run.

    Raises:
        InputError: The mode is unknown, or the device does not have it; lists what it has.
    """
    mode = canonical_mode(mode)
    available = survey(device)
    found = next(entry for entry in available if entry.mode == mode)
    if found.status == UNAVAILABLE:
        here = ", ".join(
            entry.mode if entry.status == NATIVE else f"{entry.mode} ({entry.status})"
            for entry in available
            if entry.status != UNAVAILABLE
        )
        raise InputError(
            f"{FLAG} {mode}: not available on this device ({device.type}): {found.reason}. "
            f"Available here: {here}."
        )
    return Precision(
        mode=mode,
        device_type=device.type,
        storage_dtype=torch.bfloat16 if mode in _ROUNDINGS else torch.float32,
        compute_dtype=_COMPUTE_DTYPES[mode],
        uses_scaler=mode == "fp16",
        execution=found.status,
        reason=found.reason,
    )


def survey(device: torch.device) -> tuple[Availability, ...]:
    """Return what each mode of `MODES` would be on `device`, in that order."""
    look: Callable[[str, torch.device], Availability]
    look = {"cpu": _on_cpu, "cuda": _on_cuda}.get(device.type, _elsewhere)
    fp32 = Availability("fp32", NATIVE, "every device computes in float32")
    mixed = (fp32, *(look(mode, device) for mode in MODES[1:] if mode not in _ROUNDINGS))
    (bf16,) = (entry for entry in mixed if entry.mode == "bf16")
    return (*mixed, *(_stored_in_bfloat16(mode, bf16) for mode in _ROUNDINGS))


def _stored_in_bfloat16(mode: str, bf16: Availability) -> Availability:
    """Return what a mode with bfloat16 weights is where `bf16` is so: the products are the same."""
    if bf16.status == UNAVAILABLE:
        return Availability(mode, UNAVAILABLE, bf16.reason)
    stored = f"weights, gradients, optimizer state bfloat16, {_IN_WORDS[_ROUNDINGS[mode]]}"
    return Availability(mode, bf16.status, f"{stored}; {bf16.reason}")


def cpu_capabilities() -> dict[str, bool]:
    """Return which instructions for 16-bit arithmetic this CPU has, by PyTorch's own query.

    Returns:
        `avx512_bf16`, `avx512_fp16`, `amx_bf16`, `amx_fp16`, and `bf16` and `fp16_arith` of ARM.
        What oneDNN says is not asked: it accepts bfloat16 on CPUs that convert it to float32.
    """
    names = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "bf16", "fp16_arith")
    query = getattr(torch.cpu, "get_capabilities", None)
    if query is not None:
        known = query()
        return {name: bool(known.get(name, False)) for name in names}
    # Before PyTorch 2.11 there were single questions; what they do not answer counts as absent.
    capabilities = dict.fromkeys(names, False)
    for name, question in (
        ("avx512_bf16", "_is_avx512_bf16_supported"),
        ("amx_bf16", "_is_amx_tile_supported"),
        ("amx_fp16", "_is_amx_fp16_supported"),
    ):
        ask = getattr(torch.cpu, question, None)
        capabilities[name] = bool(ask()) if ask is not None else False
    return capabilities


def _on_cpu(mode: str, device: torch.device) -> Availability:
    del device
    if mode == "tf32":
        return Availability(mode, UNAVAILABLE, "TF32 is a format of NVIDIA GPUs")
    if mode == "fp8":
        return Availability(mode, UNAVAILABLE, "no CPU multiplies 8-bit floating-point numbers")
    if mode == "fp16":
        reason = "computed as a GPU would: binary16 operands, float32 sums"
        return Availability(mode, EMULATED, reason)
    names = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX", "bf16": "ARM BF16"}
    found = [names[name] for name, here in cpu_capabilities().items() if here and name in names]
    if found:
        return Availability(mode, NATIVE, f"the CPU has {' and '.join(found)}")
    reason = "the CPU has neither AVX512-BF16 nor AMX, so bfloat16 is slower than float32"
    return Availability(mode, EMULATED, reason)


def _on_cuda(mode: str, device: torch.device) -> Availability:
    major, minor = torch.cuda.get_device_capability(device)
    here = f"compute capability {major}.{minor}"
    if mode == "fp16":
        return Availability(mode, NATIVE, f"float16 products with float32 sums, {here}")
    if mode == "bf16":
        return _bf16_on_cuda(device, here)
    if torch.version.hip is not None:
        return Availability(mode, UNAVAILABLE, "supported on NVIDIA GPUs alone")
    needed = (8, 0) if mode == "tf32" else (8, 9)
    if (major, minor) < needed:
        wanted = f"needs compute capability {needed[0]}.{needed[1]}, this GPU has {major}.{minor}"
        return Availability(mode, UNAVAILABLE, wanted)
    if mode == "fp8" and not any(find_spec(name) for name in ("torchao", "transformer_engine")):
        reason = "neither torchao nor transformer_engine is installed (pip install torchao)"
        return Availability(mode, UNAVAILABLE, reason)
    return Availability(mode, NATIVE, here)


def _bf16_on_cuda(device: torch.device, here: str) -> Availability:
    # The query has no device argument: it answers for the current device.
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Availability("bf16", NATIVE, here)
        if torch.cuda.is_bf16_supported():
            reason = f"the GPU converts bfloat16 to float32 and back ({here}, native from 8.0)"
            return Availability("bf16", EMULATED, reason)
    return Availability("bf16", UNAVAILABLE, f"needs compute capability 8.0, {here}")


def _elsewhere(mode: str, device: torch.device) -> Availability:
    if mode in ("tf32", "fp8"):
        return Availability(mode, UNAVAILABLE, "supported on NVIDIA GPUs alone")
    if not torch.amp.is_autocast_available(device.type):
        return Availability(mode, UNAVAILABLE, f"PyTorch has no autocast for {device.type}")
    if device.type == "mps" and mode == "bf16" and not torch.backends.mps.is_macos_or_newer(14, 0):
        return Availability(mode, UNAVAILABLE, "needs macOS 14")
    return Availability(mode, NATIVE, f"PyTorch's autocast for {device.type}")
