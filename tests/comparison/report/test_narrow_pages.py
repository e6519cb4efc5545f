"""Pages on a phone: nothing is cut off. Needs only Chromium, not its driver."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

import pytest

from ampft.text.page import Facts, Page, Section, html_page

WIDTH = 390
ROWS = [
    ("result in float64", "up to 3.7434e+30"),
    ("remedy", "Normalize or bound what this operation receives: its result is too large."),
    ("source", "modeling_bert.py:106: embeddings_of_words = self.LayerNorm(embeddings_of_words)"),
]


def cut_off(page: str, folder) -> int:
    """Return by how many pixels the widest table exceeds its place on a narrow page."""
    frame = folder / "frame.html"
    script = (
        "onload = () => { const all = [...frames[0].document.querySelectorAll('.scroll')];"
        "out.textContent = Math.max(...all.map((e) => e.scrollWidth - e.clientWidth)) }"
    )
    frame.write_text(
        f'<iframe srcdoc="{html.escape(page)}" width="{WIDTH}" height="900"></iframe>'
        f'<p id="out"></p><script>{script}</script>',
        encoding="utf-8",
    )
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    profile = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run(
        [*command, profile, frame.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    found = re.search(r'<p id="out">(\d+)</p>', done.stdout)
    assert found is not None, done.stderr[-500:]
    return int(found[1])


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_facts_are_not_cut_off_on_a_phone(tmp_path):
    section = Section("faults", "Faults", [Facts(ROWS, "Fault 1")])
    page = html_page(Page(kind="doctor", title="t", kicker="k", headline="h", sections=[section]))
    assert cut_off(page, tmp_path) == 0
    # Negative control: without the rule for narrow pages.
    assert cut_off(page.replace(".stated tbody", ".other tbody"), tmp_path) > 0
