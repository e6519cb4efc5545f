"""A training on images with masks, from its files to a report, as users start it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from resumed_runs import full_memory
from running import BIN, CLASSIFY, Finished, call_here, printed, succeeded
from tiny_masks import save_tiny_segformer, write_folders
from transformers import pipeline

from ampft.comparison.analysis.compare_folders import compare_folders

pytestmark = pytest.mark.slow
AMPFT = BIN / "ampft"
FLAGS = (
    "--task",
    "pixels",
    "--use_cpu",
    "--cpu_threads",
    "1",
    "--per_device_train_batch_size",
    "4",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_folders(tmp_path_factory.mktemp("camera") / "data", train=16, val=6)


def trained(data: Path, model: Path | str, folder: Path, *more: str) -> Finished:
    words = ("--model_name_or_path", model, "--dataset_name", data, "--output_dir", folder)
    done = succeeded(call_here(CLASSIFY, *FLAGS, *words, *more))
    return Finished(folder, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def erfnet(data, tmp_path_factory) -> Finished:
    names = tmp_path_factory.mktemp("names") / "names.txt"
    names.write_text("ground 40 40 40\ncar 200 60 60\ntree 60 60 200\n")
    folder = tmp_path_factory.mktemp("runs") / "erfnet"
    more = ("--class_names_file", str(names), "--num_train_epochs", "6")
    return trained(data, "erfnet", folder, *more)


@pytest.fixture(scope="module")
def segformer(data, tmp_path_factory) -> dict[str, Finished]:
    """Runs of a SegFormer, whose logits are smaller than the masks, in three precisions."""
    folder = tmp_path_factory.mktemp("segformer")
    model = save_tiny_segformer(folder / "model")
    more = ("--num_train_epochs", "2", "--learning_rate", "1e-3", "--seed", "3")
    return {
        mode: trained(data, model, folder / mode, *more, "--mixed_precision", mode)
        for mode in ("fp32", "bf16", "fp16")
    }


def test_erfnet_learns_the_colours(erfnet):
    report = erfnet.report
    assert report["label_names"] == ["ground", "car", "tree"]
    losses = [step["loss"] for step in erfnet.history if "loss" in step]
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.1
    assert report["accuracy"] == report["pixel_accuracy"]
    assert "learning rate 0.0005" in printed(erfnet.stdout, "steps")
    assert "batch_norm" not in erfnet.record["warnings"]
    with Image.open(erfnet.folder / "pictures.png") as picture:
        assert picture.width > 4 * 320
    assert "pictures.png" in erfnet.record["files"]


def predicted_masks(run: Finished) -> dict[str, np.ndarray]:
    table = pq.read_table(run.folder / "predictions.parquet").to_pydict()
    return {
        file: np.asarray(Image.open(io.BytesIO(png)))
        for file, png in zip(table["image"], table["predicted_mask"], strict=True)
    }


@pytest.mark.parametrize("name", ["erfnet", "segformer"])
def test_ampft_predict_writes_the_masks_of_the_report(request, data, name, tmp_path):
    run = request.getfixturevalue(name)
    run = run if isinstance(run, Finished) else run["fp32"]
    table = tmp_path / "predicted.csv"
    done = call_here(
        AMPFT, "predict", "--model", run.folder, data / "val", "--output_file", table,
        ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    assert "6 masks" in succeeded(done).stdout
    masks = sorted((tmp_path / "predicted_masks").iterdir())
    expected = predicted_masks(run)
    assert [path.stem for path in masks] == sorted(Path(file).stem for file in expected)
    for path in masks:
        with Image.open(path) as mask:
            assert mask.mode == "P"  # with the colours of the classes
            assert np.array_equal(np.asarray(mask), expected[f"val/{path.stem}.png"])


def test_labels_beside_images_are_not_scored(erfnet, data, tmp_path):
    table = tmp_path / "images.csv"
    table.write_text(f"image,label\n{data / 'val' / 'val00.png'},car\n")
    words = ("predict", "--model", erfnet.folder, table, "--output_file", tmp_path / "found.csv")
    done = succeeded(call_here(AMPFT, *words, ACCELERATE_USE_CPU="true"))
    assert "1 mask" in done.stdout
    assert (tmp_path / "found.csv").read_text().startswith("image,label,prediction,confidence,mask")


@pytest.mark.parametrize("name", ["erfnet", "segformer"])
def test_the_pipeline_of_transformers_predicts_what_the_report_says(request, data, name):
    run = request.getfixturevalue(name)
    run = run if isinstance(run, Finished) else run["fp32"]
    segment = pipeline("image-segmentation", model=str(run.folder), device="cpu")
    names = run.report["label_names"]
    for file, expected in predicted_masks(run).items():
        found = np.full(expected.shape, 255, dtype=np.uint8)
        for part in segment(str(data / file)):
            found[np.asarray(part["mask"]) > 0] = names.index(part["label"])
        assert np.array_equal(found, expected), file


def test_a_comparison_has_the_metrics_of_the_runs(segformer):
    arms = compare_folders([run.folder for run in segformer.values()]).arms
    assert [arm.name for arm in arms] == ["fp32", "bf16", "fp16"]
    for arm in arms:
        assert arm.metrics["mean_iou"].mean == segformer[arm.name].report["mean_iou"]
    hashes = {run.record["data"]["fingerprints"]["train"] for run in segformer.values()}
    assert len(hashes) == 1


def test_a_saved_model_is_trained_further(erfnet, data, tmp_path):
    run = trained(data, erfnet.folder, tmp_path / "run", "--max_train_steps", "1")
    assert run.record["model"]["architecture"] == "ErfnetForSemanticSegmentation"
    assert "new head" in printed(run.stdout, "model")  # its classes have other names


def test_micro_batches_with_batch_norm_are_warned_of(data, tmp_path):
    more = ("--gradient_accumulation_steps", "2", "--max_train_steps", "1")
    run = trained(data, "erfnet", tmp_path / "run", *more)
    assert "each of the 2 parts of a batch" in printed(run.stdout, "steps")
    assert "batch normalisation (39 layers)" in run.record["warnings"]["batch_norm"]


@pytest.mark.full
def test_a_batch_cut_later_because_memory_ran_out_is_warned_of(data, tmp_path):
    with full_memory(1):
        run = trained(
            data, "erfnet", tmp_path / "run", "--auto_micro_batch", "--max_train_steps", "1"
        )
    assert "parts of a batch" not in printed(run.stdout, "steps")
    assert "each of the 2 parts of a batch" in run.record["warnings"]["batch_norm"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--image_size", "4,4"), "--image_size: received '4,4'"),
        (("--gradient_checkpointing",), "ErfnetForSemanticSegmentation does not support it"),
        (("--class_weights", "1,2"), "3 positive numbers"),
    ],
)
def test_refusals(data, tmp_path, more, message):
    words = ("--model_name_or_path", "erfnet", "--dataset_name", data, "--output_dir")
    done = call_here(CLASSIFY, *FLAGS, *words, tmp_path / "run", *more)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


def test_the_card_says_how_to_load_erfnet(erfnet):
    card = (erfnet.folder / "README.md").read_text()
    assert "import ampft.media.erfnet" in card
    assert 'pipeline("image-segmentation"' in card
    assert json.loads((erfnet.folder / "config.json").read_text())["label_colors"][1] == [
        200,
        60,
        60,
    ]
