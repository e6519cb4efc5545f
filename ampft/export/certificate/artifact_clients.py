"""Serves an artifact back: do plain clients give the run's predictions.parquet from its folder?

`transformers.pipeline` calls its runtime, `ampft predict` reads the user's file, and decision.py in
its folder answers like a server that has neither ampft nor transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from ampft.decision import CONTRACT_NAME, TOKENIZER_NAME
from ampft.export.artifact import Artifact
from ampft.export.certificate.verified_rows import VerifiedRows
from ampft.export.formats import INT8
from ampft.integrations.pipeline_answers import NoPipelineAnswers
from ampft.integrations.serving_back import BATCH, PREDICTIONS, OtherRuntime, serve_back
from ampft.runs.client_answers import ServedPart
from ampft.runs.predictions import read_predictions
from ampft.runs.record import read_record
from ampft.runs.run_text import task_row


def served_artifact(artifact: Artifact, run: Path, rows: VerifiedRows) -> ServedPart | None:
    """Ask plain clients about some rows of an artifact; None unless they are the run's own split.

    Args:
        artifact: The artifact.
        run: Folder of the run that it was made from.
        rows: The verified rows.
    """
    if rows.data is None or not (run / PREDICTIONS).is_file():
        return None
    outcome = read_predictions(run / PREDICTIONS)
    if outcome.split != rows.name:
        return None
    runtime = OtherRuntime(
        run=run,
        precision=artifact.manifest.precision,
        predictor=artifact.predictor(BATCH),
        model=_pipeline_model(artifact),
        answer=Server(artifact) if (artifact.folder / TOKENIZER_NAME).is_file() else None,
    )
    # The record of the run, which names the user's files; the one in the artifact does not.
    return serve_back(artifact.folder, read_record(run), outcome, rows.data, runtime)


def _pipeline_model(artifact: Artifact) -> Any:
    """Return a model of transformers that calls the runtime; None if the folder holds one."""
    manifest, model = artifact.manifest, artifact.model
    if manifest.format == "torch":
        is_plain = manifest.precision != INT8 and not manifest.keep_float
        return None if is_plain else model
    auto_class = getattr(transformers, task_row(artifact.record).model_class)
    with torch.device("meta"):  # nothing is computed with its weights
        shell = auto_class.from_config(artifact.config)
    shell.to_empty(device="cpu").eval()
    shell.forward = lambda **inputs: model(**inputs)
    return shell


class Server:
    """A server of texts that runs the modules in the folder of an artifact."""

    def __init__(self, artifact: Artifact) -> None:
        """Keep what a server loads when it starts."""
        self._artifact = artifact

    def __call__(self, inputs: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the shown columns of texts, pairs of texts or sentences.

        Raises:
            NoPipelineAnswers: The tokenizer exists only in transformers.
        """
        folder, model = self._artifact.folder, self._artifact.model
        contract = _module(folder / "decision.py").Contract.read(folder)
        if contract.tokenization is None:
            raise NoPipelineAnswers(f"{CONTRACT_NAME} has no tokenization")
        units = None
        if contract.units is not None:
            units = _module(folder / "units.py").TextUnits(**contract.units)

        def run(arrays: Mapping[str, Any]) -> Any:
            names = self._artifact.manifest.inputs
            tensors = {name: torch.from_numpy(arrays[name]) for name in names}
            return model(**tensors).logits.float().numpy()

        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_NAME))
        with torch.no_grad():
            columns = contract.answer(inputs, tokenizer, run, units=units, batch_size=BATCH)
        return dict(columns)


def _module(path: Path) -> Any:
    """Return a module of an artifact, and leave no trace of it in `sys.modules`."""
    name = f"_served_{path.stem}"
    spec: Any = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
