"""Inputs that cause a message about data, and what the message advises."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field

from PIL import Image

# Contents by name; None removes a file, and a function changes it.
Files = dict[str, str | bytes | Callable[..., object] | None]


@dataclass(frozen=True)
class Remedy:
    """A deed that a message advises."""

    advice: str  # Words of the message.
    add: str = ""  # Flags to add; those of `advice` if neither this nor anything else is set.
    without: str = ""  # Flags to remove.
    files: Files = field(default_factory=dict)  # Files to write.


@dataclass(frozen=True)
class Walk:
    """An input that causes a message, and the remedies of the message."""

    files: Files
    words: str
    remedies: tuple[Remedy, ...]


def _png(shade: int) -> bytes:
    """Return an image of 16 x 16 pixels."""
    content = io.BytesIO()
    Image.new("RGB", (16, 16), (shade, 200, 9)).save(content, "png")
    return content.getvalue()


def _shard() -> bytes:
    """Return an archive of images, each with a file of its class."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number, shade in enumerate((0, 255)):
            for name, part in ((f"{number}.png", _png(shade)), (f"{number}.cls", b"%d" % number)):
                member = tarfile.TarInfo(name)
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
    return content.getvalue()


def csv(labels: str, header: str = "text,label") -> str:
    """Return a table of a text and a label for each word of `labels`."""
    return "\n".join([header, *(f"t{i},{label}" for i, label in enumerate(labels.split()))]) + "\n"


