"""The page on decoders quotes the stored memory and time of a base in 4 bits."""

from __future__ import annotations

import json
from statistics import median

from running import REPOSITORY


def test_the_page_has_the_stored_memory_and_time():
    path = REPOSITORY / "benchmarks/results/four-bit.json"
    turns = json.loads(path.read_text(encoding="utf-8"))["turns"]
    page = (REPOSITORY / "docs" / "part_of_model.md").read_text(encoding="utf-8")
    page = " ".join(page.split())
    figures = {
        name: {key: [turn[key] for turn in found] for key in found[0]}
        for name, found in turns.items()
    }
    whole, packed = figures["float32"], figures["4 bits"]
    assert f"{packed['weights_mib'][0]:.0f} MiB instead of {whole['weights_mib'][0]:.0f}" in page
    seconds = [median(part["step_seconds"]) for part in (packed, whole)]
    assert "{:.2f} s instead of {:.2f}".format(*seconds) in page
    peaks = f"{min(packed['peak_mib']):,.0f} to {max(packed['peak_mib']):,.0f} MiB"
    assert f"{peaks} against {median(whole['peak_mib']):,.0f}" in page
