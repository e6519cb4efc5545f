"""The yardstick rejects modes that round their weights."""

import pytest

from ampft.arguments import ClassifyArguments
from ampft.errors import InputError
from ampft.lab.yardstick.measure import measure_yardstick

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.mark.parametrize("mode", ["bf16-true", "bf16-true-kahan", "bf16-true-stochastic"])
def test_rounded_weights_are_refused(mode):
    with pytest.raises(
        InputError, match=f"--modes {mode}: this mode stores rounded weights, .* Use bf16,"
    ):
        measure_yardstick(ClassifyArguments(use_cpu=True), ["fp32", mode])
