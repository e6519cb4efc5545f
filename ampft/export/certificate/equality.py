"""What of an artifact must equal its source exactly: its files, its settings, and its decisions.

None of this is estimated from rows: a temperature, a label or an activation function that differs
is named, however few predictions it changes. Where the logits equal the model's to rounding too,
also on made-up rows that no test set has, the artifact is shown to be its model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.decision import CONTRACT_NAME, Answers, Contract, Rule
from ampft.errors import InputError
from ampft.export.artifact import MODULES, SOURCE_NAME, Artifact
from ampft.export.certificate.certificate import (
    EQUAL,
    AnswerDifferences,
    Finding,
    ProbeDifferences,
    finding,
)
from ampft.export.certificate.gate import LogitTally
from ampft.files import describe_file, hashed_text
from ampft.kinds.logits import forward_logits, model_inputs
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_config
from ampft.models.tokenizer import read_contract
from ampft.runs.manifest import MODEL_FILES, RECORD_NAME, WEIGHT_FILES, matches_any_pattern
from ampft.runs.predictor import Predictor
from ampft.runs.record import read_record
from ampft.runs.redaction import published_record

OF_FORMAT = ("config.json", "generation_config.json", *WEIGHT_FILES, "adapter_config.json")
# Entries of a configuration that say who saved it, or in which dtype, and not what it computes;
# labels are compared by themselves.
OF_SAVING = frozenset({"transformers_version", "dtype", "torch_dtype", "id2label", "label2id"})
MISSING = "nothing"
CODE = ".py"
PROBES = (64, 256)  # least and most made-up rows
PROBE_BATCH = 16
PROBE_SEED = 0


def exact_failures(artifact: Artifact, run: Path, loaded: Any) -> Iterator[Finding]:
    """Yield what of an artifact is not the run's, found without a prediction.

    Args:
        loaded: Configuration of the run's model as loaded, for a run that has only adapters.
    """
    yield from _labels(artifact)
    source = read_contract(run)
    if source is not None:
        yield from _contract(artifact.folder, run)
    config = loaded
    if (run / "config.json").is_file():
        config = load_config(str(run), trust_remote_code=False, flag=SAVED_MODEL_FLAG)
    entries = differing_entries(
        _computed(config.to_dict(), run), _computed(artifact.config.to_dict(), artifact.folder)
    )
    if entries:
        yield finding("config", entries=entries)
    yield from _manifest(artifact)
    changed = [
        name
        for name in sorted({*_processor_files(artifact.folder), *_processor_files(run)})
        if not _are_same_file(artifact.folder / name, run / name)
    ]
    if hashed_text(artifact.record) != hashed_text(published_record(read_record(run))):
        changed.append(f"{SOURCE_NAME}/{RECORD_NAME}")
    if changed:
        yield finding("processor", names=changed)
    modules = [
        name
        for name, own in MODULES.items()
        if source is not None and not _are_same_file(artifact.folder / name, own)
    ]
    if modules:
        yield finding("modules", names=modules)
    added = sorted(_added_files(artifact, run))
    if added:
        yield finding("added", names=added)


def _labels(artifact: Artifact) -> Iterator[Finding]:
    """Yield labels in config.json, where every other program reads them, that are not the run's."""
    found, expected = config_labels(artifact), list(artifact.record.label_names)
    if set(found) != set(expected) or len(found) != len(expected):
        missing, added = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        yield finding("labels", missing=missing, added=added)
    elif found != expected:
        yield finding("label_order", found=found, expected=expected)


def config_labels(artifact: Artifact) -> list[str]:
    """Return the labels in config.json of an artifact."""
    return [str(name) for _, name in sorted(artifact.config.id2label.items())]


def _contract(folder: Path, run: Path) -> Iterator[Finding]:
    """Yield the entries of decision.json that differ, also those that nobody reads."""
    try:
        found = read_contract(folder)
    except InputError as error:
        yield finding("contract", entries=[str(error)])
        return
    values = {} if found is None else _stored_contract(folder)
    entries = differing_entries(_stored_contract(run), values)
    if entries:
        yield finding("contract", entries=entries)


