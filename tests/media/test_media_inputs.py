"""Images and sounds as inputs of a model: processors, caches, augmentation, and what is refused."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
import transformers as t
from media_files import image_folder, picture, sound_table, write_table
from tiny_media import IMAGE_FAMILIES, SOUND_FAMILIES, media_task, save_model
from tiny_text import tiny_task

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.media.checked_files import ExampleCache
from ampft.media.image_processor import pixel_values, split_processor
from ampft.media.images import CHANGES
from ampft.media.spec_augment import disable_unsafe_regularization
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings

ALL = np.arange(12)


def collated(task, ids=ALL, epoch=None):
    examples = task.examples("train")
    batch = (examples if epoch is None else examples.for_step(epoch, 0)).collate(np.asarray(ids))
    return next(value for name, value in batch.items() if name.endswith(("values", "features")))


@pytest.mark.parametrize(
    "processor",
    [
        *(family[1]() for family in IMAGE_FAMILIES.values()),
        t.ConvNextImageProcessorPil(size={"shortest_edge": 24}, crop_pct=0.875),
        t.ViTImageProcessorPil(size={"height": 20, "width": 12}, do_normalize=False),
    ],
)
def test_the_two_steps_of_a_processor_give_its_values(processor):
    images = [picture(1, (40, 30)), picture(2, (16, 16)), picture(3, (9, 21))]
    transform = split_processor(processor, images)
    assert transform is not None
    pixels = np.stack([transform.resized(image) for image in images])
    assert np.array_equal(transform.values(pixels), pixel_values(processor, images))


def test_a_processor_whose_steps_depend_on_each_other_is_not_split():
    class Contrast(t.ViTImageProcessorPil):
        """Divides by the largest value of the image."""

        def normalize(self, image, *args, **kwargs):
            return image / image.max()

    assert split_processor(Contrast(size={"height": 8, "width": 8}), [picture(1)]) is None


@pytest.mark.parametrize("family", ["vit", "ast", "wav2vec2 layer norm"])
def test_what_is_cached_equals_what_is_decoded(tmp_path, family, monkeypatch):
    cached = media_task(tmp_path / "cached", family)
    first, again = collated(cached), collated(cached)
    monkeypatch.setattr("ampft.media.checked_files.MAX_SHARE", 0.0)
    decoded = media_task(tmp_path / "decoded", family)
    assert cached.examples("train").inputs.cache is not None
    assert decoded.examples("train").inputs.cache is None
    assert "they are not cached, and each epoch decodes" in " ".join(decoded.notes)
    assert torch.equal(first, again)
    assert torch.equal(first, collated(decoded))


def test_the_cache_reads_a_file_once(tmp_path):
    task = media_task(tmp_path, "vit")
    before = collated(task)
    shutil.rmtree(tmp_path / "data")
    assert torch.equal(collated(task), before)


def test_a_forked_process_fills_the_cache_of_all():
    cache = ExampleCache(np.array([3, 2]), np.float32)
    child = os.fork()
    if child == 0:
        cache.get(1, lambda: np.array([4, 5], np.float32))
        os._exit(0)
    os.waitpid(child, 0)
    assert cache.get(1, lambda: pytest.fail("computed again")).tolist() == [4, 5]
    # A started process gets an empty one.
    assert pickle.loads(pickle.dumps(cache)).get(1, lambda: np.ones(2)).tolist() == [1, 1]
    # What is longer than announced is not cached, and not cut.
    assert cache.get(0, lambda: np.arange(4)).tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "names"), [("vit", "flip,crop"), ("ast", "shift,volume")])
def test_augmentation_depends_on_seed_epoch_and_example(tmp_path, family, names):
    task = media_task(tmp_path / "1", family, augment=names, seed=1)
    other_seed = media_task(tmp_path / "2", family, augment=names, seed=2)
    plain = collated(task)
    first, second = collated(task, epoch=0), collated(task, epoch=1)
    assert torch.equal(plain, collated(other_seed))  # evaluation is not augmented
    assert torch.equal(first, collated(task, epoch=0))
    parts = [collated(task, ids, epoch=0) for ids in ([3, 0], [7], [11, 5, 9])]
    assert torch.equal(torch.cat(parts), first[[3, 0, 7, 11, 5, 9]])  # not on the micro-batch
    for others in (plain, second, collated(other_seed, epoch=0)):
        changed = (first != others).flatten(1).any(dim=1)
        assert changed.sum() >= 8


def test_changes_do_what_they_say():
    random = np.random.default_rng(0)
    image = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8)
    mirrored = [
        np.array_equal(CHANGES["image"]["flip"](image, random), image[:, :, ::-1])
        for _ in range(200)
    ]
    assert 70 < sum(mirrored) < 130
    crops = {CHANGES["image"]["crop"](image, random).tobytes() for _ in range(100)}
    assert len(crops) == 9  # 3 x 3 positions
    sound = np.arange(1, 101, dtype=np.float32)
    for _ in range(20):
        moved = CHANGES["sound"]["shift"](sound, random)
        kept = moved[moved != 0]
        assert len(kept) >= 90
        assert np.array_equal(kept, np.arange(kept[0], kept[0] + len(kept)))
        gain = CHANGES["sound"]["volume"](sound, random) / sound
        assert 0.5 <= gain[0] <= 2
        assert np.allclose(gain, gain[0])


def test_resized_crops_are_parts_of_the_image():
    random = np.random.default_rng(0)
    y, x = np.mgrid[:48, :64]
    image = np.stack([4 * y, 3 * x, np.full_like(y, 7)]).astype(np.uint8)
    shares = []
    for _ in range(200):
        part = CHANGES["image"]["resized_crop"](image, random)
        assert (part.shape, part.dtype) == (image.shape, np.uint8)
        assert (part[2] == 7).all()
        spans = [(int(part[c].max()) - int(part[c].min())) / n for c, n in ((0, 4), (1, 3))]
        shares.append(spans[0] * spans[1] / (48 * 64))
    assert min(shares) < 0.15
    assert 0.4 < np.mean(shares) < 0.6  # the mean of 8 to 100 % is 54 %, less a pixel's rim


@pytest.mark.parametrize(
    ("names", "sounds", "message"),
    [
        ("flop", False, r"'flop'; images can be .* flip, crop, resized_crop\. Did you mean"),
        ("flip", True, r"received 'flip'; sounds can be augmented by shift, volume"),
        ("flip,flip", False, "names a change twice"),
    ],
)  # fmt: skip
def test_a_wrong_augmentation_is_refused(tmp_path, names, sounds, message):
    with pytest.raises(InputError, match=f"--augment: .*{message}"):
        media_task(tmp_path, None, augment=names, sounds=sounds)


def test_flags_without_effect_are_refused(tmp_path, tiny_bert):
    with pytest.raises(InputError, match="--augment has no effect on text data"):
        tiny_task(tiny_bert, train=3, augment="flip")
    with pytest.raises(InputError, match="--channels_last has no effect on sound data"):
        media_task(tmp_path, None, sounds=True, channels_last=True)


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("max_seq_length", {"max_seq_length": 64}),
        ("long_text", {"long_text": "windows"}),
        ("stride", {"stride": 0}),
        ("padding", {"padding": True}),
        ("pad_to_multiple_of", {"pad_to_multiple_of": 8}),
        ("token_buckets", {"token_buckets": 64}),
    ],
)
def test_flags_of_texts_are_refused_for_images(tmp_path, flag, setting):
    with pytest.raises(InputError, match=f"--{flag} has no effect on image data"):
        media_task(tmp_path, None, **setting)


def test_channels_last_changes_the_storage_and_not_the_results(tmp_path):
    plain = media_task(tmp_path, "convnext")
    other = task_like(plain, channels_last=True)
    pixels = collated(plain)
    logits = []
    for task in (plain, other):
        torch.manual_seed(0)
        model = task.load_model().model.eval()
        weight = model.convnext.embeddings.patch_embeddings.weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == (task is other)
        logits.append(model(pixel_values=pixels).logits)
        model.save_pretrained(tmp_path / "saved")  # safetensors stores the usual order
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    again = t.AutoModelForImageClassification.from_pretrained(tmp_path / "saved").eval()
    torch.testing.assert_close(again(pixel_values=pixels).logits, logits[0], rtol=1e-4, atol=1e-5)


def task_like(task, **settings):
    return make_task(task.data, replace(task.settings, **settings))


def task_of(tmp_path, model, **settings):
    is_sound = not (tmp_path / "images").exists()
    options = {"validation_fraction": 0.0, "test_fraction": 0.0}
    data = (
        {"train_file": tmp_path / "s" / "sounds.csv"}
        if is_sound
        else {"dataset_name": str(tmp_path / "images")}
    )
    settings["model_name_or_path"] = str(model)
    return make_task(load_data(DataRequest(**data, **options)), TaskSettings(**settings))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "wav2vec2 group norm"])
def test_without_a_processor_a_default_is_said(tmp_path, family):
    if family == "vit":
        image_folder(tmp_path / "images", 2)
    else:
        sound_table(tmp_path / "s", 2)
    task = task_of(tmp_path, save_model(tmp_path / "model", family, with_processor=False))
    kind = (
        "image processor: images are resized to 16 x 16"
        if family == "vit"
        else "feature extractor: sounds are resampled to 16,000 Hz"
    )
    assert f"has no {kind}" in " ".join(task.notes)
    task.load_model()
    task.inputs.save_processor(tmp_path / "saved")
    assert (tmp_path / "saved" / "preprocessor_config.json").is_file()


@pytest.mark.parametrize("family", ["resnet", "ast"])
def test_without_a_processor_or_a_size_is_refused(tmp_path, family):
    if family == "resnet":
        image_folder(tmp_path / "images", 2)
    else:
        sound_table(tmp_path / "s", 2)
    model = save_model(tmp_path / "model", family, with_processor=False)
    with pytest.raises(InputError, match=r"model: the folder has no preprocessor_config\.json"):
        task_of(tmp_path, model)


def test_images_of_another_size_than_the_model_are_refused_before_training(tmp_path):
    image_folder(tmp_path / "images", 2)
    model = save_model(tmp_path / "model", "vit")
    t.ViTImageProcessorPil(size={"height": 20, "width": 20}).save_pretrained(model)
    task = task_of(tmp_path, model)
    with pytest.raises(
        InputError, match="ViTForImageClassification cannot run on images of 20 x 20"
    ):
        task.load_model()


def test_a_processor_that_keeps_sizes_needs_images_of_one_size(tmp_path):
    image_folder(tmp_path / "images", 2)
    model = save_model(tmp_path / "model", "convnext")
    t.ViTImageProcessorPil(do_resize=False).save_pretrained(model)
    assert collated(task_of(tmp_path, model), range(6)).shape == (6, 3, 16, 16)
    picture(1, (20, 16)).save(tmp_path / "images" / "red" / "wide.png")
    with pytest.raises(InputError, match=r"wide\.png: the image processor makes it 20 x 16 pixels"):
        task_of(tmp_path, model)


def test_a_sound_that_is_too_short_for_the_model_is_named(tmp_path):
    sound_table(tmp_path / "s", 3)
    soundfile.write(tmp_path / "s" / "clips" / "low1.wav", np.ones(40, np.float32), 8000)
    task = task_of(tmp_path, save_model(tmp_path / "model", "wav2vec2 group norm"))
    with pytest.raises(
        InputError, match=r"low1\.wav: Wav2Vec2.* cannot run on this sound of 0\.005 s"
    ):
        task.load_model()


def test_sounds_that_are_too_long_are_counted(tmp_path):
    sound_table(tmp_path / "s", 3)
    soundfile.write(tmp_path / "s" / "clips" / "low1.wav", np.ones(8000, np.float32), 8000)
    task = task_of(tmp_path, save_model(tmp_path / "model", "ast"))
    assert "1 of 9 sounds are longer than the 0.32 s that" in " ".join(task.notes)


@pytest.mark.parametrize("family", SOUND_FAMILIES)
def test_notes_on_padding_are_right_for_each_family(tmp_path, family):
    notes = " ".join(media_task(tmp_path, family).load_model().notes)
    expected = {
        "wav2vec2 layer norm": "padding is masked: its logits do not depend on it",
        "ast": "",
        "whisper": "",
    }.get(family, "so sounds of the same length run together, without padding")
    assert expected in notes
    assert bool(expected) == ("padding" in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "masked"), [("wav2vec2 group norm", False), ("wav2vec2 layer norm", True)]
)
def test_padded_sounds_have_a_mask_only_if_the_extractor_gives_one(
    tmp_path, monkeypatch, family, masked
):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # which does not run them by length
    task = media_task(tmp_path, family)
    loaded = task.load_model()
    model, batch = loaded.model.eval(), task.examples("train").collate(np.arange(4))
    inputs = {"input_values": batch["input_values"]}
    if masked:
        inputs["attention_mask"] = batch["attention_mask"]
    else:
        assert "FSDP2 allows no batches of one length" in " ".join(loaded.notes)
    model.save_pretrained(tmp_path / "saved")
    saved = t.AutoModelForAudioClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        expected = model(**inputs).logits
        assert torch.equal(task.logits(model, batch), expected)
        assert torch.equal(task.logits(saved, batch), expected)


def test_masks_longer_than_the_shortest_sound_are_off(tmp_path):
    config = t.Wav2Vec2Config(**{**SOUND_FAMILIES["hubert"][0]().to_dict(), "mask_time_prob": 0.5})
    model = t.Wav2Vec2ForSequenceClassification(config)
    assert disable_unsafe_regularization(model, 16_000) == ()  # 49 frames
    assert model.wav2vec2.masked_spec_embed.requires_grad
    (note,) = disable_unsafe_regularization(model, 2_000)
    assert "SpecAugment is off: the shortest sound has 6 frames" in note
    assert not model.wav2vec2.masked_spec_embed.requires_grad


def test_a_missing_sound_library_says_how_to_install_it(tmp_path, monkeypatch):
    table = write_table(tmp_path / "t.csv", [("a.wav", "x"), ("b.wav", "y")])
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(InputError, match=r"need the packages soundfile and soxr .*ampft\[sounds\]"):
        load_data(DataRequest(train_file=table))
