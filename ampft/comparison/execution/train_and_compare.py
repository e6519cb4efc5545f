"""A complete comparison: the packaged form of `recipes/compare_precision.py`, with its loop."""

from __future__ import annotations

from ampft.comparison.execution.planning import plan_comparison
from ampft.comparison.execution.session import ComparisonSession, is_decided, open_comparison
from ampft.comparison.report.report_files import terminal_text, write_comparison
from ampft.comparison.settings import CompareCommand
from ampft.text.terminal import print_line


def compare(command: CompareCommand) -> ComparisonSession:
    """Train each arm with each seed through `ampft train`, and print the verdict."""
    folder, plan = plan_comparison(command)  # measures a few steps, or reads the plan
    with open_comparison(command, folder, plan) as session:
        if command.yardstick:
            session.measure_yardstick()
        session.train(session.missing_for_selection())
        session.select_arm()  # with --select: only this arm is compared
        for seeds in plan.design.seed_counts:
            session.train(session.missing(seeds))
            comparison = session.analysed(seeds)
            write_comparison(comparison, folder)
            session.record_analysis(seeds)
            if is_decided(comparison):
                break
        print_line(terminal_text(comparison))
        session.close(seeds)
    return session
