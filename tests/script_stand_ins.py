"""Small local stand-ins for the data and models that transformers' example commands name.

Each is a folder with the name of the hub, so that a command runs offline as it is documented.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Audio, ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as Picture
from tiny_masks import image_of, mask_of, save_tiny_segformer
from tiny_media import save_model
from tiny_text import WORDS, save_tiny_bert
from tiny_words import TAGS, tiny_sentences

TEXT, NUMBER = Value("string"), Value("int64")
BERTS = ("bert-base-cased", "bert-base-uncased", "bert-base-multilingual-cased")


def write_data_set(
    folder: Path, splits: Mapping[str, Dataset], configuration: str = "default"
) -> None:
    """Write Parquet files and the README that names them, as `push_to_hub` does."""
    readme = folder / "README.md"
    old = readme.read_text(encoding="utf-8").splitlines()[:-1] if readme.exists() else []
    lines = old or ["---", "configs:"]
    lines += [f"- config_name: {configuration}", "  data_files:"]
    for split, data in splits.items():
        name = f"{configuration}/{split}-00000-of-00001.parquet"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data.to_parquet(folder / name)
        lines += [f"  - split: {split}", f"    path: {name}"]
    readme.write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def sentence(generator: np.random.Generator, label: int) -> str:
    """Words of the tiny BERT's vocabulary; the first says the label."""
    words = generator.choice(WORDS[10:], generator.integers(3, 9))
    return " ".join([WORDS[label], *words])


def texts(columns: Mapping[str, Any], count: int, seed: int, make_row: Any) -> Dataset:
    generator = np.random.default_rng(seed)
    rows = [make_row(generator, index) for index in range(count)]
    return Dataset.from_list(rows, features=Features(columns))


def sound(generator: np.random.Generator, label: int, seconds: float) -> bytes:
    """A WAV file of a tone with noise."""
    times = np.arange(int(16_000 * seconds)) / 16_000
    tone = np.sin(2 * np.pi * 220 * (label + 1) * times) + 0.05 * generator.normal(size=len(times))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes((tone * 8_000).astype("<i2").tobytes())
    return file.getvalue()


def write_texts(folder: Path) -> None:
    def pair(generator: Any, index: int, *, hidden: bool = False) -> dict[str, Any]:
        label = index % 2
        words = {f"sentence{n}": sentence(generator, label) for n in (1, 2)}
        return {**words, "label": -1 if hidden else label, "idx": index}

    columns = {
        "sentence1": TEXT, "sentence2": TEXT, "idx": NUMBER,
        "label": ClassLabel(names=["not_equivalent", "equivalent"]),
    }  # fmt: skip
    write_data_set(
        folder / "nyu-mll/glue",
        {
            "train": texts(columns, 40, 0, pair),
            "validation": texts(columns, 12, 1, pair),
            "test": texts(columns, 12, 2, lambda g, i: pair(g, i, hidden=True)),
        },
        "mrpc",
    )

    def review(generator: Any, index: int) -> dict[str, Any]:
        return {"text": sentence(generator, index % 2), "label": index % 2}

    columns = {"text": TEXT, "label": ClassLabel(names=["neg", "pos"])}
    write_data_set(
        folder / "imdb",
        {
            "train": texts(columns, 40, 0, review),
            "test": texts(columns, 16, 1, review),
            "unsupervised": texts(columns, 8, 2, lambda g, i: review(g, i) | {"label": -1}),
        },
        "plain_text",
    )

    def rated(generator: Any, index: int) -> dict[str, Any]:
        stars = index % 5
        return {
            "review_id": f"en_{index}", "stars": stars + 1, "language": "en",
            "product_category": "book", "review_title": sentence(generator, stars),
            "review_body": sentence(generator, stars),
        }  # fmt: skip

    columns = {
        **dict.fromkeys(("review_id", "review_body", "review_title"), TEXT), "language": TEXT,
        "product_category": TEXT, "stars": Value("int32"),
    }  # fmt: skip
    write_data_set(
        folder / "amazon_reviews_multi",
        {
            "train": texts(columns, 60, 0, rated),
            "validation": texts(columns, 20, 1, rated),
            "test": texts(columns, 20, 2, rated),
        },
        "en",
    )

    def claim(generator: Any, index: int) -> dict[str, Any]:
        label = index % 3
        words = {name: sentence(generator, label) for name in ("premise", "hypothesis")}
        return {**words, "label": label}

    columns = {
        "premise": TEXT, "hypothesis": TEXT,
        "label": ClassLabel(names=["entailment", "neutral", "contradiction"]),
    }  # fmt: skip
    for seed, language in enumerate(("en", "de")):
        counts = {"train": 30, "test": 12, "validation": 12}
        splits = {
            s: texts(columns, n, 10 * seed + k, claim) for k, (s, n) in enumerate(counts.items())
        }
        write_data_set(folder / "facebook/xnli", splits, language)

    def story(generator: Any, index: int) -> dict[str, Any]:
        topics = [name for n, name in enumerate(("earn", "grain", "wheat")) if (index >> n) % 2]
        words = " ".join(WORDS[n] for n in range(3) if (index >> n) % 2)
        return {"text": f"{words} {sentence(generator, 5)} {index}", "topics": topics}

    columns = {"text": TEXT, "topics": List(TEXT)}
    write_data_set(
        folder / "reuters21578",
        {
            "train": texts(columns, 48, 0, story),
            "test": texts(columns, 16, 1, story),
            "unused": texts(columns, 8, 2, story),
        },
        "ModApte",
    )


