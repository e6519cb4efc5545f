"""What a source says of itself is held against how it is read."""

from __future__ import annotations

import csv
import datetime
import io
import json
import struct
import zlib
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from datasets import ClassLabel, Dataset, Features, Value
from PIL import Image, features
from tiny_files import GOOD, ROWS, csv_of, load, rows_of

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.errors import InputError
from ampft.kinds.receipt import receipt_lines
from ampft.media.images import as_rgb, open_image
from ampft.media.masks import MaskError, mask_values
from ampft.media.sounds import open_sound
from ampft.tasks.table import TASKS, default_task

SHAPE = (4, 6)
ROAD, SKY = (128, 64, 128), (70, 130, 180)
COLORS = f"Road {' '.join(map(str, ROAD))}\nSky {' '.join(map(str, SKY))}\n"
BLACK_AND_WHITE = "ground 0 0 0\nlesion 255 255 255\n"


def read_back(data):
    return receipt_lines(data, TASKS[default_task(data.kind)].kind)


def grey(*values):
    return lambda mask, row: Image.fromarray(np.array(values, dtype=np.uint8)[mask])


def palette(*colors, swapped_in_odd=False):
    def make(mask, row):
        flip = swapped_in_odd and row % 2
        image = Image.fromarray(mask ^ 1 if flip else mask)
        image.putpalette(np.array(colors[::-1] if flip else colors, dtype=np.uint8).tobytes())
        return image

    return make


