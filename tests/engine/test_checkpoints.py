"""A checkpoint is complete or invisible, and every change of its files is noticed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from file_faults import flip_bit
from running import file_names
from safetensors.torch import load_file

from ampft import files
from ampft.engine.checkpoints.checkpoint_interval import Interval, parse_interval
from ampft.engine.checkpoints.store import (
    CONTENT_NAMES,
    MANIFEST_NAME,
    CheckpointManifest,
    CheckpointStore,
    CursorPart,
    DamagedCheckpoint,
    verified_history,
    verify,
)
from ampft.engine.checkpoints.training_state import (
    load_optimizer,
    optimizer_tensors,
    optimizer_values,
)
from ampft.engine.checkpoints.writing import BackgroundWriter, Content, write_content, write_tensors
from ampft.errors import InputError
from ampft.files import FileDigest, describe_file
from ampft.ownership import OWNER_NAME


def content(folder: Path, step: int) -> Content:
    history = folder / "history.jsonl"
    history.write_text("".join(f'{{"step": {n}}}\n' for n in range(1, step + 1)))
    manifest = CheckpointManifest(
        cursor=CursorPart(epoch=0, step_in_epoch=step, step=step),
        reason="a test",
        settings={"--seed": 1, "classes": ["\u202eb", "a"]},
        topology={"processes": 1},
        environment={},
        history=describe_file(history),
        files={},
    )
    return Content(
        manifest=manifest,
        model={"weight": torch.full((3,), float(step))},
        optimizer={"weight/exp_avg": torch.ones(3)},
        state={"loss": float("inf")},
        history=history,
    )


def write(store: CheckpointStore, step: int) -> Path:
    temporary = store.begin(step)
    assert temporary is not None
    write_content(temporary, content(store.path.parent, step))
    store.publish(temporary)
    return store.path / f"step-{step}"


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        (None, Interval()),
        ("500", Interval(steps=500)),
        ("epoch", Interval(every_epoch=True)),
        ("10min", Interval(seconds=600.0)),
        ("0.5 min", Interval(seconds=30.0)),
    ],
)
def test_intervals(text, interval):
    assert parse_interval(text) == interval


@pytest.mark.parametrize("text", ["0", "-4", "0min", "4.5", "epochs", "min", "10m", "\uff14"])
def test_other_intervals_are_refused(text):
    with pytest.raises(InputError, match=r"steps such as 500, the word epoch, or minutes such as"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("text", "limit", "count"),
    [
        (None, None, 0),
        ("100", None, 10),
        ("100", 2, 3),
        ("600", 3, 1),
        ("epoch", None, 4),
        ("10min", None, 1),
    ],
)
def test_the_disk_must_hold_all_checkpoints_that_exist_at_once(text, limit, count):
    assert parse_interval(text).most_at_once(1000, 250, limit) == count


def test_tensors_of_every_kind_are_read_by_safetensors(tmp_path: Path):
    shared = torch.arange(12, dtype=torch.float32).view(3, 4)
    tensors = {
        "float64": torch.tensor([0.1]),
        "transposed": shared.T,
        "tied": shared,
        "bfloat16": torch.randn(5).bfloat16(),
        "float16": torch.tensor([float("nan"), -0.0]).half(),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False, True]),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "int64": torch.tensor([-(2**60)]),
    }
    part = write_tensors(tmp_path / "all.safetensors", tensors)
    assert part == describe_file(tmp_path / "all.safetensors")
    loaded = load_file(tmp_path / "all.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].nan_to_num(7), tensor.nan_to_num(7)), name


def test_an_optimizer_is_restored_by_the_names_of_its_parameters():
    def trained(seed: int):
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias]}]
        optimizer = torch.optim.AdamW(groups, lr=0.1, fused=True)
        for _ in range(seed):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        return model, optimizer

    (model, optimizer), (other, restored) = trained(3), trained(1)
    values = json.loads(json.dumps(optimizer_values(model, optimizer)))
    assert values["groups"][0]["params"] == ["weight"]
    load_optimizer(other, restored, optimizer_tensors(model, optimizer), values)
    assert repr(restored.state_dict()) == repr(optimizer.state_dict())
    values["groups"].reverse()
    with pytest.raises(ValueError, match="trains other parameters than the saved one"):
        load_optimizer(other, restored, {}, values)


def test_a_convolution_with_channels_last_continues_exactly(tmp_path: Path):
    def new():
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model, optimizer):
        model(images).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    images = torch.randn(2, 3, 8, 8)
    (model, optimizer), (other, restored) = new(), new()
    step(model, optimizer)
    write_tensors(tmp_path / "optimizer", optimizer_tensors(model, optimizer))
    other.load_state_dict(model.state_dict())
    values = optimizer_values(model, optimizer)
    load_optimizer(other, restored, load_file(tmp_path / "optimizer"), values)
    step(model, optimizer)
    step(other, restored)
    # CUDA's kernel refuses another layout of the state, and that of a CPU mixes the weights up.
    assert restored.state[other.weight]["exp_avg"].stride() == other.weight.stride()
    assert torch.equal(other.weight, model.weight)


def test_an_intact_checkpoint_verifies(tmp_path: Path):
    folder = write(CheckpointStore(tmp_path), 4)
    manifest = verify(folder)
    assert file_names(folder) == sorted(
        {MANIFEST_NAME, OWNER_NAME, *CONTENT_NAMES} - {"best.safetensors"}
    )
    assert manifest.cursor == CursorPart(epoch=0, step_in_epoch=4, step=4)
    assert manifest.settings == {"--seed": 1, "classes": ["\u202eb", "a"]}
    assert "\u202e" not in (folder / MANIFEST_NAME).read_text(encoding="utf-8")
    assert verified_history(tmp_path / "history.jsonl", manifest.history).count(b"\n") == 4


FILES = (MANIFEST_NAME, "model.safetensors", "optimizer.safetensors", "state.json")


def truncate(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def delete(path: Path, other: Path) -> None:
    path.unlink()


def swap(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def replace_by_link(path: Path, other: Path) -> None:
    path.rename(path.parents[2] / "moved")
    path.symlink_to(path.parents[2] / "moved")


@pytest.mark.parametrize("damage", [flip_bit, truncate, delete, swap, replace_by_link])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_noticed_and_the_file_named(tmp_path: Path, name: str, damage):
    store = CheckpointStore(tmp_path)
    folder, other = write(store, 4), write(store, 5)
    if name in ("optimizer.safetensors", "state.json"):  # equal in both
        (other / name).write_bytes(b"other")
    damage(folder / name, other / name)
    with pytest.raises(DamagedCheckpoint, match=rf"step-4/{name}: the file (is|was|belongs)"):
        verify(folder)


def test_added_files_and_renamed_folders_are_noticed(tmp_path: Path):
    folder = write(CheckpointStore(tmp_path), 4)
    (folder / "code.py").write_text("mine")
    with pytest.raises(DamagedCheckpoint, match=r"code\.py: the file was added after"):
        verify(folder)
    (folder / "code.py").unlink()
    folder.rename(tmp_path / "checkpoints/step-9")
    with pytest.raises(DamagedCheckpoint, match="belongs to step 4, not to step-9"):
        verify(tmp_path / "checkpoints/step-9")


@pytest.mark.parametrize("text", ["", '{"step": 1}\n', '{"step": 1}\n{"step": 9}\n'])
def test_a_damaged_history_is_noticed(tmp_path: Path, text: str):
    manifest = verify(write(CheckpointStore(tmp_path), 2))
    history = tmp_path / "history.jsonl"
    history.write_text(f'{history.read_text()}{{"step": 3}}\n')
    assert verified_history(history, manifest.history) == b'{"step": 1}\n{"step": 2}\n'
    history.write_text(text)
    with pytest.raises(DamagedCheckpoint, match=r"history\.jsonl: the history is damaged"):
        verified_history(history, manifest.history)
    for size in (-7, 10**30):
        with pytest.raises(DamagedCheckpoint, match=r"history\.jsonl: the history is damaged"):
            verified_history(history, replace(manifest.history, bytes=size))
    with pytest.raises(DamagedCheckpoint, match="cannot be read"):
        verified_history(tmp_path / "absent", FileDigest(sha256="", bytes=1))


def test_old_checkpoints_are_removed_only_after_the_new_one_is_safe(tmp_path: Path, monkeypatch):
    store = CheckpointStore(tmp_path, limit=2)
    for step in (2, 4):
        write(store, step)
    events = []

    def recorded(name):
        plain = getattr(files, name)

        def call(*paths):
            events.append((name, paths[0].name))
            plain(*paths)

        return call

    for name in ("rename", "remove", "sync"):
        monkeypatch.setattr(f"ampft.engine.checkpoints.store.{name}", recorded(name))
    write(store, 6)
    assert file_names(store.path) == [OWNER_NAME, "step-4", "step-6"]
    published = next(i for i, event in enumerate(events) if event == ("sync", "checkpoints"))
    removed = [i for i, (name, _) in enumerate(events) if name == "remove"]
    assert events[published - 1][0] == "rename"
    assert removed
    assert min(removed) > published


def test_a_full_disk_costs_nothing_that_exists(tmp_path: Path, monkeypatch):
    store = CheckpointStore(tmp_path, limit=1)
    folder = write(store, 2)

    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write", full)
    temporary = store.begin(4)
    with pytest.raises(OSError, match="No space left"):
        write_content(temporary, content(tmp_path, 4))
    assert store.complete() == [folder]
    verify(folder)
    store.remove_incomplete()
    assert file_names(store.path) == [OWNER_NAME, "step-2"]


def tree(folder: Path) -> dict[str, bytes | str]:
    """Contents of all files below a folder, and targets of links, by path."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def plant(store: CheckpointStore) -> None:
    """Put checkpoints and other files of somebody else beside those of a run."""
    (store.path / "step-100").mkdir()  # higher than the run's
    (store.path / "step-1").mkdir()
    for name in ("model.safetensors", "state.json"):
        (store.path / "step-100" / name).write_text("mine")
        (store.path / "step-1" / name).write_text("mine")
    shutil.copytree(store.path / "step-2", store.path / "step-90")
    shutil.copytree(store.path / "step-2", store.path / "step-2-backup")
    other = CheckpointStore(store.path.parents[1] / "other")
    other.path.parent.mkdir()
    shutil.copytree(write(other, 80), store.path / "step-80")
    (store.path / "step-70").symlink_to(other.path / "step-80")
    (store.path / "step-4.tmp-0123456789abcdef").mkdir()
    (store.path / "step-4.tmp-0123456789abcdef" / "model.safetensors").write_text("mine")
    (store.path / "step-60").write_text("mine")


