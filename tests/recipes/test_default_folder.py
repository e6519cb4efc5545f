"""Runs without --output_dir: each gets its own folder, and a refused run creates none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from running import CLASSIFY, REPOSITORY, call_here, clean_environment, text_settings
from warm_processes import WarmPopen

pytestmark = pytest.mark.slow


@pytest.fixture
def words(files, tiny_model, tmp_path) -> list[str]:
    settings = text_settings(files, tiny_model, tmp_path)
    at = settings.index("--output_dir")
    settings = settings[:at] + settings[at + 2 :]
    return [str(REPOSITORY / CLASSIFY), *settings, "--max_train_steps", "2"]


@pytest.mark.full
def test_runs_that_start_at_the_same_time_have_separate_folders(words, tmp_path):
    started = [
        WarmPopen(
            [sys.executable, *words, "--with_tracking"], cwd=tmp_path, env=clean_environment(),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    errors = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert folders == ["fp32-train-seed42", "fp32-train-seed42-2"]
    for name in folders:
        folder = tmp_path / "runs" / name
        assert json.loads((folder / "run.json").read_text())["status"] == "finished"
        assert len(list((folder / "ampft").glob("events.out.tfevents*"))) == 1


def test_a_refused_run_leaves_no_folder(words, tmp_path):
    # This is refused after the model is loaded, right before the run starts.
    at = words.index("--validation_file")
    more = ["--validation_fraction", "0", "--early_stopping_patience", "1"]
    done = call_here(*words[:at], *words[at + 2 :], *more, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--early_stopping_patience 1: the flag needs a validation split" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_next_free_name_is_claimed_if_the_folder_is_writable(tmp_path, monkeypatch):
    from ampft.arguments import ClassifyArguments
    from ampft.runs.folder import _claim_default_folder

    monkeypatch.chdir(tmp_path)
    args = ClassifyArguments(dataset_name="digits", seed=3)
    claimed = [str(_claim_default_folder(args, "bf16")) for _ in range(3)]
    assert claimed == [f"runs/bf16-digits-seed3{end}" for end in ("", "-2", "-3")]
    assert all((tmp_path / path).is_dir() for path in claimed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "runs").write_text("a file")
    assert _claim_default_folder(args, "bf16") is None
