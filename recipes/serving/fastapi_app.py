"""Serve an artifact of any format, here `artifacts/mine`, with FastAPI.

ARTIFACT=artifacts/mine uvicorn --factory --app-dir recipes/serving fastapi_app:make_app
"""

import os
from typing import Any

from fastapi import FastAPI

from ampft.lab.export import open_artifact


def make_app() -> FastAPI:
    """Return an application that answers POST /predict with the prediction for each text."""
    artifact = open_artifact(os.environ["ARTIFACT"])

    def predict(texts: list[str]) -> list[dict[str, Any]]:
        columns = artifact.predict(texts, batch_size=32)  # as `ampft predict` answers
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    app = FastAPI()
    app.post("/predict")(predict)
    return app
