"""The model card of a run, its result in the format of the hub, and what is pushed there."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml

from ampft.decision import CONTRACT_NAME, TEMPERATURE, THRESHOLDS, UNKNOWN, joined_parts, template
from ampft.errors import InputError
from ampft.features.feature import Feature
from ampft.flag import split_names
from ampft.hub import go_offline_if_unreachable, is_folder_or_hub_id
from ampft.models.model_settings import ADAPTER_FOLDER
from ampft.runs.finished import FinishedRun
from ampft.runs.manifest import check_files, model_files
from ampft.runs.record import RunRecord
from ampft.runs.redaction import published_record, without_folders
from ampft.runs.run_text import (
    best_moment,
    decision_blocks,
    describe_precision,
    describe_steps,
    holds_adapters,
    pipeline_arguments,
    problem_of,
    result_blocks,
    task_row,
)
from ampft.tasks.outcome import main_metrics_text
from ampft.tasks.report import Report
from ampft.text.escaping import code, metadata_text, prose
from ampft.text.numbers import counted, duration
from ampft.text.page import Name, Table, markdown, markdown_table
from ampft.text.terminal import labelled, print_line

THIS_FOLDER = "path/to/this/folder"
RECORDS = " `run.json` holds every setting, and `history.jsonl` every step."


def model_card(
    record: RunRecord, report: Report, *, hub_model_id: str | None = None, comparison: str = ""
) -> str:
    """Return the model card: YAML metadata, then Markdown in which labels and names are inert.

    The card names no licence, because the publisher of the model chooses it. It is not checked
    with `validate` of huggingface_hub, which would send it to the hub.

    Args:
        hub_model_id: Repository on the hub that the card is for; None for the folder of the run.
        comparison: Section on the comparison that the run is part of, in Markdown.
    """
    versions = (f"{prose(name)} {prose(each)}" for name, each in record.versions.items())
    sections = [
        f"---\n{_metadata(record, report).to_yaml()}\n---",
        _introduction(record, report, has_interval=hub_model_id is not None),
        _use(record, hub_model_id or THIS_FOLDER),
        _long_texts(record, has_record=hub_model_id is None),
        _least_probability(record),
        _folded_thresholds(record, hub_model_id or THIS_FOLDER),
        _served_back(record),
        _precision(record),
        f"## Results\n\n{markdown(result_blocks(record, report))}",
        f"## Decisions\n\n{markdown(fitted)}" if (fitted := decision_blocks(record)) else "",
        comparison,
        _data(record, report),
        _training(record, has_record=hub_model_id is None),
        f"## Versions\n\n{', '.join(versions)}",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _metadata(record: RunRecord, report: Report) -> ModelCardData:
    metrics = report.hub_metrics()
    results = [
        EvalResult(
            task_type=task_row(record).pipeline_tag,
            dataset_type=record.data.hub_id or "local",
            dataset_name=metadata_text(published_data_name(record)),
            dataset_split=metadata_text(report.split),
            metric_type=metric.kind,
            metric_name=metric.title,
            metric_value=round(metric.value, 6),
            metric_args=None if metric.arguments is None else dict(metric.arguments),
        )
        for metric in metrics
    ]
    mode = record.precision.resolved.get("mode", record.precision.requested)
    return ModelCardData(
        library_name="peft" if holds_adapters(record) else "transformers",
        pipeline_tag=task_row(record).pipeline_tag,
        base_model=record.model.hub_id,
        datasets=record.data.hub_id,
        metrics=list(dict.fromkeys(metric.kind for metric in metrics)),
        tags=["ampft", "mixed-precision", str(mode)],
        model_name=metadata_text(
            f"{published_model_name(record)} on {published_data_name(record)}"
        ),
        eval_results=results,
    )


def published_model_name(record: RunRecord) -> str:
    """Return the hub id, or the last part of a local path, which can contain a user's name."""
    return record.model.hub_id or without_folders(record.model.name)


def published_data_name(record: RunRecord) -> str:
    """Return the hub id of the data, or the names of their files without folders."""
    names = (part.strip() for part in record.data.name.split(","))
    return record.data.hub_id or ", ".join(map(without_folders, names))


