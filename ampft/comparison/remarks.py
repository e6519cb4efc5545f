"""Remarks of a comparison, such as caveats, as data; and the sentences that they become.

Analysis makes remarks of a kind, numbers and names. Only `remark_text` writes words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ampft.errors import quoted_list
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue, one_of
from ampft.text.numbers import counted, percent, ratio_text, seed_list


def _suspect(runs: int, total: int, arm: str, seed: int, warning: str) -> str:
    return (
        f"not trained well: {runs} of {total} runs ended with a warning, such as {arm} with seed "
        f"{seed}: {warning.rstrip('.')}"
    )


def _run_warnings(runs: int, total: int, arm: str, seed: int, warning: str) -> str:
    return (
        f"warnings, which do not prevent a verdict: {runs} of {total} runs have one, such as {arm} "
        f"with seed {seed}: {warning.rstrip('.')}"
    )


def _resumed(arm: str, seed: int, changes: Mapping[str, list[str]], more: int) -> str:
    listed = ", ".join(f"{name} {before}, then {now}" for name, (before, now) in changes.items())
    rest = f"; {counted(more, 'more run')} changed" if more else ""
    return (
        f"changed during a run: {arm} with seed {seed} was resumed under other conditions "
        f"({listed}{rest}); the examples are the same, but not the rounding"
    )


def _unequal(name: str, values: list[str], folders: list[str], more: int) -> str:
    rest = ""
    if more:
        rest = "; 1 more run differs" if more == 1 else f"; {more} more runs differ"
    first, second = (f"{value} in {folder}" for value, folder in zip(values, folders, strict=True))
    return f"not like for like: {name} ({first}, {second}{rest})"


def _copied(tables: list[list[str]]) -> str:
    return (
        f"identical predictions: {'; '.join(map(', '.join, tables))} (arm and seed) predict "
        "exactly the same, as if one table had been copied, so the error bars do not contain the "
        "noise of training; give each seed the predictions of its own training"
    )


def _few_models(models: int, needed: int) -> str:
    return (
        f"{'one trained model' if models == 1 else f'{models} trained models'}: intervals and "
        "verdicts hold for other test examples, not for models that are trained again; compare "
        f"each model that you deploy, or pass runs of at least {needed} seeds"
    )


def _not_answered(arm: str, runs: int, examples: int, answered: float, wrong: float) -> str:
    """Return how many examples an arm would answer, and how many of these it gets wrong.

    Args:
        answered: Mean over its runs.
        wrong: Mean over its runs.
    """
    mean, decimals = ("", 0) if runs == 1 else (f"on average over {runs} runs ", 1)
    share = f", and {percent(wrong / answered, 1)} of these are wrong" if answered else ""
    return (
        f"not every example is answered: {arm} was trained with --abstain and would answer {mean}"
        f"{answered:,.{decimals}f} of {examples:,}{share}; here all are scored, with the "
        "predictions that it would withhold"
    )


def choice_text(arm: str, metric: str, seeds: list[int], scores: Mapping[str, float]) -> str:
    """Return how the arm was chosen that is compared with the baseline.

    Args:
        scores: Mean of the metric by arm.
    """
    listed = ", ".join(f"{name} {value:z.4f}" for name, value in scores.items())
    return (
        f"{arm} was chosen by the mean validation {metric} with {seed_list(seeds)} ({listed}); "
        "neither these runs nor these examples enter the comparison"
    )


def _launch_bound(baseline: str, growth: float, limit: float) -> str:
    return (
        f"launch-bound: in {baseline}, twice the batch takes {growth:.2f} times as long (below "
        f"{limit:g} counts as launch-bound), so launching kernels limits the speed of every "
        "precision; try larger batches"
    )


def _amdahl(
    arm: str, baseline: str, busy: float, gain: float, possible: float, is_reached: bool
) -> str:
    rest = "casts and memory traffic account for the difference"
    if is_reached:
        rest = "the rest of the step does not become faster"
    return (
        f"at the measured rates, matrix products take {percent(busy)} of {baseline}'s step time "
        f"and are {gain:.2g}x faster in {arm}, which allows a speed-up of {possible:.2f}x; {rest}"
    )


SENTENCES: Mapping[str, Callable[..., str]] = {
    # On the training of the runs
    "suspect": _suspect,
    "run_warnings": _run_warnings,
    "suspect_model": lambda warning: f"not trained well: {warning.rstrip('.')}",
    "no_baseline": lambda arm, status: f"no baseline: {arm} is {status}",
    "few_seeds": lambda seeds, needed: (
        f"only {counted(seeds, 'seed')}: error bars and verdicts need at least {needed}, or one "
        "run per arm to compare these models only"
    ),
    "one_model_each": lambda needed: (
        "one model per arm: intervals and verdicts hold for these models on other examples like "
        "these, not for models that are trained again; for that, compare runs of at least "
        f"{needed} seeds"
    ),
    "screening": lambda seeds: (
        f"screening: {seeds} seeds are usually too few to establish equivalence"
    ),
    "few_models": _few_models,
    "selected": lambda split: (
        f"selected: the metrics come from {split}, on which the best epoch was also chosen; "
        "expect worse results on new data"
    ),
    "resumed": _resumed,
    "seen_rows": lambda arm, file: (
        f"rows of the training: {arm} was trained on {file} (same SHA-256), so its predictions "
        "there are better than on new rows; compare on rows that no model was trained on"
    ),
    "left_out": lambda file, rows: (
        f"rows left out: {counted(rows, 'row')} of {file} without a label or an input"
    ),
    "not_answered": _not_answered,
    "unknown_classes": lambda arm, classes, examples: (
        f"unknown classes: {arm} was not trained on {quoted_list(classes)}, so it is wrong in all "
        f"{counted(examples, 'row')} of {'them' if len(classes) > 1 else 'it'}"
    ),
    # On the plan
    "chosen": lambda **values: f"chosen: {choice_text(**values)}",
    "omitted_seed": lambda seed, arms: (
        f"seed {seed} is omitted because {' and '.join(arms)} left no run record"
    ),
    "reduced": lambda flag, before, after: (
        f"--{flag} reduced from {before} to {after} to fit the budget."
    ),
    "added": lambda: (
        "unplanned seeds were added after results were seen, so the error rates of the verdicts "
        "do not hold; plan interim analyses in advance with --seeds 5,10"
    ),
    "unplanned": lambda: (
        "no plan: metric, margin and number of seeds may have been chosen after results were "
        "seen, and speeds were measured at different times"
    ),
    "no_record": lambda: (
        "no run record: fairness of the training is unknown. Whether the arms had the same data, "
        "initial weights, budget and tuning, and whether failed seeds were left out, cannot be "
        "checked"
    ),
    "folds": lambda folds, repeats: (
        f"cross-validation with {folds} folds, {counted(repeats, 'repeat')}: every row was "
        "predicted by models that were not trained on it, but their training rows overlap; the "
        "intervals are widened for that (Nadeau and Bengio 2003), and rows other than these may "
        "still differ"
    ),
    # On what differs between the runs
    "unequal": _unequal,
    "mixed_execution": lambda arm: (
        f"not like for like: {arm} was native in some runs and emulated in others"
    ),
    "masks": lambda arms, baseline: (
        f"dropout masks: {' and '.join(arms)} may have used other masks than {baseline} with the "
        "same seed, because the kernels of a GPU draw in an order that depends on the dtype; "
        "error bars over seeds contain this noise"
    ),
    "other_examples": lambda arms, baseline: (
        f"other training examples per step: because of their settings, {' and '.join(arms)} saw "
        f"other examples than {baseline} with the same seed; the test examples are the same and "
        "are compared one by one"
    ),
    # On the cases
    "grouped": lambda examples, groups, column: (
        f"grouped: the {examples:,} examples belong to {groups:,} groups (--group_column "
        f"{column}, joined where inputs are equal), which are the cases of the error bars"
    ),
    "duplicates": lambda examples, groups: (
        f"duplicates: {examples - groups:,} of {examples:,} examples repeat another one (apart "
        f"from case, punctuation and white space), so the {groups:,} distinct ones are the cases "
        "of the error bars"
    ),
    "copied": _copied,
    "same_predictions": lambda arms: (
        f"identical predictions: {'; '.join(map(', '.join, arms))} predict exactly the same, as if "
        "one table had been given twice"
    ),
    # On the speed
    "unreliable_speeds": lambda baseline, ratio: (
        f"speeds are unreliable: the placebo, which computes the same as {baseline}, ran at "
        f"{ratio_text(ratio)}x its speed; repeat the comparison on an otherwise idle machine"
    ),
    "shared_cores": lambda runs: (
        f"speeds are not ranked: {runs} runs trained at a time, each on its share of the cores of "
        "one machine, whose memory and clock they shared; the scores are not affected"
    ),
    "several_nodes": lambda runs, nodes: (
        f"speeds are not ranked: {counted(runs, 'run')} trained at a time on the cores of "
        f"{counted(len(nodes), 'node')} ({', '.join(nodes)}), possibly beside other work; the "
        "scores are not affected"
    ),
    "several_gpus": lambda gpus: (
        f"speeds are not ranked: runs trained on GPUs of several kinds ({', '.join(gpus)})"
    ),
    "own_gpus": lambda runs, gpus: (
        f"{runs} runs trained at a time, each on a GPU of its own"
        f"{' of the same kind' if gpus else ''}"
        f"{' (' + gpus[0] + ')' if gpus else ''}; they shared processor and disk"
    ),
    "unreliable_times": lambda baseline, ratio: (
        f"times are unreliable: {baseline} ran at {ratio_text(ratio)}x its own speed when "
        "measured twice in turns; repeat the comparison on an otherwise idle machine"
    ),
    "waiting": lambda share: (
        f"waits for data in {percent(share)} of its step time, which does not depend on the "
        "precision; try --dataloader_num_workers"
    ),
    "launch_bound": _launch_bound,
    "small_products": lambda baseline, busy: (
        "matrix products are too small: at the rate of large products they would take "
        f"{percent(busy)} of {baseline}'s step time, and the rest is overhead; try larger batches"
    ),
    "unaligned": lambda: (
        "padded lengths are not multiples of 8, which slows 16-bit products on a GPU; try "
        "--pad_to_multiple_of 8"
    ),
    "no_utilisation": lambda: "unknown, because these runs recorded no utilisation",
    "amdahl": _amdahl,
}


@dataclass(frozen=True)
class Remark:
    """A caveat, or the reason for a speed."""

    kind: Annotated[str, one_of(tuple(SENTENCES))]  # Key of `SENTENCES`.
    # Numbers and names in its sentence, by name.
    values: Mapping[str, Any] = field(default_factory=dict)


def remark(kind: str, **values: JSONValue) -> Remark:
    """Return a remark of a kind with its values."""
    return Remark(kind, values)


def remark_text(each: Remark) -> str:
    """Return the sentence of a remark, in which no name has control or direction characters.

    Raises:
        ValueError: A value is missing, unknown or of another type, as in a damaged file.
    """
    values = {name: _shown(value) for name, value in each.values.items()}
    try:
        return SENTENCES[each.kind](**values)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the values of a remark {each.kind!r} are wrong: {error}") from None


def remark_texts(remarks: Iterable[Remark]) -> tuple[str, ...]:
    """Return the sentences of remarks."""
    return tuple(map(remark_text, remarks))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return inert(value)
    if isinstance(value, Mapping):
        return {inert(name): _shown(part) for name, part in value.items()}
    return [_shown(part) for part in value] if isinstance(value, list | tuple) else value
