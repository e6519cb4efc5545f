"""Labels, texts and a yardstick for the example comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from ampft.text.json_io import JSONValue

MODULES = ("embeddings", "encoder.layer.0", "encoder.layer.1", "head")


def _noise(name: str, size: float) -> dict[str, JSONValue]:
    return {
        "name": name,
        "parameters": 1_000_000,
        "gradient_norm": 1.3 * size,
        "signal": 0.9 * size,
        "noise": 2.1 * size,
    }


def _mode(mode: str, execution: str, error: float) -> dict[str, JSONValue]:
    whole, *modules = (
        {
            "name": name,
            "error_over_noise": error * factor,
            "bias_over_noise": error * factor / 5,
            "bias_z": 1.1 * factor,
            "underflow": 0.002 if mode == "fp16" else 0.0,
        }
        for name, factor in zip(
            ("whole gradient", *MODULES), (1.0, 1.2, 1.9, 0.8, 0.4), strict=True
        )
    )
    return {
        "mode": mode,
        "execution": execution,
        "executed": f"products in {mode}",
        "initial_scale": 65536.0 if mode == "fp16" else None,
        "lowest_scale": 8192.0 if mode == "fp16" else None,
        "overflowed_batches": 2 if mode == "fp16" else 0,
        "failed_batches": 0,
        "whole": whole,
        "modules": modules,
    }


# A `Yardstick` after a round trip through JSON.
YARDSTICK: Mapping[str, JSONValue] = {
    "settings": {
        "modes": ["fp32", "bf16", "fp16"],
        "batches": 32,
        "effective_batch_size": 32,
        "micro_batches": 1,
        "model": "all-MiniLM-L6-v2",
        "data": "stdlib (summary)",
        "seed": 1,
        "device": "cpu",
        "cpu_threads": 2,
        "padding_free": True,
    },
    "checkpoints": [
        {
            "name": name,
            "whole": _noise("whole gradient", growth),
            "modules": [_noise(module, growth / 2) for module in MODULES],
            "modes": [
                _mode("fp32", "native", 3e-7 * growth),
                _mode("bf16", "native", 0.0041 * growth),
                _mode("fp16", "emulated", 0.0006 * growth),
            ],
        }
        for name, growth in (("initial weights", 1.0), ("fp32-seed-1", 1.4))
    ],
    "versions": {"torch": "2.13.0+cpu"},
    "started": "2026-01-01T00:00:00+00:00",
    "schema": 1,
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
