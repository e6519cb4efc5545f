"""A run is pushed to a hub on this machine: the model, a card without paths, and the report."""

from __future__ import annotations

import shutil

import pytest
from hub_stand_in import TOKEN
from running import BIN, CLASSIFY, REPOSITORY, call_here, succeeded, text_settings

from ampft.comparison.report.report_files import write_comparison

SHORT = ("--max_train_steps", "2")


def train(files, model, folder, *flags, **environment):
    return call_here(
        REPOSITORY / CLASSIFY, *text_settings(files, model, folder), *SHORT, *flags, **environment
    )


def ampft(*words, **environment):
    return call_here(BIN / "ampft", *words, **environment)


@pytest.mark.slow
def test_a_run_is_pushed_at_its_end_and_again(files, tiny_model, hub, tmp_path, monkeypatch):
    folder = tmp_path / "private-place" / "reviews"
    done = succeeded(train(files, tiny_model, folder, "--push_to_hub", HF_TOKEN=TOKEN))
    assert f"pushed     {hub.url}/ann/reviews" in done.stdout
    pushed = hub.repositories["ann/reviews"]
    assert not pushed["private"]
    for name in ("model.safetensors", "config.json", "tokenizer.json", "report.json"):
        assert pushed["files"][name] == (folder / name).read_bytes(), name
    assert not {"predictions.parquet", "run.json", "history.jsonl"} & pushed["files"].keys()
    for name, content in pushed["files"].items():
        assert str(tmp_path).encode() not in content, name
        assert TOKEN.encode() not in content, name
    card = pushed["files"]["README.md"].decode()
    assert 'model="ann/reviews"' in card
    assert "run.json" not in card
    assert "## Comparison" not in card

    # As one run of a comparison: its intervals are in the card.
    monkeypatch.syspath_prepend(REPOSITORY / "tests" / "comparison" / "report")
    from example_comparison import realistic

    comparison = tmp_path / "comparison"
    shutil.copytree(folder, comparison / "runs" / "bf16-seed42")
    write_comparison(realistic(), comparison)
    words = ("push", comparison / "runs" / "bf16-seed42", "--hub_model_id", "team/x", "--private")
    succeeded(ampft(*words, HF_TOKEN=TOKEN))
    assert hub.repositories["team/x"]["private"]
    card = hub.repositories["team/x"]["files"]["README.md"].decode()
    assert "% CI)" in card.split("## Comparison")[1].split("## Data")[0]

    hub.accepts_commits = False
    done = ampft("push", folder, "--private", HF_TOKEN=TOKEN)
    assert done.returncode == 2
    assert "not have the right to write" in done.stderr
    again = f"ampft push {folder} --hub_model_id ann/reviews --private"
    assert again in " ".join(done.stderr.split())


REFUSED = {
    "no token": ((), {}, "no token of the hub was found. Run `hf auth login`, or set HF_TOKEN"),
    "wrong token": ((), {"HF_TOKEN": "hf_wrong"}, "the hub does not accept the token"),
    "bad name": (("--hub_model_id", "a/b/c"), {"HF_TOKEN": TOKEN}, "--hub_model_id: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_push_that_cannot_succeed_is_refused_before_training(
    files, tiny_model, hub, tmp_path, case
):
    flags, environment, message = REFUSED[case]
    folder = tmp_path / "run"
    environment = {"HF_TOKEN": "", "HF_TOKEN_PATH": str(tmp_path / "none"), **environment}
    done = train(files, tiny_model, folder, "--push_to_hub", *flags, **environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert not folder.exists()


def test_without_the_hub_nothing_is_trained(files, tiny_model, hub, tmp_path):
    hub.shutdown()
    hub.server_close()
    done = train(files, tiny_model, tmp_path / "run", "--push_to_hub", HF_TOKEN=TOKEN)
    assert done.returncode == 2
    assert "cannot be reached" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_comparison_does_not_push_its_runs():
    words = ("--modes", "fp32,bf16", "--", "--push_to_hub")
    done = call_here(REPOSITORY / "recipes" / "compare_precision.py", *words)
    assert done.returncode == 2
    assert "ampft push RUN" in done.stderr