def load_masks(folder, make, names=None, **options):
    """Return label names and pixels of the training masks; the true mask has seven pixels of 1."""
    for inner in ("images", "masks"):
        (folder / inner).mkdir()
    for row in range(4):
        mask = np.zeros(SHAPE, dtype=np.uint8)
        mask.flat[row : row + 7] = 1
        noise = np.random.default_rng(row).integers(0, 255, (*SHAPE, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "images" / f"{row}.png")
        make(mask, row).save(folder / "masks" / f"{row}.png")
    if names is not None:
        (folder / "names.txt").write_text(names)
        options["class_names_file"] = folder / "names.txt"
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    data = load_data(ClassifyArguments(dataset_name=folder, task="pixels", **none, **options))
    return dict(zip(data.label_names, data.masks["train"].counts.sum(axis=0).tolist(), strict=True))


@pytest.mark.parametrize(
    ("make", "names", "expected"),
    [
        (grey(0, 255), None, {"0": 68, "255": 28}),
        (grey(0, 255), "ground\nlesion\n", {"ground": 68, "lesion": 28}),
        (grey(0, 255), BLACK_AND_WHITE, {"ground": 68, "lesion": 28}),
        (grey(255, 0), BLACK_AND_WHITE, {"ground": 28, "lesion": 68}),
        (grey(0, 1), "Sky 128 128 128\nCar 9 9 8\nVoid 0 0 0\n", {"Sky": 68, "Car": 28, "Void": 0}),
        (palette(SKY, ROAD), COLORS, {"Road": 28, "Sky": 68}),
        (palette(ROAD, SKY), COLORS, {"Road": 68, "Sky": 28}),
        (palette(ROAD, SKY, swapped_in_odd=True), COLORS, {"Road": 68, "Sky": 28}),
        (palette((1, 2, 3), (4, 5, 6)), COLORS, {"Road": 68, "Sky": 28}),
        (palette(SKY, ROAD), "Road\nSky\n", {"Road": 68, "Sky": 28}),
    ],
)
def test_colours_of_masks(tmp_path, make, names, expected):
    assert load_masks(tmp_path, make, names) == expected


@pytest.mark.parametrize(
    ("make", "names", "options", "message"),
    [
        (grey(0, 255), None, {"ignore_index": 255}, "the other values .* are 0"),
        (grey(0, 255), BLACK_AND_WHITE, {"ignore_index": 255}, "all pixels .* are 'ground'"),
        (grey(0, 0), "a\nb\nc\n", {}, "all pixels of the training masks are 'a'"),
        (palette(ROAD, SKY, swapped_in_odd=True), None, {}, "gives the number 0 the colour"),
        (palette(ROAD, SKY, swapped_in_odd=True), "Road\nSky\n", {}, "1.png: .*0.png gives it"),
        (palette(SKY, (4, 5, 6)), COLORS, {}, r"the colour \(4, 5, 6\), which no class has"),
        (
            lambda mask, row: Image.fromarray(np.where(mask == 1, 255, row % 2).astype(np.uint8)),
            BLACK_AND_WHITE, {}, "the value 255 of grey masks can be the number",
        ),
        (
            lambda mask, row: Image.fromarray(np.where(mask == 1, 254, row % 2 * 127).astype("u1")),
            None, {}, "the values of the training masks are 0, 127, 254",
        ),
        (grey(0, 100), None, {}, "the values of the training masks are 0, 100. They seem"),
        (grey(1, 255), None, {}, "the values of the training masks are 1, 255. They seem"),
    ],
)  # fmt: skip
def test_masks_that_contradict_their_classes(tmp_path, make, names, options, message):
    with pytest.raises(InputError, match=message):
        load_masks(tmp_path, make, names, **options)


def delimited(rows, delimiter="\t", quoting=csv.QUOTE_MINIMAL):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    writer.writerows([("text", "label"), *rows])
    return file.getvalue()


SAID = [('he said "yes"', "a"), *ROWS]
TABS = [(f"one\ttwo\nthree {i}", "ab"[i % 2]) for i in range(9)] + [("four", "a"), ("five", "b")]
PLAIN_TSV = delimited(ROWS)
SEMICOLONS = GOOD.replace(",", ";")


@pytest.mark.parametrize(
    ("name", "content", "rows", "note"),
    [
        ("t.tsv", delimited(SAID), SAID, "quoted as in CSV"),
        ("t.tsv", delimited(ROWS, quoting=csv.QUOTE_ALL), ROWS, "quoted as in CSV"),
        ("t.tsv", PLAIN_TSV.replace("text 0", '5" nail'), [('5" nail', "a"), *ROWS[1:]], None),
        ("t.tsv", PLAIN_TSV.replace("text 0\t", '"yes"\t'), [('"yes"', "a"), *ROWS[1:]], "1 cell"),
        ("t.csv", "sep=;\r\n" + SEMICOLONS.replace("\n", "\r\n"), ROWS, "separated by ';'"),
        ("t.csv", "\ufeffsep=;\n" + SEMICOLONS, ROWS, "separated by ';'"),
        ("t.csv", csv_of([(*row, "", "") for row in ROWS], "text,label,,"), ROWS, None),
        ("t.csv", csv_of([(*row, "", "x") for row in ROWS], "text,label,,"), ROWS, "4 (40 rows)"),
        ("t.csv", csv_of([("7", *row) for row in ROWS], ",words,label"), ROWS, None),
        ("t.csv", GOOD.encode("utf-16"), ROWS, "read as UTF-16"),
        ("t.tsv", delimited(SAID).encode("utf-16"), SAID, "read as UTF-16"),
    ],
)
def test_how_text_files_are_written(tmp_path, name, content, rows, note):
    data = load(tmp_path, content, name)
    assert rows_of(data) == rows
    said = [each for each in data.notes if str(tmp_path) in each]
    assert not said if note is None else any(note in each for each in said)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("t.tsv", 'text\tlabel\n"a\tb\nc"\ta\n', {}, "3 rows if quotes are plain .* and 2 if"),
        ("t.csv", "\ufeff" + GOOD, {"encoding": "latin-1"}, "byte-order mark of UTF-8"),
        ("t.csv", ",,\n1,2,3\n", {}, "no column has a name"),
    ],
)  # fmt: skip
def test_text_files_that_can_be_read_in_two_ways(tmp_path, name, content, options, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, name, **options)


def test_signs_of_windows_in_latin_1_are_said(tmp_path):
    content = csv_of([("it\u2019s", "a"), *ROWS]).encode("cp1252")
    data = load(tmp_path, content, encoding="latin-1")
    assert any("0x92 is a control character" in note for note in data.notes)
    data = load(tmp_path, content, encoding="cp1252")
    assert rows_of(data)[0] == ("it\u2019s", "a")
    assert not any("control" in note for note in data.notes)


