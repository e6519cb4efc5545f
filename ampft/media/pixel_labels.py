"""One class per pixel: cross entropy over the pixels that count, and masks as predictions."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from ampft.media.iou import MEAN_IOU, PIXEL_ACCURACY
from ampft.media.masks import IGNORED, Masks
from ampft.media.pixel_outcome import BINS, METRICS, PixelPredictions, PixelReport
from ampft.metrics.sums import MAX_LOG_LOSS
from ampft.tasks.loss import SMALLEST_SHARE, parse_class_weights
from ampft.tasks.single_label import SingleLabel

if TYPE_CHECKING:
    from torch import Tensor

    from ampft.tasks.loss_settings import LossSettings

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PixelLabels:
    """Segmentation: every pixel of an image has one class, or does not count."""

    # The same problem for single pixels: its loss is summed over all that count.
    pixels: SingleLabel

    name: ClassVar[str] = "pixels"
    transformers_type: ClassVar[str | None] = None
    metrics: ClassVar = METRICS
    printed: ClassVar[tuple[str, ...]] = ("mean_iou", "pixel_accuracy", "log_loss")
    outcome_type: ClassVar = PixelPredictions
    report_type: ClassVar = PixelReport

    @property
    def label_names(self) -> tuple[str, ...]:
        """The K classes, in the order of the logits."""
        return self.pixels.label_names

    @classmethod
    def from_settings(
        cls, label_names: tuple[str, ...], targets: Masks, settings: LossSettings
    ) -> PixelLabels:
        """Return the problem for the classes of the data; class weights are counted over pixels.

        Args:
            label_names: Names of the K classes.
            settings: The user's choices.

        Raises:
            InputError: `--class_weights` does not fit the classes.
        """
        counts = targets.counts.sum(axis=0)
        weights = parse_class_weights(settings.class_weights, counts, label_names)
        smoothing, gamma = settings.label_smoothing_factor, settings.focal_gamma
        return cls(SingleLabel(label_names, weights, smoothing, gamma))

    @classmethod
    def from_arguments(
        cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]
    ) -> PixelLabels:
        """Return the problem of a saved model; prediction needs only the labels."""
        return cls(SingleLabel.from_arguments(label_names, arguments))

    def weights(self, targets: Masks) -> FloatArray:
        """Return the (n,) loss weights of the images: sums of their labelled pixels' weights."""
        return targets.counts @ self.pixels.weights(np.arange(len(self.label_names)))

    def loss(self, logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """Return the loss summed over the pixels that count, a float32 scalar.

        Args:
            logits: (m, K, h, w) float32; resized to the masks bilinearly.
            targets: (m, H, W) int64 class indices, `IGNORED` for pixels that do not count.
            weights: (m,) factors of the losses of the images; None for 1.
        """
        resized = resized_logits(logits, (targets.shape[-2], targets.shape[-1]))
        return self.pixels.loss(resized, targets, weights=weights, ignore_index=IGNORED)

    def decode(self, logits: Tensor, inputs: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """Return the predicted masks, each in the size of its image, and counts of their pixels.

        Args:
            logits: (m, K, h, w) float32.
            inputs: `label_sizes` (m, 2), heights and widths of the images; with `labels`, masks
                that are padded to one size, also counts by label.
        """
        assert inputs is not None, "the sizes of the images are inputs"
        labels = inputs.get("labels")
        rows = [
            self._decoded(one, size, None if labels is None else labels[index])
            for index, (one, size) in enumerate(
                zip(logits, inputs["label_sizes"].tolist(), strict=True)
            )
        ]
        masks = np.empty(len(rows), dtype=object)
        masks[:] = [row.pop("mask") for row in rows]
        return {"mask": masks, **{name: np.stack([row[name] for row in rows]) for name in rows[0]}}

    def _decoded(
        self, logits: Tensor, size: Sequence[int], labels: Tensor | None
    ) -> dict[str, Any]:
        """Return the predictions of one image.

        Args:
            logits: (K, h, w) float32.
            size: Height and width of the image.
            labels: Its mask, possibly padded; None if it is unknown.
        """
        import torch
        from torch.nn import functional

        height, width = size
        classes = len(self.label_names)
        with torch.autocast(logits.device.type, enabled=False):
            whole = resized_logits(logits[None], (height, width))[0].flatten(1)  # (K, pixels)
            log_probabilities = functional.log_softmax(whole, dim=0)
        log_confidence, predicted = log_probabilities.max(dim=0)
        confidence = log_confidence.exp().double()
        mask = predicted.to(torch.uint8).cpu().numpy().reshape(height, width)
        decoded = {
            "mask": mask_to_png(mask),
            "digests": mask_digest(mask),
            "shares": np.bincount(mask.ravel(), minlength=classes).astype(np.int64),
            "confidence": float(confidence.mean()),
        }
        if labels is None:
            return decoded
        truth = labels[:height, :width].flatten().to(logits.device)
        counted = truth != IGNORED
        truth, predicted, confidence = truth[counted], predicted[counted], confidence[counted]
        losses = -log_probabilities[:, counted].gather(0, truth[None])[0].double()
        losses = losses.clamp(max=MAX_LOG_LOSS)  # as the log loss of every other task
        cells = torch.bincount(truth * classes + predicted, minlength=classes * classes)
        edges = torch.arange(1, BINS, device=logits.device, dtype=torch.float64) / BINS
        bin_of = torch.bucketize(confidence, edges)
        is_correct = (truth == predicted).double()
        sums = (torch.ones_like(confidence), confidence, is_correct)
        # A confidence that is not finite, which `evaluate` reports, would be in a bin more.
        bins = [torch.bincount(bin_of, weights=v, minlength=BINS)[:BINS] for v in sums]
        return decoded | {
            "counts": cells.cpu().numpy().reshape(classes, classes),
            "losses": torch.stack([losses.sum(), (losses**2).sum()]).cpu().numpy(),
            "bins": torch.stack(bins).cpu().numpy(),
        }

    def outcome(
        self, split: str, targets: Masks, decoded: Mapping[str, npt.NDArray[Any]]
    ) -> PixelPredictions:
        names = ("counts", "losses", "bins", "digests")
        parts: dict[str, Any] = {name: decoded[name] for name in names}
        return PixelPredictions(
            **parts, label_names=self.label_names, split=split, masks=decoded.get("mask")
        )

    def constant(self, train: Masks, targets: Masks) -> dict[str, npt.NDArray[Any]]:
        """Return the most frequent class for each pixel, with the frequencies as probabilities."""
        shares = train.counts.sum(axis=0) / train.counts.sum()
        best = int(shares.argmax())
        labelled = targets.counts
        counts = np.zeros((len(labelled), len(shares), len(shares)), dtype=np.int64)
        counts[:, :, best] = labelled
        losses = -np.log(np.maximum(shares, SMALLEST_SHARE))
        pixels = labelled.sum(axis=1)
        bins = np.zeros((len(labelled), 3, BINS))
        place = min(int(np.ceil(shares[best] * BINS)) - 1, BINS - 1)
        bins[:, :, place] = np.stack([pixels, pixels * shares[best], labelled[:, best]], axis=1)
        return {
            "counts": counts,
            "losses": np.column_stack([labelled @ losses, labelled @ losses**2]),
            "bins": bins,
            "digests": np.zeros(len(labelled), dtype=np.int64),
        }

    def constant_loss(self, train: Masks) -> float:
        """Return the loss of predicting the frequencies of the classes, per unit of weight."""
        import torch

        counts = train.counts.sum(axis=0)
        shares = np.maximum(counts / counts.sum(), SMALLEST_SHARE)
        logits = torch.from_numpy(np.log(shares)).float().reshape(1, -1, 1, 1)
        labels = torch.arange(len(counts)).reshape(-1, 1, 1, 1)
        losses = np.array([float(self.loss(logits, label)) for label in labels])
        return float(counts @ losses / self.weights(train).sum())

    def predicted(self, decoded: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return the largest classes of each predicted mask, and its mean confidence."""
        return [
            (shares_text(shares, self.label_names), float(confidence))
            for shares, confidence in zip(decoded["shares"], decoded["confidence"], strict=True)
        ]

    @staticmethod
    def has_class(
        truth: npt.NDArray[Any], label_names: Sequence[str], index: int
    ) -> npt.NDArray[np.bool_]:
        """Return (n,) whether an image has a pixel of the class `index`."""
        return truth[:, index] > 0

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return mean IoU and pixel accuracy of an image."""
        correct, labelled, predicted = np.asarray(choice)[1:].reshape(3, len(label_names))
        sums = np.concatenate([correct, labelled, predicted, [labelled.sum()]]).astype(np.float64)
        return ", ".join(
            f"{metric.title} {float(metric.from_sums(sums)):z.3f}"
            for metric in (MEAN_IOU, PIXEL_ACCURACY)
        )

    @staticmethod
    def truth_text(truth: Any, label_names: Sequence[str]) -> str:
        """Return the largest classes of a mask."""
        return shares_text(np.asarray(truth), label_names)


def shares_text(pixels: npt.NDArray[Any], label_names: Sequence[str], *, shown: int = 4) -> str:
    """Return the largest shares of an image: "Road 34 %, Building 22 %, Sky 17 %"."""
    total = max(int(pixels.sum()), 1)
    order = np.argsort(-pixels, kind="stable")[:shown]
    return ", ".join(f"{label_names[i]} {pixels[i] / total:.0%}" for i in order if pixels[i])


def resized_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return (m, K, H, W) logits in the size of the masks, interpolated bilinearly in float32.

    The examples and pipelines of transformers do the same.
    """
    from torch.nn import functional

    if tuple(logits.shape[-2:]) == size:
        return logits
    return functional.interpolate(logits, size=size, mode="bilinear", align_corners=False)


def mask_to_png(mask: npt.NDArray[np.uint8]) -> bytes:
    """Return an (H, W) mask of class indices as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(mask).save(file, format="PNG")
    return file.getvalue()


def mask_digest(mask: npt.NDArray[np.uint8]) -> np.int64:
    """Return a hash of an (H, W) mask, of 64 bits."""
    return np.int64(
        int.from_bytes(hashlib.blake2b(mask.tobytes(), digest_size=8).digest(), signed=True)
    )