def test_only_what_the_run_provably_wrote_is_removed(tmp_path: Path):
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run", limit=2)
    for step in (2, 3):
        write(store, step)
    plant(store)
    places = tuple(f"run/checkpoints/step-{step}/" for step in (2, 3))
    own = {path for path in tree(tmp_path) if path.startswith(places)}
    mine = {path: text for path, text in tree(tmp_path).items() if path not in own}
    assert [path.name for path in store.own()] == ["step-2", "step-3"]
    with pytest.raises(InputError, match=r"step-1: the run that has this --output_dir did not"):
        store.refuse_foreign()
    (tmp_path / "run" / "history.jsonl").write_bytes(mine["run/history.jsonl"])
    write(store, 4)
    assert [path.name for path in store.own()] == ["step-3", "step-4"], "two are kept"
    store.remove_incomplete()
    store.remove_all()
    left = tree(tmp_path)
    left.pop(f"run/checkpoints/{OWNER_NAME}", None)
    mine.pop(f"run/checkpoints/{OWNER_NAME}", None)
    assert {**left, "run/history.jsonl": b""} == {**mine, "run/history.jsonl": b""}


@pytest.mark.parametrize("moved", [True, False])
def test_a_file_that_the_user_replaced_by_one_of_equal_size_is_kept(tmp_path: Path, moved: bool):
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run")
    write(store, 2)
    target = store.path / "step-2" / "state.json"
    mine = bytes(255 - byte for byte in target.read_bytes())
    if moved:  # with its old time of modification
        (tmp_path / "mine").write_bytes(mine)
        os.utime(tmp_path / "mine", (0, 0))
        (tmp_path / "mine").replace(target)
    else:
        target.write_bytes(mine)
    store.remove_all()
    assert mine in tree(tmp_path).values()
    assert not any(path.endswith("model.safetensors") for path in tree(tmp_path))


