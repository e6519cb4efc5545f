"""Draws the data and the model of a case from its seed, and writes both to files."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oracle import media
from oracle.cases import Case

SPLITS = ("train", "validation", "test")
WORDS = tuple(f"w{index}" for index in range(40))
MEDIA = ("images", "sounds")
CLASSES = ("ant", "bee", "cow", "dog", "eel", "fox")
ODD_CLASSES = ("None", "007", "NA", "été", "a b", "10")
SCRIPTS = (
    *("שלום", "数学は楽しい", "مرحبا", "👩\u200d👩\u200d👧 ok"),
    *("e\u0301te\u0301", "ไทย", "ß İ ı", "\u200bzero"),
)
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TRAITS = {
    "specials": "special tokens of the tokenizer in texts",
    "scripts": "texts in unusual scripts",
    "long": "texts longer than the model takes",
    "duplicates": "rows that are repeated, some with another label",
    "absent": "a class without test rows",
    "rare": "a class with one training row",
    "odd_labels": "labels that look like missing or like numbers",
    "number_labels": "labels that are numbers, whose order is not that of texts",
    "newlines": "line breaks, tabs and quotes in texts",
    "crlf": "lines of CSV files that end in CR LF, after a byte-order mark",
    "missing_text": "rows without text",
    "missing_labels": "rows without a label",
    "one_row": "one test row",
    "blank": "texts of a blank only",
    "columns": "further columns, one of them empty",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """What a case consists of on disk."""

    files: Mapping[str, Path]  # Files by split.
    rows: Mapping[str, list[Row]]  # Rows by split, as they were written.
    texts: tuple[str, ...]  # Names of the columns of texts.
    labels: tuple[str, ...]  # Names of the columns of labels.
    model: Path  # Folder of the model.
    # Places of the rows of each split in its file, if some are chosen; see `read.choice`.
    chosen: Mapping[str, list[int]] | None = None

    def words(self) -> list[str]:
        """Return the flags of a training that say where the model and the data are."""
        words = ["--model_name_or_path", str(self.model)]
        for split, path in self.files.items():
            if split == "train" or path != self.files["train"]:
                words += [f"--{split}_file", str(path)]
        column = {"picture": "image_column_name", "sound": "audio_column_name"}
        words += [f"--{column.get(self.texts[0], 'text_column_names')}", ",".join(self.texts)]
        return [*words, "--label_column_name", ",".join(self.labels)]


def draw(case: Case, folder: Path) -> Drawn:
    """Write the files and the model of a case into a new folder."""
    folder.mkdir(parents=True)
    random_ = random.Random(case.seed)
    texts = {"pairs": ("premise", "hypothesis"), "images": ("picture",), "sounds": ("sound",)}.get(
        case.task, ("text",)
    )
    labels = ("mood", "topic") if case.task == "columns" else ("label",)
    rows, files = {}, {}
    for split, count in zip(SPLITS, case.rows, strict=True):
        rows[split] = _rows(case, split, count, random_)
        if split == "test" and "abstain" in case.settings and "fail_on_leak" not in case.settings:
            # Among them is the row whose confidence is the least one that is answered.
            rows[split] += [{**row, "id": f"again {row['id']}"} for row in rows["validation"]]
        files[split] = folder / f"{split}.{case.format}"
        if case.task in MEDIA:
            media.write_files(case, folder, split, rows[split])
        write(files[split], rows[split], "crlf" in case.traits, case.settings)
    for split in held_out(case):
        files[split], rows[split] = files["train"], rows["train"]
    # Imported late: it needs the rows that this module draws.
    from oracle.read import choice, label_names, named_rows

    drawn = Drawn(files, rows, texts, labels, folder / "model")
    drawn = replace(drawn, chosen=choice(case, drawn))
    names = label_names(case, named_rows(case, drawn))
    if case.task in MEDIA:
        media.save_model(case, names, drawn.model)
    else:
        save_model(case, names, drawn.model)
    return drawn


def held_out(case: Case) -> list[str]:
    """Return the splits whose rows are among those of the training file."""
    if case.relation == "unfit":
        return []
    names = {"folds": "test", "validation_fraction": "validation", "test_fraction": "test"}
    return [split for name, split in names.items() if name in case.settings]


def more_rows(case: Case, count: int, random_: random.Random) -> list[Row]:
    """Return rows that are in no split."""
    return _rows(case, "test", count, random_)


def _rows(case: Case, split: str, count: int, random_: random.Random) -> list[Row]:
    traits, is_test = case.traits, split == "test"
    if "one_row" in traits and is_test:
        count = 1
    rows = [_row(case, index, random_) for index in range(count)]
    if case.task in ("text", "pairs", "ordinal", *MEDIA):
        names = _classes(case)
        if "absent" in traits and is_test and count > 1:
            for row in rows:
                row["label"] = names[0] if row["label"] == names[-1] else row["label"]
        if "rare" in traits and split == "train":
            for row in rows[case.classes :]:
                row["label"] = names[0] if row["label"] == names[-1] else row["label"]
    if "duplicates" in traits and count > 3:
        rows[2] = dict(rows[1])
        if case.task == "tokens":
            return rows
        rows[3] = {**rows[1], "label": rows[3]["label"]} if "label" in rows[3] else rows[3]
    if "missing_text" in traits and count > 3:
        rows[2] = {**rows[2], "text" if "text" in rows[2] else "premise": None}
    if "missing_labels" in traits and count > 4:
        rows[4] = {**rows[4], **{key: None for key in rows[4] if key in ("label", "mood")}}
    return rows


def _row(case: Case, index: int, random_: random.Random) -> Row:
    number = index if index < case.classes else random_.randrange(case.classes)
    row: Row = {"id": f"row{index}"}
    if case.task in MEDIA:  # the path is filled in when the file is written
        row["picture" if case.task == "images" else "sound"] = ""
    elif case.task == "pairs":
        row |= {"premise": _text(case, number, random_), "hypothesis": _text(case, 0, random_)}
    else:
        row["text"] = _text(case, number, random_)
    row |= _labels(case, number, index, random_)
    if case.task == "tokens":
        most = 30 if "long" in case.traits else 9
        words = [random_.choice(WORDS) for _ in range(random_.randint(1, most))]
        if "specials" in case.traits and index % 3 == 0:
            words[0] = random_.choice(special_tokens(case.family))
        if "scripts" in case.traits and index % 3 == 1:
            words[-1] = random_.choice(SCRIPTS).split()[0]
        row["text"], row["label"] = words, _tags(len(words), random_)
    row["importance"] = random_.choice((0.5, 1, 1, 2, 0.25))
    row["user"] = f"u{random_.randrange(4)}-{index % 5}"
    row["age"] = random_.choice((None, 1, 42.0, 7.25))
    if "columns" in case.traits:
        row |= {"remark": random_.choice(WORDS), "empty": None}
    return row


def _tags(count: int, random_: random.Random) -> list[str]:
    tags: list[str] = []
    while len(tags) < count:
        kind = random_.choice(("O", "O", "LOC", "PER"))
        tags += ["O"] if kind == "O" else [f"B-{kind}", *[f"I-{kind}"] * random_.randrange(3)]
    return tags[:count]


def _text(case: Case, number: int, random_: random.Random) -> str:
    traits = case.traits
    count = random_.randint(60, 90) if "long" in traits and random_.random() < 0.4 else 0
    words = [random_.choice(WORDS) for _ in range(count or random_.randint(1, 12))]
    words.append(WORDS[number])
    if "specials" in traits and random_.random() < 0.4:
        words.insert(random_.randrange(len(words)), random_.choice(special_tokens(case.family)))
    if "scripts" in traits and random_.random() < 0.5:
        words.insert(random_.randrange(len(words)), random_.choice(SCRIPTS))
    if "newlines" in traits and random_.random() < 0.5:
        words.insert(
            random_.randrange(len(words)), random_.choice(("a\nb", "\tx", 'say "no"', ","))
        )
    if "blank" in traits and random_.random() < 0.1:
        return " "
    return " ".join(words)


def _classes(case: Case) -> list[Any]:
    if case.task == "ordinal" and "label_order" in case.settings:
        return sorted(case.settings["label_order"].split(","))[: case.classes]
    if case.task == "ordinal" or "number_labels" in case.traits:
        return [9, 10, 100, 11, 2, 1][: case.classes]
    names = ODD_CLASSES if "odd_labels" in case.traits else CLASSES
    return list(names[: case.classes])


def _labels(case: Case, number: int, index: int, random_: random.Random) -> Row:
    if case.task == "regression":
        return {"label": round(random_.gauss(3 * number, 1), 2)}
    if case.task == "columns":
        topic = "xyz"[index % 3 if index < 3 else random_.randrange(3)]
        return {"mood": ("bad", "good")[(index + number) % 2], "topic": topic}
    names = _classes(case)
    if case.task == "multi-label":
        chosen = [name for name in names if random_.random() < 0.3 or name == names[number]]
        if index >= case.classes and random_.random() < 0.15:
            chosen = []
        return {"label": chosen}
    return {"label": names[number]}


def write(
    path: Path, rows: list[Row], as_windows: bool, settings: Mapping[str, Any] | None = None
) -> None:
    """Write rows to a file of the format that its ending names."""
    settings = settings or {}
    separator = settings.get("label_separator", ",")
    ending = path.suffix
    if ending in (".csv", ".tsv"):
        encoding, end = ("utf-8-sig", "\r\n") if as_windows else ("utf-8", "\n")
        encoding = settings.get("encoding", encoding)
        with path.open("w", encoding=encoding, newline="") as file:
            dialect = "excel" if ending == ".csv" else "excel-tab"
            writer = csv.DictWriter(file, list(rows[0]), dialect=dialect, lineterminator=end)
            writer.writeheader()
            writer.writerows({k: _cell(v, separator) for k, v in row.items()} for row in rows)
    elif ending == ".xlsx":
        from openpyxl import Workbook

        book = Workbook()
        sheet = book.active
        if name := settings.get("sheet_name"):
            sheet.append(["text", "label"])
            sheet.append(["rows of another sheet", "unknown"])
            sheet = book.create_sheet(name)
        sheet.append(list(rows[0]))
        for row in rows:
            sheet.append([_cell(v, separator) if v is not None else None for v in row.values()])
        book.save(path)
    elif ending == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif ending == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)


def _cell(value: Any, separator: str) -> Any:
    """Return a value as a cell of a text file has it."""
    if isinstance(value, list):
        return separator.join(map(str, value)) if value else "[]"
    return "" if value is None else value


# Families: type of the configuration, style of the tokenizer, and settings.
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 48, "max_position_embeddings": 66}  # fmt: skip
_DECODER = {**_BERT, "num_key_value_heads": 1, "head_dim": 16}
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2,
       "dropout_rate": 0.0, "decoder_start_token_id": 0, "classifier_dropout": 0.0,
       "initializer_factor": 0.3}  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", "bert", _BERT),
    "roberta": ("roberta", "roberta", _BERT),
    "electra": ("electra", "bert", {**_BERT, "embedding_size": 16}),
    "distilbert": ("distilbert", "bert", {
        "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 64,
        "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}),
    "albert": ("albert", "bert", {**_BERT, "embedding_size": 16, "classifier_dropout_prob": 0.0}),
    "mpnet": ("mpnet", "roberta", _BERT),
    "deberta-v2": ("deberta-v2", "bert", {
        **_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
        "pooler_hidden_size": 32, "max_relative_positions": 64, "pooler_dropout": 0.0}),
    "modernbert": ("modernbert", "roberta", {
        **_BERT, "layer_types": ["sliding_attention", "full_attention"], "local_attention": 8,
        "classifier_pooling": "mean"}),
    "t5": ("t5", "t5", _T5),
    "gpt2": ("gpt2", "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64,
                              "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}),
    "llama": ("llama", "llama", _DECODER),
    "qwen3": ("qwen3", "gpt2", _DECODER),
}  # fmt: skip
STYLES = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<pad>", "<unk>", "<s>", "</s>", "<mask>"),
    "t5": ("<pad>", "</s>", "<unk>"),
    "gpt2": ("<|endoftext|>",),
    "llama": ("<unk>", "<s>", "</s>"),
}
_NO_DROPOUT = dict.fromkeys(
    ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.0
)


PROBLEMS = {"multi-label": "multi_label_classification", "regression": "regression"}


def special_tokens(family: str) -> tuple[str, ...]:
    """Return the special tokens of the tokenizer of a family."""
    return STYLES[FAMILIES[family][1]]


def save_model(case: Case, names: list[str], folder: Path) -> None:
    """Save a model with a head for the labels, and its tokenizer."""
    import torch
    import transformers

    size, ids = save_tokenizer(case, folder)
    kind, _, settings = FAMILIES[case.family]
    auto = transformers.AutoModelForSequenceClassification
    if case.task == "tokens":
        auto = transformers.AutoModelForTokenClassification
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=size, **{**_NO_DROPOUT, "initializer_range": 0.2, **settings, **ids},
        id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)},
    )  # fmt: skip
    if case.task != "tokens":
        config.problem_type = PROBLEMS.get(case.task, "single_label_classification")
    torch.manual_seed(case.seed)
    model = auto.from_config(config)
    with torch.no_grad():  # so that the logits of a new model differ
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or "bias" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.save_pretrained(folder)


def save_tokenizer(case: Case, folder: Path) -> tuple[int, dict[str, Any]]:
    """Save a tokenizer; return the size of its vocabulary, and the ids of its special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers import trainers as trainers_
    from transformers import BertTokenizer, PreTrainedTokenizerFast

    style = FAMILIES[case.family][1]
    special = STYLES[style]
    if style == "bert":
        vocabulary = {word: index for index, word in enumerate((*special, *WORDS, "a", "##b", ","))}
        BertTokenizer(vocab=vocabulary, model_max_length=64).save_pretrained(folder)
        return len(vocabulary), {"pad_token_id": 0}
    tokenizer = Tokenizer(models.BPE(unk_token=special[1] if len(special) > 1 else None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=style != "gpt2" or case.task == "tokens"  # as run_ner.py wants it
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers_.BpeTrainer(
        vocab_size=330, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    ids = {token: tokenizer.token_to_id(token) for token in special}
    single, pair = {
        "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        "t5": ("$A </s>", "$A </s> $B </s>"),
        "llama": ("<s> $A", "<s> $A $B"),
        "gpt2": ("$A", "$A $B"),
    }[style]
    if style != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=list(ids.items())
        )
    given: dict[str, Any] = {
        "roberta": {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>",
                    "sep_token": "</s>", "mask_token": "<mask>"},
        "t5": {"eos_token": "</s>"},
        "llama": {"bos_token": "<s>", "eos_token": "</s>"},
        "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    }[style]  # fmt: skip
    if "<pad>" in special:
        given["pad_token"] = "<pad>"
    if "<unk>" in special:
        given["unk_token"] = "<unk>"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **given
    ).save_pretrained(folder)
    config = {
        f"{name.removesuffix('_token')}_token_id": ids[token]
        for name, token in given.items()
        if name in ("bos_token", "eos_token", "pad_token")
    }
    return tokenizer.get_vocab_size(), config
