"""`ampft errors`: the confident errors and the confused pairs, in the terminal and as a page."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
import soundfile
import soxr
from media_files import decoded, tone
from PIL import Image
from running import BIN, call_here, succeeded
from tiny_masks import mask_outcome, write_folders

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.decision import bio_tags
from ampft.lab.mistakes.mistakes import find_mistakes, page_text
from ampft.labels.multi_label import MultiLabelPredictions
from ampft.media.mask_pictures import colored_mask, default_palette
from ampft.runs.folder import RunFolder
from ampft.runs.predictions import write_predictions
from ampft.runs.record import DataPart, write_record
from ampft.tasks.single_label import Predictions
from ampft.words.token_labels import TokenPredictions

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


def data_part(kind: str, column: str, **changes) -> DataPart:
    values = {"fingerprints": {}, "examples": {}} | changes
    return DataPart(name="x", kind=kind, input_columns=(column,), **values)


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
    assert "label is missed" in found.outcome.unit


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
    Image.new("L", (8, 8), 200).save(tmp_path / "a.png")
    folder = folder_of(
        one_label(),
        lambda rows: {"reference": ([str(tmp_path / "a.png"), "gone.png"] * 4)[rows]},
        task="images",
        data=data_part("image", "image"),
    )
    html = page_text(find_mistakes(folder, 5))
    assert html.count('src="data:image/png;base64,') >= 1
    assert "gone.png" in html


TAGS = bio_tags(("LOC", "PER"))


def words_of_two_sentences() -> TokenPredictions:
    """ "in <New York> now": York is missed with confidence; "Ann Lee": a place, without."""
    labels = np.array([0, 1, 2, 0, 3, 4])
    chosen = [(0, 0.9), (1, 0.8), (0, 0.7), (0, 0.95), (1, 0.5), (2, 0.6)]
    shares = np.zeros((6, 5), dtype=np.float32)
    for row, (tag, share) in enumerate(chosen):
        shares[row] = (1 - share) / 4
        shares[row, tag] = share
    shares[4, [2, 3]] = 0.0, 0.25  # the label of "Ann" is more probable than that of "Lee"
    return TokenPredictions(labels, np.array([4, 2]), shares, TAGS, "test")


def test_sentences_are_shown_with_their_spans(folder_of):
    folder = folder_of(
        words_of_two_sentences(),
        lambda rows: {"text": ["in <New York> now", "Ann Lee"][rows]},
        task="tokens",
        data=data_part("token", "tokens"),
    )
    found = find_mistakes(folder, 5)
    assert [mistake.case for mistake in found.confident] == [0, 1]
    assert [mistake.confidence for mistake in found.confident] == pytest.approx([0.7, 0.6])
    assert found.confident[0].details == "word 3: O (0.70) for I-LOC (0.08)"
    assert found.confident[1].details.startswith("word 2: I-LOC (0.60) for I-PER (0.10); word 1")
    pairs = [(p.label, p.prediction, p.count, p.support) for p in found.pairs]
    assert pairs == [("PER", "LOC", 2, 2), ("LOC", "O", 1, 2)]
    assert [mistake.case for mistake in found.pairs[1].examples] == [0]
    html = page_text(found)
    label = '<mark class="unshared"><bdi>&lt;New</bdi> <bdi>York&gt;</bdi> <small><bdi>LOC</bdi>'
    assert label in html
    assert '<mark class="unshared"><bdi>&lt;New</bdi> <small><bdi>LOC</bdi></small></mark>' in html
    assert 'shared"><bdi>Ann' in html
    assert "Counts are words." in html


def test_sounds_are_drawn_and_played(folder_of, tmp_path):
    loud = tone(440, 0, rate=48_000, frames=5 * 48_000)
    loud[24_000:] /= 10
    soundfile.write(tmp_path / "a.wav", np.stack([loud, loud], axis=1), 48_000)
    folder = folder_of(
        one_label(),
        lambda rows: {"reference": ([str(tmp_path / "a.wav")] * 7)[rows]},
        task="sounds",
        data=data_part("sound", "sound"),
    )
    found = find_mistakes(folder, 1)
    shown = found.confident[0].shown.sound
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(shown.content)))
    assert (rate, samples.shape) == (16_000, (64_000,))
    assert np.abs(samples - soxr.resample(loud[: 4 * 48_000], 48_000, 16_000)).max() < 1e-3
    assert max(shown.peaks) == 100
    assert max(shown.peaks[30:]) < 30
    assert shown.description == "the first 4 of 5.00 s, 48,000 Hz"
    html = page_text(found)
    assert 'controls preload="metadata" src="data:audio/flac;base64,' in html
    assert '<svg class="wave"' in html
    assert "media-src data:" in html


@pytest.mark.slow
def test_masks_are_shown_beside_their_image(folder_of, tmp_path):
    folders = write_folders(tmp_path / "masks", train=3, val=3)
    data = load_data(ClassifyArguments(dataset_name=str(folders), task="pixels"))
    truth = data.masks["validation"].decoded(np.arange(3))
    predicted = [np.where(mask > 2, 0, mask).astype(np.uint8) for mask in truth]
    predicted[1][-8:] = 2
    predicted[2][-2:, :3] = 1
    outcome = mask_outcome(data.masks["validation"], predicted, "validation")
    folder = folder_of(
        outcome,
        lambda rows: {"image": [f"val/val{row:02}.png" for row in range(3)][rows]},
        task="pixels",
        data=data_part("pixels", "image", fingerprints=data.fingerprints),
        arguments={"dataset_name": str(folders), "task": "pixels", "model_name_or_path": "erfnet"},
    )
    found = find_mistakes(folder, 5)
    assert [mistake.case for mistake in found.confident] == [1, 2]
    share = (predicted[1] != truth[1])[truth[1] < 3].mean()
    assert found.confident[0].confidence == pytest.approx(share)
    assert found.confident[0].statement.startswith("mean IoU 0.")
    shown = found.confident[0].shown
    titles = ["image", "label", "prediction", "prediction: errors in red"]
    assert [picture.title for picture in shown.pictures] == titles
    colors = default_palette(3)
    assert np.array_equal(decoded(shown.pictures[1]), np.asarray(colored_mask(truth[1], colors)))
    assert (decoded(shown.pictures[2])[-1, -1] == colors[2]).all()
    assert shown.legend == {"0": "#800000", "1": "#008000", "2": "#808000"}
    assert page_text(found).count('src="data:image/') >= 8
    (folders / "val" / "val00.png").unlink()
    (folders / "valannot" / "val00.png").unlink()
    alone = find_mistakes(folder, 5).confident[0].shown  # the data are not those of the run
    assert [picture.title for picture in alone.pictures] == ["prediction"]


def test_wrong_folders_and_files_are_refused(folder_of, tmp_path):
    folder = folder_of(one_label(), texts, status="interrupted")
    for words, message in (
        ((folder,), "the run is interrupted"),
        ((tmp_path / "none",), "run.json"),
        ((folder, "--limit", 0), "--limit: received 0; it must be at least 1"),
        ((folder, "--output_file", tmp_path), "this is a folder"),
    ):
        done = call_here(BIN / "ampft", "errors", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr, done.stderr
    assert not (tmp_path / "errors.html").exists()
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
