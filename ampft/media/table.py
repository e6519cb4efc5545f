"""Images and sounds as kinds of files."""

from datasets import Audio, Image

from ampft.data.media_kind import MediaKind
from ampft.kinds import lazy_function
from ampft.media.images import IMAGE_SUFFIXES
from ampft.media.sounds import SOUND_SUFFIXES

_CHECK = lazy_function("ampft.media.checked_files:check_media")
MEDIA = {
    "image": MediaKind(
        "image", IMAGE_SUFFIXES, Image(decode=False), Image(),
        lazy_function("ampft.media.checked_files:inspect_image"), "8-bit RGB", _CHECK,
    ),
    "sound": MediaKind(
        "sound", SOUND_SUFFIXES, Audio(decode=False), Audio(decode=False),
        lazy_function("ampft.media.checked_files:inspect_sound"), "one channel", _CHECK,
    ),
}  # fmt: skip
