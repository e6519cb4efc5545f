"""Pixels as a task: loss, counts per image, report, and the file of predictions."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score, jaccard_score, log_loss
from tiny_masks import IGNORED, pixel_task, write_folders

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.step_batches import StepBatches
from ampft.errors import InputError
from ampft.evaluation.sanity import chance_loss, constant_outcome, youden_j_values
from ampft.kinds.prediction import PredictedRows, PredictRequest
from ampft.media.erfnet import ErfnetForSemanticSegmentation
from ampft.media.pixel_labels import PixelLabels
from ampft.media.pixel_outcome import PixelPredictions, PixelReport
from ampft.media.predicted_masks import MaskFolderWriter, mask_output
from ampft.metrics.calibration import expected_calibration_error
from ampft.metrics.sums import MAX_LOG_LOSS
from ampft.runs.predictions import read_predictions, write_predictions
from ampft.tasks.report import report_from_json
from ampft.tasks.single_label import SingleLabel
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings
from ampft.text.json_io import json_text

NAMES = ("ground", "car", "tree")
SIZES = [(16, 24), (10, 30), (16, 24)]


def batch(seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor], list[np.ndarray]]:
    """Logits at half the size of the padded labels, the inputs, and the masks."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, 3, 8, 12, generator=generator)
    labels = torch.full((3, 16, 30), IGNORED)
    masks = []
    for label, (height, width) in zip(labels, SIZES, strict=True):
        mask = torch.randint(0, 3, (height, width), generator=generator)
        mask[: height // 4] = IGNORED
        label[:height, :width] = mask
        masks.append(mask.numpy())
    return logits, {"labels": labels, "label_sizes": torch.tensor(SIZES)}, masks


def upsampled(logits: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.nn.functional.interpolate(one[None], size, mode="bilinear", align_corners=False)[0]
        for one, size in zip(logits, SIZES, strict=True)
    ]


@pytest.fixture
def outcome() -> PixelPredictions:
    logits, inputs, _ = batch()
    problem = PixelLabels(SingleLabel(NAMES))
    return problem.outcome("test", None, problem.decode(logits, inputs))


def test_the_loss_of_a_pixel_has_a_bound():
    """Otherwise no comparison could exclude that a rare image costs more than any margin."""
    logits, inputs, _ = batch()
    problem = PixelLabels(SingleLabel(NAMES))
    decoded = problem.decode(1000 * logits, inputs)
    pixels = decoded["counts"].sum(axis=(1, 2))
    assert (decoded["losses"][:, 0] <= pixels * MAX_LOG_LOSS).all()
    assert (decoded["losses"][:, 1] > 0.1 * pixels * MAX_LOG_LOSS**2).all()


def flat() -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities, of all pixels that count."""
    logits, _, masks = batch()
    probabilities = [one.softmax(dim=0).flatten(1).T.numpy() for one in upsampled(logits)]
    labels = np.concatenate([mask.ravel() for mask in masks])
    return labels[labels != IGNORED], np.concatenate(probabilities)[labels != IGNORED]


def test_the_report_equals_scikit_learn_over_all_pixels(outcome):
    labels, probabilities = flat()
    predicted = probabilities.argmax(axis=1)
    report = outcome.report()
    assert report.pixels == len(labels)
    assert report.per_class_iou == pytest.approx(jaccard_score(labels, predicted, average=None))
    assert report.mean_iou == pytest.approx(jaccard_score(labels, predicted, average="macro"))
    assert report.accuracy == report.pixel_accuracy == accuracy_score(labels, predicted)
    assert report.macro_f1 == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert report.log_loss == pytest.approx(log_loss(labels, probabilities), rel=1e-5)
    confidence = probabilities.max(axis=1)
    error = expected_calibration_error(confidence, predicted == labels)
    assert report.expected_calibration_error == pytest.approx(error, abs=1e-6)
    assert np.array(report.confusion_matrix).sum(axis=1).tolist() == np.bincount(labels).tolist()
    assert "mean" in report.text()
    assert report_from_json(PixelReport, json.loads(json_text(report.as_dict()))) == report
    assert report.as_dict().keys() >= {"mean_iou", "pixel_accuracy", "accuracy", "macro_f1"}


def test_masks_have_the_size_of_their_images(outcome):
    logits, _, _ = batch()
    for png, one in zip(outcome.masks, upsampled(logits), strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), one.argmax(dim=0))


def test_a_class_that_does_not_occur_has_no_iou():
    counts = np.zeros((1, 3, 3), dtype=np.int64)
    counts[0, 0, 0], counts[0, 1, 0] = 6, 2
    outcome = PixelPredictions(
        counts, np.zeros((1, 2)), np.zeros((1, 3, 30)), np.zeros(1, dtype=np.int64), NAMES, "test"
    )
    report = outcome.report()
    assert report.per_class_iou == (0.75, 0.0, None)
    assert report.mean_iou == 0.375


@pytest.mark.parametrize("metric", ["mean_iou", "pixel_accuracy", "macro_f1", "log_loss"])
def test_leaving_an_image_out_is_a_subtraction(outcome, metric):
    left = PixelLabels.metrics[metric].leave_one_out(outcome.sums(metric))
    for image in range(3):
        others = [row for row in range(3) if row != image]
        parts = {name: getattr(outcome, name)[others]
                 for name in ("counts", "losses", "bins", "digests")}  # fmt: skip
        rest = replace(outcome, **parts, masks=None)
        assert left[image] == pytest.approx(rest.metrics()[metric], rel=1e-12)


def test_the_costliest_image_of_pixel_accuracy_is_an_image():
    """With images of 10 pixels, of which 8 are correct, a lost one costs 8 of all n * 10 pixels."""
    counts = np.tile(np.array([[6, 0, 0], [1, 2, 0], [1, 0, 0]]), (20, 1, 1))
    losses, bins = np.zeros((20, 2)), np.zeros((20, 3, 30))
    outcome = PixelPredictions(counts, losses, bins, np.zeros(20, dtype=np.int64), NAMES, "test")
    worst = PixelLabels.metrics["pixel_accuracy"].costliest_case(
        [outcome.sums("pixel_accuracy")] * 3
    )
    assert worst.effect == pytest.approx(0.8 / 20)
    assert (worst.label, worst.support) == (None, 20)
    # By hand: IoU 6/8, 2/3 and 0; one image of 20 lost costs about a twentieth of their mean.
    worst = PixelLabels.metrics["mean_iou"].costliest_case([outcome.sums("mean_iou")])
    assert 0.8 / 20 * (6 / 8 + 2 / 3) / 3 < worst.effect < 2 / 20


def test_the_predictions_file_keeps_what_a_comparison_needs(outcome, tmp_path):
    path = tmp_path / "predictions.parquet"
    write_predictions(path, outcome, lambda rows: {"image": ["a.png", "b.png", "c.png"][rows]})
    stored = read_predictions(path)
    assert stored.metrics() == outcome.metrics()
    for name in ("truth", "choices", "confidence", "correct"):
        assert np.array_equal(getattr(stored, name), getattr(outcome, name)), name
    text = PixelLabels.choice_text(stored.choices[0], NAMES)
    assert text == f"mean IoU {outcome_of(outcome, 0)}"
    assert PixelLabels.has_class(stored.truth, NAMES, 1).all()


def outcome_of(outcome: PixelPredictions, row: int) -> str:
    parts = {
        name: getattr(outcome, name)[[row]] for name in ("counts", "losses", "bins", "digests")
    }
    metrics = replace(outcome, **parts, masks=None).metrics()
    return f"{metrics['mean_iou']:.3f}, pixel accuracy {metrics['pixel_accuracy']:.3f}"


@pytest.mark.parametrize("settings", [{}, {"class_weights": (1, 2, 5), "label_smoothing": 0.1}])
def test_the_loss_is_that_of_torch_times_the_weight(settings):
    logits, inputs, _ = batch()
    weights = settings.get("class_weights")
    weights = None if weights is None else np.array(weights, dtype=np.float32)
    problem = PixelLabels(SingleLabel(NAMES, weights, settings.get("label_smoothing", 0.0)))
    labels = inputs["labels"]
    whole = torch.nn.functional.interpolate(logits, labels.shape[1:], mode="bilinear")
    expected = torch.nn.CrossEntropyLoss(
        weight=None if weights is None else torch.from_numpy(weights),
        label_smoothing=problem.pixels.label_smoothing,
        ignore_index=IGNORED,
    )(whole, labels)
    counts = np.bincount(labels.flatten(), minlength=256)[:3]
    weight = counts @ (np.ones(3) if weights is None else weights)
    assert math.isclose(problem.loss(logits, labels) / weight, expected, rel_tol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("camera") / "data")


def test_an_image_weighs_as_many_units_as_it_has_labelled_pixels(folder):
    examples = pixel_task(folder).examples("train")
    labels = examples.collate(np.arange(13))["labels"]
    assert examples.weights.tolist() == [(label != IGNORED).sum() for label in labels]
    assert len(set(examples.weights)) > 1


def test_weights_are_those_of_the_masks_in_the_size_of_the_input(folder):
    task = pixel_task(folder, image_size="8,8", class_weights="balanced")
    batch = task.examples("train").collate(np.arange(13))
    assert batch["pixel_values"].shape == (13, 3, 8, 8)
    labels = batch["labels"]
    counts = np.bincount(labels.flatten(), minlength=256)[:3]
    weights = counts.sum() / (3 * counts)
    assert task.problem.pixels.class_weights == pytest.approx(weights)
    per_pixel = np.append(weights, np.zeros(253))
    assert task.examples("train").weights == pytest.approx(
        per_pixel[labels.numpy()].sum(axis=(1, 2)), rel=1e-6
    )
    # The masks of the evaluation keep their size.
    assert task.examples("validation").collate(np.arange(4))["labels"].shape == (4, 16, 24)


def test_a_batch_without_labelled_pixels_has_no_loss(tmp_path):
    """The only labelled pixel of an image can be lost when its mask is resized."""
    other = write_folders(tmp_path / "data")
    path = other / "trainannot" / "train00.png"
    mask = np.full_like(np.array(Image.open(path)), IGNORED)
    mask[0, 0] = 1
    Image.fromarray(mask).save(path)
    task = pixel_task(other, image_size="8,8")
    examples = task.examples("train")
    assert examples.weights[0] == 0
    batches = {int(b.ids[0]): b for b in StepBatches(examples, effective_batch_size=1).epoch(0)}
    assert batches[0].effective_weight == 1
    assert batches[1].effective_weight == examples.weights[1] > 1
    labels = batches[0].micro_batches[0].inputs["labels"]
    assert task.problem.loss(torch.randn(1, 3, 8, 8), labels) == 0


def test_chance_predicts_the_most_frequent_class(folder):
    task = pixel_task(folder)
    train, validation = (np.array(task.labels[split].counts) for split in ("train", "validation"))
    shares = train.sum(axis=0) / train.sum()
    constant = constant_outcome(task, "validation")
    assert constant.only_prediction == task.label_names[shares.argmax()]
    accuracy = validation[:, shares.argmax()].sum() / validation.sum()
    assert constant.metrics()["pixel_accuracy"] == pytest.approx(accuracy)
    expected = -(validation.sum(axis=0) @ np.log(shares)) / validation.sum()
    assert constant.metrics()["log_loss"] == pytest.approx(expected)
    assert chance_loss(task) == pytest.approx(-(shares @ np.log(shares)))
    assert youden_j_values(constant).sum() == pytest.approx(0, abs=1e-9)


def test_flips_mirror_images_with_their_masks(folder):
    examples = pixel_task(folder, augment="flip", seed=3).examples("train")
    ids = np.arange(13)
    plain, seen = examples.collate(ids), [examples.for_step(e, 0).collate(ids) for e in (0, 1)]
    flipped = []
    for epoch in seen:
        for row in ids:
            is_flipped = not torch.equal(epoch["labels"][row], plain["labels"][row])
            flipped.append(is_flipped)
            for name in ("pixel_values", "labels"):
                expected = plain[name][row].flip(-1) if is_flipped else plain[name][row]
                assert torch.equal(epoch[name][row], expected), (name, row)
    assert 0 < sum(flipped) < 26
    assert flipped[:13] != flipped[13:]  # each epoch sees others
    # The same in any micro-batch.
    part = examples.for_step(1, 0).collate(np.array([7, 2]))
    assert torch.equal(part["labels"], seen[1]["labels"][[7, 2]])


def test_images_of_a_step_have_one_random_scale(folder):
    task = pixel_task(folder, image_size="32,48", multi_scale=True)
    examples = task.examples("train")
    sizes = [
        tuple(examples.for_step(0, step).collate(np.array([step]))["pixel_values"].shape[2:])
        for step in range(12)
    ]
    assert len(set(sizes)) > 3
    for height, width in sizes:
        assert height % 8 == width % 8 == 0
        assert 16 <= height <= 48
        assert 24 <= width <= 72
    again = examples.for_step(0, 5).collate(np.array([0, 1]))
    assert again["pixel_values"].shape[2:] == sizes[5]
    assert again["labels"].shape == (2, 32, 48)  # as many pixels count as without scaling
    assert examples.collate(np.array([0]))["pixel_values"].shape[2:] == (32, 48)
    assert task.examples("validation").collate(np.array([0]))["pixel_values"].shape[2:] == (32, 48)


def test_memory_is_measured_with_the_largest_images(folder):
    task = pixel_task(folder, image_size="32,48", multi_scale=True)
    batches = StepBatches(task.examples("train"), 4)
    sizes = {tuple(part.inputs["pixel_values"].shape[2:]) for part in batches.costliest(2)}
    assert sizes == {(48, 72)}
    (part,) = StepBatches(pixel_task(folder, image_size="32,48").examples("train"), 4).costliest(1)
    assert part.inputs["pixel_values"].shape[2:] == (32, 48)


def tiny_upernet():
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], out_features=stages)
    return UperNetForSemanticSegmentation(
        UperNetConfig(
            backbone_config=backbone,
            hidden_size=16,
            auxiliary_in_channels=8,
            auxiliary_channels=8,
            num_labels=3,
            pool_scales=[1, 2],
        )
    )


def tiny_mobilevit():
    from transformers import MobileViTConfig, MobileViTForSemanticSegmentation

    return MobileViTForSemanticSegmentation(
        MobileViTConfig(
            image_size=64,
            hidden_sizes=[12, 16, 20],
            neck_hidden_sizes=[4, 8, 8, 12, 16, 20, 24],
            aspp_out_channels=16,
            num_labels=3,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(("make", "stride"), [(tiny_upernet, 1), (tiny_mobilevit, 32)])
def test_other_families_go_through_the_same_door(folder, tmp_path, make, stride):
    from transformers import SegformerImageProcessorPil

    make().save_pretrained(tmp_path)
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(tmp_path)
    task = pixel_task(folder, model_name_or_path=str(tmp_path))
    model = task.load_model().model.eval()
    batch = task.examples("validation").collate(np.arange(3))
    with torch.no_grad():
        logits = task.logits(model, batch)
        decoded = task.decode(model, batch)
    assert logits.shape == (3, 3, 64 // stride, 64 // stride)
    assert decoded["counts"].sum(axis=(1, 2)).tolist() == [
        int((label != IGNORED).sum()) for label in batch["labels"]
    ]


def test_an_auxiliary_head_is_not_trained(folder, tmp_path):
    """It has no gradient, for which DistributedDataParallel would wait."""
    from transformers import SegformerImageProcessorPil

    tiny_upernet().save_pretrained(tmp_path)
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(tmp_path)
    loaded = pixel_task(folder, model_name_or_path=str(tmp_path)).load_model()
    frozen = {n for n, p in loaded.model.named_parameters() if not p.requires_grad}
    assert frozen
    assert {name.partition(".")[0] for name in frozen} == {"auxiliary_head"}
    assert "its auxiliary head is not trained, because it does not predict" in loaded.notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": "32,48"}, r"of 48 x 32 pixels \(it is fixed\)\. Pass the --image_size"),
        ({"multi_scale": True}, r"of 16 x 8 pixels \(it is fixed\)\. Remove --multi_scale"),
    ],
)
def test_a_model_that_refuses_a_size(folder, monkeypatch, settings, message):
    """As BEiT and DPT do, whose positions are embedded."""
    forward = ErfnetForSemanticSegmentation.forward

    def forward_in_one_size(self, pixel_values, **arguments):
        if tuple(pixel_values.shape[-2:]) != (16, 24):
            raise ValueError("it is fixed.")
        return forward(self, pixel_values, **arguments)

    monkeypatch.setattr(ErfnetForSemanticSegmentation, "forward", forward_in_one_size)
    assert pixel_task(folder).load_model().name == "ERFNet"
    with pytest.raises(InputError, match=message):
        pixel_task(folder, **settings).load_model()


@pytest.mark.slow
def test_flags_of_other_tasks(folder, tmp_path):
    with pytest.raises(InputError, match="images with masks can be augmented by flip"):
        pixel_task(folder, augment="crop")
    data = load_data(DataRequest(dataset_name="digits"))
    with pytest.raises(InputError, match="--multi_scale has no effect on image data"):
        make_task(data, TaskSettings(multi_scale=True))


def test_no_model_is_named(folder):
    with pytest.raises(InputError, match="--task pixels has no default model"):
        pixel_task(folder, model_name_or_path=None)


def test_images_of_several_sizes_need_one(folder, tmp_path):
    other = write_folders(tmp_path / "data")
    for kind in ("", "annot"):
        path = other / f"train{kind}" / "train01.png"
        Image.open(path).resize((12, 8), Image.Resampling.NEAREST).save(path)
    with pytest.raises(InputError, match=r"--image_size is missing.* 2 sizes \(8,12, 16,24"):
        pixel_task(other)
    assert pixel_task(other, image_size="16,16").examples("train").weights.max() <= 256


def test_names_of_masks_fit_the_file_system(tmp_path):
    png = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(png, format="PNG")
    writer = MaskFolderWriter(tmp_path / "masks", [(0, 0, 0)])
    predictions = PredictedRows(["a"] * 3, [1.0] * 3, {"mask": [png.getvalue()] * 3}, ("a", "b"))
    longest = "ä" * 125 + "b"  # 251 bytes; two images of different folders have this name
    rows = [(f"{place}/{longest}.png",) for place in "xyz"]
    names = [Path(name).name for name in writer.columns(rows, predictions)["mask"]]
    assert names[0] == f"{longest}.png"
    assert len(set(names)) == len(list((tmp_path / "masks").iterdir())) == 3
    request = PredictRequest(files=["in"], output_file=str(tmp_path / f"{'o' * 251}.csv"))
    with pytest.raises(InputError, match=r"2 bytes too long for a folder\. Choose a shorter one"):
        mask_output(request, SimpleNamespace(label_colors=[]))
    assert len(list(tmp_path.iterdir())) == 1


def test_confidences_of_masks_have_the_decimals_that_were_asked_for(tmp_path):
    png = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(png, format="PNG")
    predictions = PredictedRows(["a"], [0.1234567891], {"mask": [png.getvalue()]}, ("a", "b"))
    config = SimpleNamespace(label_colors=[(0, 0, 0)])
    for decimals, expected in ((2, 0.12), (6, 0.123457), (None, 0.1234567891)):
        in_memory = PredictRequest(decimals=decimals)
        path = tmp_path / f"{decimals}.csv"
        in_files = replace(in_memory, files=["in"], output_file=str(path))
        for request in (in_memory, in_files):
            columns = mask_output(request, config).columns([("a.png",)], predictions)
            assert columns["confidence"] == [expected]
