"""A finished run, read from its folder: its report, its predictions and its model."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ampft.arguments.parsing import messages_for_python
from ampft.errors import InputError, check_type
from ampft.precision.modes import BASELINE
from ampft.runs.manifest import check_files, check_model_files
from ampft.runs.record import RunRecord, not_finished, read_record
from ampft.runs.run_text import decision_blocks, format_run, heading, read_report, result_blocks
from ampft.tasks.report import Report
from ampft.text.page import notebook_html

if TYPE_CHECKING:
    import pandas as pd

PREDICTIONS_NAME = "predictions.parquet"


class FinishedRun:
    """A finished run.

    `ampft.finetune` returns one, and `FinishedRun(folder)` opens an earlier one.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a run.

        Args:
            folder: Output folder of a run that finished.

        Raises:
            InputError: The folder does not hold a run that finished.
        """
        check_type("FinishedRun", "folder", folder, (str, Path))
        self.folder = Path(folder)  # Output folder of the run.
        with messages_for_python():
            # Everything about the run, as in run.json.
            self.record: RunRecord = read_record(self.folder)
        if self.record.status != "finished":
            raise InputError(f"{self.folder}: {not_finished(self.record)}.")

    @cached_property
    def report(self) -> Report:
        """The report of the final split, with its metrics."""
        report = read_report(self.folder, self.record)
        if report is None:
            raise InputError(f"{self.folder}: the folder has no report.json.")
        return report

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """The predictions of the final split, one row per example."""
        import pandas as pd

        check_files(self.folder, self.record.files, [PREDICTIONS_NAME])
        return pd.read_parquet(self.folder / PREDICTIONS_NAME)

    @cached_property
    def model(self) -> Any:
        """The model of transformers, in float32 on the CPU."""
        import transformers

        from ampft.models.pretrained import load_saved
        from ampft.tasks.table import TASKS

        check_model_files(self.folder, self.record.files)
        auto_class = getattr(transformers, TASKS[self.record.task].model_class)
        return load_saved(auto_class, str(self.folder))

    def predict(
        self,
        inputs: Any,
        *,
        precision: str = BASELINE,
        batch_size: int = 64,
        top_k: int = 0,
        all_probabilities: bool = False,
        decimals: int | None = 6,
    ) -> pd.DataFrame:
        """Predict texts or images.

        Args:
            inputs: One text or image, or a list of them; a list of pairs if the model was trained
                on pairs. An image is a path or a `PIL.Image.Image`.
            precision: Precision of the computation.
            batch_size: Inputs per forward pass.
            top_k: Number of most probable labels to add.
            all_probabilities: Whether to add the probability of every label.
            decimals: Decimal places of the probabilities, 0 or more; None does not round. Refused
                for numbers, which have no probability.

        Returns:
            One row per input, with `prediction` and `confidence`, and `answered` if the model was
            trained with `abstain`; a row that is not answered has an empty prediction.

        Raises:
            InputError: The inputs are not those that the model needs, the precision is not
                available, or another run was written to the folder since this object was made.
        """
        from ampft.kinds.prediction import PredictRequest
        from ampft.runs.predict import predict_inputs

        request = PredictRequest(
            mixed_precision=precision,
            batch_size=batch_size,
            top_k=top_k,
            all_probabilities=all_probabilities,
            decimals=decimals,
        )
        return predict_inputs(self.folder, inputs, request, self.record)

    def __repr__(self) -> str:
        return f"FinishedRun({str(self.folder)!r})\n{format_run(self.folder)}"

    def _repr_html_(self) -> str:
        """Return heading and report as HTML, in which nothing from the data is active."""
        blocks = [*result_blocks(self.record, self.report), *decision_blocks(self.record)]
        return Markup("<pre>{}</pre>\n{}").format(heading(self.record), notebook_html(blocks))
