"""Differences other than the precision are refused, or become a stamp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import NAMES, SEEDS, record_of, write_runs

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.analysis.loading import RecordedRun, group_runs
from ampft.comparison.analysis.stamps import all_stamps
from ampft.comparison.findings import PlanFacts
from ampft.comparison.remarks import remark, remark_texts
from ampft.errors import InputError
from ampft.runs.record import ResumePart

FEW = SEEDS[:3]
LIKE = record_of("bf16", 43)


def run_of(arm, seed, **changes):
    record = record_of(arm, seed, **{"metrics": {"split": "test"}, **changes})
    mode = "fp32" if arm == "placebo" else arm
    return RecordedRun(
        folder=Path(f"{arm}-seed{seed}"), record=record, mode=mode, name=mode, seed=seed
    )


def stamps(*, arm="bf16", seeds=(43,), **changes):
    """Return the stamps of fp32 and `arm` with three seeds; `changes` go into runs of `seeds`."""
    runs = [run_of("fp32", seed) for seed in FEW]
    for seed in FEW:
        changed = changes if seed in seeds else {}
        arguments = {**record_of(arm, seed).arguments, **changed.get("arguments", {})}
        runs.append(run_of(arm, seed, **{**changed, "arguments": arguments}))
    messages = remark_texts(all_stamps(group_runs(runs, baseline="fp32"), PlanFacts(planned=True)))
    assert messages[0] == "screening: 3 seeds are usually too few to establish equivalence"
    return messages[1:]


def test_like_for_like_has_no_stamp():
    assert stamps() == ()


def test_a_placebo_records_its_weights_before_the_perturbation():
    assert stamps(arm="placebo") == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": replace(LIKE.model, initial_weights_sha256="9" * 64)}, "initial weights"),
        (
            {"model": replace(LIKE.model, configuration={"hidden_act": "relu"})},
            "model configuration (hidden_act gelu in",
        ),
        ({"model": replace(LIKE.model, preprocessing={})}, "preprocessing (tokenizer.json "),
        ({"example_ids_sha256": "8" * 64}, "example ids per step"),
        ({"random_state_sha256": "7" * 64}, "dropout masks"),
        ({"steps": replace(LIKE.steps, effective_batch_size=32)}, "effective batch (16 in"),
        ({"steps": replace(LIKE.steps, micro_batches=4)}, "micro-batches (None in"),
        ({"steps": replace(LIKE.steps, total=61)}, "optimizer steps planned (60 in"),
        ({"topology": replace(LIKE.topology, cpu_threads=8)}, "CPU threads (2 in"),
        ({"topology": replace(LIKE.topology, num_processes=2)}, "processes (1 in"),
        ({"topology": replace(LIKE.topology, device="cuda")}, "device (cpu in"),
        ({"hardware": {"cpu": "another CPU", "gpus": []}}, "CPU (a CPU in"),
        ({"hardware": {"cpu": "a CPU", "gpus": ["a GPU"]}}, "GPUs ([] in"),
        ({"versions": {**LIKE.versions, "torch": "2.12.0"}}, "version of torch (2.13.0 in"),
        ({"arguments": {"learning_rate": 1e-4}}, "--learning_rate (5e-05 in"),
    ],
)
def test_one_difference_is_stamped(changes, words):
    messages = stamps(**changes)
    assert len(messages) == 1
    assert messages[0].startswith(f"not like for like: {words}")
    assert "fp32-seed43" in messages[0]
    assert "in bf16-seed43)" in messages[0]


def stamps_on_a_gpu(arm, *, state="7" * 64, compute="bfloat16"):
    """Return the stamps of two runs on a GPU that recorded other states of the generators."""
    on_gpu = {"topology": replace(LIKE.topology, device="cuda")}
    precision = replace(LIKE.precision, resolved={**LIKE.precision.resolved})
    precision.resolved.update(storage_dtype="float32", compute_dtype=compute)
    in_fp32 = replace(precision, resolved={**precision.resolved, "compute_dtype": "float32"})
    baseline_state = None if state is None else "6" * 64
    runs = [
        run_of("fp32", 43, random_state_sha256=baseline_state, precision=in_fp32, **on_gpu),
        run_of(arm, 43, random_state_sha256=state, precision=precision, **on_gpu),
    ]
    groups = group_runs(runs, baseline="fp32")
    return [s for s in remark_texts(all_stamps(groups, PlanFacts(planned=True))) if "dropout" in s]


def test_dropout_masks_of_another_dtype_on_a_gpu_are_a_note():
    (note,) = stamps_on_a_gpu("bf16")
    assert note.startswith("dropout masks: bf16 may have used other masks than fp32 with the same")
    assert "error bars over seeds" in note


def test_equal_states_prove_nothing_about_another_dtype_on_a_gpu():
    assert stamps_on_a_gpu("bf16", state="6" * 64) == stamps_on_a_gpu("bf16")


def test_dropout_masks_of_the_same_dtypes_on_a_gpu_must_be_equal():
    (stamp,) = stamps_on_a_gpu("tf32", compute="float32")
    assert stamp.startswith("not like for like: dropout masks")


def test_a_model_without_dropout_has_no_note_on_a_gpu():
    assert stamps_on_a_gpu("bf16", state=None) == []


def test_a_difference_in_all_runs_is_stamped_once():
    steps = replace(LIKE.steps, effective_batch_size=32)
    assert stamps(seeds=FEW, steps=steps) == (
        "not like for like: effective batch (16 in fp32-seed42, 32 in bf16-seed42; 2 more runs "
        "differ)",
    )


@pytest.mark.parametrize(
    "name", ["output_dir", "mixed_precision", "evaluate_fp32", "report_to", "train_file"]
)
def test_settings_that_change_no_result_are_not_stamped(name):
    assert stamps(arguments={name: "something else"}) == ()


def test_a_flag_that_one_version_lacks_is_not_stamped():
    assert stamps(arguments={"new_flag": 1}) == ()


def test_native_and_emulated_runs_of_one_mode_are_stamped():
    precision = replace(LIKE.precision, resolved={"mode": "bf16", "execution": "emulated"})
    messages = stamps(precision=precision)
    assert messages == ("not like for like: bf16 was native in some runs and emulated in others",)


def test_ids_of_a_diverged_run_are_not_compared():
    assert stamps(status="diverged", example_ids_sha256="7" * 64) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": replace(LIKE.data, fingerprints={"train": "ab" * 32, "test": "00" * 32})},
            "data fingerprints: test cdcd.* and test 0000",
        ),
        ({"label_names": ("no", "yes", "perhaps")}, "class names: maybe and perhaps"),
        ({"model": replace(LIKE.model, parameters=999)}, "model: .*1000.* and .*999"),
        (
            {"model": replace(LIKE.model, name="large", initial_weights_sha256="5" * 64)},
            "model: tiny and large",
        ),
        ({"metrics": {"split": "validation"}}, "reported split: test and validation"),
    ],
)
def test_other_data_or_models_are_refused(changes, message):
    with pytest.raises(
        InputError,
        match=f"fp32-seed4.*bf16-seed43 cannot be compared because they differ in {message}",
    ):
        stamps(**changes)


def test_the_same_model_under_another_name_is_accepted():
    assert stamps(model=replace(LIKE.model, name="copy/of/tiny")) == ()


def test_micro_batches_of_a_diverged_run_are_not_compared():
    assert stamps(status="diverged", steps=replace(LIKE.steps, micro_batches=4)) == ()


def test_another_pretrained_model_at_one_seed_of_all_arms_is_stamped():
    runs = []
    for arm in ("fp32", "bf16"):
        for seed in FEW:
            name = "large" if seed == 43 else "tiny"
            runs.append(run_of(arm, seed, model=replace(record_of(arm, seed).model, name=name)))
    messages = remark_texts(all_stamps(group_runs(runs, baseline="fp32"), PlanFacts(planned=True)))
    assert messages[1:] == (
        "not like for like: pretrained model (tiny in fp32-seed42, large in fp32-seed43)",
    )


def test_values_are_inert_in_messages():
    with pytest.raises(InputError, match=r"maybe and \\u202e\\x1b"):
        stamps(label_names=(*NAMES[:2], "\u202e\x1b[31m"))


def test_a_selected_split_is_stamped():
    messages = stamps(metrics={"split": "test", "selected": True})
    assert messages == (
        "selected: the metrics come from test, on which the best epoch was also chosen; expect "
        "worse results on new data",
    )


@pytest.mark.slow
def test_facts_of_the_plan_are_stamped(tmp_path):
    runs = write_runs(tmp_path, {"fp32": [range(5)] * 5, "bf16": [range(5)] * 5})
    plan = PlanFacts(
        seed_counts=(5, 10),
        remarks=(remark("reduced", flag="num_train_epochs", before=3, after=1),),
        added_after_analysis=True,
        overhead_share=0.01,
        yardstick={"overall": 0.004},
    )
    comparison = compare_folders(runs, plan=plan)
    first, second, *_ = remark_texts(comparison.stamps)
    assert first == "--num_train_epochs reduced from 3 to 1 to fit the budget."
    assert second.startswith("unplanned seeds were added after results")
    assert (comparison.seed_counts, comparison.alpha) == ((5, 10), 0.025)
    difference = comparison.arm("bf16").difference
    assert difference is not None
    assert (difference.level95, difference.level90) == (0.975, 0.95)
    assert (comparison.overhead_share, comparison.yardstick) == (0.01, {"overall": 0.004})


def test_a_resume_on_another_topology_is_stamped():
    same = ResumePart(checkpoint="step-4", step=4, epoch=1, resumed="now")
    assert stamps(resumes=(same,)) == ()
    changed = replace(same, topology={"processes": (1, 2)})
    assert stamps(resumes=(same, changed)) == (
        "changed during a run: bf16 with seed 43 was resumed under other conditions (processes 1, "
        "then 2); the examples are the same, but not the rounding",
    )
