"""Example comparisons: a realistic one, one with hostile strings, and an incomplete one.

No model is trained. The figures of an example come from one simulated table of logits, so they are
consistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from example_figures import (
    calibration_bins,
    class_figures,
    difference,
    flips,
    metric_values,
    total_confusion,
    with_verdicts,
)
from example_texts import HOSTILE_LABELS, LABELS, TEXTS, YARDSTICK

from ampft.comparison.findings import (
    ArmResult,
    Comparison,
    Memory,
    RunOutcome,
    Speed,
    TrainingCurve,
    metric_infos,
)
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.statistics.speed_up import speed_up
from ampft.tasks.single_label import Predictions, SingleLabel

MIB = 2**20
STEPS = 300
RUN_NOISE = 0.18  # standard deviation of the logits between runs with the same seed


METRIC_INFOS = metric_infos(SingleLabel)


@dataclass(frozen=True)
class SimulatedArm:
    """Properties of a simulated arm."""

    name: str
    mode: str = "fp32"
    execution: str = "native"
    executed: str = "every product float32"
    step: float = 0.241
    peak: int = 903
    skipped: tuple[int, ...] = ()
    reason: Remark | None = None


SIMULATED_ARMS = (
    SimulatedArm("fp32"),
    SimulatedArm("placebo"),
    SimulatedArm(
        "bf16", "bf16", "native", "products bfloat16 with float32 sums", step=0.1, peak=804
    ),
    SimulatedArm(
        *("fp16", "fp16", "emulated", "products binary16 with float32 sums, emulated"),
        step=0.312,
        peak=1043,
        skipped=(1, 2, 4, 181),
        reason=remark("unaligned"),
    ),
)


@cache
def realistic() -> Comparison:
    """Return baseline, placebo, bf16 and emulated fp16 over 5 seeds and 12 classes."""
    return _simulated(LABELS, TEXTS, seeds=5, examples=754)


@cache
def hostile() -> Comparison:
    """Return a comparison with hostile names, labels, texts, reasons and setup."""
    nasty = " ".join(HOSTILE_LABELS)
    reason = remark("small_products", baseline=nasty, busy=0.1)
    whole = _simulated(HOSTILE_LABELS, HOSTILE_LABELS, seeds=3, examples=240)
    arms = [
        replace(
            arm,
            executed=nasty,
            runs=tuple(replace(run, folder=nasty, reason=nasty) for run in arm.runs),
            speed=arm.speed and replace(arm.speed, reason=reason),
            memory=arm.memory and replace(arm.memory, protocol=nasty),
        )
        for arm in whole.arms
    ]
    return replace(
        whole,
        title=f"{nasty} on {nasty}",
        split=HOSTILE_LABELS[0],
        arms=tuple(arms),
        stamps=tuple(remark("selected", split=each) for each in (*HOSTILE_LABELS[:-1], nasty)),
        setup={nasty: nasty, **{label: label for label in HOSTILE_LABELS}},
        environment={nasty: nasty, **{label: label for label in HOSTILE_LABELS}},
    )


@cache
def broken() -> Comparison:
    """Return two seeds without intervals, with unstable, failed and unmeasured arms."""
    whole = _simulated(LABELS, TEXTS, seeds=2, examples=754)
    base, placebo, bf16, fp16 = (
        replace(arm, difference=None, difference_fp32=None, metrics_fp32={}) for arm in whole.arms
    )
    empty = {"metrics": {}, "flips": None, "classes": (), "confusion": (), "calibration": ()}
    reason = "the loss was not finite at step 181 in 8 steps in a row"
    diverged = replace(fp16.runs[1], status="diverged", reason=reason)
    fp16 = replace(
        fp16,
        **empty,
        status="unstable",
        runs=(fp16.runs[0], diverged),
        curves=(fp16.curves[0], replace(fp16.curves[1], loss=(*fp16.curves[1].loss[:-1], None))),
    )
    failed = replace(
        bf16,
        **empty,
        name="fp8",
        mode="fp8",
        status="failed",
        executed=None,
        runs=tuple(
            replace(run, status="interrupted", reason="no fp8 on this device", folder="fp8")
            for run in bf16.runs
        ),
        speed=None,
        memory=None,
        skipped_steps=(),
        total_steps=(),
        curves=(),
    )
    bf16 = replace(bf16, speed=None, memory=None, executed=None)
    return replace(
        whole,
        arms=(replace(base, memory=None), placebo, bf16, fp16, failed),
        stamps=(remark("few_seeds", seeds=2, needed=3),),
        yardstick=None,
        overhead_share=None,
        margin_share_of_errors=None,
    )


def _simulated(
    labels: Sequence[str], texts: Sequence[str], *, seeds: int, examples: int
) -> Comparison:
    rng = np.random.default_rng(20282)
    share = np.linspace(3, 1, len(labels)) if labels[-1] else np.eye(len(labels))[-1] == 0
    truth = rng.choice(
        len(labels), examples, p=share / share.sum()
    )  # the class without a name is absent
    evidence = rng.normal(0, 1.2, (examples, len(labels)))
    evidence[np.arange(examples), truth] += rng.normal(4.4, 1.7, examples)
    seed_logits = [evidence + rng.normal(0, 0.6, evidence.shape) for _ in range(seeds)]
    results = {}
    for arm in SIMULATED_ARMS:
        in_mode = [z + RUN_NOISE * rng.normal(0, 1, z.shape) for z in seed_logits]
        rounding = 0.0 if arm.mode == "fp32" else 0.02
        in_fp32 = [z + rounding * rng.normal(0, 1, z.shape) for z in in_mode]
        results[arm.name] = [
            [_predictions(z, truth, labels) for z in logits] for logits in (in_mode, in_fp32)
        ]
    arms = with_verdicts([_arm(arm, results, texts, rng) for arm in SIMULATED_ARMS])
    accuracy = arms[0].metrics["accuracy"].mean
    return Comparison(
        title="all-MiniLM-L6-v2 on stdlib (summary)",
        metric="accuracy",
        metrics=METRIC_INFOS,
        margin=0.01,
        margin_share_of_errors=0.01 / (1 - accuracy),
        alpha=0.05,
        seed_counts=(seeds,),
        seeds=tuple(range(1, seeds + 1)),
        split="test",
        examples=examples,
        label_names=tuple(labels),
        arms=arms,
        stamps=() if seeds > 3 else (remark("screening", seeds=3),),
        setup={
            "model": "all-MiniLM-L6-v2, 22.7 M parameters",
            "data": "stdlib (summary): train 3,016, validation 377, test 754",
            "effective batch": "32, cut into micro-batches of 8",
            "optimizer": "AdamW, learning rate 5e-05, 3 epochs",
        },
        environment={
            "CPU": "x86-64 with AVX512-BF16, 2 cores, 2 threads",
            "torch": "2.13.0+cpu",
            "transformers": "5.23.0",
            "accelerate": "1.15.0",
            "Python": "3.13.5",
        },
        yardstick=YARDSTICK,
        overhead_share=0.006,
        planned=True,
    )


def _predictions(logits: np.ndarray, truth: np.ndarray, labels: Sequence[str]) -> Predictions:
    shares = np.exp(1.6 * (logits - logits.max(axis=1, keepdims=True)))
    shares = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
    return Predictions(np.arange(len(truth)), truth, shares, tuple(labels), "test")


def _arm(
    arm: SimulatedArm, results: dict[str, list[list[Predictions]]], texts: Sequence[str], rng
) -> ArmResult:
    in_mode, in_fp32 = results[arm.name]
    base = results["fp32"][0]
    is_base, is_placebo = arm.name == "fp32", arm.name == "placebo"
    seeds = range(1, len(in_mode) + 1)
    steps = tuple(arm.step * factor for factor in rng.uniform(0.97, 1.04, len(in_mode)))
    ratios = [0.241 / step for step in steps]
    has_ratio = arm.execution == "native" and not is_base
    peak = arm.peak * MIB
    rest = peak - 522 * MIB
    return ArmResult(
        name=arm.name,
        mode=arm.mode,
        is_placebo=is_placebo,
        execution=arm.execution,
        executed=arm.executed,
        status="complete",
        runs=tuple(
            RunOutcome(seed=s, status="finished", reason=None, folder=f"{arm.name}-seed-{s}")
            for s in seeds
        ),
        metrics=metric_values(in_mode),
        metrics_fp32={} if arm.mode == "fp32" else metric_values(in_fp32),
        difference=None if is_base else difference(in_mode, base, is_placebo=is_placebo),
        difference_fp32=None if arm.mode == "fp32" else difference(in_fp32, base),
        speed=Speed(
            step_seconds=steps,
            speed_up=speed_up(ratios, in_turns=True) if has_ratio else None,
            speed_up_over_tf32=None,
            tokens_per_second=1312 / float(np.median(steps)),
            waiting_share=0.004 / float(np.median(steps)),
            utilisation=0.62 * 0.1 / arm.step if arm.mode == "bf16" else 0.61,
            training_seconds=STEPS * float(np.median(steps)) + 6,
            total_seconds=STEPS * float(np.median(steps)) + 21,
            reason=arm.reason,
        ),
        memory=Memory(
            peak=peak,
            ratio=None if is_base else arm.peak / 903,
            weights=87 * MIB,
            gradients=87 * MIB,
            optimizer_state=174 * MIB,
            activations=rest * 3 // 4,
            rest=rest - rest * 3 // 4,
            baseline=174 * MIB,
            protocol="VmHWM of the process at the end; baseline: the same after the imports",
        ),
        skipped_steps=tuple(len(arm.skipped) - (s % 2 and s > 3) for s in seeds)
        if arm.skipped
        else (0,) * len(in_mode),
        total_steps=(STEPS,) * len(in_mode),
        flips=None if is_base else flips(in_mode, base, texts),
        classes=class_figures(in_mode, None if is_base else base),
        confusion=total_confusion(in_mode),
        calibration=calibration_bins(in_mode),
        curves=tuple(_curve(arm, s, p, rng) for s, p in zip(seeds, in_mode, strict=True)),
    )


def _curve(arm: SimulatedArm, seed: int, predictions: Predictions, rng) -> TrainingCurve:
    steps = tuple(range(3, STEPS + 1, 3))
    loss = 2.5 * np.exp(-np.array(steps) / 70) + 0.25 + rng.normal(0, 0.06, len(steps))
    skipped = arm.skipped[: len(arm.skipped) - (seed % 2 and seed > 3)]
    scale = tuple(65536 / 2.0 ** sum(s <= step for s in skipped) for step in steps)
    accuracy = float(np.mean(predictions.predicted == predictions.labels))
    return TrainingCurve(
        seed=seed,
        steps=steps,
        loss=tuple(float(x) for x in loss),
        loss_scale=scale if arm.mode == "fp16" else None,
        skipped=skipped,
        validation_steps=(100, 200, 300),
        validation_metric=(accuracy - 0.08, accuracy - 0.02, accuracy - 0.004),
    )
