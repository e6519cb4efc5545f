"""What seeds hide: three published claims on small data sets, with intervals.

Run: `python benchmarks/seeds.py --data DATA --tables FOLDER --out seeds.json`, with DATA holding
`sst2/train.tsv` and `dev.tsv`. Without `--data` and with all tables in FOLDER, it only computes.
Training stops before the next seed after `--cpu_minutes`; repeated, it continues.

All-MiniLM-L6-v2 is fine-tuned on the same `TRAIN_ROWS` sentences of SST-2 with other seeds (head,
order, dropout), in float32, and tested on the 872 sentences of its validation set:
- 3-epochs: the baseline;
- 20-epochs: Mosbach et al. (2021), "On the Stability of Fine-tuning BERT", and Zhang et al. (2021),
  "Revisiting Few-sample BERT Fine-tuning", find longer training better and more stable;
- uncorrected: 3 epochs with Adam without bias correction, as the first BERT code had it, which both
  find worse and less stable;
- best of N: Dodge et al. (2020), "Fine-Tuning Pretrained Language Models", report the best of many
  seeds. Chosen on one half of the test rows, it is tested on the other half.

Differences of means have the intervals and verdicts of `ampft compare`, over seeds and test rows.
Ratios of standard deviations over seeds have those of the F distribution. Those of
the best of N are over test rows, for these seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from few_labels import table
from provenance import provenance
from torch.optim import AdamW

TRAIN_ROWS, VALIDATION_ROWS = 128, 16
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-4,
    "weight_decay": 0.0,
    "warmup_ratio": 0.1,
    "max_seq_length": 64,
    "load_best_model_at_end": False,
    "cpu_threads": 1,
    "use_cpu": True,
}
ARMS: dict[str, dict[str, int]] = {
    "3-epochs": {"num_train_epochs": 3},
    "uncorrected": {"num_train_epochs": 3},
    "20-epochs": {"num_train_epochs": 20},
}
BASELINE, LONG, UNCORRECTED = "3-epochs", "20-epochs", "uncorrected"
HALVES, GROUPS = 400, 20
Correct = npt.NDArray[np.float64]


class UncorrectedAdamW(AdamW):
    """AdamW without bias correction: m / (sqrt(v) + eps), for a weight decay of 0.

    With c1 = 1 - beta1^t and c2 = 1 - beta2^t, AdamW's step is lr (m / c1) / (sqrt(v / c2) + eps).
    It is the uncorrected step for the rate lr c1 / sqrt(c2) and the epsilon eps / sqrt(c2).
    """

    def step(self, closure: Any = None) -> Any:
        """Make a step, whose learning rate and epsilon undo the correction."""
        before = [(group["lr"], group["eps"]) for group in self.param_groups]
        for group in self.param_groups:
            assert not group["weight_decay"]
            state = self.state.get(group["params"][0], {})
            number = int(state["step"]) + 1 if state else 1
            first, second = (1 - beta**number for beta in group["betas"])
            group["lr"] *= first / math.sqrt(second)
            group["eps"] /= math.sqrt(second)
        try:
            return super().step(closure)
        finally:
            for group, (rate, epsilon) in zip(self.param_groups, before, strict=True):
                group["lr"], group["eps"] = rate, epsilon


@contextlib.contextmanager
def without_correction(*, active: bool) -> Iterator[None]:
    """Let `--optim adamw_torch` make an `UncorrectedAdamW`, if `active`."""
    from ampft.engine.optimizer import OPTIMIZERS, OptimizerSettings, TrainedParameter

    row = OPTIMIZERS["adamw_torch"]

    def make(trained: list[TrainedParameter], settings: OptimizerSettings) -> AdamW:
        parameters = [entry.parameter for entry in trained]
        return UncorrectedAdamW(
            parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=0.0,
        )

    if active:
        OPTIMIZERS["adamw_torch"] = replace(row, make=make)
    try:
        yield
    finally:
        OPTIMIZERS["adamw_torch"] = row


def read_sentences(data: Path) -> dict[str, pd.DataFrame]:
    """Return training and validation sentences, drawn once with seed 0, and all test sentences."""
    frames = {}
    for split in ("train", "dev"):
        lines = (data / "sst2" / f"{split}.tsv").read_text("utf-8").splitlines()
        rows = [line.rsplit("\t", 1) for line in lines]
        frames[split] = pd.DataFrame(rows, columns=["text", "label"])
    train = frames["train"].sample(frac=1, random_state=0).reset_index(drop=True)
    return {
        "train": train[:TRAIN_ROWS],
        "validation": train[TRAIN_ROWS : TRAIN_ROWS + VALIDATION_ROWS],
        "test": frames["dev"],
    }


def trained(sentences: dict[str, pd.DataFrame], arm: str, seed: int) -> pd.DataFrame:
    """Train one arm with one seed; return its predictions of the test rows."""
    import ampft

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        without_correction(active=arm == UNCORRECTED),
    ):
        run = ampft.finetune(
            sentences["train"],
            validation=sentences["validation"],
            test=sentences["test"],
            precision="fp32",
            seed=seed,
            output_dir=Path(folder, "run"),
            **SETTINGS,
            **ARMS[arm],
        )
        found = run.predictions.sort_values("position")
    assert list(found["label"]) == list(sentences["test"]["label"]), "every test row once, in order"
    return table(sentences["test"], list(found["prediction"]))


def train_all(data: Path, folder: Path, *, seeds: int, cpu_minutes: float) -> None:
    """Write the tables that are missing, seed by seed, until the time is used up.

    Args:
        data: Folder with SST-2.
        folder: Folder of the tables.
        seeds: Seeds per arm.
        cpu_minutes: Minutes of CPU time after which no further seed begins.
    """
    sentences = read_sentences(data)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        if time.process_time() > 60 * cpu_minutes:
            print(f"stopped before seed {seed}: {cpu_minutes:g} minutes of CPU time are used up")
            return
        for arm in ARMS:
            path = folder / f"{arm}-seed{seed}.csv"
            if path.is_file():
                continue
            started = time.process_time()
            rows = trained(sentences, arm, seed)
            partial = path.with_suffix(".part")
            rows.to_csv(partial, index=False)
            partial.rename(path)
            accuracy = (rows["label"] == rows["prediction"]).mean()
            seconds = time.process_time() - started
            print(f"{arm:12} seed {seed:2}: {accuracy:.3f}, {seconds:.0f} s of CPU", flush=True)


def complete_seeds(folder: Path) -> list[int]:
    """Return the seeds whose arms all have a table, from 1 without a gap."""
    seeds: list[int] = []
    while all((folder / f"{arm}-seed{len(seeds) + 1}.csv").is_file() for arm in ARMS):
        seeds.append(len(seeds) + 1)
    return seeds


def labels(folder: Path) -> pd.Series[str]:
    """Return the labels of the test rows, as a table in the folder has them."""
    return pd.read_csv(folder / f"{BASELINE}-seed1.csv", dtype=str)["label"]


def correct_rows(folder: Path, arm: str, seeds: list[int]) -> Correct:
    """Return (seeds, rows): 1 where a prediction is correct, else 0."""
    tables = [pd.read_csv(folder / f"{arm}-seed{seed}.csv", dtype=str) for seed in seeds]
    return np.array([rows["label"] == rows["prediction"] for rows in tables], dtype=np.float64)


def deviation_ratio(sample: Correct, baseline: Correct) -> dict[str, Any]:
    """Return the ratio of two standard deviations over seeds, with a 95 % interval.

    For normal accuracies, the ratio of the sample variances over that of the true ones follows the
    F distribution. The two samples count as independent.

    Args:
        sample: (seeds, rows) of an arm.
        baseline: (seeds, rows) of the baseline.
    """
    from scipy.stats import f

    deviations = [float(rows.mean(axis=1).std(ddof=1)) for rows in (sample, baseline)]
    if 0.0 in deviations:
        return {"ratio": None, "interval_95": None}
    ratio, freedom = deviations[0] / deviations[1], len(sample) - 1
    limits = [ratio / math.sqrt(f.ppf(level, freedom, freedom)) for level in (0.975, 0.025)]
    return {"ratio": ratio, "interval_95": [float(limit) for limit in limits]}


def best_of_n(correct: Correct, *, seed: int = 0) -> dict[str, Any]:
    """Return what choosing the best seed on half of the test rows shows, and what remains.

    Over `HALVES` random halves, the seed with the largest accuracy on one half is chosen (the first
    of several). "shown" is its advantage over the mean of all seeds on that half, "remains" its
    advantage on the other half, "overstated" the difference of both. The intervals come from a
    jackknife that leaves out one of `GROUPS` groups of rows, with the same halves.

    Args:
        correct: (seeds, rows).
        seed: Seed of halves and groups.
    """
    from scipy.stats import t

    generator = np.random.default_rng(seed)
    rows = correct.shape[1]
    halves = generator.random((HALVES, rows)) < 0.5
    groups = generator.permutation(rows) % GROUPS

    def advantages(kept: npt.NDArray[np.bool_]) -> Correct:
        here, there = (
            correct[:, kept] @ half[:, kept].T / half[:, kept].sum(axis=1)
            for half in (halves, ~halves)
        )
        best = here.argmax(axis=0), np.arange(HALVES)
        shown, remains = ((each[best] - each.mean(axis=0)).mean() for each in (here, there))
        return np.array([shown, remains, shown - remains])

    estimate = advantages(np.ones(rows, dtype=bool))
    left_out = np.array([advantages(groups != group) for group in range(GROUPS)])
    spread = ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    width = t.ppf(0.975, GROUPS - 1) * np.sqrt((GROUPS - 1) / GROUPS * spread)
    return {
        name: {"estimate": float(value), "interval_95": [float(value - half), float(value + half)]}
        for name, value, half in zip(
            ("shown", "remains", "overstated"), estimate, width, strict=True
        )
    }


def analysed(folder: Path) -> dict[str, Any]:
    """Return means, deviations, differences with verdicts, and what the best of N is worth."""
    from ampft.doors.foreign_predictions import compare_tables

    seeds = complete_seeds(folder)
    sources = [str(folder / f"{arm}-seed{seed}.csv") for arm in ARMS for seed in seeds]
    comparison = compare_tables(sources, metric="accuracy", baseline=BASELINE)
    correct = {arm: correct_rows(folder, arm, seeds) for arm in ARMS}
    arms: dict[str, dict[str, Any]] = {}
    for arm in comparison.arms:
        accuracy = arm.metrics["accuracy"]
        arms[arm.name] = {
            "mean": accuracy.mean,
            "sd": accuracy.sd,
            "per_seed": list(accuracy.per_seed),
        }
        if arm.difference is not None:
            assert arm.difference.verdict is not None
            arms[arm.name] |= {
                "difference": arm.difference.estimate,
                "interval_95": list(arm.difference.interval95),
                "p_holm": arm.difference.p_difference_holm,
                "verdict": arm.outcome,
                "deviation": deviation_ratio(correct[arm.name], correct[BASELINE]),
            }
    return {
        "seeds": len(seeds),
        "majority": float(labels(folder).value_counts(normalize=True).max()),
        "arms": arms,
        "best_of_n": {arm: best_of_n(correct[arm]) for arm in ARMS},
    }


def claims(results: dict[str, Any]) -> dict[str, str]:
    """Return what the intervals say of each claim: confirmed, contradicted or undecided.

    Args:
        results: Results of `with_prediction_results`.
    """
    long, uncorrected = (results["arms"][arm] for arm in (LONG, UNCORRECTED))
    # Of the arm that learns: seeds of the baseline can all predict the majority class.
    best = results["best_of_n"][LONG]["overstated"]["interval_95"]
    return {
        "20 epochs are better than 3": _sign(long["interval_95"]),
        "20 epochs are more stable": _sign(long["deviation"]["interval_95"], 1, -1),
        "Adam without bias correction is worse": _sign(uncorrected["interval_95"], 0, -1),
        "Adam without bias correction is less stable": _sign(
            uncorrected["deviation"]["interval_95"], 1
        ),
        "the best of N on test overstates": _sign(best),
    }


def _sign(interval: list[float] | None, zero: float = 0, direction: int = 1) -> str:
    if interval is None or interval[0] <= zero <= interval[1]:
        return "undecided"
    return "confirmed" if (interval[0] > zero) == (direction > 0) else "contradicted"


def markdown(results: dict[str, Any]) -> str:
    """Return the tables of the page: arms, best of N, claims.

    Args:
        results: Results of `with_prediction_results`.
    """
    lines = [
        "| arm | accuracy, % (mean ± standard deviation) | difference, points (95 %) | verdict at 1"
        " point | ratio of deviations (95 %) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, arm in results["arms"].items():
        cells = [name, f"{100 * arm['mean']:.1f} ± {100 * arm['sd']:.1f}", "", "", ""]
        if "difference" in arm:
            cells[2] = _points(arm["difference"], arm["interval_95"])
            cells[3] = arm["verdict"]
            ratio, limits = arm["deviation"]["ratio"], arm["deviation"]["interval_95"]
            cells[4] = "not defined"
            if ratio is not None:
                cells[4] = f"{ratio:.1f} ({limits[0]:.1f} to {limits[1]:.1f})"
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| the best of the seeds, by one half of the test rows | shown there | remains on the other"
        " half | overstated |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in results["best_of_n"].items():
        cells = [_points(each["estimate"], each["interval_95"]) for each in row.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| claim | here |", "| --- | --- |"]
    lines += [f"| {claim} | {answer} |" for claim, answer in claims(results).items()]
    return "\n".join(lines)


def _points(value: float, interval: list[float]) -> str:
    from ampft.text.numbers import points

    return f"{points(value)} ({points(interval[0])} to {points(interval[1])})"


def main() -> None:
    """Train what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--data", type=Path, metavar="DATA", help="folder with sst2/; else no run")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the predictions")
    parser.add_argument("--seeds", type=int, default=10, metavar="INT")
    parser.add_argument("--cpu_minutes", type=float, default=15, metavar="FLOAT")
    parser.add_argument("--out", type=Path, help="JSON file of results")
    args = parser.parse_args()
    if args.data is not None:
        train_all(args.data, args.tables, seeds=args.seeds, cpu_minutes=args.cpu_minutes)
    if len(complete_seeds(args.tables)) < 3:
        sys.exit(f"--tables {args.tables}: fewer than three seeds are complete. Run it again.")
    design = {
        "train_rows": TRAIN_ROWS,
        "test_rows": len(labels(args.tables)),
        "settings": SETTINGS,
        "arms": ARMS,
        "halves": HALVES,
        "groups": GROUPS,
    }
    results = analysed(args.tables)
    print(markdown(results))
    if args.out is not None:
        text = json.dumps({**provenance(), "design": design, **results}, indent=1)
        args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
