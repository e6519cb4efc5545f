"""Texts, images or sounds with labels: their columns are chosen, and their rows are read.

A file shows by the cells of its first rows what its columns hold, and a data set by their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

from datasets import Audio, ClassLabel, Dataset, Image, Value

from ampft.data.columns import (
    FEATURE_FLAG,
    INPUT_FLAGS,
    LABEL_FLAG,
    LABELS,
    PAIRS,
    TEXTS,
    TWINS,
    DataColumns,
    InputColumns,
    extra_columns,
    header_hint,
    normalized_name,
    refuse_rejected,
    refuse_repeated_names,
    rename_columns,
    require_columns,
)
from ampft.data.labelled_rows import LabelledRows
from ampft.data.media import MEDIA, kind_of_file
from ampft.data.repeated_keys import repeated_key_notes
from ampft.data.request import DataRequest, refuse_unused_options
from ampft.data.row_collector import concatenated
from ampft.data.row_labels import NO, NUMBER, UNLABELLED, YES, LabelParser
from ampft.data.sources.arrow_rows import read_rows
from ampft.data.sources.data_sets import INDEX_COLUMN, MEDIA_TYPES
from ampft.data.sources.folders import TEXT, folder_kind
from ampft.data.sources.source_table import SAMPLE_ROWS, SourceTable, described_columns
from ampft.data.splits import unlabelled_advice
from ampft.decision import JOIN, template
from ampft.errors import InputError, listed, quoted, quoted_list
from ampft.flag import split_names

Loaded = tuple[dict[str, LabelledRows], DataColumns, list[str]]
Describe = Callable[[], str]

SEVERAL_ROWS = 20  # among which classes repeat
MEDIA_ROWS = 20  # whose cells tell whether a column has images or sounds
TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary")


def read_tables(
    tables: Mapping[str, list[SourceTable]], request: DataRequest, notes: Sequence[str]
) -> Loaded:
    """Choose the columns of the training rows, and read all rows.

    Args:
        tables: The files of each split, or a split of a data set.
        request: The user's choices.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: The columns or a row cannot be used; the message names it.
    """
    refuse_unused_options(
        request, ("class_names_file", "text_units"), "data without masks or tagged words"
    )
    if request.number_labels:
        refuse_unused_options(request, ("ignore_label",), "labels that are numbers")
    train = tables["train"]
    request = _with_model_columns(request, train[0].columns)
    train[0] = rename_columns(train[0], _expected_names(train[0].columns, request))
    try:
        columns, choice_notes = _choose_columns(train[0], request)
    except InputError as error:
        if request.evaluated != ("test",):
            raise
        raise InputError(f"{error} {unlabelled_advice(request)}") from error
    if tables.keys() == {"train"} and not request.evaluated:
        used = {*columns.of_table(train[0].columns).sources, *columns.labels.columns}
        choice_notes += repeated_key_notes(train[0], used | {*columns.extra.values()}, request)
    rows, empty, unlabelled = {}, [], []
    for split, parts in tables.items():
        sources = columns.of_table(parts[0].columns).sources
        parts[:] = [rename_columns(table, (*sources, *columns.labels.columns)) for table in parts]
        own = columns.of_split(split, request)
        if request.evaluated and split == "test" and _lacks_labels(parts[0], columns.labels):
            unlabelled.append(f"The {split} split has no column of labels and is left out.")
            continue
        for table in parts:
            own.require_in(table.columns, origin=table.origin)
            refuse_rejected(table, columns)
        if split != "train" and _is_unlabelled(parts[0], columns.labels):
            unlabelled.append(f"The {split} split has no labels and is left out.")
            continue
        read_parts = [read_rows(table, own, request) for table in parts]
        empty += [part.origin for part in read_parts if not len(part.inputs)]
        rows[split] = concatenated(read_parts, str(request.files.get(split, split)))
    counts = [
        f"{request.files[split]}: {len(parts)} files, from {parts[0].origin} to {parts[-1].origin}."
        for split, parts in tables.items()
        if len(parts) > 1
    ]
    if request.files:
        counts += [f"{name}: no rows of this file are used." for name in empty]
    _check_number_of_texts(columns, request)
    read = [note for parts in tables.values() for table in parts for note in table.notes]
    return rows, columns, [*notes, *counts, *read, *choice_notes, *unlabelled]


def _check_number_of_texts(columns: DataColumns, request: DataRequest) -> None:
    """Check that a run without training reads as many texts per row as its model was trained on.

    Raises:
        InputError: The model read single texts and the rows have pairs, or the other way round.
    """
    trained = split_names(request.model_columns.get("text_column_names")) or ()
    if columns.kind != TEXT or not trained or len(trained) == len(columns.inputs):
        return
    names = ("single texts", "pairs of texts")
    before, now = (names[len(each) - 1] for each in (trained, columns.inputs))
    needed = "one column" if len(trained) == 1 else "two columns"
    raise InputError(
        f"--text_column_names: the model was trained on {before} ({', '.join(trained)}), and "
        f"{quoted_list(columns.inputs)} would be read as {now}. Name {needed} of the data with "
        "--text_column_names, or choose other data."
    )


def _with_model_columns(request: DataRequest, available: Sequence[str]) -> DataRequest:
    """Return a request for the columns of the training of its model, if the table has them."""
    named: dict[str, Any] = {}
    for setting, names in request.model_columns.items():
        columns = split_names(names) or ()
        sources = InputColumns.of(columns, available).sources
        if getattr(request, setting) is None and {*sources} <= {*available}:
            named[setting] = names
    return replace(request, **named)


def _expected_names(columns: Sequence[str], request: DataRequest) -> tuple[str, ...]:
    """Return the names to look for: the user's choices, and usual names if no column has one."""
    texts, labels = request.text_columns, request.label_columns
    usual: list[str] = []
    if texts is None and not _text_choices(columns):
        usual += [*chain.from_iterable(PAIRS), *TEXTS]
    if labels is None and set(LABELS).isdisjoint(columns):
        usual += LABELS
    sources = InputColumns.of(texts or (), columns, request.features).sources
    return (*usual, *sources, *(labels or ()))


