"""A fake model hub that answers the requests with which ``huggingface_hub`` downloads a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from testkit.local_servers import Reply, Seen

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_with(name: str, folder: Path) -> Callable[[Seen], Reply]:
    """Return a request handler that serves the files of a folder as one model with a given name."""

    def answer(request: Seen) -> Reply:
        path = request.path.partition("?")[0]
        if path.startswith(f"/api/models/{name}/tree/"):
            return _json([_entry(file) for file in sorted(folder.iterdir())])
        if path.startswith(f"/api/models/{name}"):
            files = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
            return _json({"id": name, "sha": COMMIT, "siblings": files})
        file = folder / path.rpartition("/")[2]
        if path.startswith(f"/{name}/resolve/") and file.is_file():
            return _file(file, request.headers.get("range"))
        if path in ("", "/"):
            return Reply("the hub")
        missing = "EntryNotFound" if path.startswith(f"/{name}/") else "RepoNotFound"
        return Reply("not there", 404, {"X-Error-Code": missing, "X-Error-Message": "not there"})

    return answer


def _json(value: object) -> Reply:
    return Reply(json.dumps(value), headers={"Content-Type": "application/json"})


def _entry(file: Path) -> dict[str, object]:
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _etag(file)}


def _file(file: Path, wanted: str | None) -> Reply:
    body = file.read_bytes()
    headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
    if wanted is None:
        return Reply(body, headers=headers)
    first = int(wanted.removeprefix("bytes=").partition("-")[0])
    headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
    return Reply(body[first:], 206, headers)


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
