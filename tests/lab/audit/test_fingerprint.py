"""Whatever changes what a model or its preprocessing does is refused, stamped and audited."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from media_files import image_folder, sound_table
from running import write_csv
from tiny_media import save_model
from tiny_text import LABELS, tiny_texts

import ampft
from ampft.arguments import parse_classify_arguments
from ampft.comparison.analysis.loading import RecordedRun, RunGroup
from ampft.comparison.analysis.stamps import difference_stamps
from ampft.comparison.remarks import remark_text
from ampft.errors import InputError
from ampft.lab.audit.audit_result import DIFFERS, EQUAL
from ampft.lab.audit.rebuild import check_configuration
from ampft.runs.loop import as_checkpointed
from ampft.runs.prepared import Prepared
from ampft.runs.resume import changed_values, settings_of, topology_of

Change = Callable[[Path], None]


def config(**changes: Any) -> Change:
    return lambda folder: _edit(folder / "config.json", lambda values: values.update(changes))


def tokenizer_config(**changes: Any) -> Change:
    file = "tokenizer_config.json"
    return lambda folder: _edit(folder / file, lambda values: values.update(changes))


def processor(**changes: Any) -> Change:
    file = "preprocessor_config.json"
    return lambda folder: _edit(folder / file, lambda values: values.update(changes))


def swapped(one: str, other: str) -> Change:
    """Exchange the numbers of two tokens."""

    def swap(values: dict[str, Any]) -> None:
        vocabulary = values["model"]["vocab"]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
        for token in values["added_tokens"]:
            token["id"] = vocabulary[token["content"]]

    return lambda folder: _edit(folder / "tokenizer.json", swap)


def in_another_order(folder: Path) -> None:
    for path in folder.glob("*.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(dict(reversed(values.items()))))


def _edit(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


TOKENIZER = "preprocessing: tokenizer_config.json"
PROCESSOR = "preprocessing: preprocessor_config.json"
TEXT_CHANGES: dict[str, tuple[Change, str]] = {
    "activation": (config(hidden_act="relu"), "configuration: hidden_act"),
    "dropout": (config(hidden_dropout_prob=0.5), "configuration: hidden_dropout_prob"),
    "attention dropout": (
        config(attention_probs_dropout_prob=0.5), "configuration: attention_probs_dropout_prob",
    ),
    "dropout of the head": (config(classifier_dropout=0.5), "configuration: classifier_dropout"),
    "layer norm": (config(layer_norm_eps=1e-2), "configuration: layer_norm_eps"),
    "attention": (config(attn_implementation="eager"), "configuration: attn_implementation"),
    "heads": (config(num_attention_heads=4), "configuration: num_attention_heads"),
    "unknown token": (swapped("[UNK]", "w1"), "preprocessing: tokenizer.json: model"),
    "a word": (swapped("w1", "w2"), "preprocessing: tokenizer.json: model"),
    "length": (
        tokenizer_config(model_max_length=8), f"{TOKENIZER}: model_max_length",
    ),
    "lower case": (
        tokenizer_config(do_lower_case=False), f"{TOKENIZER}: do_lower_case",
    ),
    "side of truncation": (
        tokenizer_config(truncation_side="left"),
        f"{TOKENIZER}: truncation_side",
    ),
}  # fmt: skip
IMAGE = {
    "mean": (processor(image_mean=[0.1, 0.2, 0.3]), f"{PROCESSOR}: image_mean"),
    "deviation": (processor(image_std=[0.1, 0.2, 0.3]), f"{PROCESSOR}: image_std"),
    "resampling": (processor(resample=0), f"{PROCESSOR}: resample"),
    "scale": (processor(rescale_factor=1.0), f"{PROCESSOR}: rescale_factor"),
    "activation": (config(hidden_act="relu"), "configuration: hidden_act"),
}  # fmt: skip
SOUND = {
    "mean": (processor(mean=1.0), f"{PROCESSOR}: mean"),
    "deviation": (processor(std=2.0), f"{PROCESSOR}: std"),
    "normalized": (processor(do_normalize=False), f"{PROCESSOR}: do_normalize"),
}  # fmt: skip
HARMLESS: dict[str, Change] = {
    "name": config(_name_or_path="elsewhere", transformers_version="5.0.0"),
    "comment": config(_comment="trained on a Sunday"),
    "dtype": config(dtype="float16"),
    "architectures": config(architectures=["BertForSequenceClassification", "BertModel"]),
    "name of the tokenizer": tokenizer_config(name_or_path="elsewhere", is_local=False),
    "order": in_another_order,
    "a longer limit than that of the run": tokenizer_config(model_max_length=10**6),
}
KINDS = {"text": TEXT_CHANGES, "image": IMAGE, "sound": SOUND}
CASES = [(kind, name) for kind, changes in KINDS.items() for name in changes]


@pytest.fixture(scope="module")
def sources(tmp_path_factory, tiny_bert) -> dict[str, tuple[Path, list[str]]]:
    """A model folder and flags of its data, by kind."""
    root = tmp_path_factory.mktemp("sources")
    texts = tiny_texts(40)
    names = [LABELS[label] for label in texts["label"]]
    table = write_csv(root / "texts.csv", zip(texts["text"], names, strict=True), ("text", "label"))
    image_folder(root / "images", 6)
    sound_table(root / "sounds", 6)
    return {
        "text": (tiny_bert, ["--train_file", str(table)]),
        "image": (save_model(root / "vit", "vit"), ["--dataset_name", str(root / "images")]),
        "sound": (
            save_model(root / "ast", "ast"), ["--train_file", str(root / "sounds/sounds.csv")],
        ),
    }  # fmt: skip


@pytest.fixture
def prepared_from(sources, tmp_path, fresh_accelerate) -> Callable[..., Prepared]:
    """Return a function that prepares a run with a changed copy of a model."""

    def prepare(kind: str, change: Change | None = None) -> Prepared:
        source, flags = sources[kind]
        folder = Path(shutil.copytree(source, tmp_path / "model", dirs_exist_ok=True))
        if change is not None:
            change(folder)
        words = ["--model_name_or_path", str(folder), "--use_cpu", "--output_dir"]
        return ampft.prepare(parse_classify_arguments([*flags, *words, str(tmp_path / "run")]))

    return prepare


def settings(prepared: Prepared) -> dict[str, Any]:
    return settings_of(prepared.record, len(prepared.step_batches))


def changed_names(before: Prepared, after: Prepared) -> set[str]:
    return set(changed_values(settings(before), settings(after)))


def stamps_of(before: Prepared, after: Prepared) -> tuple[str, ...]:
    groups = []
    for name, prepared in (("fp32", before), ("bf16", after)):
        record = replace(prepared.record, warnings={})
        run = RecordedRun(folder=Path(name), record=record, mode=name, name=name, seed=42)
        groups.append(RunGroup(name=name, runs=(run,)))
    return tuple(map(remark_text, difference_stamps(groups)))


def refusal(before: Prepared, after: Prepared) -> str | None:
    """Return the message with which a resume from a checkpoint of another run is refused."""
    manifest = SimpleNamespace(
        settings=json.loads(json.dumps(settings(before))), topology=topology_of(before.record)
    )
    checkpoint: Any = SimpleNamespace(manifest=manifest, folder=Path("checkpoints/step-2"))
    try:
        as_checkpointed(after, checkpoint)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_change_is_refused_in_resume_stamped_in_compare_and_shown_in_audit(
    prepared_from, kind, name
):
    change, setting = KINDS[kind][name]
    before = prepared_from(kind)
    record = before.record
    after = prepared_from(kind, change)
    part = setting.partition(": ")[0]
    assert setting in changed_names(before, after)
    assert setting[:40] in str(refusal(before, after))
    stamp = "model configuration" if part == "configuration" else part
    assert any(s.startswith(f"not like for like: {stamp} (") for s in stamps_of(before, after))
    rebuilt: Any = SimpleNamespace(record=record)
    assert check_configuration(rebuilt, before).status == EQUAL
    check = check_configuration(rebuilt, after)
    assert check.status == DIFFERS
    assert setting.partition(": ")[2] in check.text


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_a_change_without_effect_is_not_noticed(prepared_from, name):
    """Negative control."""
    before = prepared_from("text")
    assert before.record.model.configuration["hidden_act"] == "gelu"
    assert before.record.model.preprocessing["tokenizer.json"]["model"]
    after = prepared_from("text", HARMLESS[name])
    assert changed_names(before, after) == set()
    assert refusal(before, after) is None
    assert stamps_of(before, after) == ()


def test_notes_of_a_check_are_in_the_record(prepared_from):
    note = "attention runs in groups of similar length: its kernel fails"
    assert note in replace(prepared_from("text"), check_notes=(note,)).record.model.notes


def test_a_checkpoint_of_a_version_with_other_flags(prepared_from):
    prepared = prepared_from("text")
    changed = settings(prepared)
    del changed["--load_in_4bit"]
    manifest = SimpleNamespace(settings=changed, topology={})
    checkpoint: Any = SimpleNamespace(manifest=manifest, folder=Path("checkpoints/step-2"))
    with pytest.raises(InputError, match="another version of ampft, which has other flags"):
        as_checkpointed(prepared, checkpoint)
