"""Every message of the program that advises something, found in its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from running import REPOSITORY

PACKAGE = REPOSITORY / "ampft"
# What a message advises: a flag, or a deed at the beginning of a sentence or of a part of it.
ADVICE = re.compile(
    r"--[a-z]\w+|(?:^|[.:;,?!)] |\bor |\band |\bso )(?:[Aa]dd|[Cc]all|[Cc]heck|[Cc]hange|[Cc]hoose|"
    r"[Cc]onvert|[Cc]opy|[Cc]orrect|[Dd]eclare|[Dd]elete|[Dd]ownload|[Ee]xport|[Ff]ill|[Ff]ix|"
    r"[Gg]ive|[Ii]nstall|[Kk]eep|[Ll]eave|[Mm]ove|[Nn]ame|[Oo]mit|[Pp]ass|[Pp]ut|[Rr]aise|"
    r"[Rr]ecord|[Rr]emove|[Rr]ename|[Rr]epeat|[Rr]eplace|[Rr]un|[Ss]ave|[Ss]et|[Ss]tart|[Tt]rain|"
    r"[Uu]npack|[Uu]se|[Ww]ait|[Ww]rite|[Uu]pgrade|[Uu]pdate)\b"
)
RAISED = re.compile(r"(?:Input|Table|Encoding)Error$")


@dataclass(frozen=True)
class Message:
    """A message as it stands in the source."""

    file: str  # Path inside the package.
    function: str
    text: str  # With {} for what is filled in.

    @property
    def key(self) -> str:
        """What names the message in a table: its file and its first words."""
        return f"{self.file}: {self.text[:70].strip()}"

    def fits(self, said: str) -> bool:
        """Return whether a text that was said can be this message."""
        # Python names settings without dashes.
        return any(_fits(text, said) for text in (self.text, self.text.replace("--", "")))

    @property
    def length(self) -> int:
        """Number of characters that are not filled in."""
        return len(self.text.replace("{}", ""))


def _fits(text: str, said: str) -> bool:
    parts = [part for part in text.split("{}") if len(part) > 3]
    pattern = ".*?".join(map(re.escape, parts))
    return bool(parts) and re.search(pattern, said, re.DOTALL) is not None


def _text(node: ast.expr) -> str:
    """Return the text of an expression, with {} for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{}"


def _messages_in(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text())
    name = path.relative_to(PACKAGE).as_posix()
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if not RAISED.search(called):
            continue
        around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
        function = max(around, key=lambda f: f.lineno).name if around else ""
        yield Message(name, function, _text(node.args[-1]))


@cache
def advising_messages() -> tuple[Message, ...]:
    """Return the messages of `ampft` that advise something, each once."""
    found = [m for path in sorted(PACKAGE.rglob("*.py")) for m in _messages_in(path)]
    return tuple(dict.fromkeys(m for m in found if ADVICE.search(m.text)))


def message_of(said: str) -> Message | None:
    """Return the message that was said.

    Of several that fit, it is one that begins with another message, else that with the longest
    text.
    """
    found = [m for m in advising_messages() if m.fits(said)]
    around = [m for m in found if re.match(r"\{\} [A-Z]", m.text)]
    return max(around or found, key=lambda m: m.length, default=None)