def _choose_columns(table: SourceTable, request: DataRequest) -> tuple[DataColumns, list[str]]:
    """Return the requested columns, or those of usual types and names, and a note on the choice."""
    dataset, named = table.dataset, request.label_columns
    columns = [name for name in table.columns if name != INDEX_COLUMN or not len(table.index)]
    if dataset is None:
        origin, describe = table.origin, partial(described_columns, table)
        media = _media_in_cells(table, request, describe)
    else:
        origin, describe = str(request.dataset_name), partial(_described_types, dataset, columns)
    if named is None and "label" not in columns and len(table.classes) == 1:
        named = tuple(table.classes)
    if dataset is not None:
        _refuse_files_without_labels(dataset, origin)
    hint = "" if dataset is not None else header_hint(columns, origin)
    if dataset is None and named is None and {*map(normalized_name, columns)}.isdisjoint(LABELS):
        hint = (
            _hint_on_objects(table)
            or _hint_on_fasttext(table)
            or _hint_on_yes_and_no(table)
            or hint
            or _hint_on_unlabelled_rows(table)
        )
    labels = _label_columns(columns, named, origin=origin, describe=describe, hint=hint)
    if dataset is not None:
        media = _media_by_type(dataset, request, describe)
    parser = _label_parser(labels, request, table)
    extra = extra_columns(request)
    notes: list[str] = []
    if media is not None:
        refuse_unused_options(request, ("feature_columns",), f"{media[1]}s")
        chosen = DataColumns((media[0],), parser, media[1], extra)
    else:
        if dataset is not None:
            _refuse_columns_of_other_types(dataset, columns, request)
            columns = _columns_of_texts(dataset, columns, labels, request)
        inputs = _text_columns(
            columns, request, labels=labels, origin=origin, describe=describe, hint=hint
        )
        if dataset is None and request.text_columns is None:
            _refuse_addresses(table, inputs)
        _refuse_unused_delimiter(inputs, columns, request)
        chosen = DataColumns(
            inputs,
            parser,
            extra=extra,
            features=request.features,
            delimiter=request.text_column_delimiter,
        )
        if request.features:
            require_columns(
                request.features, table.columns, FEATURE_FLAG, origin=origin, describe=describe
            )
            notes.append(_feature_note(chosen, table.columns))
        if dataset is None and None not in (request.label_columns, request.text_columns):
            return chosen, notes
    note = (
        f"{chosen.kind.capitalize()}s are read from {' and '.join(map(repr, chosen.inputs))},"
        f" labels from {quoted_list(labels)}."
    )
    return chosen, [note, *notes]