def _joins(record: RunRecord) -> str:
    """Return how texts consist of several columns, or an empty string."""
    parts = [joined_parts(name) for name in record.data.input_columns]
    joins = [" and ".join(map(code, columns)) for columns in parts if len(columns) > 1]
    delimiter = record.arguments.get("text_column_delimiter", " ")
    between = "a space" if delimiter == " " else code(json.dumps(delimiter, ensure_ascii=False))
    joined = f" Texts consist of {'; '.join(joins)}, joined by {between}." if joins else ""
    features = split_names(record.arguments.get("feature_columns"))
    if not features:
        return joined
    return (
        f"{joined} Columns are put before each text, as {code(template(features))}; a missing "
        f"value is {code(UNKNOWN)}."
    )


def _introduction(record: RunRecord, report: Report, *, has_interval: bool) -> str:
    interval = accuracy_interval(record, report) if has_interval else None
    suffix = "" if interval is None else f" ({interval_text(interval)}, for this model only)"
    purpose = f"fine-tuned to distinguish {counted(len(record.label_names), 'class')}"
    if record.arguments.get("evaluate_only"):
        purpose = "evaluated as it is, without training"
    elif task_row(record).number_labels:
        purpose = f"fine-tuned to predict the number {code(record.label_names[0])}"
    return (
        f"# {code(published_model_name(record))} on {code(published_data_name(record))}\n\n"
        f"{prose(record.model.architecture)}, {record.model.parameters / 1e6:.1f} M parameters, "
        f"{purpose}. "
        f"On {code(report.split)} ({counted(report.examples, 'example')}): "
        f"{main_metrics_text(problem_of(record), report.metrics())}{suffix}."
    )


def _use(record: RunRecord, model: str) -> str:
    row = task_row(record)
    example = row.kind.example(len(record.data.input_columns))
    if features := split_names(record.arguments.get("feature_columns")):
        first = json.dumps(template(features).replace("TEXT", "a text"), ensure_ascii=False)
        example = example.replace('"a text"', first).replace('"one text"', first)
    given = pipeline_arguments(record).items()
    named = (f"{name}={value!r}".replace("'", '"') for name, value in given)
    arguments = ", ".join([example, *named])
    if holds_adapters(record):
        return _use_of_adapter(record, arguments, model)
    imports = (
        "import ampft.media.erfnet  # registers the model\n"
        if record.model.architecture == "ErfnetForSemanticSegmentation"
        else ""
    )
    return (
        f"## Use\n\n```python\n{imports}from transformers import pipeline\n\n"
        f'classify = pipeline("{row.pipeline_tag}", model="{model}")\n'
        f"classify({arguments})\n```"
        + (f"\n\n{beside}" if (beside := _adapter_beside(record, model)) else "")
    )


def _long_texts(record: RunRecord, *, has_record: bool) -> str:
    """Return that the pipeline does not split long texts, if the training did."""
    if record.arguments.get("long_text") != "windows" and not task_row(record).kind.has_windows:
        return ""
    command = (
        f" `ampft predict --model {THIS_FOLDER}` does, as the training did." if has_record else ""
    )
    return f"Long texts are not split into windows by a pipeline.{command}"


def _least_probability(record: RunRecord) -> str:
    """Return from which probability the run predicted each of several labels."""
    least = record.arguments.get("threshold")
    is_tuned = record.decisions is not None and record.decisions.labels
    row = task_row(record)
    if not row.several_labels or row.labels_of_columns or least is None or is_tuned:
        return ""  # the decisions have those that were tuned
    return (
        f"A label is predicted if its probability is at least {least:g}. A pipeline gives the "
        "probability of every label, and decides nothing."
    )


def _folded_thresholds(record: RunRecord, model: str) -> str:
    """Return the code that moves tuned thresholds of several labels into a copy of the model."""
    row, decisions = task_row(record), record.decisions
    is_tuned = decisions is not None and decisions.labels
    if not (row.several_labels and is_tuned) or row.labels_of_columns or holds_adapters(record):
        return ""
    return (
        "Each label has a threshold of its own, which a pipeline does not apply. This moves the "
        "thresholds into the biases of a copy, in which a label is predicted from a probability "
        "of 0.5 on, by any client; the last layer must have biases, and the probabilities of the "
        "copy are shifted.\n\n```python\n"
        f"import json\nfrom pathlib import Path\n\nimport torch\nfrom transformers import "
        f'{row.model_class}, AutoTokenizer\n\nfolder = "{model}"\n'
        f"model = {row.model_class}.from_pretrained(folder)\n"
        f'rule = json.loads(Path(folder, "{CONTRACT_NAME}").read_text())["rule"]["decisions"]\n'
        f'thresholds = torch.tensor(rule["{THRESHOLDS}"], dtype=torch.float64)\n'
        "logits = thresholds.logit().nan_to_num(1e4, 1e4, -1e4)  # above 1: never predicted\n"
        "linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]\n"
        "head = [m for m in linear if m.out_features == len(thresholds)][-1]\n"
        f'head.bias.data -= logits * rule.get("{TEMPERATURE}", 1.0)\n'
        'model.save_pretrained("folded")\n'
        'AutoTokenizer.from_pretrained(folder).save_pretrained("folded")\n```'
    )


