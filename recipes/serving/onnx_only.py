"""Predict texts with an ONNX artifact: onnxruntime, tokenizers and numpy, without PyTorch.

Each line is the answer of `ampft predict` as JSON. The artifact brings decision.py, which decides.
"""

import hashlib
import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime reads it when it is imported
try:
    import onnxruntime
    from tokenizers import Tokenizer
except ImportError as error:  # another environment
    hint = f" ({sys.executable}). Run pip install onnxruntime tokenizers." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)


def load(path: Path) -> Any:
    """Return a module of the artifact."""
    spec: Any = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:  # regex, which only models of words need
        print(f"error: {error} ({sys.executable}). Run pip install {error.name}.", file=sys.stderr)
        sys.exit(2)
    return module


def check(folder: Path, files: dict[str, Any]) -> None:
    """End with exit code 2 if a file of the artifact is not the one that was exported."""
    for name, digest in files.items():
        try:
            with (folder / name).open("rb") as file:
                parts = hashlib.sha256()
                while part := file.read(1 << 20):
                    parts.update(part)
            found = parts.hexdigest()
        except OSError as error:
            found = str(error.strerror)
        if found != digest["sha256"]:
            print(f"error: {folder / name}: not the exported file ({found})", file=sys.stderr)
            sys.exit(2)


def main(folder: Path, texts: list[str]) -> None:
    """Print the answer for each text; for a model of pairs, for each two texts."""
    try:
        about = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))
    except OSError as error:
        print(f"error: {folder / 'artifact.json'}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    check(folder, about["files"])
    contract = load(folder / "decision.py").Contract.read(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = onnxruntime.InferenceSession(str(folder / about["model"]))
    names = [each.name for each in session.get_inputs()]

    def run(arrays: dict[str, Any]) -> Any:
        return session.run(["logits"], {name: arrays[name] for name in names})[0]

    units = None
    if contract.units is not None:
        units = load(folder / "units.py").TextUnits(**contract.units)
    columns = contract.answer(contract.rows(texts), tokenizer, run, units=units)
    for row in zip(*columns.values(), strict=True):
        print(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("usage: python onnx_only.py ARTIFACT TEXT ...", file=sys.stderr)
        sys.exit(2)
    main(Path(sys.argv[1]), sys.argv[2:])
