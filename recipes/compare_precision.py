"""Compare precisions on your data: several seeds each, one process per run, and a verdict.

    python recipes/compare_precision.py --modes fp32,bf16,fp16 -- --train_file reviews.csv

Settings after ` -- ` are those of `classify.py`; without them, the built-in data and the default
model are used. `--help` lists the settings of the comparison. After an interruption, the same
command continues it.
"""

import sys
from pathlib import Path

try:
    import ampft
except ImportError as error:  # a forgotten environment
    hint = f" ({sys.executable}). Activate the environment of ampft." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)

CLASSIFY = Path(__file__).with_name("classify.py")


def compare(command: ampft.CompareCommand) -> None:
    """Train each arm with each seed, and print the verdict."""
    folder, plan = ampft.plan_comparison(command)  # measures a few steps, or reads the plan
    with ampft.open_comparison(command, folder, plan, CLASSIFY) as session:
        if command.yardstick:
            session.measure_yardstick()
        for seeds in plan.design.seed_counts:
            session.train(session.missing(seeds))
            comparison = session.analysed(seeds)
            ampft.write_comparison(comparison, folder)
            session.record_analysis(seeds)
            if ampft.is_decided(comparison):
                break
        ampft.print_line(ampft.terminal_text(comparison))
        session.close(seeds)


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: compare(ampft.parse_compare_arguments())))
