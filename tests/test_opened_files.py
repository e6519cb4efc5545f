"""What an earlier command wrote is opened through its seal, its record or its own hash.

The test lists every function of the package that opens a file. One that does not check the file
itself is in `OTHERS`, under the reason why it need not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import REPOSITORY

# Calls that open a file, also those of our own readers of a path.
OPENERS = {
    *("open", "read_text", "read_bytes", "mmap", "load_file", "safe_open", "from_pretrained"),
    *("ParquetFile", "read_parquet", "read_table", "InferenceSession", "read_model"),
    *("read_json_object", "load_saved", "read_predictions", "read_groups", "read_texts"),
    *("read_run_predictions", "history_rows", "read_history"),
    *("from_file", "load_from_disk", "load_dataset", "SoundFile", "ZipFile", "dataset"),
    *("fromfile", "memmap", "loadtxt", "genfromtxt", "read_metadata", "read_schema"),
    *("run_path", "spec_from_file_location", "getline", "getlines", "copyfile", "copytree"),
}
# Functions of these names in modules that open files: `onnx.load`, `torch.load`, `numpy.load`.
LOADERS = {"onnx", "torch", "np", "numpy", "json", "pickle", "pq", "pd", "pandas", "soundfile"}
READERS_OF_LOADERS = {"load", "read", "read_csv", "read_json", "read_excel"}
# Methods of a path that also open it where they are passed on: `map(Path.read_bytes, paths)`.
METHODS = {"read_text", "read_bytes"}
# Calls that check a file, or a folder, before it is opened.
CHECKS = {
    *("Sealed", "Recorded", "read_hashed", "check_files", "check_model_files", "checked_manifest"),
    "read_step",
}

OTHERS = {
    "files of the user, which no command wrote": """
        arguments/flags.py:_yaml_settings integrations/transformers_flags.py:arguments_of_json
        media/images.py:open_image media/sounds.py:open_sound
        words/class_names.py:read_class_names checks/other_formats.py:_start
        data/sources/binary_files.py:read_parquet data/sources/binary_files.py:read_parquet.read
        data/sources/binary_files.py:_opened_sheet
        data/sources/text_files.py:opened_text data/sources/text_files.py:_undecodable_byte
        data/sources/text_files.py:_quoting_of_tsv data/sources/binary_files.py:_merged_rows
        data/sources/readers.py:_notes_on_controls data/sources/readers.py:stated_encoding
        integrations/pipeline_answers.py:_picture data/sources/data_sets.py:_configuration
        media/mask_folders.py:_has_boxes media/mask_folders.py:_is_of_labelme
        media/mask_folders.py:_listed checks/hidden_cells.py:_parts
        checks/other_formats.py:_is_workbook checks/other_formats.py:_is_of_webdataset
        data/sources/text_files.py:_order_of_utf16""",
    "a model: `check_saved_model` and `check_model_files` have checked the folder of a run, and "
    "`checked_manifest` that of an artifact": """
        decision.py:Contract.read tasks/task.py:Task._has_new_head
        models/mean_pooling.py:is_trained_through_mean
        media/image_tensors.py:saved_reader models/adapters.py:SavedAdapter.load_into
        models/adapters.py:read_adapter media/image_processor.py:load_image_processor
        models/minilm.py:default_model models/pretrained.py:load_config
        models/pretrained.py:WeightsSource.check_files
        models/pretrained.py:WeightsSource.weight_files
        models/pretrained.py:WeightsSource.check_dtypes
        media/sound_features.py:load_feature_extractor models/tokenizer.py:load_tokenizer
        models/tokenizer.py:_with_space_before_words words/tokenizer_units.py:reading_units_of_texts
        models/tokenizer.py:_trim_places export/certificate/equality.py:_stored_contract
        runs/predictor.py:Predictor.of_run export/source.py:load_source
        export/inference/compare_inference.py:SavedModel.load lab/yardstick/measure.py:_load_weights
        export/onnx_format.py:load export/torch_format.py:load
        export/certificate/measured.py:onnx_dtypes export/certificate/measured.py:openvino_dtypes
        export/certificate/measured.py:_torch_dtypes export/artifact.py:certificate_problem
        export/certificate/certificate_page.py:read_certificate export/export.py:write_artifact
        export/certificate/artifact_clients.py:Server.__call__
        export/certificate/artifact_clients.py:_module
        export/certificate/stored_weights.py:weight_failures
        export/certificate/stored_weights.py:_stored integrations/serving_back.py:_Served._processor
        models/tokenizer.py:saved_tokenization""",
    "predictions that answers are held against, so that changed ones show as a difference": """
        export/certificate/artifact_clients.py:served_artifact""",
    "a reader of a path, whose callers are in this test": """
        files.py:sync files.py:link files.py:describe_file text/json_io.py:read_json_object
        runs/predictions.py:read_predictions runs/predictions.py:read_rows
        runs/predictions.py:read_groups comparison/analysis/run_predictions.py:read_run_predictions
        comparison/analysis/run_predictions.py:_check_same_cases
        lab/audit/run_files.py:history_rows runs/history.py:read_history""",
    "predictions of a `RecordedRun`, whose files were checked when it was made": """
        comparison/analysis/compare_folders.py:_read_predictions
        comparison/analysis/compare_folders.py:_cases_without_complete_arms
        comparison/analysis/run_figures.py:curve
        export/inference/compare_inference.py:compare_inference
        export/inference/compare_inference.py:_texts
        lab/referee/sides.py:_read_runs""",
    "an audit, which says what was changed": """
        lab/audit/audit.py:audit_run lab/audit/audit.py:_read_outcomes
        lab/audit/audit.py:_load_model lab/audit/audit.py:_data_problem
        lab/audit/run_files.py:check_metrics lab/audit/run_files.py:check_card
        lab/audit/audit.py:own_loop_checks""",
    "a run that is still going on, or was killed: nothing has recorded its files": """
        comparison/execution/comparison_folder.py:run_ending
        comparison/execution/session.py:steps_in_history
        features/trackers.py:TrackerReporting._stored_ids runs/resume.py:_steps_of
        lab/cluster/node_worker.py:_News.texts lab/resume_check.py:_Training.run
        lab/resume_check.py:_Training.steps lab/resume_check.py:_history_differences
        runs/run_text.py:format_run""",
    "written by this very command": """
        comparison/execution/launch.py:_refuse_foreign
        comparison/execution/launch.py:call_in_subprocess
        comparison/execution/launch.py:write_subprocess_result
        export/certificate/measured.py:_peak
        export/certificate/measured.py:print_peak lab/cluster/parcels.py:_parts
        lab/cluster/shard_pool.py:ShardActor.predict export/onnx_format.py:float_nodes
        export/onnx_format.py:_write_half export/onnx_format.py:_write_blocks
        export/onnx_format.py:_check_int8 export/openvino_format.py:model_writer.write
        runs/history.py:History.verify runs/history.py:History._restore_lost
        runs/history.py:write_csv integrations/serving_back.py:_Served._adapters
        integrations/serving_back.py:_mask lab/accept/accept.py:run
        lab/accept/obligations.py:Done.record lab/accept/obligations.py:Done.weights
        lab/accept/obligations.py:_predicted lab/accept/reference.py:train_reference
        data/sources/arrow_rows.py:write_arrow""",
    "whether a file is this program's own, which its token or its content proves": """
        ownership.py:read_token ownership.py:lock_holder_pid ownership.py:_is_unfinished
        ownership.py:_locked_owner ownership.py:TemporaryFolder.__init__ ownership.py:is_torn_token
        ownership.py:_is_own_page ownership.py:_has_layout runs/manifest.py:_is_history""",
    "of a checkpoint that `verify` has checked, or a part with a hash of its own": """
        engine/checkpoints/store.py:verified_history
        runs/checkpoint_content.py:restore
        runs/checkpoint_content.py:restore_training
        runs/checkpoint_content.py:read_saved_state runs/checkpoint_content.py:_header""",
    "the function that compares a file with its hash": "files.py:read_hashed",
    "its values have the hash that the first entry of the ledger states": """
        lab/referee/sides.py:read_case_table""",
    "the system, the installed package, or bytes in memory": """
        commands/installation.py:show_recipe comparison/execution/warm_process.py:_is_forkable
        comparison/execution/warm_process.py:run_program lab/doctor/places.py:SourceLine.text
        data/sources/built_in.py:docstrings engine/threads.py:_cores_of_control_group
        media/mask_tensors.py:PixelInputs.picture media/predicted_masks.py:_pictures
        media/predicted_masks.py:with_palette lab/cluster/canary.py:code_hash
        machine.py:cpu_model machine.py:status_bytes machine.py:_available_in_control_groups
        machine.py:_available_in_group integrations/environment.py:_cpu_features
        runs/prepared.py:configuration_of runs/prepared.py:_content
        text/terminal.py:discard_output media/checked_files.py:_shared""",
}


def called(call: ast.Call) -> str:
    name = call.func
    return name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")


def passes_on(node: ast.AST) -> bool:
    """Return whether a node is `Path.read_text` or `Path.read_bytes`."""
    is_method = isinstance(node, ast.Attribute) and node.attr in METHODS
    return is_method and isinstance(node.value, ast.Name) and node.value.id == "Path"


def opens(call: ast.Call) -> bool:
    """Return whether a call opens a file to read it."""
    if called(call) in READERS_OF_LOADERS and isinstance(call.func, ast.Attribute):
        return isinstance(call.func.value, ast.Name) and call.func.value.id in LOADERS
    modes = [each for each in call.args if isinstance(each, ast.Constant)]
    is_write = any(
        isinstance(m.value, str) and set(m.value) <= set("wxab+") and set(m.value) & set("wxa")
        for m in modes
    )
    return called(call) in OPENERS and not is_write


def unchecked(source: str, name: str) -> Iterator[str]:
    """Yield the functions of a module that open a file and do not check one."""

    def visit(node: ast.AST, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = (*place, child.name)
                calls = {called(each) for each in ast.walk(child) if isinstance(each, ast.Call)}
                if isinstance(child, ast.FunctionDef) and calls & CHECKS:
                    continue
            if (isinstance(child, ast.Call) and opens(child)) or passes_on(child):
                yield inner
            yield from visit(child, inner)

    for place in dict.fromkeys(visit(ast.parse(source), ())):
        yield f"{name}:{'.'.join(place)}"


@pytest.mark.add_ons
def test_no_other_function_opens_a_file():
    package = REPOSITORY / "ampft"
    paths = sorted(package.rglob("*.py"))
    assert len(paths) > 300
    found = {
        place
        for path in paths
        for place in unchecked(path.read_text("utf-8"), path.relative_to(package).as_posix())
    }
    known = [place for places in OTHERS.values() for place in places.split()]
    assert len(known) == len(set(known))
    assert found - set(known) == set(), "open it through ampft.files, or say why it need not be"
    assert set(known) - found == set(), "these open no file any more"


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("runs/finished.py", "check_files(self.folder"),
        ("runs/run_text.py", "check_files(folder"),
        ("comparison/execution/plan.py", "read_hashed(path"),
        ("comparison/report/report_files.py", "read_hashed(file"),
        ("comparison/execution/comparison_folder.py", "check_files(run"),
        ("lab/curve/learning_curve.py", "check_files(path"),
        ("lab/doctor/case.py", "read_step(saved)"),
        ("features/weights.py", "Sealed("),
        ("lab/cluster/parcels.py", "Recorded(file"),
    ],
)
def test_a_missing_check_is_found(name: str, removed: str):
    source = Path(REPOSITORY, "ampft", name).read_text("utf-8")
    assert removed in source
    call = removed.partition("(")[0]
    other = "read_json_object" if call == "read_hashed" else "print"
    changed = source.replace(f"{call}(", f"{other}(")
    assert set(unchecked(changed, name)) > set(unchecked(source, name))


@pytest.mark.parametrize(
    "expression",
    [
        "(folder / 'run.json').read_text()",
        "list(map(Path.read_bytes, folder.iterdir()))",
        "open(folder / 'a', mode='rb').read()",
        "numpy.load(folder / 'a')",
        "np.memmap(folder / 'a')",
        "pd.read_csv(folder / 'a')",
        "soundfile.read(folder / 'a')",
        "datasets.load_from_disk(folder)",
        "Tokenizer.from_file(str(folder / 'a'))",
        "shutil.copyfile(folder / 'a', 'b')",
        "runpy.run_path(str(folder / 'a'))",
    ],
)
def test_a_new_reader_is_found(expression):
    source = f"def peek(folder):\n    return {expression}\n"
    assert list(unchecked(source, "new.py")) == ["new.py:peek"]
    assert list(unchecked(f"check_files(folder)\n{source}", "new.py")) == ["new.py:peek"]
    for call in ("self.verify()", "state.history.verify()", "private.file('a')", "file('a')"):
        other = source.replace("    return", f"    {call}\n    return")
        assert list(unchecked(other, "new.py")) == ["new.py:peek"], call


def test_writing_is_no_reading():
    assert list(unchecked("def write(path):\n    path.open('wb')\n", "new.py")) == []
