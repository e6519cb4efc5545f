"""The command line of a comparison: its settings, and after `--` those of its runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ampft.comparison.settings import parse_compare_arguments
from ampft.errors import InputError

REPOSITORY = Path(__file__).parents[2]


def test_the_default_is_a_comparison_on_the_standard_library():
    command = parse_compare_arguments([])
    assert command.design.modes is None
    assert command.design.seed_counts == (5,)
    design = command.design
    assert (design.metric, design.margin, design.placebo) == (None, 0.01, True)
    assert command.classify.dataset_name == "stdlib"
    assert command.classify.num_train_epochs == 5
    assert command.classify_argv == ()


def test_settings_after_the_dashes_are_for_the_runs():
    flags = ["--modes", "BF16, no", "--seeds", "5,10", "--margin", "0.5", "--no_placebo"]
    command = parse_compare_arguments([*flags, "--", "--train_file", "a.csv", "--seed", "7"])
    assert command.design.modes == ("fp32", "bf16")
    assert command.design.seed_counts == (5, 10)
    assert command.design.margin == pytest.approx(0.005)
    assert not command.design.placebo
    assert command.classify_argv == ("--train_file", "a.csv", "--seed", "7")
    assert (command.classify.train_file, command.classify.seed) == ("a.csv", 7)
    assert command.notes == ()


def test_a_missing_baseline_is_added_with_a_note():
    command = parse_compare_arguments(["--modes", "fp16,bf16"])
    assert command.design.modes == ("fp32", "fp16", "bf16")
    assert command.notes == ("fp32 was added as the baseline.",)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15min", 900), ("2h", 7200), ("1h30min", 5400), ("1H 1min 1s", 3661)],
)
def test_a_budget_has_units(text, seconds):
    assert parse_compare_arguments(["--budget", text]).design.budget == seconds


@pytest.mark.parametrize("text", ["15", "0s", "15 m", "1.5h", "-1h", "min", "30min1h", "٣s"])
def test_a_budget_without_a_unit_is_refused(text):
    with pytest.raises(InputError, match=r"--budget: received .*2h, 15min, 90s or 1h30min"):
        parse_compare_arguments([f"--budget={text}"])


REFUSED = {
    "two seeds": (["--seeds", "2"], "--seeds: received '2'; it must be at least 3"),
    "decreasing seeds": (["--seeds", "10,5"], "--seeds: received '10,5'.*increasing"),
    "seeds that are not a number": (["--seeds", "five"], "--seeds: received 'five'"),
    "too large a seed": (["--", "--seed", "4294967295"], "--seed 4294967295: 5 seeds"),
    "no such mode": (["--modes", "fp32,bf61"], "'bf61' is not a precision. Did you mean 'bf16'"),
    "a mode twice": (["--modes", "bf16,bf16"], "bf16 appears twice"),
    "only the baseline": (["--modes", "fp32"], "give a precision to compare with fp32"),
    "no margin": (["--margin", "0"], "--margin: received 0.0; it must be above 0"),
    "a margin that is not a number": (["--margin", "nan"], "--margin: received nan"),
    "another metric": (["--metric", "f1"], "--metric: received 'f1'"),
    "no config "
    "file": (["--config_file", "absent.yaml"], "--config_file absent.yaml: the file does"),
    "a setting before the dashes": (
        ["--learning_rate", "1"], "--learning_rate is a setting of classify.py and belongs after",
    ),
    "a precision before the dashes": (
        ["--mixed_precision", "bf16"], "--mixed_precision is a setting of classify.py: give the "
        "precisions before ` -- `, as in --modes",
    ),
    "a precision": (["--", "--mixed_precision", "bf16"], "--mixed_precision bf16.*--modes fp32"),
    "a folder": (["--", "--output_dir", "x"], "Write: compare_precision.py --output_dir x --"),
    "a check that fp32 refuses": (
        ["--", "--check_precision"], "--check_precision after .*: fp32 has nothing to .*--yardstick"
    ),
    "overwriting": (["--", "--overwrite_output_dir"], "--overwrite_output_dir after"),
    "a perturbation": (["--", "--perturb_initial_weights"], "the placebo arm does this"),
    "an unknown setting of the runs": (["--", "--learning_rat", "1"], "--learning_rat.*learning_r"),
    "a bad setting of the runs": (["--", "--num_train_epochs", "0"], "--num_train_epochs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    words, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        parse_compare_arguments(words)


def test_a_file_of_settings_cannot_name_the_folder_either(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("output_dir: elsewhere\n")
    with pytest.raises(InputError, match="--output_dir elsewhere after"):
        parse_compare_arguments(["--", "--config", str(config)])


@pytest.mark.slow
def test_comparing_imports_no_torch():
    modules = "comparison_folder, launch, plan, planning, session"
    script = f"""
import sys
import ampft
from ampft.comparison.execution import {modules}
ampft.parse_compare_arguments, ampft.plan_comparison, ampft.open_comparison
print(sorted({{'torch', 'transformers', 'accelerate', 'datasets'}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
