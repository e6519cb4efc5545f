"""A small comparison as users run it: interrupted, continued, repaired, refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from running import REPOSITORY, call, call_here, clean_environment, succeeded, text_settings

import ampft

COMPARE = "recipes/compare_precision.py"
PLANNED = [
    *("fp32-seed5", "placebo-seed5", "bf16-seed5"),
    *("placebo-seed6", "bf16-seed6", "fp32-seed6"),
    *("bf16-seed7", "fp32-seed7", "placebo-seed7"),
]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Compared:
    """A comparison that was interrupted in its second run and continued.

    Attributes:
        words: Command line of both processes.
        folder: Folder of the comparison.
        interrupted: Exit code and standard error of the first process.
        left: Status of each run whose folder the first process left.
        written: Modification times of the first run's record before and after the second process.
        stdout: Standard output of the second process.
        stderr: Standard error of the second process.
    """

    words: list[str]
    folder: Path
    interrupted: tuple[int, str]
    left: dict[str, str]
    written: tuple[float, float]
    stdout: str
    stderr: str

    def read(self, name: str):
        return json.loads((self.folder / name).read_text())


def settings(files: Path, model: Path) -> list[str]:
    """Return the settings of the runs, with enough steps to interrupt one."""
    words = text_settings(files, model, Path("unused"))
    place = words.index("--output_dir")
    del words[place : place + 2]
    return [*words, "--seed", "5", "--num_train_epochs", "4"]


def losses(folder: Path, name: str) -> list[float]:
    lines = (folder / "runs" / name / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def statuses(folder: Path) -> dict[str, str]:
    records = sorted(folder.glob("runs/*/run.json"))
    return {path.parent.name: json.loads(path.read_text())["status"] for path in records}


@pytest.fixture(scope="module")
def compared(files, tiny_model, tmp_path_factory) -> Compared:
    folder = tmp_path_factory.mktemp("comparisons") / "cmp"
    words = [sys.executable, COMPARE, "--modes", "bf16", "--seeds", "3", "--yardstick", "--anyway"]
    words += ["--output_dir", str(folder), "--", *settings(files, tiny_model)]
    process = subprocess.Popen(
        words, cwd=REPOSITORY, env=clean_environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    second = folder / "runs" / PLANNED[1] / "history.jsonl"
    for _ in range(3000):  # on a busy machine
        if process.poll() is not None or (second.exists() and second.read_text().count("\n") > 2):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    left, first = statuses(folder), folder / "runs" / PLANNED[0] / "run.json"
    before = first.stat().st_mtime
    done = succeeded(call(*words, timeout=600, warm=False))
    written = before, first.stat().st_mtime
    return Compared(
        words, folder, (process.returncode, stderr), left, written, done.stdout, done.stderr
    )


def complete(compared: Compared) -> list[str]:
    """Runs that were complete when the command was interrupted."""
    return [name for name, status in compared.left.items() if status == "finished"]


def test_ctrl_c_ends_the_run_and_explains_how_to_continue(compared):
    code, stderr = compared.interrupted
    assert code == 130
    assert "Traceback" not in stderr
    (message,) = [line for line in stderr.splitlines() if line]
    finished = complete(compared)
    begun = f"interrupted: {len(finished)} of 9 runs are complete. Repeat the command with"
    assert message.startswith(begun)
    assert finished == PLANNED[: len(finished)]
    # On a busy machine, the second run may end before the signal reaches it.
    assert 1 <= len(finished) <= 2
    assert set(compared.left.values()) <= {"finished", "preempted"}
    assert len(compared.left) <= len(finished) + 1


def test_the_same_command_continues_with_the_missing_runs(compared):
    assert compared.written[0] == compared.written[1]
    assert "fp32 was added" in compared.stdout
    assert "9 runs, one at a time, arms interleaved" in compared.stdout
    assert f"interleaved; {len(complete(compared))} already done" in compared.stdout
    runs = [line for line in compared.stdout.splitlines() if line.startswith("run ")]
    assert len(runs) == 9 - len(complete(compared))
    done = len(complete(compared))
    name = PLANNED[done].replace("-seed", " seed ")
    assert runs[0].startswith(f"run {done + 1}/9 {name}: accuracy ")
    assert "left" not in runs[-1]
    assert statuses(compared.folder) == dict.fromkeys(PLANNED, "finished")


def test_runs_finish_one_after_the_other_in_the_planned_order(compared):
    logs = [compared.folder / "logs" / f"{name}.log" for name in PLANNED]
    ended = [log.stat().st_mtime for log in logs]
    assert ended == sorted(ended)


def test_arms_differ_only_where_they_should(compared):
    records = {name: compared.read(f"runs/{name}/run.json") for name in PLANNED}
    for seed in (5, 6, 7):
        fp32, placebo, bf16 = (records[f"{a}-seed{seed}"] for a in ("fp32", "placebo", "bf16"))
        assert len({r["model"]["initial_weights_sha256"] for r in (fp32, placebo, bf16)}) == 1
        assert [r["model"]["perturbed"] for r in (fp32, placebo, bf16)] == [False, True, False]
        assert losses(compared.folder, f"fp32-seed{seed}") != losses(
            compared.folder, f"placebo-seed{seed}"
        )
        assert len({r["example_ids_sha256"] for r in (fp32, placebo, bf16)}) == 1
        assert [r["precision"]["requested"] for r in (fp32, placebo, bf16)] == [
            "fp32", "fp32", "bf16",
        ]  # fmt: skip
        assert {r["arguments"]["seed"] for r in (fp32, placebo, bf16)} == {seed}


def test_the_comparison_is_written_and_printed(compared):
    names = {"comparison.html", "comparison.md", "comparison.json", "plan.json", "yardstick.json"}
    assert names <= {path.name for path in compared.folder.iterdir()}
    comparison = compared.read("comparison.json")
    assert [arm["name"] for arm in comparison["arms"]] == ["fp32", "placebo", "bf16"]
    assert comparison["seeds"] == [5, 6, 7]
    assert comparison["yardstick"] is not None
    assert comparison["sentences"]["verdicts"][0].split()[0] in compared.stdout
    assert "overhead   the comparison added" in compared.stdout
    assert compared.stderr == ""


def test_the_plan_records_its_progress(compared):
    plan = compared.read("plan.json")
    design = plan["design"]
    assert design["modes"] == ["fp32", "bf16"]
    assert (design["first_seed"], design["seed_counts"], plan["seeds_analysed"]) == (5, [3], [3])
    assert plan["added_after_analysis"] is False
    runs = [compared.read(f"runs/{name}/run.json") for name in PLANNED]
    assert plan["runs_seconds"] > sum(record["timings"]["total_seconds"] for record in runs)
    assert plan["own_seconds"] > 0
    assert plan["arguments"]["num_train_epochs"] == 4


def test_the_same_comparison_from_python_has_nothing_left_to_run(
    compared, tmp_path, capsys, fresh_accelerate
):
    folder = shutil.copytree(compared.folder, tmp_path / "cmp")
    words = compared.words[compared.words.index("--") + 1 :]
    settings = {
        word.removeprefix("--"): following if not following.startswith("--") else True
        for word, following in pairwise([*words, "--"])
        if word.startswith("--")
    }
    result = ampft.compare(modes=["bf16"], seeds=3, yardstick=True, output_dir=folder, **settings)
    written = json.loads((compared.folder / "comparison.json").read_text())
    assert [arm.name for arm in result.comparison.arms] == [arm["name"] for arm in written["arms"]]
    assert result.folder == folder
    assert repr(result) in compared.stdout
    assert repr(result) in capsys.readouterr().out
    assert all(part in result._repr_html_() for part in ("<table", "bf16", "<p>"))
    plan = json.loads((folder / "plan.json").read_text())
    assert 0 < plan["own_seconds"] - compared.read("plan.json")["own_seconds"] < 60


@pytest.mark.full
def test_a_lost_run_is_repeated(compared):
    shutil.rmtree(compared.folder / "runs" / PLANNED[4])
    before = (compared.folder / "comparison.json").read_text()
    done = succeeded(call_here(*compared.words[1:]))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("run ")]
    assert line.startswith("run 5/9 bf16 seed 6: accuracy ")
    assert compared.read("plan.json")["seeds_analysed"] == [3]
    after = json.loads((compared.folder / "comparison.json").read_text())
    assert after["sentences"]["verdicts"]
    # The same seed gives the same weights, so the repeated run has the same metrics.
    assert after["arms"][2]["metrics"] == json.loads(before)["arms"][2]["metrics"]


def test_another_plan_in_the_same_folder_is_refused(compared):
    done = call_here(*compared.words[1:], "--learning_rate", "1e-3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "holds another comparison: --learning_rate was 0.008 and is now 0.001" in done.stderr


@pytest.mark.parametrize(
    ("own", "more", "message"),
    [
        (("--modes", "fp8"), (), "--mixed_precision fp8: not available on this device"),
        pytest.param(
            ("--budget", "9s", "--anyway"),
            ("--max_train_steps", "5"),
            "--budget: ",
            marks=pytest.mark.full,
        ),
    ],
)
def test_input_that_runs_would_refuse_is_refused_before_anything_is_written(
    files, tiny_model, tmp_path, own, more, message
):
    folder = tmp_path / "cmp"
    done = call_here(
        COMPARE, "--output_dir", folder, *own, "--",
        *settings(files, tiny_model), *more,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    assert not folder.exists()


@pytest.mark.full
def test_only_the_models_that_are_kept_stay(compared):
    words = list(compared.words)
    words[words.index("--") : words.index("--")] = ["--keep_models", "baseline"]
    names = {path.parent.name for path in compared.folder.glob("runs/*/model.safetensors")}
    assert names == set(PLANNED)
    succeeded(call(*words, timeout=600, warm=False))
    left = {path.parent.name for path in compared.folder.glob("runs/*/model.safetensors")}
    assert left == {name for name in PLANNED if name.startswith("fp32")}
    assert {path.parent.name for path in compared.folder.glob("runs/*/report.json")} == names
    assert (compared.folder / "comparison.html").is_file()