def _served_back(record: RunRecord) -> str:
    part = record.served_back
    if part is None:
        return ""
    sentences = (f"Asked afterwards about rows of {part.split}: {part.text()}.", *part.notes)
    return " ".join(map(prose, sentences))


def _adapter_beside(record: RunRecord, model: str) -> str:
    """Return how PEFT loads the adapters of a merged run from their subfolder."""
    if not record.arguments.get("lora_r") or not is_folder_or_hub_id(record.model.name):
        return ""
    model_class = task_row(record).model_class
    base = record.model.hub_id or "path/to/the/base/model"
    return (
        f"The model is whole: its adapters (LoRA) were added to the weights. `{ADAPTER_FOLDER}` "
        "holds the adapters and the head alone. PEFT adds them to the base model, which does not "
        "know the labels (`pip install peft`):\n\n```python\nfrom peft import PeftModel\n"
        f"from transformers import {model_class}\n\nnames = {_names_as_source(record)}\n"
        f'base = {model_class}.from_pretrained("{base}", {_head_of_base(record)})\n'
        f'model = PeftModel.from_pretrained(base, "{model}/{ADAPTER_FOLDER}")\n```'
    )


def _names_as_source(record: RunRecord) -> str:
    """Return the labels as a list of JSON, which is one of Python.

    ASCII without backticks cannot end the block of the card.
    """
    return json.dumps(list(record.label_names)).replace("`", "\\u0060")


def _head_of_base(record: RunRecord) -> str:
    """Return the arguments that give a base model the head of the run, as Python source."""
    kind = problem_of(record).transformers_type
    # The others have another function after the logits than softmax.
    more = "" if kind in (None, "single_label_classification") else f', problem_type="{kind}"'
    return f"id2label=dict(enumerate(names)){more}, ignore_mismatched_sizes=True"


def _use_of_adapter(record: RunRecord, arguments: str, model: str) -> str:
    row = task_row(record)
    model_class, processor = row.model_class, row.kind.processor
    names = _names_as_source(record)
    base = record.model.hub_id or "path/to/the/base/model"
    arguments_of_base = f'"{base}", {_head_of_base(record)}'
    packages, imports, quantized, merged = "peft", "", "", ".merge_and_unload()"
    if record.arguments.get("load_in_4bit"):
        packages, imports = "peft bitsandbytes", "PeftConfig, "
        merged = ""  # merging would quantize again
        arguments_of_base = f"\n    {arguments_of_base}, quantization_config=four_bits\n"
        quantized = (
            "from transformers import BitsAndBytesConfig\n\n"
            f'head = PeftConfig.from_pretrained("{model}").modules_to_save\n'
            "four_bits = BitsAndBytesConfig(\n"
            '    load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=head\n)'
        )
    return (
        "## Use\n\nThis folder holds adapters (LoRA) and the head, without the base model: "
        f"`pip install {packages}`.\n\n```python\n"
        f"from peft import {imports}PeftModel\nfrom transformers import {model_class}, pipeline\n"
        f"{quantized}\nnames = {names}\n"
        f"base = {model_class}.from_pretrained({arguments_of_base})\n"
        f'model = PeftModel.from_pretrained(base, "{model}"){merged}\n'
        f'classify = pipeline("{row.pipeline_tag}", model=model, {processor}="{model}")\n'
        f"classify({arguments})\n```"
    )


def _precision(record: RunRecord) -> str:
    executed = record.precision.summary
    storage = record.precision.resolved.get("storage_dtype") or "float32"
    done, when = "Trained", "in the first step"
    if record.arguments.get("evaluate_only"):
        done, when = "Evaluated", "in the first batch"
    measured = f"\n\nMeasured {when}: {prose(executed)}." if executed else ""
    return (
        f"## Precision\n\n{done} in {prose(describe_precision(record))}.{measured}\n\n"
        f"The saved weights are {prose(str(storage))}; the model runs in any precision."
    )


