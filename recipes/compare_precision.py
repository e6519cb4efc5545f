"""Compare precisions on your data: several seeds of each, one process per run, and a verdict.

    python recipes/compare_precision.py --modes fp32,bf16,fp16 -- --train_file reviews.csv

What stands behind ` -- ` are settings of `classify.py`; without any, the embedded default is
compared. `--help` lists the comparison's own. The same command goes on where it was interrupted.
"""

import sys
from pathlib import Path

import ampft

CLASSIFY = Path(__file__).with_name("classify.py")


def compare(command: ampft.CompareCommand) -> None:
    """Train every arm at every seed, and say what follows."""
    folder, plan = ampft.plan_comparison(command)  # measures a few steps, or finds its plan there
    with ampft.open_comparison(command, folder, plan, CLASSIFY) as comparing:
        if command.yardstick:
            comparing.measure_yardstick()
        for seeds in plan.looks:
            for run in comparing.missing(seeds):
                comparing.launch(run)
            comparison = ampft.compare_folders(
                comparing.folders(seeds),
                metric=plan.metric,
                margin=plan.margin,
                plan=comparing.facts(seeds),
            )
            ampft.write_comparison(comparison, folder)
            comparing.record_analysis(seeds)
            if ampft.is_decided(comparison):
                break
        ampft.print_line(ampft.terminal_text(comparison))
        comparing.close(seeds)


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: compare(ampft.parse_compare_arguments())))
