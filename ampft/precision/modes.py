"""The tables of precision modes and of number formats. Imports nothing heavy.

To add a precision, add a row here and a probe in `ampft.precision.resolve`, which reports whether a
device supports it. All other code checks the properties of a mode, never its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from ampft.errors import InputError, did_you_mean

BASELINE = "fp32"


@dataclass(frozen=True)
class Mode:
    """A precision that a user can name."""

    name: str  # The mode as the user writes it.
    # Value of Accelerate's `mixed_precision`; "no" where autocast is not used.
    accelerate_name: str
    storage: str  # Dtype of weights, gradients and optimizer state.
    compute: str  # Dtype of the operands of matrix products.
    probe: str  # Key of the function in `ampft.precision.resolve` that checks a device for it.
    # Whether the loss is scaled to prevent underflow of float16 gradients.
    needs_scaler: bool = False
    # How updates of 16-bit weights are rounded: "nearest", "kahan" or "stochastic"; None for
    # float32 weights.
    rounding: str | None = None
    # Whether layers of the model are replaced, so that the model cannot compute in another
    # precision.
    replaces_layers: bool = False
    allows_tf32: bool = False  # Whether float32 products use TF32.

    @property
    def stores_16_bits(self) -> bool:
        """Whether weights, gradients and optimizer state are stored in 16 bits."""
        return self.storage != "float32"

    @property
    def keeps_float32_modules(self) -> bool:
        """Whether single modules can compute in float32: by leaving autocast, or in any case."""
        return not (self.stores_16_bits or self.replaces_layers or self.allows_tf32)


MODE_TABLE = {
    mode.name: mode
    for mode in (
        Mode("fp32", "no", "float32", "float32", "fp32"),
        Mode("tf32", "no", "float32", "float32", "tf32", allows_tf32=True),
        Mode("bf16", "bf16", "float32", "bfloat16", "bf16"),
        Mode("fp16", "fp16", "float32", "float16", "fp16", needs_scaler=True),
        Mode("fp8", "fp8", "float32", "float8_e4m3fn", "fp8", replaces_layers=True),
        Mode("bf16-true", "no", "bfloat16", "bfloat16", "bf16", rounding="nearest"),
        Mode("bf16-true-kahan", "no", "bfloat16", "bfloat16", "bf16", rounding="kahan"),
        Mode("bf16-true-stochastic", "no", "bfloat16", "bfloat16", "bf16", rounding="stochastic"),
    )
}
MODES = tuple(MODE_TABLE)


# What others call a mode. They are not accepted, because they may mean the storage of weights too.
OTHER_NAMES = {
    **dict.fromkeys(("float16", "half", "f16", "16", "16-mixed"), "fp16"),
    **dict.fromkeys(("bfloat16", "brain", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float32", "float", "single", "full", "f32", "32"), "fp32"),
    **dict.fromkeys(("tfloat32", "tensorfloat32"), "tf32"),
    **dict.fromkeys(("float8", "e4m3"), "fp8"),
}


def mode_hint(name: str) -> str:
    """Return ` Did you mean 'fp16'?` for another name of a mode or a typo, or an empty string."""
    other = OTHER_NAMES.get(name)
    return did_you_mean(name, MODES) if other is None else f" Did you mean {other!r}?"


def canonical_mode(name: str) -> str:
    """Return the mode that `name` spells.

    Args:
        name: One of `MODES` in upper or lower case, or Accelerate's `no`, which means fp32.

    Raises:
        InputError: `name` is not a mode.
    """
    mode = str(name).strip().lower()  # in Python it may be a dtype, or None
    if mode == "no":
        return BASELINE
    if mode not in MODE_TABLE:
        raise InputError(
            f"{name!r} is not a precision mode.{mode_hint(mode)} Choose one of"
            f" {', '.join(MODES)} (`no` means {BASELINE})."
        )
    return mode


def is_fp32(mode: str) -> bool:
    """Return whether a recorded mode is fp32, by that name or by Accelerate's `no`."""
    return mode in (BASELINE, "no")


@dataclass(frozen=True)
class FormatRange:
    """The range and spacing of a binary floating-point format."""

    name: str  # PyTorch's name of the format, or `tf32`, which has no dtype.
    bits: int  # Significant bits; 19 for `tf32`, which is stored in 32.
    largest: float  # The largest finite number.
    smallest_normal: float  # The smallest positive number with a full significand.
    smallest_subnormal: float  # The smallest positive number.
    epsilon: float  # The distance from 1 to the next number.


def _binary(name: str, *, exponent_bits: int, fraction_bits: int) -> FormatRange:
    bias = 2 ** (exponent_bits - 1) - 1
    smallest_normal = 2.0 ** (1 - bias)
    return FormatRange(
        name=name,
        bits=1 + exponent_bits + fraction_bits,
        largest=(2 - 2.0**-fraction_bits) * 2.0**bias,
        smallest_normal=smallest_normal,
        smallest_subnormal=smallest_normal * 2.0**-fraction_bits,
        epsilon=2.0**-fraction_bits,
    )


# IEEE 754-2019 for float32 and float16; NVIDIA's A100 white paper for TF32; Micikevicius et al.,
# "FP8 Formats for Deep Learning" (2022) for the last two. E4M3FN has no infinity: its top
# exponent holds numbers up to 448 and one NaN.
FORMATS: tuple[FormatRange, ...] = (
    _binary("float32", exponent_bits=8, fraction_bits=23),
    _binary("tf32", exponent_bits=8, fraction_bits=10),
    _binary("bfloat16", exponent_bits=8, fraction_bits=7),
    _binary("float16", exponent_bits=5, fraction_bits=10),
    FormatRange("float8_e4m3fn", 8, 448.0, 2.0**-6, 2.0**-9, 2.0**-3),
    _binary("float8_e5m2", exponent_bits=5, fraction_bits=2),
)