def _stored_contract(folder: Path) -> Any:
    return json.loads((folder / CONTRACT_NAME).read_text(encoding="utf-8"))


def _manifest(artifact: Artifact) -> Iterator[Finding]:
    manifest, record = artifact.manifest, artifact.record
    stated = {
        "task": manifest.task,
        "label_names": list(manifest.label_names),
        "input_columns": list(manifest.input_columns),
        "preprocessing": dict(manifest.preprocessing),
    }
    recorded = {
        "task": record.task,
        "label_names": list(record.label_names),
        "input_columns": list(record.data.input_columns),
        "preprocessing": dict(record.model.preprocessing),
    }
    entries = differing_entries(recorded, stated)
    if entries:
        yield finding("manifest", entries=entries)


def _computed(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the entries of a configuration that say what a model computes."""
    named = {"_name_or_path": str(folder)}
    return {
        name: value
        for name, value in values.items()
        if name not in OF_SAVING and name not in named and not name.startswith("_")
    }


def _processor_files(folder: Path) -> list[str]:
    """Return the names of the files of the tokenizer or processor, and of the contract."""
    return [
        path.name
        for path in folder.iterdir()
        if path.is_file()
        and path.name != CONTRACT_NAME
        and matches_any_pattern(path.name, MODEL_FILES)
        and not matches_any_pattern(path.name, OF_FORMAT)
    ]


def _added_files(artifact: Artifact, run: Path) -> Iterator[str]:
    """Yield files of weights or code that the export did not write, and others would load."""
    for name in artifact.manifest.files:
        path = Path(name)
        is_loaded = path.suffix == CODE or matches_any_pattern(path.name, WEIGHT_FILES)
        is_own = name == artifact.manifest.model or name in MODULES
        if is_loaded and not is_own and not _are_same_file(artifact.folder / name, run / name):
            yield name


def _are_same_file(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and describe_file(one) == describe_file(other)


def differing_entries(source: Any, found: Any, name: str = "") -> list[str]:
    """Return which entries of JSON values differ: "rule.threshold 0.3, not 0.5"."""
    if isinstance(source, Mapping) and isinstance(found, Mapping):
        return [
            entry
            for key in {**source, **found}
            for entry in differing_entries(
                source.get(key, MISSING), found.get(key, MISSING), f"{name}.{key}".lstrip(".")
            )
        ]
    return [] if source == found else [f"{name} {found!r}, not {source!r}"]


class AnswerTally:
    """Counts the answers that differ, and those that differ although the logits are equal."""

    def __init__(self, model: Rule, artifact: Rule) -> None:
        """Count nothing yet.

        Args:
            model: How the logits of the model become answers.
        """
        self._model, self._artifact = model, artifact
        self._rows = self._labels = self._answered = self._decided = 0
        self._largest = 0.0
        self._numbers = LogitTally()

    def add(self, logits: npt.NDArray[Any], own: npt.NDArray[Any]) -> None:
        """Add the (m, K) logits of a batch from the model and from the artifact."""
        expected = self._model.probabilities(logits)
        found = self._artifact.probabilities(own)
        shown, shown_by_artifact = self._model.answers(expected), self._artifact.answers(found)
        self._rows += len(logits)
        self._largest = max(self._largest, float(np.abs(found - expected).max(initial=0.0)))
        if self._model.numbers:
            self._numbers.add(expected, found)
        else:
            pairs_of_labels = zip(shown.labels, shown_by_artifact.labels, strict=True)
            self._labels += sum(one != other for one, other in pairs_of_labels)
        self._answered += int((_answered(shown) != _answered(shown_by_artifact)).sum())
        # The logits of the model, decided by the artifact: nothing is left to rounding.
        same = self._artifact.answers(self._artifact.probabilities(logits))
        pairs = zip(shown.columns().values(), same.columns().values(), strict=False)
        if shown.columns().keys() != same.columns().keys():
            self._decided += len(logits)
        else:
            columns = [np.asarray(one, object) != np.asarray(two, object) for one, two in pairs]
            self._decided += int(np.any(columns, axis=0).sum())

    def differences(self) -> AnswerDifferences:
        """Return the counts over all rows."""
        return AnswerDifferences(
            rows=self._rows,
            labels=self._numbers.beyond(EQUAL) if self._model.numbers else self._labels,
            answered=self._answered,
            probability=self._largest,
            decided=self._decided,
            are_numbers=self._model.numbers,
        )


def _answered(answers: Answers) -> npt.NDArray[np.bool_]:
    every = np.ones(len(answers.labels), dtype=bool)
    return every if answers.answered is None else answers.answered


@torch.no_grad()
def probed(model: Predictor, artifact: Predictor, contract: Contract) -> ProbeDifferences | None:
    """Predict made-up rows of tokens with both; None if a model reads no tokens.

    The rows have every length up to the longest that the model reads, and together every token of
    the vocabulary, or as many as fit: what no text of a test set may have.
    """
    tokenizer: Any = getattr(getattr(model.reader, "collator", None), "tokenizer", None)
    if contract.tokenization is None or tokenizer is None:
        return None
    before, after = _special_tokens(tokenizer)
    longest = contract.tokenization.max_length - len(before) - len(after)
    known = min(len(tokenizer), int(getattr(model.config, "vocab_size", None) or len(tokenizer)))
    tokens = np.setdiff1d(np.arange(known), tokenizer.all_special_ids)
    lengths = _lengths(len(tokens), longest)
    random, needed = np.random.default_rng(PROBE_SEED), sum(lengths)
    shuffled = [random.permutation(tokens) for _ in range(-(-needed // len(tokens)))]
    order = np.concatenate(shuffled)[:needed]
    parts = np.split(order, np.cumsum(lengths)[:-1])
    rows = [[*before, *part.tolist(), *after] for part in parts]
    low, high, largest = np.inf, -np.inf, 0.0
    for start in range(0, len(rows), PROBE_BATCH):
        inputs = _batch(rows[start : start + PROBE_BATCH], tokenizer)
        one, other = (
            _token_logits(forward_logits(side.model, model_inputs(inputs)), inputs)
            for side in (model, artifact)
        )
        low, high = min(low, float(one.min())), max(high, float(one.max()))
        difference = float((one - other).abs().max())
        largest = max(largest, difference if np.isfinite(difference) else np.inf)
    return ProbeDifferences(
        rows=len(rows),
        coverage=min(1.0, len(np.unique(order)) / len(tokens)),
        largest=largest,
        range=high - low,
        step=float(np.spacing(np.float32(max(abs(low), abs(high))))),
    )


def _lengths(vocabulary: int, longest: int) -> list[int]:
    """Return the lengths of made-up rows: each from 3 to the longest, then the longest."""
    least, most = PROBES
    lengths = np.unique(np.linspace(min(3, longest), longest, least).round().astype(int)).tolist()
    while len(lengths) < most and (len(lengths) < least or sum(lengths) < vocabulary):
        lengths.append(longest)
    return lengths


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after the tokens of a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    places = range(len(whole) - len(plain) + 1)
    start = next((k for k in places if whole[k : k + len(plain)] == plain), 0)
    return whole[:start], whole[start + len(plain) :]


def _batch(rows: list[list[int]], tokenizer: Any) -> dict[str, Tensor]:
    features = [{"input_ids": row} for row in rows]
    batch = tokenizer.pad(features, return_tensors="pt", return_attention_mask=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if "token_type_ids" in tokenizer.model_input_names:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    return {
        name: value
        for name, value in inputs.items()
        if name in tokenizer.model_input_names or name == "input_ids"
    }


def _token_logits(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logits without those of padding."""
    logits = logits.float().cpu()
    if logits.dim() == 2 or "attention_mask" not in inputs:
        return logits
    return logits[inputs["attention_mask"].bool()]