GERMEVAL = "#\thttp://x [2009]\n1\tim\tO\tO\n2\tFC\tB-ORG\tO\n3\tUlm\tI-ORG\tB-LOC\n\n"
MULTICONER = "# id 64e2 domain=en\nim _ _ O\nFC _ _ B-ORG\nUlm _ _ I-ORG\n\n"
CHUNKS = "1 im IN O O\n2 FC NNP B-NP B-ORG\n3 Ulm NNP I-NP I-ORG\n\n"
ENTITIES = [("im", "O"), ("FC", "B-ORG"), ("Ulm", "I-ORG")]
REST = "\t_" * 5
CONLLU = (
    f"# text = can't #\n1-2\tcan't\t_\t_\t_{REST}\n1\tca\tcan\tAUX\tMD{REST}\n"
    f"2\tn't\tnot\tPART\tRB{REST}\n3\t#\t#\tSYM\t#{REST}\n\n"
)


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        (GERMEVAL, None, ENTITIES),
        (GERMEVAL.replace("\n", "\r\n"), "column_4", [("im", "O"), ("FC", "O"), ("Ulm", "B-LOC")]),
        (MULTICONER, None, ENTITIES),
        (CHUNKS, None, ENTITIES),
        (CHUNKS.translate({ord(digit): None for digit in "123"}), None, ENTITIES),
        (CONLLU, None, [("ca", "AUX"), ("n't", "PART"), ("#", "SYM")]),
        (CONLLU, "xpos", [("ca", "MD"), ("n't", "RB"), ("#", "#")]),
        ("# O\nRita B-PER\n\n#nlp O\n\n", None, [("#", "O"), ("Rita", "B-PER")]),
        ("# comment\nRita B-PER\n\nhi O\n\n", None, [("Rita", "B-PER")]),
    ],
)
def test_columns_and_comments_of_conll_files(tmp_path, text, column, expected):
    data = load(tmp_path, text * 3, "t.conll", label_column_name=column)
    row = data.splits["train"][0]
    tags = [data.label_names[code] for code in row["label"]]
    assert [*zip(row["tokens"], tags, strict=True)] == expected
    has_comments = text.startswith("#") and not text.startswith("# O")
    assert any("begin with # and are comments" in n for n in data.notes) == has_comments


def test_tags_before_words(tmp_path):
    text = "O\tim\nB-ORG\tFC\nI-ORG\tUlm\n\n" * 3
    data = load(tmp_path, text, "t.bio")
    row = data.splits["train"][0]
    assert (row["tokens"], [data.label_names[code] for code in row["label"]]) == (
        ["im", "FC", "Ulm"],
        ["O", "B-ORG", "I-ORG"],
    )
    assert any("words are in column 2 of 2, tags in column 1" in note for note in data.notes)


def test_a_first_column_without_words_is_refused(tmp_path):
    text = "".join(f"bc/a {i} {word} O\n" for i, word in enumerate("abcde"))
    with pytest.raises(InputError, match=r"t\.conll: the first column has one value in each"):
        load(tmp_path, text, "t.conll")


SPANS = [(0, 4, "PER"), (13, 17, "LOC")]
FLIGHT = "Rita flew to Oslo"
SPAN_ROWS = {
    "lists in label": {"label": [list(span) for span in SPANS]},
    "lists in another column": {"marks": [list(span) for span in SPANS]},
    "offsets": {
        "entities": [
            {"id": 1, "start_offset": a, "end_offset": b, "label": t} for a, b, t in SPANS
        ],
        "Comments": [],
    },
    "Label Studio": {
        "label": [{"start": a, "end": b, "text": FLIGHT[a:b], "labels": [t]} for a, b, t in SPANS]
    },
    "Prodigy": {
        "tokens": [{"text": word, "id": i} for i, word in enumerate(FLIGHT.split())],
        "spans": [{"start": a, "end": b, "label": t, "token_end": 0} for a, b, t in SPANS],
        "answer": "accept",
    },
}


