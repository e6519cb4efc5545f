"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.commands.extension_points import (
    A_BETTER_MODEL,
    COMMANDS,
    FOLDER_REPORTS,
    PROOF,
    WHY_A_PRECISION_FAILS,
    CommandEntry,
    FolderReport,
)
from ampft.comparison.extension_points import CLUSTER, Cluster
from ampft.errors import InputError
from ampft.integrations.extension_points import CLUSTER_PREDICTION, ShardPrediction

if TYPE_CHECKING:
    from ampft.arguments.commands import Command


def _doctor(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.doctor.doctor import DOCTOR

    return DOCTOR


def _yardstick(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.yardstick.yardstick import YARDSTICK

    return YARDSTICK


def _ops(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.operations.ops import OPS

    return OPS


def _errors(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.mistakes.errors_command import ERRORS

    return ERRORS


def _search(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.search.search import SEARCH

    return SEARCH


def _curve(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.curve.curve import CURVE

    return CURVE


def _judge(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.referee.judge_command import JUDGE

    return JUDGE


def _accept(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.accept.accept import ACCEPT

    return ACCEPT


def _audit(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.audit.audit_command import audit_command

    return audit_command(argv)


def _resume_check(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.lab.resume_check import RESUME_CHECK

    return RESUME_CHECK


@COMMANDS.add
def commands() -> tuple[CommandEntry, ...]:
    """Return the commands."""
    return (
        CommandEntry(
            "doctor",
            WHY_A_PRECISION_FAILS,
            "find what breaks a precision for a model and its data, and a cure",
            _doctor,
        ),
        CommandEntry(
            "yardstick",
            WHY_A_PRECISION_FAILS,
            "measure the gradient error of each precision relative to batch noise",
            _yardstick,
        ),
        CommandEntry(
            "ops",
            WHY_A_PRECISION_FAILS,
            "show which operations autocast casts to which dtype",
            _ops,
        ),
        CommandEntry(
            "errors",
            A_BETTER_MODEL,
            "show the most confident errors of a run, and the classes that it confuses",
            _errors,
        ),
        CommandEntry(
            "search",
            A_BETTER_MODEL,
            "choose learning rate and length within a time, and say what that gained",
            _search,
        ),
        CommandEntry(
            "curve", A_BETTER_MODEL, "say what twice the labels would add to the score", _curve
        ),
        CommandEntry(
            "judge",
            A_BETTER_MODEL,
            "keep or drop each of many changes tried on one test set",
            _judge,
        ),
        CommandEntry(
            "accept",
            PROOF,
            "say which promises hold on this machine, by commands as users type them",
            _accept,
        ),
        CommandEntry(
            "audit",
            PROOF,
            "repeat a run, an export or a ledger from its record, and confirm it or not",
            _audit,
        ),
        CommandEntry(
            "resume-check",
            PROOF,
            "prove that a training continues exactly after being killed",
            _resume_check,
        ),
    )


def _refuse_ledger(folder: Path) -> str:
    """Say how the tries of a ledger are shown.

    Raises:
        InputError: Always.
    """
    raise InputError(
        f"RUN {folder}: this is a ledger of ampft judge. To see its tries: ampft judge {folder} "
        f"--page FILE.html. To check its entries: ampft audit {folder}"
    )


@FOLDER_REPORTS.add
def folder_reports() -> tuple[FolderReport, ...]:
    """Return how learning curves, searches and ledgers are reported."""
    from ampft.lab.curve.curve_page import CURVE_REPORT
    from ampft.lab.referee.ledger import FIRST_NAME
    from ampft.lab.search.search_answer import SEARCH_REPORT

    return CURVE_REPORT, SEARCH_REPORT, FolderReport(FIRST_NAME, _refuse_ledger)


@CLUSTER_PREDICTION.add
def cluster_prediction() -> ShardPrediction:
    """Return the function that predicts shards on a Ray cluster."""
    from ampft.lab.cluster.shard_pool import predict_on_cluster

    return predict_on_cluster


@CLUSTER.add
def cluster() -> Cluster:
    """Return the launchers of a Ray cluster."""
    from ampft.lab.cluster import launcher

    return launcher
