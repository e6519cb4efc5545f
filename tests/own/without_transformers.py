"""Import `ampft.Training` and train where transformers cannot be imported.

python without_transformers.py FOLDER
"""

from __future__ import annotations

import sys
from typing import Any


class Refused:
    """A finder of modules that has no transformers."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] in ("transformers", "tokenizers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refused())  # type: ignore[arg-type]

import own_loops  # noqa: E402

settings = {"batch_size": 32, "max_train_steps": 3, "precision": "fp16"}
own_loops.cnn(output_dir=sys.argv[1], **settings)
assert "transformers" not in sys.modules
print("trained")
