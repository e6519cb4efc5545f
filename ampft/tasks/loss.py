"""The summed loss in float32, which lets a step batch be split without changing its gradient.

Models of transformers return the mean over a micro-batch, and a mean of means gives examples of
small micro-batches too much weight. Here the loss is a sum over the examples, which is divided once
by the weight of the whole effective batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ampft.errors import InputError, check_type, quoted_list
from ampft.precision.transfer import to_device

FloatArray = npt.NDArray[np.float64]

MAX_EXAMPLES = 2048  # on which the loss of the constant model is computed
SMALLEST_SHARE = 1e-6


def summed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
    ignore_index: int = -100,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy, or the focal loss, summed over the examples.

    Divided by the sum of the examples' class weights, it equals `torch.nn.CrossEntropyLoss` with
    the same `weight` and `label_smoothing` and `reduction="mean"`.

    Args:
        logits: (m, C, ...), any floating dtype; computed in float32, or in float64 for float64
            logits.
        labels: (m, ...) int64 class indices, or (m, C, ...) probabilities of the classes, such as
            mixed or distilled labels.
        class_weights: (C,) float32; None gives every class the weight 1.
        label_smoothing: Share of the target that is spread evenly over the classes, 0 to 1.
        focal_gamma: Exponent of the focal loss; 0 for cross entropy. Not with label smoothing.
        ignore_index: Label of what does not count.
        weights: Weights of the examples, (m,), or of single losses, (m, ...). They multiply the
            weights of the classes; None for 1.

    Returns:
        A float32 scalar; float64 for float64 logits.

    Raises:
        ValueError: The focal loss is combined with label smoothing or with probabilities, or the
            label smoothing is not between 0 and 1.
    """
    check_type("summed_cross_entropy", "logits", logits, Tensor)
    check_type("summed_cross_entropy", "labels", labels, Tensor)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be 0 to 1, received {label_smoothing}")
    is_soft = labels.is_floating_point()
    if focal_gamma and (label_smoothing or is_soft):
        other = "probabilities as labels" if is_soft else "label_smoothing"
        raise ValueError(f"focal_gamma and {other} cannot be combined; set focal_gamma to 0")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    of_classes = None if class_weights is None else to_device(class_weights, logits.device, dtype)
    with torch.autocast(logits.device.type, enabled=False):
        if focal_gamma:
            counted = labels != ignore_index
            index = torch.where(counted, labels, 0)
            losses = _focal_losses(logits.to(dtype), index, focal_gamma)
            factors = counted.to(dtype) if of_classes is None else counted * of_classes[index]
            return weighted_sum(losses * factors, weights)
        losses = functional.cross_entropy(
            logits.to(dtype),
            labels.to(dtype) if is_soft else labels,
            weight=of_classes,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction="sum" if weights is None else "none",
        )
        return losses if weights is None else weighted_sum(losses, weights)


