"""Runs the classification recipe with a limit on the memory that it uses after preparation.

limited_memory.py CLASSIFY MIB [FLAGS ...]
"""

from __future__ import annotations

import importlib.util
import resource
import sys

import torch
import transformers.models.bert.modeling_bert  # noqa: F401 # before the limit

import ampft
from ampft.machine import status_bytes


def main(path: str, mib: str, *words: str) -> int:
    spec = importlib.util.spec_from_file_location("classify", path)
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    open_run = ampft.open_run

    def limited(*args):
        # Model and data are already in memory, so that the limit applies only to the training.
        used = status_bytes("VmSize")
        assert used is not None
        resource.setrlimit(resource.RLIMIT_AS, (used + int(mib) * 2**20, resource.RLIM_INFINITY))
        return open_run(*args)

    ampft.open_run = limited  # type: ignore[attr-defined]
    torch.ones(8, 8) @ torch.ones(8, 8)
    return ampft.run_main(lambda: recipe.train(ampft.parse_classify_arguments(words)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