@pytest.mark.parametrize("case", SPAN_ROWS)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_exports_with_spans(tmp_path, case, ending):
    row = {"text": FLIGHT, **SPAN_ROWS[case]}
    options = {"label_column_name": "marks"} if "marks" in row else {}
    if ending == "csv":
        row["text"], options = FLIGHT, {**options, "task": "tokens"}
        content = delimited([], ",").replace("text,label", ",".join(row))
        file = io.StringIO()
        csv.writer(file).writerow([str(cell) for cell in row.values()])
        content += file.getvalue() * 3
    else:
        content = "\n".join([json.dumps(row)] * 3)
    data = load(tmp_path, content, f"t.{ending}", **options)
    part = data.splits["train"][2]
    assert part["text"] == FLIGHT.split()
    assert [data.label_names[code] for code in part["label"]] == ["B-PER", "O", "O", "B-LOC"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"spans": [{"start": 0, "end": 3, "label": "PER", "text": "Rita"}]},
            "characters are 'Rit'",
        ),
        ({"spans": [[0, 4, "PER"]], "answer": "reject"}, "lines 1, 2: the column 'answer' says"),
        ({"label": "a", "answer": "ignore"}, "lines 1, 2: the column 'answer' says"),
        ({"body": "x", "label": [[0, 4, "PER"]], "text": None}, "holds spans .* Add --task tokens"),
        ({"data": {}, "annotations": [], "text": 0}, "export JSON-MIN"),
    ],
)
def test_exports_that_do_not_hold(tmp_path, row, message):
    row = {key: value for key, value in {"text": FLIGHT, **row}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        load(tmp_path, f"{json.dumps(row)}\n" * 2, "t.jsonl")


@pytest.mark.parametrize(
    ("text", "start", "end", "message"),
    [
        ("Rita flew home", 0, 3, "their ends seem to be included"),
        ("to Rita and Bo", 4, 8, "counted from 1"),
        ("à Rita, là-bas", 3, 7, "counted in bytes of UTF-8"),
        ("\U0001f600 Rita flew", 3, 7, "counted in units of UTF-16"),
    ],
)
def test_places_of_spans_that_are_counted_otherwise(tmp_path, text, start, end, message):
    rows = [{"text": f"{text} {i}", "label": [[start, end, "PER"]]} for i in range(4)]
    content = "\n".join(map(json.dumps, rows))
    with pytest.raises(InputError, match=f"4 of 4 spans begin or end within a word, .*{message}"):
        load(tmp_path, content, "t.jsonl")
    data = load(tmp_path, content, "t.jsonl", text_units="graphemes")
    assert len(data.splits["train"]) == 4
    for row in rows:
        at = row["text"].index("Rita")
        row["label"] = [[str(at), str(at + 4), "PER"]]  # as some programs write numbers
    data = load(tmp_path, "\n".join(map(json.dumps, rows)), "right.jsonl")
    assert all("Rita/B-PER" in line for line in read_back(data)[1:])


def test_particles_of_one_letter_are_no_shift(tmp_path):
    rows = [{"text": f"서울에 {i} 갔다", "label": [[0, 2, "LOC"]]} for i in range(4)]
    data = load(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl")
    assert data.splits["train"][0]["text"][:3] == ["서", "울", "에"]


def test_pairs_of_spacy(tmp_path):
    rows = [[f"{FLIGHT} {i}", {"entities": [[0, 4, "PER"]]}] for i in range(4)]
    data = load(tmp_path, json.dumps(rows), "t.json")
    assert data.label_names == ("O", "B-PER", "I-PER")
    wrapped = json.dumps({"classes": ["PER"], "annotations": [*rows, None]})  # of NER Annotator
    again = load(tmp_path, wrapped, "t.json")
    assert again.fingerprints == data.fingerprints


WORDS_OF_CELLS = "FC Ulm plays ."
TAGS_OF_CELLS = "B-ORG I-ORG O O"


@pytest.mark.parametrize(
    ("words", "tags", "options"),
    [
        (WORDS_OF_CELLS, TAGS_OF_CELLS, {"task": "tokens"}),
        (WORDS_OF_CELLS, str(TAGS_OF_CELLS.split()), {"task": "tokens"}),
        (str(WORDS_OF_CELLS.split()), str(TAGS_OF_CELLS.split()), {"task": "tokens"}),
        (str(WORDS_OF_CELLS.split()), str(TAGS_OF_CELLS.split()), {}),
    ],
)
def test_words_and_tags_in_cells_of_text(tmp_path, words, tags, options):
    names = ("tokens", "ner_tags") if words.startswith("[") else ("sentence", "tags")
    file = io.StringIO()
    csv.writer(file).writerows([names, *[(words, tags)] * 3])
    data = load(tmp_path, file.getvalue(), "t.csv", **options)
    row = data.splits["train"][0]
    assert row["tokens"] == WORDS_OF_CELLS.split()
    assert [data.label_names[code] for code in row["label"]] == TAGS_OF_CELLS.split()


def test_a_table_with_a_word_per_row_is_refused(tmp_path):
    content = "n,Word,Tag\n" + "1,FC,B-ORG\n,plays,O\n" * 3
    options = {"task": "tokens", "text_column_names": "Word", "label_column_name": "Tag"}
    with pytest.raises(InputError, match=r"each row has one word.*Write a \.conll file"):
        load(tmp_path, content, **options)


SOUND = np.random.default_rng(0).normal(scale=0.1, size=4000).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [
        *(("WAV", b"data"), ("RF64", b"data"), ("AIFF", b"SSND"), ("WAVEX", b"data")),
        ("W64", b"data"),
    ],
)
def test_frames_that_a_header_announces(kind, chunk):
    file = io.BytesIO()
    soundfile.write(file, SOUND, 8000, format=kind, subtype="PCM_16")
    whole = file.getvalue()
    assert len(open_sound(whole).samples) == 4000
    with pytest.raises(InputError, match=r"ends after \d+ of (39|40)\d\d frames"):
        open_sound(whole[: len(whole) // 2])
    start = whole.index(chunk) + 4
    for size in (0x7FFFFFFF, 0xFFFFFFFF, len(whole)):  # of pipes, and with the header counted in
        if kind in ("WAV", "WAVEX"):
            streamed = whole[:start] + size.to_bytes(4, "little") + whole[start + 4 :]
            assert len(open_sound(streamed).samples) == 4000


def png_of_16_bits(values, transparent, color):
    """PNG by hand (Portable Network Graphics specification, sections 4 and 11)."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(
            ">I", zlib.crc32(name + content)
        )  # fmt: skip

    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join([
        chunk(b"IHDR", header), chunk(b"tRNS", np.array(transparent).astype(">u2").tobytes()),
        chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""),
    ])  # fmt: skip


def test_transparent_values_of_16_bits():
    values = np.array([[1234, 1235, 65535, 0]])
    image = open_image(png_of_16_bits(values, [1234], 0))
    assert np.asarray(as_rgb(image))[0, :, 0].tolist() == [255, 5, 255, 0]
    colors = np.array([[[1234, 5, 60000], [1, 2, 3]]])
    with pytest.raises(InputError, match="a transparent colour with 16 bits per channel"):
        open_image(png_of_16_bits(colors, [1234, 5, 60000], 2))


@pytest.mark.parametrize(("ending", "kind"), [("jfif", "JPEG"), ("jpe", "JPEG"), ("avif", "AVIF")])
def test_other_endings_of_images(tmp_path, ending, kind):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    for row in range(4):
        folder = tmp_path / "ab"[row % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (60 * row, 0, 200)).save(folder / f"{row}.{ending}", format=kind)
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    data = load_data(ClassifyArguments(dataset_name=tmp_path, **none))
    assert (data.kind, data.label_names, len(data.splits["train"])) == ("image", ("a", "b"), 4)
    with pytest.raises(MaskError, match="whose compression changes"):
        mask_values(open_image(next((tmp_path / "a").iterdir())))


def test_the_plan_reads_cells_back(tmp_path):
    rows = [("row\u202e 0 " + "x" * 80, "b"), *ROWS]
    lines = read_back(load(tmp_path, csv_of(rows)))
    assert lines[0] == "b 51.2 %, a 48.8 % of 41 training rows"
    assert lines[1].startswith("first  line 2   b  row\\u202e 0 xxx")
    assert lines[1].endswith("x...")
    assert lines[2] == "last   line 42  b  text 39"
    lines = read_back(load(tmp_path, GERMEVAL * 2, "t.conll"))
    assert lines[0].startswith("O 33.3 %, B-ORG 33.3 %")
    assert lines[2] == "last   line 7  im FC/B-ORG Ulm/I-ORG"
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    assert not read_back(load_data(ClassifyArguments(max_train_samples=20)))
    load_masks(tmp_path, grey(0, 255), BLACK_AND_WHITE)
    names = tmp_path / "names.txt"
    data = load_data(ClassifyArguments(dataset_name=tmp_path, class_names_file=names, **none))
    assert read_back(data) == [
        "ground (0, 0, 0) 70.8 %, lesion (255, 255, 255) 29.2 % of 96 training pixels",
        "first  images/0.png",
        "last   images/3.png",
    ]


TEXTS, AB = [f"row {i}" for i in range(6)], ["a", "b"] * 3
DAYS = [datetime.date(2024, 1, 1 + i) for i in range(6)]


def load_columns(folder, features=None, **columns):
    options = columns.pop("options", {})
    Dataset.from_dict({"text": TEXTS, **columns}, features=features).to_parquet(
        folder / "t.parquet"
    )
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    return load_data(ClassifyArguments(train_file=folder / "t.parquet", **none, **options))


def test_types_of_parquet_columns(tmp_path):
    decimals = pa.array([Decimal(i % 2) for i in range(6)], pa.decimal128(38, 0)).to_pylist()
    assert load_columns(tmp_path, label=decimals).label_names == ("0", "1")
    options = {"group_column": "day", "id_column": "time"}
    times = [datetime.datetime(2024, 1, 1, 0, i) for i in range(6)]
    data = load_columns(tmp_path, label=AB, day=DAYS, time=times, options=options)
    assert data.splits["train"][5]["ampft_group"] == "2024-01-06"
    assert data.splits["train"][5]["ampft_id"] == "2024-01-01T00:05:00"
    table = pa.table({"text": [text.encode() for text in TEXTS], "label": AB})
    pq.write_table(table, tmp_path / "b.parquet")
    request = ClassifyArguments(train_file=tmp_path / "b.parquet", test_fraction=0.0)
    assert load_data(request).splits["train"]["text"][0] == "row 0"
    pq.write_table(table.set_column(0, "text", pa.array([b"\xe9"] * 6)), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"row 1: column 'text' holds bytes that are not UTF-8"):
        load_data(request)


def test_classes_that_a_parquet_file_declares(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos", "odd"])})
    data = load_columns(tmp_path, features, label=[0, 1] * 3)
    assert data.label_names == ("neg", "pos", "odd")
    assert data.splits["train"]["label"][:2] == [0, 1]
    table = pq.read_table(tmp_path / "t.parquet")
    wrong = table.set_column(1, "label", pa.array([0, 1, 5] * 2))
    pq.write_table(wrong.replace_schema_metadata(table.schema.metadata), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"row 3: column 'label' holds 5, .* 3 classes.*'odd'"):
        load_data(ClassifyArguments(train_file=tmp_path / "t.parquet"))


NAMES = [["it's", 'say "hi"'], ["a, b"], [], ["it's", "a, b"]]


@pytest.mark.parametrize("write", [str, json.dumps, lambda names: str(np.array(names, dtype=str))])
def test_lists_written_as_text(tmp_path, write):
    rows = [(f"row {i}", write(names)) for i, names in enumerate(NAMES * 3)]
    data = load(tmp_path, delimited(rows, ","), task="multi-label")
    assert data.label_names == ("a, b", "it's", 'say "hi"')
    found = [{data.label_names[c] for c in codes} for codes in data.splits["train"]["label"][:4]]
    assert found == [set(names) for names in NAMES]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("[0 0 1]", "a list of 0 and 1, one for each label"),
        ("[1.0, 1.0, 0.0]", "a list of 0 and 1, one for each label"),
        ("[0, 1]", "every row has the labels '0', '1'"),
        ("[anger, joy]", "seems to be a list and cannot be read"),
        ("['anger' 'joy', 'fear']", "seems to be a list and cannot be read"),
        ("[0 1 ... 0]", "seems to be a list and cannot be read"),
        ('c("anger", "joy")', "seems to be a list and cannot be read"),
        ("{anger,joy}", "seems to be a list and cannot be read"),
        ("Index(['anger', 'joy'])", "seems to be a list and cannot be read"),
        (json.dumps('["anger", "joy"]'), "seems to be a list and cannot be read"),
    ],
)
def test_lists_whose_labels_are_not_known(tmp_path, cell, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, delimited([("text", cell)] * 4, ","), task="multi-label")


@pytest.mark.parametrize("cell", ["[0 0 1]", "[1, 0, 0]", "['0', '0']", [0, 1, 0], [True, True]])
def test_lists_of_0_and_1_are_refused_at_once(tmp_path, cell):
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps({'text': 'word', 'label': cell})}\n" * 4)
    message = r"a list of 0 and 1, one .* --task multi-label --label_column_name"
    for task in (None, "multi-label"):
        with pytest.raises(InputError, match=message):
            load_data(ClassifyArguments(train_file=path, task=task))


def test_lists_of_two_indices_are_labels(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps({'text': 'word', 'label': [0, 1]})}\n" * 4)
    with pytest.raises(InputError, match=r"several labels, .* Add --task multi-label"):
        load_data(ClassifyArguments(train_file=path))
