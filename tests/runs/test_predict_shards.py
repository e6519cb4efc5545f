"""`ampft predict --output_dir`: one output per input, continued, and never mixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.dataset
import pytest
from datasets import load_dataset
from safetensors.torch import load_file, save_file
from test_predict_refusals import trained_on

import ampft.integrations.predict_shards as module
from ampft.cli import main
from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.integrations.extension_points import ShardJob
from ampft.integrations.predict_shards import SHARDS_NAME, predict_folder, predict_here
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import load_run_classifier, predict_file

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture
def folder(tiny_bert, tmp_path, monkeypatch) -> Path:
    return trained_on(("text",), tiny_bert, tmp_path, monkeypatch)


@pytest.fixture
def inputs(tmp_path) -> Path:
    place = tmp_path / "in"
    (place / "later").mkdir(parents=True)
    for number, name in enumerate(("b.csv", "a.parquet", "later/c.jsonl")):
        rows = [{"id": 10 * number + i, "text": f"w{i} w{number}"} for i in range(5)]
        frame = pd.DataFrame(rows)
        write = {".csv": frame.to_csv, ".parquet": frame.to_parquet}.get(Path(name).suffix)
        if write is None:
            frame.to_json(place / name, orient="records", lines=True)
        else:
            write(place / name, index=False)
    return place


def predict(model, output, *files, engine=predict_here, **options) -> None:
    request = PredictRequest(files=[*map(str, files)], **options)
    predict_folder(ShardJob(str(model), load_run_classifier, request), output, engine)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.parquet")}


def refuse(*_):
    raise AssertionError("a complete shard was predicted again")


@pytest.mark.slow
def test_each_shard_has_the_bytes_of_a_single_prediction(folder, inputs, tmp_path, capsys):
    predict(folder, tmp_path / "out", inputs, top_k=1)
    assert "shards     3 of 3 files to predict" in capsys.readouterr().out
    found = contents(tmp_path / "out")
    assert sorted(found) == ["a.parquet", "b.parquet", "later/c.parquet"]
    for source in ("a.parquet", "b.csv", "later/c.jsonl"):
        alone = tmp_path / f"{Path(source).stem}-alone.parquet"
        request = PredictRequest(files=[str(inputs / source)], output_file=str(alone), top_k=1)
        predict_file(str(folder), request)
        assert found[Path(source).with_suffix(".parquet").as_posix()] == alone.read_bytes()


def test_datasets_and_pyarrow_read_the_folder(folder, inputs, tmp_path):
    output = tmp_path / "out"
    predict(folder, output, inputs)
    table = pyarrow.dataset.dataset(output, format="parquet").to_table()
    assert table.column_names == ["id", "text", "prediction", "confidence"]
    assert table["id"].to_pylist() == [*range(10, 15), *range(5), *range(20, 25)]
    rows = load_dataset("parquet", data_dir=str(output), split="train", cache_dir=tmp_path / "hub")
    assert sorted(rows["id"]) == [*range(5), *range(10, 15), *range(20, 25)]


@pytest.mark.slow
def test_only_missing_shards_are_predicted_again(folder, inputs, tmp_path, capsys):
    output, begun = tmp_path / "out", []

    def killed(job, shards, place):
        yield from predict_here(job, shards[:1], place)
        place(shards[1]).write_text("half")
        begun.append(atomic_path(place(shards[2])))
        begun[0].__enter__()  # and never left
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(folder, output, inputs, engine=killed)
    (first,) = contents(output)
    before = (output / first).stat().st_mtime_ns
    predict(folder, output, inputs)
    assert "shards     2 of 3 files to predict" in capsys.readouterr().out
    assert (output / first).stat().st_mtime_ns == before
    assert len(contents(output)) == 3
    assert sorted(path.name for path in output.glob(".*")) == [SHARDS_NAME]
    predict(folder, output, inputs, engine=refuse)
    pd.DataFrame({"id": [1], "text": ["w1"]}).to_csv(inputs / "new.csv", index=False)
    predict(folder, output, inputs)
    assert "shards     1 of 4 files to predict" in capsys.readouterr().out


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "outside.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tamper", "match"),
    [
        (lambda path: path.write_text("junk"), "was changed after this command"),
        (lambda path: path.write_bytes(b""), "was changed after this command"),
        (linked, "is a link"),
    ],
)
def test_a_shard_is_finished_by_its_hash_not_by_its_name(folder, inputs, tmp_path, tamper, match):
    output = tmp_path / "out"
    predict(folder, output, inputs)
    tamper(output / "b.parquet")
    with pytest.raises(InputError, match=rf"b\.parquet: the file {match}"):
        predict(folder, output, inputs, engine=refuse)
    assert not (tmp_path / "outside.parquet").exists()
    (output / "b.parquet").unlink()
    predict(folder, output, inputs)
    assert sorted(contents(output)) == ["a.parquet", "b.parquet", "later/c.parquet"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["junk", "empty", "link", "linked folder"])
def test_a_foreign_file_with_the_name_of_a_shard_is_refused(folder, inputs, tmp_path, kind):
    output = tmp_path / "out"
    predict(folder, output, inputs / "a.parquet")
    if kind == "linked folder":
        (tmp_path / "outside").mkdir()
        (output / "later").symlink_to(tmp_path / "outside")
    elif kind == "link":
        (output / "b.parquet").symlink_to(tmp_path / "outside.parquet")
    else:
        (output / "b.parquet").write_text("junk" if kind == "junk" else "")
    with pytest.raises(InputError, match=r"Move it, (or choose another|and repeat)"):
        predict(folder, output, inputs)
    assert not (tmp_path / "outside.parquet").exists()
    assert not list(tmp_path.glob("outside/*"))


@pytest.mark.slow
def test_a_kill_between_manifest_and_shard_costs_the_shard_only(
    folder, inputs, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "out"

    def killed(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "durably_rename", killed)
        with pytest.raises(KeyboardInterrupt):
            predict(folder, output, inputs)
    assert contents(output) == {}
    predict(folder, output, inputs)
    assert "shards     3 of 3 files to predict" in capsys.readouterr().out
    assert len(contents(output)) == 3


@pytest.mark.slow
def test_a_manifest_is_not_written_for_every_shard(folder, inputs, tmp_path, monkeypatch):
    for number in range(60):
        (inputs / f"n{number}.csv").write_text("text\nw1\n")
    now, manifests = [0.0], []

    class Folder(module.RunFolder):
        def write_text(self, name, text):
            manifests.append(len(json.loads(text)["outputs"]))
            now[0] += 0.01 * (10 + manifests[-1])  # the longer, the slower
            return super().write_text(name, text)

    def quick(job, shards, place):
        for shard in shards:
            place(shard).write_text(shard.name)
            now[0] += 0.1
            yield shard, 1

    monkeypatch.setattr(module, "RunFolder", Folder)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    predict(folder, tmp_path / "out", inputs, engine=quick)
    assert len(contents(tmp_path / "out")) == manifests[-1] == 63
    assert len(manifests) <= 6  # and not 64
    predict(folder, tmp_path / "out", inputs, engine=refuse)


def test_outputs_of_two_models_settings_or_inputs_are_not_mixed(
    folder, inputs, tmp_path, monkeypatch
):
    output = tmp_path / "out"
    predict(folder, output, inputs)
    before = contents(output)

    def refused(match, *files, **options):
        with pytest.raises(InputError, match=match):
            predict(folder, output, *(files or [inputs]), engine=refuse, **options)
        assert contents(output) == before

    refused(r"with other settings \('top_k'\)", top_k=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "versions", lambda: {"torch": "0"})
        refused(r"with other versions of packages \('accelerate'")
    weights = folder / "model.safetensors"
    saved = weights.read_bytes()
    weights.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    refused(r"with another model \('model.safetensors'\)")
    weights.write_bytes(saved)
    (inputs / "b.csv").write_text("id,text\n1,w1\n")
    refused(r"with other inputs \('b.parquet'\)")


@pytest.mark.slow
def test_a_shard_whose_input_is_gone_is_pointed_out(folder, inputs, tmp_path, capsys):
    output = tmp_path / "out"
    predict(folder, output, inputs)
    predict(folder, output, inputs, engine=refuse)
    assert "also there" not in capsys.readouterr().out
    (inputs / "b.csv").unlink()
    predict(folder, output, inputs, engine=refuse)
    assert "also there b.parquet: written earlier from inputs that are gone" in (
        capsys.readouterr().out
    )
    (output / "b.parquet").unlink()
    predict(folder, output, inputs, engine=refuse)
    assert "also there" not in capsys.readouterr().out
    shutil.copy(output / "a.parquet", output / "zz.parquet")
    predict(folder, output, inputs, engine=refuse)
    assert "also there zz.parquet: not written by this command." in capsys.readouterr().out


@pytest.mark.add_ons
def test_a_picture_behind_a_table_of_paths_counts(tiny_bert, tmp_path, monkeypatch):
    folder = trained_on(("image",), tiny_bert, tmp_path, monkeypatch, kind="image")
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    table = tmp_path / "table.csv"
    table.write_text("image\na.png\nb.png\n")

    def quick(job, shards, place):
        for shard in shards:
            place(shard).write_text(shard.name)
            yield shard, 2

    output = tmp_path / "out"
    predict(folder, output, table, engine=quick)
    predict(folder, output, table, engine=refuse)
    for change in (lambda p: p.write_bytes(b"other"), Path.unlink):
        change(tmp_path / "b.png")
        with pytest.raises(InputError, match=r"with other inputs \('table.parquet'\)"):
            predict(folder, output, table, engine=refuse)
    (tmp_path / "b.png").write_bytes(b"b")
    predict(folder, output, table, engine=refuse)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("b.jsonl", '{"text": "w1"}\n', r"would both become b.parquet"),
        ("bad.csv", 'text\n""\n', r"bad.csv, line 2: nothing in column 'text'"),
        ("bad.csv", "other\nw1\n", r"bad.csv"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    folder, inputs, tmp_path, name, text, match
):
    (inputs / name).write_text(text)
    with pytest.raises(InputError, match=match):
        predict(folder, tmp_path / "out", inputs, engine=refuse)
    assert not (tmp_path / "out").exists()


def test_places_and_options_that_cannot_be(folder, inputs, tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "notes").touch()
    for match, output, files, options in (
        ("the folder is not empty", full, [inputs], {}),
        ("it is in the input folder", inputs / "out", [inputs], {}),
        ("has no tables", tmp_path / "out", [empty], {}),
        ("--output_dir and --output_file", tmp_path / "out", [inputs], {"output_file": "x.csv"}),
        ("--output_dir and --label_column", tmp_path / "o", [inputs], {"label_column_name": "y"}),
        ("--output_dir and standard input", tmp_path / "out", ["-"], {}),
    ):
        with pytest.raises(InputError, match=match):
            predict(folder, output, *files, engine=refuse, **options)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / SHARDS_NAME).write_text("{")
    with pytest.raises(InputError, match="the file is damaged"):
        predict(folder, tmp_path / "damaged", inputs, engine=refuse)


def test_an_input_that_changes_meanwhile_is_refused(folder, inputs, tmp_path):
    def late(job, shards, place):
        (inputs / "a.parquet").write_bytes((inputs / "a.parquet").read_bytes() + b"x")
        yield from predict_here(job, shards, place)

    with pytest.raises(InputError, match=r"a.parquet differs from what this command read"):
        predict(folder, tmp_path / "out", inputs, engine=late)


def test_a_model_that_changes_meanwhile_is_refused(folder, inputs, tmp_path):
    def late(job, shards, place):
        weights = load_file(folder / "model.safetensors")
        save_file(
            {name: 2 * tensor for name, tensor in weights.items()}, folder / "model.safetensors"
        )
        yield from predict_here(job, shards, place)

    with pytest.raises(InputError, match=r"--model .* differs from what this command read"):
        predict(folder, tmp_path / "out", inputs, engine=late)
    assert contents(tmp_path / "out") == {}


def test_the_command(folder, inputs, tmp_path, capsys):
    words = ["predict", "--model", str(folder), str(inputs)]
    assert main([*words, "--output_dir", str(tmp_path / "out")]) == 0
    assert len(contents(tmp_path / "out")) == 3
    values = json.loads((tmp_path / "out" / SHARDS_NAME).read_text())
    assert sorted(values["inputs"]) == ["a.parquet", "b.parquet", "later/c.parquet"]
    assert main([*words, "--engine", "ray"]) == 2
    assert "--engine has no effect without --output_dir" in capsys.readouterr().err