def _data(record: RunRecord, report: Report) -> str:
    splits = Table(
        header=("split", "SHA-256 of the contents", "examples"),
        rows=[
            (Name(split), Name(record.data.fingerprints.get(split, "unknown")), f"{size:,}")
            for split, size in record.data.examples.items()
        ],
        left=2,
    )
    notes = "\n".join(f"- {prose(note)}" for note in published_record(record).data.notes)
    return (
        f"## Data\n\n{markdown_table(splits)}\n\n"
        f"The results are measured on {code(report.split)}.{_joins(record)}"
        + (f"\n\n{notes}" if notes else "")
    )


def _training(record: RunRecord, *, has_record: bool) -> str:
    records = RECORDS if has_record else ""
    seconds = record.timings.get("training_seconds", record.timings.get("total_seconds"))
    elapsed = f", {duration(seconds)}" if isinstance(seconds, int | float) else ""
    cpu = record.hardware.get("cpu")
    gpus = record.hardware.get("gpus") or []
    machine = ", ".join(str(gpu) for gpu in gpus) if gpus else str(cpu or "an unknown CPU")
    if record.arguments.get("evaluate_only"):
        return f"## Training\n\nNone: the weights are the model's own.{records}"
    best = ""
    if record.best is not None:
        best = (
            f" The saved weights are those of {best_moment(record)}, {prose(record.best.reason)}."
        )
    if (scale := record.head_scale) is not None:
        best += f" The last layer was then changed to scale {scale.text}."
    if (decay := record.arguments.get("ema_decay")) is not None:
        best += f" They are averaged over the steps (decay {decay:g})."
        best += " `raw_weights.safetensors` holds those that were averaged." if has_record else ""
    return (
        f"## Training\n\nOptimizer steps: {describe_steps(record)}{elapsed} on "
        f"{prose(machine)}.{_trained_part(record)}{best}{records}"
    )


def _trained_part(record: RunRecord) -> str:
    trained, total = record.model.trainable_parameters, record.model.parameters
    if trained == total:
        return ""
    rank = record.arguments.get("lora_r")
    base = " on weights in 4 bits (NF4)" if record.arguments.get("load_in_4bit") else ""
    what = f"adapters (LoRA) of rank {rank}{base} and the head were" if rank else "a part was"
    return f" Only {what} trained: {trained:,} of {total:,} parameters."


EVAL_RESULTS_FOLDER = ".eval_results"
_Z = 1.959964  # 0.975 quantile of the standard normal distribution


def eval_results(record: RunRecord, report: Report) -> tuple[str, str] | None:
    """Return the path in the repository and the YAML of the primary metric.

    None if the data are not from the hub, or only a part of the split was predicted: the hub shows
    such a result beside others on the same data set.
    """
    hub_id = record.data.hub_id
    if hub_id is None or record.arguments.get("max_predict_samples") is not None:
        return None
    metric = report.hub_metrics()[0]
    entry = EvalResultEntry(
        dataset_id=hub_id,
        task_id=str(record.arguments.get("dataset_config_name") or "default"),
        value=round(metric.value, 6),
        date=record.started,
        notes=_notes(record, report),
    )
    text = yaml.safe_dump(
        eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=1000
    )
    return f"{EVAL_RESULTS_FOLDER}/{hub_id.replace('/', '--')}.yaml", text


def _notes(record: RunRecord, report: Report) -> str:
    metric = report.hub_metrics()[0]
    fingerprint = record.data.fingerprints.get(report.split)
    parts = [f"{metric.title} on {report.split}, {counted(report.examples, 'example')}"]
    interval = accuracy_interval(record, report)
    if interval is not None:
        parts.append(interval_text(interval))
    if fingerprint is not None:
        parts.append(f"SHA-256 of the examples {fingerprint}")
    parts.append(f"trained in {describe_precision(record)}, seed {record.arguments.get('seed')}")
    return "; ".join(parts)


