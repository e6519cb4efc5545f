"""Changed predictions of images, masks and sounds are shown as what they are."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from media_files import decoded, image_folder, sound_table
from run_folders import write_outcomes
from tiny_masks import mask_outcome, write_folders

from ampft.arguments import ClassifyArguments
from ampft.comparison.analysis.compare_folders import MAX_SHOWN, compare_folders
from ampft.comparison.report.prediction_tables import changed
from ampft.comparison.report.report_files import read_comparison, write_comparison
from ampft.data.load import load_data
from ampft.media.mask_pictures import colored_mask, default_palette
from ampft.runs.record import DataPart
from ampft.tasks.single_label import Predictions


def data_part(data, **changes) -> DataPart:
    values = {
        "name": data.name,
        "kind": data.kind,
        "input_columns": data.input_columns,
        "fingerprints": data.fingerprints,
        "examples": {name: len(part) for name, part in data.splits.items()},
    }
    return DataPart(**values | changes)


def write_flips(folder, data, task: str) -> list[Path]:
    """Write runs of three arms, of which each predicts another class for every example."""
    n, labels = len(data.splits["test"]), data.labels("test")

    def outcome(shift: int) -> Predictions:
        shares = np.full((n, 3), 0.1, dtype=np.float32)
        shares[np.arange(n), (labels + shift) % 3] = 0.8
        return Predictions(np.arange(n), labels, shares, data.label_names, "test")

    source = {"dataset_name": data.name} if task == "images" else {"train_file": data.name}
    return write_outcomes(
        folder,
        {"fp32": [outcome(0)] * 5, "bf16": [outcome(1)] * 5, "fp16": [outcome(2)] * 5},
        lambda rows: {"reference": [f"test/{row}" for row in range(n)][rows]},
        source,
        task=task,
        data=data_part(data),
    )


@pytest.mark.slow
def test_flips_of_masks_show_both_predictions(tmp_path):
    folders = write_folders(tmp_path / "data", train=3, val=4)
    data = load_data(ClassifyArguments(dataset_name=str(folders), task="pixels"))
    masks = data.masks["validation"]
    right = [np.where(mask > 2, 0, mask).astype(np.uint8) for mask in masks.decoded(np.arange(4))]
    wrong = [mask.copy() for mask in right]
    wrong[2][-8:] = 1
    base, other = (mask_outcome(masks, each, "validation") for each in (right, wrong))
    runs = write_outcomes(
        tmp_path,
        {"fp32": [base] * 5, "bf16": [base, other, base, base, base]},
        lambda rows: {"image": [f"val/val{row:02}.png" for row in range(4)][rows]},
        {"dataset_name": str(folders), "task": "pixels", "model_name_or_path": "erfnet"},
        task="pixels",
        data=data_part(data),
    )
    comparison = compare_folders(runs)
    (example,) = comparison.arm("bf16").flips.examples
    pictures = {picture.title: decoded(picture) for picture in example.shown.pictures}
    errors = {f"{arm}: errors in red" for arm in ("fp32", "bf16")}
    assert pictures.keys() == {"image", "label", "fp32", "bf16", *errors}
    colors = default_palette(3)
    assert np.array_equal(pictures["fp32"], np.asarray(colored_mask(right[2], colors)))
    assert np.array_equal(pictures["bf16"], np.asarray(colored_mask(wrong[2], colors)))
    write_comparison(comparison, tmp_path / "report")
    page = (tmp_path / "report" / "comparison.html").read_text(encoding="utf-8")
    assert page.count('<img alt="" src="data:image/png;base64,') == 6
    neither = replace(comparison.arm("bf16").flips, gained=0.0, lost=0.0)  # as for most masks
    arms = tuple(
        arm if arm.flips is None else replace(arm, flips=neither) for arm in comparison.arms
    )
    for shown, tested in ((comparison, True), (replace(comparison, arms=arms), False)):
        assert any("McNemar" in table.title for table in changed(shown)) == tested
    assert "img-src data:" in page
    assert read_comparison(tmp_path / "report") == comparison


@pytest.mark.slow
def test_flips_of_images_are_pictures_of_the_unchanged_data(tmp_path):
    data = load_data(ClassifyArguments(dataset_name=str(image_folder(tmp_path / "data", 8))))
    n = len(data.splits["test"])
    runs = write_flips(tmp_path, data, task="images")
    comparison = compare_folders(runs)
    for arm in ("bf16", "fp16"):
        for example in comparison.arm(arm).flips.examples[: MAX_SHOWN // 2]:
            (picture,) = example.shown.pictures
            pixels = np.asarray(data.splits["test"][example.example_id]["image"].convert("RGB"))
            assert np.array_equal(decoded(picture), pixels)
    write_comparison(comparison, tmp_path / "report")
    page = (tmp_path / "report" / "comparison.html").read_text(encoding="utf-8")
    assert len(re.findall("<img ", page)) == 2 * min(n, MAX_SHOWN // 2)
    assert "s test per seed, mid-p" in page
    next((tmp_path / "data").rglob("*.png")).unlink()
    later = compare_folders(runs)  # the data are not those of the runs
    assert {each.shown for each in later.arm("bf16").flips.examples} == {None}


@pytest.mark.slow
def test_flips_of_sounds_are_the_unchanged_files(tmp_path):
    data = load_data(ClassifyArguments(train_file=str(sound_table(tmp_path / "data", 8))))
    comparison = compare_folders(write_flips(tmp_path, data, task="sounds"))
    for arm in ("bf16", "fp16"):
        for example in comparison.arm(arm).flips.examples[: MAX_SHOWN // 2]:
            content = io.BytesIO(base64.b64decode(example.shown.sound.content))
            samples, rate = soundfile.read(content, dtype="float32")
            expected = data.splits["test"][example.example_id]
            original, _ = soundfile.read(expected[data.input_columns[0]]["path"], dtype="float32")
            assert rate == 8000
            assert np.array_equal(samples, original)
    write_comparison(comparison, tmp_path / "report")
    page = (tmp_path / "report" / "comparison.html").read_text(encoding="utf-8")
    assert len(re.findall("<audio ", page)) == 2 * min(len(data.splits["test"]), MAX_SHOWN // 2)
    assert read_comparison(tmp_path / "report") == comparison
