"""Loading a model folder runs none of the code that its files may hold."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from running import CLASSIFY, call_here, rows, succeeded, write_csv
from tiny_text import LABELS
from transformers import AutoModelForSequenceClassification

from ampft.errors import InputError
from ampft.media.image_tensors import _load_processor
from ampft.models.pretrained import load_pretrained, load_saved
from ampft.models.tokenizer import load_tokenizer
from ampft.runs.manifest import MODEL_FILES
from ampft.tasks.outcome import label_config_arguments
from ampft.tasks.single_label import SingleLabel
from ampft.tasks.task_settings import TaskSettings

# Names that libraries read, or have read, when they load a model or a training.
PICKLES = (
    *("pytorch_model.bin", "adapter_model.bin", "tf_model.h5", "model.ckpt", "flax_model.msgpack"),
    *("pytorch_model-00001-of-00001.bin", "model.bin", "model.pt", "model.pkl", "weights.pth"),
    *("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"),
    *("rng_state.pth", "random_states_0.pkl", "custom_checkpoint_0.pkl", ".metadata", "vocab.pkl"),
    *("__0_0.distcp", "merges.pkl", "tokenizer.pkl", "sentencepiece.bpe.model", "spiece.model"),
)
OTHERS = (
    *("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin.index.json"),
    *(name for name in MODEL_FILES if "*" not in name),
)


class Canary:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def as_pickle(path: Path) -> bytes:
    return pickle.dumps(Canary(path))


def as_archive(path: Path) -> bytes:
    archive = io.BytesIO()
    torch.save({"weights": Canary(path)}, archive)
    return archive.getvalue()


FORMATS = {"pickle": as_pickle, "archive": as_archive}


def load_everything(folder: Path) -> None:
    """Load a folder through each door that a path of a user can reach."""
    arguments = label_config_arguments(SingleLabel(LABELS))
    settings = TaskSettings(model_name_or_path=str(folder))
    doors = (
        lambda: load_pretrained(
            AutoModelForSequenceClassification, str(folder), arguments, trust_remote_code=False
        ),
        lambda: load_saved(AutoModelForSequenceClassification, str(folder)),
        lambda: load_tokenizer(str(folder)),
        lambda: _load_processor((8, 8), settings),
    )
    for door in doors:
        with contextlib.suppress(InputError):
            door()


@pytest.fixture
def folder(tiny_bert, tmp_path) -> Path:
    return shutil.copytree(tiny_bert, tmp_path / "model")


@pytest.mark.slow
def test_no_file_of_a_model_folder_is_unpickled(folder, tiny_bert, tmp_path):
    canary = tmp_path / "fired"
    together = [(form, PICKLES) for form in FORMATS]  # they replace no file that loading needs
    one_by_one = [("pickle", (name,)) for name in OTHERS]
    assert sum(len(names) for _, names in (*together, *one_by_one)) > 60
    for form, names in (*together, *one_by_one):
        for name in names:
            (folder / name).write_bytes(FORMATS[form](canary))
        load_everything(folder)
        assert not canary.exists(), names
        shutil.rmtree(folder)
        shutil.copytree(tiny_bert, folder)


@pytest.mark.parametrize("form", FORMATS)
def test_the_canary_fires_when_it_is_unpickled(tmp_path, form):
    canary = tmp_path / "fired"
    with contextlib.suppress(RuntimeError):  # it expects a dictionary of tensors
        torch.load(io.BytesIO(FORMATS[form](canary)), weights_only=False)
    assert canary.exists()


@pytest.mark.parametrize("name", PICKLES[:5])
def test_pickled_weights_are_refused_and_never_opened(folder, tmp_path, monkeypatch, name):
    """Even the restricted reader of torch does not see them."""
    (folder / "model.safetensors").unlink()
    torch.save({"weights": torch.zeros(2)}, folder / name)
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    for listed in ({}, {"transformers_weights": name}):
        (folder / "config.json").write_text(json.dumps(config | listed))
        problem = "transformers_weights, which must be" if listed else "(not in|cannot be loaded)"
        with pytest.raises(InputError, match=rf"--model .*: .*{problem}"):
            load_saved(AutoModelForSequenceClassification, str(folder))


def test_a_model_with_only_pickled_weights_says_what_to_do(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = r"not in safetensors \(pytorch_model\.bin\), and other formats are never opened"
    with pytest.raises(InputError, match=f"--model .*: its weights are {message}"):
        load_saved(AutoModelForSequenceClassification, str(folder))


@pytest.mark.parametrize(
    "name", ["../w.safetensors", "/w.safetensors", "a/b.safetensors.index.json", 3]
)
def test_a_configuration_cannot_name_weights_elsewhere(folder, name):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
    with pytest.raises(InputError, match="transformers_weights, which must be a safetensors file"):
        load_saved(AutoModelForSequenceClassification, str(folder))


CODE = """
from pathlib import Path
Path({canary!r}).touch()
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer


class Custom(BertConfig):
    pass


class CustomModel(BertForSequenceClassification):
    pass


class CustomTokenizer(BertTokenizer):
    pass
"""


def plant_code(folder: Path, canary: Path) -> None:
    (folder / "custom.py").write_text(CODE.format(canary=str(canary)))
    classes = {
        "AutoConfig": "custom.Custom",
        "AutoModelForSequenceClassification": "custom.CustomModel",
        "AutoTokenizer": ["custom.CustomTokenizer", "custom.CustomTokenizer"],
        "AutoImageProcessor": "custom.Custom",
    }
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        values = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        values = {**values, "auto_map": classes, "model_type": "custom"}
        (folder / name).write_text(json.dumps(values))


def test_code_of_a_model_runs_only_if_it_is_trusted(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    canary = tmp_path / "fired"
    plant_code(folder, canary)
    load_everything(folder)
    assert not canary.exists()
    with contextlib.suppress(InputError):
        load_tokenizer(str(folder), trust_remote_code=True)
    assert canary.exists()


@pytest.mark.slow
def test_a_run_says_that_it_trusts_the_code_of_a_model(folder, tmp_path):
    data = write_csv(tmp_path / "data.csv", rows(30, 0), ("text", "label"))
    words = ["--train_file", data, "--model_name_or_path", folder, "--output_dir", tmp_path / "run"]
    words += ["--use_cpu", "--cpu_threads", 1, "--max_train_steps", 1]
    note = "code from the model's repository may run"
    assert note not in succeeded(call_here(CLASSIFY, *words)).stdout
    trusting = call_here(CLASSIFY, *words, "--trust_remote_code", "--overwrite_output_dir")
    assert note in succeeded(trusting).stdout
