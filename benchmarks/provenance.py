"""Where a number comes from: commit, versions, hardware, command."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from ampft.machine import hardware, versions
from ampft.runs.record import redact_command


def provenance() -> dict[str, object]:
    """Return what a results file needs to be measured again."""
    root = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
        return found.stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_files": git("status", "--porcelain", "--untracked-files=no").splitlines(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": redact_command(sys.argv),
        "versions": versions(),
        "hardware": hardware(),
    }