def weighted_sum(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of (m, ...) losses times (m,) weights of the examples, or of their own shape.

    Raises:
        ValueError: The weights have another shape, which torch would broadcast.
    """
    if weights is None:
        return losses.sum()
    if weights.shape not in (losses.shape, losses.shape[:1]):
        raise ValueError(
            f"weights {tuple(weights.shape)} must have one weight per example, or per loss: shape "
            f"({len(losses)},) or {tuple(losses.shape)}"
        )
    extra = [1] * (losses.ndim - weights.ndim)
    return (losses * weights.to(losses.dtype).reshape(*weights.shape, *extra)).sum()


def _focal_losses(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Return -(1 - p)^gamma log p of each label, (m, ...), where p is its probability.

    Source: Lin et al. (2017), "Focal Loss for Dense Object Detection", equation 4. The logarithm of
    1 - p is computed from the sum over the other classes, so that neither it nor its gradient
    loses digits or becomes infinite where p rounds to 1.
    """
    index = labels.unsqueeze(1)
    total = logits.logsumexp(1)
    log_p = logits.gather(1, index).squeeze(1) - total
    log_rest = logits.scatter(1, index, -torch.inf).logsumexp(1) - total
    return -(gamma * log_rest).exp() * log_p


def summed_binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    positive_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the binary cross entropy, or the focal loss, summed over all decisions.

    Divided by m * K, it equals `torch.nn.BCEWithLogitsLoss` with the same `pos_weight`.

    Args:
        logits: (m, K), any floating dtype; computed in float32, or in float64 for float64 logits.
        targets: (m, K) bool, or floating-point probabilities, which the focal loss does not take.
        positive_weights: (K,) weights of the decisions whose target is true; None for 1.
        label_smoothing: Share of each target that is moved to one half, 0 to 1.
        focal_gamma: Exponent of the focal loss; 0 for cross entropy. Not with label smoothing.
        weights: (m,) factors of the losses of the examples; None for 1.
    """
    check_type("summed_binary_cross_entropy", "logits", logits, Tensor)
    check_type("summed_binary_cross_entropy", "targets", targets, Tensor)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if focal_gamma and targets.dtype != torch.bool:
        raise ValueError("focal_gamma needs targets of dtype bool; set it to 0 for probabilities")
    positive = None
    if positive_weights is not None:
        positive = to_device(positive_weights, logits.device, logits.dtype)
    with torch.autocast(logits.device.type, enabled=False):
        if focal_gamma:
            toward = torch.where(targets, logits, -logits)
            modulation = (focal_gamma * functional.logsigmoid(-toward)).exp()
            losses = -modulation * functional.logsigmoid(toward)
            if positive is not None:
                losses = torch.where(targets, positive * losses, losses)
            return weighted_sum(losses, weights)
        smoothed = targets.to(logits.dtype).lerp(torch.full_like(logits, 0.5), label_smoothing)
        losses = functional.binary_cross_entropy_with_logits(
            logits, smoothed, pos_weight=positive, reduction="sum" if weights is None else "none"
        )
        return losses if weights is None else weighted_sum(losses, weights)


def summed_squared_error(
    predictions: Tensor,
    targets: Tensor,
    *,
    huber_delta: float | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the squared error, or Huber's loss, summed over all numbers, a float32 scalar.

    Args:
        predictions: (m, ...), any floating dtype; computed in float32, or in float64 for float64.
        targets: (m, ...), the same shape.
        huber_delta: Error from which Huber's loss grows linearly; None for the squared error.
        weights: (m,) factors of the losses of the examples; None for 1.

    Raises:
        ValueError: The shapes differ, which torch would broadcast.
    """
    check_type("summed_squared_error", "predictions", predictions, Tensor)
    check_type("summed_squared_error", "targets", targets, Tensor)
    if predictions.shape != targets.shape:
        raise ValueError(
            f"predictions {tuple(predictions.shape)} and targets {tuple(targets.shape)} must have "
            "the same shape"
        )
    dtype = torch.promote_types(predictions.dtype, torch.float32)
    pair = predictions.to(dtype), targets.to(dtype)
    with torch.autocast(predictions.device.type, enabled=False):
        reduction = "sum" if weights is None else "none"
        if huber_delta is None:
            losses = functional.mse_loss(*pair, reduction=reduction)
        else:
            losses = functional.huber_loss(*pair, reduction=reduction, delta=huber_delta)
        return losses if weights is None else weighted_sum(losses, weights)


def parse_class_weights(
    requested: str | None, counts: npt.NDArray[np.integer], label_names: Sequence[str]
) -> npt.NDArray[np.float32] | None:
    """Return the (K,) float32 class weights that `--class_weights` requests.

    Args:
        requested: None, "balanced", or K positive numbers separated by commas.
        counts: (K,) training examples per class.
        label_names: Names of the K classes, for the message.

    Raises:
        InputError: The number of weights is not K, or a weight is not positive.
    """
    if requested is None:
        return None
    if requested == "balanced":
        return balanced_class_weights(counts)
    try:
        weights = [float(part) for part in requested.split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(counts) or not all(0 < weight < np.inf for weight in weights):
        raise InputError(
            f"--class_weights: received {requested!r}; use 'balanced' or {len(counts)} "
            "positive numbers separated by commas, in the order of the labels: "
            f"{quoted_list(label_names)}."
        )
    return np.array(weights, dtype=np.float32)


def balanced_class_weights(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """Return n / (K * counts), the weights that scikit-learn calls "balanced".

    A class without training examples is not counted in K and has the weight 1, which changes
    nothing in training: such as the tag I-X of an entity that is always one word long.

    Args:
        counts: (K,) examples per class in the training split.

    Returns:
        (K,) float32 weights whose mean over the training examples is 1.
    """
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return np.where(counts, weights, 1).astype(np.float32)


def constant_loss(
    problem: Any, shares: FloatArray, logits_of: Callable[[FloatArray], FloatArray], targets: Any
) -> float:
    """Return the loss per unit of weight of a model that gives every example the same logits.

    These are the logits of the shares of the classes. The loss is computed on at most
    `MAX_EXAMPLES` random examples.

    Args:
        problem: Problem that computes the loss.
        shares: (K,) shares of the classes.
        logits_of: Function that returns the logits of shares above 0 and below 1.
        targets: (n, ...) labels.
    """
    if len(targets) > MAX_EXAMPLES:
        targets = targets[
            np.random.default_rng(0).choice(len(targets), MAX_EXAMPLES, replace=False)
        ]
    logits = logits_of(np.clip(shares, SMALLEST_SHARE, 1 - SMALLEST_SHARE))
    rows = torch.from_numpy(logits).float().expand(len(targets), -1)
    loss = problem.loss(rows, torch.from_numpy(targets))
    return float(loss) / float(problem.weights(targets).sum())
