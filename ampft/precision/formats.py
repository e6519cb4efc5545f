"""The number formats of mixed precision: their range and spacing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FormatRange:
    """The range and spacing of a binary floating-point format.

    Attributes:
        name: PyTorch's name of the format, or `tf32`, which has no dtype.
        bits: Significant bits; 19 for `tf32`, which is stored in 32.
        largest: The largest finite number.
        smallest_normal: The smallest positive number with a full significand.
        smallest_subnormal: The smallest positive number.
        epsilon: The distance from 1 to the next number.
    """

    name: str
    bits: int
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    epsilon: float


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
