"""Compare settings on your data: several seeds each, one process per run, and a verdict.

    python recipes/compare.py --arm base --arm "low: --learning_rate 1e-5" -- --train_file a.csv

Each `--arm` is a name and the settings of `classify.py` in which it differs; the first is the
baseline. Settings after ` -- ` are those that all arms share. `--help` lists the settings of the
comparison. After an interruption, the same command continues it. `compare_precision.py` compares
precisions.
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
        session.train(session.missing_for_selection())
        session.select_arm()  # with --select: only this arm is compared
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
    sys.exit(ampft.run_main(lambda: compare(ampft.parse_compare_arms_arguments())))
