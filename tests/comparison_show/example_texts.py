"""Labels, texts and a yardstick for the example comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from ampft.results.jsontext import JSONValue

YARDSTICK: Mapping[str, JSONValue] = {
    "batches": 24,
    "batch_size": 32,
    "points": [
        {
            "at": at,
            "modes": {
                "bf16": {"overall": 0.0041 * k, "modules": {"encoder.layer.0": 0.0053 * k}},
                "fp16": {"overall": 0.0006 * k, "modules": {"encoder.layer.0": 0.0007 * k}},
            },
        }
        for at, k in (("initial weights", 1.0), ("fp32-seed-1", 1.4))
    ],
}
LABELS = (
    *("asyncio", "collections", "concurrency", "data formats", "email and web", "files"),
    *("internals", "mathematics", "operating system", "testing", "text", "user interfaces"),
)
TEXTS = (
    "Return True if the path points to a mount point.",
    "Wait until the barrier is passed, or until the timeout has elapsed.",
    "Decode the header and return a list of pairs of string and charset.",
    "Insert item x in list a, and keep it sorted assuming a is sorted.",
)
HOSTILE_LABELS = (
    "<script>alert(1)</script>",
    '" onload=x ',
    "](javascript:alert(1))",
    "a | b `c` | d",
    "\u202ereversed\u202c",
    "two\nlines\r\nand a\ttab",
    "中文标签\uff1a自然语言处理",
    "مرحبا بالعالم",
    "w" * 300,
    "<img src=x onerror=alert(1)>",
    "www.example.com https://example.com a@example.com",
    "",
)
