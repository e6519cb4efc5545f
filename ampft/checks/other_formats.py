"""Files of formats that no reader reads: what they are, by their ending or content, and what to do.

A file is judged by its first bytes where its ending promises another format: a compressed table
under the name `.csv`, or the export of a program for annotation under the name `.tsv`.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from ampft.data.sources.file_names import BRAT
from ampft.data.sources.readers import READERS
from ampft.errors import InputError
from ampft.words.conll import READERS as WORD_READERS
from ampft.words.conll import has_line_per_word

START = 4096  # bytes that show what a file is

_UNPACK = "It is compressed: unpack it with"
_SPANS = 'Write lines such as {"text": "Ann sleeps", "label": [[0, 3, "PER"]]} into a .jsonl file.'
_ARROW = (
    "Pass the folder that save_to_disk of datasets wrote with --dataset_name. Otherwise write it as"
    " Parquet: pandas.read_feather('FILE').to_parquet('FILE.parquet')."
)
_ROWS = "Write a row per example as .csv or .jsonl, with the columns text and label."
_STATISTICS = (
    "Write it as Parquet: pandas.read_stata('FILE').to_parquet('FILE.parquet'), or read_spss,"
    " read_sas."
)
_FASTTEXT = b"__label__"  # before each label
_OF_FASTTEXT = (
    "has lines of fastText. Write them as a table: (printf 'label\\ttext\\n'; sed"
    " 's/^__label__\\([^ ]*\\) /\\1\\t/' FILE) > FILE.tsv"
)
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # .xls: Compound File Binary, section 2.2
_ZIP = b"PK\x03\x04"  # .xlsx and .ods are ZIP archives too
_WORKBOOKS = ("[Content_Types].xml", "mimetype")  # a file in every .xlsx or .ods
_A_WORKBOOK = (
    "is a spreadsheet of a kind or a name that is not read. Save it as .xlsx, or its sheet as CSV"
    ' (in Excel "CSV UTF-8"), and pass that file.'
)
# What to do with a file of another kind, by its ending.
ADVICE = {
    ".gz": f"{_UNPACK} gunzip --keep FILE.",
    ".bz2": f"{_UNPACK} bunzip2 --keep FILE.",
    ".xz": f"{_UNPACK} unxz --keep FILE.",
    ".zst": f"{_UNPACK} unzstd FILE.",
    **dict.fromkeys((".zip", ".7z"), f"{_UNPACK} unzip FILE, or 7z x FILE."),
    **dict.fromkeys((".tar", ".tgz"), "It is an archive: unpack it with tar xf FILE."),
    **dict.fromkeys((".arrow", ".feather"), _ARROW),
    **dict.fromkeys(
        (".pkl", ".pickle"), "A pickle can run code when it is read. Write its rows as Parquet."
    ),
    **dict.fromkeys(
        (".docx", ".doc", ".odt", ".rtf", ".pdf", ".pptx", ".ppt", ".epub"),
        f"It is a document. {_ROWS}",
    ),
    ".ann": BRAT,
    ".spacy": f"It holds documents of spaCy, which its DocBin reads. {_SPANS}",
    **dict.fromkeys((".xlsb", ".xls", ".ods"), f"It {_A_WORKBOOK}"),
    **dict.fromkeys((".dta", ".sav", ".sas7bdat", ".por"), _STATISTICS),
    **dict.fromkeys((".rds", ".rdata", ".rda"), "Write it in R: write.csv(DATA, 'NAME.csv')."),
    **dict.fromkeys((".mat", ".npz", ".npy", ".h5", ".hdf5"), f"It holds arrays. {_ROWS}"),
    **dict.fromkeys((".toml", ".arff", ".sql"), _ROWS),
    ".xml": f"XML is not read. {_ROWS} {_SPANS} From CVAT, export another format.",
    ".xmi": f"From INCEpTION, export CoNLL 2002 and name the file .conll. Otherwise: {_SPANS}",
    ".txt": "Save a table as .csv or .tsv, with a header, and words with their tags as .conll.",
}
# What a file is and what to do, by the bytes with which it begins.
_BEGINNINGS = {
    b"\x1f\x8b": "is compressed with gzip. Unpack it: gunzip < FILE > NEW",
    b"BZh": "is compressed with bzip2. Unpack it: bunzip2 < FILE > NEW",
    b"\xfd7zXZ\x00": "is compressed with xz. Unpack it: unxz < FILE > NEW",
    b"\x28\xb5\x2f\xfd": "is compressed with Zstandard. Unpack it: unzstd < FILE > NEW",
    b"7z\xbc\xaf\x27\x1c": "is an archive of 7-Zip. Unpack it, and pass a file that it holds.",
    _OLE: _A_WORKBOOK,
    b"ARROW1": f"is a file of Arrow. {_ARROW}",
    b"SQLite format 3": "is a database of SQLite. Write a table of it as CSV or Parquet.",
    b"version https://git-lfs": "is a pointer of Git LFS, not the data. Run: git lfs pull",
}
_PARQUET = b"PAR1"
# Endings that promise a text or Parquet. Who adds the reader of another ending knows its content.
_PROMISES = (".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".parquet", *WORD_READERS)
MEMBERS = 100  # of an archive, which show what it holds
_WEBDATASET = (
    "It is a shard of WebDataset. Pass the folder of the shards, and the column of labels:"
)


def _is_of_webdataset(path: Path) -> bool:
    """Return whether an archive has a file 1.cls with the class beside each file, such as 1.jpg."""
    try:
        with tarfile.open(path) as archive:
            names = [member.name for member in islice(archive, MEMBERS)]
    except tarfile.TarError:
        return False
    return any(name.endswith(".cls") for name in names)


def _is_of_fasttext(start: bytes) -> bool:
    return start.startswith(_FASTTEXT)


def _is_web_page(start: bytes) -> bool:
    return re.match(rb"\s*<(?:!doctype html|html)\b", start, re.IGNORECASE) is not None


def _is_of_spacy(start: bytes) -> bool:
    parts = (b'"sentences"', b'"cats"', b'"raw"')
    return (
        b'"paragraphs"' in start and b'"qas"' not in start and any(map(start.__contains__, parts))
    )


def _is_of_webanno(start: bytes) -> bool:
    begins = re.match(rb"(?:\xef\xbb\xbf)?#\s?(?:FORMAT=)?webanno", start, re.IGNORECASE)
    return begins is not None or (b'"%TYPES"' in start and start.lstrip().startswith(b"{"))


def _is_of_rasa(start: bytes) -> bool:
    text = re.sub(rb"(?m)^(?:#[^#].*|version:.*)?\r?\n", b"", start)
    return re.match(rb"nlu:\s*\n|##\s*(?:intent|synonym|lookup|regex):", text) is not None


def _is_of_via(start: bytes) -> bool:
    is_object = start.lstrip().startswith(b"{")
    return is_object and b'"regions"' in start and b'"region_attributes"' in start


def _is_sql(start: bytes) -> bool:
    begins = re.match(rb"\s*(?:PRAGMA \w+|CREATE TABLE|-- MySQL dump|--\s+-- Postgre)", start)
    return begins is not None and re.search(rb"CREATE TABLE|-- ", start) is not None


def _is_arff(start: bytes) -> bool:
    return re.match(rb"(?:%.*\s+)*@relation\s", start, re.IGNORECASE) is not None


# The same by what the beginning of a text shows.
_TEXTS: dict[Callable[[bytes], bool], str] = {
    _is_of_fasttext: _OF_FASTTEXT,
    _is_web_page: "is a web page (HTML), not a table. Download the file itself.",
    _is_of_spacy: (
        "holds documents of spaCy 2 (paragraphs with sentences or cats). Write a row per sentence"
        ' into a .jsonl file, from its `orth` and `ner`: {"tokens": ["Ann", "sleeps"], "ner_tags":'
        ' ["U-PER", "O"]}; or from `raw` and `cats`: {"text": "Good.", "label": "positive"}.'
    ),
    _is_of_webanno: (
        "is an export of WebAnno or INCEpTION in their own format. Export the project as"
        " CoNLL 2002, and name the file .conll."
    ),
    _is_of_via: (
        "holds regions of pictures, written by VGG Image Annotator. For classes of whole pictures,"
        " write a table with the columns image and label. Draw regions as masks, one image of class"
        " numbers for each picture, and pass the folder with --dataset_name and --task pixels."
    ),
    _is_sql: f"is an SQL dump, not a table. {_ROWS}",
    _is_arff: f"is a Weka file (ARFF). {_ROWS}",
    _is_of_rasa: (
        "holds training data of Rasa. Convert it: rasa data convert nlu --format json --data FILE"
        " --out NAME.json"
    ),
}


def is_refused(path: Path) -> bool:
    """Return whether a file with this ending is not even read as words with tags."""
    return path.suffix.lower() in ADVICE and path.suffix.lower() != ".txt"


def advice(path: Path, encoding: str) -> str | None:
    """Return what to do with a file whose ending no reader has; None if that is not known."""
    suffix = path.suffix.lower()
    if path.is_file() and suffix in ("", ".txt", ".train", ".valid", ".test", ".testa", ".testb"):
        if _start(path).startswith(_FASTTEXT):
            return f"It {_OF_FASTTEXT.replace('FILE', str(path))}"
        if has_line_per_word(path, encoding):
            return "It has a word and its tag per line: add --task tokens."
    if suffix == ".tar" and path.is_file() and _is_of_webdataset(path):
        return f"{_WEBDATASET} --dataset_name {path.parent} --label_column_name cls."
    what = _content(path) if path.is_file() and not is_refused(path) else None
    known = ADVICE.get(suffix) if what is None else f"It {what}"
    return None if known is None else known.replace("FILE", str(path))


def check_content(path: Path, flag: str) -> None:
    """Check that a file is not of another format than its ending says.

    Args:
        flag: The flag that names it, for the message.

    Raises:
        InputError: It is; the message says what it is and what to do.
    """
    suffix = path.suffix.lower()
    if suffix in READERS and suffix not in _PROMISES:
        return
    what = _content(path)
    if what is not None:
        raise InputError(f"{flag}: {path} {what}")


def _content(path: Path) -> str | None:
    """Return what a file is and what to do, in a clause; None if it can be what it is named."""
    start = _start(path)
    what = next((text for begin, text in _BEGINNINGS.items() if start.startswith(begin)), None)
    if start.startswith(_ZIP):
        what = _A_WORKBOOK if _is_workbook(path) else "is a ZIP archive. Unpack it: unzip FILE"
    elif start.startswith(_PARQUET) and path.suffix.lower() != ".parquet":
        what = "is a Parquet file. Rename it: mv FILE NAME.parquet"
    if what is None:
        what = next((text for is_of, text in _TEXTS.items() if is_of(start)), None)
    if what is None:
        return None
    names = {
        "FILE": str(path),
        "NEW": str(path.with_name(f"unpacked-{path.name}")),
        "NAME": str(path.with_suffix("")),
    }
    return re.sub("|".join(names), lambda match: names[match[0]], what)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(START)


def _is_workbook(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name in _WORKBOOKS for name in archive.namelist())
    except zipfile.BadZipFile:  # a part is missing, and workbooks are the most frequent
        return True
