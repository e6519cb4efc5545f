"""A hub on this machine with the endpoints that a push uses: user, repository, upload, commit.

It asks for all files in the commit itself. The real hub asks for large ones by the protocol of Xet,
which is the business of huggingface_hub.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_stand_in_token_that_may_write"


class Hub(ThreadingHTTPServer):
    """Repositories by name, each with `private` and its `files`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, dict[str, Any]] = {}
        self.accepts_commits = True


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer({})

    def do_GET(self) -> None:
        if self.path != "/api/whoami-v2":
            return self._refuse(404, f"{self.path} is not served")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._refuse(401, "Invalid credentials in Authorization header")
        return self._answer({"name": "ann", "type": "user", "orgs": []})

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'ann'}/{asked['name']}"
            private = asked.get("private") or asked.get("visibility") == "private"
            self.server.repositories.setdefault(name, {"private": private, "files": {}})
            return self._answer({"url": f"{self.server.url}/{name}"})
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        path = self.path.partition("?")[0].rpartition("/")[0]  # without the revision
        if path.endswith("/preupload"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self._answer({"files": files})
        if path.endswith("/commit"):
            if not self.server.accepts_commits:
                return self._refuse(403, "You do not have the right to write")
            return self._commit(path.removeprefix("/api/models/").removesuffix("/commit"), body)
        return self._refuse(404, f"{self.path} is not served")

    def _commit(self, name: str, body: bytes) -> None:
        files = self.server.repositories[name]["files"]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
        url = f"{self.server.url}/{name}"
        self._answer({"commitUrl": f"{url}/commit/1", "commitOid": "1" * 40, "success": True})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _refuse(self, status: int, message: str) -> None:
        self._answer({"error": message}, status, {"X-Error-Message": message})

    def _answer(
        self, values: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        all_headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        for name, value in {**all_headers, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
