"""Draw the results of speed.py, and print the geometric mean over the cases.

python benchmarks/speed_plot.py speed.json --out speed.svg
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from provenance import command_line

# The systems that are drawn; other variants of ampft are not.
COLOURS = {
    "trainer": "#0072b2",
    "trainer (tuned)": "#56b4e9",
    "trainer (length grouping)": "#009e73",
    "accelerate loop": "#d55e00",
    "fabric loop": "#cc79a7",
    "ampft (sorted micro-batches)": "#999999",
}


def label(row: dict[str, Any]) -> str:
    """Return the label of a case on the axis."""
    tokens = f"{row['mean_tokens']:.0f} tokens, at most {row['max_length']}"
    return f"{row['case']}, {row['model']}, {row['mode']}\nbatch {row['batch_size']}, {tokens}"


def geometric_means(rows: list[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return, per system, the geometric mean of ampft's speed-up and the number of cases.

    Raises:
        SystemExit: A case occurs twice, and would count twice.
    """
    if len({label(row) for row in rows}) < len(rows):
        raise SystemExit("a case occurs twice in the results: pass each case once")
    ratios: dict[str, list[float]] = {}
    for row in rows:
        for name, result in row["systems"].items():
            if name in COLOURS:
                ratios.setdefault(name, []).append(math.log(result["ampft_times_faster"]))
    return {name: (math.exp(sum(logs) / len(logs)), len(logs)) for name, logs in ratios.items()}


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Plot ampft's speed-up over each system in each case, with its range over the turns."""
    mpl.rcParams["svg.hashsalt"] = "ampft"  # makes the file reproducible, byte for byte
    figure, axes = plt.subplots(figsize=(8, 0.62 * len(rows) + 1.6), layout="constrained")
    for height, row in enumerate(reversed(rows)):
        systems = [name for name in COLOURS if name in row["systems"]]
        for position, name in enumerate(systems):
            result = row["systems"][name]
            y = height + 0.15 * (len(systems) - 1 - 2 * position) / 2
            axes.plot(result["ampft_times_faster_range"], [y, y], color=COLOURS[name], linewidth=1)
            axes.plot(result["ampft_times_faster"], y, "o", color=COLOURS[name], markersize=5)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [label(row) for row in reversed(rows)], fontsize=8)
    axes.set_xlabel("speed of ampft relative to the other system (median and range over the turns)")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", linewidth=0.4)
    axes.tick_params(left=False)
    present = [name for name in COLOURS if any(name in row["systems"] for row in rows)]
    handles = [Line2D([], [], marker="o", linestyle="", color=COLOURS[n]) for n in present]
    figure.legend(handles, present, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Draw the plot, and print the means."""
    parser = command_line(__doc__, out="SVG, PNG or PDF file")
    parser.add_argument("results", type=Path, nargs="+", help="JSON files of speed.py")
    args = parser.parse_args()
    rows = [row for path in args.results for row in json.loads(path.read_text(encoding="utf-8"))]
    draw(rows, args.out)
    for name, (mean, cases) in geometric_means(rows).items():
        print(f"{name:30s} ampft is {mean:.2f} times as fast (geometric mean; cases: {cases})")


if __name__ == "__main__":
    main()
