"""Draw the results of growth.py: processor time and memory by rows, classes and stored runs.

python benchmarks growth_plot growth.json --out growth.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from provenance import command_line

BEFORE, NOW, LINEAR = "#999999", "#0072b2", "#d55e00"
Points = list[tuple[float, float]]


def seconds_and_mib(size: dict[str, Any]) -> tuple[float, float]:
    """Return the processor seconds and the peak memory of a size."""
    used = size["processor_seconds"]
    return (sum(used.values()) if isinstance(used, dict) else used), size["peak_mib"]


def curves(stored: dict[str, Any]) -> dict[str, tuple[Points, Points]]:
    """Return the points of time and of memory, by what grows."""
    sizes = stored["sizes"]
    of_rows = [(size["rows"], *seconds_and_mib(size)) for size in sizes if size["classes"] == 3]
    of_classes = [
        (size["classes"], *seconds_and_mib(size)) for size in sizes if size["classes"] != 3
    ]
    of_runs = [(size["runs"], *seconds_and_mib(size)) for size in stored.get("comparisons", ())]
    titles = ("rows (3 classes)", "classes (100,000 rows)", "stored runs of a comparison")
    return {
        title: ([(x, y) for x, y, _ in found], [(x, y) for x, _, y in found])
        for title, found in zip(titles, (of_rows, of_classes, of_runs), strict=True)
    }


def draw_line(axes: Axes, points: Points, colour: str) -> None:
    """Draw points and the line through them, with the value of the last one."""
    if points:
        axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, linewidth=1.2)


def draw(stored: dict[str, Any], out: Path) -> None:
    """Plot time above memory, with a line that grows as the sizes do."""
    mpl.rcParams["svg.hashsalt"] = "ampft"  # makes the file reproducible, byte for byte
    figure, grid = plt.subplots(2, 3, figsize=(8.4, 4.8), layout="constrained", sharex="col")
    now, before = curves(stored), curves(stored.get("earlier", {"sizes": []}))
    labels = ("processor seconds", "peak memory, MiB")
    for column, title in enumerate(now):
        for row, label in enumerate(labels):
            axes = grid[row][column]
            draw_line(axes, before[title][row], BEFORE)
            points = now[title][row]
            draw_line(axes, points, NOW)
            if row == 0 and points:
                end, height = points[-1]
                starts = [x for x, _ in points]
                axes.plot(starts, [height * x / end for x in starts], ":", color=LINEAR)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_minor_formatter("")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(linewidth=0.4)
            axes.tick_params(labelsize=8)
            axes.set_ylim(*((5, 400) if row == 0 else (200, 10_000)))
            if column == 0:
                axes.set_ylabel(label, fontsize=9)
        axes.set_xlabel(title, fontsize=9)
    handles = [
        Line2D([], [], marker="o", color=NOW, markersize=4),
        Line2D([], [], marker="o", color=BEFORE, markersize=4),
        Line2D([], [], linestyle=":", color=LINEAR),
    ]
    names = ("now", "before", "as the sizes grow")
    figure.legend(handles, names, loc="outside upper left", ncols=3, fontsize=8, frameon=False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    """Draw the plot."""
    parser = command_line(__doc__, out="SVG, PNG or PDF file")
    parser.add_argument("results", type=Path, help="JSON file of growth.py")
    args = parser.parse_args()
    draw(json.loads(args.results.read_text(encoding="utf-8")), args.out)


if __name__ == "__main__":
    main()
