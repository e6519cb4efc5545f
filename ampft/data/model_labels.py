"""The labels of a model that is evaluated as it is, and which of them each label of the data is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ampft.data.labelled_rows import LabelledRows
from ampft.data.row_labels import sort_names
from ampft.errors import InputError, quoted_list

# Names that transformers gives to the outputs of a model whose labels nobody named.
_UNNAMED = re.compile(r"LABEL_\d+")


@dataclass(frozen=True)
class ModelLabels:
    """The labels of a model, in the order of its outputs."""

    names: tuple[str, ...]
    model: str  # Flag and path of the model, with which messages start.

    def of_rows(
        self, rows: Mapping[str, LabelledRows]
    ) -> tuple[dict[str, LabelledRows], list[str]]:
        """Return rows with the labels of the model, and a note if these have other names.

        Raises:
            InputError: A label of the data is none of the model's.
        """
        own = list(dict.fromkeys(name for part in rows.values() for name in part.names))
        found, how = self._found(own, rows["train"].declared)
        if found is None:
            known = {name.lower() for name in self.names}
            unknown = [name for name in own if name.lower() not in known] or own
            place = next(part for part in rows.values() if not {*part.names}.isdisjoint(unknown))
            raise InputError(
                f"{self.model}: the model has {len(self.names)} labels, {quoted_list(self.names)}, "
                f"and {place.origin} has others: {quoted_list(unknown)}. A model that is "
                "only evaluated keeps its labels. Pass the column of its labels with "
                "--label_column_name, rename them, leave such rows out with --ignore_label, or add "
                "--do_train to train a head for these labels."
            )
        renamed = {
            split: replace(part, names=tuple(found[name] for name in part.names), declared=None)
            for split, part in rows.items()
        }
        pairs = [f"{name} is {found[name]}" for name in own if found[name] != name]
        return renamed, [f"Labels of the model: {quoted_list(pairs)}, {how}."] if pairs else []

    def _found(
        self, own: Sequence[str], declared: Sequence[str] | None
    ) -> tuple[dict[str, str] | None, str]:
        """Return the label of the model for each label of the data, and by what; None if unknown.

        Args:
            declared: Classes in the order that the source declares; None if it declares none.
        """
        names, count = self.names, len(self.names)
        if {*own} <= {*names}:
            return {name: name for name in own}, ""
        lower = {name.lower(): name for name in names}
        of_own = {name.lower() for name in own}
        if len(lower) == count and len(of_own) == len(own) and of_own <= lower.keys():
            return {name: lower[name.lower()] for name in own}, "apart from case"
        is_unnamed = all(map(_UNNAMED.fullmatch, names))
        if declared is not None:
            if not is_unnamed or len(declared) != count:
                return None, ""
            return dict(zip(declared, names, strict=True)), "in the order that the data declare"
        of_number = {str(index): name for index, name in enumerate(names)}
        if {*own} <= of_number.keys() and not any(name.isdecimal() for name in names):
            return {name: of_number[name] for name in own}, "by their numbers"
        if is_unnamed and len(own) == count:
            ordered = dict(zip(sort_names(own), names, strict=True))
            return ordered, "which has no names: in sorted order, as in transformers' scripts"
        return None, ""