@pytest.mark.parametrize("step", [100, 70, 60])
def test_no_checkpoint_takes_the_place_of_a_foreign_one(tmp_path: Path, step: int):
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run")
    write(store, 2)
    plant(store)
    before = tree(tmp_path)
    with pytest.raises(InputError, match="Move it, or choose another --output_dir"):
        store.begin(step)
    assert tree(tmp_path) == before


def test_a_run_that_trusts_names_removes_what_is_not_its_own(tmp_path: Path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(CheckpointStore, "_is_own", lambda *_: True)
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run", limit=1)
    write(store, 2)
    plant(store)
    store.remove(store.path / "step-100")
    assert not (store.path / "step-100").exists()


def test_files_of_the_user_in_a_checkpoint_of_the_run_stay_where_they_are(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    added, changed, damaged = (write(store, step) for step in (2, 3, 4))
    (added / "notes.txt").write_text("mine")
    (changed / "state.json").write_text("this is mine")
    (damaged / MANIFEST_NAME).write_text("{")
    for _ in range(2):
        store.remove_all()
    left = tree(store.path)
    assert "step-2/notes.txt" in left
    assert b"this is mine" in left.values(), "it is moved into a hidden folder"
    assert {path.partition("/")[0].partition(".")[0] for path in left} == {"", "step-2", "step-3"}


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_folder_of_checkpoints_that_is_not_the_runs_own_is_refused(tmp_path: Path, kind: str):
    (tmp_path / "elsewhere").mkdir()
    store = CheckpointStore(tmp_path)
    if kind == "file":
        store.path.write_text("mine")
    elif kind == "link":
        store.path.symlink_to(tmp_path / "elsewhere")
    else:
        (store.path / OWNER_NAME).mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(InputError, match="so no checkpoint can be written"):
        store.begin(2)
    store.remove_all()
    assert tree(tmp_path) == before
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_background_error_surfaces_later():
    def fail():
        raise OSError(errno.ENOSPC, "full")

    writer = BackgroundWriter()
    writer.start(fail)
    with pytest.raises(OSError, match="full"):
        writer.start(lambda: None)
    done = []
    writer.start(lambda: done.append(1))
    writer.wait()
    writer.check()
    assert done == [1]
    writer.start(fail)
    writer.close()


@pytest.mark.parametrize(
    ("given", "is_removed"),
    [
        ({}, True),
        ({OWNER_NAME: ""}, True),
        ({OWNER_NAME: "{half}"}, True),
        ({OWNER_NAME: "", "model.safetensors": "mine"}, False),
        ({OWNER_NAME: "{half}", "model.safetensors": "mine"}, False),
        ({"model.safetensors": "mine"}, False),
        ({"notes.txt": ""}, False),
        ({OWNER_NAME: "mine"}, False),
    ],
)
def test_a_hidden_folder_is_removed_if_only_the_beginning_of_a_token_is_there(
    given, is_removed, tmp_path
):
    store = CheckpointStore(tmp_path)
    write(store, 2)
    hidden = store.path / "step-4.tmp-0123456789abcdef"
    hidden.mkdir()
    token = (store.path / OWNER_NAME).read_text()
    written = {name: text.format(half=token[: len(token) // 2]) for name, text in given.items()}
    for name, text in written.items():
        (hidden / name).write_text(text)
    store.remove_incomplete()
    assert hidden.exists() != is_removed
    if not is_removed:
        assert {path.name: path.read_text() for path in hidden.iterdir()} == written
