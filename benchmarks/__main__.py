"""Lists the benchmarks, or runs one: `python benchmarks [NAME [FLAGS]]`."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Scripts about `ampft/lab` and certificates; the others are about the core.
LABORATORY = (
    *("certificate_catches", "certificate_gate", "cluster_faults", "curve_simulation"),
    *("decision_faults", "judge_simulation", "stub_run"),
)
STARTED_BY_OTHERS = ("__main__", "stub_run")


def benchmarks() -> dict[str, str]:
    """Return the first line of the docstring of each script, by name."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if "__main__" in ast.unparse(tree) and path.stem not in STARTED_BY_OTHERS:
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main() -> None:
    """Run the benchmark that is named, or list all."""
    scripts = benchmarks()
    if not sys.argv[1:]:
        for half in ("core", "laboratory"):
            print(f"{half}:")
            for name, line in scripts.items():
                if (name in LABORATORY) == (half == "laboratory"):
                    print(f"  {name:20} {line}")
        return
    name = sys.argv[1]
    if name not in scripts:
        print(f"{name}: this benchmark does not exist. Choose one of {', '.join(scripts)}.")
        sys.exit(2)
    sys.argv[:2] = [str(FOLDER / f"{name}.py")]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