def _refuse_unused_delimiter(
    inputs: Sequence[str], columns: Sequence[str], request: DataRequest
) -> None:
    """Refuse text between columns where a pair of texts has none that are joined.

    Of one column, nothing could be meant to be joined.
    """
    delimiter = request.text_column_delimiter
    parts = InputColumns.of(inputs, columns).parts
    if delimiter == " " or len(inputs) < 2 or any(len(part) > 1 for part in parts):
        return
    raise InputError(
        f"--text_column_delimiter {quoted(delimiter)}: it joins columns, but {quoted_list(inputs)} "
        f"are the two texts of a pair. To join them, write --text_column_names "
        f"{JOIN.join(inputs)}; for pairs, remove --text_column_delimiter."
    )


def _label_parser(labels: tuple[str, ...], request: DataRequest, table: SourceTable) -> LabelParser:
    """Return how the cells of the label columns are read."""
    declared = table.classes
    for name in labels:
        refuse_repeated_names(
            declared.get(name, ()), f"{table.origin}: of the classes of column {quoted(name)},"
        )
    if request.number_labels:
        return LabelParser(labels, numbers=True)
    if request.labels_of_columns and any("=" in name for name in labels):
        raise InputError(
            f"{LABEL_FLAG} {','.join(labels)}: labels are named column=value, so a column cannot "
            "have = in its name. Rename it."
        )
    several, separator = request.several_labels, request.label_separator
    return LabelParser(labels, several, separator, declared, of_columns=request.labels_of_columns)


def _feature_note(columns: DataColumns, available: Sequence[str]) -> str:
    """Return how the columns beside the texts are read.

    Raises:
        InputError: One is named twice, or is a column of texts or labels.
    """
    features = columns.features
    others = {*InputColumns.of(columns.inputs, available).sources, *columns.labels.columns}
    wrong = [n for n in features if n in others or features.count(n) > 1]
    if wrong:
        raise InputError(
            f"{FEATURE_FLAG}: {quoted(wrong[0])} is named twice, or it is the column of the texts "
            "or of the labels. Name each column beside them once."
        )
    return f"Each text is read as {template(features)!r}, and must be typed in this form elsewhere."


def _hint_on_objects(table: SourceTable) -> str:
    """Return what to do if labels are in objects in cells, as in nested JSON; empty if not."""
    for name in table.columns:
        cells = [cell for _, (cell,) in islice(table.read((name,)), MEDIA_ROWS)]
        for cell in cells:
            inner = cell[0] if isinstance(cell, list) and cell else cell
            keys = {*inner} & {*LABELS} if isinstance(inner, dict) else ()
            if keys:
                return (
                    f" The labels are inside {quoted(name)}, under {quoted(min(keys))}: write them"
                    " into a column of their own, such as with pandas.json_normalize(ROWS)."
                )
    return ""


def _hint_on_fasttext(table: SourceTable) -> str:
    """Return what to do if texts begin with their labels, as in fastText; empty if not."""
    for name in table.columns:
        cells = [cell for _, (cell,) in islice(table.read((name,)), MEDIA_ROWS)]
        if cells and all(str(cell).startswith("__label__") for cell in cells):
            return (
                f" The labels stand before the texts in {quoted(name)}, as in fastText. Write them"
                f" into a column of their own, with pandas: TABLE[['label', {name!r}]] ="
                f" TABLE[{name!r}].str.extract(r'__label__(\\S+) (.*)')."
            )
    return ""


def _hint_on_unlabelled_rows(table: SourceTable) -> str:
    """Return what to do if no column can hold classes, all being different texts; empty if not."""
    rows = [row for _, row in islice(table.read(table.columns), SAMPLE_ROWS)]
    columns = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    is_number = any(NUMBER.fullmatch(cell.strip()) for column in columns for cell in column[:1])
    if len(rows) < SEVERAL_ROWS or is_number or any(len({*c}) < len(c) for c in columns):
        return ""
    return (
        " No column repeats a value, so that none holds classes: add a column with the class of"
        " each row. `ampft predict` needs none."
    )


