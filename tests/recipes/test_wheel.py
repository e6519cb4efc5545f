"""The source distribution, its wheel outside the clone, and the files that strangers look for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from running import REPOSITORY, text_settings

ROOT_FILES = ("CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
YAML_FILES = [
    path
    for pattern in (".github/**/*.yml", ".pre-commit-config.yaml", "CITATION.cff")
    for path in REPOSITORY.glob(pattern)
]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Return the source distribution, built where nothing but the files of the commit is."""
    folder = tmp_path_factory.mktemp("sdist")
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("the build needs setuptools>=77")
    for name in tracked(".", ":!docs", ":!benchmarks"):
        copy = folder / "clone" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, copy)
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, folder],
        cwd=folder / "clone", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.tar.gz")
    return path


def tracked(*places: str) -> list[str]:
    """Return the files of the commit in some places that are still there."""
    listed = subprocess.check_output(["git", "ls-files", *places], cwd=REPOSITORY, text=True)
    return [name for name in listed.splitlines() if (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def installed(sdist, tmp_path_factory):
    """Return the Python of an environment that has the wheel, and this one's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    built = subprocess.run([*pip, "-w", folder, sdist], capture_output=True, text=True, check=False)
    if "No matching distribution found for setuptools" in built.stderr:
        pytest.skip("the build needs setuptools>=77, which could not be installed")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    packages = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    others = [sysconfig.get_path("purelib"), *[path for path in sys.path if "packages" in path]]
    (packages / "others.pth").write_text("\n".join(dict.fromkeys(others)) + "\n")
    return python, packages


def in_wheel(installed, folder, *command) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [installed[0], *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_source_distribution_holds_the_package_the_recipes_and_no_part_of_the_tests(sdist):
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    expected = {*tracked("ampft", "recipes"), *ROOT_FILES, "CHANGELOG.md", "constraints.txt"}
    assert {Path(name).suffix for name in expected} >= {".py", ".pyi", ".j2", ".css", ".typed"}
    assert not expected - held
    assert not [name for name in held if name.startswith("tests")]


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_the_recipes(installed):
    names = tracked("ampft", "recipes")
    assert len(names) > 300
    places = {f"ampft/{name}" if name.startswith("recipes/") else name for name in names}
    missing = {name for name in places if not (installed[1] / name).is_file()}
    assert not missing


@pytest.mark.slow
def test_the_wheel_trains_reports_and_predicts_outside_the_clone(
    installed, files, tiny_model, tmp_path
):
    code = "import sys; from ampft.cli import main; sys.exit(main(sys.argv[1:]))"
    ampft = ("-c", code)
    place = in_wheel(installed, tmp_path, "-c", "import ampft; print(ampft.__file__)")
    assert Path(place.strip()).is_relative_to(installed[1])
    recipe = in_wheel(installed, tmp_path, *ampft, "recipe", "classify")
    (tmp_path / "classify.py").write_text(recipe, encoding="utf-8")
    settings = text_settings(files, tiny_model, tmp_path / "run")
    in_wheel(installed, tmp_path, "classify.py", *settings, "--max_train_steps", "2")
    record = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert record["status"] == "finished"
    assert "macro avg" in in_wheel(installed, tmp_path, *ampft, "report", "run")
    predict = (*ampft, "predict", "--model", "run", "--text", "old iron")
    assert in_wheel(installed, tmp_path, *predict).strip()


def test_the_files_that_people_look_for_exist_and_are_well_formed():
    for name in ROOT_FILES:
        assert (REPOSITORY / name).read_text("utf-8").strip(), name
    assert len(YAML_FILES) >= 7
    for path in YAML_FILES:
        assert isinstance(yaml.safe_load(path.read_text("utf-8")), dict), path


def test_the_citation_has_the_version_and_licence_of_the_package():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_templates_ask_for_the_environment():
    for path in (REPOSITORY / ".github").rglob("*"):
        if path.name in ("bug.yml", "question.yml", "pull_request_template.md"):
            assert "ampft env --json" in path.read_text("utf-8"), path


def test_the_matrix_runs_the_pythons_that_the_package_names():
    matrix = yaml.safe_load((REPOSITORY / ".github/workflows/tests.yml").read_text("utf-8"))
    run = {row["python"] for row in matrix["jobs"]["push"]["strategy"]["matrix"]["include"]}
    named = {
        found.group(1)
        for found in (re.search(r":: (3\.\d+)$", line) for line in PROJECT["classifiers"])
        if found
    }
    assert run == named


def test_the_container_installs_what_readme_installs():
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert 'pip install -c constraints.txt -e ".[demo]"' in readme
    assert '-c constraints.txt -e ".[demo]"' in text
    assert '["accelerate", "launch", "recipes/classify.py", "--mixed_precision", "fp16"]' in text
    assert "accelerate launch recipes/classify.py --mixed_precision fp16" in readme


@pytest.mark.parametrize("name", sorted(PROJECT["optional-dependencies"]))
def test_every_extra_is_installable_by_name(name):
    for requirement in PROJECT["optional-dependencies"][name]:
        inner = re.fullmatch(r"ampft\[(.*)\]", requirement)
        for extra in inner.group(1).split(",") if inner else ():
            assert extra in PROJECT["optional-dependencies"]
