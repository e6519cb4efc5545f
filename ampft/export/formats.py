"""The formats of artifacts: their files, precisions and packages. Nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ampft.errors import InputError

FP32, FP16, BF16, INT8 = "fp32", "fp16", "bf16", "int8"
PRECISIONS = (FP32, FP16, BF16, INT8)
BLOCKS, DYNAMIC, STATIC = "blocks", "dynamic", "static"
INT8_SCHEMES = (BLOCKS, DYNAMIC, STATIC)  # of --format onnx; the first is the default

# Read when onnxruntime (1.32) is imported. Without it, the package writes an identity of the device
# into the user's cache and reports its use.
REPORTS_OFF = "ORT_DISABLE_TELEMETRY"

Write = Callable[[Path, Sequence[str]], None]
"""Called with the model file to write, and the paths of the modules that stay in float32."""


def package(name: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that only exports and artifacts need.

    Args:
        purpose: Beginning of the message: the flag or folder that needs the package.

    Raises:
        InputError: It is not installed.
    """
    os.environ.setdefault(REPORTS_OFF, "1")
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise InputError(
            f"{purpose}: the package {name} is missing ({error}). Run: pip install 'ampft[{extra}]'"
        ) from error


@dataclass(frozen=True)
class Format:
    """A row of the table of formats."""

    name: str  # Value of `--format`.
    # Module with the functions `model_writer`, a context in which the model file can be written
    # several times with other modules in float32 (`Write`), and `load`, which returns a module that
    # predicts with it.
    module: str
    runtime: str  # Package that runs the artifact.
    # Model file by precision, relative to the folder. Those are the precisions that the format has.
    files: Mapping[str, str]
    extra: str  # Extra of ampft that installs all packages.
    writers: tuple[str, ...] = ()  # Packages that write it, besides PyTorch.
    int8_packages: tuple[str, ...] = ()  # Packages that only int8 needs, to write and to load.
    int8_writers: tuple[str, ...] = ()  # Packages that only int8 needs, to write.
    absent: str = ""  # Reason why the other precisions are absent, in a sentence.

    def runtime_packages(self, precision: str) -> tuple[str, ...]:
        """Return the packages that run an artifact."""
        return (self.runtime, *(self.int8_packages if precision == INT8 else ()))

    def packages(self, precision: str) -> tuple[str, ...]:
        """Return the packages that write and run an artifact."""
        int8_writers = self.int8_writers if precision == INT8 else ()
        return (*self.runtime_packages(precision), *self.writers, *int8_writers)

    def require(self, packages: Iterable[str], purpose: str) -> None:
        """Check that packages are installed.

        Args:
            purpose: Beginning of the message: the flag or folder that needs them.

        Raises:
            InputError: One is not installed.
        """
        for name in packages:
            if find_spec(name) is None:
                raise InputError(
                    f"{purpose}: the package {name} is missing. Run: pip install "
                    f"'ampft[{self.extra}]'"
                )

    @property
    def code(self) -> ModuleType:
        """The module that writes and loads the format."""
        os.environ.setdefault(REPORTS_OFF, "1")  # before it imports onnxruntime
        return import_module(self.module)


# The names of files are those that transformers.js, optimum and optimum-intel look for.
FORMATS = {
    row.name: row
    for row in (
        Format(
            name="onnx",
            module="ampft.export.onnx_format",
            runtime="onnxruntime",
            files={
                FP32: "onnx/model.onnx",
                FP16: "onnx/model_fp16.onnx",
                INT8: "onnx/model_int8.onnx",
            },
            extra="onnx",
            writers=("onnx", "onnxscript"),
            absent="onnxruntime has no bfloat16 operators for CPUs",
        ),
        Format(
            name="openvino",
            module="ampft.export.openvino_format",
            runtime="openvino",
            files=dict.fromkeys((FP32, FP16, INT8), "openvino_model.xml"),
            extra="openvino",
            writers=("onnx", "onnxscript"),
            int8_writers=("nncf",),
            absent="OpenVINO computes in bfloat16 only on some CPUs, and silently in float32 on "
            "others",
        ),
        Format(
            name="torch",
            module="ampft.export.torch_format",
            runtime="torch",
            files=dict.fromkeys(PRECISIONS, "model.safetensors"),
            extra="int8",
            int8_packages=("torchao",),
        ),
    )
}
