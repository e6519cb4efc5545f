"""`ampft compare` with one run or one table per arm: verdicts on these models only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import test_compare_multi_label
import test_compare_pixels
from run_folders import NAMES, SEEDS, labels, predicted, write_outcomes, write_run
from test_foreign_predictions import write_table

from ampft import cli
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.answer import answer_text
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import read_comparison
from ampft.comparison.report.sections import method_paragraphs
from ampft.comparison.verdict_text import verdict_texts
from ampft.data.splits import group_equal_keys
from ampft.integrations.foreign_predictions import compare_tables

N = 600
ERRORS = range(60)
# Every third example is of class "yes"; 66 of them are lost.
LOSS = [*ERRORS, *range(61, 259, 3)]
SCOPE = "This holds for these two models on examples like these, and says nothing about "


def table(path: Path, wrong, *, share: float | None = None, group: int | None = None) -> str:
    """Write a table of predictions, and return its name."""
    rows: list[dict[str, object]] = []
    for index, (label, guess) in enumerate(zip(labels(N), predicted(wrong, N), strict=True)):
        row: dict[str, object] = {"id": index, "label": NAMES[label], "prediction": NAMES[guess]}
        if share is not None:
            rest = (1 - share) / 2
            row |= {f"probability_{name}": share if i == guess else rest
                    for i, name in enumerate(NAMES)}  # fmt: skip
        if group is not None:
            row["group"] = index // group
        rows.append(row)
    return str(write_table(path, rows))


@pytest.fixture
def tables(tmp_path):
    """Return tables of a model, of one that loses a class, and of one that changes nothing."""
    wrong = {"old": ERRORS, "lost": LOSS, "same": range(1, 61)}
    return {name: table(tmp_path / f"{name}.csv", some) for name, some in wrong.items()}


def test_the_interval_is_that_of_paired_examples(tables):
    comparison = compare_tables([f"old={tables['old']}", f"lost={tables['lost']}"])
    arm = comparison.arm("lost")
    gains = (predicted(LOSS, N) == labels(N)) * 1.0 - (predicted(ERRORS, N) == labels(N))
    assert arm.difference is not None
    assert arm.difference.estimate == pytest.approx(gains.mean())
    assert arm.difference.seed_variance is None
    assert arm.difference.jackknife_variance == pytest.approx(gains.var(ddof=1) / N)
    low, high = arm.difference.interval95
    assert low < gains.mean() < high < 0


def test_a_planted_loss_is_found_and_attributed_to_its_class(tables):
    comparison = compare_tables([f"old={tables['old']}", f"lost={tables['lost']}"])
    arm = comparison.arm("lost")
    assert arm.outcome == "worse"
    yes = {each.name: each for each in arm.classes}["yes"].difference
    assert yes is not None
    assert yes.p_difference_holm is not None
    assert yes.p_difference_holm < 0.001
    assert yes.interval[1] < 0
    assert arm.flips is not None
    assert (arm.flips.gained, arm.flips.lost, arm.flips.both_correct) == (0, 66, N - len(LOSS))
    assert arm.flips.mcnemar_mid_p[0] < 0.001
    assert answer_text(comparison) == (
        f"lost is worse than old in accuracy. lost is right in 0 of {N} examples where old is "
        "wrong, and wrong in 66 where old is right. Beyond chance, lost is worse in class 'yes' "
        f"(F1 −21.7 points), class 'maybe' (F1 −12.7 points). {SCOPE}training "
        "them again."
    )


@pytest.mark.slow
def test_equal_models_are_not_called_different(tables):
    sources = [f"old={tables['old']}", f"same={tables['same']}"]
    arm = compare_tables(sources).arm("same")
    assert arm.difference is not None
    assert arm.difference.estimate == 0
    assert arm.outcome != "worse"
    assert [c.difference.p_difference_holm == 1 for c in arm.classes if c.difference] == [True] * 3
    comparison = compare_tables(sources, margin=0.03)
    assert comparison.arm("same").outcome == "equivalent"
    assert answer_text(comparison).startswith("same is equivalent to old in accuracy. same is")


@pytest.mark.slow
def test_equal_models_are_rarely_called_different_by_chance(tmp_path):
    rng = np.random.default_rng(0)
    draws, found = 20, 0
    for _ in range(draws):
        wrong = [np.flatnonzero(rng.random(N) < 0.1) for _ in range(2)]
        sources = [
            f"{n}={table(tmp_path / f'{n}.csv', w)}" for n, w in zip("ab", wrong, strict=True)
        ]
        found += compare_tables(sources).arm("b").outcome in ("worse", "better")
    assert found <= 4  # of 20 at 5 %; more have a probability of 0.3 %


def test_a_copied_table_is_pointed_out(tables):
    comparison = compare_tables([f"old={tables['old']}", f"new={tables['old']}"])
    assert any(text.startswith("identical predictions: old, new predict exactly the same")
               for text in remark_texts(comparison.stamps))  # fmt: skip


@pytest.mark.slow
def test_groups_are_the_cases(tmp_path):
    sources = [
        f"{name}={table(tmp_path / f'{name}.csv', wrong, group=3)}"
        for name, wrong in (("old", ERRORS), ("lost", LOSS))
    ]
    comparison = compare_tables(sources)
    difference = comparison.arm("lost").difference
    assert difference is not None
    assert (comparison.groups, difference.cases) == (N // 3, N // 3)


@pytest.mark.slow
def test_probabilities_add_log_loss_and_brier(tmp_path):
    paths = {
        name: table(tmp_path / f"{name}.csv", wrong, share=share)
        for name, wrong, share in (("old", ERRORS, 0.8), ("new", ERRORS, 0.5))
    }
    sources = [f"{name}={path}" for name, path in paths.items()]
    for metric in ("log_loss", "brier"):
        arm = compare_tables(sources, metric=metric).arm("new")
        assert {"log_loss", "brier"} <= set(arm.metrics)
        assert arm.outcome == "worse"


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, 3])
def test_runs_and_tables_agree(tmp_path, tables, groups):
    made = (
        None
        if groups is None
        else group_equal_keys((str(i // groups) for i in range(N)), column="group")
    )
    runs = [
        write_run(tmp_path / "runs", mode, 42, predicted(wrong, N), truth=labels(N), groups=made)
        for mode, wrong in (("fp32", ERRORS), ("bf16", LOSS))
    ]
    sources = [
        f"{name}={table(tmp_path / f'{name}.csv', wrong, group=groups)}"
        for name, wrong in (("fp32", ERRORS), ("bf16", LOSS))
    ]
    of_runs, of_tables = compare_folders(runs), compare_tables(sources)
    assert of_runs.arm("bf16").difference == of_tables.arm("bf16").difference
    one, other = (
        sorted(c.arm("bf16").classes, key=attrgetter("name")) for c in (of_runs, of_tables)
    )
    assert one == other
    assert answer_text(of_runs).startswith("bf16 is worse than fp32 in accuracy. bf16 is right in")
    assert SCOPE in answer_text(of_runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "outcomes"),
    [
        ("pixels", [test_compare_pixels.outcome(seed) for seed in (1, 2)]),
        ("multi-label", [test_compare_multi_label.outcome(seed, 0.1) for seed in (1, 2)]),
    ],
    ids=["pixels", "multi-label"],
)
def test_other_tasks_have_an_interval_and_classes(tmp_path, task, outcomes):
    both = dict(zip(("fp32", "bf16"), outcomes, strict=True))
    every_seed = {arm: [outcome] * len(SEEDS) for arm, outcome in both.items()}
    write_outcomes(tmp_path, every_seed, task=task)
    comparison = compare_folders([tmp_path / f"{arm}-{SEEDS[0]}" for arm in both])
    arm = comparison.arm("bf16")
    assert arm.difference is not None
    assert arm.difference.cases == len(outcomes[0])
    assert all(each.difference is not None for each in arm.classes)
    assert "one model each" in " ".join(verdict_texts(comparison))


def test_a_model_that_learned_nothing_is_worse_and_not_without_an_answer(tmp_path):
    """With one finished model per arm, nothing is said about trainings that could fail."""
    right = write_run(tmp_path, "fp32", 42, predicted(range(20)))
    wrong = predicted(range(20, 150))
    lost = write_run(tmp_path, "bf16", 42, wrong, warnings={"constant": "It learned nothing."})
    comparison = compare_folders([right, lost])
    assert comparison.arm("bf16").outcome == "worse"
    assert "learned nothing" in " ".join(remark_texts(comparison.stamps))


def test_the_method_and_the_page_say_which_models_are_meant(tables):
    comparison = compare_tables([f"old={tables['old']}", f"same={tables['same']}"], margin=0.03)
    method = " ".join(method_paragraphs(comparison))
    assert "for these two models only" in method
    assert "Examples are the only source of uncertainty" in method
    assert "one model per arm" in method
    page = html_text(comparison)
    assert f"{SCOPE}training them again." in " ".join(page.split())
    assert "McNemar's table" in page.replace("&#39;", "'")
    for words in ("seed 0", "over the seeds", "with the same seed", "1 seed"):
        assert words not in page


@pytest.mark.slow
def test_the_command_answers(tmp_path, tables):
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "ampft.cli", "compare", "--predictions", f"old={tables['old']}",
         f"lost={tables['lost']}", "--output_dir", str(out)],
        cwd=Path(__file__).parents[2], env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    printed = " ".join(done.stdout.split())
    assert "one model each): worse beyond the margin of 1 point." in printed
    assert f"{SCOPE}training them again." in printed
    written = read_comparison(out)
    sources = [f"old={tables['old']}", f"lost={tables['lost']}"]
    assert written == compare_tables(sources)
    assert json.loads((out / "comparison.json").read_text())["kind"] == "predictions"


def other_id(text: str) -> str:
    return text.replace("\n5,", "\nfive,")


def other_label(text: str) -> str:
    return text.replace("\n5,maybe,", "\n5,no,")


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (["old={old}", "new={lost}"], other_id, "it lacks 1 id: '5'"),
        (["old={old}", "new={lost}"], other_label, "the labels of 1 id are not those in"),
        (["old:1={old}", "old:2={old}", "new:1={lost}", "new:2={lost}"], str,
         "received 2 seeds per arm, but error bars over trainings need at least 3. Add trainings "
         "with other seeds, or give one table per arm to compare these models only."),
        (["old={old}", "old={same}", "new={lost}"], str, "a table without a seed stands for one"),
        (["old={old}", "new:1={lost}"], str, "each of the 2 tables must be named ARM=FILE"),
        (["old:1={old}", "new:1={lost}", "new:2={same}"], str, "old has no rows with seed 2"),
        (["old={old}"], str, "the only arm is old"),
        (["old={old}", "new=missing.csv"], str, "missing.csv"),
    ],
)  # fmt: skip
def test_what_cannot_be_paired_is_refused(tmp_path, capsys, tables, names, change, message):
    path = Path(tables["lost"])
    path.write_text(change(path.read_text()))
    sources = [name.format(**tables) for name in names]
    folder = tmp_path / "out"
    assert cli.main(["compare", "--output_dir", str(folder), "--predictions", *sources]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not folder.exists()


def test_runs_with_other_labels_are_refused(tmp_path, capsys):
    other = labels(N).copy()
    other[9] = 1
    runs = [
        write_run(tmp_path, "fp32", 42, predicted((), N), truth=labels(N)),
        write_run(tmp_path, "bf16", 42, predicted((), N), truth=other),
    ]
    assert cli.main(["compare", *map(str, runs)]) == 2
    assert "have different labels" in capsys.readouterr().err


def test_the_answer_says_what_changed_for_whom(tmp_path):
    """Classes by F1, lengths and words of texts, in both directions; nothing of it by chance."""

    def written(name, wrong):
        rows = [
            {"id": i, "label": NAMES[label], "prediction": NAMES[guess],
             "text": " ".join(["urgent"] * (i % 5 == 0) + ["word"] * (3 + 9 * (i >= 300)))}
            for i, (label, guess) in enumerate(zip(labels(N), predicted(wrong, N), strict=True))
        ]  # fmt: skip
        for row in rows:
            row["text"] += f" x{row['id']}"
        return f"{name}={write_table(tmp_path / f'{name}.csv', rows)}"

    some = {i for i in range(N) if i % 7 == 3}
    urgent = {i for i in range(0, N, 5) if i % 4}
    lengths = {i for i in range(300) if i % 3}
    old = written("old", some)
    worse, better = (
        compare_tables([old, written("new", some | urgent)]),
        compare_tables([written("bad", some | urgent), written("good", some)]),
    )
    assert "Beyond chance, new is worse in " in answer_text(worse)
    assert "texts with 'urgent' (−" in answer_text(worse)
    assert "Beyond chance, good is better in " in answer_text(better)
    assert "texts with 'urgent' (+" in answer_text(better)
    assert f"new is right in 0 of {N} examples where old is wrong" in answer_text(worse)
    other = compare_tables([old, f"new={tmp_path / 'new.csv'}"], metric="macro_f1")
    assert "texts with 'urgent' (share right −" in answer_text(other)
    short = answer_text(compare_tables([old, written("short", some | lengths)]))
    assert "texts of 4 to 5 words (−" in short
    equal = answer_text(compare_tables([old, written("equal", {i + 1 for i in some if i < N - 1})]))
    assert "No class, length or frequent word changed beyond chance." in equal
    assert "Beyond chance" not in equal


def test_classes_that_rise_and_fall_are_named(tables):
    """The loss of class "yes" is a gain the other way round."""
    fall = compare_tables([f"old={tables['old']}", f"lost={tables['lost']}"])
    rise = compare_tables([f"old={tables['lost']}", f"new={tables['old']}"])
    assert "F1 falls beyond chance in class 'yes'" in " ".join(verdict_texts(fall))
    assert "F1 rises beyond chance in class 'yes'" in " ".join(verdict_texts(rise))
    assert "worse in class 'yes' (F1 −" in answer_text(fall)
    assert "better in class 'yes' (F1 +" in answer_text(rise)
