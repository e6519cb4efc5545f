"""Without the hub, a name fails at once and says what to do; the cache is still read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Prints as JSON the seconds and the message of each loader, without the time of the imports.
LOAD = """
import json, sys, time
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.models.pretrained import load_config
from ampft.models.tokenizer import load_tokenizer

def configuration(name):
    config = load_config(name, trust_remote_code=False)
    raise InputError(f"a model of type {config.model_type}")

def outcome(load):
    start = time.monotonic()
    try:
        load("nobody/nothing")
    except InputError as error:
        return time.monotonic() - start, str(error)

loaders = configuration, load_tokenizer, lambda name: load_data(DataRequest(dataset_name=name))
print(json.dumps([outcome(load) for load in loaders]))
"""
CLOSED = "http://127.0.0.1:9"
STARTS = (
    "--model_name_or_path nobody/nothing: no such folder, not in the cache, and ",
    "--model_name_or_path nobody/nothing: no such folder, not in the cache, and ",
    "--dataset_name: cannot load 'nobody/nothing': no such folder, and ",
)


def messages(home: Path, **environment: str) -> list[str]:
    """Messages of configuration, tokenizer and data set; they came within 5 seconds in all."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "HF_HOME": str(home), **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Retry" not in done.stderr
    outcomes = json.loads(done.stdout)
    assert sum(seconds for seconds, _ in outcomes) < 5
    return [message for _, message in outcomes]


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.full
@pytest.mark.slow
def test_a_hub_out_of_reach_is_said_within_seconds(tmp_path):
    found = messages(tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=CLOSED)
    for message, start in zip(found, STARTS, strict=True):
        assert message.startswith(f"{start}the hub (127.0.0.1) cannot be reached: ")
        assert "Connection refused. Check the network, or pass a local folder" in message
        assert "HF_HUB_OFFLINE=1" in message


@pytest.mark.full
@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_said_within_seconds(tmp_path, silent_server):
    found = messages(tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=silent_server)
    for message, start in zip(found, STARTS, strict=True):
        assert message.startswith(f"{start}the hub (127.0.0.1) cannot be reached: ")


@pytest.mark.full
@pytest.mark.slow
def test_the_offline_switch_is_named(tmp_path):
    found = messages(tmp_path, HF_HUB_OFFLINE="1", HF_ENDPOINT=CLOSED)
    for message, start in zip(found, STARTS, strict=True):
        assert message.startswith(f"{start}HF_HUB_OFFLINE=1 forbids downloads. Pass a local folder")
        assert "127.0.0.1" not in message


@pytest.mark.slow
def test_a_cached_model_is_used_without_the_hub(tmp_path):
    repository = tmp_path / "hub" / "models--nobody--nothing"
    snapshot = repository / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "bert"}')
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0")
    found = messages(tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=CLOSED)
    assert found[0] == "a model of type bert"
