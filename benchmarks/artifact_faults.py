"""Faults that are planted in ONNX artifacts: what a careless export does, with a correct manifest.

Each function changes a copy of a faithful artifact of a BERT on texts; `plant` then writes its
manifest anew, so that no hash gives the fault away.
"""

from __future__ import annotations

import json
import operator
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ampft.export.artifact import (
    SOURCE_NAME,
    ArtifactManifest,
    artifact_files,
    checked_manifest,
    write_manifest,
)
from ampft.export.formats import FORMATS
from ampft.files import hashed_text

Fault = Callable[[Path, ArtifactManifest], ArtifactManifest]


def plant(artifact: Path, target: Path, fault: Fault) -> Path:
    """Return a copy of an artifact with a fault and a manifest that fits it."""
    shutil.copytree(artifact, target)
    for name in ("certificate.json", "certificate.html", "README.md"):
        (target / name).unlink(missing_ok=True)
    manifest = fault(target, checked_manifest(artifact))
    write_manifest(target, replace(manifest, files=artifact_files(target)))
    return target


def _changed_graph(
    folder: Path, manifest: ArtifactManifest, change: Callable[[Any], None]
) -> ArtifactManifest:
    path = folder / manifest.model
    model = onnx.load(str(path))
    change(model.graph)
    onnx.save(model, str(path))
    return manifest


def _initializer(graph: Any, ending: str) -> Any:
    return next(each for each in graph.initializer if each.name.endswith(ending))


