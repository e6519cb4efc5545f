"""`ampft.compare` before its first run: data in memory, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, load_from_disk
from planned import plan
from running import rows

import ampft
from ampft.comparison.execution.plan import PLAN_NAME
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.files import hashed_text, write_text
from ampft.integrations.compare_data import save_by_content
from ampft.text.json_io import json_values

TABLE = rows(30, 0)


def data(seed: int = 0) -> DatasetDict:
    texts, labels = zip(*rows(30, seed), strict=True)
    return DatasetDict({"train": Dataset.from_dict({"text": texts, "label": labels})})


def test_data_in_memory_are_saved_under_their_contents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = save_by_content(data(), None)
    assert save_by_content(data(), None) == folder
    assert load_from_disk(str(folder))["train"]["text"][0] == TABLE[0][0]
    other = save_by_content(data(1), None)
    assert other != folder
    assert {path.name for path in tmp_path.glob("comparisons/.data/*")} == {
        folder.name, other.name,
    }  # fmt: skip
    assert save_by_content(data(), tmp_path / "mine" / "cmp").parent == tmp_path / "mine" / ".data"


def test_saved_data_are_complete_and_what_was_saved(tmp_path, monkeypatch):
    """A folder with the right name is no proof of what is in it."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("datasets.Dataset.save_to_disk", lambda *_, **__: exit(137))  # killed
        with pytest.raises(SystemExit):
            save_by_content(data(), None)
    folder = save_by_content(data(), None)
    assert [len(part) for part in load_from_disk(str(folder)).values()] == [
        len(part) for part in data().values()
    ]
    loaded = load_data(DataRequest(dataset_name=str(folder), validation_fraction=0.0))
    assert sum(map(len, loaded.splits.values())) == 30
    other = save_by_content(data(1), None)
    arrow = next(folder.rglob("*.arrow"))
    arrow.write_bytes(next(other.rglob("*.arrow")).read_bytes())
    with pytest.raises(InputError, match=r"was changed after it was saved.*Delete the folder"):
        save_by_content(data(), None)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(InputError, match=r"are damaged .*Delete the folder"):
        save_by_content(data(), None)


def test_a_comparison_of_other_data_is_refused_in_words_of_the_call(tmp_path, fresh_accelerate):
    """The user has passed a table, and knows nothing of the folder that it was saved to."""
    folder = tmp_path / "comparison"
    folder.mkdir()
    saved = str(save_by_content(data(), folder))
    begun = plan(arguments={**plan().arguments, "dataset_name": saved})
    write_text(folder / PLAN_NAME, hashed_text(json_values(begun)))
    assert str(save_by_content(data(), folder)) == saved
    with pytest.raises(ampft.InputError, match=r"^output_dir .* began with other data") as error:
        ampft.compare(data(1), output_dir=folder)
    assert ".data" not in str(error.value)
    assert [path.name for path in (tmp_path / ".data").iterdir()] == [Path(saved).name]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"seeds": 2}, r"^seeds: received '2'; it must be at least 3"),
        ({"modes": ["fp32", "fp17"]}, r"^modes: received 'fp32,fp17'"),
        ({"epochs": 2}, r"^unknown flag epochs\. Use num_train_epochs\."),
        ({"budget": "soon"}, r"^budget: received 'soon'"),
        ({"mixed_precision": "bf16"}, r"^mixed_precision bf16 after ` -- `: give the precisions"),
    ],
)
def test_refused(arguments, match, tmp_path, monkeypatch, fresh_accelerate):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ampft.InputError, match=match):
        ampft.compare("train.csv", **arguments)
    assert list(tmp_path.iterdir()) == []
