"""Serve an artifact of any format, here `artifacts/mine`, with FastAPI.

ARTIFACT=artifacts/mine uvicorn --factory --app-dir recipes/serving fastapi_app:make_app
"""

import os
from typing import Any

import numpy as np
from fastapi import FastAPI

from ampft.lab.export import open_artifact


def make_app() -> FastAPI:
    """Return an application that answers POST /predict with a label for each text."""
    artifact = open_artifact(os.environ["ARTIFACT"])

    def predict(texts: list[str]) -> list[dict[str, Any]]:
        logits = artifact.logits(texts, batch_size=32)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        names = artifact.manifest.label_names
        return [{"label": names[row.argmax()], "score": float(row.max())} for row in probabilities]

    app = FastAPI()
    app.post("/predict")(predict)
    return app