def broken_class(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Never predict the last class."""

    def change(graph: Any) -> None:
        bias = _initializer(graph, "classifier.bias")
        values = numpy_helper.to_array(bias).copy()
        values[-1] -= 20
        bias.CopyFrom(numpy_helper.from_array(values, bias.name))

    return _changed_graph(folder, manifest, change)


def other_pooling(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Pool the second token instead of the first."""

    def change(graph: Any) -> None:
        second = numpy_helper.from_array(np.array(1, dtype=np.int64), "second_token")
        graph.initializer.append(second)
        tables = {each.name for each in graph.initializer if "embeddings" in each.name}
        pooled = [
            node
            for node in graph.node
            if node.op_type == "Gather" and node.input[0] not in tables and _axis(node) == 1
        ]
        for node in pooled[-1:]:
            node.input[1] = second.name
        assert pooled, "the graph pools a token"

    return _changed_graph(folder, manifest, change)


def _axis(node: Any) -> int:
    return next((each.i for each in node.attribute if each.name == "axis"), 0)


def batch_dependent(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Let the logits of a row depend on the other rows of its batch; alone, nothing changes."""

    def change(graph: Any) -> None:
        for node in graph.node:
            for index, name in enumerate(node.output):
                if name == "logits":
                    node.output[index] = "own_logits"
        axes = helper.make_tensor("batch_axis", TensorProto.INT64, [1], [0])
        graph.initializer.append(axes)
        graph.node.extend(
            [
                helper.make_node("ReduceMean", ["own_logits", "batch_axis"], ["mean"], keepdims=1),
                helper.make_node("Sub", ["own_logits", "mean"], ["distance"]),
                helper.make_node("Add", ["own_logits", "distance"], ["logits"]),
            ]
        )

    return _changed_graph(folder, manifest, change)


def wrong_labels(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Swap the names of the last two labels in config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    names = [name for _, name in sorted(config["id2label"].items(), key=lambda item: int(item[0]))]
    names[-2:] = reversed(names[-2:])
    config["id2label"] = {str(index): name for index, name in enumerate(names)}
    config["label2id"] = {name: index for index, name in enumerate(names)}
    path.write_text(json.dumps(config), encoding="utf-8")
    return manifest


def entry(file: str, *path: str, change: Callable[[Any], Any]) -> Fault:
    """Return the fault that an entry of a JSON file is changed; None as its value removes it.

    Args:
        file: Name of the file.
        path: Keys of the entry, from the outside.
        change: Function from the value to the new one.
    """

    def plant_entry(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
        values = json.loads((folder / file).read_text(encoding="utf-8"))
        place = values
        for key in path[:-1]:
            place = place[key]
        changed = change(place.get(path[-1]))
        place.pop(path[-1], None)
        if changed is not None:
            place[path[-1]] = changed
        (folder / file).write_text(json.dumps(values), encoding="utf-8")
        return manifest

    return plant_entry


DECIDED = ("decision.json", "rule")
FITTED = (*DECIDED, "decisions")
READ = ("decision.json", "tokenization")
other_truncation = entry(*READ, "max_length", change=lambda length: length // 2)
other_truncation.__doc__ = "Truncate texts to half of their tokens."


def other_case(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Turn the lower-casing of the tokenizer off or on."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["normalizer"]["lowercase"] = not tokenizer["normalizer"]["lowercase"]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["do_lower_case"] = tokenizer["normalizer"]["lowercase"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return manifest


def called(precision: str) -> Fault:
    """Return the fault that a float32 file is called another precision."""

    def change(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
        target = FORMATS[manifest.format].files[precision]
        shutil.copyfile(folder / manifest.model, folder / target)
        (folder / manifest.model).unlink()
        return replace(manifest, precision=precision, model=target)

    return change


def stale(other: Path) -> Fault:
    """Return the fault that the model file is of another run's artifact."""

    def change(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
        shutil.copyfile(other / checked_manifest(other).model, folder / manifest.model)
        return manifest

    return change


def scaled_weight(ending: str, factor: float, row: int | None = None) -> Fault:
    """Return the fault that a weight of the graph, or one of its rows, is multiplied."""

    def change(graph: Any) -> None:
        weight = _initializer(graph, ending)
        values = numpy_helper.to_array(weight).copy()
        values[slice(None) if row is None else row] *= factor
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    return lambda folder, manifest: _changed_graph(folder, manifest, change)


def swapped(values: Any) -> Any:
    """Return a list or the names of a mapping with the last two exchanged."""
    if isinstance(values, dict):
        return dict(zip(values, swapped(list(values.values())), strict=True))
    return [*values[:-2], values[-1], values[-2]]


def swapped_everywhere(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Exchange the last two labels in all files that state them."""
    wrong_labels(folder, manifest)
    entry(*DECIDED, "label_names", change=swapped)(folder, manifest)
    return replace(manifest, label_names=tuple(swapped(list(manifest.label_names))))


def edited(name: str, before: str, after: str) -> Fault:
    """Return the fault that a text in a file is replaced."""

    def change(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
        text = (folder / name).read_text(encoding="utf-8")
        assert before in text, f"{name} has {before!r}"
        (folder / name).write_text(text.replace(before, after), encoding="utf-8")
        return manifest

    return change


def added(name: str, text: str) -> Fault:
    """Return the fault that a file of a tokenizer is added."""

    def change(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
        (folder / name).write_text(text, encoding="utf-8")
        return manifest

    return change


def removed(name: str) -> Fault:
    """Return the fault that a file is absent."""

    def change(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
        (folder / name).unlink()
        return manifest

    return change


def other_record(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """State another longest text in the record of the run."""
    path = folder / SOURCE_NAME / "run.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("sha256")
    record["arguments"]["max_seq_length"] //= 2
    path.write_text(hashed_text(record), encoding="utf-8")
    return manifest


# Of decisions and settings; those of `FITTED` need a run that was calibrated and abstains.
DECISION_FAULTS: dict[str, Fault] = {
    **{
        f"temperature x {factor:g}": entry(
            *FITTED, "logit_temperature", change=partial(operator.mul, factor)
        )
        for factor in (1.001, 1.15, 1.5, 2, 3, 1 / 3)
    },
    "temperature removed": entry(*FITTED, "logit_temperature", change=lambda value: None),
    "abstention removed": entry(*FITTED, "abstention", change=lambda value: None),
    "abstention at another confidence": entry(
        *FITTED, "abstention", change=lambda value: {**value, "least_confidence": 0.9}
    ),
    "another promised error": entry(
        *FITTED, "abstention", change=lambda value: {**value, "error": value["error"] / 2}
    ),
    "thresholds added": entry(*FITTED, "label_thresholds", change=lambda value: [0.2, 0.5, 0.9]),
    "sigmoid for softmax": entry(*DECIDED, "several", change=lambda value: not value),
    "another threshold": entry(*DECIDED, "threshold", change=lambda value: 0.3),
    "a threshold that nobody reads": entry(*FITTED, "threshold_of_label", change=lambda value: 0.4),
    "another separator": entry(*DECIDED, "separator", change=lambda value: ";"),
    "labels swapped in decision.json": entry(*DECIDED, "label_names", change=swapped),
    "labels swapped in config.json": wrong_labels,
    "labels swapped in artifact.json": lambda folder, manifest: replace(
        manifest, label_names=tuple(swapped(list(manifest.label_names)))
    ),
    "labels swapped everywhere": swapped_everywhere,
    "half of max_length": other_truncation,
    "one token less": entry(*READ, "max_length", change=lambda length: length - 1),
    "windows": entry(*READ, "stride", change=lambda stride: 4),
    "cut at the left": entry(*READ, "truncation_side", change=lambda side: "left"),
    "special tokens as characters": entry(
        *READ, "splits_special_tokens", change=lambda value: not value
    ),
    "another task": entry("decision.json", "task", change=lambda task: "multi-label"),
    "other input columns": entry("decision.json", "input_columns", change=lambda names: ["body"]),
    "hidden_act relu": entry("config.json", "hidden_act", change=lambda value: "relu"),
    "layer_norm_eps": entry("config.json", "layer_norm_eps", change=lambda value: 1e-5),
    "other special token": entry("config.json", "pad_token_id", change=lambda value: 1),
    "lower-casing": other_case,
    "accents": edited("tokenizer.json", '"strip_accents": null', '"strip_accents": true'),
    "model_max_length": entry(
        "tokenizer_config.json", "model_max_length", change=lambda value: value * 2
    ),
    "special_tokens_map.json added": added(
        "special_tokens_map.json", '{"cls_token": "[SEP]", "sep_token": "[CLS]"}'
    ),
    "tokenizer_config.json absent": removed("tokenizer_config.json"),
    "decision.py edited": edited("decision.py", "scaled.max(", "scaled.min("),
    "decision.js edited": edited("decision.js", "value >= 0 ? 1 : power", "value >= 0 ? power : 1"),
    "model.safetensors added": added("model.safetensors", ""),
    "code added": added("modeling_other.py", ""),
    "another record": other_record,
}
# Of the graph of an ONNX file.
GRAPH_FAULTS: dict[str, Fault] = {
    "one class broken": broken_class,
    "head x 1.01": scaled_weight("classifier.weight", 1.01),
    "head x 1.001": scaled_weight("classifier.weight", 1.001),
    "embedding of one token": scaled_weight("word_embeddings.weight", -3.0, row=40),
    "last position": scaled_weight("position_embeddings.weight", -3.0, row=20),
    "other pooling": other_pooling,
    "kernel that depends on the batch": batch_dependent,
}
FAULTS: dict[str, Fault] = {
    "one class broken": broken_class,
    "wrong id2label": wrong_labels,
    "other truncation": other_truncation,
    "other pooling": other_pooling,
    "other lower-casing": other_case,
    "kernel that depends on the batch": batch_dependent,
}
