"""The report's metrics as a module for `evaluate`, which also works offline and in batches."""

import datasets
import evaluate
import numpy as np

from ampft.metrics.scores import scalar_scores

_DESCRIPTION = """
Accuracy, balanced accuracy, macro and weighted precision, recall and F1, Cohen's kappa and
Matthews correlation, computed by scikit-learn over all classes of the label map.
"""

_INPUTS = """
Args:
    predictions: Predicted classes, integers from 0.
    references: True classes, integers from 0.
    labels: Optional. The number of classes of the label map, or the list of its class names. A
        class that is in neither predictions nor references then counts as zeros in the macro
        averages, as in ampft's report. Without it, only classes that occur count, as in
        scikit-learn.
Returns:
    A dictionary of floats. `cohen_kappa` is NaN where it is undefined, with only one class.
"""

_CITATION = """
@article{scikit-learn, title={Scikit-learn: Machine Learning in Python}, author={Pedregosa, F. and
others}, journal={JMLR}, volume={12}, pages={2825--2830}, year={2011}}
"""


class AmpftClassification(evaluate.Metric):
    """Classification metrics over integer classes, for `evaluate.load`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(
        self, predictions: list[int], references: list[int], labels: int | list[str] | None = None
    ) -> dict[str, float]:
        pair = np.stack([np.asarray(references), np.asarray(predictions)])
        if labels is None:
            present, indices = np.unique(pair, return_inverse=True)
            pair, classes = indices.reshape(pair.shape), len(present)
        else:
            classes = labels if isinstance(labels, int) else len(labels)
            if pair.min() < 0 or pair.max() >= classes:
                raise ValueError(
                    f"predictions and references must lie in 0..{classes - 1}, "
                    f"received {pair.min()}..{pair.max()}"
                )
        return scalar_scores(pair[0], pair[1], classes)
