"""Predictions of a split: each example once, for any batch size and with or without padding."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from counted_task import BufferedModel, CountedTask
from tiny_text import tiny_task

from ampft.engine.first_step import FirstStepMonitor
from ampft.errors import PrecisionContradicted, TrainingStopped
from ampft.evaluation.evaluate import _ordered, _Rows, evaluate
from ampft.precision.accelerator import make_accelerator, numerics
from ampft.precision.resolve import resolve

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

# Of a probability: other batches add the same products in another order.
PROBABILITY_TOLERANCE = {"fp32": 1e-6, "bf16": 2e-2, "fp16": 2e-3}


def one_by_one(task, model, split):
    """Return the predictions of a split in order, one unpadded example per batch."""
    examples = task.examples(split)
    model.eval()
    with torch.no_grad():
        rows = [task.logits(model, examples.collate(np.array([i]))) for i in range(17)]
    return torch.cat(rows).softmax(-1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_batches_by_length_predict_the_same_as_single_examples(tiny_bert, mode, remove_padding):
    precision = resolve(mode, torch.device("cpu"))
    accelerator = make_accelerator(precision)
    task = tiny_task(tiny_bert, train=3, validation=17, remove_padding=remove_padding)
    assert len(set(task.examples("validation").lengths)) > 5
    model = accelerator.prepare(task.load_model().model)
    with numerics(precision):
        predictions = evaluate(accelerator, model, task, "validation", batch_size=5)
        expected = one_by_one(task, model, "validation")
    assert predictions.example_ids.tolist() == list(range(17))
    assert predictions.labels.tolist() == task.data.splits["validation"]["label"]
    tolerance = PROBABILITY_TOLERANCE[mode]
    np.testing.assert_allclose(predictions.probabilities, expected, atol=tolerance, rtol=0)
    # Negative control: rows of other examples are farther away than the tolerance.
    assert np.abs(np.roll(expected, 1, axis=0) - expected).max() > 10 * tolerance


def test_the_first_batch_is_checked_for_its_dtypes(tiny_bert):
    """A model that leaves autocast only in evaluation."""
    precision = resolve("bf16", torch.device("cpu"))
    accelerator = make_accelerator(precision)
    task = tiny_task(tiny_bert, train=3, validation=17)
    model = accelerator.prepare(task.load_model().model)
    first_step = FirstStepMonitor(precision)

    def predict():
        checked = first_step.checked("the evaluation")
        evaluate(accelerator, model, task, "validation", batch_size=5, first_batch=checked)

    predict()
    del model.forward  # Accelerate's, with autocast
    with pytest.raises(PrecisionContradicted, match="the evaluation ran in another dtype"):
        predict()


@pytest.mark.parametrize("training", [True, False])
def test_the_training_mode_is_restored(training):
    model = BufferedModel().train(training)
    evaluate(Accelerator(cpu=True), model, CountedTask(5), "test", batch_size=2)
    assert model.training is training
    assert model.linear.weight.grad is None


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 64])
def test_every_example_counts_once_in_one_process(batch_size):
    accelerator = Accelerator(cpu=True)
    for n in range(1, 18):
        predictions = evaluate(
            accelerator, BufferedModel(), CountedTask(n), "test", batch_size=batch_size
        )
        assert predictions.example_ids.tolist() == list(range(n))


def test_a_nonfinite_probability_stops_the_run():
    model = BufferedModel()
    task = CountedTask(7)
    model.linear.weight.data[0, 0] = torch.inf  # inf or -inf by the sign of the first feature
    positive = int((task.examples("test").tensors["x"][:, 0] > 0).sum())
    assert 0 < positive < 7
    with pytest.raises(TrainingStopped, match=f"evaluation on test: {positive} of 7 examples"):
        evaluate(Accelerator(cpu=True), model, task, "test", batch_size=3)


@pytest.mark.parametrize("kind", [np.float32, np.int64, object])
def test_rows_of_processes_are_put_in_the_order_of_their_ids(kind):
    expected = np.arange(21).reshape(7, 3).astype(kind)
    shares = [np.array([6, 0, 3, 1]), np.array([5, 2, 4])]
    parts = []
    for ids in shares:
        rows = _Rows(np.arange(len(ids)))
        for start in range(0, len(ids), 3):
            rows.add({"x": expected[ids[start : start + 3]]})
        rows.add({"x": expected[:0]})  # of a process that has fewer batches
        parts.append((ids, rows.arrays))
    found = _ordered(parts)["x"]
    assert np.array_equal(found, expected)
    assert found.dtype == kind
    alone = _Rows(np.array([2, 0, 1]))
    alone.add({"x": expected[[2, 0]]})
    alone.add({"x": expected[[1]]})
    assert np.array_equal(alone.arrays["x"], expected[:3])
