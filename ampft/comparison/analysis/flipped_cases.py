"""Shows the examples that an arm changes as what they are: pictures, sounds, sentences, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ampft.comparison.analysis.loading import RunGroup
from ampft.comparison.analysis.predictions import ArmPredictions
from ampft.comparison.analysis.run_predictions import Cases, RunPredictions
from ampft.comparison.findings import ArmResult, FlippedExample
from ampft.kinds.views import CasePrediction
from ampft.runs.case_views import CaseViews
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.predictions import is_input, read_rows
from ampft.runs.show import task_row

MAX_SHOWN = 20  # examples of all arms together, which keeps the page small


@dataclass(frozen=True)
class _Arm:
    """The runs of an arm, and their predictions in the same order."""

    group: RunGroup
    predictions: Sequence[RunPredictions]

    def prediction(self, example: int, seed: int) -> CasePrediction:
        """Return the prediction of an example by the run of a seed, given by its index."""
        path = self.group.runs[seed].folder / PREDICTIONS_NAME
        return CasePrediction(self.group.name, self.predictions[seed].choices[example], path)


def with_shown_cases(
    arms: Sequence[ArmResult],
    groups: Sequence[RunGroup],
    predictions: Mapping[str, ArmPredictions],
    cases: Cases,
) -> tuple[ArmResult, ...]:
    """Return the arms with at most `MAX_SHOWN` of their changed examples shown as what they are.

    Texts are left as they are, because the tables of the report contain them.

    Args:
        arms: Arms, the baseline first.
        groups: Runs of each arm, in the same order.
        predictions: Predictions by name of the arm.
        cases: Cases that are predicted.
    """
    record = groups[0].runs[0].record
    changed = [arm for arm in arms if arm.flips is not None and arm.flips.examples]
    if task_row(record).kind.view is None or not changed:
        return tuple(arms)
    views = CaseViews(record, cases.split, cases.label_names)
    limit = max(1, MAX_SHOWN // len(changed))
    base = _Arm(groups[0], predictions[groups[0].name].in_mode)

    def shown(arm: _Arm, example: FlippedExample) -> FlippedExample:
        case = example.example_id
        pairs = zip(base.predictions, arm.predictions, strict=True)
        differs = [bool((one.choices[case] != two.choices[case]).any()) for one, two in pairs]
        both = [each.prediction(case, differs.index(True)) for each in (base, arm)]
        inputs = read_rows(both[0].path, [case], is_input)[case]
        view = views.show(case, inputs, cases.truth[case], both)
        return example if view.texts else replace(example, shown=view)

    result = []
    for arm, group in zip(arms, groups, strict=True):
        if arm.flips is not None:
            of_arm = _Arm(group, predictions[group.name].in_mode)
            examples = arm.flips.examples
            first = tuple(shown(of_arm, example) for example in examples[:limit])
            arm = replace(arm, flips=replace(arm.flips, examples=(*first, *examples[limit:])))
        result.append(arm)
    return tuple(result)