def write_words(folder: Path) -> None:
    """CoNLL-2003 as on the hub, and as files in the form that `run_ner.py` documents."""
    numbers = List(NUMBER)
    columns = {
        "id": TEXT, "tokens": List(TEXT), "pos_tags": numbers, "chunk_tags": numbers,
        "ner_tags": List(ClassLabel(names=list(TAGS))),
    }  # fmt: skip
    splits = {}
    for seed, (split, count) in enumerate({"train": 30, "validation": 10, "test": 10}.items()):
        data = tiny_sentences(count, seed=seed, longest=12)
        tags = [[0] * len(words) for words in data["tokens"]]
        splits[split] = Dataset.from_dict(
            {
                "id": [str(index) for index in range(count)], "tokens": data["tokens"],
                "pos_tags": tags, "chunk_tags": tags, "ner_tags": data["label"],
            },
            features=Features(columns),
        )  # fmt: skip
    write_data_set(folder / "tomaarsen/conll2003", splits)
    plain = Features(columns | {"ner_tags": numbers})
    for split in ("train", "validation"):
        rows = splits[split].cast(plain)
        rows.to_json(folder / f"path_to_{split}_file.json", batch_size=10)


def write_images(folder: Path) -> None:
    def leaf(generator: Any, index: int) -> dict[str, Any]:
        label = index % 3
        pixels = generator.integers(0, 80, (20, 24, 3))
        pixels[..., label] += 120
        picture = Picture.fromarray(pixels.astype(np.uint8))
        return {"image_file_path": f"{index}.jpg", "image": picture, "labels": label}

    names = ["angular_leaf_spot", "bean_rust", "healthy"]
    columns = {"image_file_path": TEXT, "image": Image(), "labels": ClassLabel(names=names)}
    counts = {"train": 24, "validation": 12, "test": 12}
    splits = {s: texts(columns, n, seed, leaf) for seed, (s, n) in enumerate(counts.items())}
    write_data_set(folder / "beans", splits)
    for row in splits["train"]:
        path = folder / "path-to-train-root" / names[row["labels"]] / row["image_file_path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        row["image"].save(path)

    def street(generator: Any, index: int) -> dict[str, Any]:
        mask = mask_of(index)
        return {
            "pixel_values": Picture.fromarray(image_of(mask, index)),
            "label": Picture.fromarray(np.where(mask == 255, 0, mask + 1).astype(np.uint8)),
        }

    sidewalk = folder / "segments/sidewalk-semantic"
    columns = {"pixel_values": Image(), "label": Image()}
    write_data_set(sidewalk, {"train": texts(columns, 24, 0, street)})
    (sidewalk / "id2label.json").write_text(
        '{"0": "unlabeled", "1": "flat-road", "2": "human-person", "3": "vehicle-car"}'
    )


def write_sounds(folder: Path) -> None:
    def word(generator: Any, index: int) -> dict[str, Any]:
        clip = {"path": f"{index}.wav", "bytes": sound(generator, index % 3, 0.3)}
        return {"file": f"{index}.wav", "audio": clip, "label": index % 3}

    # Cast later: `datasets` would encode sounds with torchcodec.
    clip = {"bytes": Value("binary"), "path": TEXT}
    columns = {"file": TEXT, "audio": clip, "label": ClassLabel(names=["yes", "no", "up"])}
    counts = {"train": 12, "validation": 6, "test": 6}
    splits = {
        s: texts(columns, n, seed, word).cast_column("audio", Audio(16_000))
        for seed, (s, n) in enumerate(counts.items())
    }
    write_data_set(folder / "superb", splits, "ks")

    def speaker(generator: Any, index: int) -> dict[str, Any]:
        spoken = word(generator, index)
        return {
            "client_id": f"speaker{index}", "path": spoken["file"], "audio": spoken["audio"],
            "sentence": "a", "age": "twenties", "gender": "female", "language": index % 3,
        }  # fmt: skip

    columns = {
        **dict.fromkeys(("client_id", "path"), TEXT), "audio": clip,
        **dict.fromkeys(("sentence", "age", "gender"), TEXT),
        "language": ClassLabel(names=["Arabic", "Basque", "Breton"]),
    }  # fmt: skip
    splits = {
        s: texts(columns, n, seed, speaker).cast_column("audio", Audio(16_000))
        for seed, (s, n) in enumerate(counts.items())
    }
    write_data_set(folder / "common_language", splits, "full")


def write_stand_ins(folder: Path) -> Path:
    """Write everything that the documented commands name; return the folder to run them in."""
    for name in BERTS:
        save_tiny_bert(folder / "google-bert" / name)
    save_tiny_segformer(folder / "nvidia/mit-b0")
    save_model(folder / "facebook/wav2vec2-base", "wav2vec2 group norm")
    write_texts(folder)
    write_words(folder)
    write_images(folder)
    write_sounds(folder)
    return folder