def _hint_on_yes_and_no(table: SourceTable) -> str:
    """Return what to do if several columns of a table hold 0 and 1; empty if they do not."""
    values: list[set[str]] = [set() for _ in table.columns]
    for _, row in islice(table.read(table.columns), SAMPLE_ROWS):
        for seen, cell in zip(values, row, strict=True):
            seen.add(str(cell).strip().lower())
    pairs = zip(table.columns, values, strict=True)
    names = [name for name, seen in pairs if seen <= YES | NO and len(seen) == 2]
    if len(names) < 2:
        return ""
    return (
        f" If {quoted_list(names)} say which labels a row has, pass --task multi-label"
        f" {LABEL_FLAG} {','.join(name.strip() for name in names)}."
    )


def _refuse_addresses(table: SourceTable, inputs: Sequence[str]) -> None:
    """Raise InputError if all first cells are addresses of images or sounds, which no text is."""
    for name in InputColumns.of(inputs, table.columns).sources:
        cells = [str(cell) for _, (cell,) in islice(table.read((name,)), MEDIA_ROWS)]
        kinds = {kind_of_file(cell.partition("?")[0]) for cell in cells if "://" in cell}
        if len(kinds) == 1 and (kind := kinds.pop()) and all("://" in cell for cell in cells):
            raise InputError(
                f"{table.origin}: column {quoted(name)} holds addresses of {kind}s, such as"
                f" {quoted(cells[0])}, which are not downloaded. Download them, and write their"
                " paths into the column."
            )


def _described_types(dataset: Dataset, columns: Sequence[str]) -> str:
    features = dataset.features  # datasets may copy all of them at each access
    found = [features[name] for name in columns]
    types = [f.dtype if isinstance(f, Value) else type(f).__name__ for f in found]
    pairs = zip(columns, types, strict=True)
    return listed([f"{quoted(name)} ({type_name})" for name, type_name in pairs])


def _refuse_columns_of_other_types(
    dataset: Dataset, columns: Sequence[str], request: DataRequest
) -> None:
    """Refuse a column that is named, or has a usual name, but does not hold texts.

    Numbers and classes may be joined with texts.
    """
    features, named = dataset.features, request.text_columns
    texts = [name for name in columns if _has_texts(features[name])]
    usual = (*chain.from_iterable(PAIRS), *TEXTS)
    parts = InputColumns.of(named or (), columns).parts
    if named is None and not _text_choices(texts) and len(texts) < 2:
        parts = tuple((name,) for name in columns if name in usual)
    for part in parts:
        for name in part:
            if name not in columns or _has_texts(features[name]):
                continue
            is_value = isinstance(features[name], Value | ClassLabel)
            if is_value and len(part) > 1:
                continue
            remedy = "Convert it to texts, or pass another column."
            if not is_value:
                remedy = "Join each cell into one text, or for words with tags, add --task tokens."
            described = _described_types(dataset, [name])
            raise InputError(
                f"--text_column_names: the column {described} of {request.dataset_name} does not "
                f"hold texts. {remedy}"
            )


def _has_texts(feature: object) -> bool:
    return isinstance(feature, Value) and feature.dtype in TEXT_TYPES


def _columns_of_texts(
    dataset: Dataset, columns: Sequence[str], labels: Sequence[str], request: DataRequest
) -> list[str]:
    """Return the columns of strings, those that are joined into one text, and labels."""
    features = dataset.features
    texts = [name for name in columns if _has_texts(features[name])]
    parts = InputColumns.of(request.text_columns or (), columns).parts
    texts += [name for part in parts if len(part) > 1 for name in part if name in columns]
    return [*texts, *(name for name in labels if name not in texts)]


def _refuse_files_without_labels(dataset: Dataset, origin: str) -> None:
    """Refuse a folder of images or sounds that has no subfolders of classes."""
    column, feature = next(iter(dataset.features.items()))
    if len(dataset.features) == 1 and isinstance(feature, Image | Audio) and Path(origin).is_dir():
        raise InputError(
            f"--dataset_name {origin}: the {column} files in this folder have no labels. Put each "
            f"class into its own subfolder ({origin}/CLASS/FILE), or pass a table of paths and "
            "labels with --train_file."
        )
    if [*dataset.features] == ["text"] and folder_kind(origin, TEXT) == TEXT:
        raise InputError(
            f"--dataset_name {origin}: `datasets` reads the lines of its files without their "
            "folders. If each folder of .txt files is a class, add --task text; files of other "
            "kinds are then left out."
        )


