"""The tasks of images, sounds and masks, and their kinds of data."""

from ampft.kinds import Kind, lazy_function
from ampft.tasks import TaskRow

IMAGES = Kind(
    name="image",
    case="image",
    module="ampft.media.image_tensors",
    open_rows=lazy_function("ampft.media.media_rows:media_rows", "image"),
    rows_in_memory=lazy_function("ampft.kinds.rows:rows_in_memory", "image"),
    ask=lazy_function("ampft.integrations.pipeline_answers:ask_picture"),
    samples=lazy_function("ampft.media.media_rows:sample_pictures"),
    view=lazy_function("ampft.media.view:show_picture"),
    receipt_row=lazy_function("ampft.media.view:receipt_row"),
    flags=frozenset({"augment", "channels_last"}),
    examples=('"a picture.png"',),
    processor="image_processor",
    has_files=True,
)
SOUNDS = Kind(
    name="sound",
    case="sound",
    module="ampft.media.sound_tensors",
    open_rows=lazy_function("ampft.media.media_rows:media_rows", "sound"),
    rows_in_memory=lazy_function("ampft.kinds.rows:rows_in_memory", "sound"),
    ask=lazy_function("ampft.integrations.pipeline_answers:ask_sound"),
    samples=lazy_function("ampft.media.media_rows:sample_sounds"),
    view=lazy_function("ampft.media.view:show_sound"),
    receipt_row=lazy_function("ampft.media.view:receipt_row"),
    flags=frozenset({"augment", "max_length_seconds"}),
    examples=('"a sound.wav"',),
    processor="feature_extractor",
    has_files=True,
)
PIXELS = Kind(
    name="pixels",
    case="image",
    module="ampft.media.mask_tensors",
    open_rows=lazy_function("ampft.media.media_rows:mask_rows"),
    rows_in_memory=lazy_function("ampft.kinds.rows:rows_in_memory", "image"),
    ask=lazy_function("ampft.integrations.pipeline_answers:ask_mask"),
    samples=lazy_function("ampft.media.media_rows:sample_pictures"),
    view=lazy_function("ampft.media.view:show_masks"),
    receipt_row=lazy_function("ampft.media.view:mask_receipt_row"),
    new_output=lazy_function("ampft.media.predicted_masks:mask_output"),
    max_rows=4,  # logits are as large as the images
    units="masks, which have a class per pixel",
    holds=lazy_function("ampft.media.mask_data:find_mask_folders"),
    flags=frozenset({"augment", "image_size", "multi_scale"}),
    # Images with a logit per pixel are large.
    defaults={"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
    examples=('"a picture.png"',),
    processor="image_processor",
    has_files=True,
)
TASKS = {
    "images": TaskRow(
        IMAGES, "ampft.tasks.single_label:SingleLabel", "AutoModelForImageClassification",
        "image-classification",
    ),
    "sounds": TaskRow(
        SOUNDS, "ampft.tasks.single_label:SingleLabel", "AutoModelForAudioClassification",
        "audio-classification",
    ),
    "pixels": TaskRow(
        PIXELS, "ampft.media.pixel_labels:PixelLabels", "AutoModelForSemanticSegmentation",
        "image-segmentation", pipeline_arguments={"subtask": "semantic"}, decides_per_case=False,
    ),
}  # fmt: skip
