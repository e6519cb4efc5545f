"""A model predicts in float32 during a run in another precision, and is then restored."""

import numpy as np
import pytest
import torch
from tiny_text import tiny_task
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForSequenceClassification

from ampft.emulation import Emulation, emulation_suspended, inside_emulation
from ampft.errors import InputError
from ampft.evaluation.evaluate import check_float32_possible, evaluate, in_float32
from ampft.models.weights import cast_weights
from ampft.precision.accelerator import make_accelerator, numerics
from ampft.precision.executed import ProductRecorder
from ampft.precision.resolve import resolve

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

CPU = torch.device("cpu")
# Of a float32 probability: without padding, the same products are added in another order.
TOLERANCE = 1e-6


class Dtypes(TorchDispatchMode):
    """Records the floating-point dtypes of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        values = [result] if isinstance(result, torch.Tensor) else []
        self.seen |= {value.dtype for value in values if value.is_floating_point()}
        return result


def by_transformers(folder, task) -> np.ndarray:
    """Return the saved model's probabilities in float32, one example per batch."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    examples = task.examples("validation")
    with torch.no_grad():
        rows = []
        for index in range(len(examples.weights)):
            inputs = examples.collate(np.array([index]))
            rows.append(model(**{k: v for k, v in inputs.items() if k != "labels"}).logits)
    return torch.cat(rows).softmax(-1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["bf16", "fp16", "bf16-true"])
def test_predictions_in_fp32_are_those_of_the_saved_model(
    tiny_bert, tmp_path, mode, remove_padding
):
    precision = resolve(mode, CPU)
    accelerator = make_accelerator(precision)
    task = tiny_task(tiny_bert, train=3, validation=17, remove_padding=remove_padding)
    model = accelerator.prepare(cast_weights(task.load_model(), precision).model)
    recorder = ProductRecorder(precision)
    with numerics(precision):
        own = evaluate(accelerator, model, task, "validation", batch_size=5)
        with recorder, in_float32(accelerator, model, precision) as plain, Dtypes() as dtypes:
            assert not inside_emulation(torch.float16)
            in_fp32 = evaluate(accelerator, plain, task, "validation", batch_size=5)
        again = evaluate(accelerator, model, task, "validation", batch_size=5)
    accelerator.unwrap_model(model).save_pretrained(tmp_path)
    expected = by_transformers(tmp_path, task)
    np.testing.assert_allclose(in_fp32.probabilities, expected, atol=TOLERANCE, rtol=0)
    assert dtypes.seen == {torch.float32}
    rows = recorder.census().rows
    assert rows
    assert {dtype for row in rows for dtype in row.inputs} == {"float32"}
    # Negative control: the run's own precision gives other probabilities, before and after.
    assert not np.array_equal(own.probabilities, in_fp32.probabilities)
    assert np.array_equal(own.probabilities, again.probabilities)


def test_a_suspended_emulation_uses_torch_kernels_and_resumes():
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).half()
    native = values @ values
    with Emulation(torch.float16):
        emulated = values @ values
        with emulation_suspended():
            assert not inside_emulation(torch.float16)
            assert torch.equal(values @ values, native)
            assert torch.equal(torch.mm(values, values, out=torch.empty_like(values)), native)
            with Emulation(torch.float16):
                assert torch.equal(values @ values, emulated)
            assert not inside_emulation(torch.float16)
        assert inside_emulation(torch.float16)
        assert torch.equal(values @ values, emulated)
        assert torch.equal(torch.mm(values, values, out=torch.empty_like(values)), emulated)
    assert not inside_emulation(torch.float16)
    with emulation_suspended():
        assert not inside_emulation(torch.float16)


def test_tf32_is_off_inside_and_restored_afterwards():
    from dataclasses import replace

    precision = replace(resolve("fp32", CPU), mode="tf32")
    model = torch.nn.Linear(2, 2)
    accelerator = make_accelerator(resolve("fp32", CPU))
    read = torch._C._get_fp32_precision_getter
    with in_float32(accelerator, model, precision) as plain:
        assert plain is model
        assert read("cuda", "matmul") == "ieee"
    assert read("cuda", "matmul") == "tf32"


def test_fp8_is_refused():
    from dataclasses import replace

    with pytest.raises(InputError, match="--evaluate_fp32: fp8 replaces layers"):
        check_float32_possible(replace(resolve("fp32", CPU), mode="fp8"))
