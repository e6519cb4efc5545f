"""A comparison as Markdown for a pull request: verdicts and table first, the rest folded."""

from __future__ import annotations

from ampft.comparison.answer import answer_text
from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.sections import Section, sections
from ampft.comparison.report.tables import executed, modes, settings, without_incomplete_medians
from ampft.comparison.verdict_text import verdict_texts
from ampft.text.markdown import prose
from ampft.text.tables import markdown_table

MAX_CLASSES = 50  # keeps the report below the 65,536 characters of a GitHub comment


def markdown_text(comparison: Comparison) -> str:
    """Return the comparison as Markdown with a trailing newline.

    The verdicts, the stamps and the table of modes come first. All other sections are in
    `<details>`, the only HTML elements. Names, labels and texts are inert.

    Args:
        comparison: Comparison to show.
    """
    verdicts = verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    differing = settings(comparison)
    parts = [
        f"## {comparison.heading}: {prose(comparison.title)}",
        f"**{prose(answer_text(comparison))}**" if answer_text(comparison) else "",
        _list(verdicts),
        "\\\n".join(f"> **Note:** {prose(text)}" for text in remark_texts(comparison.stamps)),
        "" if differing is None else markdown_table(differing),
        markdown_table(modes(comparison)),
    ]
    measured = executed(comparison)
    if measured:
        parts.append(f"Precision measured in the first step:\n\n{_list(measured)}")
    parts += [_details(each) for each in sections(comparison, max_classes=MAX_CLASSES)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _details(section: Section) -> str:
    heading = section.heading + " (exploratory)" * section.is_exploratory
    parts = [*map(prose, section.paragraphs), *map(markdown_table, section.tables)]
    if section.items:
        parts.append(_list(section.items))
    body = "\n\n".join(parts)
    return f"<details>\n<summary>{heading}</summary>\n\n{body}\n\n</details>"


def _list(items: tuple[str, ...]) -> str:
    return "\n".join(f"- {prose(item)}" for item in items)
