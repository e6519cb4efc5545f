"""What benchmarks share: their command line, the provenance of their results, and the file."""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ampft.machine import hardware, versions
from ampft.runs.redaction import redact_command


def provenance(gpu_names: Iterable[str] = ()) -> dict[str, object]:
    """Return what is needed to repeat a measurement; `gpu_names` are the names of its GPUs."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        if shutil.which("git") is None:
            return ""
        completed = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
        return completed.stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_files": git("status", "--porcelain", "--untracked-files=no").splitlines(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": [_portable(word) for word in redact_command(sys.argv)],
        "versions": versions(),
        "hardware": hardware(gpu_names),
    }


def _portable(word: str) -> str:
    """Return a word of a command; of a path that only one machine has, the last part."""
    return Path(word).name if Path(word).is_absolute() else word


def write_results(path: Path, result: Mapping[str, object]) -> None:
    """Write a results file: JSON with a line for each entry, and for each row of a list."""
    parts = []
    for name, value in result.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def command_line(
    documentation: str | None, *, out: str | None = "JSON file to write", required: bool = True
) -> argparse.ArgumentParser:
    """Return a parser, which the first line of the module's documentation describes.

    Args:
        documentation: Documentation of the module.
        out: Help text of `--out`; None for a parser without this flag.
        required: Whether `--out` is required.
    """
    line = (documentation or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=line, allow_abbrev=False)
    if out is not None:
        parser.add_argument("--out", type=Path, required=required, help=out)
    return parser
