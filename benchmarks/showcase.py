"""bf16 or fp32? The comparison in README, on whole data sets, with ten seeds.

Run: `python benchmarks/showcase.py --set sst2 --data DATA --output_dir FOLDER` with
DATA holding `sst2/train.tsv`, `dev.tsv` and `test.tsv` (text, tab, 0 or 1; 6,920, 872 and 1,821
sentences), or `--set mrpc` with `mrpc/msr_paraphrase_train.txt` and `msr_paraphrase_test.txt`
(4,076 and 1,725 pairs). It writes them as CSV and starts `ampft compare`, whose command it prints;
repeated, it continues. FOLDER then holds comparison.html, .md and .json.

The design is that of GLUE's old table "fp32 and fp16 give the same results", with ten seeds and
intervals in place of one seed. On two slow cores, `--max_train_samples 2000` takes an hour instead
of a night; the test rows stay the same.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

from provenance import command_line, provenance

from ampft.comparison.findings import Comparison
from ampft.comparison.report.report_files import read_comparison

SETTINGS = {
    "sst2": "--num_train_epochs 3 --max_seq_length 64",
    "mrpc": "--num_train_epochs 3 --max_seq_length 128 --text_column_names first,second",
}
COMPARE = (
    "import sys; from ampft.cli import main; sys.exit(main(sys.argv[1:]))"  # also without a script
)


def main() -> None:
    """Write the tables, and compare."""
    parser = command_line(__doc__, out="also write its numbers here", required=False)
    parser.add_argument("--set", choices=SETTINGS, required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DATA")
    parser.add_argument("--output_dir", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", default="10", metavar="STR", help="as of ampft compare")
    parser.add_argument("--max_train_samples", metavar="INT", help="all rows, unless given")
    parser.add_argument(
        "--cpu_threads", metavar="INT", help="threads of each run; 1 on a machine that others use"
    )
    parser.add_argument("--jobs", default="1", metavar="INT", help="as of ampft compare")
    args = parser.parse_args()
    tables = args.output_dir.with_name(f"{args.output_dir.name}-data")
    tables.mkdir(parents=True, exist_ok=True)
    files = (write_sst2 if args.set == "sst2" else write_mrpc)(args.data / args.set, tables)
    flags = [f"--{split}_file={path}" for split, path in files.items()]
    command = ["compare", "--modes", "fp32,bf16", "--seeds", args.seeds, "--no_placebo"]
    command += ["--jobs", args.jobs, "--output_dir", str(args.output_dir)]
    command += ["--", *flags, *SETTINGS[args.set].split()]
    if args.max_train_samples:
        command += ["--max_train_samples", args.max_train_samples]
    if args.cpu_threads:
        command += ["--cpu_threads", args.cpu_threads]
    print(shlex.join(["ampft", *command]), flush=True)
    code = subprocess.run([sys.executable, "-c", COMPARE, *command], check=False).returncode
    if args.out and code == 0:
        numbers = {**provenance(), "set": args.set, **numbers_of(read_comparison(args.output_dir))}
        args.out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    sys.exit(code)


def numbers_of(comparison: Comparison) -> dict[str, object]:
    """Return the numbers that the page quotes, without texts of the data."""
    arm = comparison.arms[1]
    difference = arm.difference
    assert difference is not None, "all runs finished"
    metric = comparison.metric
    return {
        "metric": metric,
        "seeds": list(comparison.seeds),
        "examples": comparison.examples,
        "margin": comparison.margin,
        "means": {each.name: each.metrics[metric].mean for each in comparison.arms},
        "estimate": difference.estimate,
        "interval95": list(difference.interval95),
        "per_seed": list(difference.per_seed),
        "outcome": arm.outcome,
    }


def write_sst2(source: Path, folder: Path) -> dict[str, Path]:
    """Write the three splits as CSV; return the path of each."""
    files = {}
    for split, name in {"train": "train", "validation": "dev", "test": "test"}.items():
        lines = (source / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.rsplit("\t", 1) for line in lines]
        names = ("negative", "positive")
        files[split] = _write(
            folder / f"{split}.csv",
            ("text", "label"),
            [(text, names[int(label)]) for text, label in rows],
        )
    return files


def write_mrpc(source: Path, folder: Path) -> dict[str, Path]:
    """Write the two splits as CSV; return the path of each. Validation is held out of training."""
    files = {}
    for split in ("train", "test"):
        lines = (source / f"msr_paraphrase_{split}.txt").read_text("utf-8-sig").splitlines()[1:]
        cells = [line.split("\t") for line in lines]
        names = ("different", "paraphrase")
        files[split] = _write(
            folder / f"{split}.csv",
            ("first", "second", "label"),
            [(first, second, names[int(label)]) for label, _, _, first, second in cells],
        )
    return files


def _write(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


if __name__ == "__main__":
    main()
