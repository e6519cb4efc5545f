"""What a model and its preprocessing do, as values that two runs can compare.

Weights and data have hashes of their own. The rest of what determines a prediction is here: the
configuration that the model was built with, and the tokenizer, image processor or feature
extractor as the run would save it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ampft.models.packing.attention import PACKED_NAMES
from ampft.tasks.task import Task

# Where a model came from, its labels and its dtype. Labels are compared as classes, weights are
# always loaded in float32, and modules in float32 are compared by their paths. Names that begin
# with an underscore are comments or private to transformers.
OF_NO_EFFECT = frozenset({
    "ampft_fp32_modules", "architectures", "auto_map", "default_learning_rate", "dtype", "id2label",
    "is_local", "label2id", "label_colors", "local_files_only", "name_or_path", "torch_dtype",
    "transformers_version",
})  # fmt: skip
STATE_OF_TOKENIZER = frozenset({"truncation", "padding"})  # as its last call left them
LONGEST_VALUE = 100  # characters of JSON; a longer value is replaced by its SHA-256
REMOTE_CODE = "transformers_modules."  # prefix of modules from a model's repository


def configuration_of(model: nn.Module) -> dict[str, Any]:
    """Return the configuration with which a model of transformers was built, by name.

    Args:
        model: Model as loaded, sharded or not.

    Returns:
        Effective values, defaults included, without those that have no effect on the computation.
        Code from the model's repository is there with its SHA-256.
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        return {}
    values = _shortened(_nested(json.loads(config.to_json_string(use_diff=False))))
    # Kept under a private name. Without padding, attention has a name of this program.
    implementation = getattr(config, "_attn_implementation", None)
    replaced = {packed: name for name, packed in PACKED_NAMES.items()}
    values["attn_implementation"] = replaced.get(str(implementation), implementation)
    modules = {kind.__module__ for kind in type(model).__mro__}
    for name in sorted(name for name in modules if name.startswith(REMOTE_CODE)):
        content = Path(str(sys.modules[name].__file__)).read_bytes()
        values[f"code {name.rpartition('.')[2]}"] = hashlib.sha256(content).hexdigest()
    return values


def preprocessing_of(task: Task) -> dict[str, Any]:
    """Return the settings and vocabulary of the tokenizer or processor of a task, by file.

    It is saved as with the model and read again, so that files which mean the same are equal.
    """
    with tempfile.TemporaryDirectory(prefix="ampft-") as name:
        task.save_processor(Path(name))
        files = sorted(path for path in Path(name).iterdir() if path.suffix != ".jinja")
        return {path.name: _content(path) for path in files}


def _content(path: Path) -> Any:
    content = path.read_bytes()
    if path.suffix != ".json":
        return hashlib.sha256(content).hexdigest()
    values = json.loads(content)
    if path.name == "tokenizer.json":
        values = {k: value for k, value in values.items() if k not in STATE_OF_TOKENIZER}
    return _shortened(_effective(values))


def _effective(values: Mapping[str, Any]) -> dict[str, Any]:
    names = sorted(name for name in values if not name.startswith("_") and name not in OF_NO_EFFECT)
    return {name: values[name] for name in names}


def _nested(value: Any) -> Any:
    """Return a configuration inside another one, such as `text_config`, without comments."""
    if not isinstance(value, dict):
        return value
    return {name: _nested(part) for name, part in _effective(value).items()}


def _shortened(values: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
    return {
        name: hashlib.sha256(text.encode()).hexdigest()
        if len(text) > LONGEST_VALUE
        else values[name]
        for name, text in texts.items()
    }
