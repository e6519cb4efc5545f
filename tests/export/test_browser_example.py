"""The browser example answers as the artifact does in Python, with transformers.js from npm."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest
from exported import rows
from running import REPOSITORY

from ampft.export import open_artifact

PAGE = REPOSITORY / "recipes" / "serving" / "browser.html"
TEXTS = [row["text"] for row in rows(3, seed=9)]
PROGRAMS = ("npm", "chromium", "chromedriver")


def test_the_page_names_what_it_uses():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 45
    for name in ("text", "ask", "answer"):
        assert f'id="{name}"' in text
    assert "allowRemoteModels = false" in text
    assert "hf.env.fetch = checked" in text


@pytest.fixture
def site(onnx_text, tmp_path):
    """A folder with the page, the artifact and the modules, served on this machine."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    shutil.copy(PAGE, tmp_path)
    shutil.copytree(onnx_text, tmp_path / "artifacts" / "mine")
    install = ["npm", "install", "--silent", "--ignore-scripts", "@huggingface/transformers@4"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm could not install transformers.js: {done.stderr[-200:]}")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/browser.html?model=mine:fp32"
        server.shutdown()


@pytest.fixture
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.add_argument("--headless=new")
    options.add_argument("--no-sandbox")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        yield driver


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["decision.json", "decision.js", "tokenizer.json", "config.json", "onnx/model.onnx"]
)
def test_the_page_refuses_a_changed_file(site, browser, tmp_path, name):
    file = tmp_path / "artifacts" / "mine" / name
    file.write_bytes(file.read_bytes() + b" ")
    browser.get(site)
    output = browser.find_element("id", "answer")
    _wait(lambda: output.get_attribute("value") != "loading ...")
    assert output.get_attribute("value") == f"{name}: not the exported file"


@pytest.mark.slow
@pytest.mark.full
def test_the_page_answers_like_the_artifact(site, browser, onnx_text):
    artifact = open_artifact(onnx_text)
    logits = artifact.logits(TEXTS, batch_size=1)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = artifact.manifest.label_names
    browser.get(site)
    for text, row in zip(TEXTS, probabilities, strict=True):
        answer = _answer(browser, text)
        assert answer["prediction"] == names[row.argmax()]
        assert answer["confidence"] == pytest.approx(row.max(), abs=1e-4)


def _answer(browser, text: str) -> dict:
    """Type a text, press the button and return the answer."""
    field = browser.find_element("id", "text")
    output = browser.find_element("id", "answer")
    _wait(lambda: output.get_attribute("value").startswith("{"))
    browser.execute_script("answer.value = ''; text.value = arguments[0]", text)
    assert field.get_attribute("value") == text
    browser.find_element("id", "ask").click()
    _wait(lambda: output.get_attribute("value").startswith("{"))
    return json.loads(output.get_attribute("value"))


def _wait(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the page did not answer"
        time.sleep(0.1)
