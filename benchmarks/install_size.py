"""Count the packages and MiB that `pip install ampft` needs, without extras, as installed here.

Follows the dependencies of pyproject.toml through the metadata of the installed packages, and adds
the sizes of their files. Prints JSON. Nothing is downloaded without `--install`. The size of torch
depends on its build, which is printed too.

    python benchmarks/install_size.py

`--install` adds what README's installation takes in an empty environment: MB and seconds of the
downloaded wheels, seconds to install them, the environment's MiB, and seconds to import ampft.

    python benchmarks/install_size.py --install --out install.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from provenance import provenance

CLONE = Path(__file__).resolve().parents[1]
PYPROJECT = CLONE / "pyproject.toml"
LARGEST = 6  # packages that are listed by size


def installed_closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Return the installed packages that requirements need, by name, theirs included."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in found and not requirement.extras:
            continue
        found[name] = metadata.distribution(name)
        needed = [Requirement(each) for each in found[name].requires or ()]
        for each in ("", *requirement.extras):
            # An extra that names its own package would be followed without end.
            waiting += [(need, each) for need in needed if canonicalize_name(need.name) != name]
    return found


def size(distribution: metadata.Distribution) -> int:
    """Return the bytes of the files of a package, without compiled Python files."""
    paths = [Path(str(file.locate())) for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.suffix != ".pyc" and path.is_file())


def seconds(*command: str | Path) -> float:
    """Run a command, which must succeed, and return its seconds."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - started, 2)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the regular files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink())


def install() -> dict[str, float]:
    """Download and install the clone with its extra demo in an empty environment; return figures.

    The download depends on the network and is not cached.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheels, environment = Path(folder) / "wheels", Path(folder) / "venv"
        python = environment / "bin" / "python"
        venv_s = seconds(sys.executable, "-m", "venv", environment)
        pip = (python, "-m", "pip", "--no-cache-dir")
        constraints = ("-c", CLONE / "constraints.txt")
        download_s = seconds(*pip, "wheel", "-w", wheels, *constraints, f"{CLONE}[demo]")
        offline = ("--no-index", "--find-links", wheels)
        install_s = seconds(*pip, "install", *offline, *constraints, "ampft[demo]")
        return {
            "wheels": len(list(wheels.iterdir())),
            "download_mb": round(folder_bytes(wheels) / 1e6),
            "download_s": download_s,
            "install_s": round(venv_s + install_s, 2),
            "environment_mib": round(folder_bytes(environment) / 2**20),
            "first_import_s": seconds(python, "-c", "import ampft"),
            "import_s": seconds(python, "-c", "import ampft"),
        }


def main() -> None:
    """Print the counts, or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--install", action="store_true", help="measure an installation, too")
    parser.add_argument("--out", type=Path, help="JSON file of results")
    args = parser.parse_args()
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    packages = installed_closure(project["dependencies"])
    mib = {name: size(package) / 2**20 for name, package in packages.items()}
    largest = sorted(mib, key=mib.__getitem__, reverse=True)[:LARGEST]
    result: dict[str, object] = {
        "dependencies": len(project["dependencies"]),
        "packages": len(packages),
        "mib": round(sum(mib.values())),
        "largest_mib": {name: round(mib[name]) for name in largest},
        "torch": packages["torch"].version,
    }
    if args.install:
        result["install"] = install()
    print(json.dumps(result))
    if args.out is not None:
        text = json.dumps({**provenance(), **result}, indent=1)
        args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
