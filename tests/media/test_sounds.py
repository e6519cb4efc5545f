"""Sounds: decoded, averaged, resampled; tables of paths and columns of files; what is refused."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from datasets import Audio, Dataset, DatasetDict, Features, Value
from media_files import sound_table, tone, write_table

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.errors import InputError
from ampft.media.sounds import open_sound, resample

NO_SPLITS = {"validation_fraction": 0.0, "test_fraction": 0.0}


@pytest.mark.parametrize(
    ("name", "subtype", "tolerance"),
    [
        ("a.wav", "PCM_16", 2**-15),
        ("a.wav", "PCM_24", 2**-23),
        ("a.wav", "FLOAT", 0),
        ("a.wav", "GSM610", 0.2),
        ("a.flac", "PCM_24", 2**-23),
        ("a.ogg", "VORBIS", 0.1),
        ("a.mp3", "MPEG_LAYER_III", 0.1),
    ],
)
def test_formats(tmp_path, name, subtype, tolerance):
    samples = tone(440, 1, frames=4000) / 2
    soundfile.write(tmp_path / name, samples, 8000, subtype=subtype)
    for value in (tmp_path / name, {"path": "x", "bytes": (tmp_path / name).read_bytes()}):
        sound = open_sound(value)
        assert (sound.rate, sound.encoding) == (8000, subtype)
        assert abs(sound.mono()[: len(samples)] - samples).max() <= tolerance


def test_stereo_is_averaged(tmp_path):
    left, right = tone(300, 1), tone(500, 2)
    soundfile.write(tmp_path / "a.wav", np.stack([left, right], 1), 8000, subtype="FLOAT")
    mono = open_sound(tmp_path / "a.wav").mono()
    np.testing.assert_allclose(mono, (left + right) / 2, atol=1e-7)
    assert abs(mono - left).max() > 0.1  # negative control: the first channel


def test_resampling_keeps_the_tone():
    times = np.arange(8000) / 8000
    slow = np.sin(2 * np.pi * 440 * times).astype(np.float32)
    fast = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    inner = slice(800, -800)  # the filter rings at the ends
    np.testing.assert_allclose(resample(slow, 8000, 16000)[inner], fast[inner], atol=1e-3)
    assert resample(slow, 8000, 8000) is slow


def wave_bytes(samples, rate=8000, subtype="PCM_16"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wave_bytes(np.zeros(0, np.float32)), r"a\.wav: the sound has no samples"),
        (b"no sound", r"a\.wav: not a readable sound \(.*\)"),
        (b"", r"a\.wav: not a readable sound"),
        (wave_bytes(np.array([0, np.nan], np.float32), subtype="FLOAT"), "NaN or infinite"),
        (None, r"a\.wav: the file does not exist"),
    ],
    ids=["no samples", "text", "empty", "NaN", "missing"],
)
def test_damaged_sounds_are_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_sound(str(tmp_path / "a.wav"))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("peak", [0.5, 1.0, 2.0, 128.0, 32768.0, 1e300])
def test_float_samples_have_a_full_scale_of_one(subtype, peak):
    is_float = subtype in ("FLOAT", "DOUBLE")
    content = wave_bytes(np.array([0, -peak, peak / 2]), subtype=subtype)
    if is_float and peak > 2:
        with pytest.raises(InputError, match=r"NaN or infinite|floating point from -\d+ to"):
            open_sound(content)
        return
    read = open_sound(content).mono()
    # Negative control: integers, and floats a little too loud, are read as they are.
    np.testing.assert_allclose(read.min(), -peak if is_float else -min(peak, 1), atol=1 / 127)


def test_a_table_of_paths_relative_to_it(tmp_path):
    table = sound_table(tmp_path / "data", per_class=4)
    data = load_data(ClassifyArguments(train_file=table, **NO_SPLITS))
    assert (data.kind, data.input_columns) == ("sound", ("path",))
    assert data.label_names == ("high", "low", "middle")
    assert "Sounds are read from 'path', labels from 'label'." in data.notes
    assert set(data.splits["train"]["ampft_rate"][:]) == {8000}


def test_a_table_with_texts_is_one_of_texts(tmp_path):
    rows = [("a.wav", "hello", "yes"), ("b.wav", "bye", "no")]
    table = write_table(tmp_path / "t.csv", rows, ("path", "text", "label"))
    assert load_data(ClassifyArguments(train_file=table, **NO_SPLITS)).kind == "text"
    with pytest.raises(InputError, match=r"2 of 2 sounds .*: line 2, .*a\.wav: the file does not"):
        load_data(ClassifyArguments(train_file=table, task="sounds", **NO_SPLITS))


@pytest.mark.parametrize(
    ("rows", "header", "task", "message"),
    [
        (["ax", "by"], ("path", "label"), "sounds", "--audio_column_name: .*no column of paths of"),
        ([("a.wav", "b.wav", "x")], ("p", "q", "label"), None, "several columns of files"),
        ([("a.wav", "x"), ("b.mp3", "y")], ("path", "label"), "images", "no column of paths of im"),
    ],
)
def test_tables_without_a_clear_column(tmp_path, rows, header, task, message):
    table = write_table(tmp_path / "t.csv", rows, header)
    with pytest.raises(InputError, match=message):
        load_data(ClassifyArguments(train_file=table, task=task, **NO_SPLITS))


def test_a_missing_cell_is_named(tmp_path):
    table = write_table(tmp_path / "t.csv", [("a.wav", "x"), ("", "y")])
    with pytest.raises(InputError, match=r"t\.csv, line 3: nothing in column 'path'"):
        load_data(ClassifyArguments(train_file=table, **NO_SPLITS))


def test_parquet_and_hub_columns_are_decoded_without_torchcodec(tmp_path):
    files = [{"bytes": wave_bytes(tone(300, i)), "path": f"{i}.wav"} for i in range(4)]
    features = Features({"bytes": Value("binary"), "path": Value("string")})
    rows = Dataset.from_dict(
        {"audio": files, "label": ["a", "b", "a", "b"]},
        features=Features({"audio": features, "label": Value("string")}),
    )
    rows.to_parquet(tmp_path / "plain.parquet")
    data = load_data(ClassifyArguments(train_file=tmp_path / "plain.parquet", **NO_SPLITS))
    assert (data.kind, data.input_columns) == ("sound", ("audio",))
    DatasetDict({"train": rows.cast_column("audio", Audio(16000))}).save_to_disk(tmp_path / "hub")
    hub = load_data(ClassifyArguments(dataset_name=str(tmp_path / "hub"), **NO_SPLITS))
    assert (hub.kind, hub.input_columns) == ("sound", ("audio",))
    assert hub.splits["train"]["ampft_frames"][:] == [1600] * 4
    assert hub.fingerprints == data.fingerprints


def test_a_broken_row_of_a_parquet_file_is_named(tmp_path):
    files = [{"bytes": wave_bytes(tone(300, 1)), "path": "1.wav"}, {"bytes": b"x", "path": "2.wav"}]
    pq.write_table(pa.table({"audio": files, "label": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(
        InputError, match=r"t\.parquet: 1 of 2 sounds .*: row 2, 2\.wav: not a read"
    ):
        load_data(ClassifyArguments(train_file=tmp_path / "t.parquet", **NO_SPLITS))


def test_stereo_sounds_are_counted(tmp_path):
    table = sound_table(tmp_path / "data", per_class=4)
    stereo = np.stack([tone(300, 1), tone(300, 2)], 1)
    soundfile.write(tmp_path / "data" / "clips" / "low0.wav", stereo, 8000)
    notes = load_data(ClassifyArguments(train_file=table, **NO_SPLITS)).notes
    assert (
        "Of 12 sounds, these are converted to one channel: 1 with 2 channels, averaged to one."
        in notes
    )


@pytest.mark.parametrize(("factor", "what"), [(-1, "cancel each other out"), (-0.5, "averaged")])
def test_channels_that_cancel_each_other_out_are_said(tmp_path, factor, what):
    table = sound_table(tmp_path)
    for path in sorted(tmp_path.rglob("*.wav"))[:3]:
        samples = tone(300, 1)
        soundfile.write(path, np.stack([samples, factor * samples], 1), 8000)
    notes = load_data(ClassifyArguments(train_file=table)).notes
    assert any(f"3 with 2 channels{' that' * (factor == -1)}" in n and what in n for n in notes)


@pytest.mark.parametrize("channels", [1, 2])
def test_sounds_in_which_nothing_is_heard_are_refused(tmp_path, channels):
    table = sound_table(tmp_path)
    for row, path in enumerate(sorted(tmp_path.rglob("*.wav"))):
        samples = tone(300, row)
        both = np.stack([samples, -samples], 1) if channels == 2 else 0 * samples
        soundfile.write(path, both, 8000)
    with pytest.raises(InputError, match="all 24 sounds are silent in one channel"):
        load_data(ClassifyArguments(train_file=table))


@pytest.mark.parametrize(
    ("moved", "written"), [("audio", "audio/0.wav"), ("../audio", "../audio/0.wav")]
)
def test_files_that_lie_elsewhere_are_found(tmp_path, moved, written):
    folder = tmp_path / "meta"
    files = folder / moved
    files.mkdir(parents=True)
    for row in range(6):
        soundfile.write(files / f"{row}.wav", tone(300, row), 8000)
    rows = [(f"{row}{ending}", "ab"[row % 2]) for row, ending in enumerate([".wav"] * 6)]
    table = write_table(folder / "t.csv", rows, ("path", "label"))
    with pytest.raises(InputError, match=rf"so write {written} instead of 0.wav"):
        load_data(ClassifyArguments(train_file=table))
    rows = [(name.removesuffix(".wav"), label) for name, label in rows]
    table = write_table(folder / "t.csv", rows, ("path", "label"))
    with pytest.raises(InputError, match=rf"so write {written} instead of 0,"):
        load_data(ClassifyArguments(train_file=table, audio_column_name="path"))


@pytest.mark.parametrize(
    "start", [b"\0\0\0\x20ftypM4A ", b"\x1aE\xdf\xa3", b"#!AMR\n", b"\xff\xf1\x50\x80"]
)
def test_sounds_that_need_ffmpeg_have_a_remedy(tmp_path, start):
    (tmp_path / "a.wav").write_bytes(start + bytes(200))
    with pytest.raises(InputError, match=r"not a readable sound .*ffmpeg -i IN OUT\.wav"):
        open_sound(tmp_path / "a.wav")
    for name in ("a", "b"):
        (tmp_path / "clips" / name).mkdir(parents=True)
        (tmp_path / "clips" / name / "0.m4a").write_bytes(start + bytes(200))
    with pytest.raises(InputError, match=r"Its files: .m4a \(2\).*ffmpeg -i IN OUT\.wav"):
        load_data(ClassifyArguments(dataset_name=tmp_path / "clips"))
