"""Settings of the inputs of a model, whatever the kind of data."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.errors import InputError
from ampft.flag import DATA, MAX_SEED, OPTIMIZER, PIXELS, flag
from ampft.models.model_settings import ModelSettings


@dataclass(frozen=True)
class InputSettings(ModelSettings):
    """The model, and how examples become its inputs. `--help` describes each setting."""

    augment: str | None = flag(
        None,
        "random changes of training examples, comma-separated: flip, crop, resized_crop for "
        "images (transformers' script has resized_crop,flip); flip for images with masks; shift, "
        "volume for sounds",
        group=DATA,
    )
    max_length_seconds: float | None = flag(
        None,
        "seconds of a sound that training hears, cut at a random place in each epoch; evaluation "
        "hears whole sounds; if none, all of it",
        group=DATA,
        at_least=0.01,
    )
    image_size: str | None = flag(
        None,
        "height and width of the model's input in pixels: 360,480; if none, the image processor's "
        "size, or for erfnet the images' size",
        group=PIXELS,
    )
    multi_scale: bool = flag(
        False,
        "scale the images of each optimizer step by a random factor from 0.5 to 1.5 (images with "
        "masks)",
        group=PIXELS,
    )
    seed: int = flag(
        42,
        "seed of classification head, data order and dropout",
        group=OPTIMIZER,
        at_least=0,
        at_most=MAX_SEED,
    )

    @property
    def input_size(self) -> tuple[int, int] | None:
        """`image_size` as height and width.

        Raises:
            InputError: It is not two whole numbers of at least 8.
        """
        if self.image_size is None:
            return None
        parts = self.image_size.split(",")
        try:
            height, width = (int(part) for part in parts)
        except ValueError:
            height = width = 0
        if min(height, width) < 8:
            raise InputError(
                f"--image_size: received {self.image_size!r}; it must be height and width in "
                "pixels, at least 8 each, such as 360,480."
            )
        return height, width