def _label_columns(
    columns: Sequence[str],
    named: tuple[str, ...] | None,
    *,
    origin: str,
    describe: Describe,
    hint: str,
) -> tuple[str, ...]:
    """Return the label columns: those named, `label`, or the only one with a usual name."""
    if named is not None:
        parts = split_names(named[0]) if len(named) == 1 and named[0] not in columns else None
        refuse_repeated_names(parts or named, f"{LABEL_FLAG} {','.join(named)}: the column")
        if parts is not None and len(parts) > 1 and {*parts} <= {*columns}:
            raise InputError(
                f"{LABEL_FLAG} {named[0]}: the task predicts one column of labels. Add --task "
                "columns to predict all with one model, or train a run for each."
            )
        require_columns(named, columns, LABEL_FLAG, origin=origin, describe=describe)
        return named
    candidates = [name for name in columns if normalized_name(name) in LABELS]
    if "label" in candidates:
        return ("label",)
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        raise InputError(
            f"{LABEL_FLAG}: {origin} has several possible label columns:"
            f" {quoted_list(candidates)}. Pass the right one."
        )
    raise InputError(
        f"{LABEL_FLAG}: {origin} has no column called label. Its columns: {describe()}. Pass the"
        f" label column.{hint}"
    )


def _text_columns(
    columns: Sequence[str],
    request: DataRequest,
    *,
    labels: tuple[str, ...],
    origin: str,
    describe: Describe,
    hint: str,
) -> tuple[str, ...]:
    """Return one text column, or two for pairs.

    These are the named ones, otherwise a usual pair or a single usual name, otherwise the only
    column that is not a label.
    """
    named = request.text_columns
    if named is not None:
        received = f"--text_column_names: received {listed(named, separator=',')}."
        if len(named) > 2:
            raise InputError(
                f"{received} Commas separate the two texts of a pair. To join columns into one"
                f" text, write {JOIN} between them: {listed(named, separator=JOIN)}."
            )
        sources = InputColumns.of(named, columns).sources
        if len(set(named)) < len(named) or not {*labels, "label"}.isdisjoint(sources):
            raise InputError(
                f"{received} Pass one text column, two different ones for pairs (a,b), or columns"
                f" to join (a{JOIN}b). None may be a label column ({quoted_list(labels)}) or be"
                " called 'label'."
            )
        require_columns(sources, columns, "--text_column_names", origin=origin, describe=describe)
        return named
    index_of_pandas = ""
    used = (*extra_columns(request).values(), *request.features)
    not_texts = (*labels, "label", index_of_pandas, *used)
    others = [name for name in columns if name not in not_texts]
    choices = _text_choices(others)
    if not choices and len(others) == 1:
        return (others[0],)
    if len(choices) == 1:
        return choices[0]
    if not choices and _are_twins(others):
        return tuple(others)
    problem = "several possible text columns" if choices else "no text column with a usual name"
    pairs = [pair for pair in combinations(others, 2) if not choices and _are_twins(pair)]
    if len(pairs) == 1:
        hint = f" A pair seems to be --text_column_names {','.join(pairs[0])}."
    if not choices and not pairs:
        hint += _taken_text(request, columns)
    raise InputError(
        f"--text_column_names: {origin} has {problem}. Its columns: {describe()}. Pass the right"
        f" one, for example --text_column_names text, or a,b for pairs, or a{JOIN}b to join them."
        f"{hint}"
    )


def _taken_text(request: DataRequest, columns: Sequence[str]) -> str:
    """Return that another flag names the column that would be the text; empty if none does."""
    flags = {"--group_column": request.group_column, "--id_column": request.id_column}
    for flag, name in flags.items():
        if name is not None and name in columns and _text_choices([name]):
            return (
                f" {quoted(name)} was not taken because {flag} names it; --text_column_names "
                f"{name} makes it the text, too."
            )
    return ""


def _are_twins(columns: Sequence[str]) -> bool:
    """Return whether the only two columns are two texts of one kind, the first one first."""
    found = [TWINS.fullmatch(name) for name in columns]
    parts = [(match[1].lower(), match[2].lower()) for match in found if match is not None]
    if len(columns) != 2 or len(parts) != 2:
        return False
    return parts[0][0] == parts[1][0] and (parts[0][1], parts[1][1]) in (("1", "2"), ("a", "b"))


