"""Serve an artifact of any format, here `artifacts/mine`, with FastAPI.

ARTIFACT=artifacts/mine uvicorn --factory --app-dir recipes/serving fastapi_app:make_app
"""

import os
import sys
from typing import Any

try:
    from fastapi import FastAPI, HTTPException

    from ampft.errors import InputError
    from ampft.export import open_artifact
except ImportError as error:  # another environment
    hint = f" ({sys.executable}). Run pip install ampft fastapi uvicorn." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)


def make_app() -> FastAPI:
    """Return an application that answers POST /predict with a list of texts, pairs or sentences."""
    artifact = open_artifact(os.environ["ARTIFACT"])

    def predict(rows: list[str | list[str]]) -> list[dict[str, Any]]:
        try:
            columns = artifact.predict(rows, batch_size=32)  # as `ampft predict` answers
        except InputError as error:
            raise HTTPException(422, str(error)) from error
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    app = FastAPI()
    app.post("/predict")(predict)
    return app