def accuracy_interval(record: RunRecord, report: Report) -> tuple[float, float] | None:
    """Return the 95 % interval of the accuracy over examples (Wilson 1927).

    It holds for this model on other examples like these, not for another training. None if the
    first metric of the report is not the accuracy over independent examples.
    """
    metric = report.hub_metrics()[0]
    if metric.kind != "accuracy" or record.arguments.get("group_column") or not report.examples:
        return None
    n, share = report.examples, metric.value
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval as a clause for readers."""
    return f"95 % interval over examples {interval[0]:z.4f} to {interval[1]:z.4f}"


# Predictions contain texts, and run.json and the history of paths and hardware stay here.
REPORTS = ("report.json", "report.txt")
CARD_NAME = "README.md"


def check_account(flag: str, hub_model_id: str | None) -> str:
    """Check that a model can be pushed; return the name of the user.

    Args:
        flag: Flag that asks for the push, for messages.
        hub_model_id: Name of the repository; None for one of the user.

    Raises:
        InputError: The name is invalid, the token is missing or invalid, or the hub cannot be
            reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if hub_model_id is not None:
        try:
            validate_repo_id(hub_model_id)
        except HFValidationError as error:
            raise InputError(f"--hub_model_id: {' '.join(str(error).split())}") from None
    if get_token() is None:
        raise InputError(
            f"{flag}: no token of the hub was found. Run `hf auth login`, or set HF_TOKEN to a"
            " token that may write."
        )
    problem = go_offline_if_unreachable(needs_hub=True)
    if problem is not None:
        raise InputError(f"{flag}: {problem}")
    try:
        return str(HfApi().whoami()["name"])
    except HfHubHTTPError as error:
        raise InputError(
            f"{flag}: the hub does not accept the token ({_reason(error)}). Run `hf auth login`, or"
            " set HF_TOKEN to a token that may write."
        ) from None


def push_run(
    folder: str | Path,
    *,
    hub_model_id: str | None = None,
    private: bool = False,
    flag: str = "ampft push",
    comparison: str = "",
) -> str:
    """Push the model of a finished run, its card and its report to the hub.

    Predictions, run.json and the history stay where they are, because they contain texts of the
    data, paths and names of hardware.

    Args:
        hub_model_id: Name of the repository; None for the name of the folder, under the user.
        private: Whether a new repository is private.
        flag: Flag or command that asks for the push, for messages.
        comparison: Section of the card on the comparison that the run is part of.

    Returns:
        The address of the model.

    Raises:
        InputError: The run has not finished, its files were changed, or the hub refuses them.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    run = FinishedRun(folder)
    user = check_account(flag, hub_model_id)
    name = hub_model_id or f"{user}/{run.folder.resolve().name}"
    files = run.record.files
    beside = (name for name in files if name.startswith(f"{ADAPTER_FOLDER}/"))
    names = sorted({*model_files(run.folder, files), *beside, *REPORTS})
    check_files(run.folder, files, names)
    card = model_card(run.record, run.report, hub_model_id=name, comparison=comparison)
    operations: list[Any] = [CommitOperationAdd(CARD_NAME, card.encode())]
    operations += [CommitOperationAdd(name, run.folder / name) for name in names]
    evaluation = eval_results(run.record, run.report)
    if evaluation is not None:
        operations.append(CommitOperationAdd(evaluation[0], evaluation[1].encode()))
    api = HfApi()
    try:
        url = api.create_repo(name, private=private or None, exist_ok=True)
        api.create_commit(url.repo_id, operations, commit_message="Add the model, card and report")
    except (HfHubHTTPError, OSError, ValueError) as error:
        again = f"ampft push {shlex.quote(str(folder))} --hub_model_id {name}"
        raise InputError(
            f"{flag}: {name} was not pushed ({_reason(error)}). The run is complete in {folder};"
            f" to try again: {again}{' --private' if private else ''}"
        ) from None
    return str(url)


def _reason(error: Exception) -> str:
    """Return the hub's own message, or the first line of the error."""
    return (getattr(error, "server_message", None) or str(error).splitlines()[0]).rstrip(".")


@dataclass
class PushToHub(Feature):
    """Pushes the results of a run with `--push_to_hub`."""

    name = "push"

    hub_model_id: str | None  # As for `push_run`.
    private: bool  # As for `push_run`.

    def published(self, folder: Path) -> None:
        """Push the results, and print the address of the model."""
        url = push_run(
            folder, hub_model_id=self.hub_model_id, private=self.private, flag="--push_to_hub"
        )
        print_line(labelled("pushed", url))
