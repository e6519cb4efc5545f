"""`ampft errors`: the confident errors and the confused pairs, in the terminal and as a page."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from running import BIN, call_here, succeeded

from ampft.diagnosis.mistakes.find import find_mistakes
from ampft.runs.folder import RunFolder
from ampft.runs.predictions import write_predictions
from ampft.runs.record import DataPart, write_record
from ampft.tasks.multi_label import MultiLabelPredictions
from ampft.tasks.single_label import Predictions

NAMES = ("cat", "dog", "eel")
# label, prediction, probability of the prediction
CASES = [
    (0, 0, 0.9), (0, 1, 0.8), (0, 1, 0.95), (1, 0, 0.7), (1, 1, 0.6), (2, 0, 0.5), (2, 2, 0.99),
]  # fmt: skip


@pytest.fixture
def folder_of(tmp_path, make_record):
    def write(outcome, references, **changes):
        folder = RunFolder(tmp_path / "run")
        with folder:
            path = folder / "predictions.parquet"
            write_predictions(
                path,
                outcome,
                references,
                origins=lambda rows: {"file_line": list(range(rows.start + 2, rows.stop + 2))},
            )
            write_record(folder, make_record(label_names=outcome.label_names, **changes))
        return folder.path

    return write


def one_label() -> Predictions:
    labels = np.array([label for label, _, _ in CASES])
    probabilities = np.zeros((len(CASES), 3), dtype=np.float32)
    for row, (_, predicted, p) in enumerate(CASES):
        probabilities[row] = (1 - p) / 2
        probabilities[row, predicted] = p
    return Predictions(np.arange(len(CASES)), labels, probabilities, NAMES, "test")


def texts(rows):
    return {"text": [f"text <b>{row}</b>" for row in range(rows.start, rows.stop)]}


def test_confident_errors_and_pairs_are_ranked(folder_of):
    found = find_mistakes(folder_of(one_label(), texts), 3)
    assert (found.wrong, found.cases) == (4, 7)
    assert [mistake.case for mistake in found.confident] == [2, 1, 3]
    first = found.confident[0]
    assert (first.label, first.prediction, first.origin) == ("cat", "dog", "file line 4")
    assert first.confidence == pytest.approx(0.95)
    assert first.inputs == {"text": "text <b>2</b>"}
    pairs = [(pair.label, pair.prediction, pair.count, pair.support, pair.reverse)
             for pair in found.pairs]  # fmt: skip
    assert pairs == [("cat", "dog", 2, 3, 1), ("dog", "cat", 1, 2, 2), ("eel", "cat", 1, 2, 0)]
    assert [mistake.case for mistake in found.pairs[0].examples] == [2, 1]


def test_errors_of_label_sets_say_what_was_missed(folder_of):
    labels = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=bool)
    probabilities = np.array([[0.9, 0.1, 0.2], [0.2, 0.97, 0], [0.1, 0, 0.8]], dtype=np.float32)
    outcome = MultiLabelPredictions(labels, probabilities, NAMES, "test")
    found = find_mistakes(folder_of(outcome, texts, task="multi-label"), 5)
    assert [mistake.case for mistake in found.confident] == [1, 0]
    assert found.confident[0].details == "missed: cat (0.20); wrong: dog (0.97)"
    assert found.confident[0].confidence == pytest.approx(0.97)
    assert found.confident[1].details == "missed: dog (0.10)"
    assert [(p.label, p.prediction, p.count) for p in found.pairs] == [("cat", "dog", 1)]
    assert "label is missed" in found.pair_unit


def test_the_command_prints_and_writes_an_inert_page(folder_of, tmp_path):
    folder, page = folder_of(one_label(), texts), tmp_path / "page.html"
    done = succeeded(call_here(BIN / "ampft", "errors", folder, "--output_file", page))
    assert "4 of 7 predictions on test are wrong: accuracy 0.4286" in done.stdout
    assert "0.950      cat predicted as dog (file line 4)" in done.stdout
    assert re.search(r"cat +dog +2 +67 %", done.stdout)
    html = page.read_text(encoding="utf-8")
    assert "text &lt;b&gt;2&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "<script" not in html
    assert html.index("0.950") < html.index("0.800") < html.index("Most confused pairs")


def test_the_page_is_written_into_the_folder_of_the_run(folder_of, tmp_path):
    folder, elsewhere = folder_of(one_label(), texts), tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = succeeded(call_here(BIN / "ampft", "errors", folder, cwd=elsewhere))
    assert f"wrote      {folder / 'errors.html'}" in done.stdout
    assert "text &lt;b&gt;2" in (folder / "errors.html").read_text(encoding="utf-8")
    assert not list(elsewhere.iterdir())
    find_mistakes(folder, 1)  # the page does not damage the run


def test_pictures_are_shown(folder_of, tmp_path):
    from PIL import Image

    from ampft.diagnosis.mistakes.page import page_text

    Image.new("L", (8, 8), 200).save(tmp_path / "a.png")
    data = DataPart(name="x", kind="image", input_columns=("image",), fingerprints={}, examples={},
                    notes=())  # fmt: skip
    folder = folder_of(
        one_label(),
        lambda rows: {"reference": ([str(tmp_path / "a.png"), "gone.png"] * 4)[rows]},
        task="images",
        data=data,
    )
    html = page_text(find_mistakes(folder, 5))
    assert html.count('src="data:image/png;base64,') >= 1
    assert "gone.png" in html


def test_wrong_folders_and_files_are_refused(folder_of, tmp_path):
    folder = folder_of(one_label(), texts, status="interrupted")
    for words, message in (
        ((folder,), "the run is interrupted"),
        ((tmp_path / "none",), "run.json"),
        ((folder, "--limit", 0), "--limit 0: must be at least 1"),
        ((folder, "--output_file", tmp_path), "name a file"),
    ):
        done = call_here(BIN / "ampft", "errors", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr, done.stderr
    assert not (tmp_path / "errors.html").exists()
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
