"""Count the packages and MiB that `pip install ampft` needs, without extras, as installed here.

Follows the dependencies of pyproject.toml through the metadata of the installed packages, and adds
the sizes of their files. Prints one line of JSON. Nothing is downloaded. The size of torch depends
on its build, which is printed too.

    python benchmarks/install_size.py
"""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
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


def main() -> None:
    """Print the counts."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    packages = installed_closure(project["dependencies"])
    mib = {name: size(package) / 2**20 for name, package in packages.items()}
    largest = sorted(mib, key=mib.__getitem__, reverse=True)[:LARGEST]
    result = {
        "dependencies": len(project["dependencies"]),
        "packages": len(packages),
        "mib": round(sum(mib.values())),
        "largest_mib": {name: round(mib[name]) for name in largest},
        "torch": packages["torch"].version,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
