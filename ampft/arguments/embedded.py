"""Settings of the embedded data sets."""

from __future__ import annotations

from typing import Any

# What the embedded data sets train with where the user says nothing.
EMBEDDED: dict[str, dict[str, Any]] = {
    "stdlib": {
        "per_device_train_batch_size": 16,
        "learning_rate": 2e-4,
        "num_train_epochs": 5,
        "max_seq_length": 64,
        "warmup_ratio": 0.1,
    },
    "digits": {
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "num_train_epochs": 30,
        "warmup_ratio": 0.1,
    },
}
