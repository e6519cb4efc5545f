"""Resolves a mode for a device: native, emulated, or refused.

A mode is never replaced by another. A mode that the device does not support is an error that lists
the supported ones; a mode that it can only emulate is marked `emulated`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from ampft.errors import InputError, check_type, did_you_mean, quoted
from ampft.precision.extension_points import EMULATION
from ampft.precision.modes import BASELINE, MODE_TABLE, MODES, Mode, canonical_mode

FLAG = "--mixed_precision"
ENV_VARIABLE = "ACCELERATE_MIXED_PRECISION"

NATIVE = "native"
EMULATED = "emulated"
UNPROVEN = "unproven"  # autocast has the mode, but nobody has checked what the device computes
UNAVAILABLE = "unavailable"

# `accelerate launch` always sets the variable, so `no` does not mean that a user chose it.
_UNSET = ("", "no")
_ROUNDING_WORDS = {
    "nearest": "updates rounded to the nearest",
    "kahan": "updates by Kahan summation",
    "stochastic": "updates rounded stochastically",
}


@dataclass(frozen=True)
class Precision:
    """A mode resolved for a device."""

    mode: str  # One of `MODES`.
    device_type: str  # `cpu`, `cuda`, `mps`, ...
    storage_dtype: torch.dtype  # Dtype of weights, gradients and optimizer state.
    # Dtype of the operands of matrix products. `tf32` stores its operands as float32 but multiplies
    # only ten bits of their fraction.
    compute_dtype: torch.dtype
    uses_scaler: bool  # Whether the loss is scaled to prevent underflow of float16 gradients.
    # `native`, `emulated`, or `unproven`: PyTorch's autocast has the mode, but what the device
    # computes has not been checked (MPS, XPU).
    execution: str
    reason: str  # Reason for `execution`, as one clause.

    @property
    def properties(self) -> Mode:
        """The properties of the mode, from the table of modes."""
        return MODE_TABLE[self.mode]

    @property
    def accelerate_name(self) -> str:
        """The value of Accelerate's `mixed_precision` for this mode."""
        return self.properties.accelerate_name

    @property
    def rounding(self) -> str | None:
        """How updates of 16-bit weights are rounded; None for float32 weights."""
        return self.properties.rounding

    @property
    def uses_autocast(self) -> bool:
        """Whether products are computed in a dtype that differs from the weights' dtype."""
        return self.compute_dtype != self.storage_dtype

    def autocast(self) -> torch.autocast:
        """Return a new context in which products are computed in this precision.

        The products of an emulated mode also need `ampft.numerics`.
        """
        return torch.autocast(
            self.device_type,
            self.compute_dtype if self.uses_autocast else None,
            enabled=self.uses_autocast,
        )

    def scaler(self) -> torch.amp.GradScaler:
        """Return a new gradient scaler, which does nothing where the mode needs none."""
        return torch.amp.GradScaler(self.device_type, enabled=self.uses_scaler)

    @property
    def is_emulated(self) -> bool:
        """Whether the device only emulates this mode, to be stated wherever speed is reported."""
        return self.execution == EMULATED

    @property
    def emulates_products(self) -> bool:
        """Whether 16-bit products are computed in float32 on a CPU, with the results of a GPU."""
        return self.is_emulated and self.device_type == "cpu"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before training in this precision, as clauses."""
        if not self.emulates_products:
            return ()
        name = str(self.compute_dtype).removeprefix("torch.")
        return (f"fp32 is faster on this CPU, which cannot multiply {name} itself",)

    @property
    def emulates_binary16(self) -> bool:
        """Whether float16 products are computed in float32, with the results of a GPU."""
        return self.is_emulated and self.compute_dtype == torch.float16


@dataclass(frozen=True)
class ModeAvailability:
    """Support for a mode on a device."""

    mode: str  # One of `MODES`.
    status: str  # `native`, `emulated` or `unavailable`.
    reason: str  # Reason for `status`, as one clause.


def requested_mode(flag: str | None, environ: Mapping[str, str]) -> str:
    """Return the mode requested on the command line or in the environment.

    Args:
        flag: Value of the program's own `--mixed_precision`; None if it was not passed.
        environ: Environment variables, in which `accelerate launch` stores its choice.

    Raises:
        InputError: The two name different modes, or one of them is not a mode.
    """
    check_type("requested_mode", "environ", environ, Mapping)
    inherited = environ.get(ENV_VARIABLE, "").strip().lower()
    if flag is None:
        if inherited in _UNSET:
            return BASELINE
        try:
            return canonical_mode(inherited)
        except InputError as error:
            raise InputError(
                f"{ENV_VARIABLE}={inherited} (set by accelerate launch, its config file or your "
                f"shell) is not a precision mode.{did_you_mean(inherited, MODES)} Choose one of "
                f"{', '.join(MODES)}."
            ) from error
    try:
        mode = canonical_mode(flag)
    except InputError as error:
        raise InputError(f"{FLAG}: {error}") from error
    launcher_modes = {row.accelerate_name for row in MODE_TABLE.values()} - {*_UNSET}
    if inherited in launcher_modes and inherited != mode:
        raise InputError(
            f"{FLAG} {flag} disagrees with {ENV_VARIABLE}={inherited} (set by accelerate launch, "
            f"its config file or your shell). Remove one of the two, or set both to the same mode."
        )
    return mode


def resolve(mode: str, device: torch.device | str, *, flag: str = FLAG) -> Precision:
    """Resolve a mode for a device, without replacing it by another.

    Args:
        mode: One of `MODES`, or `no`.
        device: Device of the training, or its name, such as "cpu".
        flag: Flag that requested the mode, for messages.

    Raises:
        InputError: The mode is unknown, or the device does not support it; the message lists the
            modes that it supports.
    """
    mode = canonical_mode(mode)
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(
            f"device: received {quoted(device)}; choose 'cpu', 'cuda' or 'cuda:0', for example."
        ) from None
    is_gpu = device.type in ("cuda", "mps", "xpu")
    if is_gpu and not torch.get_device_module(device).is_available():
        raise InputError(
            f"{flag} {mode} on {device}: this torch ({torch.__version__}) finds no GPU. Use the "
            "device cpu, or install a build of torch for the GPU."
        )
    surveyed = survey_modes(device)
    availability = next(entry for entry in surveyed if entry.mode == mode)
    if availability.status == UNAVAILABLE:
        supported = ", ".join(
            entry.mode if entry.status == NATIVE else f"{entry.mode} ({entry.status})"
            for entry in surveyed
            if entry.status != UNAVAILABLE
        )
        raise InputError(
            f"{flag} {mode}: not available on this device ({device.type}): {availability.reason}. "
            f"Available modes: {supported}."
        )
    return Precision(
        mode=mode,
        device_type=device.type,
        storage_dtype=getattr(torch, MODE_TABLE[mode].storage),
        compute_dtype=getattr(torch, MODE_TABLE[mode].compute),
        uses_scaler=MODE_TABLE[mode].needs_scaler,
        execution=availability.status,
        reason=availability.reason,
    )


def survey_modes(device: torch.device) -> tuple[ModeAvailability, ...]:
    """Return the availability of each mode on `device`, in the order of `MODES`."""
    entries = []
    for row in MODE_TABLE.values():
        status, reason = _PROBES[row.probe](device)
        if row.rounding is not None and status != UNAVAILABLE:
            stored = f"weights, gradients, optimizer state {row.storage}"
            reason = f"{stored}, {_ROUNDING_WORDS[row.rounding]}; {reason}"
        entries.append(ModeAvailability(row.name, status, reason))
    return tuple(entries)


def usable_modes(names: Sequence[str], device: torch.device) -> str:
    """Return those of `names` that `device` supports, such as "bf16 or fp32", for a remedy.

    Args:
        names: Modes that would be a remedy, fp32 among them, which every device has.
        device: Device of the training.
    """
    surveyed = {entry.mode: entry.status for entry in survey_modes(device)}
    usable = [name for name in names if surveyed[name] != UNAVAILABLE]
    return " or ".join(filter(None, (", ".join(usable[:-1]), usable[-1])))


def cpu_capabilities() -> dict[str, bool]:
    """Return which instructions for 16-bit arithmetic this CPU has, according to PyTorch.

    oneDNN is not queried, because it accepts bfloat16 on CPUs that convert it to float32.

    Returns:
        Whether the CPU has `avx512_bf16`, `avx512_fp16`, `amx_bf16`, `amx_fp16`, and ARM's `bf16`
        and `fp16_arith`.
    """
    names = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "bf16", "fp16_arith")
    known = torch.cpu.get_capabilities()
    return {name: bool(known.get(name, False)) for name in names}


ProbeResult = tuple[str, str]
"""Status and reason."""


def _probe_fp32(device: torch.device) -> ProbeResult:
    del device
    return NATIVE, "every device computes in float32"


def _probe_tf32(device: torch.device) -> ProbeResult:
    if device.type == "cpu":
        return UNAVAILABLE, "only NVIDIA GPUs have TF32"
    return _on_nvidia(device, (8, 0))


def _probe_fp8(device: torch.device) -> ProbeResult:
    if device.type == "cpu":
        return UNAVAILABLE, "no CPU multiplies 8-bit floating-point numbers"
    status, reason = _on_nvidia(device, (8, 9))
    if status == NATIVE and find_spec("torchao") is None:
        return UNAVAILABLE, "torchao is not installed (pip install torchao)"
    return status, reason


def _probe_bf16(device: torch.device) -> ProbeResult:
    if device.type == "cpu":
        return _bf16_on_cpu()
    if device.type == "cuda":
        return _bf16_on_cuda(device)
    if device.type == "mps" and not torch.backends.mps.is_macos_or_newer(14, 0):
        return UNAVAILABLE, "requires macOS 14"
    return _by_autocast(device)


def _probe_fp16(device: torch.device) -> ProbeResult:
    if device.type == "cpu":  # also where it has instructions for binary16, whose sums differ
        return _emulated("computed as on a GPU, with binary16 operands and float32 sums")
    if device.type == "cuda":
        return NATIVE, f"float16 products with float32 sums, {_capability(device)}"
    return _by_autocast(device)


_PROBES: dict[str, Callable[[torch.device], ProbeResult]] = {
    "fp32": _probe_fp32,
    "tf32": _probe_tf32,
    "bf16": _probe_bf16,
    "fp16": _probe_fp16,
    "fp8": _probe_fp8,
}


def _capability(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"compute capability {major}.{minor}"


def _on_nvidia(device: torch.device, required: tuple[int, int]) -> ProbeResult:
    if device.type != "cuda" or torch.version.hip is not None:
        return UNAVAILABLE, "supported only on NVIDIA GPUs"
    actual = torch.cuda.get_device_capability(device)
    if actual < required:
        reason = f"requires compute capability {required[0]}.{required[1]}"
        return UNAVAILABLE, f"{reason}, and this GPU has {actual[0]}.{actual[1]}"
    return NATIVE, _capability(device)


def _bf16_on_cpu() -> ProbeResult:
    names = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX", "bf16": "ARM BF16"}
    present = [name for name, has_it in cpu_capabilities().items() if has_it and name in names]
    if present:
        return NATIVE, f"the CPU has {' and '.join(names[name] for name in present)}"
    return _emulated("bfloat16 operands and float32 sums, since the CPU lacks AVX512-BF16 and AMX")


def _emulated(reason: str) -> ProbeResult:
    absent = UNAVAILABLE, "emulated on a CPU, and `ampft/emulation` is absent"
    return absent if EMULATION.is_empty else (EMULATED, reason)


def _bf16_on_cuda(device: torch.device) -> ProbeResult:
    capability = _capability(device)
    # The query has no device argument; it applies to the current device.
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return NATIVE, capability
        if torch.cuda.is_bf16_supported():
            reason = f"{capability}; the GPU converts bfloat16 to float32 and back below 8.0"
            return EMULATED, reason
    return UNAVAILABLE, f"requires compute capability 8.0, and this GPU has {capability}"


def _by_autocast(device: torch.device) -> ProbeResult:
    if not torch.amp.is_autocast_available(device.type):
        return UNAVAILABLE, f"PyTorch has no autocast for {device.type}"
    return UNPROVEN, f"PyTorch's autocast for {device.type}, whose products nobody has checked"
