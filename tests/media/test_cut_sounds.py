"""`--max_length_seconds`: training hears a random part of a long sound, evaluation all of it."""

import numpy as np
import pytest
from media_files import sound_table
from tiny_media import save_model

from ampft.arguments import parse_classify_arguments
from ampft.data.load import load_data
from ampft.tasks.task import make_task

pytestmark = pytest.mark.slow


def examples(tmp_path, *flags):
    folder = tmp_path / "model"
    if not folder.exists():
        save_model(folder, "wav2vec2 group norm")
        sound_table(tmp_path)
    table = tmp_path / "sounds.csv"
    words = ["--train_file", str(table), "--model_name_or_path", str(folder), *flags]
    arguments = parse_classify_arguments(words)
    return make_task(load_data(arguments), arguments).inputs.splits


def test_a_part_is_heard_in_training_only(tmp_path):
    whole = examples(tmp_path)
    rate = whole["train"].features.rate
    seconds = float(whole["train"].lengths.max()) / rate / 2
    cut = examples(tmp_path, "--max_length_seconds", f"{seconds:.4f}")
    row = int(np.argmax(whole["train"].lengths))
    longest = round(round(seconds, 4) * rate)
    train = cut["train"].for_step(0, 0)
    heard = train._heard(row)
    full = cut["train"]._heard(row)
    assert len(heard) == longest < len(full)
    starts = [
        k for k in range(len(full) - longest + 1) if np.array_equal(full[k : k + longest], heard)
    ]
    assert starts
    assert np.array_equal(train._heard(row), heard)
    others = [cut["train"].for_step(epoch, 0)._heard(row) for epoch in range(1, 5)]
    assert any(not np.array_equal(other, heard) for other in others)
    assert cut["train"].lengths.max() == longest
    for name in set(cut) - {"train"}:
        assert cut[name].augmentation is None
