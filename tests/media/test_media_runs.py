"""Images and sounds from files to a report, to predictions and to a comparison."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
import soxr
import torch
import transformers
from media_files import CIFAR, FSDD, image_folder, shared_data, sound_table, write_table
from running import BIN, CLASSIFY, Finished, call_here, printed, succeeded
from tiny_media import save_model

from ampft.cli import main
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.media.images import as_rgb, open_image

SETTINGS = (
    *(
        "--use_cpu",
        "--cpu_threads",
        1,
        "--seed",
        3,
        "--learning_rate",
        1e-2,
        "--num_train_epochs",
        2,
    ),
    *("--per_device_train_batch_size", 4, "--gradient_accumulation_steps", 2),
)


def trained(folder: Path, model: Path, data: list[object], *more: object) -> Finished:
    out = folder / "run"
    words = ["--model_name_or_path", model, "--output_dir", out, *data, *SETTINGS, *more]
    done = succeeded(call_here(CLASSIFY, *words))
    return Finished(out, done.stdout, done.stderr)


def predictions(run: Finished) -> list[dict]:
    return pq.read_table(run.folder / "predictions.parquet").to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "mode"),
    [("convnext", "fp32"), ("vit", "bf16"), ("resnet", "fp32"), ("swin", "fp16")],
)
def test_an_image_folder(tmp_path, family, mode, capsys):
    data = image_folder(tmp_path / "data", 8, splits=("train", "val", "test"))
    more = ["--channels_last"] if family == "convnext" else []
    run = trained(
        tmp_path, save_model(tmp_path / "model", family), ["--dataset_name", data],
        "--mixed_precision", mode, "--augment", "flip,crop", "--num_train_epochs", 5, *more,
    )  # fmt: skip
    assert run.record["task"] == "images"
    assert run.report["accuracy"] >= 0.9
    assert "names of the folders" in printed(run.stdout, "data")
    if mode != "fp32":
        return
    classify = transformers.pipeline("image-classification", model=str(run.folder), device="cpu")
    capsys.readouterr()
    written = tmp_path / "predictions.csv"
    command = ["predict", "--model", run.folder, data / "test", "--output_file", written]
    assert main(list(map(str, command))) == 0
    printed_report = " ".join(capsys.readouterr().out.split())
    assert "labels from column 'label' classification report, file, 24" in printed_report
    assert f" accuracy {run.report['accuracy']:.3f} " in printed_report
    with written.open() as file:
        assert all(Path(row["file"]).parent.name == row["label"] for row in csv.DictReader(file))
    for row in predictions(run)[::5]:
        (best, *_) = classify(as_rgb(open_image(row["reference"])))
        assert best["label"] == row["prediction"]
        assert best["score"] == pytest.approx(row["confidence"], abs=1e-5)


@pytest.mark.slow
def test_a_table_of_sounds(tmp_path):
    table = sound_table(tmp_path / "data", 10)
    model = save_model(tmp_path / "model", "wav2vec2 group norm")
    run = trained(tmp_path, model, ["--train_file", table], "--augment", "shift,volume")
    assert run.record["task"] == "sounds"
    assert run.report["examples"] == 6
    data = printed(run.stdout, "data")
    assert "Sounds are read from 'path', labels from 'label'." in data
    assert "30 of 30 sounds are resampled from 8,000 to 16,000 Hz." in data
    assert "so sounds of the same length run together" in printed(run.stdout, "model")
    classify = transformers.pipeline("audio-classification", model=str(run.folder), device="cpu")
    for row in predictions(run):
        samples, rate = soundfile.read(row["reference"], dtype="float32")
        (best, *_) = classify(soxr.resample(samples, rate, 16_000))
        assert best["label"] == row["prediction"]
        assert best["score"] == pytest.approx(row["confidence"], abs=1e-5)
    check_predict(tmp_path, run, table, "sounds")
    short = tmp_path / "short.wav"
    soundfile.write(short, np.full(8, 0.1, dtype=np.float32), 8000)
    done = call_here(BIN / "ampft", "predict", "--model", run.folder, short)
    assert done.returncode == 2
    assert "short.wav: Wav2Vec2ForSequenceClassification cannot run on this sound of 0.001 s" in (
        " ".join(done.stderr.split())
    )


def check_predict(folder: Path, run: Finished, table: Path, what: str) -> None:
    """Predict the table and its folder; both have the predictions of the report."""
    expected = {Path(row["reference"]).name: row["prediction"] for row in predictions(run)}
    for name, source in {"table.csv": table, "folder.csv": table.parent / "clips"}.items():
        assert (
            main(
                [
                    "predict",
                    "--model",
                    str(run.folder),
                    str(source),
                    "--output_file",
                    str(folder / name),
                ]
            )
            == 0
        )
        with (folder / name).open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 30
        column = "path" if name == "table.csv" else "file"
        predicted = {Path(row[column]).name: row["prediction"] for row in rows}
        assert {key: predicted[key] for key in expected} == expected


@pytest.mark.slow
def test_two_precisions_of_sounds_are_compared(tmp_path):
    table = sound_table(tmp_path / "data", 8)
    model = save_model(tmp_path / "model", "ast")
    data = ["--train_file", table]
    one = trained(tmp_path / "one", model, data)
    two = trained(tmp_path / "two", model, data, "--mixed_precision", "bf16")
    arms = compare_folders([one.folder, two.folder]).arms
    assert [arm.name for arm in arms] == ["fp32", "bf16"]
    assert [arm.metrics["accuracy"].mean for arm in arms] == [
        run.report["accuracy"] for run in (one, two)
    ]


@pytest.mark.slow
def test_the_default_models_need_no_files(tmp_path):
    for name, data in {
        "images": ["--dataset_name", image_folder(tmp_path / "images", 6)],
        "sounds": ["--train_file", sound_table(tmp_path / "sounds", 6)],
    }.items():
        words = ["--output_dir", tmp_path / name / "run", *data, *SETTINGS, "--max_train_steps", 1]
        done = succeeded(call_here(CLASSIFY, *words))
        start = (
            "small ViT, random weights, for 16 x 16" if name == "images" else "small AST, random"
        )
        assert start in printed(done.stdout, "model")


def test_bad_files_end_with_one_message_and_nothing_written(tmp_path):
    data = image_folder(tmp_path / "data", 4)
    (data / "red" / "x.jpg").write_text("no image")
    done = call_here(CLASSIFY, "--dataset_name", data, "--output_dir", tmp_path / "run")
    assert done.returncode == 2
    assert all(line.startswith("start ") for line in done.stdout.splitlines())
    assert "red/x.jpg: not a readable image (not an image file)" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_workers_do_not_change_what_is_learned(tmp_path):
    data = ["--dataset_name", image_folder(tmp_path / "data", 8), "--augment", "flip,crop"]
    model = save_model(tmp_path / "model", "vit")
    runs = [
        trained(tmp_path / str(workers), model, data, "--dataloader_num_workers", workers)
        for workers in (0, 2)
    ]
    load = transformers.AutoModelForImageClassification.from_pretrained
    weights = [torch.cat([w.flatten() for w in load(r.folder).parameters()]) for r in runs]
    assert torch.equal(*weights)
    assert np.array_equal(*[[row["loss"] for row in run.history] for run in runs])


def few(*more: object) -> list[object]:
    return [
        "--max_train_samples",
        200,
        "--max_eval_samples",
        50,
        "--max_predict_samples",
        50,
        *more,
    ]


@pytest.mark.slow
def test_real_images(tmp_path):
    words = ["--dataset_name", shared_data(CIFAR), "--output_dir", tmp_path / "run", *SETTINGS]
    done = succeeded(call_here(CLASSIFY, *words, *few("--max_train_steps", 4, "--augment", "crop")))
    assert "train 200, validation 50, test 50; 10 classes" in printed(done.stdout, "data")
    assert "of the step time was spent waiting for data" in printed(done.stdout, "waiting")


@pytest.mark.slow
def test_real_sounds_of_speakers_in_one_split_each(tmp_path):
    recordings = sorted((shared_data(FSDD) / "recordings").glob("*.wav"))[::5]
    rows = [(str(path), *path.stem.split("_")[:2]) for path in recordings]
    table = write_table(tmp_path / "digits.csv", rows, ("path", "label", "speaker"))
    words = ["--train_file", table, "--group_column", "speaker", "--max_train_steps", 4]
    done = succeeded(call_here(CLASSIFY, *words, "--output_dir", tmp_path / "run", *SETTINGS))
    data = printed(done.stdout, "data")
    assert f"{len(rows)} of {len(rows)} sounds are resampled from 8,000 to 16,000 Hz" in data
    record = Finished(tmp_path / "run", done.stdout, done.stderr).record
    assert sum(record["data"]["examples"].values()) == len(rows)
