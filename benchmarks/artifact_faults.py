"""Faults that are planted in ONNX artifacts: what a careless export does, with a correct manifest.

Each function changes a copy of a faithful artifact of a BERT on texts; `plant` then writes its
manifest anew, so that no hash gives the fault away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ampft.lab.export.artifact import (
    SOURCE_NAME,
    ArtifactManifest,
    artifact_files,
    checked_manifest,
    write_manifest,
)
from ampft.lab.export.formats import FORMATS
from ampft.sealed import hashed_text

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


def other_truncation(folder: Path, manifest: ArtifactManifest) -> ArtifactManifest:
    """Truncate texts to half of their tokens."""
    path = folder / SOURCE_NAME / "run.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("sha256")
    record["arguments"]["max_seq_length"] //= 2
    path.write_text(hashed_text(record), encoding="utf-8")
    return manifest


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


FAULTS: dict[str, Fault] = {
    "one class broken": broken_class,
    "wrong id2label": wrong_labels,
    "other truncation": other_truncation,
    "other pooling": other_pooling,
    "other lower-casing": other_case,
    "kernel that depends on the batch": batch_dependent,
}
