"""One remedy per cause, in one sentence."""

from __future__ import annotations

from ampft.diagnosis.doctor.findings import Cause

_KEEP = "Keep the module in float32 with --fp32_modules, or train in bf16, whose range is float32's"
_OVERFLOW = f"{_KEEP}."

HALF_CHECKPOINT = (
    "Nothing: the checkpoint was saved in 16 bits, and its weights are float32 numbers now. If it "
    "also exists in float32, that one has more digits."
)
REMEDIES: dict[Cause, str] = {
    Cause.PRODUCT: _OVERFLOW,
    Cause.SUM: _OVERFLOW,
    Cause.CONVERSION: "Do not convert this tensor to 16 bits: keep the module in float32 with "
    "--fp32_modules, or train in bf16.",
    Cause.EXPONENTIAL: "Subtract the maximum before exp, or use log_softmax or a loss with logits, "
    "which do that.",
    Cause.QUOTIENT: "Bound the denominator away from 0, or divide in float32.",
    Cause.LOG_OF_ZERO: "Use log_softmax or a loss with logits instead of the log of a probability, "
    "or clamp the argument.",
    Cause.LOG_OF_NEGATIVE: "Clamp the argument of the log to a positive number.",
    Cause.ZERO_BY_ZERO: "Add an epsilon to the denominator, or mask the entries where it is 0.",
    Cause.DIVISION_BY_ZERO: "Add an epsilon to the denominator.",
    Cause.ROOT_OF_NEGATIVE: "Clamp the argument of the root at 0; rounding can make a variance "
    "negative.",
    Cause.ROOT_AT_ZERO: "Add an epsilon inside the root, because its derivative at 0 is infinite.",
    Cause.INFINITIES: "Mask with the smallest finite number of the dtype instead of -inf, or do "
    "not subtract or multiply masked scores.",
    Cause.INVALID: "Check the operands of this operation.",
    Cause.UNDERFLOW_LOG: "Compute the log in float32, from logits if they exist: the argument is "
    "positive but too small for 16 bits.",
    Cause.UNDERFLOW_DIVISION: "Compute the denominator in float32, or use an epsilon of at least "
    "1e-4: smaller ones become 0 or subnormal in binary16.",
    Cause.UNDERFLOW_ZERO_BY_ZERO: "Compute numerator and denominator in float32: both are too "
    "small for 16 bits.",
    Cause.UNDERFLOW_ROOT: "Compute the root in float32, with an epsilon of at least 1e-4 inside.",
    Cause.MASK: "Mask with torch.finfo(scores.dtype).min, or mask in float32: the constant does "
    "not exist in binary16.",
    Cause.EMPTY_SOFTMAX: "Leave at least one key visible in every row, or set rows without a "
    "visible key to 0 after the softmax.",
    Cause.PARAMETER: "Load another checkpoint: a weight is NaN or infinite before training.",
    Cause.INPUT: "Remove or fix these examples: the input is NaN or infinite.",
    Cause.HALF_WEIGHTS: "Load the weights in float32 (dtype=torch.float32): autocast converts them "
    "per operation, and the optimizer needs the full precision.",
    Cause.LARGE_SCALE: "Lower the loss scale, or use a GradScaler, which skips such a step and "
    "halves the scale.",
    Cause.EVERY_SCALE: f"{_KEEP}: no loss scale helps.",
    Cause.VANISHING: "Use a larger loss scale (a GradScaler), or train in bf16, which has "
    "float32's exponents.",
    Cause.PADDING: "Nothing: no result depends on these positions. A pooling over all positions "
    "would.",
}