def _text_choices(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the usual pairs of text columns, and the usual text columns outside them."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    paired = set(chain.from_iterable(pairs))
    return [*pairs, *((name,) for name in TEXTS if name in columns and name not in paired)]


def _named_media(request: DataRequest) -> dict[str, str]:
    """Return the named column of images or of sounds by kind; empty if none is named."""
    named = request.named_media
    if len(named) > 1:
        raise InputError(
            "--image_column_name and --audio_column_name: received both. Pass one column."
        )
    return named


def _media_in_cells(
    table: SourceTable, request: DataRequest, describe: Describe
) -> tuple[str, str] | None:
    """Return the column of images or sounds of a file and their kind; None for texts.

    Without a flag or task that says so, it is the only column whose first cells are all files of
    one kind, in a file without a usual text column.
    """
    for kind, column in _named_media(request).items():
        require_columns(
            (column,), table.columns, INPUT_FLAGS[kind], origin=table.origin, describe=describe
        )
        return column, kind
    if request.text_columns or request.data_kind not in (None, *MEDIA):
        return None
    if request.data_kind is None and _text_choices(table.columns):
        return None
    found = {
        column: kind
        for column, kind in _media_cells(table).items()
        if request.data_kind in (None, kind)
    }
    if len(found) == 1:
        return next(iter(found.items()))
    if request.data_kind is None and not found:
        return None
    flag = INPUT_FLAGS[request.data_kind or next(iter(found.values()))]
    problem = "several columns of files" if found else f"no column of paths of {request.data_kind}s"
    raise InputError(
        f"{flag}: {table.origin} has {problem}. Its columns: {describe()}. Pass the right one."
    )


def _media_cells(table: SourceTable) -> dict[str, str]:
    """Return the kind of each column whose first cells are images or sounds: bytes, or paths."""

    def kind_of_cell(cell: object) -> str | None:
        name = cell.get("path") if isinstance(cell, dict) else cell
        return kind_of_file(name) if isinstance(name, str) and "://" not in name else None

    rows = [cells for _, cells in islice(table.read(table.columns), MEDIA_ROWS)]
    found = {}
    for column, cells in zip(table.columns, zip(*rows, strict=True), strict=False):
        kinds = {kind_of_cell(cell) for cell in cells if cell not in (None, "")}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            found[column] = kind
    return found


def _media_by_type(
    dataset: Dataset, request: DataRequest, describe: Describe
) -> tuple[str, str] | None:
    """Return the column of images or sounds of a data set and their kind; None for texts."""
    origin, named = request.dataset_name, _named_media(request)
    found = {
        kind: [name for name, of in dataset.features.items() if isinstance(of, media_type)]
        for kind, media_type in MEDIA_TYPES.items()
    }
    for kind, column in named.items():
        require_columns(
            (column,), found[kind], INPUT_FLAGS[kind], origin=str(origin), describe=describe
        )
        return column, kind
    present = [kind for kind, columns in found.items() if columns]
    if request.text_columns or request.data_kind == "text" or not present:
        return None
    if len(present) > 1 and request.data_kind not in present:
        raise InputError(
            f"{origin} has columns of images and of sounds. Say which to classify: "
            "--task images or --task sounds."
        )
    kind = request.data_kind if request.data_kind in present else present[0]
    if len(found[kind]) > 1:
        raise InputError(
            f"{INPUT_FLAGS[kind]}: {origin} has several {kind} columns:"
            f" {quoted_list(found[kind])}. Pass one."
        )
    return found[kind][0], kind


def _lacks_labels(table: SourceTable, parser: LabelParser) -> bool:
    return {*parser.columns}.isdisjoint(table.columns)


def _is_unlabelled(table: SourceTable, parser: LabelParser) -> bool:
    """Return whether no row of a data set has a label, as in the test splits of benchmarks."""
    if table.dataset is None:
        return False
    column = parser.columns[0]
    has_mark = parser.numbers or column in table.classes
    missing = (None, UNLABELLED) if has_mark else (None,)
    labels = [label for _, (label,) in table.read((column,))]
    return bool(labels) and all(label in missing for label in labels)
