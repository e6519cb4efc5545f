"""A loss per case: what an own loop predicts if its cases have no classes, as in regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ampft.errors import check_type
from ampft.labels.unclassified import Unclassified
from ampft.metrics.sums import CaseSums, Metric, costliest_of_worst, mean_metric, mean_sums
from ampft.tasks.outcome import OutcomeMistakes, check_ids_complete
from ampft.tasks.report import HubMetric, Report
from ampft.text.page import Table

if TYPE_CHECKING:
    import pyarrow as pa

FloatArray = npt.NDArray[np.float64]


LOSS = replace(
    mean_metric("loss", "loss", values=lambda predictions: predictions.losses),
    costliest=costliest_of_worst,
)


@dataclass(frozen=True)
class CaseLossReport(Report):
    """The mean loss of a split."""

    loss: float  # Mean over the cases.

    def own_metrics(self) -> dict[str, float | None]:
        """Return the mean loss."""
        return {"loss": self.loss}

    def tables(self) -> tuple[Table, ...]:
        """Return a table of the mean loss."""
        rows = [("loss", f"{self.loss:.6g}")]
        return (Table(header=("metric", "mean over the cases"), rows=rows),)

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return the loss."""
        return (HubMetric("loss", "loss", self.loss),)


@dataclass(frozen=True)
class CaseLossPredictions(Unclassified):
    """The loss of a model on each case of a split, such as its squared error.

    Raises:
        ValueError: A shape or a dtype is wrong, a loss is not finite, or a case is missing.
    """

    example_ids: npt.NDArray[np.int64]  # Shape (n,): 0..n-1; the row of the split.
    losses: FloatArray  # Shape (n,), float64.
    split: str  # Name of the split, such as "test".

    kind: ClassVar[str] = "case_losses"
    label_names: ClassVar[tuple[str, ...]] = ()
    class_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_type("CaseLossPredictions", "example_ids", self.example_ids, np.ndarray)
        check_type("CaseLossPredictions", "losses", self.losses, np.ndarray)
        n = len(self.example_ids)
        check_ids_complete(self.example_ids, n)
        if self.losses.shape != (n,) or not n or not np.isfinite(self.losses).all():
            raise ValueError(f"losses must be {n} finite numbers, one for each case")

    @classmethod
    def from_losses(cls, losses: Any, *, split: str = "test") -> CaseLossPredictions:
        """Return the predictions of a model from its (n,) losses, a tensor or an array."""
        values = losses.detach().cpu() if hasattr(losses, "detach") else losses
        array = np.asarray(values, dtype=np.float64)
        return cls(np.arange(len(array)), array, split)

    def __len__(self) -> int:
        return len(self.example_ids)

    @property
    def truth(self) -> npt.NDArray[np.int64]:
        """Zeros: no labels are kept."""
        return np.zeros(len(self), dtype=np.int64)

    @property
    def choices(self) -> FloatArray:
        """The losses."""
        return self.losses

    @property
    def only_prediction(self) -> None:
        """None: there are no classes."""
        return None

    @property
    def unit_sums(self) -> CaseSums:
        """The sums of the losses."""
        return mean_sums(self.losses)

    def report(self) -> CaseLossReport:
        """Return the report of the split."""
        return CaseLossReport(self.split, len(self), float(self.losses.mean()))

    def metrics(self) -> dict[str, float]:
        """Return the mean loss."""
        return {"loss": float(self.losses.mean())}

    def sums(self, metric: str) -> CaseSums:
        """Return the sums of the losses."""
        del metric
        return self.unit_sums

    def mistakes(self) -> OutcomeMistakes:
        """Return the cases by their losses, the largest first."""
        return OutcomeMistakes(
            scores=self.losses,
            names=(),
            support=(),
            counts={},
            confused=lambda label, prediction: self.correct,
            heading="Largest losses",
            ranking="The number is the loss.",
            has_labels=False,
        )

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return the losses of some rows."""
        import pyarrow as pa

        return {"loss": pa.array(self.losses[rows])}

    def metadata(self) -> dict[str, Any]:
        """Return the split."""
        return {"split": self.split}

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> CaseLossPredictions:
        """Return the predictions from a table of `columns` and the result of `metadata`."""
        return cls(table["example_id"].to_numpy(), table["loss"].to_numpy(), metadata["split"])


class CaseLosses:
    """The problem of an own loop whose cases have a loss and no class."""

    name: ClassVar[str] = CaseLossPredictions.kind
    transformers_type: ClassVar[str | None] = None
    metrics: ClassVar[Mapping[str, Metric]] = {LOSS.name: LOSS}
    printed: ClassVar[tuple[str, ...]] = (LOSS.name,)
    outcome_type: ClassVar[Any] = CaseLossPredictions
    report_type: ClassVar[Any] = CaseLossReport

    @staticmethod
    def has_class(
        truth: npt.NDArray[Any], label_names: Sequence[str], index: int
    ) -> npt.NDArray[np.bool_]:
        """Return False everywhere: there are no classes."""
        return np.zeros(len(truth), dtype=np.bool_)

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return the loss as text."""
        return f"loss {float(choice):.4g}"

    @staticmethod
    def truth_text(truth: Any, label_names: Sequence[str]) -> str:
        """Return an empty text."""
        return ""
