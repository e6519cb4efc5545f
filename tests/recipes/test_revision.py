"""`--model_revision`: a branch, tag or commit of a model in the hub's cache."""

import json
import shutil

import pytest
from running import CLASSIFY, call_here, rows, succeeded, write_csv
from safetensors.torch import load_file, save_file

from ampft.arguments import parse_classify_arguments
from ampft.errors import InputError
from ampft.models.model_settings import pinned_folder

COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture
def cached(tiny_model, tmp_path, monkeypatch):
    """A cache of the hub with two revisions of a model, whose weights differ."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    for name, commit in COMMITS.items():
        snapshot = shutil.copytree(tiny_model, repository / "snapshots" / commit)
        (repository / "refs" / name).write_text(commit)
        if name == "v2":
            weights = load_file(snapshot / "model.safetensors")
            weights = {key: value + 0.01 for key, value in weights.items()}
            save_file(weights, snapshot / "model.safetensors", metadata={"format": "pt"})
    pinned_folder.cache_clear()
    yield tmp_path
    pinned_folder.cache_clear()


@pytest.mark.slow
def test_a_run_loads_the_revision_and_records_its_commit(cached, tmp_path):
    write_csv(tmp_path / "train.csv", rows(60, 0), ("text", "label"))
    hashes = {}
    for revision in (None, "v2", COMMITS["v2"], "main"):
        folder = tmp_path / f"run-{revision}"
        flags = [] if revision is None else ["--model_revision", revision]
        succeeded(
            call_here(
                CLASSIFY, "--model_name_or_path", "someone/tiny", *flags, "--use_cpu",
                "--train_file", tmp_path / "train.csv", "--num_train_epochs", 1,
                "--output_dir", folder,
            )
        )  # fmt: skip
        model = json.loads((folder / "run.json").read_text())["model"]
        hashes[revision] = model["initial_weights_sha256"]
        commit = COMMITS.get(revision, revision)
        assert model["name"] == (f"someone/tiny@{commit}" if revision else "someone/tiny")
    assert hashes["v2"] == hashes[COMMITS["v2"]] != hashes["main"]
    assert hashes["main"] == hashes[None]


@pytest.mark.slow
def test_another_cache_and_another_tokenizer(cached, tiny_model, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (tmp_path / "models--someone--tiny").rename(other / "models--someone--tiny")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, tokenizer)
    write_csv(tmp_path / "train.csv", rows(60, 0), ("text", "label"))
    flags = ["--model_name_or_path", "someone/tiny", "--use_cpu", "--num_train_epochs", 1]
    flags += ["--train_file", tmp_path / "train.csv", "--output_dir", tmp_path / "run"]
    failed = call_here(CLASSIFY, *flags)
    assert failed.returncode == 2
    flags += ["--cache_dir", other]
    failed = call_here(CLASSIFY, *flags, "--tokenizer_name", tmp_path / "none")
    assert f"--processor_name {tmp_path / 'none'}: no such folder" in failed.stderr
    succeeded(call_here(CLASSIFY, *flags, "--tokenizer_name", tokenizer))
    model = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert model["name"] == f"someone/tiny@{COMMITS['main']}"


def test_what_has_no_such_revision_is_refused(cached, tiny_model):
    with pytest.raises(InputError, match="v3: this revision of someone/tiny is not in the cache"):
        pinned_folder("someone/tiny", "v3", None)
    with pytest.raises(InputError, match="is a folder, which has no revisions"):
        pinned_folder(str(tiny_model), "v2", None)
    with pytest.raises(InputError, match="no effect without --model_name_or_path"):
        parse_classify_arguments(["--train_file", "a.csv", "--model_revision", "v2"])
