"""The provenance of a results file: commit, versions, hardware and command."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from ampft.machine import hardware, versions
from ampft.runs.redaction import redact_command


def provenance() -> dict[str, object]:
    """Return what is needed to repeat a measurement."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        completed = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
        return completed.stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_files": git("status", "--porcelain", "--untracked-files=no").splitlines(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": redact_command(sys.argv),
        "versions": versions(),
        "hardware": hardware(),
    }
