"""Whether the weights in an artifact are the run's, rounded to its precision.

Multiplying the last layer by 1.001 changes logits by less than 16-bit rounding can, so predictions
cannot show it. The files can: each weight that the exporter only rounded must be the run's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ampft.export.artifact import Artifact
from ampft.export.certificate.certificate import Finding, finding
from ampft.export.formats import INT8

# onnxruntime's conversion to float16 writes numbers between 0 and 1e-7 as 1e-7, which is two steps
# of the smallest float16 numbers.
SMALLEST = 2 * 2.0**-24
# Largest relative distance at which a renamed matrix is taken for one of the run's. Exporters that
# multiply a factor into a matrix, such as 1 / sqrt(head size), move it farther away.
NEAR = 0.05
WEIGHTS = "model*.safetensors"
MATRIX = 2  # dimensions
_RUNNING = ".running_mean"  # of batch norms, which exporters multiply into convolutions


def weight_failures(artifact: Artifact, run: Path) -> Iterator[Finding]:
    """Yield the weights in an artifact that are not the run's after the same rounding.

    Weights are matched by name. A renamed matrix is matched with a stored matrix near it; other
    renamed weights are not compared, nor are OpenVINO files, int8 artifacts and adapters.
    """
    paths = sorted(run.glob(WEIGHTS))
    if artifact.manifest.precision == INT8 or not paths:
        return
    stored = dict(_stored(artifact))
    others = []
    for path in paths:
        with safe_open(path, "pt") as file:
            is_folded = any(name.endswith(_RUNNING) for name in file.keys())  # noqa: SIM118
            for name in sorted(file.keys()):
                weight = file.get_tensor(name)
                if is_folded and weight.dim() != MATRIX:
                    continue
                if name in stored:
                    is_wrong = not _are_equal(weight, stored[name])
                else:
                    is_wrong = weight.dim() == MATRIX and _is_only_near(weight, stored.values())
                if is_wrong:
                    others.append(name)
    if others:
        yield finding("values", names=others, precision=artifact.manifest.precision)


def _turned(weight: Tensor, found: Tensor) -> Iterator[Tensor]:
    """Yield a stored weight in float32, as it is and transposed, where the shape is the run's."""
    for each in (found, found.T) if found.dim() == MATRIX else (found,):
        if each.shape == weight.shape:
            yield each.float()


def _are_equal(weight: Tensor, found: Tensor) -> bool:
    expected = weight.to(found.dtype).float()
    allowed = SMALLEST if found.dtype == torch.float16 else 0.0
    return any(
        torch.allclose(each, expected, rtol=0.0, atol=allowed) for each in _turned(weight, found)
    )


def _is_only_near(weight: Tensor, stored: Iterable[Tensor]) -> bool:
    """Return whether some stored matrix is near a weight, and none equals it."""
    expected = weight.float()
    near = [
        found
        for found in stored
        if any(
            (_are_near(each[0], expected[0]) or _are_near(each[-1], expected[-1]))  # most are not
            and _are_near(each, expected)
            for each in _turned(expected, found)
        )
    ]
    return bool(near) and not any(_are_equal(weight, found) for found in near)


def _are_near(found: Tensor, expected: Tensor) -> bool:
    return float((found - expected).norm()) < NEAR * float(expected.norm())


def _stored(artifact: Artifact) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of the floating-point weights in the file of an artifact."""
    path = artifact.folder / artifact.manifest.model
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    elif path.suffix == ".onnx":
        import onnx
        from onnx import numpy_helper

        for each in onnx.load(str(path)).graph.initializer:
            if each.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
                yield each.name, torch.from_numpy(numpy_helper.to_array(each).copy())