def lines(*rows: object) -> str:
    """Return rows as JSON Lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


AB = csv("a b a b a b")
T = {"t.csv": AB}
FILE = "--train_file t.csv"
GROUPED = "text,label,user\na,a,u\nb,b,v\n"
PIXEL, WHITE = (_png(shade) for shade in (0, 255))
MULTI = f"{FILE} --task multi-label"
MIXED = '{"text": "x", "label": ["a", "b"]}\n{"text": "y", "label": ["a"]}\n'
REMOVE = "Remove the flag"
WEIGHTS = "text,label,w\nx,a,1\ny,b,{}\nz,a,2\n"
SPANS = lines(*({"text": "Ann sleeps", "label": [[0, 3, "PER"]]} for _ in range(4)))


def removed(flag: str, words: str = "", files: Files | None = None, advice: str = REMOVE) -> Walk:
    """Return the walk of a flag that is to be removed."""
    start = f"{FILE} {words}".strip()
    return Walk(files or T, f"{start} {flag}", (Remedy(advice, without=flag),))


WALKS: dict[str, Walk] = {
    "missing label": Walk(
        {"t.csv": "text,label\na,x\nb,\nc,y\n"}, FILE,
        (Remedy("--drop_missing_labels"),
         Remedy("Fill the cells", files={"t.csv": "text,label\na,x\nb,x\nc,y\n"})),
    ),
    "missing text": Walk(
        {"t.csv": "text,label\na,x\n,x\nc,y\n"}, FILE,
        (Remedy("--drop_missing_text"),
         Remedy("Fill the cells", files={"t.csv": "text,label\na,x\nb,x\nc,y\n"})),
    ),
    "label -100": Walk(
        {"t.csv": csv("0 1 -100 0 1")}, FILE,
        (Remedy("--ignore_label -100"),
         Remedy("give the class another name", files={"t.csv": csv("0 1 none 0 1")})),
    ),
    "label -1 among several": Walk(
        {"t.csv": 'text,label\nx,"a,b"\ny,"b,-1"\nz,a\n'}, MULTI, (Remedy("--ignore_label -1"),)
    ),
    "label -100 of columns": Walk(
        {"t.csv": "text,p,q\nx,0,a\ny,1,b\nz,-100,a\n"},
        f"{FILE} --task columns --label_column_name p,q", (Remedy("--ignore_label p=-100"),),
    ),
    "tag -100": Walk(
        {"t.jsonl": lines({"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]},
                          {"tokens": ["c", "d"], "ner_tags": ["O", "-100"]})},
        "--train_file t.jsonl --task tokens", (Remedy("--ignore_label -100"),),
    ),
    "unseen label": Walk(
        T | {"v.csv": csv("a c b")}, f"{FILE} --validation_file v.csv",
        (Remedy("--ignore_label", add="--ignore_label c"),
         Remedy("Fix the labels", files={"v.csv": csv("a a b")}),
         Remedy("add training rows", files={"t.csv": csv("a b c a b c")})),
    ),
    "one class": Walk(
        {"t.csv": "text,label,other\nx,a,1\ny,a,2\nz,a,1\n"}, FILE,
        (Remedy("Check --label_column_name", add="--label_column_name other"),),
    ),
    "one number": Walk(
        {"t.csv": "text,label,other\nx,1,1\ny,1,2\nz,1,1\n"}, f"{FILE} --task regression",
        (Remedy("Check --label_column_name", add="--label_column_name other"),),
    ),
    "scores": Walk(
        {"t.csv": csv("0.1 0.25 0.37 0.41 0.55 0.6")}, FILE,
        (Remedy("--task regression"),
         Remedy("replace the numbers", files={"t.csv": csv("low low low high high high")}),
         Remedy("add a letter", files={"t.csv": csv("v0.1 v0.25 v0.37 v0.41 v0.55 v0.6")})),
    ),
    "weights": Walk(
        {"t.csv": WEIGHTS.format("-1")}, f"{FILE} --weight_column w",
        (Remedy("remove --weight_column", without="--weight_column w"),
         Remedy("Correct the cells", files={"t.csv": WEIGHTS.format("1")})),
    ),
    "weights of zero": Walk(
        {"t.csv": "text,label,w\nx,a,0\ny,b,0\n"}, f"{FILE} --weight_column w",
        (Remedy("remove the flag", without="--weight_column w"),
         Remedy("Correct the weights", files={"t.csv": WEIGHTS.format("1")})),
    ),
    "no labels at all": Walk(
        {"t.csv": "text,label,tags\nx,,a\ny,,b\n"}, MULTI,
        (Remedy("Check --label_column_name", add="--label_column_name tags"),),
    ),
    "the only label": Walk(
        {"t.csv": csv("a a a")}, MULTI,
        (Remedy("use --task text with two classes", add="--task text", without="--task multi-label",
                files={"t.csv": csv("yes no yes")}),),
    ),
    "order": Walk(
        {"t.csv": csv("bad fair good bad fair good")}, f"{FILE} --task ordinal",
        (Remedy("--label_order bad,fair,good"),),
    ),
    "wrong order": Walk(
        {"t.csv": csv("bad fair good bad")}, f"{FILE} --task ordinal --label_order bad,good",
        (Remedy("each label of the training data once", add="--label_order bad,fair,good",
                without="--label_order bad,good"),),
    ),
    "lists in a cell": Walk(
        {"t.csv": 'text,label\nx,"a,b"\ny,"b,c"\nz,"a,c"\nu,"c,a,b"\n'}, FILE,
        (Remedy("--task multi-label"),
         Remedy("write them without", files={"t.csv": csv("a-b b-c a-c c-a-b")})),
    ),
    "lists of another separator": Walk(
        {"t.csv": "text,label\nx,a|b\ny,b|c\nz,a|c\nu,a\n"}, MULTI,
        (Remedy("--label_separator '|'"),
         Remedy("write them without it", files={"t.csv": csv("a-b b-c a-c a")})),
    ),
    "several labels": Walk(
        {"t.jsonl": MIXED}, "--train_file t.jsonl",
        (Remedy("--task multi-label"),
         Remedy("keep one label per row", files={"t.jsonl": MIXED.replace(', "b"', "").replace(
             '"y", "label": ["a"]', '"y", "label": ["b"]')})),
    ),
    "a list of 0 and 1": Walk(
        {"t.jsonl": lines({"text": "x", "label": [0, 1, 0]}, {"text": "y", "label": [1, 0, 0]})},
        "--train_file t.jsonl --task multi-label",
        (Remedy("Write the names of the labels", files={"t.jsonl": MIXED}),
         Remedy("one column of 0 and 1 per label", add="--label_column_name a,b,c",
                files={"t.jsonl": lines({"text": "x", "a": 0, "b": 1, "c": 0},
                                        {"text": "y", "a": 1, "b": 0, "c": 1})})),
    ),
    "complements": Walk(
        {"t.jsonl": lines({"text": "x", "label": [0, 1]}, {"text": "y", "label": [1, 0]})},
        "--train_file t.jsonl --task multi-label",
        (Remedy("Write the names of the labels", files={"t.jsonl": MIXED}),),
    ),
    "a list that cannot be read": Walk(
        {"t.csv": 'text,label\nx,"[anger, joy]"\ny,joy\n'}, MULTI,
        (Remedy("without brackets", files={"t.csv": 'text,label\nx,"anger,joy"\ny,joy\n'}),
         Remedy("or as JSON", files={"t.csv": 'text,label\nx,"[""anger"", ""joy""]"\ny,joy\n'})),
    ),
    "0 and 1 with another value": Walk(
        {"t.csv": "text,a,b\nx,1,2\ny,0,1\n"}, f"{MULTI} --label_column_name a,b",
        (Remedy("--task columns", add="--task columns", without="--task multi-label"),
         Remedy("pass only that one", add="--label_column_name b",
                without="--label_column_name a,b")),
    ),
    "spans": Walk(
        {"t.jsonl": SPANS}, "--train_file t.jsonl --task text",
        (Remedy("--task tokens", add="--task tokens --text_column_names text",
                without="--task text"),),
    ),
    "no number": Walk(
        {"t.csv": csv("1.5 2 many")}, f"{FILE} --task regression",
        (Remedy("remove the flag", without="--task regression"),
         Remedy("Correct the cell", files={"t.csv": csv("1.5 2 3")})),
    ),
    "a decimal comma": Walk(
        {"t.csv": "text;label\nx;1,5\ny;2,0\n"}, f"{FILE} --task regression",
        (Remedy("Write a point instead of the comma",
                files={"t.csv": "text;label\nx;1.5\ny;2.0\n"}),),
    ),
    "decimal commas as classes": Walk(
        {"t.csv": "text;label\nx;0,5\ny;1,5\nz;0,5\n"}, FILE,
        (Remedy("Write points", add="--task regression",
                files={"t.csv": "text;label\nx;0.5\ny;1.5\nz;0.5\n"}),
         Remedy("add a letter", files={"t.csv": "text;label\nx;v0,5\ny;v1,5\nz;v0,5\n"})),
    ),
    "decimal commas that look like lists": Walk(
        {"t.csv": "text;label\n" + "".join(f"x;{n // 2},{n % 2 * 5}\n" for n in range(2, 12))},
        FILE, (Remedy("write points", files={"t.csv": "text;label\n" + "".join(
            f"x{n};{n // 2}.{n % 2 * 5}\n" for n in range(2, 12)) * 2}),),
    ),
    "lines of fastText": Walk(
        {"t.csv": "__label__a good, film\n__label__b bad film\n"}, FILE,
        (Remedy("Write them as a table", add="--train_file t.tsv", without=FILE,
                files={"t.tsv": "label\ttext\na\tgood, film\nb\tbad film\n"}),),
    ),
    "a shard of WebDataset": Walk(
        {"d/t.tar": _shard()}, "--train_file d/t.tar",
        (Remedy("--dataset_name d --label_column_name cls", add="--dataset_name d"
                " --label_column_name cls", without="--train_file d/t.tar"),),
    ),
    "a shard in the current folder": Walk(
        {"t.tar": _shard()}, "--train_file t.tar",
        (Remedy("--dataset_name . --label_column_name cls", add="--dataset_name ."
                " --label_column_name cls", without="--train_file t.tar"),),
    ),
    "labels before texts": Walk(
        {"t.csv": "text\n__label__a good film\n__label__b bad film\n"}, FILE,
        (Remedy("Write them into a column of their own", files={
            "t.csv": "text,label\ngood film,a\nbad film,b\n"}),),
    ),
    "no column of classes": Walk(
        {"t.csv": "text,other\n" + "".join(f"x{n},y{n}\n" for n in range(20))}, FILE,
        (Remedy("add a column with the class of each row", files={"t.csv": "text,other,label\n"
                + "".join(f"x{n},y{n},{n % 2}\n" for n in range(20))}),),
    ),
    "a text in an object": Walk(
        {"t.jsonl": lines({"document": {"text": "x"}, "label": "a"},
                          {"document": {"text": "y"}, "label": "b"})},
        "--train_file t.jsonl --text_column_names document",
        (Remedy("pandas.json_normalize(ROWS)", add="--text_column_names document.text",
                without="--text_column_names document", files={"t.jsonl": lines(
                    {"document.text": "x", "label": "a"}, {"document.text": "y", "label": "b"})}),),
    ),
    "nested objects": Walk(
        {"t.jsonl": lines(*({"data": {"text": f"t{i}"}, "annotation": {"label": "ab"[i % 2]}}
                            for i in range(6)))}, "--train_file t.jsonl",
        (Remedy("into a column of their own, such as with pandas.json_normalize",
                add="--label_column_name annotation.label", files={"t.jsonl": lines(
                    *({"data.text": f"t{i}", "annotation.label": "ab"[i % 2]}
                      for i in range(6)))}),),
    ),
    "a table in two formats": Walk(
        {"d/train.csv": AB, "d/train.jsonl": lines({"text": "x", "label": "a"})},
        "--dataset_name d",
        (Remedy("--train_file", add="--train_file d/train.csv", without="--dataset_name d"),),
    ),
    "no column of labels": Walk(
        {"t.csv": "text,kind,x\nx,a,1\ny,b,1\n"}, FILE,
        (Remedy("Pass the label column", add="--label_column_name kind"),),
    ),
    "no column of labels, but 0 and 1": Walk(
        {"t.csv": "text,a,b\nx,1,0\ny,0,1\n"}, FILE,
        (Remedy("--task multi-label --label_column_name a,b"),),
    ),
    "several columns of labels": Walk(
        {"t.csv": "text,class,target\nx,a,1\ny,b,0\n"}, FILE,
        (Remedy("Pass the right one", add="--label_column_name target"),),
    ),
    "several columns named": Walk(
        {"t.csv": "text,p,q\nx,a,1\ny,b,0\n"}, f"{FILE} --label_column_name p,q",
        (Remedy("--task columns"),
         Remedy("train a run for each", add="--label_column_name p",
                without="--label_column_name p,q")),
    ),
    "a column with =": Walk(
        {"t.csv": "text,p=1,q\nx,a,1\ny,b,0\n"},
        f"{FILE} --task columns --label_column_name p=1,q",
        (Remedy("Rename it", add="--label_column_name p,q", without="--label_column_name p=1,q",
                files={"t.csv": "text,p,q\nx,a,1\ny,b,0\n"}),),
    ),
    "a delimiter that joins nothing": Walk(
        {"t.csv": "a,b,label\nx,y,p\nu,v,q\n", "c.yaml": 'text_column_delimiter: "; "\n'},
        f"{FILE} --text_column_names a,b --config c.yaml",
        (Remedy("write --text_column_names a+b", add="--text_column_names a+b",
                without="--text_column_names a,b"),
         Remedy("for pairs, remove --text_column_delimiter", files={"c.yaml": "seed: 1\n"})),
    ),
    "no column of texts": Walk(
        {"t.csv": "body,head,label\nx,h,a\ny,i,b\n"}, FILE,
        (Remedy("Pass the right one", add="--text_column_names body"),
         Remedy("a,b for pairs", add="--text_column_names body,head"),
         Remedy("to join them", add="--text_column_names body+head")),
    ),
    "a feature twice": Walk(
        {"t.csv": "text,age,label\nx,1,a\ny,2,b\n"}, f"{FILE} --feature_columns age,age",
        (Remedy("once", add="--feature_columns age", without="--feature_columns age,age"),),
    ),
    "both kinds of files": Walk(
        {"t.csv": "p,q,label\nx.png,y.wav,a\n", "x.png": PIXEL, "z.png": WHITE},
        f"{FILE} --image_column_name p --audio_column_name q",
        (Remedy("Pass one column", without="--audio_column_name q",
                files={"t.csv": "p,q,label\nx.png,y.wav,a\nz.png,y.wav,b\n"}),),
    ),
    "addresses": Walk(
        {"t.csv": "text,label\nhttps://x.org/1.png,a\nhttps://x.org/2.png,b\n"}, FILE,
        (Remedy("write their paths", files={"t.csv": "text,label\n1.png,a\n2.png,b\n"}),),
    ),
    "a nested value": Walk(
        {"t.jsonl": lines({"text": {"a": 1}, "body": "x", "label": "a"},
                          {"text": {"a": 2}, "body": "y", "label": "b"})}, "--train_file t.jsonl",
        (Remedy("pass another column", add="--text_column_names body"),
         Remedy("Write it as one string", files={
             "t.jsonl": lines({"text": "x", "label": "a"}, {"text": "y", "label": "b"})})),
    ),
    "two columns of one name": Walk(
        {"t.csv": "text,label,label\nx,a,a\ny,b,b\n"}, FILE,
        (Remedy("Rename or remove all but one", files={"t.csv": AB}),),
    ),
    "half a character": Walk(
        {"t.jsonl": '{"text": "x\\ud800", "label": "a"}\n{"text": "y", "label": "b"}\n'},
        "--train_file t.jsonl",
        (Remedy("Remove it", files={"t.jsonl": lines({"text": "x", "label": "a"},
                                                     {"text": "y", "label": "b"})}),),
    ),
    "another encoding": Walk(
        {"t.csv": "text,label\ncaf\xe9,a\nth\xe9,b\n".encode("latin-1")}, FILE,
        (Remedy("--encoding cp1252"), Remedy("--encoding latin-1")),
    ),
    "an unknown encoding": Walk(
        T, f"{FILE} --encoding utf-9",
        (Remedy("such as utf-8", add="--encoding utf-8", without="--encoding utf-9"),),
    ),
    "UTF-16 without a mark": Walk(
        {"t.csv": AB.encode("utf-16-le")}, FILE, (Remedy("--encoding utf-16-le"),)
    ),
    "a mark of another encoding": Walk(
        {"t.csv": b"\xff\xfe" + AB.encode("utf-16-le")}, f"{FILE} --encoding latin-1",
        (Remedy("Remove the flag", without="--encoding latin-1"),
         Remedy("pass --encoding utf-16", add="--encoding utf-16",
                without="--encoding latin-1")),
    ),
    "a label of its own for each row": Walk(
        {"t.csv": "text,label\n" + "".join(f"row {i},x{i}\n" for i in range(30))},
        f"{FILE} --test_fraction 0.1",
        (Remedy("add rows of each class", files={
            "t.csv": "text,label\n" + "".join(f"row {i},x{i % 2}\n" for i in range(30))}),),
    ),
    "a NUL": Walk(
        {"t.csv": b"text,label\nx\0,a\ny,b\n"}, FILE,
        (Remedy("remove it", files={"t.csv": AB}),),
    ),
    "UTF-16 that begins with another letter": Walk(
        {"t.csv": "\u0442\u0435\u043a\u0441\u0442,label\nx,a\ny,b\n".encode("utf-16-le")}, FILE,
        (Remedy("--encoding utf-16-le"),),
    ),
    "digits": Walk(
        {"t.jsonl": f'{{"text": "x", "label": {"1" * 5000}}}\n'}, "--train_file t.jsonl",
        (Remedy("Write it as a string", files={"t.jsonl": lines(
            {"text": "x", "label": "1" * 9}, {"text": "y", "label": "2"})}),),
    ),
    "a header in the middle": Walk(
        {"t.csv": "text,label\nx,a\ntext,label\ny,b\n"}, FILE,
        (Remedy("Remove this line", files={"t.csv": AB}),),
    ),
    "a folder": Walk(
        {"d/t.csv": AB}, "--train_file d",
        (Remedy("--train_file 'd/*.csv'", without="--train_file d"),
         Remedy("Pass it with --dataset_name", add="--dataset_name d",
                without="--train_file d")),
    ),
    "an extra comma": Walk(
        T, "--train_file t.csv,",
        (Remedy("Remove the extra comma", add=FILE, without="--train_file t.csv,"),),
    ),
    "no file fits": Walk(
        T, "--train_file u*.csv",
        (Remedy("Check the folder and the pattern", add="--train_file t*.csv",
                without="--train_file u*.csv"),),
    ),
    "a file twice": Walk(
        T, "--train_file t.csv,t.csv",
        (Remedy("Remove one of them", add=FILE, without="--train_file t.csv,t.csv"),),
    ),
    "two formats": Walk(
        T | {"u.json": '[{"text": "x", "label": "a"}]'}, "--train_file t.csv,u.json",
        (Remedy("Pass files of one format", add=FILE, without="--train_file t.csv,u.json"),),
    ),
    "a data set that is a file": Walk(
        T, "--dataset_name t.csv",
        (Remedy("--train_file", add=FILE, without="--dataset_name t.csv"),),
    ),
    "no split called train": Walk(
        {"d/a.csv": AB}, "--dataset_name d --remove_splits train",
        (Remedy("Choose one with --train_split_name", add="--train_split_name train",
                without="--remove_splits train"),),
    ),
    "too few rows": Walk(
        {"t.csv": csv("a b")}, f"{FILE} --validation_fraction 0 --test_fraction 0.2",
        (Remedy("set --test_fraction 0", add="--test_fraction 0", without="--test_fraction 0.2"),
         Remedy("Add rows", files={"t.csv": csv("a b " * 20)}),
         Remedy("pass --test_file", add="--test_file u.csv", without="--test_fraction 0.2",
                files={"u.csv": csv("b a")})),
    ),
    "fractions": Walk(
        T, f"{FILE} --validation_fraction 0.5 --test_fraction 0.6",
        (Remedy("Their sum must be below 1", add="--test_fraction 0.3",
                without="--test_fraction 0.6"),),
    ),
    "folds and a test file": Walk(
        T | {"u.csv": csv("a b")}, f"{FILE} --test_file u.csv --folds 2",
        (Remedy("Remove --folds", without="--folds 2"),
         Remedy("or the test data", without="--test_file u.csv")),
    ),
    "too many folds": Walk(
        T, f"{FILE} --folds 9", (Remedy("at least one for each", add="--folds 3",
                                        without="--folds 9"),)
    ),
    "nothing to leave out": Walk(
        T | {"v.csv": csv("a b")}, f"{FILE} --validation_file v.csv --leave_out_test",
        (Remedy("Pass --validation_file and --test_file", add="--test_file v.csv"),),
    ),
    "a leak": Walk(
        T | {"u.csv": "text,label\nt0,a\nnew,b\n"}, f"{FILE} --test_file u.csv --fail_on_leak",
        (Remedy("Remove them from one of the splits", files={"u.csv": "text,label\nnew,b\n"}),),
    ),
    "numbers beyond float32": Walk(
        {"t.csv": "text,label\nx,1e300\ny,1\nz,2\n"}, f"{FILE} --task regression",
        (Remedy("such as their logarithm", files={"t.csv": "text,label\nx,300\ny,0\nz,0.3\n"}),),
    ),
    "a group in two splits": Walk(
        {"t.csv": GROUPED, "u.csv": "text,label,user\nc,a,u\nd,b,w\n"},
        f"{FILE} --test_file u.csv --validation_fraction 0 --group_column user --fail_on_leak",
        (Remedy("Put all rows of a group into one split",
                files={"u.csv": "text,label,user\nd,b,w\n"}),),
    ),
    "no rows": Walk(
        T | {"v.csv": "text,label\n"}, f"{FILE} --validation_file v.csv",
        (Remedy("Add at least one", files={"v.csv": csv("a")}),),
    ),
    "rejected rows of Prodigy": Walk(
        {"t.jsonl": lines({"text": "x", "label": "a", "answer": "accept"},
                          {"text": "y", "label": "b", "answer": "reject"},
                          {"text": "z", "label": "b", "answer": "accept"})}, "--train_file t.jsonl",
        (Remedy("remove the column", files={"t.jsonl": lines(
            {"text": "x", "label": "a"}, {"text": "y", "label": "b"})}),
         Remedy("Keep only rows", files={"t.jsonl": lines(
             {"text": "x", "label": "a", "answer": "accept"},
             {"text": "z", "label": "b", "answer": "accept"})})),
    ),
    "a folder without labels": Walk(
        {"d/neg/1.txt": "x", "d/pos/2.txt": "y", "d/unsup/3.txt": "z"}, "--dataset_name d",
        (Remedy("--ignore_label unsup"),),
    ),
    "folders of texts and other files": Walk(
        {"d/neg/1.txt": "x", "d/pos/2.txt": "y", "d/pos/3.md": "z"}, "--dataset_name d",
        (Remedy("--task text"),),
    ),
    "an empty class folder": Walk(
        {"d/neg/1.txt": "x", "d/pos/2.txt": "y", "d/new/3.md": "z"}, "--dataset_name d --task text",
        (Remedy("remove the folder", files={"d/new/3.md": None}),
         Remedy("add some", files={"d/new/3.txt": "z"})),
    ),
    "a setting without an effect": removed("--sheet_name S"),
    "a setting of masks": removed("--ignore_index 3"),
    "a setting of regression": removed("--ignore_label 1", "--task regression",
                                       {"t.csv": csv("1 2 3 1 2 3")}),
    "a revision of a folder": Walk(
        {"d/t.csv": AB}, "--dataset_name d --dataset_revision x",
        (Remedy(REMOVE, without="--dataset_revision x"),),
    ),
    "a task of built-in data": Walk(
        {}, "--dataset_name stdlib --task multi-label",
        (Remedy(REMOVE, without="--task multi-label"),),
    ),
    "a configuration": Walk(
        {}, "--dataset_name stdlib --dataset_config_name sumary",
        (Remedy("summary", add="--dataset_config_name summary",
                without="--dataset_config_name sumary"),),
    ),
    "a word without text": Walk(
        {"t.jsonl": lines({"tokens": ["a"], "ner_tags": ["O"]}, {"tokens": [], "ner_tags": []},
                          {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]})},
        "--train_file t.jsonl --task tokens", (Remedy("--drop_missing_text"),),
    ),
    "an empty word": Walk(
        {"t.jsonl": lines({"tokens": ["a", ""], "ner_tags": ["O", "B-X"]})},
        "--train_file t.jsonl --task tokens",
        (Remedy("Remove it and its tag", files={"t.jsonl": lines(
            {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]})}),),
    ),
    "a switch with a value": Walk(
        T, f"{FILE} --fail_on_leak 7", (Remedy("--fail_on_leak", without="--fail_on_leak 7"),)
    ),
    "a value that is missing": Walk(
        T, f"{FILE} --seed", (Remedy("--seed", add="--seed 3", without="--seed"),)
    ),
    "a flag twice": Walk(
        T, f"{FILE} --seed 1 --seed 2", (Remedy("Remove one of them", without="--seed 1"),)
    ),
    "a schedule": removed("--num_warmup_steps 5", "--lr_scheduler_type constant",
                          advice="remove the flag"),
}  # fmt: skip
